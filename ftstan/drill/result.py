"""What a drill came to: the verdict of its ledger, what went otherwise than expected, and the
outages in figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ftstan.drill.judge import DrillVerdict, Outage

ALL = "all faults"


@dataclass(frozen=True, slots=True)
class Spread:
    """Outages of one kind of fault, in milliseconds: how many, and how long."""

    fault: str
    count: int
    least: float
    median: float
    p99: float
    most: float

    @classmethod
    def of(cls, fault: str, values: Iterable[float]) -> Spread:
        """Of at least one value; percentiles are the nearest rank."""
        rows = sorted(values)
        rank = max(0, math.ceil(0.99 * len(rows)) - 1)
        middle = len(rows) // 2
        median = rows[middle] if len(rows) % 2 else (rows[middle - 1] + rows[middle]) / 2
        return cls(fault, len(rows), rows[0], median, rows[rank], rows[-1])


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

    ``failures``: what the scenario expected and did not see; times in microseconds.
    """

    name: str
    text: str
    began_us: int
    ended_us: int
    verdict: DrillVerdict
    failures: tuple[str, ...] = ()
    directory: str = ""

    @property
    def passed(self) -> bool:
        """Whether no promise was broken and everything went as expected."""
        return self.verdict.clean and not self.failures

    @property
    def spreads(self) -> list[Spread]:
        """Outages in figures."""
        return spreads(self.verdict.outages)
