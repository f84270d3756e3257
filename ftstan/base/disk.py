"""Every storage call of the package goes through a ``Disk``, so that a simulated one can stand in
its place.

Names are relative to a directory handle: a directory that is renamed or replaced under us does not
redirect our writes. No call here retries, hides an errno or guesses; ``OSError`` passes through to
the caller that knows the file.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

#: Modes of what is made in a datastore, for the process's umask to take from: nobody but the owner
#: writes, and only the group may read.
NEW_FILE = 0o640
NEW_DIRECTORY = 0o750


# A tuple: it is made for every file of a datastore at a takeover, and costs a quarter of a frozen
# dataclass.
class FileStat(NamedTuple):
    """What ``fstat`` says: ``size`` in bytes, ``mode`` the permission bits only, times in
    nanoseconds.

    ``is_file``: a regular one.
    """

    size: int
    mode: int
    nlink: int
    dev: int
    ino: int
    mtime_ns: int
    is_dir: bool
    uid: int
    gid: int
    is_file: bool = True


class Space(NamedTuple):
    """Room on a file system for an ordinary user.

    ``files`` counts inodes, 0 of 0 where none are counted.
    """

    free_bytes: int
    total_bytes: int
    free_files: int
    total_files: int


class Disk(Protocol):
    """The storage calls that ftstan makes.

    Handles are small integers; errors are ``OSError`` with an errno.

    ``name`` arguments are single path components relative to the directory handle ``dirfd``.
    """

    def open_dir(self, path: str) -> int:
        """Open the directory ``path`` and return its handle."""
        ...

    def open_dir_at(self, dirfd: int, name: str) -> int:
        """Open a subdirectory; symbolic links are refused."""
        ...

    def mkdir(self, dirfd: int, name: str) -> None:
        """Create a directory."""
        ...

    def rmdir(self, dirfd: int, name: str) -> None:
        """Remove an empty directory."""
        ...

    def listdir(self, dirfd: int) -> list[tuple[str, bool]]:
        """Names in the directory, each with whether it is a real directory (a symbolic link is
        not).
        """
        ...

    def open(self, dirfd: int, name: str, flags: int, mode: int = NEW_FILE) -> int:
        """``openat(2)``: flags are those of ``os``; always close-on-exec."""
        ...

    def close(self, fd: int) -> None:
        """Close a file or directory handle."""
        ...

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Read at most ``size`` bytes at ``offset``; shorter only at the end of the file."""
        ...

    def next_data(self, fd: int, offset: int) -> int:
        """The first place from ``offset`` on where the file may have other bytes than zeros; its
        end if it has none.

        ``offset`` itself where the file system cannot say.
        """
        ...

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write all of ``data`` at ``offset`` or raise (a short write is continued; its error is
        raised).
        """
        ...

    def fdatasync(self, fd: int) -> None:
        """Make the data of the file durable."""
        ...

    def fsync(self, fd: int) -> None:
        """Make data and metadata durable; on a directory handle: its entries."""
        ...

    def ftruncate(self, fd: int, size: int) -> None:
        """Cut or extend the file."""
        ...

    def fchmod(self, fd: int, mode: int) -> None:
        """Set permission bits."""
        ...

    def fchown(self, fd: int, uid: int, gid: int) -> None:
        """Set the owner."""
        ...

    def fstat(self, fd: int) -> FileStat:
        """State of an open file."""
        ...

    def nlink(self, fd: int) -> int:
        """How many names an open file has; ``fstat(2)`` for a caller that asks with every batch."""
        ...

    def stat(self, dirfd: int, name: str) -> FileStat:
        """State of a name; ``FileNotFoundError`` when absent. Symbolic links are not followed."""
        ...

    def space(self, fd: int) -> Space:
        """Room on the file system of an open file or directory."""
        ...

    def link(self, dirfd: int, src: str, dst: str) -> None:
        """Give the file a second name in the same directory; fails if ``dst`` exists."""
        ...

    def rename(self, dirfd: int, src: str, dst: str) -> None:
        """Replace ``dst`` by ``src`` in the same directory."""
        ...

    def unlink(self, dirfd: int, name: str) -> None:
        """Remove a name."""
        ...


class LocalDisk:
    """The real thing: thin calls into ``os``, which release the interpreter lock around each system
    call.
    """

    def open_dir(self, path: str) -> int:
        """Open the directory ``path``."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open_dir_at(self, dirfd: int, name: str) -> int:
        """Open a subdirectory, refusing symbolic links."""
        return os.open(
            name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=dirfd
        )

    def mkdir(self, dirfd: int, name: str) -> None:
        """Create a directory."""
        os.mkdir(name, NEW_DIRECTORY, dir_fd=dirfd)

    def rmdir(self, dirfd: int, name: str) -> None:
        """Remove an empty directory."""
        os.rmdir(name, dir_fd=dirfd)

    def listdir(self, dirfd: int) -> list[tuple[str, bool]]:
        """Names with whether each is a real directory."""
        # A fresh descriptor: scandir moves the position of the one it is given, and network file
        # systems answer a rewound one from their cache.
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=dirfd)
        try:
            with os.scandir(fd) as entries:
                return [(e.name, e.is_dir(follow_symlinks=False)) for e in entries]
        finally:
            os.close(fd)

    def open(self, dirfd: int, name: str, flags: int, mode: int = NEW_FILE) -> int:
        """``openat(2)``."""
        return os.open(name, flags | os.O_CLOEXEC, mode, dir_fd=dirfd)

    def close(self, fd: int) -> None:
        """Close a handle."""
        os.close(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Read until ``size`` bytes or the end of the file."""
        data = os.pread(fd, size, offset)
        # The kernel reads short at the end of the file, else hardly ever: so this joins no more
        # than twice.
        while 0 < len(data) < size and (more := os.pread(fd, size - len(data), offset + len(data))):
            data += more
        return data

    def next_data(self, fd: int, offset: int) -> int:
        """``lseek(2)`` with ``SEEK_DATA``."""
        try:
            return os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return max(os.fstat(fd).st_size, offset)
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                return offset
            raise

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write everything or raise."""
        done = os.pwrite(fd, data, offset)
        if done == len(data):
            return
        view = memoryview(data)
        while done < len(view):
            done += os.pwrite(fd, view[done:], offset + done)

    def fdatasync(self, fd: int) -> None:
        """``fdatasync(2)``."""
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        """``fsync(2)``."""
        os.fsync(fd)

    def ftruncate(self, fd: int, size: int) -> None:
        """``ftruncate(2)``."""
        os.ftruncate(fd, size)

    def fchmod(self, fd: int, mode: int) -> None:
        """``fchmod(2)``."""
        os.fchmod(fd, mode)

    def fchown(self, fd: int, uid: int, gid: int) -> None:
        """``fchown(2)``."""
        os.fchown(fd, uid, gid)

    def fstat(self, fd: int) -> FileStat:
        """``fstat(2)``."""
        return _stat(os.fstat(fd))

    def nlink(self, fd: int) -> int:
        """``fstat(2)``, of which one number is looked at."""
        return os.fstat(fd).st_nlink

    def stat(self, dirfd: int, name: str) -> FileStat:
        """``lstat`` of a name in a directory."""
        return _stat(os.stat(name, dir_fd=dirfd, follow_symlinks=False))

    def space(self, fd: int) -> Space:
        """Room on the file system."""
        found = os.fstatvfs(fd)
        size = found.f_frsize
        return Space(found.f_bavail * size, found.f_blocks * size, found.f_favail, found.f_files)

    def link(self, dirfd: int, src: str, dst: str) -> None:
        """``linkat(2)``."""
        os.link(src, dst, src_dir_fd=dirfd, dst_dir_fd=dirfd, follow_symlinks=False)

    def rename(self, dirfd: int, src: str, dst: str) -> None:
        """``renameat(2)``."""
        os.rename(src, dst, src_dir_fd=dirfd, dst_dir_fd=dirfd)

    def unlink(self, dirfd: int, name: str) -> None:
        """``unlinkat(2)``."""
        os.unlink(name, dir_fd=dirfd)


class TimedDisk(LocalDisk):
    """A ``LocalDisk`` that knows since when each call is under way, so that one that hangs is found
    by somebody else.

    ``calls``: those of another disk, which are then counted with its own.
    """

    def __init__(self, calls: dict[int, float] | None = None) -> None:
        self.calls: dict[int, float] = {} if calls is None else calls
        """The thread of each call that has not returned, with its start in monotonic seconds.

        Any thread may read it.
        """


def _timed(name: str) -> Callable[..., Any]:
    def call(self: TimedDisk, *args: Any, **more: Any) -> Any:
        thread = get_ident()
        self.calls[thread] = time.monotonic()
        try:
            return getattr(super(TimedDisk, self), name)(*args, **more)
        finally:
            self.calls.pop(thread, None)

    return call


# All that asks storage; what stands in ``LocalDisk`` says what each takes and returns.
for _name in (
    *(
        "open_dir",
        "open_dir_at",
        "mkdir",
        "rmdir",
        "listdir",
        "open",
        "close",
        "pread",
        "next_data",
    ),
    "pwrite",
    *("fdatasync", "fsync", "ftruncate", "fchmod", "fchown", "fstat", "nlink", "stat", "space"),
    *("link", "rename", "unlink"),
):
    setattr(TimedDisk, _name, _timed(_name))


class Gate:
    """Whether the disks that share it are shut."""

    def __init__(self) -> None:
        self.is_shut = False


class ShuttableDisk(TimedDisk):
    """A ``TimedDisk`` that changes nothing any more once it was shut, whoever calls it and from
    whatever thread.

    For a server inside a program that goes on: there is no end of the process that would stop a
    thread which hung in storage and comes back. Its calls fail with ``ESHUTDOWN`` then; reading
    goes on. ``gate``: that of another disk of the same server, which is shut with it.
    """

    def __init__(self, gate: Gate | None = None, calls: dict[int, float] | None = None) -> None:
        super().__init__(calls)
        self.gate = gate or Gate()

    def shut(self) -> None:
        """Refuse every change from now on. Any thread may call it."""
        self.gate.is_shut = True

    def _check(self) -> None:
        if self.gate.is_shut:
            raise OSError(errno.ESHUTDOWN, "this server has ended")

    def mkdir(self, dirfd: int, name: str) -> None:
        """Create a directory."""
        self._check()
        super().mkdir(dirfd, name)

    def rmdir(self, dirfd: int, name: str) -> None:
        """Remove an empty directory."""
        self._check()
        super().rmdir(dirfd, name)

    def open(self, dirfd: int, name: str, flags: int, mode: int = NEW_FILE) -> int:
        """Open a file; one that would be made or emptied is refused."""
        if flags & (os.O_CREAT | os.O_TRUNC):
            self._check()
        return super().open(dirfd, name, flags, mode)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write all of ``data``."""
        self._check()
        super().pwrite(fd, data, offset)

    def ftruncate(self, fd: int, size: int) -> None:
        """Set the size of a file."""
        self._check()
        super().ftruncate(fd, size)

    def fchmod(self, fd: int, mode: int) -> None:
        """Set the permissions of a file."""
        self._check()
        super().fchmod(fd, mode)

    def fchown(self, fd: int, uid: int, gid: int) -> None:
        """Set the owner of a file."""
        self._check()
        super().fchown(fd, uid, gid)

    def link(self, dirfd: int, src: str, dst: str) -> None:
        """Give a file another name."""
        self._check()
        super().link(dirfd, src, dst)

    def rename(self, dirfd: int, src: str, dst: str) -> None:
        """Rename a file."""
        self._check()
        super().rename(dirfd, src, dst)

    def unlink(self, dirfd: int, name: str) -> None:
        """Remove a name."""
        self._check()
        super().unlink(dirfd, name)


def _stat(s: os.stat_result) -> FileStat:
    mode = s.st_mode
    return FileStat(
        s.st_size,
        stat.S_IMODE(mode),
        s.st_nlink,
        s.st_dev,
        s.st_ino,
        s.st_mtime_ns,
        stat.S_ISDIR(mode),
        s.st_uid,
        s.st_gid,
        stat.S_ISREG(mode),
    )
