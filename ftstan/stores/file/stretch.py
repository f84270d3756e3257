"""Reading a file from some place on, also one that has grown by zeros: a sparse file of a damaged
file system, a bad restore.

A file of ordinary size is read as it is. Of a larger one a run of zeros that no record can hold is
passed over, and nothing of it is kept: where it ends the file, the bytes in front of it say all
that the file does; where data stand behind it, those are not read, and whoever reads is told so.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, NamedTuple

from ftstan.stores.file.regular import IrregularError

if TYPE_CHECKING:
    from ftstan.base.disk import Disk

#: More zeros in a row than any record holds: a NATS server carries messages of 64 MiB at most.
LONG_RUN = 72 << 20
_WINDOW = 8 << 20


class Stretch(NamedTuple):
    """What a file holds from some offset on.

    ``data``: as far as it was read. ``end``: how far the file goes. ``resumes``: where data stand
    behind the zeros that end ``data``; 0: nowhere.
    """

    data: bytes
    end: int
    resumes: int = 0

    @property
    def words(self) -> str:
        """What is wrong, if ``resumes`` says that something is."""
        return f"data stand at offset {self.resumes} behind more zeros than any record holds"


class GrownError(IrregularError):
    """A file has a run of zeros that no record can hold, and data behind it."""

    def __init__(self, words: str, name: str) -> None:
        """``words``: those of the stretch."""
        OSError.__init__(self, errno.EUCLEAN, f"{name}: {words}", name)
        self.words = words


def read_stretch(disk: Disk, fd: int, offset: int, *, to: int | None = None) -> Stretch:
    """Read a file from ``offset`` on: to its end, also behind what this host remembers of its size,
    or up to ``to``.

    ``OSError`` passes through.
    """
    if to is not None and to - offset <= LONG_RUN:
        data = disk.pread(fd, max(to - offset, 0), offset)
        return Stretch(data, offset + len(data))
    parts: list[bytes] = []
    at = offset
    run = 0
    size = 0
    while True:
        # Not of a file that is read at once: a call more for each would be paid at a takeover.
        if parts and len(parts[-1]) >= _WINDOW and not size:
            size = disk.fstat(fd).size
        if size - at > LONG_RUN and (there := min(disk.next_data(fd, at), to or size)) > at:
            kept = min(there - at, max(LONG_RUN - run, 0))
            parts.append(bytes(kept))
            run += there - at
            at = there
        chunk = disk.pread(fd, _WINDOW if to is None else min(_WINDOW, to - at), at)
        if not chunk:
            return Stretch(b"".join(parts), at)
        zeros = len(chunk) - len(chunk.rstrip(b"\0"))
        if zeros == len(chunk):
            if run < LONG_RUN:
                parts.append(chunk)
            run += zeros
        elif run >= LONG_RUN:
            return Stretch(b"".join(parts), max(size, at + len(chunk)), at)
        else:
            parts.append(chunk)
            run = zeros
        at += len(chunk)


def is_blank(data: bytes) -> bool:
    """Whether there is nothing but zeros."""
    return data.count(0) == len(data)
