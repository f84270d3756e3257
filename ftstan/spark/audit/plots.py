"""Plots of an audit's page, as inline SVG. Colours come from the page's style; nothing is loaded from anywhere."""

from __future__ import annotations

import datetime as dt
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ftstan.spark.audit.result import Day
    from ftstan.spark.audit.verdict import Verdict

_WIDTH, _LEFT, _HEIGHT = 900, 60, 160
_CELL, _ROW, _NAMES = 14, 20, 260

#: Days beside each other in one plot of coverage; more are in the table and the Parquet file.
MOST_DAYS = 120


def timeline(verdict: Verdict) -> str:
    """Acks a second over time, and below it the latency that 99 of 100 acks kept; times without acks are marked."""
    ticks = verdict.timeline
    if not ticks:
        return ""
    begin, end = ticks[0].t, ticks[-1].t + verdict.tick_us
    scale = (_WIDTH - _LEFT - 10) / max(end - begin, 1)

    def x(t: int) -> float:
        return _LEFT + (t - begin) * scale

    marks = "".join(
        f'<rect class="quiet" x="{x(quiet.begin):.1f}" y="20" width="{max((quiet.end - quiet.begin) * scale, 1):.1f}" '
        f'height="{2 * _HEIGHT + 30}"><title>{escape(_quiet_text(quiet.seconds, quiet.faults))}</title></rect>'
        for quiet in verdict.quiet
    )
    seconds = verdict.tick_us / 1e6
    width = max(verdict.tick_us * scale - 0.5, 0.5)
    acks = [(x(tick.t), width, clock(tick.t), tick.acks / seconds) for tick in ticks]
    latency = [(x(tick.t), width, clock(tick.t), tick.p99_ms) for tick in ticks]
    ends = "".join(
        f'<text x="{x(t):.1f}" y="{2 * _HEIGHT + 70}" text-anchor="{anchor}">{clock(t)}</text>'
        for t, anchor in ((begin, "start"), (end, "end"))
    )
    height = 2 * _HEIGHT + 80
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" style="width:100%;min-width:36rem" role="img" '
        'aria-label="acks and their latency over time">'
        f"{marks}{_bars(acks, 20, 'acks/s', 'acks')}{_bars(latency, _HEIGHT + 50, 'ms, p99', 'latency')}{ends}</svg>"
    )


def _quiet_text(seconds: float, faults: Sequence[str]) -> str:
    return f"{seconds:.2f} s without an ack" + (f": {', '.join(faults)}" if faults else "")


def _bars(rows: Sequence[tuple[float, float, str, float]], top: int, unit: str, style: str) -> str:
    """Bars from (x, width, time, value)."""
    most = max(value for *_, value in rows) or 1.0
    bars = "".join(
        f'<rect class="{style}" x="{x:.1f}" y="{top + _HEIGHT - h:.1f}" width="{width:.1f}" height="{h:.1f}">'
        f"<title>{time}: {value:,.1f} {unit}</title></rect>"
        for x, width, time, value in rows
        if (h := value / most * _HEIGHT) > 0
    )
    return (
        f'<line class="axis" x1="{_LEFT}" y1="{top + _HEIGHT}" x2="{_WIDTH - 10}" y2="{top + _HEIGHT}"/>'
        f'<text x="{_LEFT - 6}" y="{top + 10}" text-anchor="end">{most:,.0f}</text>'
        f'<text x="{_LEFT - 6}" y="{top + 26}" text-anchor="end">{unit}</text>{bars}'
    )


def coverage(days: Sequence[Day], names: Mapping[str, str]) -> str:
    """One line a channel and place, one square a day that it has messages of; darker for more. ``names``: of places."""
    shown = sorted({day.day for day in days})[-MOST_DAYS:]
    if not shown:
        return ""
    lines = sorted({(day.channel, day.place) for day in days})
    most = max((day.messages for day in days), default=1)
    column = {day: number for number, day in enumerate(shown)}
    row = {line: number for number, line in enumerate(lines)}
    cells = "".join(
        f'<rect class="day" x="{_NAMES + column[day.day] * _CELL}" y="{24 + row[day.channel, day.place] * _ROW}" '
        f'width="{_CELL - 2}" height="{_ROW - 4}" fill-opacity="{0.25 + 0.75 * day.messages / most:.2f}">'
        f"<title>{escape(day.channel)}, {day.day}: {day.messages:,} messages, {day.first} to {day.last}</title></rect>"
        for day in days
        if day.day in column
    )
    labels = "".join(
        f'<text x="{_NAMES - 8}" y="{36 + number * _ROW}" text-anchor="end">'
        f"{escape(_short(f'{channel} ({names[place]})'))}</text>"
        for number, (channel, place) in enumerate(lines)
    )
    width = _NAMES + max(len(shown) * _CELL, 160) + 10
    heads = f'<text x="{_NAMES}" y="14">{shown[0]} to {shown[-1]}</text>'
    return (
        f'<svg viewBox="0 0 {width} {30 + len(lines) * _ROW}" style="width:{width}px" role="img" '
        f'aria-label="coverage by channel and day">{heads}{labels}{cells}</svg>'
    )


def _short(text: str, most: int = 36) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}\u2026"


def clock(t: int) -> str:
    """Microseconds since 1970 as a UTC time; the number itself where there is no such date."""
    try:
        return (dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=t)).strftime("%Y-%m-%d %H:%M:%S")
    except OverflowError:
        return f"{t} us"
