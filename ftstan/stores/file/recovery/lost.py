"""Slices of ours of which only the index is left: where they began, and what is missing of them.

Such a slice ends every lower one as if its messages were still there: a former owner's late bytes
behind that point were never acknowledged. It may begin with copies of what a lower slice ended
with. Those are the messages that were acknowledged, wherever they lie, and their entries tell: two
activations give no two records the same time. Pure computation on index entries, for a start and
for the tools, which have to agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.stores.file.log import records

if TYPE_CHECKING:
    from ftstan.stores.file.state.confirmed import Confirmed

_ENTRY = records.INDEX_SIZE


@dataclass(frozen=True, slots=True)
class Seal:
    """Of the slices below ``number`` nothing counts from sequence ``first`` on.

    ``first`` to ``last`` are missing; none are if ``last`` is lower. ``hides``: then a lower slice
    has others behind them all the same, and an index that its owner was killed over may not name
    all copies.
    """

    number: int
    first: int
    last: int
    hides: bool = False

    @property
    def is_damage(self) -> bool:
        """Whether something that was acknowledged may be gone or hidden."""
        return self.first <= self.last or self.hides

    @property
    def words(self) -> str:
        """What is wrong with the slice."""
        if self.first <= self.last:
            return f"no message is in it, its index names sequences {self.first} to {self.last}"
        return (
            f"no message is in it, its index ends with sequence {self.last}, and lower slices go "
            "on behind that"
        )


def find_seal(
    number: int, named: bytes, below: bytes, confirmed: Confirmed | None, end: int | None
) -> Seal | None:
    """What the slice ``number`` ends, whose index entries are ``named``.

    ``below``: the entries of the next lower slice that has records. ``end``: what ends this one,
    ``None``: nothing does. ``None``: a higher slice ends all that this one does.
    """
    count = len(named) // _ENTRY
    same = _count_same(named, below)
    last = records.entry(named, count - 1)[0]
    first = records.entry(named, same)[0] if same < count else last + 1
    if confirmed is not None and number > confirmed.slice_number:
        # Nothing hides what was confirmed below it.
        first = max(first, confirmed.sequence + 1)
    if end is not None and first >= end:
        return None
    hides = first > last and records.find_entry(below, first) * _ENTRY < len(below)
    return Seal(number, first, last if end is None else min(last, end - 1), hides)


def may_end(number: int, filled: list[int]) -> bool:
    """Whether the slice ``number`` counts, where those of ``filled`` have records or something bad.

    The limits remove slices from the bottom, the index first, and a power cut can keep that one: so
    below all others it tells nothing.
    """
    return not filled or min(filled) < number


def is_sure(number: int, live: list[int], confirmed: Confirmed | None, *, foreign: bool) -> bool:
    """Whether no original server can have gone on below the slice after its messages were lost.

    It goes on in the highest slice that it finds. ``foreign``: one may have been here since our
    last confirm.
    """
    return not foreign or (
        confirmed is not None and any(number < n <= confirmed.slice_number for n in live)
    )


def _count_same(named: bytes, below: bytes) -> int:
    """How many entries of ``named`` from the front are entries of ``below``, too, but for their
    offsets.
    """
    at = records.find_entry(below, records.entry(named, 0)[0])
    most = min(len(named) // _ENTRY, len(below) // _ENTRY - at)
    for k in range(most):
        if _without_offset(named, k) != _without_offset(below, at + k):
            return k
    return max(most, 0)


def _without_offset(index: bytes, k: int) -> tuple[int, int, int]:
    sequence, _, timestamp, size = records.entry(index, k)
    return sequence, timestamp, size
