"""Where a stream has got: for each channel the sequence that it reads next, and how far one batch
goes.

Offsets are ``{"channel": next sequence}``, in the order of the names, for Spark compares them as
text. A channel that is not among the offsets of a batch's start has appeared since: it is read from
its first message. A channel whose end lies below its start has begun anew (it was deleted and made
again, or its server lost a memory store): it is read from its first message, too.

Pure: no clock, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

Offsets = dict[str, int]

FIRST = 0
"""The start of a range whose first sequence is whatever is there."""

_FIRST_EVER = 1


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """Sequences of one channel, ``end`` not included.

    From the first one that is there if ``start`` is ``FIRST``.
    """

    channel: str
    start: int
    end: int


def advance(
    start: Offsets, latest: Offsets, firsts: Mapping[str, int], most: int | None
) -> Offsets:
    """The end of the next batch: up to ``latest``, and ``most`` sequences of all channels together.

    What there is too much of is shared in proportion to what waits in each channel. ``firsts``: the
    first sequences of channels that ``start`` does not have. A channel that has gone keeps its
    place.
    """
    begins = {}
    for channel, end in latest.items():
        begin = start.get(channel, firsts.get(channel, end))
        begins[channel] = begin if begin <= end else _FIRST_EVER
    waiting = {channel: end - begins[channel] for channel, end in latest.items()}
    shares = waiting if most is None or sum(waiting.values()) <= most else _shares(waiting, most)
    # One that has begun anew and has nothing yet has its place at its beginning, or its first
    # messages would be missed.
    moved = {
        c: begins[c] + share for c, share in shares.items() if share or latest[c] < start.get(c, 0)
    }
    return dict(sorted((start | moved).items()))


def _shares(waiting: Offsets, most: int) -> Offsets:
    total = sum(waiting.values())
    shares = {channel: count * most // total for channel, count in waiting.items()}
    # What rounding left over goes to those who got least, or a small channel beside a large one
    # would wait for ever.
    left = most - sum(shares.values())
    for channel in sorted(
        (c for c in waiting if shares[c] < waiting[c]), key=lambda c: (shares[c], c)
    )[:left]:
        shares[channel] += 1
    return shares


def capped(latest: Offsets, target: Offsets, start: Offsets) -> Offsets:
    """``latest`` as if nothing had come since ``target`` was the latest.

    Channels that are new since are left out.

    What is behind ``target`` already, because a batch of a former run is run again, stays there.
    """
    ends = {}
    for channel, end in latest.items():
        begin = start.get(channel, 0)
        if channel in target:
            ends[channel] = max(min(end, target[channel]), begin) if end >= begin else end
    return ends


def ranges(start: Offsets, end: Offsets) -> list[Range]:
    """What a batch reads."""
    found = []
    for channel, stop in sorted(end.items()):
        begin = start.get(channel, FIRST)
        if stop > begin:
            found.append(Range(channel, begin, stop))
        elif _FIRST_EVER < stop < begin:
            found.append(Range(channel, FIRST, stop))
    return found
