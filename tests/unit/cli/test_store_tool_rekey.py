"""``ftstanctl store rekey``, and what the other commands make of encrypted payloads."""

from __future__ import annotations

import base64
import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.clock import SystemClock
from ftstan.base.disk import LocalDisk
from ftstan.broker.dedup import Window
from ftstan.broker.records import info_of
from ftstan.cli import ctl
from ftstan.cli.store_owner import owning
from ftstan.config.limits import Limits
from ftstan.stores.contract.place import FREE
from ftstan.stores.encryption.cipher import KeyRing
from ftstan.stores.encryption.store import EncryptedStore
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.log import exact
from ftstan.stores.file.store import FileStore
from ftstan.stores.protos import decode_server
from ftstan.wire.block import MsgBlock
from tests.compat.driver import SUBJECTS
from tests.oracle.godecrypt import GoUndecryptable, decrypted
from tests.oracle.gostore import read_store
from tests.unit.stores.encryption.test_originals import unpacked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ftstan.stores.interface import Recovered, Store

DATA = Path(__file__).parents[2] / "data" / "encrypted"
OLD = "fixture-key-1"


def key_file(folder: Path, *keys: str) -> str:
    path = folder / f"keys.{len(keys)}"
    path.touch(0o600)
    path.write_text("\n".join(keys))
    return str(path)


def run(*words: str) -> int:
    return ctl.main(["store", *words])


@contextlib.contextmanager
def failing_at(monkeypatch: pytest.MonkeyPatch, step: int) -> Iterator[list[int]]:
    """Storage fails at a file put in place behind ``step`` others; the list says how many are left
    until then.
    """
    put = exact.put_file
    left = [step]

    def failing(env: Any, dirfd: int, name: str, fill: Callable[[int], None]) -> None:
        if left[0] == 0:
            raise OSError(5, os.strerror(5), name)
        left[0] -= 1
        put(env, dirfd, name, fill)

    with monkeypatch.context() as patched:
        patched.setattr("ftstan.stores.file.tools.rekeying.put_file", failing)
        yield left


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
    with failing_at(monkeypatch, step) as left:
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


def mark_of_store(store: Path) -> bool:
    return decode_server((store / "server.dat").read_bytes()[12:]).encrypted


def everything(store: Path) -> dict[str, bytes]:
    """Every file but those of the lock and of epochs."""
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in store.rglob("*")
        if path.is_file() and not path.name.startswith(("ft.", ".rootdir"))
    }


def test_a_refused_run_has_changed_nothing_in_any_channel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Of its channels only the last messages of some are of another key.
    store = unpacked("two-keys", tmp_path)
    before = everything(store)
    assert run("rekey", str(store), "--encryption-key-file", key_file(tmp_path, "new", OLD)) != 0
    assert "add the key that wrote it" in capsys.readouterr().err
    assert everything(store) == before
    assert not mark_of_store(store)


def test_a_run_marks_the_store_before_its_first_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = unpacked("mixed-plain", tmp_path)

    def failing(*_: Any) -> None:
        assert mark_of_store(store)
        raise OSError(5, os.strerror(5), "msgs")

    monkeypatch.setattr("ftstan.stores.file.tools.rekeying.put_file", failing)
    words = ("--channel", "foo", "--encryption-key-file", key_file(tmp_path, "new", OLD))
    assert run("rekey", str(store), *words) != 0
    assert mark_of_store(store)


def test_everything_becomes_plain_again_and_then_the_mark_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = unpacked("two-keys", tmp_path)
    wanted = payloads_of(store, OLD, "fixture-key-2")
    ring = ("--encryption-key-file", key_file(tmp_path, "fixture-key-2", OLD))
    assert run("rekey", str(store), *ring) == 0
    assert mark_of_store(store)
    # One channel alone does not make the store a plain one, nor does a run that is interrupted.
    assert run("rekey", str(store), "--to-plain", "--channel", "foo", *ring) == 0
    assert mark_of_store(store)
    with failing_at(monkeypatch, 1):
        assert run("rekey", str(store), "--to-plain", *ring) != 0
    assert mark_of_store(store)
    capsys.readouterr()
    assert run("rekey", str(store), "--to-plain", *ring) == 0
    assert "messages decrypted" in capsys.readouterr().out
    assert not mark_of_store(store)
    found = {
        (channel.name, m.sequence): m.data
        for channel in read_store(store).channels.values()
        for m in channel.messages.values()
    }
    assert found == wanted
    assert run("verify", str(store)) == 0


def test_what_would_look_encrypted_where_it_is_plain_is_named_and_nothing_is_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = served_store(tmp_path, [b"old"], b"fine", b"\x02 begins so")
    before = everything(store)
    words = ("--to-plain", "--encryption-key-file", key_file(tmp_path, "old"))
    assert run("rekey", str(store), *words) != 0
    assert 'channel "foo" message 2: begins with the byte 2' in capsys.readouterr().err
    assert everything(store) == before


def served_store(folder: Path, keys: list[bytes], *data: bytes) -> Path:
    """A store whose server remembered its publishes."""
    path = folder / "served"
    path.mkdir()
    with node_store(path, keys) as (store, window, _):
        store.set_server_info(info_of("test-cluster", SUBJECTS))
        channel = store.create_channel(b"foo", FREE)
        block = MsgBlock()
        for n, payload in enumerate(data, 1):
            block.append(n, b"foo", b"", payload, n)
            window.add(b"foo", b"ft1.%d" % n, n, n, payload)
        channel.append(block)
        store.remember(window.staged(), window.known)
        store.commit()
        window.committed(())
    return path


@contextlib.contextmanager
def node_store(path: Path, keys: list[bytes]) -> Iterator[tuple[Store, Window, Recovered]]:
    """As a server opens it."""
    with owning(str(path)) as (owner, _):
        disk = LocalDisk()
        inner = FileStore(
            disk,
            owner.root,
            owner,
            SystemClock(),
            FileStoreOptions(),
            limits=Limits.same(FREE),
            parallel_sync=False,
        )
        ring = KeyRing(keys)
        store = EncryptedStore(inner, ring)
        recovered = store.recover()
        window = Window(100, dict(recovered.remembered), ring.mark_keys())
        yield store, window, recovered
        store.close()


@pytest.mark.parametrize("interrupted", [None, 0, 1, 2])
def test_repeated_publishes_are_known_with_the_new_key_alone(
    tmp_path: Path, interrupted: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = [b"one", b"two", b"three"]
    path = served_store(tmp_path, [b"old"], *data)
    ring = ("--encryption-key-file", key_file(tmp_path, "new", "old"))
    if interrupted is not None:
        with failing_at(monkeypatch, interrupted):
            assert run("rekey", str(path), *ring) != 0
    assert run("rekey", str(path), *ring) == 0
    assert run("rekey", str(path), "--encryption-key-file", key_file(tmp_path, "new")) == 0
    with node_store(path, [b"new"]) as (_, window, recovered):
        (log,) = recovered.channels
        assert [window.look(b"foo", b"ft1.%d" % n, log) for n in (1, 2, 3)] == [1, 2, 3]
