"""What a ledger proves, as plain values. It computes nothing: ``judging`` fills it in."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ftstan.drill import rules


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds from publish to ack: percentiles over all acked ids."""

    median: float
    p90: float
    p99: float
    p999: float
    longest: float


@dataclass(frozen=True, slots=True)
class Quiet:
    """A time without acks: microseconds since 1970 of the ack before and the ack behind it, and the
    faults within.
    """

    begin: int
    end: int
    faults: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return (self.end - self.begin) / 1e6


@dataclass(frozen=True, slots=True)
class Tick:
    """A piece of the time line: it begins at ``t`` (microseconds since 1970) and has ``acks`` acks.

    ``p99_ms``: 99 of 100 of them took no longer.
    """

    t: int
    acks: int
    p99_ms: float


@dataclass(frozen=True, slots=True)
class StoreMatch:
    """The acked ids of a ledger beside a store.

    ``expired``: seen by clients at a sequence below the first that the store still has: counted,
    not judged.
    """

    place: str
    channel: str
    found: int
    expired: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditVerdict(rules.LedgerVerdict):
    """What a ledger says, how long acks took, when there was none, and what a store has of it."""

    directory: str
    latency: Latency | None
    quiet: tuple[Quiet, ...]
    timeline: tuple[Tick, ...]
    tick_us: int
    match: StoreMatch | None = None

    def as_json(self) -> dict[str, Any]:
        """The verdict as plain values; rules by name."""
        row = asdict(self) | {"clean": self.clean}
        row["breaches"] = [
            {
                "rule": breach.rule.name.lower(),
                "words": breach.rule.value,
                "count": breach.count,
                "examples": breach.examples,
            }
            for breach in self.breaches
        ]
        return row
