"""Readers with keys: payloads as clients sent them, or an error with channel and sequence."""

from __future__ import annotations

import os
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.environment import KEY_VARIABLE
from ftstan.base.errors import ConfigError, StoreError
from ftstan.broker.records import info_of
from ftstan.spark.filestream import FileStream
from ftstan.spark.keys import NO_KEYS, KeySource
from ftstan.spark.log import Store, read
from ftstan.spark.options import ReadOptions
from ftstan.spark.places import holds_encrypted
from ftstan.spark.report import ReadingReport
from ftstan.spark.serverstream import ServerStream
from ftstan.stores.encryption.cipher import CODES, NONCE_SIZE, KeyRing
from ftstan.stores.file.log import records
from ftstan.stores.protos import encode_server
from ftstan.wire.subjects import Subjects
from tests.slicefiles import Message, put_slice

if TYPE_CHECKING:
    from collections.abc import Iterable

DATA = Path(__file__).parents[2] / "data" / "encrypted"


def sealed(key: bytes, channel: bytes, data: bytes, cipher: str = "AES") -> bytes:
    keys = KeyRing([key], cipher).channel(channel)
    nonce = os.urandom(NONCE_SIZE)
    return bytes([CODES[cipher]]) + nonce + keys.encrypt(nonce, data, None)


def key_file(folder: Path, *keys: str) -> str:
    path = folder / f"keys.{'-'.join(keys)}"
    path.touch(0o600)
    path.write_text("\n".join(keys))
    return str(path)


def rows(
    path: Path,
    keys: KeySource,
    columns: Iterable[str] = ("channel", "sequence", "data", "size"),
    **more: Any,
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for part in Store(str(path)).plan():
        for batch in read(part, columns, keys=keys, **more):
            found += batch.to_pylist()
    return found


@pytest.fixture
def store(tmp_path: Path) -> Path:
    messages = [
        Message(1, b"before there were keys"),
        Message(2, sealed(b"old", b"orders", b"two")),
        Message(3, sealed(b"new", b"orders", b"three", "CHACHA")),
        Message(4, b""),
    ]
    put_slice(tmp_path / "store", "orders", 1, messages)
    return tmp_path / "store"


def test_every_key_of_a_ring_decrypts_and_sizes_are_those_of_what_was_sent(
    store: Path, tmp_path: Path
) -> None:
    report = ReadingReport()
    found = rows(store, KeySource.of(key_file(tmp_path, "new", "old")), report=report)
    assert [row["data"] for row in found] == [b"before there were keys", b"two", b"three", b""]
    assert [row["size"] for row in found] == [22, 3, 5, 0]
    assert (report.encrypted, report.findings) == (0, [])
    keys = KeySource.of(key_file(tmp_path, "new", "old"))
    assert [row["size"] for row in rows(store, keys, ("size",))] == [22, 3, 5, 0]


@pytest.mark.parametrize("columns", [("data",), ("sequence", "size"), ("data", "crc_ok")])
def test_a_message_that_no_key_decrypts_is_an_error_with_its_channel_and_sequence(
    store: Path, tmp_path: Path, columns: tuple[str, ...]
) -> None:
    keys = KeySource.of(key_file(tmp_path, "new"))
    with pytest.raises(
        StoreError, match=r'channel "orders" sequence 2 cannot be decrypted: cipher: message auth'
    ):
        rows(store, keys, columns)
    # What needs no payload is there.
    assert [row["sequence"] for row in rows(store, keys, ("sequence",))] == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["v17", "switched-cipher", "killed"])
def test_stores_of_originals_are_read_with_their_key(tmp_path: Path, name: str) -> None:
    with tarfile.open(DATA / f"{name}.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    where = tmp_path / "DATASTORE"
    stored = rows(where, NO_KEYS)
    plain = rows(where, KeySource.of(key_file(tmp_path, "fixture-key-1")))
    assert len(plain) == len(stored) > 0
    for a, b in zip(plain, stored, strict=True):
        assert (a["channel"], a["sequence"]) == (b["channel"], b["sequence"])
        assert a["size"] == len(a["data"]) == max(b["size"] - 29, 0)


def test_the_option_names_a_file_and_without_it_the_environment_has_the_key(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert ReadOptions.of({"path": "/nss"}).keys == NO_KEYS
    path = key_file(tmp_path, "new", "old")
    given = ReadOptions.of({"path": "/nss", "encryptionkeyfile": path})
    assert given.keys == KeySource(file=path)
    # What travels to tasks has no key in it.
    assert b"new" not in pickle.dumps(given).replace(path.encode(), b"")
    with pytest.raises(ConfigError, match="cannot be read"):
        ReadOptions.of({"path": "/nss", "encryptionKeyFile": str(tmp_path / "none")})
    monkeypatch.setenv(KEY_VARIABLE, "old")
    of_environment = ReadOptions.of({"path": "/nss"}).keys
    with pytest.raises(StoreError, match="sequence 3"):
        rows(store, of_environment)
    monkeypatch.delenv(KEY_VARIABLE)
    with pytest.raises(ConfigError, match="not on this executor"):
        rows(store, of_environment)


def test_a_stream_of_files_takes_keys_and_one_of_a_server_says_that_it_needs_none(
    tmp_path: Path, store: Path
) -> None:
    (store / "server.dat").write_bytes(b"")
    options = {"path": str(store), "encryptionKeyFile": key_file(tmp_path, "new")}
    assert FileStream.of(options, ("data",))._options.keys
    with pytest.raises(ConfigError) as caught:
        ServerStream.of({"servers": "nats://x", "encryptionKeyFile": "f"}, ("data",))
    assert "a server encrypts and decrypts with its own keys" in caught.value.hint


def test_a_store_that_says_it_is_encrypted_is_not_read_without_keys_unless_asked_to(
    store: Path, tmp_path: Path
) -> None:
    info = replace(info_of("c", Subjects.for_cluster("c")), encrypted=True)
    record = records.untyped_record(encode_server(info), records.Crc())
    (store / "server.dat").write_bytes(records.VERSION + record)
    with pytest.raises(StoreError, match="is encrypted") as caught:
        rows(store, NO_KEYS)
    assert "encryptionKeyFile" in caught.value.hint
    assert rows(store, NO_KEYS, refuse_encrypted=False)[1]["data"][0] == 1
    assert [row["sequence"] for row in rows(store, NO_KEYS, ("sequence",))] == [1, 2, 3, 4]
    keys = KeySource.of(key_file(tmp_path, "new", "old"))
    assert rows(store, keys)[1]["data"] == b"two"
    assert holds_encrypted(str(store))
