"""One HTML page about a drill: verdict, figures, and a timeline of acks, faults and owners. It needs nothing else.

Pure: text in, text out. Names come from scenarios and logs, so everything that is not ours is escaped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

from ftstan.drill.ledger import Ack, Fault, Takeover

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ftstan.drill.ledger import Record
    from ftstan.drill.result import Result

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 960, 280, 48, 40, 44
_BINS = 240

_LEGEND = """\
<p>Bars: acknowledgements a second. Red lines: faults. Shaded: the longest time without an acknowledgement
around each. Green: the node that serves.</p>"""

_STYLE = """\
:root { --ink: #1b1f24; --soft: #6a737d; --line: #d0d7de; --back: #ffffff; --bar: #4a7fb5; --bad: #c0392b;
  --good: #2e7d4f; --gap: #f3c1bb; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --soft: #9aa4ad; --line: #3a4048; --back: #16191d;
  --bar: #6ea4dd; --bad: #ff7b6b; --good: #6cc492; --gap: #5c2b27; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); max-width: 62rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.passed { color: var(--good); } .failed { color: var(--bad); }
table { border-collapse: collapse; } .wide { overflow-x: auto; }
th, td { padding: .2rem .8rem .2rem 0; text-align: left; border-bottom: 1px solid var(--line); }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; min-width: 40rem; } svg text { fill: var(--soft); font-size: 11px; }
.bar { fill: var(--bar); } .gap { fill: var(--gap); } .mark { stroke: var(--bad); } .axis { stroke: var(--line); }
.owner { fill: none; stroke: var(--good); stroke-width: 3; }
"""


@dataclass
class Timeline:
    """What the plot shows, gathered in one pass over a ledger; times in microseconds."""

    acks: list[int] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    takeovers: list[Takeover] = field(default_factory=list)

    @classmethod
    def of(cls, records: Iterable[Record]) -> Timeline:
        """Of a ledger's records, in any order."""
        made = cls()
        for record in records:
            match record:
                case Ack():
                    made.acks.append(record.t)
                case Fault():
                    made.faults.append(record)
                case Takeover():
                    made.takeovers.append(record)
        made.acks.sort()
        made.faults.sort(key=lambda x: x.t)
        made.takeovers.sort(key=lambda x: x.t)
        return made


def page(result: Result, timeline: Timeline) -> str:
    """The page."""
    verdict = result.verdict
    word = "passed" if result.passed else "failed"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Drill {escape(result.name)}: {word}</title><style>{_STYLE}</style></head><body>",
        f'<h1>Drill {escape(result.name)}: <span class="{word}">{word}</span></h1>',
        f"<p>{escape(result.text)}</p>" if result.text else "",
        f'<div class="wide">{plot(timeline)}</div>',
        _LEGEND,
        "<h2>Without service, by fault (ms)</h2>",
        _table(
            ("fault", "times", "min", "median", "p99", "max"),
            [(x.fault, x.count, *(f"{v:,.0f}" for v in (x.least, x.median, x.p99, x.most))) for x in result.spreads],
        ),
        "<h2>Takeovers</h2>",
        _table(
            ("fault", "from", "to", "active after (ms)", "next ack after (ms)"),
            [
                (x.fault, x.former, x.node, f"{x.active_ms:,.0f}", f"{x.ack_ms:,.0f}")
                for x in verdict.switches
                if x.former
            ],
        ),
        "<h2>Ledger</h2>",
        _table(
            ("what", "count"),
            [
                ("published", f"{verdict.published:,}"),
                ("acknowledged", f"{verdict.acked:,}"),
                ("stored", f"{verdict.stored:,}"),
                ("stored without acknowledgement (allowed)", f"{verdict.stored_without_ack:,}"),
                ("delivered", f"{verdict.delivered:,}"),
                ("redelivered", f"{verdict.redelivered:,}"),
                ("readings of the log", f"{verdict.readings:,}"),
            ],
        ),
        "<h2>Broken promises</h2>",
        _breaches(result),
        "</body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _breaches(result: Result) -> str:
    rows = [
        f"<li>{escape(x.rule.value)}: {x.count:,}<br>{'<br>'.join(escape(e) for e in x.examples)}</li>"
        for x in result.verdict.breaches
    ]
    rows += [f"<li>{escape(failure)}</li>" for failure in result.failures]
    return f'<ul class="failed">{"".join(rows)}</ul>' if rows else '<p class="passed">None.</p>'


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    def cells(tag: str, row: Sequence[object]) -> str:
        kinds = (' class="n"' if column in numbers else "" for column in range(len(row)))
        return "".join(f"<{tag}{kind}>{escape(str(cell))}</{tag}>" for kind, cell in zip(kinds, row, strict=True))

    if not rows:
        return "<p>None.</p>"
    numbers = {column for column, cell in enumerate(rows[0]) if str(cell).replace(",", "").isdigit()}
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{cells("th", heads)}</tr>{body}</table></div>'


def plot(timeline: Timeline) -> str:
    """The timeline as SVG."""
    times = [*timeline.acks, *(x.t for x in timeline.faults), *(x.t for x in timeline.takeovers)]
    if not times:
        return "<p>Nothing happened.</p>"
    begin, end = min(times), max(times)
    span = max(end - begin, 1)
    wide, high = _WIDTH - _LEFT, _HEIGHT - _BOTTOM - _TOP
    floor = _TOP + high

    def x(t: int) -> float:
        return _LEFT + (t - begin) / span * wide

    seconds = span / 1e6 / _BINS
    bins = Counter(min(_BINS - 1, (t - begin) * _BINS // span) for t in timeline.acks)
    most = max(bins.values(), default=1)
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="acknowledgements over time">']
    parts += [
        f'<rect class="gap" x="{x(a):.1f}" y="{_TOP}" width="{max(1.0, x(b) - x(a)):.1f}" height="{high}"/>'
        for a, b in _gaps(timeline)
    ]
    parts += [
        f'<rect class="bar" x="{_LEFT + at * wide / _BINS:.1f}" y="{floor - count / most * high:.1f}" '
        f'width="{max(0.5, wide / _BINS - 0.5):.1f}" height="{count / most * high:.1f}"/>'
        for at, count in sorted(bins.items())
    ]
    for number, fault in enumerate(timeline.faults):
        parts.append(f'<line class="mark" x1="{x(fault.t):.1f}" x2="{x(fault.t):.1f}" y1="{_TOP}" y2="{floor}"/>')
        # In three rows: faults can follow each other closely.
        label, row = escape(f"{fault.fault} {fault.node}"), _TOP - 6 - 12 * (number % 3)
        parts.append(f'<text x="{x(fault.t) + 3:.1f}" y="{row}">{label}</text>')
    parts += _owners(timeline, x, end)
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH}" y1="{floor}" y2="{floor}"/>')
    parts.append(f'<text x="2" y="{_TOP + 10}">{most / seconds:,.0f}/s</text><text x="2" y="{floor}">0</text>')
    for part in range(5):
        at = begin + span * part // 4
        anchor = "end" if part == 4 else "start"
        label = f"{(at - begin) / 1e6:.0f} s"
        parts.append(f'<text x="{x(at):.1f}" y="{_HEIGHT - 4}" text-anchor="{anchor}">{label}</text>')
    return "\n".join([*parts, "</svg>"])


def _gaps(timeline: Timeline) -> list[tuple[int, int]]:
    """For each fault the longest time without an ack, as the judge counts it (``docs/ledger.md``, the verdict)."""
    acks, faults = timeline.acks, timeline.faults
    found = []
    for number, fault in enumerate(faults):
        begin = max(bisect_right(acks, fault.t) - 1, 0)
        end = bisect_right(acks, faults[number + 1].t) if number + 1 < len(faults) else len(acks)
        near = acks[begin : max(end, begin + 2)]
        if len(near) > 1:
            found.append(max(pairwise(near), key=lambda pair: pair[1] - pair[0]))
    return found


def _owners(timeline: Timeline, x: Callable[[int], float], end: int) -> list[str]:
    parts, y = [], _HEIGHT - _BOTTOM + 8
    for number, takeover in enumerate(timeline.takeovers):
        following = timeline.takeovers[number + 1 :]
        ended = [f.t for f in timeline.faults if f.epoch == takeover.epoch and f.ends_epoch]
        until = min([*ended, *(f.t for f in following[:1]), end])
        parts.append(f'<path class="owner" d="M{x(takeover.t):.1f} {y}H{max(x(until), x(takeover.t) + 1):.1f}"/>')
        parts.append(f'<text x="{x(takeover.t):.1f}" y="{y + 14}">{escape(takeover.node)}</text>')
    return parts
