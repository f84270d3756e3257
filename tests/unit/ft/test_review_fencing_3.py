"""Attacks on fencing, a review: tools that make room for somebody else."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ftstan.base.errors import FencedError
from ftstan.cli import ctl, store_end
from ftstan.ft.epoch import SLICES_PER_EPOCH
from ftstan.ft.epoch_records import SLOT_SIZE, encode_slot
from ftstan.stores.file.log import records
from ftstan.stores.file.recovery.damage import SAVED
from ftstan.stores.file.tools import rekeying
from ftstan.wire import codec
from ftstan.wire.block import MsgBlock
from tests.datastores import START, Serving, messages_of, serve, serving

NAME = b"foo"


def as_an_original(store: Path, sequence: int, data: bytes, *, indexed: bool = True) -> None:
    """Append a message to the newest slice; killed before its entry unless ``indexed``."""
    dat = max((store / "foo").glob("msgs.*.dat"), key=lambda f: int(f.name.split(".")[1]))
    block = MsgBlock()
    block.append(sequence, NAME, b"", data, START + sequence)
    crc = records.Crc()
    records.seal(block, crc)
    at = dat.stat().st_size
    with open(dat, "ab") as f:
        f.write(bytes(memoryview(block)))
    if indexed:
        with open(dat.with_suffix(".idx"), "ab") as f:
            f.write(records.index_entries(block, 0, 1, at, crc))


def payloads(node: Serving, name: bytes) -> dict[int, bytes]:
    return {s: codec.decode_msg_proto(p)[3] for s, p in messages_of(node, name).items()}


def test_what_an_original_acknowledged_behind_a_handover_is_served_when_we_come_back(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    node = serve(store)
    node.publish(NAME, b"a", b"b")
    node.tick()
    node.stop()
    assert ctl.main(["store", "handover", str(store)]) == 0
    # Killed between a record and its entry, it takes the record for nothing when it comes again.
    as_an_original(store, 3, b"never acknowledged", indexed=False)
    for sequence in (3, 4):
        as_an_original(store, sequence, b"theirs %d" % sequence)
    with serving(store) as node:
        assert node.store.quarantined == []
        assert payloads(node, NAME) == {1: b"a", 2: b"b", 3: b"theirs 3", 4: b"theirs 4"}
        assert node.publish(NAME, b"ours") == [5]


@pytest.mark.parametrize("tool", ["compact", "rekey"])
def test_what_an_original_stored_behind_a_tool_is_read_by_its_rules(
    tool: str, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    for data in (b"a", b"b"):
        node = serve(store)
        node.publish(NAME, data)
        node.stop()
    words = [tool, str(store)]
    if tool == "rekey":
        keys = tmp_path / "keys"
        keys.write_text("a key\n")
        keys.chmod(0o600)
        words += ["--to-plain", "--encryption-key-file", str(keys)]
    assert ctl.main(["store", *words]) == 0
    # Killed between a record and its entry, it takes the record for nothing when it comes again.
    as_an_original(store, 3, b"never acknowledged", indexed=False)
    as_an_original(store, 3, b"theirs")
    with serving(store) as node:
        assert node.store.quarantined == []
        assert payloads(node, NAME) == {1: b"a", 2: b"b", 3: b"theirs"}
        assert node.publish(NAME, b"ours") == [4]


@pytest.fixture
def unfinished(tmp_path: Path) -> tuple[Path, Path]:
    """A store, and a copy of it that was not finished."""
    source = tmp_path / "source"
    source.mkdir()
    with serving(source) as node:
        node.publish(NAME, b"a", b"b")
        node.stop()
    target = tmp_path / "target"
    target.mkdir()
    (target / "server.dat").write_bytes(store_end.GUARD)
    (target / "foo").mkdir()
    (target / "foo" / "msgs.1.dat").write_bytes(b"half")
    return source, target


def finished_by_another(end: store_end._Directory, source: Path) -> None:
    """The lock of ``end`` is lost; another copy is made, and served."""
    end.owner.lock.release()
    assert ctl.main(["store", "copy", str(source), end.path]) == 0
    with serving(Path(end.path)) as node:
        assert node.publish(NAME, b"acknowledged") == [3]
        node.stop()


def test_a_copy_that_stood_still_removes_nothing_of_the_store_that_another_one_has_made(
    unfinished: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = unfinished
    look = store_end.require_unserved
    with store_end.owned_directory(str(target), 0xEDB88320) as end:
        assert isinstance(end, store_end._Directory)

        def look_and_stand_still(path: str) -> None:
            look(path)
            monkeypatch.setattr(store_end, "require_unserved", look)
            finished_by_another(end, source)

        monkeypatch.setattr(store_end, "require_unserved", look_and_stand_still)
        with pytest.raises(FencedError):
            end.clear()
    with serving(target) as node:
        assert payloads(node, NAME) == {1: b"a", 2: b"b", 3: b"acknowledged"}


def test_a_copy_that_stood_still_puts_no_guard_into_the_store_that_another_one_has_made(
    unfinished: tuple[Path, Path],
) -> None:
    source, target = unfinished
    with store_end.owned_directory(str(target), 0xEDB88320) as end:
        assert isinstance(end, store_end._Directory)
        finished_by_another(end, source)
        with pytest.raises(FencedError):
            end.guard()
    with serving(target) as node:
        assert payloads(node, NAME) == {1: b"a", 2: b"b", 3: b"acknowledged"}


def test_a_filler_that_is_older_than_the_record_below_it_does_not_make_slices_ours_again(
    tmp_path: Path,
) -> None:
    node = serve(tmp_path)
    node.publish(NAME, b"a")
    before = node.owner.activation
    node.store.close()
    node.owner.leave_to_original()
    left = node.owner.activation
    assert (before.ours_from, left.epoch, left.ours_from) == (1, 2, SLICES_PER_EPOCH + 1)
    node.owner.close()
    # Of a server that looked before that, and died with its number announced.
    filler = encode_slot(replace(before.record(), slot=4, epoch=5))
    with open(tmp_path / "ft.epoch", "r+b") as f:
        f.seek(4 * SLOT_SIZE)
        f.write(filler)
    with serving(tmp_path) as node:
        assert (node.owner.activation.epoch, node.owner.ours_from) == (5, left.ours_from)
        assert payloads(node, NAME) == {1: b"a"}


def test_a_store_is_left_to_an_original_above_every_slice_that_it_has(tmp_path: Path) -> None:
    node = serve(tmp_path)
    node.publish(NAME, b"a")
    node.store.close()
    for name in ("msgs.1.dat", "msgs.1.idx"):
        os.rename(tmp_path / "foo" / name, tmp_path / "foo" / name.replace("1", "9000"))
    node.owner.leave_to_original()
    assert node.owner.activation.epoch == 4
    assert node.owner.ours_from == 3 * SLICES_PER_EPOCH + 1
    node.owner.close()
    with serving(tmp_path) as node:
        assert payloads(node, NAME) == {1: b"a"}
        assert node.publish(NAME, b"b") == [2]


def test_a_rekey_that_stood_still_removes_nothing_that_a_successor_has_saved(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as node:
        node.publish(NAME, b"a")
        saved = tmp_path / "foo" / f"{SAVED}1.msgs.1.dat.4"
        saved.write_bytes(b"rest")
        env = node.store._env
        folder = env.disk.open_dir_at(env.root, "foo")
        node.owner.lock.release()
        with serving(tmp_path), pytest.raises(FencedError):
            rekeying._remove_cuts(env, folder)
    assert saved.read_bytes() == b"rest"
