"""Were the epochs of a datastore lost, or restored from an older copy?

For tools: a server decides for itself.

Numbers that were used may then be used again: two owners could be confirmed, and a later start
could take slices of a former owner for its own. What shows it are the numbers that other files
name. Reads only; ``docs/ft.md`` has the argument.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.base.errors import StoreError
from ftstan.ft.epoch import EPOCH_NAME, SLICES_PER_EPOCH, LostEpochs, read_state
from ftstan.ft.survey import FOREIGN, HIGHEST_COUNTED
from ftstan.stores.file.regular import IrregularError
from ftstan.stores.file.state.confirmed import read_confirmed

if TYPE_CHECKING:
    from ftstan.base.disk import Disk

_DAT = re.compile(r"msgs\.([1-9][0-9]{0,17})\.dat\Z")
_CURE = "stop every server and move it out of the datastore"


@dataclass(frozen=True, slots=True)
class EpochFacts:
    """``ours_from``: the first slice number of ours, ``None`` if no ftstan server ever wrote here.

    ``loss`` says what is wrong, empty if nothing is; ``lost`` is then what a repair must claim
    above. ``last``: number and nonce of the last activation, ``(0, b"")`` if there is no record of
    one. ``originals_through``: the last epoch behind which an original server may have served, as
    the next activation would say.
    """

    ours_from: int | None
    top: int
    loss: str = ""
    lost: LostEpochs | None = None
    last: tuple[int, bytes] = (0, b"")
    originals_through: int = 0


def find_epochs(disk: Disk, root_fd: int, *, looking: bool = False) -> EpochFacts:
    """Compare the epoch file with everything else that names an epoch.

    Raises ``OSError`` and ``StoreError``.

    ``looking``: channels that this user may not read are passed over. Nothing may be written after
    that: such a channel may name the highest epoch.
    """
    state = read_state(disk, root_fd)
    confirmed, slices = _highest(disk, root_fd, looking=looking)
    if state.newest is None and not state.claims and not confirmed:
        return EpochFacts(None, 0)
    shown = confirmed
    if state.newest is not None and slices >= state.newest.ours_from:
        shown = max(shown, -(-slices // SLICES_PER_EPOCH))
    floor = max([shown, state.top, *state.claims, -(-slices // SLICES_PER_EPOCH)])
    if state.newest is None:
        what = "holds no readable record" if state.present else "is missing"
        # Whether the lowest slices are the original's cannot be known any more. As ours they are
        # read in the order of their numbers, which is the order in which the original wrote them,
        # too.
        return EpochFacts(
            1,
            state.top,
            f"{EPOCH_NAME} {what}, but this datastore had epochs",
            LostEpochs(floor, 1),
        )
    newest = state.newest
    ours_from = newest.ours_from
    last = newest.epoch, newest.nonce
    originals = newest.epoch if newest.ft_mixed else newest.originals_through
    if shown > state.top:
        text = (
            f"{EPOCH_NAME} ends at epoch {state.top}, but epoch {shown} has written here: it is "
            "an older copy"
        )
        lost = LostEpochs(floor, ours_from)
        return EpochFacts(ours_from, state.top, text, lost, last, originals)
    return EpochFacts(ours_from, state.top, "", None, last, originals)


def _highest(disk: Disk, root_fd: int, *, looking: bool) -> tuple[int, int]:
    """The highest epoch that a channel was confirmed under, and the highest slice number.

    0 if there is none.
    """
    epoch = 0
    slice_number = 0
    for name, is_dir in disk.listdir(root_fd):
        if not is_dir:
            continue
        try:
            named, number = _highest_of(disk, root_fd, name)
        except OSError as error:
            if looking or (name == FOREIGN and isinstance(error, PermissionError)):
                continue
            if isinstance(error, IrregularError):
                # Moved elsewhere and linked to, say: it may name the highest epoch all the same.
                raise StoreError(f"{name}/{error.strerror}", hint=_CURE) from error
            raise
        epoch = max(epoch, named)
        slice_number = max(slice_number, number)
    return epoch, slice_number


def _highest_of(disk: Disk, root_fd: int, name: str) -> tuple[int, int]:
    fd = disk.open_dir_at(root_fd, name)
    try:
        confirmed = read_confirmed(disk, fd)
        found = (_DAT.match(n) for n, folder in disk.listdir(fd) if not folder)
        numbers = [number for m in found if m and (number := int(m[1])) <= HIGHEST_COUNTED]
        return confirmed.epoch if confirmed else 0, max(numbers, default=0)
    finally:
        disk.close(fd)
