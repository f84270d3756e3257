"""Archives of encrypted slices: what their marks say, and that no run changes it in silence."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from ftstan.base.environment import KEY_VARIABLE
from ftstan.base.errors import DamageError, StoreError
from ftstan.spark.archive import table as tables
from ftstan.spark.archive.spool import ArchiveError
from ftstan.spark.keys import KeySource
from ftstan.spark.report import ReadingReport
from tests.archive.archives import Archive, in_process
from tests.archive.test_reading import read
from tests.archived_slices import NOON, Message
from tests.unit.spark.test_keys import key_file, sealed

if TYPE_CHECKING:
    from pathlib import Path

FORMATS = ["delta", "parquet"]


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    in_process(monkeypatch)
    made = Archive(tmp_path)
    made.put("foo", 1, [encrypted(n) for n in range(1, 4)])
    return made


def encrypted(n: int, key: bytes = b"key") -> Message:
    return Message(n, sealed(key, b"foo", b"data %d" % n), NOON + n * 1_000_000_000)


def mark_of(archive: Archive) -> set[str]:
    """What the table and each of its files say."""
    said = json.loads((archive.table / "_ftstan" / "table.json").read_text())["payloads"]
    files = (pq.ParquetFile(archive.table / file.path) for file in archive.files)
    return {said, *((f.metadata.metadata or {})[tables.PAYLOADS_KEY].decode() for f in files)}


@pytest.mark.parametrize("form", FORMATS)
def test_with_keys_an_archive_holds_what_clients_sent_and_says_so(
    archive: Archive, form: str, tmp_path: Path
) -> None:
    report = archive.run(format=form, key_file=key_file(tmp_path, "key"))
    assert report.failed == []
    assert [data for _, data, _ in archive.rows("foo")] == [b"data 1", b"data 2", b"data 3"]
    assert mark_of(archive) == {"PLAIN"}
    # Whoever reads it needs no key, and a key is no harm.
    keys = KeySource.of(key_file(tmp_path, "key"))
    assert read(archive.table) == read(archive.table, keys=keys)
    # A later run without keys does not put encrypted payloads beside them.
    archive.put("foo", 2, [encrypted(4)])
    (failed,) = archive.run().failed
    assert "look encrypted" in failed.why
    assert len(archive.waiting) == 1
    assert len(archive.rows("foo")) == 3
    assert archive.run(key_file=key_file(tmp_path, "key")).failed == []
    assert archive.rows("foo")[-1][1] == b"data 4"
    with pytest.raises(ArchiveError, match="marked PLAIN"):
        archive.run(payloads="stored")


@pytest.mark.parametrize("form", FORMATS)
def test_an_archive_of_what_is_stored_keeps_its_mark_and_is_read_with_keys(
    archive: Archive, form: str, tmp_path: Path
) -> None:
    archive.put("foo", 2, [Message(4, b"plain, from before", NOON)])
    archive.run(format=form, payloads="stored")
    archive.put("foo", 3, [encrypted(5)])
    # A later run that says nothing.
    archive.run()
    assert mark_of(archive) == {"ENCRYPTED"}
    assert archive.rows("foo")[0][1][0] == 1
    with pytest.raises(StoreError, match="holds encrypted payloads"):
        read(archive.table)
    assert [row["sequence"] for row in read(archive.table, ("sequence",))] == [1, 2, 3, 4, 5]
    assert read(archive.table, refuse=False)[0]["data"][0] == 1
    found = read(archive.table, keys=KeySource.of(key_file(tmp_path, "key")))
    assert [row["data"] for row in found] == [
        b"data 1",
        b"data 2",
        b"data 3",
        b"plain, from before",
        b"data 5",
    ]
    assert [row["size"] for row in found] == [len(row["data"]) for row in found]
    sizes = read(archive.table, ("size",), keys=KeySource.of(key_file(tmp_path, "key")))
    assert [row["size"] for row in sizes] == [len(row["data"]) for row in found]
    with pytest.raises(StoreError, match='channel "foo" sequence 1 cannot be decrypted'):
        read(archive.table, keys=KeySource.of(key_file(tmp_path, "another")))
    with pytest.raises(ArchiveError, match="marked ENCRYPTED"):
        archive.run(payloads="decrypted", key_file=key_file(tmp_path, "key"))
    with pytest.raises(ArchiveError, match="needs no keys"):
        archive.run(key_file=key_file(tmp_path, "key"))


def test_a_slice_that_no_key_decrypts_stays_in_the_spool(archive: Archive, tmp_path: Path) -> None:
    archive.put("foo", 2, [encrypted(4, b"other")])
    (failed,) = archive.run(key_file=key_file(tmp_path, "key")).failed
    assert 'channel "foo" sequence 4 cannot be decrypted' in failed.why
    assert [n for n, _, _ in archive.rows("foo")] == [1, 2, 3]
    assert len(archive.waiting) == 1


def test_a_spool_is_read_with_keys(archive: Archive, tmp_path: Path) -> None:
    found = read(archive.spool, keys=KeySource.of(key_file(tmp_path, "key")))
    assert [row["data"] for row in found] == [b"data 1", b"data 2", b"data 3"]
    report = ReadingReport()
    assert read(archive.spool, report=report)[0]["data"][0] == 1
    assert report.encrypted == 3
    with pytest.raises(StoreError, match="look encrypted"):
        read(archive.spool, refuse=True)
    with pytest.raises(StoreError, match='channel "foo" sequence 1 cannot be decrypted'):
        read(archive.spool, keys=KeySource.of(key_file(tmp_path, "another")))


def test_an_archive_from_before_there_were_marks_goes_on_without_one(
    archive: Archive, tmp_path: Path
) -> None:
    archive.run(format="parquet", payloads="stored")
    name = archive.table / "_ftstan" / "table.json"
    said = json.loads(name.read_text())
    del said["payloads"]
    name.write_text(json.dumps(said))
    archive.put("foo", 2, [encrypted(4)])
    for more in ({"key_file": key_file(tmp_path, "key")}, {"payloads": "decrypted"}):
        with pytest.raises(ArchiveError, match="has no mark"):
            archive.run(**more)
    assert archive.run().failed == []
    assert json.loads(name.read_text())["payloads"] == ""
    # Of the file without a mark nobody can tell: it is given unless somebody minds.
    report = read(archive.table, refuse=False)
    assert report[-1]["data"][0] == 1
    with pytest.raises((DamageError, StoreError)):
        read(archive.table, refuse=True)
