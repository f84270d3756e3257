"""Storage calls past every cache of this host, for what decides on network file systems.

Measured (``docs/compat/nfs-facts.md``): on NFS a fresh open and read can be answered from a
delegation without asking the server; with ``O_DIRECT`` the server is asked. So the epoch file is
read and written like this, and what a former owner wrote is read like this when the store has
become ours. Direct transfers need aligned memory, so they go through anonymous mappings.
"""

from __future__ import annotations

import errno
import mmap
import os

from ftstan.base.disk import NEW_FILE, Disk, LocalDisk, ShuttableDisk, TimedDisk
from ftstan.base.errors import StoreError
from ftstan.config.options import MountRisk

ALIGN = 4096


class DirectDisk(LocalDisk):
    """A ``LocalDisk`` whose files are opened with ``O_DIRECT`` and read and written through
    page-aligned memory.

    Threads may share it: no buffer outlives a call.
    """

    def open(self, dirfd: int, name: str, flags: int, mode: int = NEW_FILE) -> int:
        """``openat(2)`` with ``O_DIRECT``; raises ``StoreError`` if the file system has none."""
        try:
            return super().open(dirfd, name, flags | os.O_DIRECT, mode)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise StoreError(
                f"{name}: this file system refuses direct I/O, so a read may show what this host "
                "remembers instead of "
                "what the storage holds",
                hint="use a file system listed as supported in docs/ft.md; who knows that this "
                "one never answers from "
                f"memory starts with -ft_allow {MountRisk.DIRECT_IO}",
            ) from error

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Read ``size`` bytes, shorter only at the end of the file; whole pages are transferred."""
        if size <= 0:
            return b""
        start = offset // ALIGN * ALIGN
        length = -(-(offset + size) // ALIGN) * ALIGN - start
        with mmap.mmap(-1, length) as buffer:
            view = memoryview(buffer)
            try:
                got = 0
                while got < length:
                    more = os.preadv(fd, [view[got:]], start + got)
                    got += more
                    # A count that is not whole pages is the end of the file, and not a place to go
                    # on from.
                    if not more or got % ALIGN:
                        break
                return bytes(view[offset - start : min(got, offset - start + size)])
            finally:
                view.release()

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write all of ``data``, in whole pages, or raise."""
        size = len(data)
        assert not size % ALIGN
        assert not offset % ALIGN
        with mmap.mmap(-1, size) as buffer:
            buffer[:] = bytes(data)
            view = memoryview(buffer)
            try:
                done = 0
                while done < size:
                    done += os.pwritev(fd, [view[done:]], offset + done)
                    if done % ALIGN:
                        raise OSError(errno.EIO, "direct write stopped inside a page")
            finally:
                view.release()


class _TimedDirectDisk(TimedDisk, DirectDisk):
    """Direct I/O, on a disk that knows what is under way."""


class _ShuttableDirectDisk(ShuttableDisk, DirectDisk):
    """Direct I/O for reads and writes, on a disk that can be shut."""


def asking_disk(disk: Disk, *, is_network: bool, direct: bool = True) -> Disk:
    """Choose the disk that asks storage itself: ``disk`` on a local file system, a direct one on
    others.

    ``direct`` off is the operator's word that the file system needs none. A disk that can be shut
    has a direct one that is shut with it: a claim, a record or a clean-up of a server that has
    ended is refused like every other change.
    """
    if not (is_network and direct):
        return disk
    if isinstance(disk, ShuttableDisk):
        return _ShuttableDirectDisk(disk.gate, disk.calls)
    return _TimedDirectDisk(disk.calls) if isinstance(disk, TimedDisk) else DirectDisk()
