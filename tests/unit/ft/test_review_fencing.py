"""Interleavings of owners, takers and refused storage calls, written to break the promise of
docs/ft-argument.md.
"""

from __future__ import annotations

import contextlib
import errno
import random
import threading
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import FencedError, StoreError
from ftstan.ft import epoch
from ftstan.ft.epoch_records import SLOT_SIZE
from ftstan.ft.lock import StoreLock
from ftstan.ft.ownership import StoreOwner
from ftstan.ft.vital_signs import Guard, GuardVerdict, Vitals
from ftstan.ft.watch import Probe, Watch
from tests.filenode import FileNode, simulated
from tests.sim.disk import CrashMode, SimDisk
from tests.sim.ft.locks import LockService, SimLocker
from tests.sim.model import read_all
from tests.unit.ft.test_raise import Group, leftover, writes_slot
from tests.unit.stores.test_foreign_writes import original_stores

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.ft.epoch_records import EpochRecord

LOCAL = "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"


def test_a_channel_whose_deletion_was_refused_stays_when_the_epoch_is_raised() -> None:
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

        def refuse(
            _number: int, call: str, args: tuple[object, ...], node: FileNode = node
        ) -> None:
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


# ---- claim_next: what a refused try leaves
# -----------------------------------------------------------------------


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
    group.owner._lock = StoreLock(
        group.first, group.owner.root, "/", SimLocker(LockService(), group.first)
    )
    group.owner.try_lock()
    group.owner.activate(ft_mixed=mixed)
    return group


def with_lock(owner: StoreOwner) -> StoreOwner:
    """The former owner's host has lost it."""
    owner._lock = StoreLock(owner._disk, owner.root, "/", SimLocker(LockService(), owner._disk))  # type: ignore[arg-type]
    owner.try_lock()
    return owner


def test_a_refused_end_of_the_mixed_group_is_not_what_the_next_owner_finds() -> None:
    group = locked_group(mixed=True)
    leftover(group, 3)
    group.at_call(writes_slot(3), lambda: group.first.fail_next("pwrite", errno.ENOSPC))
    with pytest.raises(StoreError, match="cannot be raised"):
        group.owner.set_mixed(on=False)
    # The operator was told no: the owner serves on in a mixed group, an original server may follow
    # and write.
    group.owner.confirm()
    assert group.owner.mixed
    taker = with_lock(group.taker())
    assert taker.activate().was_mixed
    assert taker.mixed


def test_a_refused_beginning_of_a_mixed_group_is_not_what_the_next_owner_finds() -> None:
    group = locked_group(mixed=False)
    leftover(group, 3)
    group.at_call(writes_slot(3), lambda: group.first.fail_next("pwrite", errno.ENOSPC))
    with pytest.raises(StoreError, match="cannot be raised"):
        group.owner.set_mixed(on=True)
    group.owner.confirm()
    taker = group.taker()
    assert not taker.activate(without_lock=True).ft_mixed


def test_an_owner_that_died_before_it_read_the_store_does_not_hide_writes_of_originals() -> None:
    group = locked_group(mixed=True)
    # An original server serves under the lock now. Then one of ours that is told "not mixed" takes
    # the store, and dies before it has read anything of it.
    between = group.taker()
    assert between.activate(without_lock=True, ft_mixed=False).was_mixed
    last = group.taker()
    last.activate(without_lock=True)
    assert last.originals_through >= 2
    assert not last.mixed


def test_a_claimer_that_died_between_its_fills_does_not_hide_writes_of_originals() -> None:
    group = locked_group(mixed=True)
    leftover(group, 3)
    between = group.taker()
    disk = between._disk

    def die(_number: int, call: str, args: tuple[object, ...]) -> None:
        if writes_slot(4)(call, args):
            disk.kill()  # type: ignore[attr-defined]

    disk.on_call = die  # type: ignore[attr-defined]
    with pytest.raises(BaseException):  # noqa: B017
        between.activate(without_lock=True, ft_mixed=False)
    last = with_lock(group.taker())
    last.activate()
    # Its word was nobody's yet: what was recorded counts.
    assert last.mixed


# ---- the watch while the epoch is raised
# ---------------------------------------------------------------------------


def test_storage_that_hangs_while_the_owner_raises_its_epoch_is_seen_by_the_guard() -> None:
    group = locked_group(mixed=False)
    owner = group.owner
    clock = ManualClock()
    locker = SimLocker(LockService(), group.first)
    probe = Probe(
        group.first, owner.root, owner, server_id="OWNER", look=lambda: None, locker=locker
    )
    failures: list[BaseException] = []
    watch = Watch(probe, clock, 1.0, failures.append)
    guard = Guard()
    verdicts: list[GuardVerdict] = []

    def hang() -> None:
        # For two minutes the write of the record does not come back. No batch is under way: an
        # operator switches.
        for _ in range(480):
            clock.advance(0.25)
            watch.turn()
            vitals = Vitals(probe_since=watch.since, batch_since=None)
            verdicts.append(guard.judge(vitals, clock.mono()).verdict)

    group.at_call(writes_slot(3), hang)
    owner.set_mixed(on=True)
    assert failures == []
    assert set(verdicts) != {GuardVerdict.FINE}


# ---- a late rmdir
# --------------------------------------------------------------------------------------------------


def test_a_former_owners_late_rmdir_does_not_take_the_channel_from_its_successor_for_good() -> None:
    disk = simulated()
    node = FileNode(disk)
    node.put(b"old")
    node.tick()
    made: list[FileNode] = []

    def at_rmdir(_number: int, call: str, _args: tuple[object, ...]) -> None:
        if call != "rmdir":
            return
        # Confirmed, and paused: the successor finishes the deletion, and the channel is used again.
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


# ---- an original between two of ours, one of which dies before it has read the store
# ---------------------------------


def test_what_an_original_acked_is_served_although_one_of_ours_died_before_reading() -> None:
    disk = simulated()
    first = store_owner(disk, "FIRST", LockService())
    first.activate(ft_mixed=True)
    node = FileNode(disk, owner=first)  # type: ignore[arg-type]
    node.put(b"a", b"b")
    node.store.close()
    first.release()
    slices = sorted(
        name
        for name in disk.tree("/store/foo")
        if name.endswith(".dat") and name.startswith("msgs.")
    )
    number = int(slices[-1].split(".")[1])
    # An original server died between a record and its index entry; it started again, and
    # acknowledged two others.
    original_stores(disk, number, 3, b"never acked", b"nor this", entries=False)
    original_stores(disk, number, 3, b"acked", b"acked, too", b"and this")
    # The operator ends the mixed group; the first member of ours dies at its first look at the
    # store.
    died = store_owner(disk.sibling(), "DIED", LockService())
    assert died.activate(ft_mixed=False).was_mixed
    last = store_owner(disk.sibling(), "LAST", LockService())
    last.activate(ft_mixed=False)
    after = FileNode(last._disk, owner=last)  # type: ignore[arg-type]
    found = [payload for _, payload in sorted(read_all(after.channels[b"foo"]).items())]
    wanted = [b"a", b"b", b"acked", b"acked, too", b"and this"]
    # Field 4 of the encoded message: its length, its bytes.
    assert [
        b'"' + bytes([len(data)]) + data in payload
        for data, payload in zip(wanted, found, strict=True)
    ] == [True] * 5
    assert after.store.quarantined == []


def store_owner(disk: SimDisk, name: str, locks: LockService) -> StoreOwner:
    """An owner of ``/store`` that holds the lock."""
    owner = StoreOwner(
        disk, "/store", server_id=name, clock=ManualClock(), in_group=True, mountinfo=LOCAL
    )
    owner._lock = StoreLock(disk, owner.root, "/store", SimLocker(locks, disk))
    owner.try_lock()
    return owner


# ---- every pair of preemptions
# ---------------------------------------------------------------------------------------

TELLING = {"open", "pread", "pwrite", "fsync", "listdir", "unlink"}


class Player:
    """One owner in a thread of its own, which stops in front of each call that tells or changes
    anything.
    """

    def __init__(self, owner: StoreOwner, story: Callable[[Player], None]) -> None:
        self.owner = owner
        self.log: set[int] = set()
        self.over = False
        self.failure: BaseException | None = None
        self._story = story
        self._left = 0
        """Stops that it passes before it waits for its next turn."""
        self._turn = threading.Semaphore(0)
        self._done = threading.Semaphore(0)
        disk = owner._disk
        assert isinstance(disk, SimDisk)
        self._disk = disk
        disk.on_call = self._stop
        disk.keeps_log = False
        threading.Thread(target=self._run, daemon=True).start()

    def step(self, times: int) -> None:
        """Let it go on to its stop number ``times`` from here, or to its end."""
        if self.over:
            return
        self._left = times
        self._turn.release()
        self._done.acquire()

    def pause(self) -> None:
        self._left -= 1
        # Nobody else moves meanwhile: to change threads at each stop was half of the time.
        if self._left > 0:
            return
        self._done.release()
        self._turn.acquire()

    def _stop(self, _number: int, call: str, _args: tuple[object, ...]) -> None:
        if call in TELLING:
            self.pause()

    def _run(self) -> None:
        self._turn.acquire()
        try:
            self._story(self)
        except FencedError:
            pass
        except BaseException as failure:  # noqa: BLE001  # carried to the thread that judges
            self.failure = failure
        self._disk.on_call = None
        self.over = True
        self._done.release()


class Promise:
    """What was made durable, and what was acknowledged under which epoch."""

    def __init__(self) -> None:
        self.durable: list[int] = []
        self.acked: list[tuple[int, int]] = []

    def publish(self, player: Player) -> None:
        message = len(self.durable)
        self.durable.append(message)
        player.log.add(message)
        player.owner.confirm()
        number = player.owner.activation.epoch
        self.acked.append((number, message))
        self.check(player, number)

    def check(self, player: Player, number: int) -> None:
        """It was confirmed: so all that was acknowledged under lower epochs is in its log."""
        assert {message for earlier, message in self.acked if earlier < number} <= player.log

    def raises(self, player: Player) -> None:
        self.publish(player)
        player.owner.raise_epoch()
        self.publish(player)
        player.pause()
        self.publish(player)

    def takes(self, player: Player) -> None:
        player.owner.activate(without_lock=True)
        player.log = set(self.durable)
        self.publish(player)
        player.owner.tidy()
        self.publish(player)


def play(claims: int, first: int, second: int, *, taker_first: bool) -> bool:
    """One schedule: ``first`` calls of one, ``second`` of the other, the rest of both.

    Whether both were still on.
    """
    group = Group()
    for number in range(2, 2 + claims):
        leftover(group, number)
    promise = Promise()
    owner = Player(group.owner, promise.raises)
    taker = Player(group.taker(), promise.takes)
    one, other = (taker, owner) if taker_first else (owner, taker)
    one.step(first)
    other.step(second)
    both = not one.over and not other.over
    one.step(1000)
    other.step(1000)
    confirmed = []
    for player in (owner, taker):
        assert player.failure is None, player.failure
        with contextlib.suppress(FencedError):
            player.owner.confirm()
            promise.check(player, player.owner.activation.epoch)
            confirmed.append(player)
    assert len(confirmed) <= 1
    last = group.taker()
    last.activate(without_lock=True)
    for player in (owner, taker):
        with pytest.raises(FencedError):
            player.owner.confirm()
    last.confirm()
    return both


def every_pair(claims: int, *, taker_first: bool) -> int:
    """Play every schedule with two preemptions; how many there are."""
    schedules = 0
    for first in range(1, 80):
        met = schedules
        for second in range(1, 80):
            if not play(claims, first, second, taker_first=taker_first):
                break
            schedules += 1
        if schedules == met:
            break
    return schedules


@pytest.mark.parametrize("claims", [0, 1, 2])
@pytest.mark.parametrize("taker_first", [False, True])
def test_whenever_an_owner_that_raises_and_a_taker_are_preempted_one_is_confirmed_and_has_every_ack(
    claims: int, *, taker_first: bool
) -> None:
    assert every_pair(claims, taker_first=taker_first) > 300


@pytest.mark.parametrize("left_out", ["_announce", "_check_unowned"])
def test_an_owner_that_skips_a_step_of_its_raise_is_caught(
    left_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*_: object) -> None: ...

    def only_of_a_taker(disk: SimDisk, root_fd: int, ahead: EpochRecord) -> None:
        if ahead.server_id != "OWNER":
            announce(disk, root_fd, ahead)

    announce = epoch._announce
    monkeypatch.setattr(epoch, left_out, only_of_a_taker if left_out == "_announce" else nothing)
    if left_out == "_announce":
        # The check expects the filler on top; without one it can only look at the slots.
        monkeypatch.setattr(epoch, "_check_unowned", look_only)
    with pytest.raises(AssertionError):
        every_pair(1, taker_first=True)


def look_only(disk: SimDisk, root_fd: int, before: epoch.Activation, number: int) -> None:
    """Are the slots between the two numbers blank at this moment?"""
    fd = disk.open(root_fd, epoch.EPOCH_NAME, 0)
    data = disk.pread(fd, (number - before.epoch - 1) * SLOT_SIZE, (before.epoch + 1) * SLOT_SIZE)
    disk.close(fd)
    if any(data):
        raise FencedError("used")
