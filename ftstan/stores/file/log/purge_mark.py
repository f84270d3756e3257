"""``purged.bin``: up to which sequence an operator has purged a channel, so that no start shows
those messages again.

One small file in a channel's directory, which the original ignores: the format itself cannot say
that the newest record is gone, and the oldest slice that counts may hold purged records in front of
others. Always replaced as a whole, durable before it is visible, after a confirm; so there is one,
whole, or none. It hides messages and nothing else: it is no proof of ownership, never lowers a
sequence, and a log that it does not speak of is shown in full.

Layout: ``docs/compat/filestore.md`` (side files). Argument: ``docs/store.md`` (purging).
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.stores.file.regular import open_file
from ftstan.stores.file.state.confirmed import epoch_of
from ftstan.stores.file.state.statefile import replace_file

if TYPE_CHECKING:
    from ftstan.base.disk import Disk
    from ftstan.stores.file.env import FileEnv

NAME = "purged.bin"

_MAGIC = b"FTSTPRG1"
_CRC = struct.Struct("<I")
# epoch, sequence, newest timestamp
_BODY = struct.Struct("<QQq")
_SIZE = len(_MAGIC) + _CRC.size + _BODY.size


@dataclass(frozen=True, slots=True)
class Mark:
    """Every message up to ``sequence`` was purged.

    ``newest``: none of them has a later timestamp (Unix ns).
    """

    sequence: int
    newest: int

    def speaks_of(self, first_ts: int) -> bool:
        """Whether a log whose oldest record has this timestamp can be the one that was purged.

        Sequences begin anew where an original server lost the slice that remembered the last one:
        what it stored after that must not be hidden.
        """
        return first_ts <= self.newest


def write(env: FileEnv, dirfd: int, mark: Mark) -> None:
    """Put the mark in the place of a former one, durable on return.

    Raises ``OSError`` and ``FencedError``.
    """
    body = _BODY.pack(epoch_of(env), mark.sequence, mark.newest)
    env.disk.close(replace_file(env, dirfd, NAME, _MAGIC + _CRC.pack(zlib.crc32(body)) + body))


def read(disk: Disk, dirfd: int) -> tuple[Mark | None, str]:
    """What stands in the channel directory ``dirfd``, and what is wrong with it if it cannot be
    read.

    ``OSError`` passes through.
    """
    try:
        fd = open_file(disk, dirfd, NAME)
    except FileNotFoundError:
        return None, ""
    try:
        return _decode(disk.pread(fd, _SIZE, 0))
    finally:
        disk.close(fd)


def _decode(data: bytes) -> tuple[Mark | None, str]:
    body = data[len(_MAGIC) + _CRC.size :]
    if (
        len(data) != _SIZE
        or not data.startswith(_MAGIC)
        or _CRC.unpack_from(data, len(_MAGIC))[0] != zlib.crc32(body)
    ):
        return (
            None,
            "it is damaged: messages that were purged may be shown again, purge the channel again",
        )
    _, sequence, newest = _BODY.unpack(body)
    return Mark(sequence, newest), ""
