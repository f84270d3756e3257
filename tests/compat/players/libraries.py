"""Clients with the habits of the known client libraries, on raw NATS connections that come back by
themselves.

A library is data: ``GO``, ``PYTHON`` and ``NODE`` speak protocol 1 and ping; ``OLD_GO`` speaks
protocol 0, with neither connection id nor pings. Of ``JAVA``, ``OLD_JAVA`` (before 2.2) and
``CSHARP`` only what their READMEs say is known; where those say nothing they have what the other
libraries share, and the least patience of them. ``Player`` is one connection to the streaming
server with these habits: what is subscribed when, what is sent as what, how long an answer is
waited for, when the connection counts as lost. Nothing here knows our server. Source of the habits:
``docs/compat/protocol.md``, "What client libraries do"; ``docs/clients.md``; and the recorded
sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftstan.wire import messages
from ftstan.wire.messages import StartPosition
from ftstan.wire.nuid import Nuid
from tests.compat.players.natswire import Link, Operation
from tests.processes import CLUSTER

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_RECONNECT_S = 0.05
_nuid = Nuid().next


def _hex() -> str:
    return secrets.token_hex(11)


@dataclass(frozen=True, slots=True)
class Library:
    """Habits. Times in seconds.

    ``pings``: interval and how many may be without answer, (0, 0) for none.
    """

    name: str
    protocol: int = 1
    pings: tuple[int, int] = (5, 88)
    max_in_flight: int = 1024
    unique: Callable[[], str] = _nuid
    """Makes connection ids, guids and the ends of inboxes."""
    listens_to_acks_first: bool = True
    """The subject of publisher acks is subscribed before the connect request, not after its
    answer.
    """
    hangs_up_first: bool = False
    """The heartbeat inbox is dropped before the close request."""
    needs_answer_first: bool = False
    """A message that comes before the answer to its subscribe request is dropped."""
    takes_back: bool = False
    """A subscribe that was not answered is taken back by a close with the message inbox, without
    reply subject.
    """
    request_s: float = 2.0
    ack_s: float = 30.0
    ack_wait: int = 30


GO = Library("go", listens_to_acks_first=False, takes_back=True)
OLD_GO = Library("old-go", protocol=0, pings=(0, 0), listens_to_acks_first=False)
PYTHON = Library("python", pings=(5, 3), unique=_hex, hangs_up_first=True)
NODE = Library("node", max_in_flight=16384, needs_answer_first=True)
JAVA = Library("java", pings=(5, 3))
OLD_JAVA = Library("old-java", protocol=0, pings=(0, 0))
CSHARP = Library("csharp", pings=(5, 3))
LIBRARIES = (GO, OLD_GO, PYTHON, NODE, JAVA, OLD_JAVA, CSHARP)


class RefusedError(Exception):
    """The server answered with an error; its text is the argument."""


class NoAnswerError(Exception):
    """Nobody answered in time; what was asked is the argument."""


@dataclass(frozen=True, slots=True)
class Message:
    """A delivery."""

    sequence: int
    data: bytes
    redelivered: bool
    count: int


@dataclass(slots=True, eq=False)
class Subscription:
    """What its user sees.

    ``received`` in order; with ``manual`` nothing is acknowledged but by ``Player.ack``.
    """

    channel: str
    inbox: str
    manual: bool
    ack_inbox: str = ""
    received: list[Message] = field(default_factory=list)

    @property
    def sequences(self) -> list[int]:
        return [message.sequence for message in self.received]


class Player:
    """A client of ``library`` named ``client_id``.

    ``lost``: why it gave its connection up; empty while it has not.

    With a ``lender`` it has no NATS connection of its own and uses that of another player, who must
    outlive it.
    """

    def __init__(
        self,
        library: Library,
        client_id: str,
        *ports: int,
        cluster: str = CLUSTER,
        pings: tuple[int, int] | None = None,
        request_s: float | None = None,
        ack_s: float | None = None,
        lender: Player | None = None,
    ) -> None:
        self.library = library
        self.client_id = client_id
        self.lost = ""
        self.heartbeats = 0
        self.answered_pings = 0
        self.subjects = messages.ConnectResponse()
        self._ports = ports
        self._lender = lender
        self._borrowed: set[str] = set()
        self._cluster = cluster
        self._pings = library.pings if pings is None else pings
        self._request_s = library.request_s if request_s is None else request_s
        self._ack_s = library.ack_s if ack_s is None else ack_s
        self._conn_id = library.unique() if library.protocol else ""
        self._heartbeat_inbox = self._inbox()
        self._ping_inbox = self._inbox()
        self._ack_subject = f"_STAN.acks.{library.unique()}"
        self._handlers: dict[str, Callable[[Operation], None]] = {}
        self._sids: dict[str, int] = {}
        self._serial = 0
        self._acks: dict[bytes, asyncio.Future[bytes]] = {}
        self._pings_out = 0
        self._link: Link | None = None
        self._ended = False
        self._tasks: set[asyncio.Task[None]] = set()

    # Sessions

    async def connect(self) -> None:
        """Register. Raises ``RefusedError``, ``NoAnswerError``."""
        if self._lender is None:
            await self._open(self._ports[0])
        self._listen(self._heartbeat_inbox, self._on_heartbeat)
        if self.library.protocol:
            self._listen(self._ping_inbox, self._on_ping_answer)
        if self.library.listens_to_acks_first:
            self._listen(self._ack_subject, self._on_ack)
        request = messages.ConnectRequest(
            client_id=self.client_id.encode(), heartbeat_inbox=self._heartbeat_inbox.encode()
        )
        if self.library.protocol:
            request.protocol = self.library.protocol
            request.conn_id = self._conn_id.encode()
            request.ping_interval, request.ping_max_out = self._pings
        answer = await self._ask(
            f"_STAN.discover.{self._cluster}", messages.encode(request), "connect"
        )
        self.subjects = messages.parse(messages.ConnectResponse, answer)
        if self.subjects.error:
            await self.kill()
            raise RefusedError(self.subjects.error.decode())
        if not self.library.listens_to_acks_first:
            self._listen(self._ack_subject, self._on_ack)
        if self.library.protocol and self.subjects.protocol >= 1 and self.subjects.ping_interval:
            self._start(self._ping())
        elif self.library.protocol:
            self._drop(self._ping_inbox)

    async def close(self) -> None:
        """Close the session, then the connection. Raises ``RefusedError``, ``NoAnswerError``."""
        # Whoever does not own the NATS connection has to leave nothing on it.
        if self.library.hangs_up_first or self._lender is not None:
            self._drop(self._heartbeat_inbox)
        request = messages.encode(messages.CloseRequest(client_id=self.client_id.encode()))
        try:
            answer = await self._ask(self.subjects.close_requests.decode(), request, "close")
            _check(messages.parse(messages.CloseResponse, answer).error)
        finally:
            await self.kill()

    async def kill(self) -> None:
        """Drop the connection without a word, as a client that dies."""
        self._ended = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for subject in list(self._borrowed):
            self._drop(subject)
        if self._link is not None:
            await self._link.close()

    # Publishing

    async def publish(self, channel: str, data: bytes) -> None:
        """Publish and wait for the ack. Raises ``RefusedError``, ``NoAnswerError``."""
        await self.publish_async(channel, data)

    def publish_async(self, channel: str, data: bytes) -> asyncio.Task[None]:
        """Publish at once; the task ends with the ack."""
        guid = self.library.unique().encode()
        message = messages.PubMsg(
            client_id=self.client_id.encode(), guid=guid, subject=channel.encode(), data=data
        )
        if self._conn_id:
            message.conn_id = self._conn_id.encode()
        self._acks[guid] = asyncio.get_running_loop().create_future()
        self._send(
            f"{self.subjects.pub_prefix.decode()}.{channel}",
            messages.encode(message),
            self._ack_subject,
        )
        return asyncio.create_task(self._acked(guid))

    async def _acked(self, guid: bytes) -> None:
        try:
            _check(await asyncio.wait_for(self._acks[guid], self._ack_s))
        except TimeoutError:
            raise NoAnswerError("publish") from None
        finally:
            del self._acks[guid]

    # Subscribing

    async def subscribe(
        self,
        channel: str,
        *,
        group: str = "",
        durable: str = "",
        start: StartPosition.ValueType = StartPosition.NEW_ONLY,
        sequence: int = 0,
        manual: bool = False,
        ack_wait: int | None = None,
        max_in_flight: int | None = None,
    ) -> Subscription:
        """Subscribe. Raises ``RefusedError``, ``NoAnswerError``."""
        subscription = Subscription(channel, self._inbox(), manual)
        self._listen(
            subscription.inbox, lambda operation: self._on_message(subscription, operation)
        )
        request = messages.SubscriptionRequest(
            client_id=self.client_id.encode(),
            subject=channel.encode(),
            q_group=group.encode(),
            durable_name=durable.encode(),
            inbox=subscription.inbox.encode(),
            start_position=start,
            start_sequence=sequence,
            ack_wait_in_secs=self.library.ack_wait if ack_wait is None else ack_wait,
            max_in_flight=self.library.max_in_flight if max_in_flight is None else max_in_flight,
        )

        def on_answer(answer: bytes) -> None:
            subscription.ack_inbox = messages.parse(
                messages.SubscriptionResponse, answer
            ).ack_inbox.decode()
            if not manual:
                # A library that keeps early messages acknowledges them when it learns where to.
                self.ack(subscription, *subscription.sequences)

        subject = self.subjects.sub_requests.decode()
        try:
            answer = await self._ask(subject, messages.encode(request), "subscribe", on_answer)
            _check(messages.parse(messages.SubscriptionResponse, answer).error)
        except NoAnswerError:
            if self.library.takes_back:
                self._send(
                    self.subjects.sub_close_requests.decode(),
                    self._leaving(subscription, subscription.inbox),
                )
            raise
        except RefusedError:
            self._drop(subscription.inbox)
            raise
        return subscription

    def ack(self, subscription: Subscription, *sequences: int) -> None:
        """Acknowledge."""
        for sequence in sequences:
            ack = messages.Ack(subject=subscription.channel.encode(), sequence=sequence)
            self._send(subscription.ack_inbox, messages.encode(ack))

    async def close_subscription(self, subscription: Subscription) -> None:
        """Leave, and keep a durable's state. Raises ``RefusedError``, ``NoAnswerError``."""
        await self._leave(subscription, self.subjects.sub_close_requests, "close of a subscription")

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Leave for good. Raises ``RefusedError``, ``NoAnswerError``."""
        await self._leave(subscription, self.subjects.unsub_requests, "unsubscribe")

    async def _leave(self, subscription: Subscription, subject: bytes, what: str) -> None:
        self._drop(subscription.inbox)
        answer = await self._ask(
            subject.decode(), self._leaving(subscription, subscription.ack_inbox), what
        )
        _check(messages.parse(messages.SubscriptionResponse, answer).error)

    def _leaving(self, subscription: Subscription, inbox: str) -> bytes:
        request = messages.UnsubscribeRequest(
            client_id=self.client_id.encode(),
            subject=subscription.channel.encode(),
            inbox=inbox.encode(),
        )
        return messages.encode(request)

    # What arrives

    def _on_message(self, subscription: Subscription, operation: Operation) -> None:
        if self.library.needs_answer_first and not subscription.ack_inbox:
            return
        message = messages.parse(messages.MsgProto, operation.payload or b"")
        subscription.received.append(
            Message(message.sequence, message.data, message.redelivered, message.redelivery_count)
        )
        if not subscription.manual and subscription.ack_inbox:
            self.ack(subscription, message.sequence)

    def _on_ack(self, operation: Operation) -> None:
        if operation.hdr:
            return
        ack = messages.parse(messages.PubAck, operation.payload or b"")
        future = self._acks.get(ack.guid)
        if future is not None and not future.done():
            future.set_result(ack.error)

    def _on_heartbeat(self, operation: Operation) -> None:
        self.heartbeats += 1
        self._send(operation.reply, b"")

    def _on_ping_answer(self, operation: Operation) -> None:
        if operation.hdr:
            return
        error = messages.parse(messages.PingResponse, operation.payload or b"").error
        if error:
            self.lost = self.lost or error.decode()
        else:
            self._pings_out = 0
            self.answered_pings += 1

    async def _ping(self) -> None:
        while not self.lost:
            await asyncio.sleep(self.subjects.ping_interval)
            self._pings_out += 1
            if self._pings_out > self.subjects.ping_max_out:
                self.lost = self.lost or "stan: connection lost due to PING failure"
                return
            ping = messages.encode(messages.Ping(conn_id=self._conn_id.encode()))
            self._send(self.subjects.ping_requests.decode(), ping, self._ping_inbox)

    # The NATS connection

    def _inbox(self) -> str:
        return f"_INBOX.{self.library.unique()}"

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, port: int) -> None:
        link = Link(port, self._told)
        await link.open()
        options = {
            "verbose": False,
            "pedantic": False,
            "name": self.client_id,
            "lang": self.library.name,
        }
        options |= {"version": "1", "protocol": 1, "headers": True, "no_responders": True}
        link.write(b"CONNECT " + json.dumps(options).encode() + b"\r\n")
        self._link = link
        for subject, sid in self._sids.items():
            link.write(f"SUB {subject} {sid}\r\n".encode())

    def _told(self, direction: str, operation: Operation | None) -> None:
        if operation is None:
            self._link = None
            if not self._ended:
                self._start(self._reopen())
        elif operation.subject in self._handlers:
            self._handlers[operation.subject](operation)

    async def _reopen(self) -> None:
        while True:
            for port in self._ports:
                with contextlib.suppress(ConnectionError):
                    await self._open(port)
                    return
            await asyncio.sleep(_RECONNECT_S)

    def _listen(self, subject: str, handler: Callable[[Operation], None]) -> None:
        if self._lender is not None:
            self._borrowed.add(subject)
            self._lender._listen(subject, handler)
            return
        self._serial += 1
        self._handlers[subject] = handler
        self._sids[subject] = self._serial
        self._write(f"SUB {subject} {self._serial}\r\n".encode())

    def _drop(self, subject: str) -> None:
        if self._lender is not None:
            self._borrowed.remove(subject)
            self._lender._drop(subject)
            return
        del self._handlers[subject]
        self._write(f"UNSUB {self._sids.pop(subject)}\r\n".encode())

    def _send(self, subject: str, payload: bytes, reply: str = "") -> None:
        words = " ".join(word for word in ("PUB", subject, reply, str(len(payload))) if word)
        self._write(words.encode() + b"\r\n" + payload + b"\r\n")

    def _write(self, data: bytes) -> None:
        # Without a connection it is gone: no library keeps publishes for later.
        if self._lender is not None:
            self._lender._write(data)
        elif self._link is not None:
            self._link.write(data)

    async def _ask(
        self,
        subject: str,
        payload: bytes,
        what: str,
        arrived: Callable[[bytes], None] = lambda _: None,
    ) -> bytes:
        """The first answer to a request.

        ``arrived`` is called with it before anything behind it is read.
        """
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def on_answer(operation: Operation) -> None:
            if not operation.hdr and not answer.done():
                arrived(operation.payload or b"")
                answer.set_result(operation.payload or b"")

        inbox = self._inbox()
        self._listen(inbox, on_answer)
        self._send(subject, payload, inbox)
        try:
            return await asyncio.wait_for(answer, self._request_s)
        except TimeoutError:
            raise NoAnswerError(what) from None
        finally:
            self._drop(inbox)


def _check(error: bytes) -> None:
    if error:
        raise RefusedError(error.decode())
