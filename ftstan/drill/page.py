"""One HTML page about a drill: verdict, figures, and a timeline of acks, faults and owners."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftstan.drill import gaps
from ftstan.drill.ledger import Ack, Fault, Publish, Takeover
from ftstan.drill.result import FEWEST_FOR_MEDIAN, FEWEST_FOR_P99
from ftstan.reports import clock, render
from ftstan.reports.plots import Plot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ftstan.drill.judge import Outage
    from ftstan.drill.ledger import Record
    from ftstan.drill.result import Result

_WIDTH = 960
_HEIGHT = 280
_LEFT = 48
_BOTTOM = 40
_TOP = 44
_BINS = 240


@dataclass
class Timeline:
    """What the plot shows, gathered in one pass over a ledger; times in microseconds."""

    acks: list[int] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    takeovers: list[Takeover] = field(default_factory=list)
    load_end: int | None = None

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
                case Publish() if record.attempt == 1:
                    made.load_end = max(made.load_end or record.t, record.t)
        made.acks.sort()
        made.faults.sort(key=lambda x: x.t)
        made.takeovers.sort(key=lambda x: x.t)
        return made


def page(result: Result, timeline: Timeline) -> str:
    """The page."""
    return render(
        "drill.html",
        result=result,
        plot=plot(timeline),
        faults=[(_at(x), x.fault, x.node, x.epoch, x.ms) for x in result.verdict.outages],
        around=[(_at(x), x.fault, *map(_of, x.acked, x.published)) for x in result.verdict.outages],
        fewest_for_median=FEWEST_FOR_MEDIAN,
        fewest_for_p99=FEWEST_FOR_P99,
    )


def _at(outage: Outage) -> str:
    return clock(outage.t).rpartition(" ")[2]


def _of(acked: int, published: int) -> str:
    return f"{acked:,} / {published:,}"


def plot(timeline: Timeline) -> Plot | None:
    """The timeline, drawn; ``None`` when nothing happened."""
    events: list[Fault | Takeover] = [*timeline.faults, *timeline.takeovers]
    times = [*timeline.acks, *(event.t for event in events)]
    if not times:
        return None
    begin = min(times)
    end = max(times)
    span = max(end - begin, 1)
    wide = _WIDTH - _LEFT
    high = _HEIGHT - _BOTTOM - _TOP
    floor = _TOP + high

    def x(t: int) -> float:
        return _LEFT + (t - begin) / span * wide

    made = Plot(_WIDTH, _HEIGHT, "acknowledgements over time", "width:100%;min-width:40rem")
    found = gaps.find(timeline.acks, timeline.faults, timeline.takeovers, timeline.load_end)
    for gap in found.of:
        if gap is not None:
            width = max(1.0, x(gap.end) - x(gap.begin))
            made.box("gap", (x(gap.begin), _TOP), (width, high), f"{gap.ms:,.0f} ms without acks")
    bins = Counter(min(_BINS - 1, (t - begin) * _BINS // span) for t in timeline.acks)
    most = max(bins.values(), default=1)
    for at, count in sorted(bins.items()):
        tall = count / most * high
        made.box("bar", (_LEFT + at * wide / _BINS, floor - tall), (wide / _BINS - 0.5, tall))
    for number, fault in enumerate(timeline.faults):
        made.box("mark", (x(fault.t), _TOP), (1, high))
        # In three rows: faults can follow each other closely.
        made.text(x(fault.t) + 3, _TOP - 6 - 12 * (number % 3), f"{fault.fault} {fault.node}")
    for takeover, until in _owners(timeline, end):
        width = max(1.0, x(until) - x(takeover.t))
        made.box("owner", (x(takeover.t), floor + 6), (width, 3))
        made.text(x(takeover.t), floor + 22, takeover.node)
    made.box("axis", (_LEFT, floor), (wide, 1))
    made.text(2, _TOP + 10, f"{most / (span / 1e6 / _BINS):,.0f}/s")
    made.text(2, floor, "0")
    for part in range(5):
        at = begin + span * part // 4
        label = f"{(at - begin) / 1e6:.0f} s"
        made.text(x(at), _HEIGHT - 4, label, "end" if part == 4 else "start")
    return made


def _owners(timeline: Timeline, end: int) -> Iterator[tuple[Takeover, int]]:
    """Takeovers, and until when each node served."""
    for number, takeover in enumerate(timeline.takeovers):
        following = timeline.takeovers[number + 1 : number + 2]
        ended = [x.t for x in timeline.faults if x.epoch == takeover.epoch and x.ends_epoch]
        yield takeover, min([*ended, *(x.t for x in following), end])
