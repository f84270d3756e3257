"""Messages of several places checked together, held to a slow and simple reference over made-up
rows.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from ftstan.spark.audit import AuditError, AuditKind, checks
from ftstan.spark.audit.checks import Found, check

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.usefixtures("quick")

HOUR_NS = 3_600_000_000_000
PLACES = ("store", "spool", "archive")


@dataclass(frozen=True)
class Message:
    channel: str
    sequence: int
    timestamp_ns: int
    data: bytes
    reply: str | None = None
    crc_ok: bool = True
    slice: int = 1

    def row(self) -> tuple[object, ...]:
        size = len(self.data)
        return (
            self.channel, self.sequence, self.timestamp_ns, self.data, size, self.reply,
            self.crc_ok, self.slice, 99,
        )  # fmt: skip


def _line(channel: str, first: int, last: int, start_ns: int = 20 * HOUR_NS) -> list[Message]:
    return [
        Message(channel, n, start_ns + (n - first) * HOUR_NS // 4, b"%d" % n)
        for n in range(first, last + 1)
    ]


def _tables(spark: SparkSession, places: list[list[Message]]) -> list[tuple[str, DataFrame]]:
    rows = [[message.row() for message in messages] for messages in places]
    return [
        (name, spark.createDataFrame(some, checks.COLUMNS))
        for name, some in zip(PLACES, rows, strict=False)
    ]


def _reference(
    places: list[list[Message]],
) -> tuple[Counter[AuditKind], Counter[tuple[str, str, str]], dict[str, int]]:
    """Findings by kind; messages by channel, day and place; missing sequences by channel."""
    counts: Counter[AuditKind] = Counter()
    days: Counter[tuple[str, str, str]] = Counter()
    missing: dict[str, int] = {}
    copies: dict[str, dict[int, list[tuple[str, Message]]]] = defaultdict(lambda: defaultdict(list))
    for place, messages in zip(PLACES, places, strict=False):
        for message in messages:
            copies[message.channel][message.sequence].append((place, message))
    for channel, by_sequence in copies.items():
        times = {}
        missing[channel] = 0
        former = None
        for sequence, some in sorted(by_sequence.items()):
            good = [m for _, m in some if m.crc_ok]
            times[sequence] = min(m.timestamp_ns for m in (good or [m for _, m in some]))
            counts[AuditKind.CRC] += len(good) < len(some)
            counts[AuditKind.CONFLICT] += (
                len({(m.data, m.timestamp_ns, m.reply or "") for m in good}) > 1
            )
            counts[AuditKind.DUPLICATE] += len({place for place, _ in some}) < len(some)
            day = (
                (
                    dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
                    + dt.timedelta(microseconds=times[sequence] // 1000)
                )
                .date()
                .isoformat()
            )
            days.update((channel, day, place) for place in {place for place, _ in some})
            if former is not None:
                counts[AuditKind.GAP] += sequence - former > 1
                missing[channel] += sequence - former - 1
                counts[AuditKind.BACKWARD] += times[sequence] < times[former]
            former = sequence
    return counts, days, missing


#: What may become of a message; the first is that nothing happens to it.
_FATES: tuple[Callable[[Message], list[Message]], ...] = (
    lambda m: [m],
    lambda m: [],
    lambda m: [m, m],
    lambda m: [replace(m, crc_ok=False, data=b"damaged")],
    lambda m: [replace(m, data=b"other")],
    lambda m: [replace(m, timestamp_ns=m.timestamp_ns - HOUR_NS)],
    lambda m: [replace(m, reply="inbox")],
)


def _spoiled(seed: int) -> list[list[Message]]:
    """Three places with overlapping parts of three channels, in any order, with every kind of fault
    in them.
    """
    chance = random.Random(seed)
    places: list[list[Message]] = [[], [], []]
    for channel, start in (
        ("a", 5 * HOUR_NS),
        ("b.c", 300 * 24 * HOUR_NS),
        ("before 1970", -50 * HOUR_NS),
    ):
        for place in places:
            first = chance.randint(1, 40)
            for message in _line(channel, first, first + chance.randint(10, 40), start):
                place.extend(
                    chance.choice(_FATES if chance.random() < 0.3 else _FATES[:1])(message)
                )
    for place in places:
        chance.shuffle(place)
    return places


@pytest.mark.parametrize(("seed", "block"), [(1, 7), (2, checks.BLOCK)])
def test_the_findings_are_those_of_a_simple_reference(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, seed: int, block: int
) -> None:
    monkeypatch.setattr(checks, "BLOCK", block)
    places = _spoiled(seed)
    counts, days, missing = _reference(places)
    found = check(_tables(spark, places), 10_000)
    assert Counter(found.counts) == counts
    assert min(counts[kind] for kind in counts) > 0
    assert Counter(finding.kind for finding in found.findings) == counts
    assert {(day.channel, day.day, day.place): day.messages for day in found.days} == days
    assert {channel.name: channel.missing for channel in found.channels} == missing
    for channel in found.channels:
        gaps = [f for f in found.findings if f.kind is AuditKind.GAP and f.channel == channel.name]
        assert sum(gap.count for gap in gaps) == channel.missing


def test_a_finding_says_where_it_is_and_what_is_there(spark: SparkSession) -> None:
    whole = _line("orders", 1, 20)
    store = [m for m in whole if m.sequence >= 10]
    store[2] = replace(store[2], data=b"other")
    archive = [m for m in whole if m.sequence <= 12 and m.sequence not in (4, 5)]
    archive[0] = replace(archive[0], crc_ok=False, slice=7)
    found = check(_tables(spark, [store, archive]), 10)
    told = {(f.kind, f.first, f.last): (f.places, f.text) for f in found.findings}
    assert told == {
        (AuditKind.CRC, 1, 1): (("spool",), "slice 7, offset 99, 1 of 1 copies"),
        (AuditKind.GAP, 4, 5): (("spool",), "2 missing"),
        (AuditKind.CONFLICT, 12, 12): (("store", "spool"), "2 copies"),
    }
    (channel,) = found.channels
    assert (channel.first, channel.last, channel.messages, channel.copies) == (1, 20, 18, 3)


def test_findings_are_counted_in_full_and_told_in_part(spark: SparkSession) -> None:
    found = check(_tables(spark, [_line("a", 1, 60)[::2]]), 5)
    assert found.counts[AuditKind.GAP] == 29
    assert [finding.first for finding in found.findings] == [2, 4, 6, 8, 10]


def test_a_record_of_which_nothing_is_known_but_its_place_is_told(spark: SparkSession) -> None:
    rows = [message.row() for message in _line("a", 1, 3)]
    rows[1] = ("a", 2, None, None, None, None, False, None, 8123)
    table = spark.createDataFrame(rows, checks.COLUMNS)
    found = check([("store", table)], 5)
    (finding,) = found.findings
    assert (finding.kind, finding.first, finding.timestamp_ns) == (AuditKind.CRC, 2, 0)
    assert finding.text == "offset 8123, 1 of 1 copies"
    assert {day.day: day.messages for day in found.days} == {"1970-01-01": 2, "unknown": 1}


def test_sequences_beyond_what_a_float_holds_are_told_apart(spark: SparkSession) -> None:
    big = 2**60
    messages = [message for message in _line("a", big, big + 5) if message.sequence != big + 3]
    (finding,) = check(_tables(spark, [messages]), 5).findings
    assert (finding.kind, finding.first, finding.last) == (AuditKind.GAP, big + 3, big + 3)


def test_nothing_in_places_is_no_finding(spark: SparkSession) -> None:
    assert check(_tables(spark, [[]]), 5) == Found((), (), dict.fromkeys(AuditKind, 0), ())


def test_more_places_than_can_be_told_apart_are_refused() -> None:
    with pytest.raises(AuditError, match="64 places are too many"):
        check([("somewhere", None)] * 64, 5)  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("day", "text"),
    [
        (0, "1970-01-01"),
        (-1, "1969-12-31"),
        (20779, "2026-11-22"),
        (10**7, "day 10000000"),
        (None, "unknown"),
    ],
)
def test_a_day_is_a_date_where_there_is_one(day: int | None, text: str) -> None:
    assert checks.day_text(day) == text
