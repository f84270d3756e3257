"""An audit's report as one HTML page. It decides nothing: what is wrong is the report's word."""

from __future__ import annotations

from dataclasses import astuple
from operator import attrgetter
from typing import TYPE_CHECKING

from ftstan.base.sizes import size_of
from ftstan.reports import MOST_ROWS, clock, render
from ftstan.spark.audit.plots import coverage, timeline

if TYPE_CHECKING:
    from ftstan.spark.audit.result import Result


_CHANNEL = attrgetter(
    *("name", "messages", "size", "first", "last", "missing", "copies"),
    *("first_ns", "last_ns"),
)


def page(report: Result) -> str:
    """The whole page."""
    verdict = report.ledger
    lines = set(sorted({(day.channel, day.place) for day in report.days})[:MOST_ROWS])
    of_ledger: dict[str, object] = {}
    if verdict is not None:
        times = [astuple(verdict.latency)] if verdict.latency else []
        of_ledger = {
            "breaches": [(b.rule.value, b.count, "; ".join(b.examples)) for b in verdict.breaches],
            "latency": [[f"{ms:,.1f}" for ms in row] for row in times],
            "timeline": timeline(verdict),
            "quiet": [(clock(q.begin), f"{q.seconds:.3f}", q.faults) for q in verdict.quiet],
        }
    return render(
        "audit.html",
        report=report,
        kinds=[
            (kind.value, count, "error" if kind.error or report.strict else "note")
            for kind, count in report.counts.items()
        ],
        channels=[
            (name, messages, size_of(size), *row, clock(first_ns // 1000), clock(last_ns // 1000))
            for name, messages, size, *row, first_ns, last_ns in map(_CHANNEL, report.channels)
        ],
        coverage=coverage(
            [day for day in report.days if (day.channel, day.place) in lines],
            {place: str(number) for number, place in enumerate(report.places, start=1)},
        ),
        **of_ledger,
    )
