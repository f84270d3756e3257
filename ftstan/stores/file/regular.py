"""Opening a file of the store that is there: a regular one, or an ``IrregularError`` at once.

Whatever has a file's name in a channel's directory is opened here. A symbolic link is not followed,
a pipe is not waited for, and a directory, a socket or a device is told apart before anything is
read from it or written to it.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from ftstan.base.errors import StoreError

if TYPE_CHECKING:
    from ftstan.base.disk import Disk, FileStat

#: What an ``IrregularError`` says of a directory.
DIRECTORY = "a directory, where a server keeps a file"

_PLAIN = os.O_NOFOLLOW
_AT_ONCE = os.O_NOFOLLOW | os.O_NONBLOCK


class IrregularError(OSError):
    """Something else than a regular file stands where a server keeps one."""

    def __init__(self, what: str, name: str) -> None:
        """``what``: as ``irregular`` says it."""
        self.words = f"{what}, where a server keeps a file"
        super().__init__(errno.EINVAL, f"{name} is {self.words}", name)


def irregular(stat: FileStat) -> str:
    """What it is, if it is no regular file; else empty."""
    if stat.is_dir:
        return "a directory"
    return "" if stat.is_file else "no regular file (a link, a pipe, a socket)"


def open_file(disk: Disk, dirfd: int, name: str, flags: int = os.O_RDONLY) -> int:
    """Open a file that exists.

    Raises ``IrregularError``, and ``OSError`` and whatever else ``disk.open`` raises.
    """
    try:
        fd = disk.open(dirfd, name, flags | _AT_ONCE)
    except FileNotFoundError:
        raise
    except BlockingIOError:
        # A file that another host has leased (a delegation of a file server that runs here): it is
        # given back soon.
        _check_name(disk, dirfd, name)
        fd = disk.open(dirfd, name, flags | _PLAIN)
    except (OSError, StoreError):
        # Each kind refuses in its own way, and past the caches of a host in yet another one.
        _check_name(disk, dirfd, name)
        raise
    try:
        _check(disk.fstat(fd), name)
    except BaseException:
        disk.close(fd)
        raise
    return fd


def sync_file(disk: Disk, dirfd: int, name: str) -> None:
    """Make what a file has durable, whoever wrote it. Raises as ``open_file``."""
    fd = open_file(disk, dirfd, name)
    try:
        disk.fdatasync(fd)
    finally:
        disk.close(fd)


def _check_name(disk: Disk, dirfd: int, name: str) -> None:
    try:
        found = disk.stat(dirfd, name)
    except OSError:
        # What the open said is what there is to say.
        return
    _check(found, name)


def _check(stat: FileStat, name: str) -> None:
    if what := irregular(stat):
        raise IrregularError(what, name)
