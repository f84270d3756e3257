"""Reading archives and spools through the source's own seam, without a JVM."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from ftstan.base.errors import DamageError, FtstanError, StoreError
from ftstan.spark.archive import reading, writing
from ftstan.spark.archive.spool import ArchiveError
from ftstan.spark.decode import TYPES
from ftstan.spark.keys import NO_KEYS
from ftstan.spark.log import Bounds
from ftstan.spark.options import ReadOptions
from ftstan.spark.places import kind_of, opened
from ftstan.spark.report import ReadingKind, ReadingReport
from tests.archive.archives import Archive, in_process
from tests.archived_slices import NOON, Message, messages

if TYPE_CHECKING:
    from pathlib import Path

FORMATS = ["delta", "parquet"]
COLUMNS = (
    "channel",
    "sequence",
    "timestamp",
    "timestamp_ns",
    "data",
    "size",
    "reply",
    "crc_ok",
    "slice",
)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    in_process(monkeypatch)
    return Archive(tmp_path)


def read(
    path: Path, columns: tuple[str, ...] = COLUMNS, report: ReadingReport | None = None, **more: Any
) -> list[dict[str, Any]]:
    """Rows of a path by channel and sequence.

    ``bounds``, ``max_bytes``, ``min_parts``, ``fail``.
    """
    place = opened(ReadOptions.of({"path": str(path)}))
    wanted = {name: more.get("bounds", Bounds()) for name in place.channels}
    pieces = place.plan(
        wanted, max_bytes=more.get("max_bytes", 1 << 30), min_parts=more.get("min_parts", 1)
    )
    found: list[dict[str, Any]] = []
    for piece in pieces:
        for batch in piece.read(
            columns,
            report=report or ReadingReport(),
            fail_on_data_loss=more.get("fail", True),
            refuse_encrypted=more.get("refuse"),
            keys=more.get("keys", NO_KEYS),
        ):
            assert batch.schema == pa.schema([(name, TYPES[name]) for name in columns])
            found += batch.to_pylist()
    return sorted(found, key=lambda row: (row.get("channel", ""), row.get("sequence", 0)))


@pytest.mark.parametrize("place", ["spool", *FORMATS])
def test_a_place_has_the_columns_and_rows_of_its_messages(archive: Archive, place: str) -> None:
    rows = [Message(n, b"data %d" % n, NOON + n * 1_000_000_007, b"reply") for n in range(1, 21)]
    archive.put("foo", 7, rows[:15])
    archive.put("foo", 8, rows[10:])
    archive.put("a b", 1, messages(1, 2))
    path = archive.spool
    if place != "spool":
        archive.run(format=place)
        path = archive.table
    assert kind_of(str(path)) == place
    found = read(path)
    assert [row["channel"] for row in found] == ["a b"] * 2 + ["foo"] * 20
    for row, message in zip(found[2:], rows, strict=True):
        assert (row["sequence"], row["data"], row["timestamp_ns"]) == (
            message.sequence,
            message.data,
            message.at,
        )
        assert (row["size"], row["reply"], row["crc_ok"]) == (len(message.data), "reply", True)
        assert row["slice"] in {7, 8}
        assert row["timestamp"].timestamp() == pytest.approx(message.at / 1e9, abs=1e-5)
    assert read(path, ("sequence",))[-1] == {"sequence": 20}
    assert len(read(path, ())) == 22
    ends = opened(ReadOptions.of({"path": str(path)})).ends("foo")
    assert ends == (1, 21)


@pytest.mark.parametrize("place", ["spool", *FORMATS])
def test_bounds_are_kept_to_the_message(archive: Archive, place: str) -> None:
    archive.put("foo", 1, messages(1, 50))
    archive.put("foo", 2, messages(51, 100))
    path = archive.spool
    if place != "spool":
        archive.run(format=place)
        path = archive.table
    bounds = Bounds(first=20, last=80, since=NOON + 30_000_000_000, until=NOON + 60_000_000_000)
    assert [row["sequence"] for row in read(path, bounds=bounds)] == list(range(30, 61))
    assert [
        row["sequence"] for row in read(path, ("sequence", "size"), bounds=Bounds(first=99))
    ] == [99, 100]
    assert read(path, bounds=Bounds(first=101)) == []


def test_what_the_bounds_exclude_is_not_read(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_GROUP_BYTES", 1)
    monkeypatch.setattr("ftstan.spark.archive.slices.CHUNK", 10_000)
    archive.put("foo", 1, [Message(n, os.urandom(1000), NOON + n) for n in range(1, 501)])
    archive.put("bar", 1, [Message(n, os.urandom(1000), NOON + n) for n in range(1, 501)])
    archive.run()
    whole = ReadingReport()
    some = ReadingReport()
    read(archive.table, report=whole)
    rows = read(archive.table, report=some, bounds=Bounds(since=NOON + 100, until=NOON + 104))
    assert len(rows) == 10
    assert some.data_bytes * 10 < whole.data_bytes
    assert whole.data_bytes > 1_000_000


@pytest.mark.parametrize("form", FORMATS)
def test_a_moved_archive_reads_as_before(archive: Archive, form: str) -> None:
    archive.put("foo", 1, messages(1, 10))
    archive.put("sp ace", 1, messages(1, 10))
    archive.run(format=form)
    before = read(archive.table)
    archive.table.rename(archive.folder / "else where")
    assert read(archive.folder / "else where") == before
    assert len(before) == 20


def test_plain_files_without_the_jobs_notes_are_an_archive_still(archive: Archive) -> None:
    for name in ("foo", "a b", "x" * 240):
        archive.put(name, 1, messages(1, 10))
    archive.run(format="parquet")
    before = read(archive.table)
    shutil.rmtree(archive.table / "_ftstan")
    assert kind_of(str(archive.table)) == "parquet"
    assert read(archive.table) == before


def test_a_large_file_is_read_in_parts(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_GROUP_BYTES", 1)
    monkeypatch.setattr("ftstan.spark.archive.slices.CHUNK", 2_000)
    archive.put("foo", 1, messages(1, 500))
    archive.run()
    place = opened(ReadOptions.of({"path": str(archive.table)}))
    pieces = place.plan({"foo": Bounds()}, max_bytes=1 << 30, min_parts=4)
    assert len(pieces) >= 4
    assert [row["sequence"] for row in read(archive.table, min_parts=4)] == list(range(1, 501))


def test_a_file_that_went_away_is_loss(archive: Archive) -> None:
    archive.put("foo", 1, messages(1, 10))
    archive.put("bar", 1, messages(1, 10))
    archive.run()
    (gone,) = (f.path for f in archive.files if f.channel == "foo")
    os.unlink(archive.table / gone)
    with pytest.raises(StoreError, match="the file went away"):
        read(archive.table)
    report = ReadingReport()
    assert len(read(archive.table, report=report, fail=False)) == 10
    assert [(f.kind, f.file) for f in report.findings] == [(ReadingKind.LOSS, gone)]


def test_a_file_that_is_no_parquet_is_one_line_that_names_it(archive: Archive) -> None:
    archive.put("foo", 1, messages(1, 10))
    archive.run()
    (file,) = archive.files
    (archive.table / file.path).write_bytes(b"junk")
    with pytest.raises(FtstanError, match=file.path) as error:
        read(archive.table)
    assert "\n" not in str(error.value)


def test_a_broken_log_is_one_line_that_names_it(archive: Archive) -> None:
    archive.put("foo", 1, messages(1, 10))
    archive.run(format="parquet")
    (log,) = (archive.table / "_ftstan/log").iterdir()
    log.write_text("junk")
    with pytest.raises(ArchiveError, match=log.name):
        read(archive.table)


# ---- spools
# --------------------------------------------------------------------------------------------------


def test_damage_in_a_spool_is_told_with_its_file_and_the_rest_is_read(archive: Archive) -> None:
    archive.put("foo", 1, messages(1, 10))
    path = archive.put("foo", 2, messages(11, 20))
    archive.put("foo", 3, messages(21, 30))
    file = archive.spool / path / "msgs.2.dat"
    data = bytearray(file.read_bytes())
    data[50] ^= 1
    file.write_bytes(data)
    report = ReadingReport()
    rows = read(archive.spool, report=report)
    assert [row["sequence"] for row in rows] == [*range(1, 11), *range(21, 31)]
    (finding,) = report.findings
    assert (finding.kind, finding.file) == (ReadingKind.DAMAGE, path)
    assert "SHA-256 differs" in finding.text
    with pytest.raises(DamageError):
        read(archive.spool, report=ReadingReport(strict=True))


def test_a_sequence_with_two_contents_in_a_spool_is_told_and_not_given(archive: Archive) -> None:
    one = archive.put("foo", 1, messages(1, 3))
    two = archive.put("foo", 2, [Message(3, b"other", NOON)])
    report = ReadingReport()
    assert [row["sequence"] for row in read(archive.spool, report=report)] == [1, 2]
    (finding,) = report.findings
    assert (finding.kind, finding.sequence) == (ReadingKind.CONFLICT, 3)
    assert {one, two} <= {
        finding.file,
        *finding.text.removesuffix(": none is given").split(" than in ")[1:],
    }


def test_a_slice_without_a_manifest_is_told(archive: Archive) -> None:
    archive.put("foo", 1, messages(1, 3))
    path = archive.put("foo", 2, messages(4, 6))
    os.unlink(archive.spool / path / "manifest.json")
    report = ReadingReport()
    assert len(read(archive.spool, report=report)) == 3
    assert [f.file for f in report.findings] == [path]


def test_a_slice_that_the_archive_job_took_meanwhile_is_loss(archive: Archive) -> None:
    archive.put("foo", 1, messages(1, 3))
    path = archive.put("foo", 2, messages(4, 6))
    place = reading.SpoolSnapshot(str(archive.spool))
    shutil.rmtree(archive.spool / path)
    (piece,) = place.plan({"foo": Bounds()}, max_bytes=1 << 30, min_parts=1)
    with pytest.raises(StoreError, match="went away"):
        list(
            piece.read(
                ("sequence",),
                report=ReadingReport(),
                fail_on_data_loss=True,
                refuse_encrypted=False,
                keys=NO_KEYS,
            )
        )
    report = ReadingReport()
    batches = piece.read(
        ("sequence",), report=report, fail_on_data_loss=False, refuse_encrypted=False, keys=NO_KEYS
    )
    assert sum(batch.num_rows for batch in batches) == 3
    assert [f.kind for f in report.findings] == [ReadingKind.LOSS]
