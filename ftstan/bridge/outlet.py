"""The bridge's connection to JetStream: what is about to be sent, and the waiting for what comes.

Knows no channel. What was not sent when the connection is lost is dropped: whoever made it asks the
stream how far it is.
"""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import NatsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.nats.jetstream import JetStream

_CONNECT_S: Final = 5.0
_AGAIN_S: Final = 0.25
_SEND_BYTES: Final = 128 << 10


class Outlet:
    """``say`` gets a line when the connection is lost, and when it is there again."""

    def __init__(self, js: JetStream, say: Callable[[str], None]) -> None:
        self.js = js
        self._say = say
        self._out: list[bytes] = []
        self._size = 0
        self._lost = ""
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def close(self) -> None:
        """Release what the waiting needs."""
        os.close(self._wake_fd)

    def wake(self) -> None:
        """End the waiting. Any thread may call it."""
        os.eventfd_write(self._wake_fd, 1)

    @property
    def connected(self) -> bool:
        """Whether the connection was up at the last call."""
        return self.js.connected

    @property
    def max_payload(self) -> int:
        """Bytes of headers and data that the NATS server takes."""
        return self.js.link.max_payload

    def connect(self) -> bool:
        """Try to connect, and wait a little if that fails; tells whether it worked."""
        try:
            self.js.connect(_CONNECT_S)
        except NatsError as error:
            if self._lost != error.text:
                self._lost = error.text
                self._say(f"{error.text}; trying again")
            self._wait([self._wake_fd], _AGAIN_S)
            self._take_wakes()
            return False
        if self._lost:
            self._say(f"connected to JetStream at {self.js.link.url_shown} again")
            self._lost = ""
        return True

    def drop(self) -> None:
        """Forget what was not sent."""
        self._out.clear()
        self._size = 0

    def lost(self, text: str) -> None:
        """The connection was lost."""
        self._lost = text
        self._say(f"{text}; connecting again")

    def put(self, head: bytes, data: bytes) -> None:
        """Send a frame with the next ones. Raises ``ConnectionLostError``."""
        self._out += (head, data, b"\r\n")
        self._size += len(head) + len(data)
        if self._size >= _SEND_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send what waits. Raises ``ConnectionLostError``."""
        if self._out:
            frames = b"".join(self._out)
            self.drop()
            self.js.send(frames)

    def listen(self, seconds: float, take: Callable[[], bool]) -> None:
        """Have ``take`` look what has come, and wait for it if nothing has.

        Raises ``ConnectionLostError``.
        """
        if take() or not seconds or self.js.link.pending:
            return
        self._wait([self.js.link.fileno(), self._wake_fd], seconds)
        self._take_wakes()
        take()

    @staticmethod
    def _wait(fds: list[int], seconds: float) -> None:
        """Until one of them can be read; their numbers may be beyond what ``select`` takes."""
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        poll.poll(-(-seconds * 1000 // 1))

    def _take_wakes(self) -> None:
        try:
            os.eventfd_read(self._wake_fd)
        except BlockingIOError:
            return
