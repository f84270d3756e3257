"""Ledgers judged in Spark: the verdict of the small judge, and its strictness about what is no
record.
"""

from __future__ import annotations

import json
from dataclasses import fields
from functools import reduce
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.drill import judge as small
from ftstan.drill import ledger as small_ledger
from ftstan.drill import selftest
from ftstan.drill.ledger import Ack, Delivery, LedgerError, Publish, Read, Record
from ftstan.drill.rules import PROMISE
from ftstan.spark.audit import AuditOptions, AuditVerdict, Rule, ledger, run
from ftstan.spark.audit.judging import judge
from tests.spark import ledgers
from tests.unit.drill.test_ledger import NO_RECORDS

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def _judged(spark: SparkSession, place: Path, records: list[Record]) -> AuditVerdict:
    ledgers.write(place, records)
    book = ledger.read(spark, str(place))
    try:
        return judge(book)
    finally:
        book.forget()


def _shared(verdict: Any) -> dict[str, Any]:
    """What both verdicts have, in one form."""
    names = {field.name for field in fields(small.DrillVerdict)} & {
        field.name for field in fields(AuditVerdict)
    }
    values = {name: getattr(verdict, name) for name in names - {"breaches", "switches", "rate"}}
    return values | {
        "rate": pytest.approx(verdict.rate),
        "switches": [str(switch) for switch in verdict.switches],
        "breaches": [(b.rule.name, b.rule.value, b.count, b.examples) for b in verdict.breaches],
    }


def _spoiled(*names: str) -> list[Record]:
    return reduce(lambda records, name: ledgers.SPOILS[name](records), names, ledgers.story())


LEDGERS = {
    "clean": ledgers.story(),
    "no records": [],
    "no acks": ledgers.without(ledgers.story(), lambda r: isinstance(r, Ack)),
    "no readings": ledgers.without(ledgers.story(), lambda r: isinstance(r, Read)),
    "no deliveries": ledgers.without(ledgers.story(), lambda r: isinstance(r, Delivery)),
    "all at once": _spoiled(*ledgers.SPOILS),
    "some of it": _spoiled("lost at the end", "another content", "never read"),
    "half of it": ledgers.story(90, 2)[::2],
    "nothing of a channel": ledgers.of_two_channels(),
    **selftest.ledgers(),
}
#: The last ones break what only a drill is held to.
CLEAN = {
    "clean",
    "nothing",
    "a double owner",
    "messages out of order",
    "acks that do not come back",
}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", LEDGERS)
def test_the_verdict_is_that_of_the_small_judge(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    records = LEDGERS[name]
    verdict = _judged(spark, tmp_path / "ledger", records)
    assert _shared(verdict) == _shared(small.judge(ledgers.written(records), PROMISE))
    assert verdict.clean == (name in CLEAN)


@pytest.mark.usefixtures("quick")
def test_channels_of_one_ledger_are_judged_each_for_itself(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = tmp_path / "ledger"
    ledgers.write(place, ledgers.story())
    texts = [path.read_text().rpartition("\n")[0] for path in sorted(place.glob("*.jsonl"))]
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    with (place / "more.jsonl").open("w") as file:
        for row in rows:
            # The same story under other ids, of a second channel in which the last message is lost
            # at the end.
            lost = row["kind"] == "read" and row["reader"] == "last-reader" and row["sequence"] == 5
            if not lost and row["kind"] not in ("fault", "takeover"):
                more = {"id": f"b{row['id']}"} | (
                    {} if row["kind"] in ("ack", "error") else {"channel": "b"}
                )
                file.write(json.dumps(row | more) + "\n")
        file.write('{"kind":"owner","t":1,"node":"A","epoch":7,"commits":9}\n')
        file.write(
            '{"kind":"fault","t":1,"epoch":1,"node":"B","fault":"kill","ends_epoch":false}\n'
        )
    book = ledger.read(spark, str(place))
    verdict = judge(book)
    book.forget()
    one = small.judge(ledgers.written(ledgers.story()), PROMISE)
    assert verdict.acked > 1.5 * one.acked
    assert verdict.switches[1].fault == "kill"
    assert {(b.rule, b.count, b.examples[0].partition(":")[0]) for b in verdict.breaches} == {
        (Rule.STORED, 1, "b"), (Rule.CONTIGUOUS, 1, "b"), (Rule.KEPT, 1, "b"),
    }  # fmt: skip


def test_the_ledgers_of_these_tests_break_every_rule_of_the_small_judge() -> None:
    verdicts = [small.judge(ledgers.written(records), PROMISE) for records in LEDGERS.values()]
    assert {breach.rule for verdict in verdicts for breach in verdict.breaches} == PROMISE


def test_a_report_tells_when_nobody_was_served_how_long_acks_took_and_what_was_acked_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    again = Ack(2 * ledgers.SECOND_US, "3.1", "g3.1", 1000)
    records = [*ledgers.story(), again]
    ledgers.write(tmp_path / "ledger", records)
    report = run(spark, [], AuditOptions(ledger=str(tmp_path / "ledger")))
    verdict = report.ledger
    assert verdict is not None
    assert report.exit_code == 0
    assert [(quiet.faults, round(quiet.seconds)) for quiet in verdict.quiet] == [
        (("kill of B",), 3),
        (("kill of A",), 3),
    ]
    assert verdict.acked_again == 1
    assert verdict.latency is not None
    latencies = sorted(r.latency_us / 1e3 for r in ledgers.story() if isinstance(r, Ack))
    assert verdict.latency.longest == latencies[-1]
    assert latencies[0] < verdict.latency.median < verdict.latency.p90 <= verdict.latency.p99
    assert sum(tick.acks for tick in verdict.timeline) == verdict.acked
    json.dumps(report.as_json())


@pytest.mark.parametrize("size", [1, 100, 1000, 1 << 20])
def test_ranges_cut_a_file_between_its_lines_and_nothing_is_in_two(
    tmp_path: Path, size: int
) -> None:
    records = ledgers.story()
    ledgers.write(tmp_path, records)
    rows = [
        row
        for piece in ledger.plan(str(tmp_path), size)
        for batch in ledger._batches(piece)
        for row in batch.to_pylist()
    ]
    rows.sort(key=lambda row: int(row["place"]))
    assert [(row["kind"], row["t"]) for row in rows] == [
        (r.kind, r.t) for r in ledgers.written(records)
    ]


@pytest.mark.usefixtures("quick")
def test_a_line_that_is_no_record_makes_the_ledger_unreadable_and_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    ledgers.write(tmp_path, ledgers.story())
    path = tmp_path / "p1.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:11], '{"kind":"rumour","t":1}\n', *lines[11:]]))
    with pytest.raises(LedgerError, match=r"p1\.jsonl, line 12: not a ledger record"):
        ledger.read(spark, str(tmp_path))


@NO_RECORDS
def test_what_is_parsed_all_at_once_is_never_what_the_strict_reader_refuses(line: bytes) -> None:
    good = b'{"kind": "ack", "t": 1, "id": "1.1", "guid": "g", "latency_us": 5}'
    assert ledger.quickly(good + b"\n" + good + b"\n", 0) is not None
    assert ledger.quickly(good + b"\n" + line + b"\n" + good + b"\n", 0) is None


@pytest.mark.parametrize(
    "more",
    [
        b"",
        (
            b'{"kind": "ack", "t": 1, "id": "1.1", "guid": "g", "latency_us": 5, "sequence": 9, '
            b'"what": [1]}\n'
        ),
        b'{"kind": "error", "t": 1, "by": "p", "id": "", "guid": "", "text": "\\ud800"}\n',
        '{"kind": "error", "t": 1, "by": "p", "id": "", "guid": "", "text": "größer"}\r\n'.encode(),
        b'{"kind":"publish","t":1,"id":"1.1","number":1,"attempt":1,"guid":"","size":-0,"sha1":"","channel":"b"}\n',
        b'{"kind": "owner", "t": 1, "node": "A", "epoch": 7, "commits": 9, "took_us": 5}\n',
        (
            b'{"kind": "fault", "t": 1, "epoch": 1, "node": "B", "fault": "kill", "ends_epoch": '
            b"false}\n"
        ),
    ],
)
def test_both_readers_give_the_same_records(more: bytes) -> None:
    owner = '{"kind":"owner","t":1,"node":"A","epoch":7,"commits":9}\n'
    lines = (
        "".join(small_ledger.encode(record) + "\n" for record in ledgers.story()).encode()
        + owner.encode()
        + more
    )
    strict = [row for batch in ledger.strictly(lines, 7) for row in batch.to_pylist()]
    quick = ledger.quickly(lines, 7)
    assert (quick is None) == any(word in more for word in (b"what", b"ud800"))
    rows = strict if quick is None else quick.to_pylist()
    assert sorted(rows, key=lambda row: int(row["place"])) == sorted(
        strict, key=lambda row: int(row["place"])
    )


def test_a_text_with_half_a_character_is_kept_as_an_escape() -> None:
    row = {"kind": "error", "t": 1, "by": "", "id": "\ud800", "guid": "", "text": "größer"}
    (batch,) = ledger.strictly(json.dumps(row | {"new": 1}).encode(), 0)
    (found,) = batch.to_pylist()
    assert (found["id"], found["text"]) == ("\\ud800", "größer")


def test_a_directory_without_a_ledger_is_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="holds no ledger"):
        ledger.plan(str(tmp_path))
    with pytest.raises(LedgerError, match="No such file"):
        ledger.plan(str(tmp_path / "nowhere"))


def test_the_story_has_what_a_judge_looks_at() -> None:
    kinds = [record.kind for record in ledgers.story()]
    assert set(kinds) == set(small_ledger.SHAPES) - {"owner"}
    assert any(isinstance(record, Publish) and record.attempt > 1 for record in ledgers.story())
