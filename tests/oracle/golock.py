"""The store lock as the original takes it (``docs/compat/ft.md`` §6): each attempt truncates the
file.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_LATER = {errno.EAGAIN, errno.EACCES, errno.EINTR, errno.ENOLCK}
_HOPELESS = {errno.ENOENT, errno.EACCES, errno.EPERM}


class LockError(Exception):
    """An attempt that failed for another reason than that the lock is held."""


class GoLock:
    """A POSIX record lock on all of ``.rootdir.lck``, held by the process until it is released or
    dies.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / ".rootdir.lck"
        self._fd = -1

    def attempt(self) -> bool:
        """Try once; raises ``LockError`` with the text that the server logs.

        True at once for the holder.
        """
        if self._fd >= 0:
            return True
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if error.errno in _HOPELESS:
                raise LockError(f"open {self._path}: {_text(error)}") from None
            return False
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno in _LATER:
                return False
            raise LockError(_text(error)) from None
        self._fd = fd
        return True

    def release(self) -> None:
        """Of a standby too, which holds nothing."""
        if self._fd >= 0:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = -1


def _text(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
