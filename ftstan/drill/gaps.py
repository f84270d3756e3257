"""Times without acks around faults: pure arithmetic on sorted times, in microseconds.

The time of a fault runs from the last ack before service stopped to the first ack after it came
back. Not every fault stops service at once (a switchover serves on until a successor is ready, a
node that is cut off has acks under way), so it is the longest gap between two acks inside the
fault's window: from the fault to the first ack of whoever took over or, if nobody did, to the next
fault or the end of the load. What comes later is no matter of the fault: when publishers stop, acks
do as well.

``count`` says how much came before a fault, during it, and after it: faults and the first acks
behind their gaps cut a run into pieces, so that nothing is counted twice within one column.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ftstan.drill.ledger import Fault, Takeover


class Gap(NamedTuple):
    """No ack came between these two times."""

    begin: int
    end: int

    @property
    def ms(self) -> float:
        """How long."""
        return (self.end - self.begin) / 1e3


@dataclass(frozen=True, slots=True)
class Gaps:
    """``of``: that of each fault, in the order of time; ``None`` if no ack came any more.

    ``elsewhere``: the longest one under load that is none of a fault's; ``None`` without acks.
    """

    of: tuple[Gap | None, ...]
    elsewhere: Gap | None


def find(
    acks: Sequence[int],
    faults: Iterable[Fault],
    takeovers: Iterable[Takeover],
    load_end: int | None = None,
) -> Gaps:
    """Find them. ``acks`` are sorted; ``load_end``: when the last new message was published."""
    ordered = sorted(faults, key=lambda fault: fault.t)
    served = {x.epoch: x.t - x.active_us + x.ack_us for x in takeovers}
    found: list[Gap | None] = []
    windows: list[tuple[int, int]] = []
    for number, fault in enumerate(ordered):
        following = ordered[number + 1].t if number + 1 < len(ordered) else None
        first = served.get(fault.epoch + 1) if fault.ends_epoch else None
        gaps = _inside(acks, fault.t, first, following, load_end)
        found.append(max(gaps, key=lambda gap: gap.end - gap.begin, default=None))
        if gaps:
            windows.append((gaps[0].begin, gaps[-1].end))
    return Gaps(tuple(found), _elsewhere(acks, windows, load_end))


class Around(NamedTuple):
    """How many came around one fault.

    ``before``: since service came back from the fault before it (of the first: from the beginning);
    ``during``: from the fault until service came back; ``after``: from then to the next fault (of
    the last: to the end). If no ack came any more, all behind the fault is ``during``.
    """

    before: int
    during: int
    after: int


def count(times: Iterable[int], faults: Sequence[Fault], of: Sequence[Gap | None]) -> list[Around]:
    """Count ``times``, in any order, around ``faults``, whose gaps are ``of``; both sorted."""
    ordered = sorted(times)
    at = [bisect_right(ordered, fault.t) for fault in faults]
    ends = [*at[1:], len(ordered)] if at else []
    back = [
        # A fault that follows before service is back ends the one before it.
        end if gap is None else min(max(bisect_left(ordered, gap.end), begin), end)
        for begin, end, gap in zip(at, ends, of, strict=True)
    ]
    return [
        Around(begin - former, middle - begin, end - middle)
        for former, begin, middle, end in zip([0, *back], at, back, ends, strict=False)
    ]


def _inside(
    acks: Sequence[int], begin: int, first: int | None, following: int | None, load_end: int | None
) -> list[Gap]:
    """The gaps of one fault's window; the one that the fault itself lies in always belongs to
    it.
    """
    after = bisect_right(acks, begin)
    if after == len(acks):
        return []
    gaps = [Gap(acks[after - 1] if after else begin, acks[after])]
    for at in range(after, len(acks) - 1):
        gap = Gap(acks[at], acks[at + 1])
        if first is not None and gap.begin >= first:
            break
        if following is not None and gap.end > following:
            break
        if load_end is not None and gap.begin >= load_end:
            break
        gaps.append(gap)
    return gaps


def _elsewhere(
    acks: Sequence[int], windows: Sequence[tuple[int, int]], load_end: int | None
) -> Gap | None:
    longest: Gap | None = None
    at = 0
    for begin, end in pairwise(acks):
        if load_end is not None and begin >= load_end:
            break
        while at < len(windows) and windows[at][1] <= begin:
            at += 1
        if at < len(windows) and windows[at][0] <= begin < windows[at][1]:
            continue
        if longest is None or end - begin > longest.end - longest.begin:
            longest = Gap(begin, end)
    return longest
