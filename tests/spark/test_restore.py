"""Restore on real Spark: rows from anywhere become a datastore that both servers read."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.clock import SystemClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import DamageError, FtstanError, StoreError
from ftstan.cli.store_owner import owning
from ftstan.spark import restore
from ftstan.spark.restore import RestoreOptions, RestoreReport, account_of, make_plan
from ftstan.spark.selection import Selection
from ftstan.stores.file.env import FileEnv, FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.tools.restoring import GUARD, Restoring, find_account
from tests.datastores import server_info
from tests.oracle.gostore import read_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "channel string, sequence bigint, timestamp_ns bigint, data binary, size int, reply string, "
    "crc_ok boolean"
)
BASE = 1_700_000_000_000_000_000

#: Channel, sequence, timestamp, data, size, reply, checksum holds.
Line = tuple[str, int, int, bytes, int, str, bool]


@dataclass(frozen=True, slots=True)
class Lines(Selection):
    """A selection of rows that a test made."""

    lines: tuple[Line, ...] = ()

    def frame(self, spark: SparkSession, columns: str = "", *, once: bool = False) -> DataFrame:
        rows = spark.createDataFrame(list(self.lines), SCHEMA)
        return rows.selectExpr(
            "*", "timestamp_micros(timestamp_ns div 1000) AS timestamp"
        ).repartition(3)


def line(channel: str, n: int, data: bytes | None = None, *, good: bool = True) -> Line:
    body = b"%s %d " % (channel.encode(), n) + b"." * (n % 50) if data is None else data
    return (
        channel,
        n,
        BASE + n * 999 - (n % 5) * 7000,
        body,
        len(body),
        "to" if n % 2 else "",
        good,
    )


def lines(*parts: tuple[str, int, int]) -> tuple[Line, ...]:
    return tuple(line(channel, n) for channel, first, last in parts for n in range(first, last + 1))


@contextmanager
def owned(path: Path) -> Iterator[FileEnv]:
    path.mkdir(exist_ok=True)
    with owning(str(path)) as (owner, _):
        disk = LocalDisk()
        clock = SystemClock()
        yield FileEnv(
            disk, owner.root, clock, FileStoreOptions(), owner, records.Crc(), path=str(path)
        )


def run(spark: SparkSession, path: Path, given: tuple[Line, ...], **more: Any) -> RestoreReport:
    options = RestoreOptions(str(path), **{"slice_bytes": 4000, "step_bytes": 30_000, **more})
    selection = Lines(("rows",), lines=given)
    plan = make_plan(spark, selection, options)
    with owned(path) as env:
        account = account_of(plan, find_account(env.disk, env.root, str(path)), str(path))
        return restore.run(spark, selection, options, Restoring(env, account), info=server_info())


def seen(path: Path) -> list[Line]:
    """What the original reads."""
    view = read_store(path)
    return [
        (os.fsdecode(name), s, m.timestamp, m.data, len(m.data), m.reply.decode(), True)
        for name, channel in sorted(view.channels.items())
        for s, m in sorted(channel.messages.items())
    ]


def test_rows_become_a_datastore_with_their_sequences_timestamps_data_and_replies(
    spark: SparkSession, tmp_path: Path
) -> None:
    given = lines(("big", 101, 700), ("odd [name]", 1, 3), ("small", 7, 30))
    report = run(spark, tmp_path / "store", given)
    assert seen(tmp_path / "store") == sorted(given)
    assert report.messages == len(given)
    assert report.channels["big"] == {"first": 101, "last": 700, "messages": 600}
    assert report.slices > 10
    assert not report.resumed


def test_what_lies_in_two_places_is_written_once_and_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    given = lines(("a", 1, 40))
    report = run(spark, tmp_path / "store", given + given[10:20])
    assert seen(tmp_path / "store") == sorted(given)
    assert report.duplicates == 10


def test_one_sequence_with_two_contents_ends_the_restore(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(DamageError, match='channel "a": sequence 12 has two contents'):
        run(spark, tmp_path / "store", (*lines(("a", 1, 40)), line("a", 12, b"other")))


def test_missing_sequences_are_named_before_anything_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(
        DamageError, match=r"channel 'a': sequences 11 to 12, 21 to 21 are missing"
    ) as raised:
        run(spark, tmp_path / "store", lines(("a", 1, 10), ("a", 13, 20), ("a", 22, 40)))
    assert "--allow-gaps" in raised.value.hint
    assert not (tmp_path / "store").exists()


def test_gaps_that_are_allowed_are_reported_and_so_are_damaged_messages(
    spark: SparkSession, tmp_path: Path
) -> None:
    given = lines(("a", 1, 10), ("a", 13, 40))
    report = run(
        spark,
        tmp_path / "store",
        (*given, line("a", 41, good=False), line("a", 42)),
        allow_gaps=True,
    )
    assert report.missing == {"a": [(11, 12), (41, 41)]}
    assert report.damaged == 1
    assert seen(tmp_path / "store") == sorted((*given, line("a", 42)))


def test_a_damaged_message_ends_a_restore_without_gaps(spark: SparkSession, tmp_path: Path) -> None:
    given = (*lines(("a", 1, 10)), line("a", 11, good=False), line("a", 12))
    with pytest.raises(DamageError, match='channel "a": sequences 11 to 11 are missing'):
        run(spark, tmp_path / "store", given)
    assert (tmp_path / "store" / "server.dat").read_bytes() == GUARD


def test_a_restore_that_was_interrupted_goes_on_behind_its_last_step(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = lines(("a", 1, 900))
    real = Restoring.complete
    calls = []

    def complete(self: Restoring, *words: Any, **more: Any) -> None:
        calls.append(self.account.done)
        if len(calls) == 3:
            raise KeyboardInterrupt
        real(self, *words, **more)

    monkeypatch.setattr(Restoring, "complete", complete)
    with pytest.raises(KeyboardInterrupt):
        run(spark, tmp_path / "store", given)
    report = run(spark, tmp_path / "store", given)
    assert calls[:4] == [0, 1, 2, 2]
    assert report.resumed
    assert seen(tmp_path / "store") == sorted(given)


def test_another_restore_is_not_mixed_into_one_that_was_interrupted(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(DamageError):
        run(spark, tmp_path / "store", (*lines(("a", 1, 40)), line("a", 12, b"other")))
    with pytest.raises(StoreError, match="holds the beginning of another restore"):
        run(spark, tmp_path / "store", lines(("a", 1, 40)), allow_gaps=True)


def test_a_full_disk_at_an_executor_is_one_line(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Restoring, "open_channel", lambda *_: None)
    with pytest.raises(
        FtstanError, match=r"cannot write below .*'a' No such file or directory"
    ) as raised:
        run(spark, tmp_path / "store", lines(("a", 1, 10)))
    assert "storage that every executor sees" in raised.value.hint
