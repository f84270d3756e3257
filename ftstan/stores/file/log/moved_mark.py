"""``moved.bin``: whether a channel has moved elsewhere, so that no start lets anybody publish.

One small file in a channel's directory, which the original ignores: in a mixed group no channel can
be marked. Always replaced as a whole, durable before it is visible, after a confirm. It is never
removed while the channel is there: a late removal could hit the mark of a successor, a late rename
finds no source. A channel that takes publishes again has a file that says so.

What cannot be read, or was written by a later release, counts as moved: a publish that is refused
is published elsewhere or again, one that is taken here after the move would be seen by nobody. A
group that is mixed already is served all the same: there no channel can have been marked.

Layout: ``docs/compat/filestore.md`` (side files).
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

from ftstan.stores.file.env import FOREIGN
from ftstan.stores.file.regular import IrregularError, open_file
from ftstan.stores.file.state.confirmed import epoch_of
from ftstan.stores.file.state.statefile import replace_file

if TYPE_CHECKING:
    from ftstan.base.disk import Disk
    from ftstan.stores.file.env import FileEnv

NAME = "moved.bin"

#: The last byte is the version: another one is refused like damage.
_MAGIC = b"FTSTMOV1"
_CRC = struct.Struct("<I")
# epoch, whether it has moved; the client that may still publish follows
_BODY = struct.Struct("<QB")
_LARGEST = 4096

#: Nobody may publish.
NOBODY = b""

MIXED = 'channel "{name}" has moved: an original server would serve it all the same'
MIXED_HINT = "first: ftstanctl channel moved CHANNEL off, or leave the group as it is"


def write(env: FileEnv, dirfd: int, mover: bytes | None) -> None:
    """Put the mark in the place of a former one, durable on return.

    ``mover``: the client that may still publish, ``None``: the channel takes publishes again.
    Raises ``OSError`` and ``FencedError``.
    """
    body = _BODY.pack(epoch_of(env), mover is not None) + (mover or b"")
    env.disk.close(replace_file(env, dirfd, NAME, _MAGIC + _CRC.pack(zlib.crc32(body)) + body))


def read(disk: Disk, dirfd: int) -> tuple[bytes | None, str]:
    """The client that may still publish, ``None`` if the channel has not moved; and what is wrong
    with the file if it cannot be read.

    ``OSError`` passes through.
    """
    try:
        fd = open_file(disk, dirfd, NAME)
    except FileNotFoundError:
        return None, ""
    try:
        return decode(disk.pread(fd, _LARGEST + 1, 0))
    finally:
        disk.close(fd)


def decode(data: bytes) -> tuple[bytes | None, str]:
    """What the bytes of the file say, as ``read``."""
    start = len(_MAGIC) + _CRC.size
    body = data[start:]
    if data[: len(_MAGIC) - 1] == _MAGIC[:-1] and data[: len(_MAGIC)] != _MAGIC:
        return NOBODY, "it is of another release: nobody may publish to the channel"
    if (
        not start + _BODY.size <= len(data) <= _LARGEST
        or not data.startswith(_MAGIC)
        or _CRC.unpack_from(data, len(_MAGIC))[0] != zlib.crc32(body)
    ):
        return (
            NOBODY,
            "it is damaged: nobody may publish to the channel; ftstanctl channel moved mends it",
        )
    _, has_moved = _BODY.unpack_from(body)
    return (body[_BODY.size :] if has_moved else None), ""


def moved_in(disk: Disk, root: int, *, sure: bool = False) -> list[str]:
    """The channels of the datastore ``root`` which have moved, by name.

    ``sure``: those alone whose marks can be read. ``OSError`` passes through.
    """
    moved = []
    for name, is_dir in sorted(disk.listdir(root)):
        if is_dir and _has_moved(disk, root, name, sure=sure):
            moved.append(name)
    return moved


def _has_moved(disk: Disk, root: int, name: str, *, sure: bool) -> bool:
    try:
        dirfd = disk.open_dir_at(root, name)
    except FileNotFoundError:
        # An owner has deleted it since.
        return False
    except PermissionError:
        if name != FOREIGN:
            raise
        return False
    try:
        mover, wrong = read(disk, dirfd)
    except IrregularError:
        return not sure
    else:
        return mover is not None and not (sure and wrong)
    finally:
        disk.close(dirfd)
