"""What a drill came to: the verdict of its ledger, what went otherwise than expected, and the
outages in figures.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ftstan.drill.judge import DrillVerdict, Outage
    from ftstan.drill.setting import Setting

ALL = "all faults"
FEWEST_FOR_MEDIAN = 5
#: One of a hundred took longer: of fewer it would be the longest under another name.
FEWEST_FOR_P99 = 100


@dataclass(frozen=True, slots=True)
class Spread:
    """Outages of one kind of fault, in milliseconds: how many, and how long.

    ``median`` and ``p99`` are ``None`` of so few that they would say no more than these few do.
    """

    fault: str
    count: int
    least: float
    median: float | None
    p99: float | None
    most: float

    @classmethod
    def of(cls, fault: str, values: Iterable[float]) -> Spread:
        """Of at least one value; percentiles are the nearest rank."""
        rows = sorted(values)
        count = len(rows)
        middle = statistics.median(rows) if count >= FEWEST_FOR_MEDIAN else None
        p99 = rows[math.ceil(0.99 * count) - 1] if count >= FEWEST_FOR_P99 else None
        return cls(fault, count, rows[0], middle, p99, rows[-1])


def spreads(outages: Sequence[Outage]) -> list[Spread]:
    """One for each kind of fault that acks came back after, in order of appearance, and one for all
    of several.
    """
    by_fault: dict[str, list[float]] = {}
    for outage in outages:
        if outage.ms is not None:
            by_fault.setdefault(outage.fault, []).append(outage.ms)
    rows = [Spread.of(fault, values) for fault, values in by_fault.items()]
    if len(rows) > 1:
        rows.append(Spread.of(ALL, [value for values in by_fault.values() for value in values]))
    return rows


@dataclass(frozen=True, slots=True)
class Result:
    """A drill that was played.

    ``failures``: what the scenario expected and did not see; times in microseconds. ``setting``:
    where it was played and with what, ``None`` if nobody wrote that down.
    """

    name: str
    text: str
    began_us: int
    ended_us: int
    verdict: DrillVerdict
    failures: tuple[str, ...] = ()
    directory: str = ""
    setting: Setting | None = None

    @property
    def passed(self) -> bool:
        """Whether no promise was broken and everything went as expected."""
        return self.verdict.clean and not self.failures

    @property
    def spreads(self) -> list[Spread]:
        """Outages in figures."""
        return spreads(self.verdict.outages)

    @property
    def unacked(self) -> str:
        """Why fewer publishes were acknowledged than made, and what that means; empty if not."""
        verdict = self.verdict
        missing = verdict.published - verdict.acked
        if missing <= 0:
            return ""
        stored = verdict.stored_without_ack
        kept = f"{stored:,} of them {'is' if stored == 1 else 'are'} stored all the same, because "
        kept += "only the ack was lost. "
        return (
            f"{missing:,} of {verdict.published:,} publishes got no ack: service stopped before "
            "one came. Their publishers did not take them for done, and published each payload "
            f"again, under a new id, until it was acknowledged. {kept if stored else ''}That "
            "is no loss: what is promised, and judged here, is that whatever was acknowledged "
            "is kept."
        )
