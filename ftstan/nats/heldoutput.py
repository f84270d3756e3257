"""What a ``nats-server`` prints, held back for a moment so that nobody is served before our link.

The server says on which address it listens *between* listening and accepting. While its output is
full it waits there: whoever connects is in the kernel's queue, our link among them, with all that
it has to say already sent. When the output goes on, everybody is accepted, and by the time a client
has been greeted and has logged in, our link is subscribed. So no client finds the port open and
nobody behind it.

Nothing depends on it but that moment: with a release that prints other lines the server waits too
early, or not at all, and goes on when ``release`` is called.
"""

from __future__ import annotations

import fcntl
import os
import select
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: The last line before the pid file, at which ``launch`` makes the server wait.
_BEFORE_GATE: Final = b"Using configuration file: "
#: Lines between that and the one at which it is to wait: the port of its own pages.
_BETWEEN: Final = 1
_PAGE: Final = 4096
_USUAL: Final = 16 * _PAGE
_MOST: Final = 65536
_LOOK_MS: Final = 50


class HeldOutput:
    """A pipe of which we have both ends until ``release``. ``theirs`` is the server's."""

    def __init__(self) -> None:
        self.ours, self.theirs = os.pipe()
        self.read = b""
        """What has been read already."""
        self._fillers = 0

    def hold(self, goes_on: Callable[[], bool]) -> None:
        """Take what the server prints up to its gate, and no more than one line of the rest.

        Does nothing if ``goes_on`` says no before the gate is reached.
        """
        while _BEFORE_GATE not in self.read:
            if _is_ready(self.ours, select.POLLIN, _LOOK_MS):
                self.read += os.read(self.ours, _MOST)
            elif not goes_on():
                return
        # Each line takes a page of its own in this mode, however short it is.
        fcntl.fcntl(self.theirs, fcntl.F_SETFL, os.O_WRONLY | os.O_DIRECT)
        room = fcntl.fcntl(self.theirs, fcntl.F_SETPIPE_SZ, (_BETWEEN + 1) * _PAGE) // _PAGE
        for _ in range(room - _BETWEEN):
            os.write(self.theirs, b"\n")
            self._fillers += 1

    @property
    def is_full(self) -> bool:
        """Whether the server's next line has to wait for ``release``."""
        return self._fillers > 0 and not _is_ready(self.theirs, select.POLLOUT, 0)

    def release(self) -> None:
        """Let the server print what it likes."""
        if self.theirs < 0:
            return
        for _ in range(self._fillers):
            os.read(self.ours, 1)
        if self._fillers:
            self._fillers = 0
            fcntl.fcntl(self.theirs, fcntl.F_SETFL, os.O_WRONLY)
            fcntl.fcntl(self.theirs, fcntl.F_SETPIPE_SZ, _USUAL)
        os.close(self.theirs)
        self.theirs = -1

    def take(self) -> IO[bytes]:
        """The rest, for who reads it from now on."""
        ours = self.ours
        self.ours = -1
        return os.fdopen(ours, "rb", buffering=0)

    def close(self) -> None:
        """Nobody reads any more."""
        self.release()
        if self.ours >= 0:
            os.close(self.ours)
            self.ours = -1


def _is_ready(end: int, event: int, wait_ms: int) -> bool:
    """Whether ``end`` is ready. Not by ``select``, which knows no descriptor above 1,023."""
    poll = select.poll()
    poll.register(end, event)
    return bool(poll.poll(wait_ms))
