"""The place of a check: this host, the directory's mount, and a scratch directory that goes away
again.

A name that begins with a dot can be no channel's, so a server that starts in the same directory
meanwhile does not take ours for one. Only what was made here is removed.
"""

from __future__ import annotations

import contextlib
import errno
import getpass
import os
import secrets
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.base.disk import LocalDisk
from ftstan.base.errors import ConfigError, StoreError
from ftstan.ft.mounts import Mount, mount_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ftstan.base.disk import Disk, Space

SCRATCH_PREFIX = ".ftstan-check-"

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_RECOVER_LOST_LOCKS = "/sys/module/nfs/parameters/recover_lost_locks"


@dataclass(frozen=True, slots=True)
class Host:
    """This host as the checks know it. ``space`` asks for the room behind a directory handle."""

    name: str
    user: str
    uid: int
    gid: int
    boot_id: str
    mount: Mount
    recover_lost_locks: str
    space: Callable[[int], Space]


def this_host(path: str) -> Host:
    """This host, seen from the directory ``path``.

    Raises ``ConfigError`` if that is no directory, and ``StoreError`` if it cannot be opened.
    """
    real = os.path.realpath(path)
    if not os.path.isdir(real):
        raise ConfigError(
            f"{path} is no directory", hint="give the directory that the server will have as -dir"
        )
    return Host(
        name=socket.gethostname(),
        user=_user(),
        uid=os.getuid(),
        gid=os.getgid(),
        boot_id=_text(_BOOT_ID),
        mount=_mount(real),
        recover_lost_locks=_text(_RECOVER_LOST_LOCKS),
        space=LocalDisk().space,
    )


def _mount(path: str) -> Mount:
    """Of the directory as it is opened: an automount is made by that."""
    disk = LocalDisk()
    root = open_directory(disk, path)
    try:
        return mount_of(root, path)
    finally:
        disk.close(root)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _text(path: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        return file.read().strip()
    return ""


@contextlib.contextmanager
def scratch(disk: Disk, path: str) -> Iterator[tuple[str, int]]:
    """A new directory below ``path``: its path and handle.

    Removed with all that is in it at the end.

    Raises ``StoreError`` if it cannot be made.
    """
    name = f"{SCRATCH_PREFIX}{socket.gethostname()}-{secrets.token_hex(4)}"
    root = open_directory(disk, path)
    try:
        try:
            disk.mkdir(root, name)
        except OSError as error:
            raise cannot_write(path, error) from error
        handle = disk.open_dir_at(root, name)
        try:
            yield os.path.join(path, name), handle
        finally:
            empty(disk, handle)
            disk.close(handle)
            with contextlib.suppress(OSError):
                disk.rmdir(root, name)
    finally:
        disk.close(root)


def open_directory(disk: Disk, path: str) -> int:
    """A handle of the directory. Raises ``StoreError``."""
    try:
        return disk.open_dir(path)
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: str, error: OSError) -> StoreError:
    """What to say of a directory that does not let us in."""
    hint = "give the user of the server read and write permission there, and run this as that user"
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        hint = "free space or inodes there, or raise the quota"
    if error.errno == errno.EROFS:
        hint = "mount it read-write"
    return StoreError(
        f"{path}: no directory can be made or opened there: {error.strerror or error}", hint=hint
    )


def empty(disk: Disk, handle: int) -> None:
    """Remove the files of a directory of ours; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        for name, is_dir in disk.listdir(handle):
            with contextlib.suppress(OSError):
                if not is_dir:
                    disk.unlink(handle, name)
