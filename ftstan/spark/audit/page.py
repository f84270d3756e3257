"""An audit's report as one HTML page that needs nothing else: no script, no font, no picture from anywhere.

It decides nothing: what is wrong is the report's word. Everything that comes from data is escaped.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from ftstan.spark.audit.plots import clock, coverage, timeline

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ftstan.spark.audit.result import Result
    from ftstan.spark.audit.verdict import Verdict

#: Rows of the page's tables; the JSON and the Parquet files have all.
MOST_ROWS = 500

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --soft: #667; --line: #d5d9e0; --good: #1a7f4b;
 --bad: #c0392b; --acks: #3f7fc4; --latency: #c87a2f; --quiet: #c0392b33; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ec; --paper: #14171c; --soft: #9aa4b2; --line: #333a44;
 --good: #4cc38a; --bad: #ff7b6b; --acks: #6ea8e8; --latency: #e5a35c; --quiet: #ff7b6b33; } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1rem; max-width: 70rem; background: var(--paper); color: var(--ink);
 font: 16px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.verdict { display: inline-block; padding: .2rem .8rem; border-radius: .4rem; color: var(--paper); font-weight: 600 }
.good { background: var(--good) } .wrong { background: var(--bad) }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: left }
td { max-width: 24rem; overflow-wrap: break-word }
th { color: var(--soft); font-weight: 500; white-space: nowrap } td.n, th.n { text-align: right; white-space: nowrap }
svg { height: auto; font: 11px system-ui, sans-serif } svg text { fill: var(--soft) }
.axis { stroke: var(--line) } .acks { fill: var(--acks) } .latency { fill: var(--latency) }
.quiet { fill: var(--quiet) } .day { fill: var(--acks) } .soft { color: var(--soft) }
"""


def page(report: Result) -> str:
    """The whole page."""
    parts = [
        "<h1>Audit</h1>",
        f'<p><span class="verdict {"good" if report.clean else "wrong"}">{_word(report)}</span></p>',
        _places(report.places),
        _counts(report),
        _channels(report),
        _coverage(report),
        _findings(report),
        _notes(report.notes),
        _ledger(report.ledger) if report.ledger else "",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Audit: {_word(report)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body>\n</html>\n"
    )


def _word(report: Result) -> str:
    return "clean" if report.clean else "not clean"


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[str] = ()) -> str:
    kinds = [' class="n"' if head in numbers else "" for head in heads]
    head = "".join(f"<th{kind}>{escape(text)}</th>" for text, kind in zip(heads, kinds, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{escape(_shown(cell))}</td>" for cell, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _shown(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def _places(places: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(place)}</li>" for place in places)
    return f"<ol>{items}</ol>" if places else ""


def _counts(report: Result) -> str:
    if not report.places:
        return ""
    rows = [
        (kind.value, count, "error" if kind.error or report.strict else "note") for kind, count in report.counts.items()
    ]
    return "<h2>What was found</h2>" + _table(("what", "times", "weight"), rows, ("times",))


def _channels(report: Result) -> str:
    heads = ("channel", "messages", "bytes", "first", "last", "missing", "copies", "from", "to")
    rows = [
        (
            c.name, c.messages, c.size, c.first, c.last, c.missing, c.copies, clock(c.first_ns // 1000),
            clock(c.last_ns // 1000),
        )
        for c in report.channels[:MOST_ROWS]
    ]  # fmt: skip
    return "<h2>Channels</h2>" + _table(heads, rows, heads[1:7]) + _more(len(report.channels)) if rows else ""


def _coverage(report: Result) -> str:
    names = {place: str(number) for number, place in enumerate(report.places, start=1)}
    lines = sorted({(day.channel, day.place) for day in report.days})[:MOST_ROWS]
    known = set(lines)
    plot = coverage([day for day in report.days if (day.channel, day.place) in known], names)
    return f'<h2>Coverage by day</h2><div class="wide">{plot}</div>' if plot else ""


def _findings(report: Result) -> str:
    heads = ("what", "channel", "first", "last", "where", "details")
    rows = [
        (finding.kind.value, finding.channel, finding.first, finding.last, ", ".join(finding.places), finding.text)
        for finding in report.findings[:MOST_ROWS]
    ]
    total = sum(report.counts.values())
    return "<h2>Findings</h2>" + _table(heads, rows, ("first", "last")) + _more(total) if rows else ""


def _more(total: int) -> str:
    return f'<p class="soft">{total - MOST_ROWS:,} more are not shown.</p>' if total > MOST_ROWS else ""


def _notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes[:MOST_ROWS])
    return f"<h2>Remarks of readers</h2><ul>{items}</ul>" + _more(len(notes)) if notes else ""


def _ledger(verdict: Verdict) -> str:
    counts = [
        ("published", verdict.published),
        ("acked", verdict.acked),
        ("acked more than once", verdict.acked_again),
        ("published again", verdict.retried),
        ("errors of clients", verdict.failed),
        ("acks a second while a node served", f"{verdict.rate:,.0f}"),
        ("stored", verdict.stored),
        ("stored without ack", verdict.stored_without_ack),
        ("received", verdict.delivered),
        ("received again", verdict.redelivered),
        ("readings of the log", verdict.readings),
    ]
    if verdict.match is not None:
        counts += [
            (f"found in channel {verdict.match.channel}", verdict.match.found),
            ("below what the places still have", verdict.match.expired),
        ]
    parts = [f"<h2>Ledger {escape(verdict.directory)}</h2>", _table(("", "count"), counts, ("count",))]
    if verdict.breaches:
        rows = [(breach.rule.value, breach.count, "; ".join(breach.examples)) for breach in verdict.breaches]
        parts.append("<h2>Broken promises</h2>" + _table(("promise", "times", "such as"), rows, ("times",)))
    if verdict.latency is not None:
        one = verdict.latency
        row = [f"{value:,.1f}" for value in (one.median, one.p90, one.p99, one.p999, one.longest)]
        names = ("median", "p90", "p99", "p99.9", "longest")
        parts.append("<h2>Milliseconds from publish to ack</h2>" + _table(names, [row], names))
    if verdict.timeline:
        parts.append(f'<h2>Over time</h2><div class="wide">{timeline(verdict)}</div>')
    if verdict.quiet:
        quiet = [(clock(q.begin), f"{q.seconds:.3f}", ", ".join(q.faults)) for q in verdict.quiet[:MOST_ROWS]]
        table = _table(("last ack before", "seconds", "faults"), quiet, ("seconds",))
        parts.append("<h2>Times without acks</h2>" + table + _more(len(verdict.quiet)))
    if verdict.switches:
        heads = ("epoch", "fault", "from", "to", "active after ms", "next ack after ms")
        takeovers = [
            (s.epoch, s.fault, s.former, s.node, f"{s.active_ms:,.0f}", f"{s.ack_ms:,.0f}") for s in verdict.switches
        ]
        parts.append("<h2>Takeovers</h2>" + _table(heads, takeovers[:MOST_ROWS], heads[-2:]) + _more(len(takeovers)))
    return "\n".join(parts)
