"""Plots of an audit's page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.reports import clock
from ftstan.reports.plots import Plot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ftstan.spark.audit.result import Day
    from ftstan.spark.audit.verdict import AuditVerdict, Quiet

_WIDTH = 900
_LEFT = 60
_HEIGHT = 160
_CELL = 14
_ROW = 20
_NAMES = 260

#: Days beside each other in one plot of coverage; more are in the table and the Parquet file.
MOST_DAYS = 120


def timeline(verdict: AuditVerdict) -> Plot | None:
    """Acks a second over time, and below it the latency that 99 of 100 acks kept.

    Times without acks are marked.
    """
    ticks = verdict.timeline
    if not ticks:
        return None
    begin = ticks[0].t
    end = ticks[-1].t + verdict.tick_us
    scale = (_WIDTH - _LEFT - 10) / max(end - begin, 1)

    def x(t: int) -> float:
        return _LEFT + (t - begin) * scale

    plot = Plot(
        _WIDTH,
        2 * _HEIGHT + 80,
        "acks and their latency over time",
        "width:100%;min-width:36rem",
    )
    for quiet in verdict.quiet:
        width = max((quiet.end - quiet.begin) * scale, 1)
        plot.box("gap", (x(quiet.begin), 20), (width, 2 * _HEIGHT + 30), _quiet_text(quiet))
    acks = [tick.acks / verdict.tick_us * 1e6 for tick in ticks]
    for kind, unit, top, values in (
        ("bar", "acks/s", 20, acks),
        ("latency", "ms, p99", _HEIGHT + 50, [tick.p99_ms for tick in ticks]),
    ):
        most = max(values) or 1.0
        floor = top + _HEIGHT
        plot.box("axis", (_LEFT, floor), (_WIDTH - 10 - _LEFT, 1))
        plot.text(_LEFT - 6, top + 10, f"{most:,.0f}", "end")
        plot.text(_LEFT - 6, top + 26, unit, "end")
        for tick, value in zip(ticks, values, strict=True):
            high = value / most * _HEIGHT
            if high > 0:
                size = max(verdict.tick_us * scale - 0.5, 0.5), high
                plot.box(
                    kind, (x(tick.t), floor - high), size, f"{clock(tick.t)}: {value:,.1f} {unit}"
                )
    for t, anchor in ((begin, "start"), (end, "end")):
        plot.text(x(t), 2 * _HEIGHT + 70, clock(t), anchor)
    return plot


def _quiet_text(quiet: Quiet) -> str:
    faults = f": {', '.join(quiet.faults)}" if quiet.faults else ""
    return f"{quiet.seconds:.2f} s without an ack{faults}"


def coverage(days: Sequence[Day], names: Mapping[str, str]) -> Plot | None:
    """One line a channel and place, one square a day that it has messages of; darker for more.

    ``names``: of places.
    """
    shown = sorted({day.day for day in days})[-MOST_DAYS:]
    if not shown:
        return None
    lines = sorted({(day.channel, day.place) for day in days})
    most = max(day.messages for day in days)
    column = {day: number for number, day in enumerate(shown)}
    row = {line: number for number, line in enumerate(lines)}
    width = _NAMES + max(len(shown) * _CELL, 160) + 10
    plot = Plot(width, 30 + len(lines) * _ROW, "coverage by channel and day", f"width:{width}px")
    plot.text(_NAMES, 14, f"{shown[0]} to {shown[-1]}")
    for (channel, place), number in row.items():
        plot.text(_NAMES - 8, 36 + number * _ROW, _short(f"{channel} ({names[place]})"), "end")
    for day in days:
        if day.day in column:
            corner = _NAMES + column[day.day] * _CELL, 24 + row[day.channel, day.place] * _ROW
            told = f"{day.channel}, {day.day}: {day.messages:,} messages, {day.first} to {day.last}"
            share = {"fill-opacity": f"{0.25 + 0.75 * day.messages / most:.2f}"}
            plot.box("bar", corner, (_CELL - 2, _ROW - 4), told, **share)
    return plot


def _short(text: str, most: int = 36) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}\u2026"
