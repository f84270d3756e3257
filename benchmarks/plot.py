"""Plots of the table of patterns, as SVG: one bar a row, the patterns below each other."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.rows import BARE, FILE, MEMORY, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_COLOURS = {BARE: "#9aa5b1", MEMORY: "#4f8fd0", FILE: "#d07f3a"}
_LEFT = 250
_WIDTH = 480
_RIGHT = 90
_BAR = 13
_GAP = 12


def write(rows: Sequence[Row], directory: str) -> None:
    """Write ``throughput.svg`` and ``cpu.svg``."""
    root = Path(directory)
    root.mkdir(parents=True, exist_ok=True)
    throughput = chart(
        rows, "Messages a second", lambda row: row.per_second, lambda value: f"{value:,.0f}"
    )
    # One at a time is another scale: what it costs is waiting, which the table has.
    cpu = [row for row in rows if row.what != BARE and "one at a time" not in row.pattern]
    costs = chart(
        cpu,
        "Server CPU a message, microseconds",
        lambda row: row.server_cpu,
        lambda value: f"{value:.2f}",
    )
    (root / "throughput.svg").write_text(throughput, encoding="utf-8")
    (root / "cpu.svg").write_text(costs, encoding="utf-8")


def chart(
    rows: Sequence[Row], title: str, value: Callable[[Row], float], shown: Callable[[float], str]
) -> str:
    """One chart as the text of an SVG file."""
    longest = max((value(row) for row in rows), default=0.0) or 1.0
    parts = []
    y = 56
    for name in dict.fromkeys(row.pattern for row in rows):
        some = [row for row in rows if row.pattern == name]
        middle = y + _BAR * len(some) / 2 + 4
        parts.append(
            f'<text x="{_LEFT - 10}" y="{middle:.0f}" text-anchor="end">{escape(name)}</text>'
        )
        for row in some:
            width = value(row) / longest * _WIDTH
            parts.append(
                f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR - 2}" '
                f'fill="{_COLOURS[row.what]}"/>'
                f'<text x="{_LEFT + width + 5:.1f}" y="{y + _BAR - 3}" '
                f'class="value">{escape(shown(value(row)))}</text>'
            )
            y += _BAR
        y += _GAP
    keys = list(dict.fromkeys(row.what for row in rows))
    legend = "".join(
        f'<rect x="{_LEFT + 160 * i}" y="30" width="10" height="10" fill="{_COLOURS[key]}"/>'
        f'<text x="{_LEFT + 160 * i + 15}" y="39">{escape(key)}</text>'
        for i, key in enumerate(keys)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + _RIGHT} {y}" '
        'font-family="sans-serif" font-size="12">\n'
        "<style>.value { font-size: 10px; fill: #555 }</style>\n"
        '<rect width="100%" height="100%" fill="#fff"/>\n'
        f'<text x="{_LEFT}" y="18" font-size="14">{escape(title)}</text>\n'
        + legend
        + "\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )
