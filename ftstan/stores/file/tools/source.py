"""What readers are told of a datastore that they do not own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ftstan.base.disk import Disk
    from ftstan.stores.file.log.records import Crc
    from ftstan.stores.file.state.checkpoint import Checkpoint
    from ftstan.stores.file.state.confirmed import Confirmed


@dataclass(frozen=True, slots=True)
class Source:
    """Where to read: the root's handle, the CRC of the store's polynomial, and what is known of its
    owners.

    ``live``: a server has it open at this moment. ``left``: what the last clean stop left, if the
    activation behind that is the last one. ``originals_through``: the last epoch behind which an
    original server may have served.
    """

    disk: Disk
    root: int
    crc: Crc
    ours_from: int
    live: bool = False
    left: Checkpoint | None = None
    originals_through: int = 0

    def may_be_originals(self, name: bytes, confirmed: Confirmed | None) -> bool:
        """Whether an original server may have written to a channel whose files are not as our last
        clean stop left them.

        A start asks the same (``recovery.measure``).
        """
        if self.left is not None and (
            name in self.left or (confirmed is None and self.left.leaves_out(name))
        ):
            return True
        return self.originals_through >= (confirmed.epoch if confirmed is not None else 1)
