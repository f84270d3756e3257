"""Who may read and write a datastore: what is made anew, and what a start finds and warns of or
refuses.

Files that are there keep their owner and mode; what replaces one takes them over
(``stores/file/state/statefile.py``).

Source: ``docs/security.md``, "Files".
"""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

from ftstan.base.disk import NEW_DIRECTORY
from ftstan.base.errors import StoreError
from ftstan.ft.lock import LOCK_NAME
from ftstan.ft.survey import SERVER_NAME

if TYPE_CHECKING:
    from ftstan.base.disk import Disk

_EVERYBODY_WRITES = 0o002
_NAMED = 5
"""So many files are named in a line; more are counted."""


def make_directories(path: str) -> None:
    """Make the directory ``path`` and those above it, as far as they are missing.

    Raises ``OSError``.
    """
    parent = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(parent):
        make_directories(parent)
    try:
        os.mkdir(path, NEW_DIRECTORY)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def cure(path: str, error: OSError) -> str:
    """What to do when the directory ``path`` cannot be opened or made."""
    if not isinstance(error, PermissionError):
        return "give -dir a directory that this user may write"
    try:
        owner = _name(os.stat(path).st_uid)
    except OSError:
        owner = "the user that owns it"
    return (
        f"this server runs as {_name(os.geteuid())}: run it as {owner}, or give it the "
        "directory: chown -R"
    )


def check_modes(
    disk: Disk, root: int, path: str, *, in_group: bool, is_network: bool, strict: bool
) -> list[str]:
    """Judge the directory ``root`` at ``path``; returns what to warn of.

    Raises ``StoreError`` when the members of a group would shut each other out, and with ``strict``
    when everybody may write to the datastore.
    """
    try:
        warnings = _foreign(disk, root, path, in_group=in_group, is_network=is_network)
        open_to_all = _open_to_all(disk, root, path)
    except OSError as error:
        raise StoreError(
            f"datastore {path}: {(error.strerror or str(error)).lower()}",
            hint=f"give {_name(os.geteuid())} the right to read and write everything in it: "
            "chown -R",
        ) from error
    if open_to_all and strict:
        raise StoreError(
            open_to_all, hint=f"run: chmod -R o-w {path}; or start without -strict_permissions"
        )
    return [*warnings, f"{open_to_all}; run: chmod -R o-w {path}"] if open_to_all else warnings


def _foreign(disk: Disk, root: int, path: str, *, in_group: bool, is_network: bool) -> list[str]:
    """Whether the datastore is another user's.

    Raises ``StoreError`` if that would break a group.
    """
    owner = _owner(disk, root)
    own = os.geteuid()
    if owner is None or owner == own:
        return []
    text = (
        f"datastore {path} belongs to {_name(owner)}, and this server runs as {_name(own)}: the "
        "other could not read "
        "the files that it makes"
    )
    hint = (
        f"run every member as {_name(owner)}, or give the datastore to one user: chown -R {own} "
        f"{path}"
    )
    if own == 0 and is_network:
        # A file server may make root somebody else, the owner for instance: then there is nothing
        # wrong.
        return [f"{text}, unless the file server maps root to that user"]
    if in_group:
        raise StoreError(text, hint=hint)
    return [f"{text}; {hint}"]


def _owner(disk: Disk, root: int) -> int | None:
    """The user whose files are in the datastore, ``None`` while there are none."""
    for name in (SERVER_NAME, LOCK_NAME):
        try:
            return disk.stat(root, name).uid
        except FileNotFoundError:
            continue
    return None


def _open_to_all(disk: Disk, root: int, path: str) -> str:
    """The files that every user may write to, in words; empty if there are none."""
    mode = disk.fstat(root).mode
    if mode & _EVERYBODY_WRITES:
        return f"everybody may write to the datastore {path} (mode {mode:04o})"
    found = []
    for name, _ in disk.listdir(root):
        try:
            seen = disk.stat(root, name)
        except FileNotFoundError:
            continue
        # A symbolic link has every right, whatever it leads to; we follow none.
        if seen.mode & _EVERYBODY_WRITES and (seen.is_file or seen.is_dir):
            found.append(name)
    if not found:
        return ""
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return (
        f"everybody may write to {', '.join(sorted(found)[:_NAMED])}{more} in the datastore {path}"
    )


def _name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"
