"""What every file of one store shares: the disk, the format options, and the right to write.

``Ownership`` is implemented by ``ft/``; the store asks it before anything becomes visible under a name that others
read.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ftstan.clock import Clock
    from ftstan.disk import Disk
    from ftstan.stores.file.records import Crc

#: Slice numbers that one epoch may use in a channel (``docs/compat/filestore.md``, slices).
NUMBERS_PER_EPOCH = 4096

#: Names that start so belong to an activation that has not made them visible yet; a successor removes them first.
TEMPORARY = "tmp."


def is_full(error: OSError) -> bool:
    """Whether only space is missing: what failed can be tried again."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class Ownership(Protocol):
    """The activation under which a store is open."""

    @property
    def slice_base(self) -> int:
        """Slices of this activation are numbered ``slice_base + 1`` to ``slice_base + NUMBERS_PER_EPOCH``."""
        ...

    @property
    def ours_from(self) -> int:
        """The first slice number of our first activation here: all below was written by the original server."""
        ...

    def confirm(self) -> None:
        """Raise ``FencedError`` unless storage still says that this activation owns the store."""
        ...

    def raise_epoch(self) -> None:
        """Take the next epoch without giving up the store: ``slice_base`` grows. Raises ``FencedError``."""
        ...


@dataclass(frozen=True, slots=True)
class FileStoreOptions:
    """Options of the format; ages in nanoseconds, 0 = no limit."""

    crc_polynomial: int = 0xEDB88320
    check_crc: bool = True
    sync: bool = True
    slice_max_msgs: int = 0
    slice_max_bytes: int = 64 << 20
    slice_max_age: int = 0


@dataclass(slots=True)
class FileEnv:
    """Handed to every part of one open store."""

    disk: Disk
    root: int
    clock: Clock
    options: FileStoreOptions
    owner: Ownership
    crc: Crc
    #: Highest slice number used in channels that were deleted in this activation: made again, they go on above it.
    number_floor: dict[bytes, int] = field(default_factory=dict)
