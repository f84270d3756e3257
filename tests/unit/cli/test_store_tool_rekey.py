"""``ftstanctl store rekey``, and what the other commands make of encrypted payloads."""

from __future__ import annotations

import base64
import json
import os
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.cli import ctl
from ftstan.stores.file.log import exact
from tests.oracle.godecrypt import GoUndecryptable, decrypted
from tests.oracle.gostore import read_store

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = Path(__file__).parents[2] / "data" / "encrypted"
OLD = "fixture-key-1"


def unpacked(name: str, folder: Path) -> Path:
    with tarfile.open(DATA / f"{name}.tar.gz") as tar:
        tar.extractall(folder, filter="data")
    return folder / "DATASTORE"


def key_file(folder: Path, *keys: str) -> str:
    path = folder / f"keys.{len(keys)}"
    path.touch(0o600)
    path.write_text("\n".join(keys))
    return str(path)


def run(*words: str) -> int:
    return ctl.main(["store", *words])


def payloads_of(store: Path, *keys: str) -> dict[tuple[bytes, int], bytes]:
    """What an original reads, with whichever of the keys it needs."""
    found = {}
    for channel in read_store(store).channels.values():
        for message in channel.messages.values():
            for key in keys:
                try:
                    data = decrypted(key.encode(), channel.name, message.data)
                except GoUndecryptable:
                    continue
                found[channel.name, message.sequence] = data
                break
            else:
                pytest.fail(f"{channel.name!r} {message.sequence}: no key")
    return found


def codes_of(store: Path) -> set[int]:
    messages = [m for c in read_store(store).channels.values() for m in c.messages.values()]
    return {message.data[0] if message.data else 0 for message in messages}


@pytest.mark.parametrize(
    ("name", "cipher", "code"), [("two-keys", "AES", 1), ("switched-cipher", "CHACHA", 2)]
)
def test_afterwards_the_new_key_alone_reads_everything(
    name: str, cipher: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = unpacked(name, tmp_path)
    before = payloads_of(store, OLD, "fixture-key-2")
    ring = key_file(tmp_path, "new", OLD, "fixture-key-2")
    words = ("rekey", str(store), "--encryption-key-file", ring, "--encryption-cipher", cipher)
    assert run(*words, "--output", "json") == 0
    rows = json.loads(capsys.readouterr().out)["channels"]
    assert sum(row["messages_encrypted"] for row in rows) == len(before)
    assert payloads_of(store, "new") == before
    assert codes_of(store) == {code}
    # Once more: there is nothing to do.
    assert run(*words, "--output", "json") == 0
    rows = json.loads(capsys.readouterr().out)["channels"]
    assert {row["messages_encrypted"] for row in rows} == {0}
    assert run("verify", str(store)) == 0


def test_what_was_stored_plain_is_encrypted_too(tmp_path: Path) -> None:
    store = unpacked("mixed-plain", tmp_path)
    words = ("--channel", "foo", "--encryption-key-file", key_file(tmp_path, "new", OLD))
    before = {m.sequence for m in read_store(store).channels[b"foo"].messages.values()}
    assert run("rekey", str(store), *words) == 0
    messages = read_store(store).channels[b"foo"].messages.values()
    assert {m.sequence for m in messages} == before
    assert {m.data[0] for m in messages} == {1}
    assert all(decrypted(b"new", b"foo", m.data) for m in messages)
    assert run("verify", str(store), *words) == 0


def test_a_message_that_no_key_decrypts_is_named_and_nothing_is_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = unpacked("two-keys", tmp_path)
    before = {path: path.read_bytes() for path in store.rglob("msgs.*.dat")}
    words = ("--channel", "foo", "--encryption-key-file", key_file(tmp_path, "new", "another"))
    assert run("rekey", str(store), *words) != 0
    said = capsys.readouterr().err
    assert 'channel "foo" message 1: cipher: message authentication failed' in said
    assert {path: path.read_bytes() for path in store.rglob("msgs.*.dat")} == before


@pytest.mark.parametrize("step", range(6))
def test_who_is_interrupted_anywhere_goes_on_when_it_runs_again(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = unpacked("mixed-plain", tmp_path)
    words = ("--channel", "foo", "--encryption-key-file", key_file(tmp_path, "new", OLD))
    wanted = {
        sequence: decrypted(OLD.encode(), b"foo", m.data)
        for sequence, m in read_store(store).channels[b"foo"].messages.items()
    }
    put = exact.put_file
    left = [step]

    def failing(env: Any, dirfd: int, name: str, fill: Callable[[int], None]) -> None:
        if left[0] == 0:
            raise OSError(5, os.strerror(5), name)
        left[0] -= 1
        put(env, dirfd, name, fill)

    with monkeypatch.context() as patched:
        patched.setattr("ftstan.stores.file.tools.rekeying.put_file", failing)
        status = run("rekey", str(store), *words)
    assert (status != 0) == (left[0] == 0)
    assert run("verify", str(store), *words) == 0
    assert run("rekey", str(store), *words) == 0
    found = read_store(store).channels[b"foo"].messages
    assert {s: decrypted(b"new", b"foo", m.data) for s, m in found.items()} == wanted


def test_dump_shows_payloads_with_the_keys_and_what_is_stored_without_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = unpacked("made-again", tmp_path)
    wanted = payloads_of(store, OLD)

    def dumped(*words: str) -> list[bytes]:
        capsys.readouterr()
        assert run("dump", str(store), *words) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return [base64.b64decode(row["data"]) for row in rows if row["kind"] == "message"]

    assert dumped("--encryption-key-file", key_file(tmp_path, OLD)) == list(wanted.values())
    assert [data[0] for data in dumped()] == [1] * len(wanted)


def test_the_environments_key_is_enough_to_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = unpacked("two-keys", tmp_path)
    monkeypatch.setenv("NATS_STREAMING_ENCRYPTION_KEY", OLD)
    assert run("dump", str(store), "--channel", "foo") == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["sequence"] for row in rows if row["kind"] == "message"] == list(range(1, 9))
    assert [row["why"] for row in rows if row["kind"] == "bad"] == [
        f"sequence {n}: cipher: message authentication failed" for n in range(9, 17)
    ]
    assert run("verify", str(store), "--output", "json") == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert len([f for f in findings if "authentication failed" in f["text"]]) == 8 + 3


def test_without_a_key_nothing_is_encrypted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = unpacked("two-keys", tmp_path)
    assert run("rekey", str(store)) != 0
    assert "encryption key required" in capsys.readouterr().err
    assert not (store / "ft.epoch").exists()
