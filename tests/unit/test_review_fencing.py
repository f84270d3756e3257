"""Interleavings of owners, takers and refused storage calls, written to break the promise of docs/ft.md."""

from __future__ import annotations

import errno
import random

import pytest

from ftstan.clock import ManualClock
from ftstan.errors import FencedError, StoreError
from ftstan.ft.guard import Guard, Verdict, Vitals
from ftstan.ft.lock import StoreLock
from ftstan.ft.ownership import StoreOwner
from ftstan.ft.watch import Probe, Watch
from tests.filenode import FileNode, simulated
from tests.sim.disk import CrashMode, SimDisk
from tests.sim.ft.locks import LockService, SimLocker
from tests.sim.model import read_all
from tests.unit.test_ft_raise import Group, leftover, writes_slot
from tests.unit.test_interlude import original_stores

LOCAL = "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"


def test_an_intent_that_could_not_be_taken_back_goes_also_if_the_epoch_was_raised_meanwhile() -> None:
    disk = simulated()
    node = FileNode(disk)
    node.put(b"acked", b"acked too")
    node.tick()

    def no_root_sync(_number: int, call: str, args: tuple[object, ...]) -> None:
        if call == "fsync" and args == (node.root,):
            raise OSError(errno.EIO, "storage")

    disk.on_call = no_root_sync
    with pytest.raises(StoreError, match="cannot be deleted"):
        node.store.delete_channel(b"foo")
    disk.on_call = None
    # The unlink may have been refused as well, or undone by a power cut.
    node.owner.raise_epoch()
    node.tick()
    left = [name for name in disk.tree("/store") if name.startswith("ft.deleting.")]
    assert left == []


def test_a_channel_whose_deletion_was_refused_stays_when_the_epoch_is_raised_before_the_intent_is_taken_back() -> None:
    disk = simulated()
    node = FileNode(disk)
    node.put(b"acked", b"acked too")
    node.tick()

    def refuse(_number: int, call: str, args: tuple[object, ...]) -> None:
        if call == "fsync" and args == (node.root,):
            raise OSError(errno.EIO, "storage")
        if call == "unlink" and args[0] == node.root and str(args[1]).startswith("ft.deleting."):
            raise OSError(errno.EIO, "storage")

    disk.on_call = refuse
    with pytest.raises(StoreError, match="cannot be deleted"):
        node.store.delete_channel(b"foo")
    disk.on_call = None
    node.owner.raise_epoch()
    # The retraction reports success, and is not tried again.
    for _ in range(3):
        node.tick()
    after = node.successor()
    assert sorted(after.channels) == [b"foo"]
    assert after.sequences() == [1, 2]


def test_what_was_acked_after_a_refused_deletion_is_there_after_a_power_cut() -> None:
    for seed in range(200):
        disk = simulated()
        node = FileNode(disk)
        node.put(b"before")
        node.tick()

        def refuse(_number: int, call: str, args: tuple[object, ...], node: FileNode = node) -> None:
            if call == "fsync" and args == (node.root,):
                raise OSError(errno.EIO, "storage")

        disk.on_call = refuse
        with pytest.raises(StoreError, match="cannot be deleted"):
            node.store.delete_channel(b"foo")
        disk.on_call = None
        assert node.put(b"acked") == {}
        node.store.confirm()
        found = disk.crash(random.Random(seed), CrashMode.UNORDERED)
        after = node.successor(found)
        assert sorted(after.channels) == [b"foo"], seed
        assert after.sequences() == [1, 2], seed


# ---- claim_next: what a refused try leaves -----------------------------------------------------------------------


def refused_at(group: Group, slot: int, code: int = errno.ENOSPC) -> None:
    """The owner raises its epoch, and storage refuses its first write into ``slot``."""
    group.at_call(writes_slot(slot), lambda: group.first.fail_next("pwrite", code))
    with pytest.raises(StoreError, match="cannot be raised"):
        group.owner.raise_epoch()


def test_an_owner_whose_raise_was_refused_behind_its_filler_can_raise_later() -> None:
    group = Group()
    leftover(group, 2)
    # The filler lies in slot 3; a disk that is full refuses the block of slot 2.
    refused_at(group, 2)
    group.owner.confirm()
    group.owner.raise_epoch()
    group.owner.confirm()


def test_an_owner_whose_filler_could_not_be_synced_can_raise_later() -> None:
    group = Group()
    leftover(group, 2)
    group.at_call(writes_slot(3), lambda: group.first.fail_next("fsync", errno.ENOSPC))
    with pytest.raises(StoreError, match="cannot be raised"):
        group.owner.raise_epoch()
    group.owner.confirm()
    group.owner.raise_epoch()
    group.owner.confirm()


def locked_group(*, mixed: bool) -> Group:
    """The owner holds the lock, under epoch 2."""
    group = Group()
    group.owner.release()
    group.owner._lock = StoreLock(group.first, group.owner.root, "/", SimLocker(LockService(), group.first))
    group.owner.try_lock()
    group.owner.activate(ft_mixed=mixed)
    return group


def test_a_refused_end_of_the_mixed_group_is_not_what_the_next_owner_finds() -> None:
    group = locked_group(mixed=True)
    leftover(group, 3)
    group.at_call(writes_slot(3), lambda: group.first.fail_next("pwrite", errno.ENOSPC))
    with pytest.raises(StoreError, match="cannot be raised"):
        group.owner.set_mixed(on=False)
    # The operator was told no: the owner serves on in a mixed group, an original server may follow and write.
    group.owner.confirm()
    assert group.owner.mixed
    taker = group.taker()
    taker.activate(without_lock=True)
    assert taker.was_mixed


def test_a_refused_beginning_of_a_mixed_group_is_not_what_the_next_owner_finds() -> None:
    group = locked_group(mixed=False)
    leftover(group, 3)
    group.at_call(writes_slot(3), lambda: group.first.fail_next("pwrite", errno.ENOSPC))
    with pytest.raises(StoreError, match="cannot be raised"):
        group.owner.set_mixed(on=True)
    group.owner.confirm()
    taker = group.taker()
    assert not taker.activate(without_lock=True).ft_mixed


def test_an_owner_that_died_before_it_read_the_store_does_not_hide_that_originals_may_have_written() -> None:
    group = locked_group(mixed=True)
    # An original server serves under the lock now. Then one of ours that is told "not mixed" takes the store, and dies
    # before it has read anything of it.
    between = group.taker()
    assert between.activate(without_lock=True, ft_mixed=False).was_mixed
    last = group.taker()
    last.activate(without_lock=True)
    assert last.was_mixed


def test_a_claimer_that_died_between_its_fills_does_not_hide_that_originals_may_have_written() -> None:
    group = locked_group(mixed=True)
    leftover(group, 3)
    between = group.taker()
    disk = between._disk

    def die(_number: int, call: str, args: tuple[object, ...]) -> None:
        if writes_slot(4)(call, args):
            disk.kill()  # type: ignore[attr-defined]

    disk.on_call = die  # type: ignore[attr-defined]
    with pytest.raises(BaseException):  # noqa: B017, PT011
        between.activate(without_lock=True, ft_mixed=False)
    last = group.taker()
    last.activate(without_lock=True)
    assert last.was_mixed


# ---- the watch while the epoch is raised ---------------------------------------------------------------------------


def test_storage_that_hangs_while_the_owner_raises_its_epoch_is_seen_by_the_guard() -> None:
    group = locked_group(mixed=False)
    owner, clock = group.owner, ManualClock()
    locker = SimLocker(LockService(), group.first)
    probe = Probe(group.first, owner.root, owner, server_id="OWNER", look=lambda: None, locker=locker)
    failures: list[BaseException] = []
    watch = Watch(probe, clock, 1.0, failures.append)
    guard = Guard()
    verdicts: list[Verdict] = []

    def hang() -> None:
        # For two minutes the write of the record does not come back. No batch is under way: an operator switches.
        for _ in range(480):
            clock.advance(0.25)
            watch.turn()
            vitals = Vitals(probe_since=watch.since, batch_since=None)
            verdicts.append(guard.judge(vitals, clock.mono()).verdict)

    group.at_call(writes_slot(3), hang)
    owner.set_mixed(on=True)
    assert failures == []
    assert set(verdicts) != {Verdict.FINE}


# ---- a late rmdir --------------------------------------------------------------------------------------------------


def test_a_former_owners_late_rmdir_does_not_take_the_channel_from_its_successor_for_good() -> None:
    disk = simulated()
    node = FileNode(disk)
    node.put(b"old")
    node.tick()
    made: list[FileNode] = []

    def at_rmdir(_number: int, call: str, _args: tuple[object, ...]) -> None:
        if call != "rmdir":
            return
        # Confirmed, and paused in front of its rmdir: the successor finishes the deletion, and the channel is used again.
        disk.on_call = None
        successor = node.successor()
        made.append(successor)
        other = successor.disk
        assert isinstance(other, SimDisk)

        def at_first_file(_number: int, call: str, args: tuple[object, ...]) -> None:
            if call == "open" and args[0] != successor.root and str(args[1]).startswith("tmp."):
                other.on_call = None
                late = disk.sibling()
                late.rmdir(late.open_dir("/store"), "foo")

        other.on_call = at_first_file
        successor.put(b"new")

    disk.on_call = at_rmdir
    node.store.delete_channel(b"foo")
    successor = made[0]
    for _ in range(5):
        successor.tick(60.0)
        failed = successor.put(b"newer")
    assert failed == {}


# ---- an original between two of ours, and one of ours that dies before it has read the store --------------------------


def test_what_an_original_acked_is_served_although_one_of_ours_died_before_it_read_the_store() -> None:
    disk = simulated()
    first = store_owner(disk, "FIRST", LockService())
    first.activate(ft_mixed=True)
    node = FileNode(disk, owner=first)  # type: ignore[arg-type]
    node.put(b"a", b"b")
    node.store.close()
    first.release()
    slices = sorted(name for name in disk.tree("/store/foo") if name.endswith(".dat") and name.startswith("msgs."))
    number = int(slices[-1].split(".")[1])
    # An original server died between a record and its index entry; it started again, and acknowledged two others.
    original_stores(disk, number, 3, b"never acked", b"nor this", entries=False)
    original_stores(disk, number, 3, b"acked", b"acked, too", b"and this")
    # The operator ends the mixed group; the first member of ours dies at its first look at the store.
    died = store_owner(disk.sibling(), "DIED", LockService())
    assert died.activate(ft_mixed=False).was_mixed
    last = store_owner(disk.sibling(), "LAST", LockService())
    last.activate(ft_mixed=False)
    after = FileNode(last._disk, owner=last)  # type: ignore[arg-type]
    found = [payload for _, payload in sorted(read_all(after.channels[b"foo"]).items())]
    wanted = [b"a", b"b", b"acked", b"acked, too", b"and this"]
    # Field 4 of the encoded message: its length, its bytes.
    assert [b'"' + bytes([len(data)]) + data in payload for data, payload in zip(wanted, found, strict=True)] == [True] * 5
    assert after.store.quarantined == []


def store_owner(disk: SimDisk, name: str, locks: LockService) -> StoreOwner:
    """An owner of ``/store`` that holds the lock."""
    owner = StoreOwner(disk, "/store", server_id=name, clock=ManualClock(), in_group=True, mountinfo=LOCAL)
    owner._lock = StoreLock(disk, owner.root, "/store", SimLocker(locks, disk))
    owner.try_lock()
    return owner
