"""A simulated NATS: connections that can be cut, subjects, and the two faces that a node knows of
it.

Every connection's messages keep their order; those of different connections do not. What was sent
is on its way until ``Hub.flow`` processes it: then it is in the mailbox of every subscriber. A
connection that is cut loses what was on its way; a process that is killed does not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from ftstan.base.errors import NatsError
from ftstan.nats.link import ConnectionLostError

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

MAX_PAYLOAD = 1 << 20


@dataclass(frozen=True, slots=True)
class Packet:
    """One message. ``tag``: whatever the sender stood for when it sent it."""

    subject: str
    reply: str
    data: bytes
    tag: object = None


@dataclass(eq=False, slots=True)
class Connection:
    """One connection to the hub. ``host``: which machine it comes from, so that it can be cut.

    ``on_packet``: called for each packet and sid as it arrives; ``None``: kept in ``mailbox``.
    """

    number: int
    host: object
    on_packet: Callable[[str, Packet], None] | None = None
    sent: deque[tuple[str, Any]] = field(default_factory=deque)
    subs: dict[str, str] = field(default_factory=dict)
    mailbox: bytearray = field(default_factory=bytearray)
    marks: deque[tuple[int, object]] = field(default_factory=deque)
    """Where in all that ever came a tagged message ends, and its tag."""
    arrived: int = 0
    closed: bool = False
    ending: bool = False


#: Number of the connection, which of all subscriptions it is, the connection, its sid.
_Listener = tuple[int, int, Connection, str]


class Hub:
    """The NATS servers of a group, which are one."""

    def __init__(self, rng: Random) -> None:
        self.connections: dict[int, Connection] = {}
        self.cut_off: set[object] = set()
        self.delivered = 0
        self._rng = rng
        self._numbers = 0
        self._serial = 0
        # Who listens, by the whole pattern: few of them have wildcards, and most subjects are used
        # once.
        self._literal: dict[str, list[_Listener]] = {}
        self._wild: list[_Listener] = []

    def connect(
        self, host: object, on_packet: Callable[[str, Packet], None] | None = None
    ) -> Connection:
        """A new connection. Raises ``NatsError`` for a host that is cut off."""
        if host in self.cut_off:
            raise NatsError("nats: no servers available for connection")
        self._numbers += 1
        connection = Connection(self._numbers, host, on_packet)
        self.connections[connection.number] = connection
        return connection

    def close(self, connection: Connection, *, lose: bool = False) -> None:
        """End a connection; what it has sent still arrives, unless it is to be lost."""
        if lose:
            connection.sent.clear()
            self._forget(connection)
        else:
            connection.ending = True

    def _forget(self, connection: Connection) -> None:
        connection.closed = True
        self.connections.pop(connection.number, None)
        for sid in list(connection.subs):
            self._stop_listening(connection, sid)

    def cut(self, host: object) -> None:
        """Cut a host off: its connections break, and what was on its way in either direction is
        lost.
        """
        self.cut_off.add(host)
        for connection in [c for c in self.connections.values() if c.host == host]:
            self.close(connection, lose=True)

    def heal(self, host: object) -> None:
        """The host can connect again."""
        self.cut_off.discard(host)

    def publish(self, connection: Connection, packet: Packet) -> None:
        """Send a message."""
        connection.sent.append(("PUB", packet))

    def flow(self, chance: float = 1.0) -> bool:
        """Process what was sent, each connection's with that chance.

        Returns whether there was anything.
        """
        some = [c for c in self.connections.values() if c.sent or c.ending]
        if not some:
            return False
        self._rng.shuffle(some)
        moved = False
        for connection in some:
            if self._rng.random() < chance:
                moved = True
                while connection.sent:
                    self._process(connection, *connection.sent.popleft())
                if connection.ending:
                    self._forget(connection)
        return moved

    def _process(self, connection: Connection, verb: str, what: Any) -> None:
        match verb:
            case "PUB":
                self._route(what)
            case "SUB":
                sid, subject = what
                # As nats-server: a sid that is in use keeps its subject.
                if sid not in connection.subs:
                    self._listen(connection, sid, subject)
            case "UNSUB":
                self._stop_listening(connection, what)
            case "PING":
                if connection.on_packet is None:
                    connection.mailbox += b"PONG\r\n"
                    connection.arrived += 6
                else:
                    what()

    def _listen(self, connection: Connection, sid: str, pattern: str) -> None:
        self._stop_listening(connection, sid)
        self._serial += 1
        connection.subs[sid] = pattern
        self._alike(pattern).append((connection.number, self._serial, connection, sid))

    def _stop_listening(self, connection: Connection, sid: str) -> None:
        pattern = connection.subs.pop(sid, None)
        if pattern is not None:
            alike = self._alike(pattern)
            alike[:] = [
                listener
                for listener in alike
                if listener[2] is not connection or listener[3] != sid
            ]
            if not alike:
                self._literal.pop(pattern, None)

    def _alike(self, pattern: str) -> list[_Listener]:
        return (
            self._wild
            if "*" in pattern or ">" in pattern
            else self._literal.setdefault(pattern, [])
        )

    def _route(self, packet: Packet) -> None:
        subject = packet.subject
        wild = [
            listener for listener in self._wild if _matches(listener[2].subs[listener[3]], subject)
        ]
        literal = self._literal.get(subject)
        if not wild and not literal:
            return
        heard = list(literal) if literal else []
        if wild:
            # Connection by connection, each one's in the order in which it began to listen.
            heard = sorted([*wild, *heard])
        for _, _, connection, sid in heard:
            self.delivered += 1
            if connection.on_packet is not None:
                connection.on_packet(sid, packet)
            else:
                reply = f"{packet.reply} " if packet.reply else ""
                head = f"MSG {packet.subject} {sid} {reply}{len(packet.data)}\r\n".encode()
                connection.mailbox += head + packet.data + b"\r\n"
                connection.arrived += len(head) + len(packet.data) + 2
                if packet.tag is not None:
                    connection.marks.append((connection.arrived, packet.tag))


def _answer(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


@cache
def _matches(pattern: str, subject: str) -> bool:
    """Whether a pattern with wildcards says that subject."""
    wanted = pattern.split(".")
    given = subject.split(".")
    for i, token in enumerate(wanted):
        if token == ">":
            return len(given) > i
        if i >= len(given) or token not in {"*", given[i]}:
            return False
    return len(wanted) == len(given)


class SimLink:
    """The data plane's link: the face of ``ftstan.nats.link.Link``.

    ``tag``: what its messages are marked with.
    """

    def __init__(
        self,
        hub: Hub,
        host: object,
        tag: Callable[[], object],
        park: Callable[[Callable[[], bool], float], None],
    ) -> None:
        """``park`` waits until its argument holds, or for so many seconds."""
        self._hub = hub
        self._park = park
        self._host = host
        self._tag = tag
        self._connection: Connection | None = None
        self._is_cut = False
        self._read = 0
        self.on_read: Callable[[object], object] = lambda _tag: None
        """Called with the tag of each tagged message when the last of its bytes was read."""
        self.info: dict[str, Any] = {}
        self.max_payload = MAX_PAYLOAD
        self.leftover = b""
        self.url_shown = "nats://sim"

    @property
    def connected(self) -> bool:
        """Whether the link was up at the last call."""
        return self._connection is not None

    @property
    def subscriptions(self) -> int:
        """How many the NATS server knows of."""
        return len(self._connection.subs) if self._connection is not None else 0

    def fileno(self) -> int:
        """A number for the connection, -1 for none."""
        return self._connection.number if self._connection is not None else -1

    @property
    def readable(self) -> bool:
        """Whether a read would say something: bytes, or that the link is lost."""
        return self._connection is not None and (
            bool(self._connection.mailbox) or self._connection.closed
        )

    @property
    def pending(self) -> bool:
        """Nothing waits behind the descriptor."""
        return False

    def renew(self, _options: object) -> None:
        """There is no login."""

    def reach(self) -> SimLink:
        """There is nothing to wait for."""
        return self

    is_over = True
    servers = 1

    def take(self) -> None:
        """Nothing has been opened."""

    def leave(self) -> None:
        """Nothing has been begun."""

    def next_url(self) -> None:
        """There is one."""

    def take_info(self, text: bytes) -> None:
        """Never called."""
        raise AssertionError(f"the hub says no INFO: {text!r}")

    def connect(self, _timeout: float, reached: None = None) -> None:
        """Connect. Raises ``NatsError``."""
        del reached
        self.close()
        if self._is_cut:
            raise NatsError("nats: this link was cut")
        self._connection = self._hub.connect(self._host)
        self._read = 0

    def wait(self, seconds: float) -> None:
        """As the real one."""
        self._park(lambda: self.readable, seconds)

    def recv_into(self, buffer: memoryview) -> int:
        """As the real one."""
        connection = self._up()
        n = min(len(buffer), len(connection.mailbox))
        if n:
            buffer[:n] = connection.mailbox[:n]
            del connection.mailbox[:n]
            self._read += n
            while connection.marks and connection.marks[0][0] <= self._read:
                self.on_read(connection.marks.popleft()[1])
        elif connection.closed:
            raise self._lost()
        return n

    def send(self, data: bytes | bytearray | memoryview, _deadline_s: float) -> None:
        """As the real one: the bytes are frames of the NATS protocol."""
        connection = self._up()
        if connection.closed:
            raise self._lost()
        tag = self._tag()
        for verb, what in _frames(bytes(data)):
            connection.sent.append(
                (verb, Packet(what[0], what[1], what[2], tag) if verb == "PUB" else what)
            )

    def cut(self) -> None:
        """End the connection for good."""
        self._is_cut = True
        self.close()

    def finish(self, _seconds: float) -> None:
        """As the real one; what was sent arrives whether or not anybody waits for that."""
        self.close()

    def close(self) -> None:
        """Close the link; what was sent still arrives."""
        connection = self._connection
        self._connection = None
        if connection is not None:
            self._hub.close(connection)

    def _up(self) -> Connection:
        if self._connection is None:
            raise ConnectionLostError("nats: not connected")
        return self._connection

    def _lost(self) -> ConnectionLostError:
        self._connection = None
        return ConnectionLostError("nats: connection to nats://sim lost: closed by the server")


def _frames(data: bytes) -> list[tuple[str, Any]]:
    """What a client of NATS says in ``data``, which holds whole frames."""
    found: list[tuple[str, Any]] = []
    at = 0
    while at < len(data):
        end = data.index(b"\r\n", at)
        verb, *words = data[at:end].decode().split()
        at = end + 2
        match verb:
            case "PUB":
                size = int(words[-1])
                reply = words[1] if len(words) == 3 else ""
                found.append(("PUB", (words[0], reply, data[at : at + size])))
                at += size + 2
            case "SUB":
                found.append(("SUB", (words[-1], words[0])))
            case "UNSUB":
                found.append(("UNSUB", words[0]))
            case "PING":
                found.append(("PING", None))
            case "PONG":
                pass
            case _:
                raise AssertionError(f"what is {verb}?")
    return found


class SimControl:
    """The control thread's connection: the face of ``ftstan.nats.control.Control``."""

    def __init__(
        self,
        hub: Hub,
        host: object,
        *,
        cluster_id: str,
        on_disconnect: Callable[[NatsError], None] | None = None,
        on_reconnect: Callable[[str], None] | None = None,
        role: str = "ft",
        **_options: object,
    ) -> None:
        self._hub = hub
        self._host = host
        self._on_disconnect = on_disconnect
        self._on_reconnect = on_reconnect
        self._handlers: dict[str, tuple[str, Callable[[Packet], None]]] = {}
        self._connection: Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inboxes = 0
        self.established = asyncio.Event()
        self.name = f"_NSS-{cluster_id}-{role}"
        self.max_payload = MAX_PAYLOAD

    @property
    def connected(self) -> bool:
        """Whether publishing would be tried now."""
        return self._connection is not None and not self._connection.closed

    @property
    def running(self) -> bool:
        """Whether there is a connection, or one is being tried for."""
        return self._loop is not None

    def renew(self, _options: object) -> None:
        """There is no login."""

    async def start(self) -> None:
        """Begin to connect."""
        self._loop = asyncio.get_running_loop()
        self.look()

    def look(self) -> None:
        """Notice that the connection has come or gone; the process calls it whenever it moves."""
        if self._loop is None:
            return
        if self._connection is not None and self._connection.closed:
            self._connection = None
            if self._on_disconnect is not None:
                self._loop.call_soon(self._on_disconnect, NatsError("nats: connection closed"))
        if self._connection is None and self._host not in self._hub.cut_off:
            self._connection = self._hub.connect(self._host, self._on_packet)
            for sid, (subject, _) in self._handlers.items():
                self._connection.sent.append(("SUB", (sid, subject)))
            if self.established.is_set():
                if self._on_reconnect is not None:
                    self._loop.call_soon(self._on_reconnect, "nats://sim")
            else:
                self.established.set()

    def _on_packet(self, sid: str, packet: Packet) -> None:
        handler = self._handlers.get(sid)
        if handler is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon(handler[1], packet)

    async def subscribe(self, subject: str, callback: Callable[[str, bytes], None]) -> None:
        """As the real one."""
        self._add(subject, lambda packet: callback(packet.subject, packet.data))

    async def serve(self, subject: str, callback: Callable[[bytes, str], None]) -> None:
        """As the real one."""
        self._add(
            subject, lambda packet: callback(packet.data, packet.reply) if packet.reply else None
        )

    def _add(self, subject: str, handler: Callable[[Packet], None]) -> str:
        sid = str(len(self._handlers) + 1)
        self._handlers[sid] = (subject, handler)
        if self._connection is not None:
            self._connection.sent.append(("SUB", (sid, subject)))
        return sid

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        """As the real one."""
        if not self.connected or self._connection is None:
            raise NatsError(
                "nats: outbound buffer limit exceeded", hint="the connection to NATS is down"
            )
        self._hub.publish(self._connection, Packet(subject, reply, data))

    async def ask(self, subject: str, data: bytes, seconds: float) -> list[bytes]:
        """As the real one."""
        self._inboxes += 1
        inbox = f"_INBOX.{id(self)}.{self._inboxes}"
        answers: list[bytes] = []
        self._add(inbox, lambda packet: answers.append(packet.data))
        await self.publish(subject, data, inbox)
        await asyncio.sleep(seconds)
        return answers

    async def flush(self) -> None:
        """As the real one."""
        if not self.connected or self._connection is None:
            raise NatsError("nats: not connected")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connection.sent.append(("PING", partial(_answer, done)))
        try:
            await asyncio.wait_for(done, 2)
        except TimeoutError as error:
            raise NatsError("nats: timeout") from error

    async def close(self) -> None:
        """End the connection."""
        self._loop = None
        connection = self._connection
        self._connection = None
        if connection is not None:
            self._hub.close(connection)
