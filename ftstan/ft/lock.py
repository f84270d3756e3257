"""The store lock: the only module that knows the path ``.rootdir.lck``.

Three verbs: acquire, verify, release.

The lock is an open-file-description (OFD) write lock over the whole file. It conflicts with the
record lock that original servers take, in both directions, and unlike that one it is not lost when
the process opens and closes the file elsewhere. ``flock`` would see neither
(``docs/compat/ft.md``); so portalocker's module-level ``lock``, which uses it, must never be called
on this file.

The file is opened once, never truncated, never written and never deleted: a deleted lock file lets
a second holder in on the new one. The lock keeps contention low and original servers out. **Safety
does not rest on it**: that is the work of ``ft/epoch.py``. So a standby that suspects its owner may
look at the path again (``renew``): who waits on a file that was removed would be refused for ever.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from typing import TYPE_CHECKING

from portalocker.constants import LockFlags
from portalocker.exceptions import AlreadyLocked, LockException
from portalocker.portalocker import BaseLocker

from ftstan.base.errors import FencedError, LockBusyError, LockFaultError, LockMissingError
from ftstan.ft.lockfaults import LockCounts, LockOutcome, advice, kind_of, meaning

if TYPE_CHECKING:
    from portalocker.types import FileArgument

    from ftstan.base.disk import Disk

LOCK_NAME = ".rootdir.lck"

_ODD_HINT = (
    f"stop every server of the datastore and move it away: {LOCK_NAME} is a file that servers "
    "make and lock"
)

# struct flock: l_type, l_whence, l_start, l_len, l_pid, and the padding that the compiler adds at
# its end.
_FLOCK = struct.Struct("@hhqqi0q")

_BUSY = frozenset({errno.EAGAIN, errno.EACCES})


class OfdLocker(BaseLocker):
    """portalocker's seam for a locking mechanism, filled with Linux OFD locks over the whole file.

    ``AlreadyLocked`` means that somebody holds it; ``LockException`` is any other failure, its
    ``OSError`` the cause.
    """

    def __init__(self) -> None:
        command = getattr(fcntl, "F_OFD_SETLK", None)
        if not isinstance(command, int):
            raise LockFaultError(
                "ft: this platform has no open-file-description locks",
                hint="run the server on Linux 3.15 or newer",
            )
        self._set_lock = command

    def lock(self, file_obj: FileArgument, flags: LockFlags) -> None:
        """Take the exclusive lock without waiting; other kinds are not offered."""
        if flags != LockFlags.EXCLUSIVE | LockFlags.NON_BLOCKING:
            raise ValueError("only an exclusive lock without waiting can be cancelled")
        self._set(file_obj, fcntl.F_WRLCK)

    def unlock(self, file_obj: FileArgument) -> None:
        """Give the lock back; giving back what is not held is no error."""
        self._set(file_obj, fcntl.F_UNLCK)

    def _set(self, file_obj: FileArgument, kind: int) -> None:
        fd = file_obj if isinstance(file_obj, int) else file_obj.fileno()
        # Start 0 and length 0: the whole file, as original servers lock it. The pid must be 0 for
        # OFD locks.
        request = _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)
        try:
            fcntl.fcntl(fd, self._set_lock, request)
        except OSError as error:
            if error.errno in _BUSY:
                raise AlreadyLocked(error, str(error), fh=fd) from error
            raise LockException(error, str(error), fh=fd) from error


class StoreLock:
    """The lock of the datastore whose open root directory is ``root_fd``.

    ``root`` is its path, for messages.

    Belongs to one thread. The file stays open between attempts: on NFS the first open after a host
    died blocks, and an attempt on an open file does not.
    """

    def __init__(
        self, disk: Disk, root_fd: int, root: str, locker: BaseLocker | None = None
    ) -> None:
        self._disk = disk
        self._root_fd = root_fd
        self._path = os.path.join(root, LOCK_NAME)
        self._locker = OfdLocker() if locker is None else locker
        self._fd: int | None = None
        self._held = False
        self.counts = LockCounts()

    @property
    def held(self) -> bool:
        """Whether the last ``acquire`` was granted and not released since.

        Storage may know better (``verify``).
        """
        return self._held

    def acquire(self, *, create: bool = True) -> None:
        """Take the lock now or say why not; nothing happens if it is held.

        Raises ``LockBusyError`` if somebody holds it, ``LockMissingError`` if there is no lock file
        and ``create`` is off, and ``LockFaultError`` if it could not be asked for.
        """
        if self._held:
            return
        if self._lock_and_compare(create=create):
            # Granted on a file that was unlinked or replaced after we had opened it: worth nothing.
            # Once more, afresh.
            self.release()
            mismatch = self._lock_and_compare(create=create)
            if mismatch:
                self.release()
                self.counts.add(LockOutcome.REPLACED)
                raise LockFaultError(
                    f"{self._path}: {mismatch} while it was being locked, twice",
                    hint="something removes or replaces the lock file: stop it, the file must stay",
                )
        self._held = True
        self.counts.add(LockOutcome.GRANTED)

    def renew(self) -> bool:
        """Let go of an open file that the path does not name any more.

        Returns whether there was one.

        Nothing happens while the lock is held. Not for every attempt: on NFS the look may be a
        round trip, and an open may block for seconds while a host is dead.
        """
        if self._held or self._fd is None:
            return False
        with contextlib.suppress(LockFaultError):
            if not self._mismatch():
                return False
        # Removed, replaced, or not to be asked: the next attempt opens what the path names by then.
        self.release()
        return True

    def move(self, root_fd: int) -> None:
        """Go on in another directory handle, the same path opened anew.

        Gives up what was open or held.
        """
        self.release()
        self._root_fd = root_fd

    def verify(self) -> None:
        """Raise ``FencedError`` unless the locked file is still the one that the path names."""
        if not self._held:
            raise FencedError(f"{self._path}: the store lock is not held")
        try:
            mismatch = self._mismatch()
        except LockFaultError as error:
            raise FencedError(
                f"the store lock cannot be verified: {error}", hint=error.hint
            ) from error
        if mismatch:
            raise FencedError(
                f"{self._path}: {mismatch} while this server held the lock, so another server "
                "can hold one too",
                hint="never delete the lock file of a datastore; restart this server",
            )

    def release(self) -> None:
        """Unlock and close; never fails, and does nothing when nothing is open."""
        fd = self._fd
        self._fd = None
        self._held = False
        if fd is None:
            return
        # Unlock first: a child that inherited the descriptor would keep an OFD lock alive past our
        # close.
        with contextlib.suppress(LockException, OSError):
            self._locker.unlock(fd)
        with contextlib.suppress(OSError):
            self._disk.close(fd)

    def _lock_and_compare(self, *, create: bool) -> str:
        """Lock once, then say why what was locked is not the path's file; empty if it is."""
        self._try(create=create)
        try:
            return self._mismatch()
        except LockFaultError:
            # Nobody will know that it was granted: it must not stay so.
            self.release()
            raise

    def _try(self, *, create: bool) -> None:
        try:
            if self._fd is None:
                self._fd = _open(
                    self._disk, self._root_fd, os.O_RDWR | (os.O_CREAT if create else 0)
                )
            self._locker.lock(self._fd, LockFlags.EXCLUSIVE | LockFlags.NON_BLOCKING)
        except AlreadyLocked as error:
            self.counts.add(LockOutcome.BUSY)
            raise LockBusyError(
                f"{self._path}: the store lock is held by another server"
            ) from error
        except _OddFileError as error:
            self.counts.add(LockOutcome.OTHER)
            raise LockFaultError(f"{self._path} is no regular file", hint=_ODD_HINT) from error
        except OSError as error:
            raise self._fault("open", error) from error
        except LockException as error:
            # The descriptor may be what is broken (stale handle, lost lock state): the next attempt
            # opens anew.
            self.release()
            cause = error.__cause__
            raise self._fault(
                "lock", cause if isinstance(cause, OSError) else OSError(str(error))
            ) from error

    def _mismatch(self) -> str:
        """Why our descriptor is not the path's file; empty if it is."""
        assert self._fd is not None
        try:
            ours = self._disk.fstat(self._fd)
            named = self._disk.stat(self._root_fd, LOCK_NAME)
        except FileNotFoundError:
            return "the lock file was removed"
        except OSError as error:
            raise self._fault("check", error) from error
        if (ours.dev, ours.ino) != (named.dev, named.ino):
            return "the lock file was replaced"
        # A file server may give the number of a removed file to its successor.
        return "" if ours.nlink else "the lock file was removed"

    def _fault(self, verb: str, error: OSError) -> LockFaultError:
        name = errno.errorcode.get(error.errno or 0, "no errno")
        kind = kind_of(error)
        self.counts.add(kind)
        text = (
            f"{verb} {self._path}: {(error.strerror or str(error)).lower()} ({name}): "
            f"{meaning(kind)}"
        )
        made = LockMissingError if kind is LockOutcome.MISSING else LockFaultError
        return made(text, hint=advice(error))


class _OddFileError(Exception):
    """Something else than a file has the name of the lock file."""


def _open(disk: Disk, root_fd: int, flags: int) -> int:
    """Open the lock file. Raises ``OSError`` and ``_OddFileError``."""
    try:
        # NONBLOCK: a pipe of that name would be waited for, and with it everything that this thread
        # has to do.
        fd = disk.open(root_fd, LOCK_NAME, flags | os.O_NONBLOCK)
    except IsADirectoryError:
        raise _OddFileError from None
    try:
        odd = not disk.fstat(fd).is_file
    except OSError:
        disk.close(fd)
        raise
    if odd:
        disk.close(fd)
        raise _OddFileError
    return fd


def is_held(disk: Disk, root_fd: int) -> bool:
    """Whether somebody holds the store lock at this moment, without trying to take it.

    Creates nothing.

    For tools that only read. Raises ``LockFaultError`` if the lock file cannot be asked.
    """
    try:
        fd = _open(disk, root_fd, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except _OddFileError as error:
        raise LockFaultError(f"{LOCK_NAME} is no regular file", hint=_ODD_HINT) from error
    try:
        command = getattr(fcntl, "F_OFD_GETLK", None)
        if not isinstance(command, int):
            return False
        answer = fcntl.fcntl(fd, command, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
    except OSError as error:
        raise LockFaultError(
            f"{LOCK_NAME}: cannot ask for its holder: {error.strerror or error}",
            hint="check the storage and the kernel log of this host",
        ) from error
    finally:
        disk.close(fd)
