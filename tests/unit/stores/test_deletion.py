"""A deleted channel goes as a whole or not at all, wherever the server dies, and never takes a
newer one with it.
"""

from __future__ import annotations

import errno
import os
import random
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import FencedError, StoreError
from ftstan.stores.file import deletion
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.interface import ChannelLimits, ClientInfo, SubState
from ftstan.stores.memory import MemoryStore
from ftstan.wire.block import MsgBlock
from tests.filenode import FileNode, simulated
from tests.sim.disk import CrashMode, Killed, SimDisk
from tests.sim.model import Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.stores.file.env import FileEnv

SMALL = FileStoreOptions(slice_max_msgs=2)


def with_channels() -> tuple[SimDisk, FileNode]:
    """Channels ``foo`` (three slices, a subscription) and ``bar``."""
    disk = simulated()
    node = FileNode(disk, options=SMALL)
    node.put(*(b"%d" % i for i in range(6)))
    node.put(b"other", channel=b"bar")
    node.channel().add_sub(SubState(1, b"me", durable_name=b"d", is_durable=True))
    node.store.commit()
    node.tick()
    return disk, node


def intents(disk: SimDisk) -> list[str]:
    return [name for name in disk.tree("/store") if name.startswith("ft.deleting.")]


def test_a_deleted_channel_leaves_nothing_and_the_others_stay() -> None:
    disk, node = with_channels()
    node.store.delete_channel(b"foo")
    assert not [
        name for name in disk.tree("/store") if name.startswith(("foo", "ft.deleting", "tmp."))
    ]
    after = node.successor()
    assert list(after.channels) == [b"bar"]
    assert after.sequences(b"bar") == [1]


def test_files_of_the_operator_in_the_directory_go_too_as_in_the_original() -> None:
    disk, node = with_channels()
    disk.add_tree("/store/foo", {"notes.txt": b"x", "msgs.1.dat.bak": b"y", "old/deep/file": b"z"})
    node.store.delete_channel(b"foo")
    assert not [name for name in disk.tree("/store") if name.startswith("foo")]


def test_a_channel_that_is_made_again_starts_at_1_in_slices_above_the_old_ones() -> None:
    disk, node = with_channels()
    node.store.delete_channel(b"foo")
    del node.channels[b"foo"]
    assert node.put(b"new") == {}
    assert (node.channel().first, node.channel().last) == (1, 1)
    assert "msgs.4.dat" in disk.tree("/store/foo")
    assert node.successor().sequences() == [1]


def test_a_channel_that_is_in_use_or_unknown_is_not_deleted() -> None:
    disk, node = with_channels()
    node.stage(b"x")
    with pytest.raises(StoreError, match='channel "foo" is in use'):
        node.store.delete_channel(b"foo")
    with pytest.raises(StoreError, match='channel "none" not found'):
        node.store.delete_channel(b"none")
    assert node.store.commit() == {}
    assert node.sequences() == [1, 2, 3, 4, 5, 6, 7]
    assert intents(disk) == []


def test_a_channel_that_was_never_stored_is_simply_forgotten() -> None:
    disk = simulated()
    node = FileNode(disk)
    node.channel()
    calls = disk.calls
    node.store.delete_channel(b"foo")
    assert disk.calls == calls


def test_slices_go_lowest_first_and_each_index_before_its_data() -> None:
    disk, node = with_channels()
    before = len(disk.log)
    node.store.delete_channel(b"foo")
    gone = [
        line.split(" ")[-1]
        for line in disk.log[before:]
        if line.startswith("unlink") and "msgs." in line
    ]
    assert gone == [f"msgs.{n}.{kind}" for n in (1, 2, 3) for kind in ("idx", "dat")]


def killed_at(disk: SimDisk, call: int, act: Callable[[], object]) -> bool:
    last = disk.calls + call

    def kill(number: int, _name: str, _arguments: tuple[object, ...]) -> None:
        if number == last:
            raise Killed

    disk.on_call = kill
    try:
        act()
    except Killed:
        return True
    disk.on_call = None
    return False


@pytest.mark.parametrize("mode", CrashMode)
def test_wherever_a_deletion_dies_the_channel_is_whole_or_gone(mode: CrashMode) -> None:
    whole = gone = 0
    for call in range(1, 100):
        disk, node = with_channels()
        if not killed_at(disk, call, lambda node=node: node.store.delete_channel(b"foo")):  # type: ignore[misc]
            break
        after = node.successor(disk.crash(mode=mode))
        if b"foo" in after.channels:
            assert after.sequences() == [1, 2, 3, 4, 5, 6]
            assert len(after.channel().recovered_subs()) == 1
            whole += 1
        else:
            tree = after.disk.tree("/store")  # type: ignore[attr-defined]
            assert not [name for name in tree if name.startswith(("foo", "ft.deleting", "tmp."))]
            gone += 1
        assert after.sequences(b"bar") == [1]
    assert whole > 3
    assert gone > 15


def calls_before_the_intent() -> int:
    """Storage calls of a deletion up to the one that makes the intent visible."""
    disk, node = with_channels()
    before = disk.calls
    found = []
    disk.on_call = lambda number, name, _: found.append(number) if name == "rename" else None
    node.store.delete_channel(b"foo")
    return found[0] - before


def test_finishing_a_deletion_can_die_anywhere_too() -> None:
    finished = 0
    for first in (calls_before_the_intent() + n for n in (4, 10, 16, 22)):
        for call in range(1, 60):
            disk, node = with_channels()
            assert killed_at(disk, first, lambda node=node: node.store.delete_channel(b"foo"))  # type: ignore[misc]
            disk = disk.crash(process_only=True)
            if not killed_at(disk, call, lambda node=node, disk=disk: node.successor(disk)):  # type: ignore[misc]
                break
            after = node.successor(disk.crash(mode=CrashMode.LOST))
            assert list(after.channels) == [b"bar"]
            finished += 1
    assert finished > 60


def test_a_power_cut_that_takes_removals_in_any_order_brings_no_part_of_a_channel_back() -> None:
    before = calls_before_the_intent()
    for call in range(before + 2, before + 26):
        for seed in range(8):
            disk, node = with_channels()
            killed_at(disk, call, lambda node=node: node.store.delete_channel(b"foo"))  # type: ignore[misc]
            assert b"foo" not in node.successor(disk.crash(random.Random(seed))).channels


def test_a_power_cut_that_takes_what_was_not_synced_before_a_deletion_does_not_undo_it() -> None:
    for mode in (CrashMode.LOST, CrashMode.ORDERED):
        disk, node = with_channels()
        node.sent(1, 1, 2)
        node.acked(1, 1)
        leave_intent(node)
        assert list(node.successor(disk.crash(mode=mode)).channels) == [b"bar"]


def leave_intent(node: FileNode) -> None:
    """The state after phase one: the intent is visible, nothing is gone yet."""
    deletion.declare(node.store._env, b"foo", node.channel().last)


def test_an_intent_whose_channel_was_published_to_is_dropped() -> None:
    disk, node = with_channels()
    leave_intent(node)
    node.put(b"later")
    after = node.successor(disk.crash(process_only=True))
    assert after.sequences() == [1, 2, 3, 4, 5, 6, 7]
    assert intents(after.disk) == []  # type: ignore[arg-type]


def test_an_intent_whose_channel_has_a_newer_slice_is_dropped() -> None:
    disk, node = with_channels()
    leave_intent(node)
    after = node.successor(disk.crash(process_only=True))
    assert b"foo" not in after.channels
    disk, node = with_channels()
    leave_intent(node)
    disk.add_tree("/store/foo", {"msgs.9.dat": b"\1\0\0\0"})
    assert b"foo" in node.successor(disk.crash(process_only=True)).channels


@pytest.mark.parametrize(
    "damage", [b"", b"\xff" * 80, b"ftstan deletion 1\n1 6 3\nfoo\n00000000\n"]
)
def test_an_intent_that_cannot_be_read_deletes_nothing(damage: bytes) -> None:
    disk, node = with_channels()
    leave_intent(node)
    (name,) = intents(disk)
    disk.add_tree("/store", {name: damage})
    assert node.successor(disk.crash(process_only=True)).sequences() == [1, 2, 3, 4, 5, 6]


def test_a_late_intent_of_a_former_owner_finds_no_source() -> None:
    disk, node = with_channels()
    after: list[FileNode] = []

    def take_over(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        if name == "rename" and str(arguments[-1]).startswith("ft.deleting.") and not after:
            after.append(node.successor())

    disk.on_call = take_over
    with pytest.raises(StoreError):
        node.store.delete_channel(b"foo")
    assert intents(disk) == []
    assert after[0].sequences() == [1, 2, 3, 4, 5, 6]
    assert after[0].successor().sequences() == [1, 2, 3, 4, 5, 6]


def test_an_owner_that_is_fenced_between_the_phases_deletes_nothing() -> None:
    disk, node = with_channels()

    def fence(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        if name == "rename" and str(arguments[-1]).startswith("ft.deleting."):
            node.owner.fenced = True

    disk.on_call = fence
    with pytest.raises(FencedError):
        node.store.delete_channel(b"foo")
    assert {f"msgs.{n}.dat" for n in (1, 2, 3)} <= disk.tree("/store/foo").keys()


@pytest.mark.parametrize("call", ["open", "pwrite", "fsync", "rename"])
def test_when_the_intent_cannot_be_stored_nothing_has_changed(call: str) -> None:
    disk, node = with_channels()
    disk.fail_next(call, errno.EIO)
    with pytest.raises(StoreError, match="cannot be deleted"):
        node.store.delete_channel(b"foo")
    assert intents(disk) == []
    assert node.put(b"x") == {}
    assert node.successor().sequences() == [1, 2, 3, 4, 5, 6, 7]


def test_an_intent_that_could_not_be_taken_back_is_taken_back_later() -> None:
    disk, node = with_channels()
    state = {"fsyncs": 0, "refuse": True}

    def refuse(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        state["fsyncs"] += name == "fsync"
        if state["refuse"] and ((name == "fsync" and state["fsyncs"] == 2) or name == "unlink"):
            if name == "unlink" and str(arguments[-1]).startswith("tmp."):
                return
            raise OSError(errno.EIO, "refused")

    disk.on_call = refuse
    with pytest.raises(StoreError):
        node.store.delete_channel(b"foo")
    assert len(intents(disk)) == 1
    state["refuse"] = False
    node.tick()
    assert intents(disk) == []


def test_nothing_is_stored_in_a_channel_while_its_deletion_may_come_back() -> None:
    """A crash of the storage may show the intent again, and the next start would delete the channel
    with all that was acknowledged since.
    """
    disk, node = with_channels()
    state = {"fsyncs": 0, "refuse": True}

    def refuse(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        state["fsyncs"] += name == "fsync"
        if state["refuse"] and (
            (name == "fsync" and state["fsyncs"] == 2)
            or (name == "unlink" and not str(arguments[-1]).startswith("tmp."))
        ):
            raise OSError(errno.EIO, "refused")

    disk.on_call = refuse
    with pytest.raises(StoreError):
        node.store.delete_channel(b"foo")
    failed = node.put(b"refused")
    assert "its deletion was refused by storage and cannot be taken back yet" in failed[b"foo"].text
    assert node.put(b"another", channel=b"bar") == {}
    state["refuse"] = False
    assert node.put(b"stored") == {}
    assert intents(disk) == []
    for mode in CrashMode:
        after = node.successor(disk.crash(random.Random(1), mode))
        assert after.sequences() == [1, 2, 3, 4, 5, 6, 7]


def test_a_start_that_storage_does_not_let_finish_a_deletion_goes_on_with_it_later() -> None:
    disk, node = with_channels()
    refusing = [True]

    def refuse(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        if refusing[0] and name == "unlink" and str(arguments[-1]) == "msgs.2.dat":
            raise OSError(errno.EIO, "refused")

    disk.on_call = refuse
    node.store.delete_channel(b"foo")
    next_disk = disk.sibling()
    next_disk.on_call = refuse
    after = node.successor(next_disk)
    assert list(after.channels) == [b"bar"]
    with pytest.raises(StoreError, match="stan: channel is being deleted"):
        after.channel()
    refusing[0] = False
    after.tick()
    assert intents(disk) == []
    assert after.put(b"new") == {}


def test_a_removal_that_storage_refuses_goes_on_later_and_its_name_stays_taken() -> None:
    disk, node = with_channels()
    refusing = [True]

    def refuse(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        if refusing[0] and name == "unlink" and str(arguments[-1]) == "msgs.2.dat":
            raise OSError(errno.EIO, "refused")

    disk.on_call = refuse
    node.store.delete_channel(b"foo")
    del node.channels[b"foo"]
    assert len(intents(disk)) == 1
    with pytest.raises(StoreError, match="stan: channel is being deleted"):
        node.channel()
    refusing[0] = False
    node.tick()
    assert intents(disk) == []
    assert not [name for name in disk.tree("/store") if name.startswith("foo")]
    assert node.put(b"new") == {}


def test_no_descriptor_of_a_deleted_channel_stays_open() -> None:
    disk, node = with_channels()
    node.sequences()
    node.store.delete_channel(b"foo")
    node.store.delete_channel(b"bar")
    assert disk.open_handles == 1
    assert node.store._env.files.count == 0


def test_an_intent_has_a_short_name_whatever_the_channel_is_called() -> None:
    intent = deletion.Intent(os.fsencode("a" * 255), 1, 2, 3)
    assert len(intent.file_name) < 64


def test_a_late_unlink_of_a_former_owner_misses_the_intent_of_its_successor() -> None:
    names = {deletion.Intent(b"foo", epoch, 2, 3).file_name for epoch in (1, 2)}
    assert len(names) == 2


def test_the_memory_store_forgets_a_channel_that_is_not_in_use() -> None:
    store = MemoryStore()
    channel = store.create_channel(b"foo", ChannelLimits())
    block = MsgBlock()
    block.append(1, b"foo", b"", b"x", 1)
    channel.append(block)
    with pytest.raises(StoreError, match="is in use"):
        store.delete_channel(b"foo")
    store.add_client(ClientInfo(b"c", b"hb"))
    store.commit()
    store.delete_channel(b"foo")
    with pytest.raises(StoreError, match="not found"):
        store.delete_channel(b"foo")
    assert store.create_channel(b"foo", ChannelLimits()).last == 0


# ---- broken on purpose
# ---------------------------------------------------------------------------------------------


def test_a_start_that_leaves_deletions_unfinished_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deletion, "finish_pending", lambda _env: [])
    with pytest.raises(AssertionError):
        test_wherever_a_deletion_dies_the_channel_is_whole_or_gone(CrashMode.KEPT)


def test_an_intent_that_goes_before_the_files_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    carry_out = deletion.carry_out

    def intent_first(env: FileEnv, intent: deletion.Intent) -> None:
        env.disk.unlink(env.root, intent.file_name)
        env.disk.fsync(env.root)
        carry_out(env, intent)

    monkeypatch.setattr(deletion, "carry_out", intent_first)
    with pytest.raises(AssertionError):
        test_wherever_a_deletion_dies_the_channel_is_whole_or_gone(CrashMode.KEPT)


def test_a_deletion_whose_removals_are_not_durable_before_its_intent_goes_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    carry_out = deletion.carry_out

    def unsynced(env: FileEnv, intent: deletion.Intent) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(env.disk, "fsync", lambda _fd: None)
            carry_out(env, intent)

    monkeypatch.setattr(deletion, "carry_out", unsynced)

    def names_in_any_order() -> None:
        for seed in range(40):
            disk, node = with_channels()
            node.store.delete_channel(b"foo")
            after = node.successor(disk.crash(random.Random(seed)))
            if b"foo" in after.channels:
                assert after.sequences() == [1, 2, 3, 4, 5, 6]

    with pytest.raises((AssertionError, Violation)):
        names_in_any_order()


def test_an_intent_that_outlives_its_channel_does_not_take_the_next_one_of_that_name() -> None:
    for seed in range(40):
        disk, node = with_channels()
        node.store.delete_channel(b"foo")
        del node.channels[b"foo"]
        node.put(*(b"%d" % i for i in range(6)))
        after = node.successor(disk.crash(random.Random(seed)))
        assert after.sequences() == [1, 2, 3, 4, 5, 6]
