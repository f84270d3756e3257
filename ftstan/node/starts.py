"""Starts that failed: how long the next one waits, so that a service manager may restart us at
once.

A member that was fenced must be back at once, and a server with a mistake in its configuration must
not start ten times a second; a service manager knows one pause for both. So it restarts after any
end without a pause, and a start that follows failed ones waits here, before anything is read or
touched: 1 s, doubled up to 15 s.

A start counts as failed until the server has been up for ``SETTLED_S``, or ends with a status that
says all is well or that it should be back as a standby. The count lies in the service's runtime
directory, which the manager keeps over restarts only. Without a service manager nothing is counted,
and nobody waits. It never raises: a count that cannot be written is no reason not to serve.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

from ftstan.node.notify import Notifier

if TYPE_CHECKING:
    from collections.abc import Mapping

COUNT_NAME = "failed-starts"
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 15.0
SETTLED_S = 10.0
"""How long a server is up until its start counts as a success, in seconds."""

#: Stopped, stopped by SIGTERM, or to come back as a standby.
_WELL = (0, 128 + signal.SIGTERM, 75)
_STOPS = {signal.SIGTERM: 128 + signal.SIGTERM, signal.SIGINT: 0, signal.SIGQUIT: 0}
_MOST = 1_000


def wait_after(failed: int) -> float:
    """Seconds that a start waits when so many before it have failed in a row."""
    return min(FIRST_WAIT_S * 2.0 ** min(failed - 1, 16), LONGEST_WAIT_S) if failed > 0 else 0.0


class Starts:
    """The count of one service. ``path`` is its file; empty: nothing is counted."""

    def __init__(self, path: str = "") -> None:
        self._path = path

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Starts:
        """The count of the service that ``environment`` describes.

        None without a service manager.
        """
        directory = environment.get("RUNTIME_DIRECTORY", "").partition(":")[0]
        if not directory or not environment.get("NOTIFY_SOCKET"):
            return cls()
        return cls(os.path.join(directory, COUNT_NAME))

    def begin(self, environment: Mapping[str, str]) -> int | None:
        """Count this start, and wait if the ones before it have failed.

        Returns the exit status if a stop came meanwhile, else ``None``.
        """
        if not self._path:
            return None
        failed = self._read()
        self._write(min(failed + 1, _MOST))
        seconds = wait_after(failed)
        if not seconds:
            return None
        times = "the last start" if failed == 1 else f"the last {failed} starts"
        text = (
            f"{times} failed: waiting {seconds:g}s before this one; the lines before this say why"
        )
        print(text, file=sys.stderr, flush=True)
        manager = Notifier(dict(environment))
        manager.extend(seconds + LONGEST_WAIT_S)
        manager.status(text)
        manager.close()
        stopped = _stopped_within(seconds)
        if stopped is not None:
            self.forget()
        return stopped

    def forget(self) -> None:
        """Forget failed starts, so that the next one does not wait."""
        if self._path:
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def ended(self, status: int) -> None:
        """This process ends with ``status``. Any thread may call it."""
        if status in _WELL:
            self.forget()

    def _read(self) -> int:
        try:
            with open(self._path, encoding="ascii") as file:
                text = file.read(8)
        except (OSError, ValueError):
            return 0
        return min(int(text), _MOST) if text.isdecimal() else 0

    def _write(self, failed: int) -> None:
        with contextlib.suppress(OSError), open(self._path, "w", encoding="ascii") as file:
            file.write(str(failed))


def _stopped_within(seconds: float) -> int | None:
    """Wait; the exit status of the stop that came, ``None`` if none did.

    Nothing runs yet that handles signals.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        came = signal.sigtimedwait(_STOPS, seconds)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return _STOPS[signal.Signals(came.si_signo)] if came is not None else None
