"""Standard error and log files.

A file is appended to, never truncated; only a size limit asked for renames it.

``logging.handlers.RotatingFileHandler`` does not serve: it numbers its backups and removes old
ones, and what a full disk has refused stays in its buffer and comes again.

Source: ``docs/compat/logging.md`` (lines, files).
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from ftstan.base.log.levels import ERROR, INFO, Level

if TYPE_CHECKING:
    from collections.abc import Callable

STDERR = 2
_MODE = 0o660


class StandardError:
    """Standard error.

    ``journal``: it is journald's, which reads a priority in front of each line.
    """

    def __init__(self, *, journal: bool = False) -> None:
        self.journal = journal

    def write(self, level: Level, text: str) -> None:
        """Write one line. Raises ``OSError``."""
        priority = f"<{level.priority}>" if self.journal else ""
        _write(STDERR, encoded(f"{priority}{text}\n"))

    def close(self) -> None:
        """It is not ours to close."""


class LogFile:
    """The file of ``-l``. ``limit``: bytes behind which it is put aside, 0 for never.

    ``render`` makes the lines that the file writes about itself, ``wall_ns`` is the clock that
    names what is put aside. Raises ``OSError`` when the file cannot be opened. One thread at a
    time.
    """

    def __init__(
        self,
        path: str,
        limit: int,
        render: Callable[[Level, str], str],
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.path = path
        self._limit = limit
        self._render = render
        self._wall_ns = wall_ns
        self._torn = False
        self._fd = _open(path)
        self._measure()

    def _measure(self) -> None:
        self._size = os.fstat(self._fd).st_size
        self._rotate_above = self._limit

    def begin(self) -> None:
        """Put a file aside at once that is too large as it is found."""
        if self._limit and self._size > self._limit:
            with contextlib.suppress(OSError):
                self.write(INFO, self._render(INFO, "Rotating logfile..."))

    def write(self, level: Level, text: str) -> None:
        """Append one line; puts the file aside if it is too large by then.

        Raises ``OSError`` when the line is lost.
        """
        del level
        self._append(encoded(f"{text}\n"))
        if self._limit and self._size > self._rotate_above:
            self._rotate()

    def reopen(self) -> None:
        """Go on in the file that now has the name.

        Raises ``OSError``; the old file stays in use then.
        """
        fd = _open(self.path)
        self._replace(fd)
        self._measure()
        self.begin()

    def close(self) -> None:
        """No line follows."""
        os.close(self._fd)

    def _append(self, data: bytes) -> None:
        # What a full disk has cut off must not swallow the line behind it.
        data = b"\n" + data if self._torn else data
        try:
            written = _write(self._fd, data)
        except _CutError as cut:
            self._torn |= cut.written > 0
            self._size += cut.written
            raise
        self._torn = False
        self._size += written

    def _replace(self, fd: int) -> None:
        old = self._fd
        self._fd = fd
        self._torn = False
        os.close(old)

    def _rotate(self) -> None:
        backup = self._free_name()
        try:
            os.rename(self.path, backup)
            try:
                fd = _open(self.path)
            except OSError:
                os.rename(backup, self.path)
                raise
        except OSError as error:
            self._rotation_failed(error)
            return
        self._replace(fd)
        self._size = 0
        self._rotate_above = self._limit
        with contextlib.suppress(OSError):
            # The original ends this one line in its own way, and tools may know it by that.
            self._append(
                encoded(self._render(INFO, f'Rotated log, backup saved as "{backup}"') + "\r\n")
            )

    def _free_name(self) -> str:
        now = self._wall_ns()
        # A clock that was set back must not cost the file that has the name.
        while os.path.lexists(name := f"{self.path}.{_stamp(now)}"):
            now += 1
        return name

    def _rotation_failed(self, error: OSError) -> None:
        with contextlib.suppress(OSError):
            why = (
                f"Unable to rotate logfile {self.path}: {error.strerror or error}; it is written on"
            )
            self._append(encoded(self._render(ERROR, why) + "\n"))
        # Not again with every line.
        self._rotate_above = self._size + self._limit


class _CutError(OSError):
    """A write that stopped somewhere."""

    def __init__(self, error: OSError, written: int) -> None:
        super().__init__(error.errno, error.strerror)
        self.written = written


def encoded(text: str) -> bytes:
    """The bytes of a text, also of one that came as bytes which are no UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def _write(fd: int, data: bytes) -> int:
    """Write all of ``data``; raises ``_CutError`` with what was written of it."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except OSError as error:
            raise _CutError(error, len(data) - len(rest)) from error
    return len(data)


def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _MODE)


def _stamp(wall_ns: int) -> str:
    seconds, nanos = divmod(wall_ns, 1_000_000_000)
    return f"{time.strftime('%Y.%m.%d.%H.%M.%S', time.localtime(seconds))}.{nanos:09d}"
