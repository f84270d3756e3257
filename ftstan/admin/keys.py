"""``admin.key``: the secret of a datastore that an operator's requests are sealed with.

The only module that knows it.

64 hexadecimal digits and a line feed, mode 0600, made by the first owner that finds none, and never
printed. Whoever may read the datastore may steer the group; nobody else. To replace it, remove it:
the next owner makes another.

All calls may block on storage.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING

from ftstan.base.disk import LocalDisk
from ftstan.base.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.base.disk import Disk

KEY_NAME = "admin.key"
KEY_SIZE = 32

_TEXT = re.compile(rb"([0-9a-f]{%d})\n?\Z" % (2 * KEY_SIZE))
_OTHERS = 0o077


def read_key(disk: Disk, root_fd: int, name: str = KEY_NAME) -> bytes | None:
    """Read the key, ``None`` if there is none.

    Raises ``StoreError``: unreadable, not a key, or open to others.
    """
    try:
        # NONBLOCK: a pipe of that name must not hold up the thread that serves.
        fd = disk.open(root_fd, name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(name, error) from error
    try:
        mode = disk.fstat(fd).mode
        data = disk.pread(fd, 4 * KEY_SIZE, 0)
    except OSError as error:
        raise _unreadable(name, error) from error
    finally:
        disk.close(fd)
    if mode & _OTHERS:
        raise StoreError(
            f"{name} is open to other users (mode {mode:04o})", hint=f"run: chmod 600 {name}"
        )
    match = _TEXT.match(data)
    if match is None:
        raise StoreError(
            f"{name} holds no key",
            hint=f"remove {name}: the next owner of the datastore makes another",
        )
    return bytes.fromhex(match[1].decode())


def read_key_at(path: str) -> bytes | None:
    """Read the key in the file ``path``, ``None`` if there is none. Raises ``StoreError``."""
    folder, name = os.path.split(os.path.abspath(path))
    disk = LocalDisk()
    try:
        directory = disk.open_dir(folder)
    except OSError as error:
        raise _unreadable(os.path.join(folder, name), error) from error
    try:
        return read_key(disk, directory, name)
    finally:
        disk.close(directory)


def ensure_key(
    disk: Disk,
    root_fd: int,
    confirm: Callable[[], None],
    *,
    secret: bytes | None = None,
    name: str = KEY_NAME,
) -> None:
    """Make the key if there is none, durable on return; ``confirm`` says that the store is ours.

    A file that is there is left alone, whatever it holds. ``secret``: 32 bytes, random by default.
    Raises ``FencedError`` through ``confirm``, and ``StoreError``.
    """
    try:
        try:
            disk.stat(root_fd, name)
        except FileNotFoundError:
            pass
        else:
            return
        _remove_leftovers(disk, root_fd, name, confirm)
        # A name of its own: a former owner's late rename must not take a file that is not finished.
        new = f"{name}.new.{os.urandom(8).hex()}"
        fd = disk.open(root_fd, new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            disk.pwrite(fd, (secret or os.urandom(KEY_SIZE)).hex().encode() + b"\n", 0)
            disk.fsync(fd)
        finally:
            disk.close(fd)
        confirm()
        disk.rename(root_fd, new, name)
        disk.fsync(root_fd)
    except OSError as error:
        raise StoreError(
            f"{name} cannot be made: {error.strerror or error}",
            hint="check the storage; until there is a key, ftstanctl ft can look and not change",
        ) from error


def _remove_leftovers(disk: Disk, root_fd: int, name: str, confirm: Callable[[], None]) -> None:
    """Files that owners who died have begun: their bytes may be anything."""
    left = [
        found
        for found, is_dir in disk.listdir(root_fd)
        if found.startswith(f"{name}.new") and not is_dir
    ]
    if left:
        # Listed, then confirmed: so none of them is a successor's.
        confirm()
    for found in left:
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(root_fd, found)


def _unreadable(name: str, error: OSError) -> StoreError:
    return StoreError(
        f"{name} cannot be read: {error.strerror or error}",
        hint=f"{name} belongs to the user that the servers run as; run as that user",
    )
