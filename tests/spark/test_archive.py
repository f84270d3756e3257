"""The archive job on Spark itself: workers write, the driver commits, and ``stan`` reads what came
of it.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from ftstan.spark.archive import job
from ftstan.spark.archive.spool import ArchiveError
from tests.archive.archives import Archive
from tests.archived_slices import NOON, Message, messages
from tests.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

DAY = 86_400_000_000_000


def stan(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("stan").options(path=str(path), **options).load()


def told(frame: DataFrame) -> list[tuple[str, int, bytes]]:
    return sorted((row.channel, row.sequence, bytes(row.data)) for row in frame.collect())


def test_slices_of_many_channels_become_a_table_that_stan_reads(
    spark: SparkSession, tmp_path: Path
) -> None:
    archive = Archive(tmp_path)
    rows = messages(1, 300, step=DAY // 200)
    names = ["foo", "bar.baz", "a b"]
    for name in names:
        archive.put(name, 1, rows[:120])
        archive.put(name, 2, rows[100:200])
        archive.put(name, 4, rows[200:])
    archive.put("foo", 9, [Message(7, b"other", NOON)])
    before = told(stan(spark, archive.spool))
    seen: list[tuple[int, int]] = []
    report = archive.run(spark, lambda *x: seen.append(x), partitions=2)
    assert (report.messages, report.duplicates, report.slices) == (3 * 300 - 1, 3 * 20, 10)
    assert [(c.channel, c.first, c.sequences) for c in report.conflicts] == [("foo", 7, 1)]
    assert seen[-1][0] == seen[-1][1] > 0
    assert archive.waiting == []
    everything = sorted(
        (name, r.sequence, r.data)
        for name in names
        for r in rows
        if (name, r.sequence) != ("foo", 7)
    )
    assert told(stan(spark, archive.table)) == before == everything
    # Filters are pushed down, and the result is the same.
    frame = stan(
        spark, archive.table, subscribe="foo", startingOffsets='{"foo": 5}', pushFilters="true"
    )
    assert [n for _, n, _ in told(frame.where("sequence < 10"))] == [5, 6, 8, 9]


def test_every_reader_finds_channels_and_days_in_plain_parquet(
    spark: SparkSession, tmp_path: Path
) -> None:
    archive = Archive(tmp_path)
    archive.put("a b", 1, messages(1, 30, step=DAY // 10))
    archive.put("x=y", 1, messages(1, 5))
    archive.run(spark, format="parquet", partitions=2)
    plain = spark.read.parquet(str(archive.table))
    found = {
        (row.channel, str(row.date), row.sequence)
        for row in plain.select("channel", "date", "sequence").collect()
    }
    assert {(name, n) for name, _, n in found} == {("a b", n) for n in range(1, 31)} | {
        ("x=y", n) for n in range(1, 6)
    }
    assert {(name, day) for name, day, _ in found} == {(f.channel, f.date) for f in archive.files}


def test_a_worker_that_fails_is_one_line_and_costs_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(tmp_path)
    archive.put("foo", 1, messages(1, 10))

    def broken(*_: object) -> Callable[[int], str]:
        def work(share: int) -> str:
            raise RuntimeError("no such luck")

        return work

    with monkeypatch.context() as m:
        m.setattr(job, "_worker", broken)
        with pytest.raises(ArchiveError, match="Spark ended the archive job") as error:
            archive.run(spark)
    assert "\n" not in str(error.value)
    assert len(archive.waiting) == 1
    assert archive.run(spark).messages == 10


def test_messages_of_megabytes_are_archived_and_read(spark: SparkSession, tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    rows = [Message(n, os.urandom(3 << 20), NOON + n) for n in range(1, 21)]
    archive.put("big", 1, rows)
    report = archive.run(spark)
    assert report.messages == 20
    found = stan(spark, archive.table).selectExpr("sequence", "size", "length(data) as n").collect()
    assert sorted((row.sequence, row.size, row.n) for row in found) == [
        (n, 3 << 20, 3 << 20) for n in range(1, 21)
    ]


def test_the_programs_on_the_page_run(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    archive = Archive(tmp_path)
    archive.put("orders", 1, messages(1, 10))
    monkeypatch.setattr("ftstan.spark.session.session", lambda: spark)
    programs = re.findall(
        r"```python\n(.*?)```",
        (ROOT / "docs/spark-archive.md").read_text(encoding="utf-8"),
        re.DOTALL,
    )
    assert len(programs) == 2
    for program in programs:
        text = program.replace("/var/lib/ftstan/spool", str(archive.spool))
        exec(text.replace("/srv/archive/orders", str(archive.table)), {})  # our own page
    out = capsys.readouterr().out
    assert "10 [] []" in out
    assert "| orders|   10|" in out
