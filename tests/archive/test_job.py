"""The archive job without Spark's own part: slices in, files out, each message once, whatever ends
it where.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from ftstan.spark.archive import ArchiveOptions, job, spool, writing
from ftstan.spark.archive import table as tables
from ftstan.spark.archive.spool import ArchiveError
from ftstan.spark.archive.table import locked
from tests.archive.archives import Archive, expected, in_process
from tests.archived_slices import NOON, Message, messages, name_cluster, set_aside
from tests.kill_injector import Killed, Mortal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DAY = 86_400_000_000_000
FORMATS = ["delta", "parquet"]


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    in_process(monkeypatch)
    return Archive(tmp_path)


@pytest.mark.parametrize("form", FORMATS)
def test_slices_become_files_by_channel_and_day_and_leave_the_spool(
    archive: Archive, form: str
) -> None:
    rows = messages(1, 10, step=DAY // 4)
    archive.put("foo", 1, rows[:6])
    archive.put("foo", 2, rows[6:])
    archive.put("bar", 1, messages(1, 3))
    report = archive.run(format=form)
    assert (report.format, report.slices, report.messages, report.commits, report.ok) == (
        form,
        3,
        13,
        1,
        True,
    )
    assert archive.waiting == []
    assert archive.rows("foo") == expected(rows)
    assert archive.rows("bar") == expected(messages(1, 3))
    foo = sorted((f for f in archive.files if f.channel == "foo"), key=lambda f: f.first)
    assert [(f.date, f.first, f.last, f.rows) for f in foo] == [
        ("2026-11-22", 1, 2, 2),
        ("2026-11-23", 3, 6, 4),
        ("2026-11-24", 7, 10, 4),
    ]
    assert all(f.path.startswith(f"channel=foo/date={f.date}/part-") for f in foo)
    assert report.files == len(archive.files)
    assert report.bytes == sum(f.size for f in archive.files)
    assert not (archive.table / "_ftstan/staging").glob("*/*") or not list(
        (archive.table / "_ftstan/staging").glob("*")
    )


@pytest.mark.parametrize("form", FORMATS)
def test_late_duplicate_and_overlapping_slices_are_merged(archive: Archive, form: str) -> None:
    rows = messages(1, 100)
    archive.put("foo", 1, rows[:30])
    archive.put("foo", 3, rows[60:80])
    first = archive.run(format=form)
    archive.put("foo", 1, rows[:30])
    archive.put("foo", 2, rows[20:70])
    archive.put("foo", 4, rows[75:])
    second = archive.run()
    assert archive.rows("foo") == expected(rows)
    assert (first.messages, second.messages, second.duplicates, second.ok) == (50, 50, 55, True)
    assert archive.waiting == []
    third = archive.run()
    assert (third.messages, third.slices, third.commits) == (0, 0, 0)


@pytest.mark.parametrize("form", FORMATS)
def test_one_sequence_with_two_contents_is_told_and_kept_aside_and_chosen_by_nobody(
    archive: Archive, form: str
) -> None:
    rows = messages(1, 10)
    archive.put("foo", 1, rows)
    archive.put("foo", 1, [*rows[:4], Message(5, b"other", rows[4].at), *rows[5:]])
    report = archive.run(format=form)
    assert archive.rows("foo") == expected([row for row in rows if row.sequence != 5])
    (conflict,) = report.conflicts
    assert (
        conflict.channel,
        conflict.first,
        conflict.last,
        conflict.sequences,
        conflict.archived,
    ) == (
        "foo",
        5,
        5,
        1,
        0,
    )
    assert (report.ok, report.status, report.conflicts_known) == (False, 1, 2)
    assert sorted(row["data"] for row in archive.conflicts) == [b"message 5 ", b"other"]
    assert all(row["source"].startswith("slices/foo/1-") for row in archive.conflicts)
    assert archive.waiting == []
    # The same slice once more: what was disputed stays so.
    archive.put("foo", 1, rows)
    again = archive.run()
    assert (again.messages, again.duplicates, again.conflicts_known, again.ok) == (0, 10, 2, True)


def test_a_content_that_comes_after_another_was_archived_replaces_nothing(archive: Archive) -> None:
    rows = messages(1, 10)
    archive.put("foo", 1, rows)
    archive.run()
    archive.put("foo", 2, [Message(10, b"other", rows[9].at), *messages(11, 12)])
    report = archive.run()
    assert archive.rows("foo") == expected([*rows, *messages(11, 12)])
    assert [c.archived for c in report.conflicts] == [1]
    assert sorted((row["data"], row["archived"]) for row in archive.conflicts) == [
        (b"message 10 ", True),
        (b"other", False),
    ]


# ---- verification
# ------------------------------------------------------------------------------------------------


def _flip(archive: Archive, path: str, offset: int, name: str = "msgs.2.dat") -> None:
    file = archive.spool / path / name
    data = bytearray(file.read_bytes())
    data[offset] ^= 1
    file.write_bytes(data)


def _edit(archive: Archive, path: str, **values: Any) -> None:
    file = archive.spool / path / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def _digest_of(archive: Archive, path: str) -> str:
    return hashlib.sha256((archive.spool / path / "msgs.2.dat").read_bytes()).hexdigest()


def _bad_record(archive: Archive, path: str) -> None:
    """Damage that was there when the slice was taken: the digest is that of the damaged bytes."""
    _flip(archive, path, -2)
    _edit(archive, path, sha256=_digest_of(archive, path))


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda a, p: _flip(a, p, 40), "msgs.2.dat: SHA-256 differs from the manifest's"),
        (
            lambda a, p: os.truncate(a.spool / p / "msgs.2.dat", 100),
            "msgs.2.dat: 100 bytes, the manifest says",
        ),
        (_bad_record, "msgs.2.dat: corrupted data, expected crc to be"),
        (lambda a, p: _edit(a, p, count=11), "msgs.2.dat: 10 messages 11..20 that end at offset"),
        (lambda a, p: _edit(a, p, first=10), "the manifest says 10 messages 10..20"),
        (lambda a, p: _edit(a, p, channel="bar"), "record of another channel"),
        (lambda a, p: os.unlink(a.spool / p / "msgs.2.dat"), "No such file or directory"),
        (
            lambda a, p: (a.spool / p / "manifest.json").write_text("{}"),
            "the manifest cannot be read",
        ),
    ],
)
def test_a_slice_that_fails_a_check_stays_and_holds_up_no_other(
    archive: Archive, harm: Callable[[Archive, str], object], why: str
) -> None:
    archive.put("foo", 1, messages(1, 10))
    path = archive.put("foo", 2, messages(11, 20))
    archive.put("foo", 3, messages(21, 30))
    harm(archive, path)
    report = archive.run()
    (failed,) = report.failed
    assert failed.path == path
    assert why in failed.why
    assert (report.ok, report.messages, report.slices) == (False, 20, 2)
    assert archive.rows("foo") == expected(messages(1, 10) + messages(21, 30))
    assert os.path.isdir(archive.spool / path)


def test_an_index_that_is_gone_or_wrong_is_made_anew_from_the_data(archive: Archive) -> None:
    _flip(archive, archive.put("foo", 2, messages(1, 10)), 50, "msgs.2.idx")
    os.unlink(archive.spool / archive.put("foo", 3, messages(11, 20)) / "msgs.3.idx")
    report = archive.run()
    assert report.ok
    assert archive.rows("foo") == expected(messages(1, 20))


def test_late_bytes_of_a_former_owner_are_no_messages(archive: Archive) -> None:
    """The slice was linked, and whoever had it open writes on: also after the manifest was made."""
    archive.put("foo", 1, messages(1, 10))
    path = archive.put("foo", 2, messages(11, 20))
    with (archive.spool / path / "msgs.2.dat").open("ab") as file:
        file.write(b"late" * 100)
    report = archive.run()
    assert report.ok
    assert archive.rows("foo") == expected(messages(1, 20))


def test_holes_in_a_slice_are_noted_and_no_error(archive: Archive) -> None:
    archive.put("foo", 1, messages(1, 3) + messages(8, 9))
    report = archive.run()
    assert report.ok
    assert [note.partition(": ")[2] for note in report.notes] == [
        "4 sequences between 1 and 9 were missing"
    ]


def test_a_file_that_reads_back_otherwise_than_it_was_written_stops_the_job(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.put("foo", 1, messages(1, 10))
    real = writing.read_batches

    def lie(path: str) -> Any:
        for batch in real(path):
            yield batch.slice(1)

    monkeypatch.setattr(writing, "read_batches", lie)
    with pytest.raises(ArchiveError, match="what was read back is not what was written"):
        archive.run()
    monkeypatch.undo()
    in_process(monkeypatch)
    assert len(archive.waiting) == 1
    assert archive.run().messages == 10


# ---- ended half way
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
def test_killed_before_any_change_and_run_again_the_result_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    rows = messages(1, 30, step=DAY // 10)
    for step in range(500):
        with monkeypatch.context() as m:
            in_process(m)
            archive = Archive(tmp_path / str(step))
            archive.put("foo", 1, rows[:20])
            archive.put("foo", 2, rows[10:])
            archive.put("foo", 2, [Message(30, b"other", rows[29].at)])
            life = [step]
            died = False
            mortal = Mortal(os, life)
            for module in (job, tables, spool):
                m.setattr(module, "os", mortal)
            m.setattr(job, "shutil", Mortal(shutil, life))
            try:
                archive.run(format=form)
            except Killed:
                died = True
        with monkeypatch.context() as m:
            in_process(m)
            # Nothing is gone that is not in the table: what the spool has lost, the table has.
            if len(archive.waiting) < 3:
                assert archive.rows("foo") == expected(rows[:29]), step
            archive.run()
            assert archive.rows("foo") == expected(rows[:29]), step
            assert sorted(row["data"] for row in archive.conflicts) == [b"message 30 ", b"other"], (
                step
            )
            assert archive.waiting == []
            assert not os.path.exists(archive.table / "_ftstan/commit.json")
        shutil.rmtree(archive.folder)
        if not died:
            assert step > 10
            return
    raise AssertionError("it never ended")


@pytest.mark.parametrize("form", FORMATS)
def test_a_batch_that_is_in_the_table_is_not_added_again(archive: Archive, form: str) -> None:
    archive.put("foo", 1, messages(1, 10))
    archive.run(format=form)
    log = tables.open_log(str(archive.table), form)
    before = log.files()
    # Somebody has compacted the table meanwhile: to add the batch again would double its messages.
    again = replace(before[0], path=f"{before[0].path}.again.parquet")
    shutil.copy(archive.table / before[0].path, archive.table / again.path)
    log.commit(log.batch(), [again])
    assert log.files() == before
    log.commit(log.batch() + 1, [again])
    assert len(log.files()) == 2


def test_a_run_that_ended_before_it_decided_leaves_nothing_in_the_table(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.put("foo", 1, messages(1, 10))
    with monkeypatch.context() as m:
        m.setattr(job._Job, "_decide", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            archive.run()
    assert list(archive.table.rglob("channel=*")) == []
    assert list(archive.table.rglob("*.parquet")) != []
    report = archive.run()
    assert not report.resumed
    assert len(list(archive.table.rglob("*.parquet"))) == report.files == 1


def test_a_run_that_ended_after_it_decided_is_finished_by_the_next(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.put("foo", 1, messages(1, 10))
    with monkeypatch.context() as m:
        m.setattr(job._Job, "_place", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            archive.run()
    assert len(archive.waiting) == 1
    archive.table.rename(archive.folder / "moved")
    archive.table = archive.folder / "moved"
    report = archive.run()
    assert (report.resumed, report.messages) == (True, 0)
    assert archive.rows("foo") == expected(messages(1, 10))
    assert archive.waiting == []


def test_two_jobs_at_once_are_refused(archive: Archive) -> None:
    archive.put("foo", 1, messages(1, 10))
    with locked(str(archive.table)), pytest.raises(ArchiveError, match="another job is archiving"):
        archive.run()


# ---- what is archived where
# --------------------------------------------------------------------------------------


def test_slices_of_another_cluster_stay_and_are_told(archive: Archive) -> None:
    name_cluster(archive.folder / "store", "north")
    archive.put("foo", 1, messages(1, 10))
    archive.run()
    name_cluster(archive.folder / "store", "south")
    path = archive.put("foo", 1, messages(1, 10, tag="south"))
    report = archive.run()
    assert [f.path for f in report.failed] == [path]
    assert 'of cluster "south", the archive is of "north"' in report.failed[0].why
    assert archive.waiting == [path]


def test_a_new_table_takes_no_guess_between_two_clusters(archive: Archive) -> None:
    for cluster in ("north", "south"):
        name_cluster(archive.folder / "store", cluster)
        archive.put("foo", 1, messages(1, 10, tag=cluster))
    with pytest.raises(ArchiveError, match="slices of several clusters: north, south"):
        archive.run()
    report = archive.run(cluster="south")
    assert (report.messages, len(report.failed)) == (10, 1)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "name",
    [
        "a b",
        "x=y",
        "per%20cent",
        "123",
        "_hidden",
        ".dot"[1:] + "-",
        "ünïcode",
        "__HIVE_DEFAULT_PARTITION__",
        "q" * 240,
        "'\"$",
    ],
)
def test_a_channel_of_any_name_is_archived_under_its_name(
    archive: Archive, form: str, name: str
) -> None:
    archive.put(name, 1, messages(1, 3))
    archive.run(format=form)
    assert {f.channel for f in archive.files} == {name}
    assert archive.rows(name) == expected(messages(1, 3))


def test_two_names_that_differ_in_odd_letters_only_do_not_meet() -> None:
    for form in FORMATS:
        assert tables.directory_of("a b", "2026-01-01", form) != tables.directory_of(
            "a_b", "2026-01-01", form
        )
        assert tables.directory_of("a*b", "2026-01-01", form) != tables.directory_of(
            "a+b", "2026-01-01", form
        )


def test_times_before_1970_and_backwards_have_their_own_day(archive: Archive) -> None:
    rows = [
        Message(1, b"a", NOON),
        Message(2, b"b", -1),
        Message(3, b"c", NOON + 1),
        Message(4, b"d", -DAY - 1),
    ]
    archive.put("foo", 1, rows)
    archive.run()
    assert sorted((f.date, f.rows) for f in archive.files) == [
        ("1969-12-30", 1),
        ("1969-12-31", 1),
        ("2026-11-22", 2),
    ]
    assert archive.rows("foo") == expected(rows)


def test_sequences_beyond_what_a_double_holds_are_exact(archive: Archive) -> None:
    start = (1 << 53) + 1
    rows = [Message(start + n, b"x", NOON) for n in range(3)]
    archive.put("foo", 1, rows)
    archive.run()
    archive.put("foo", 2, [*rows[1:], Message(start + 3, b"y", NOON)])
    report = archive.run()
    assert (report.messages, report.duplicates) == (1, 2)
    assert [row[0] for row in archive.rows("foo")] == [start + n for n in range(4)]


def test_files_are_closed_at_their_size_and_batches_at_theirs(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_GROUP_BYTES", 1)
    monkeypatch.setattr("ftstan.spark.archive.slices.CHUNK", 1000)
    for n in range(4):
        archive.put("foo", n, [Message(100 * n + i, os.urandom(100), NOON) for i in range(1, 101)])
    report = archive.run(target_file_bytes=3000, batch_bytes=20_000)
    assert report.commits > 1
    assert report.files > 8
    assert sum(f.rows for f in archive.files) == 400


def test_only_the_named_channels_are_archived(archive: Archive) -> None:
    archive.put("foo", 1, messages(1, 3))
    path = archive.put("bar", 1, messages(1, 3))
    assert archive.run(channels=("foo",)).messages == 3
    assert archive.waiting == [path]


def test_a_dry_run_counts_and_touches_nothing(archive: Archive) -> None:
    archive.put("foo", 1, messages(1, 3))
    report = archive.run(dry_run=True)
    assert (report.dry_run, report.slices, report.messages, report.files) == (True, 1, 3, 0)
    assert not archive.table.exists()


def test_slices_can_be_kept(archive: Archive) -> None:
    archive.put("foo", 1, messages(1, 3))
    archive.run(keep_slices=True)
    assert len(archive.waiting) == 1
    assert archive.run().duplicates == 3
    assert archive.waiting == []


def test_an_empty_slice_leaves_the_spool(archive: Archive) -> None:
    archive.put("foo", 1, [])
    report = archive.run()
    assert (report.ok, report.messages) == (True, 0)
    assert archive.waiting == []


def test_a_store_with_another_polynomial_is_archived_by_its_manifest(archive: Archive) -> None:
    words = set_aside(archive.folder / "store", "foo", 1, messages(1, 5), polynomial=0x82F63B78)
    spool.take(str(archive.spool), *words, polynomial=0x82F63B78)
    assert archive.run().messages == 5


# ---- a datastore itself
# ------------------------------------------------------------------------------------------


def _store(archive: Archive, *slices: list[Message]) -> Path:
    store = archive.folder / "backup"
    name_cluster(store, "north")
    for number, rows in enumerate(slices, 1):
        for path in set_aside(store, "foo", number, rows)[1:]:
            os.rename(path, path.removesuffix(".bak"))
    return store


def test_a_backup_of_a_datastore_is_merged_with_what_its_server_archived(archive: Archive) -> None:
    store = _store(archive, messages(31, 40), messages(41, 60))
    name_cluster(archive.folder / "store", "north")
    archive.put("foo", 1, messages(1, 30))
    archive.put("foo", 2, messages(31, 40))
    archive.run()
    before = sorted(p.name for p in store.rglob("*"))
    assert archive.run_on(store, dry_run=True).messages == 30
    report = archive.run_on(store)
    assert (report.messages, report.duplicates, report.ok) == (20, 10, True)
    assert archive.rows("foo") == expected(messages(1, 60))
    assert sorted(p.name for p in store.rglob("*")) == before
    assert archive.run_on(store).duplicates == 30


def test_a_damaged_channel_of_a_datastore_is_left_out_and_told(archive: Archive) -> None:
    store = _store(archive, messages(1, 10), messages(11, 20))
    data = bytearray((store / "foo/msgs.1.dat").read_bytes())
    data[60] ^= 1
    (store / "foo/msgs.1.dat").write_bytes(data)
    report = archive.run_on(store)
    (failed,) = report.failed
    assert (failed.channel, report.messages, report.ok) == ("foo", 0, False)
    assert "foo/msgs.1.dat at offset" in failed.why
    assert archive.files == []


def test_a_datastore_of_another_cluster_is_refused(archive: Archive) -> None:
    store = _store(archive, messages(1, 10))
    archive.run_on(store)
    name_cluster(store, "south")
    with pytest.raises(ArchiveError, match=r'is of cluster "north", datastore .* of "south"'):
        archive.run_on(store)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"format": "iceberg"}, 'table format "iceberg" is not known'),
        ({"target_file_bytes": 0}, "target_file_bytes is 0"),
        ({"partitions": -1}, "partitions is -1"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ArchiveError, match=why):
        ArchiveOptions(**options)


def test_a_table_keeps_its_format(archive: Archive) -> None:
    archive.put("foo", 1, messages(1, 3))
    archive.run(format="parquet")
    with pytest.raises(ArchiveError, match="is a parquet table, not delta"):
        archive.run(format="delta")


def test_a_directory_of_something_else_is_not_written_to(archive: Archive) -> None:
    archive.put("foo", 1, messages(1, 3))
    archive.table.mkdir()
    (archive.table / "letters").write_text("dear")
    with pytest.raises(ArchiveError, match="is not empty and holds no archive"):
        archive.run()
    assert os.listdir(archive.table) == ["letters"]


def test_a_delta_table_of_something_else_is_not_written_to(archive: Archive) -> None:
    archive.put("foo", 1, messages(1, 3))
    write_deltalake(str(archive.table), pa.table({"letter": ["a"]}))
    with pytest.raises(ArchiveError, match="is a Delta table of something else"):
        archive.run()
    assert len(archive.waiting) == 1


def test_a_delta_log_that_cannot_be_read_is_one_line(archive: Archive) -> None:
    archive.put("foo", 1, messages(1, 3))
    archive.run()
    for name in (archive.table / "_delta_log").iterdir():
        name.write_text("junk")
    archive.put("foo", 2, messages(4, 6))
    with pytest.raises(ArchiveError, match="the Delta log cannot be read") as error:
        archive.run()
    assert "\n" not in str(error.value)
    assert len(archive.waiting) == 1


def test_storage_that_fails_is_one_line(archive: Archive) -> None:
    archive.put("foo", 1, messages(1, 3))
    (archive.spool / "slices").rename(archive.folder / "away")
    (archive.spool / "slices").touch()
    with pytest.raises(ArchiveError, match="slices: Not a directory"):
        archive.run()


def test_a_report_is_json(archive: Archive) -> None:
    archive.put("foo", 1, messages(1, 3))
    told: list[tuple[int, int]] = []
    report = archive.run(progress=lambda *seen: told.append(seen))
    assert json.loads(json.dumps(report.to_dict()))["messages"] == 3
    assert told[0][0] == 0
    assert told[-1] == (told[-1][1],) * 2
