"""What readers are told of a datastore that they do not own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ftstan.base.disk import Disk
    from ftstan.stores.file.log.records import Crc


@dataclass(frozen=True, slots=True)
class Source:
    """Where to read: the root's handle, the CRC of the store's polynomial, and what is known of its
    owners.

    ``live``: a server has it open at this moment.
    """

    disk: Disk
    root: int
    crc: Crc
    ours_from: int
    live: bool = False
