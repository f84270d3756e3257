"""The connection to NATS that a standby keeps for the day on which it serves.

A NATS server that is full (``max_connections``) has no room for a new connection when the owner
dies: clients that wait take every place that becomes free. So the connection for messages is there
from the start of a member on, as that of an original server is (``docs/compat/ft.md``). Nothing is
subscribed on it. Lives on the data plane's thread, and is its station while there is nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ftstan.base import log
from ftstan.base.errors import NatsError, WireError
from ftstan.nats.link import ConnectionLostError
from ftstan.nats.pulse import Pulse
from ftstan.wire.frames import Parser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftstan.base.clock import Clock
    from ftstan.nats.link import Link, Reach

#: This thread polls the lock, too: a NATS server that does not answer must not hold that up.
_CONNECT_S: Final = 0.5
_SEND_S: Final = 0.5
#: Between two looks whether a connection is open.
_REACH_S: Final = 0.05
#: Between two attempts to connect: at first, and at most.
_RETRY_S: Final = 0.25
_RETRY_MOST_S: Final = 8.0
#: Between two looks whether the server still answers.
_LOOK_S: Final = 0.5
#: A server that lets its clients wait for longer than this will not serve soon, either.
_ANSWER_S: Final = 1.0
_CHUNK: Final = 1 << 16
#: Of somebody's subscriptions that have ended: messages, and that one was not allowed.
_UNWANTED: Final = frozenset({"MSG", "HMSG", "-ERR"})


class ReservedLink:
    """Keeps ``link`` connected, and everything that arrives on it read, until ``hand_on``."""

    def __init__(self, link: Link, clock: Clock) -> None:
        self._link = link
        self._clock = clock
        self._wait = _RETRY_S
        self._tried = 0
        """Servers that were tried in vain since the last pause."""
        self._told = False
        self._reach: Reach | None = None
        self.dropped = 0
        """Messages that came for subscriptions which had ended."""
        self._begin(0.0)

    def _begin(self, wait: float) -> None:
        now = self._clock.mono()
        self._due = now + wait
        self._looked = now
        self._pulse = Pulse(now)
        self._parser = Parser(self._link.max_payload)
        self._asked = 0
        self._drops = False
        """Whether messages are on their way that nobody wants any more."""

    def fileno(self) -> int:
        """The descriptor that is read; -1 when it is closed."""
        return self._link.fileno()

    @property
    def pending(self) -> bool:
        """Whether bytes wait of which ``poll`` on the descriptor says nothing."""
        return self._link.pending

    def timeout(self) -> float:
        """Seconds until work is due even if no bytes arrive."""
        return max(self._due - self._clock.mono(), 0.0)

    def turn(self, *, readable: bool) -> None:
        """Read what has arrived, see whether the server is there, and connect if it is not."""
        is_due = self._clock.mono() >= self._due
        if not self._link.connected:
            if is_due:
                self._connect()
            return
        try:
            if readable:
                self._read()
            if is_due:
                self._look()
        except (NatsError, WireError):
            # That NATS is away is told by the connection of the group.
            self._lose()

    def hand_on(self) -> None:
        """Leave the link to who subscribes on it from now on: connected, and with nothing on its
        way; or closed.
        """
        link = self._link
        self.end()
        try:
            self._hear_all()
            if link.connected:
                # Half a line: who subscribes reads on behind it.
                link.leftover = self._parser.unfinished
        except (NatsError, WireError):
            link.close()
        self._begin(0.0)

    def take_back(self, unfinished: bytes, sids: Sequence[int]) -> None:
        """Keep a link on which somebody has subscribed, and had an answer to each PING.

        ``unfinished``: the beginning of a frame that was read. Nothing that is on its way is
        wanted.
        """
        self._begin(_LOOK_S)
        if not self._link.connected:
            self._due = self._clock.mono()
            return
        self._drops = True
        try:
            self._take(unfinished)
            lines = b"".join(b"UNSUB %d\r\n" % sid for sid in sids)
            self._link.send(lines + b"PING\r\n", _SEND_S)
        except (NatsError, WireError):
            self._lose()
        else:
            self._asked = 1

    def end(self) -> None:
        """Begin no connection any more."""
        if self._reach is not None:
            self._reach.leave()
            self._reach = None

    def _hear_all(self) -> None:
        """Wait for answers: one that comes later would be taken for that to another question."""
        end = self._clock.mono() + _ANSWER_S
        while self._link.connected and self._asked:
            left = end - self._clock.mono()
            if left <= 0:
                raise NatsError("nats: timeout")
            self._link.wait(left)
            self._read()

    def _lose(self) -> None:
        self._link.close()
        self._tried += 1
        if self._tried < self._link.servers:
            self._begin(0.0)
            return
        self._tried = 0
        self._begin(self._wait)
        self._wait = min(2 * self._wait, _RETRY_MOST_S)

    def _connect(self) -> None:
        if self._reach is None:
            self._reach = self._link.reach()
        if not self._reach.is_over:
            self._due = self._clock.mono() + _REACH_S
            return
        reach = self._reach
        self._reach = None
        try:
            try:
                reached = reach.take()
            except NatsError:
                self._link.next_url()
                raise
            self._link.connect(_CONNECT_S, reached=reached)
        except NatsError as error:
            if not self._told:
                self._told = True
                log.stream.warning(
                    "ft: the connection to NATS on which this member would serve cannot be made: "
                    f"{error.text}"
                )
            self._lose()
            return
        if self._told:
            log.stream.info("ft: the connection to NATS on which this member would serve is there")
        self._told = False
        self._begin(_LOOK_S)
        leftover = self._link.leftover
        self._link.leftover = b""
        try:
            self._take(leftover)
        except (NatsError, WireError):
            self._lose()

    def _look(self) -> None:
        now = self._clock.mono()
        if now - self._looked > 2 * _LOOK_S:
            self._pulse.overslept(now)
        self._looked = now
        self._due = now + _LOOK_S
        if self._pulse.must_ask(now):
            self._link.send(b"PING\r\n", _SEND_S)
            self._asked += 1
        elif self._pulse.is_gone(now):
            raise ConnectionLostError(f"nats: no answer from {self._link.url_shown}")

    def _read(self) -> None:
        chunk = bytearray(_CHUNK)
        with memoryview(chunk) as view:
            while n := self._link.recv_into(view):
                self._take(bytes(view[:n]))
                if n < len(view):
                    return

    def _take(self, data: bytes) -> None:
        for kind, *words in self._parser.feed(data):
            self._pulse.heard(self._clock.mono())
            if kind == "PING":
                self._link.send(b"PONG\r\n", _SEND_S)
            elif kind == "PONG":
                self._answered()
            elif kind == "INFO":
                self._link.take_info(words[0])
                rest = self._parser.unfinished
                self._parser = Parser(self._link.max_payload)
                self._parser.feed(rest)
            elif self._drops and kind in _UNWANTED:
                self.dropped += kind != "-ERR"
            elif kind != "+OK":
                raise NatsError(f"nats: {kind} on a connection without subscriptions")

    def _answered(self) -> None:
        if not self._asked:
            return
        self._asked -= 1
        if not self._asked:
            self._drops = False
            self._tried = 0
            self._wait = _RETRY_S
