"""A pause that a restart keeps: the file ``ft.paused.<name>`` in the datastore.

The file's presence is the pause; its line is for people. The member that is paused makes it and
removes it; nobody else's decision depends on it, and original servers skip it. It belongs to the
name of the member (``ft_member``), because server ids change at every start.

All calls may block on storage.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from ftstan.base.errors import StoreError

if TYPE_CHECKING:
    from ftstan.base.disk import Disk

_PREFIX: Final = "ft.paused."


def keep_pause(disk: Disk, root_fd: int, name: str, line: str) -> None:
    """Keep the pause of the member ``name``, durable on return. Raises ``StoreError``."""
    try:
        with contextlib.suppress(FileExistsError):
            fd = disk.open(
                root_fd, _file(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            )
            try:
                disk.pwrite(fd, f"{line}\n".encode("utf-8", "replace"), 0)
                disk.fsync(fd)
            finally:
                disk.close(fd)
        disk.fsync(root_fd)
    except OSError as error:
        raise _failed(name, "kept", error) from error


def end_pause(disk: Disk, root_fd: int, name: str) -> None:
    """Remove the pause of the member ``name``, if there is one. Raises ``StoreError``."""
    try:
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(root_fd, _file(name))
            disk.fsync(root_fd)
    except OSError as error:
        raise _failed(name, "removed", error) from error


def is_paused(disk: Disk, root_fd: int, name: str) -> bool:
    """Whether a pause of the member ``name`` is kept. Raises ``StoreError``."""
    try:
        disk.stat(root_fd, _file(name))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _failed(name, "looked for", error) from error
    return True


def paused_members(disk: Disk, root_fd: int) -> list[str]:
    """The names of all members whose pause is kept. Raises ``OSError``."""
    return sorted(
        unquote(found.removeprefix(_PREFIX))
        for found, is_dir in disk.listdir(root_fd)
        if found.startswith(_PREFIX) and not is_dir
    )


def _file(name: str) -> str:
    return _PREFIX + quote(name, safe=":")


def _failed(name: str, done: str, error: OSError) -> StoreError:
    return StoreError(
        f"the pause of {name} cannot be {done} in the datastore: {error.strerror or error}",
        hint="check the storage",
    )
