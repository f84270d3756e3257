"""An audit's report as tables on a terminal.

It decides nothing: what is wrong is the report's word.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ftstan.base.sizes import size_of
from ftstan.reports import clock

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ftstan.spark.audit.report import AuditReport
    from ftstan.spark.audit.verdict import AuditVerdict

#: Findings that a terminal shows.
MOST_ROWS = 20

_PIPE_WIDTH = 400


def print_report(report: AuditReport) -> None:
    """Channels, findings, the ledger's verdict, and in the last line ``clean`` or ``not clean``."""
    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else _PIPE_WIDTH, highlight=False)
    if report.channels:
        heads = ("channel", "messages", "bytes", "first", "last", "missing", "copies", "from", "to")
        rows = [
            (
                c.name,
                c.messages,
                size_of(c.size),
                c.first,
                c.last,
                c.missing,
                c.copies,
                _day(c.first_ns),
                _day(c.last_ns),
            )
            for c in report.channels
        ]
        _print(console, heads, rows, heads[1:7])
    if report.findings:
        found = [
            (f.kind.name.lower(), f.channel, f.first, f.last, ", ".join(f.places), f.text)
            for f in report.findings[:MOST_ROWS]
        ]
        _print(
            console,
            ("finding", "channel", "first", "last", "where", "details"),
            found,
            ("first", "last"),
        )
    if report.ledger is not None:
        _print_ledger(console, report.ledger)
    for line in report.lines():
        console.print(Text(line))


def _print_ledger(console: Console, verdict: AuditVerdict) -> None:
    if verdict.switches:
        heads = ("epoch", "fault", "from", "to", "active after", "next ack after")
        rows = [
            (s.epoch, s.fault, s.former, s.node, f"{s.active_ms:.0f} ms", f"{s.ack_ms:.0f} ms")
            for s in verdict.switches
        ]
        _print(console, heads, rows, heads[-2:])
    if verdict.quiet:
        quiet = [
            (clock(q.begin), f"{q.seconds:.3f}", ", ".join(q.faults))
            for q in verdict.quiet[:MOST_ROWS]
        ]
        _print(console, ("no ack after", "seconds", "faults"), quiet, ("seconds",))
    if verdict.breaches:
        broken = [
            (breach.rule.value, breach.count, "; ".join(breach.examples))
            for breach in verdict.breaches
        ]
        _print(console, ("promise", "broken", "such as"), broken, ("broken",))
    console.print(
        f"{verdict.published:,} published, {verdict.acked:,} acked, {verdict.stored:,} stored "
        f"({verdict.stored_without_ack:,} without ack), {verdict.delivered:,} received"
    )
    if verdict.latency is not None:
        one = verdict.latency
        console.print(
            f"ack after {one.median:.1f} ms (median), {one.p99:.1f} ms (p99), {one.longest:.1f} "
            "ms (longest)"
        )


def _print(
    console: Console, heads: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str]
) -> None:
    table = Table(
        box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False, show_edge=False
    )
    for head in heads:
        table.add_column(
            head.upper(),
            justify="right" if head in right else "left",
            no_wrap=not console.is_terminal,
        )
    for row in rows:
        table.add_row(*(Text(_visible(str(cell))) for cell in row))
    console.print(table)


def _visible(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _day(ns: int) -> str:
    return clock(ns // 1000)
