"""The connection to NATS that a standby keeps for the day on which it serves.

A NATS server that is full (``max_connections``) has no room for a new connection when the owner
dies: clients that wait take every place that becomes free. So the connection for messages is there
from the start of a member on, as that of an original server is (``docs/compat/ft.md``). Nothing is
subscribed on it. Lives on the data plane's thread, and is its station while there is nothing else.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from ftstan.base import log
from ftstan.base.errors import NatsError, WireError
from ftstan.nats.link import ConnectionLostError
from ftstan.nats.pulse import Pulse
from ftstan.wire.frames import Parser

if TYPE_CHECKING:
    from ftstan.base.clock import Clock
    from ftstan.nats.link import Link

#: This thread polls the lock, too: a NATS server that does not answer must not hold that up.
_CONNECT_S: Final = 0.5
_SEND_S: Final = 0.5
#: Between two attempts to connect: at first, and at most.
_RETRY_S: Final = 0.5
_RETRY_MOST_S: Final = 8.0
#: Between two looks whether the server still answers.
_LOOK_S: Final = 0.5
_ANSWER_S: Final = 0.25
_CHUNK: Final = 1 << 16


class ReservedLink:
    """Keeps ``link`` connected, and everything that arrives on it read, until ``hand_on``."""

    def __init__(self, link: Link, clock: Clock) -> None:
        self._link = link
        self._clock = clock
        self._wait = _RETRY_S
        self._told = False
        self._begin()

    def _begin(self) -> None:
        self._due = self._clock.mono()
        self._looked = self._due
        self._pulse = Pulse(self._due)
        self._parser = Parser()
        self._asked = 0

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
        if not self._link.connected:
            if self._clock.mono() >= self._due:
                self._connect()
            return
        try:
            if readable:
                self._read()
            if self._clock.mono() >= self._due:
                self._look()
        except (NatsError, WireError):
            # That NATS is away is told by the connection of the group.
            self._link.close()
            self._begin()

    def hand_on(self) -> None:
        """Leave the link to who subscribes on it from now on: connected, and with nothing on its
        way; or closed.
        """
        link = self._link
        try:
            self._hear_all()
            if link.connected:
                # Half a line: who subscribes reads on behind it.
                link.leftover = self._parser.unfinished
        except (NatsError, WireError):
            link.close()
        self._begin()

    def _hear_all(self) -> None:
        """Wait for answers: one that comes later would be taken for that to another question."""
        end = self._clock.mono() + _ANSWER_S
        while self._link.connected and self._asked:
            left = end - self._clock.mono()
            if left <= 0:
                raise NatsError("nats: timeout")
            self._link.wait(left)
            self._read()

    def _connect(self) -> None:
        try:
            self._link.connect(_CONNECT_S)
        except NatsError as error:
            if not self._told:
                self._told = True
                log.stream.warning(
                    "ft: the connection to NATS on which this member would serve cannot be made: "
                    f"{error.text}"
                )
            self._begin()
            self._due += self._wait
            self._wait = min(2 * self._wait, _RETRY_MOST_S)
            return
        if self._told:
            log.stream.info("ft: the connection to NATS on which this member would serve is there")
        self._told = False
        self._wait = _RETRY_S
        self._begin()
        self._due += _LOOK_S
        leftover = self._link.leftover
        self._link.leftover = b""
        try:
            self._take(leftover)
        except (NatsError, WireError):
            self._link.close()

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
        link = self._link
        for kind, *words in self._parser.feed(data):
            self._pulse.heard(self._clock.mono())
            if kind == "PING":
                link.send(b"PONG\r\n", _SEND_S)
            elif kind == "PONG":
                self._asked -= 1
            elif kind == "INFO":
                link.info = json.loads(words[0])
                link.max_payload = int(link.info.get("max_payload", link.max_payload))
            elif kind != "+OK":
                raise NatsError(f"nats: {kind} on a connection without subscriptions")
