"""Filters of a query as bounds: what cannot match is not read.

For pruning only: every filter also goes back to Spark.

Only filters that all must hold arrive here (Spark keeps an OR for itself). Bounds are never tighter
than the filter: a column of microseconds holds the nanoseconds from its value up to the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from ftstan.spark.options import nanoseconds
from ftstan.spark.parts import EVERYTHING, MAX_TIME, MIN_TIME, Bounds
from ftstan.spark.resolve import ENDLESS

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Nanoseconds in one value of the column ``timestamp``.
_MICRO = 1000


@dataclass(frozen=True, slots=True)
class Pushed:
    """``channels``: names that may match, ``None`` for any; ``prefix`` of names that may."""

    channels: frozenset[str] | None = None
    prefix: str = ""
    bounds: Bounds = EVERYTHING

    def wants(self, channel: str) -> bool:
        """Whether messages of a channel may match."""
        return (self.channels is None or channel in self.channels) and channel.startswith(
            self.prefix
        )


def pushed(filters: Iterable[Filter]) -> Pushed:
    """What all of the filters together leave possible."""
    found = Pushed()
    for f in filters:
        column = _column(f)
        if column == "channel":
            found = _channel(found, f)
        elif column in ("sequence", "timestamp", "timestamp_ns"):
            found = replace(found, bounds=found.bounds.within(_bounds(column, f)))
    return found


def _column(f: Filter) -> str:
    path: tuple[str, ...] = getattr(f, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _channel(found: Pushed, f: Filter) -> Pushed:
    names: frozenset[str] | None = None
    if isinstance(f, EqualTo | EqualNullSafe):
        names = frozenset({f.value})
    elif isinstance(f, In):
        names = frozenset(f.value)
    elif isinstance(f, StringStartsWith) and (f.value.startswith(found.prefix)):
        return replace(found, prefix=f.value)
    if names is None:
        return found
    return replace(found, channels=names if found.channels is None else names & found.channels)


def _bounds(column: str, f: Filter) -> Bounds:
    low, high = _range(column, f)
    if column == "sequence":
        return Bounds(first=max(low, 0), last=min(high, ENDLESS))
    return Bounds(since=max(low, MIN_TIME), until=min(high, MAX_TIME))


def _range(column: str, f: Filter) -> tuple[int, int]:
    """The lowest and the highest value that a filter leaves possible, in the unit of the log."""
    everything = (MIN_TIME, MAX_TIME)
    if isinstance(f, In):
        ranges = [_values(column, value) for value in f.value if value is not None]
        return (min(r[0] for r in ranges), max(r[1] for r in ranges)) if ranges else everything
    if not isinstance(
        f, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
    ):
        return everything
    if f.value is None:
        return everything
    low, high = _values(column, f.value)
    if isinstance(f, GreaterThan):
        return high + 1, everything[1]
    if isinstance(f, GreaterThanOrEqual):
        return low, everything[1]
    if isinstance(f, LessThan):
        return everything[0], low - 1
    if isinstance(f, LessThanOrEqual):
        return everything[0], high
    return low, high


def _values(column: str, value: Any) -> tuple[int, int]:
    """The values of the log that one value of a column stands for.

    Everything for one of an unknown type.
    """
    if column != "timestamp":
        return (value, value) if isinstance(value, int) else (MIN_TIME, MAX_TIME)
    if isinstance(value, datetime):
        ns = nanoseconds(value)
        return ns, ns + _MICRO - 1
    return MIN_TIME, MAX_TIME
