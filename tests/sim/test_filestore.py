"""The real file store dies at every storage call, meets faults and zombies, and breaks no promise.

Broken ones do.
"""

from __future__ import annotations

import errno
import re
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import FencedError, StoreError
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.log import slices
from ftstan.stores.file.log.retention import RetainedSlices
from ftstan.stores.file.log.slices import SliceLog
from ftstan.stores.file.store import FileStore
from ftstan.stores.file.syncing import Syncer
from ftstan.stores.interface import ChannelLimits, ClientInfo, SubState
from ftstan.wire.block import MsgBlock, SubEvents
from tests.sim import census
from tests.sim.disk import CrashMode, SimDisk
from tests.sim.filestore import SimOwner, open_file_store
from tests.sim.ft import broken
from tests.sim.history import INFO, STORE, Fault, kill_at_every_call, run_history
from tests.sim.model import ChannelModel, Model, Violation
from tests.sim.variants import SMALL, VARIANTS, Variant

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ftstan.stores.file.channel import FileChannel
    from ftstan.stores.file.dirty_channels import Unsynced
    from ftstan.stores.file.log.view import Slice
    from ftstan.stores.interface import ChannelStore, Store

    Patch = pytest.MonkeyPatch

NO_LIMITS = ChannelLimits(max_msgs=0, max_bytes=0)


# ---- kills
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_store_killed_at_any_call_keeps_every_promise(variant: Variant, epoch: int) -> None:
    met: Counter[str] = Counter()
    for seed in range(3):
        met += kill_at_every_call(
            variant.open_store,
            seed,
            epoch=epoch,
            stride=3,
            shape=variant.shape,
            judge=variant.judge,
        )
    assert met["histories"] > 60
    for happened in ("killed", "processes-killed", "power-cuts"):
        assert met[happened] > 0, (happened, met)


def test_mixed_histories_meet_every_fault_and_every_path() -> None:
    met: Counter[str] = Counter()
    # The last ones meet a torn end that is ended, which is rare.
    for seed in (*range(40), 73, 85):
        met += census.run(seed)
    print(census.table(met))
    assert [name for name in census.REQUIRED if not met[name]] == []


def test_an_owner_that_uses_up_its_slice_numbers_raises_its_epoch_and_keeps_every_promise(
    monkeypatch: Patch,
) -> None:
    monkeypatch.setattr(slices, "NUMBERS_PER_EPOCH", 2)
    raised: Counter[str] = Counter()
    raise_epoch = SimOwner.raise_epoch

    def counted(self: SimOwner) -> None:
        raised["epochs"] += 1
        raise_epoch(self)

    monkeypatch.setattr(SimOwner, "raise_epoch", counted)
    for seed in range(2):
        kill_at_every_call(SMALL.open_store, seed, stride=3, judge=SMALL.judge)
    assert raised["epochs"] > 20


# ---- faults
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_store_that_storage_fails_keeps_every_promise(code: int) -> None:
    met: Counter[str] = Counter()
    for seed in range(8):
        for call in range(12 + seed % 3, 92, 3):
            met += run_history(
                open_file_store, seed, kills=[None, 30], faults=[Fault(0, call, code)]
            ).met
            met += run_history(
                open_file_store, seed, kills=[None, None, 30], faults=[Fault(1, call, code)]
            ).met
    assert met["gave-up"] > 0
    assert met["failed-channels"] > 0
    assert met["stopped-cleanly"] > met["gave-up"]
    if code == errno.ENOSPC:
        assert met["no-space"] > 0
    else:
        assert {"EIO pwrite", "EIO fsync", "EIO fdatasync", "EIO rename"} <= met.keys(), met
        assert met["sync-dropped"] > 0


@dataclass
class Node:
    """One process on a disk, for histories that are told step by step."""

    disk: SimDisk

    def __post_init__(self) -> None:
        self.store = open_file_store(self.disk, ManualClock())
        self.channels = {c.name: c for c in self.store.recover().channels}

    def channel(self) -> ChannelStore:
        if b"foo" not in self.channels:
            self.channels[b"foo"] = self.store.create_channel(b"foo", NO_LIMITS)
        return self.channels[b"foo"]

    def add(self, sub_id: int) -> dict[bytes, StoreError]:
        """Store one more durable subscription."""
        self.channel().add_sub(
            SubState(sub_id, b"me", durable_name=b"dur.%d" % sub_id * 50, is_durable=True)
        )
        return self.store.commit()

    def successor(self, mode: CrashMode = CrashMode.LOST) -> Node:
        return Node(self.disk.crash(mode=mode))

    @property
    def sub_ids(self) -> list[int]:
        return [s.state.sub_id for s in self.channel().recovered_subs()]


def first_node() -> Node:
    disk = SimDisk()
    disk.make_dirs(STORE)
    return Node(disk)


@pytest.mark.parametrize("call", ["open", "pwrite", "fsync", "rename"])
def test_when_subscriptions_cannot_be_replaced_those_that_were_recovered_are_not_lost(
    call: str,
) -> None:
    node = first_node()
    node.add(1)
    node = node.successor()
    node.disk.fail_next(call, errno.EIO)
    assert list(node.add(2)) == [b"foo"]
    assert node.add(3) == {}
    assert node.successor().sub_ids == [1, 3]


def test_a_subscriptions_file_whose_sync_failed_ends_the_process_and_nothing_is_answered() -> None:
    node = first_node()
    node.add(1)
    node.disk.fail_next("fdatasync", errno.EIO)
    with pytest.raises(StoreError, match="state file cannot be synced"):
        node.add(2)
    assert 1 in node.successor().sub_ids


def test_without_space_a_subscription_is_refused_and_the_file_stays_readable() -> None:
    node = first_node()
    node.add(1)
    node.disk.volume.space = 60
    assert list(node.add(2)) == [b"foo"]
    node.disk.volume.space = None
    node.channel().add_sub(SubState(3, b"me", is_durable=True))
    assert node.store.commit() == {}
    assert node.successor().sub_ids == [1, 3]


def test_without_space_events_wait_until_there_is_some() -> None:
    node = first_node()
    node.add(1)
    block = MsgBlock()
    block.append(1, b"foo", b"", b"x", 1)
    node.channel().append(block)
    node.store.commit()
    node.disk.volume.space = 0
    events = SubEvents()
    events.sent(1, 1)
    node.channel().add_events(events)
    node.store.write_events()
    node.store.tick(1)
    node.disk.volume.space = None
    node.store.tick(2)
    (sub,) = node.successor().channel().recovered_subs()
    assert sub.pending == {1}


def test_a_channel_whose_directory_could_not_be_synced_is_synced_before_its_first_ack() -> None:
    node = first_node()
    node.disk.fail_next("fsync", errno.EIO)
    assert list(node.add(1)) == [b"foo"]
    assert node.add(2) == {}
    assert node.successor().sub_ids == [2]


# ---- zombies
# --------------------------------------------------------------------------------------------------


class Zombie:
    """An owner that is paused at one storage call of its second batch while a successor takes over
    and serves.
    """

    def __init__(self, seed: int, pause_at: int, met: Counter[str]) -> None:
        self.rng = Random(f"zombie {seed}")
        self.seed = seed
        self.pause_at = pause_at
        self.met = met
        self.model = Model()
        self.clock = ManualClock()
        self.serial = 0
        self.disk = SimDisk()
        self.disk.make_dirs(STORE)

    def run(self) -> int:
        """Returns how many calls the second batch took; raises ``Violation``."""
        try:
            return self._run()
        except Violation as violation:
            raise Violation(
                f"{violation} [seed={self.seed}, pause_at={self.pause_at}]"
            ) from violation

    def _run(self) -> int:
        old = self._open(self.disk)
        self._stage(old, b"both")
        self._answered(old)
        before = self.disk.calls
        late = self._stage(old, b"both", b"new")
        successors: list[tuple[SimDisk, Store]] = []

        def pause(call: int, _name: str, _arguments: tuple[object, ...]) -> None:
            if call == before + self.pause_at:
                successors.append(self._take_over())

        self.disk.on_call = pause
        try:
            self.met["zombies-failed"] += bool(old.commit())
            old.write_events()
            old.confirm()
        except FencedError:
            self.met["zombies-fenced"] += 1
        else:
            if not successors:
                return self.disk.calls - before
            # Confirmed by a read from before the successor's claim: what it acknowledges now must
            # be in both logs.
            self.met["zombies-confirmed"] += 1
            for name, sequence, payload in late:
                self.model.channels[name].fix(sequence, payload)
        self.disk.on_call = None
        self.met["zombies"] += 1
        disk, store = successors[0]
        # The successor goes on with the files that it holds open, and then the power fails.
        self._stage(store, b"both", b"new")
        self._answered(store)
        disk = disk.crash(
            self.rng, self.rng.choice(list(CrashMode)), process_only=self.rng.random() < 0.5
        )
        store = self._recovered(disk)
        self._stage(store, b"both", b"new")
        self._answered(store)
        store.close()
        self.model.check(open_file_store(disk.sibling(), self.clock).recover())
        return self.disk.calls - before

    def _open(self, disk: SimDisk) -> Store:
        store = open_file_store(disk, self.clock)
        self.model.check(store.recover())
        store.set_server_info(INFO)
        self.model.info = INFO
        self.channels: dict[bytes, ChannelStore] = {}
        return store

    def _take_over(self) -> tuple[SimDisk, Store]:
        disk = self.disk.sibling()
        store = self._recovered(disk)
        self._stage(store, b"both", b"new")
        self._answered(store)
        return disk, store

    def _recovered(self, disk: SimDisk) -> Store:
        store = open_file_store(disk, self.clock)
        found = store.recover()
        for name, contents in self.model.check(found).items():
            for sequence, payload in contents.items():
                self.model.channels[name].fix(sequence, payload)
        self.channels = {c.name: c for c in found.channels}
        return store

    def _answered(self, store: Store) -> None:
        failed = store.commit()
        store.confirm()
        store.write_events()
        if failed:
            raise Violation(f"{failed} without a fault")
        self.model.answered(set())

    def _stage(self, store: Store, *names: bytes) -> list[tuple[bytes, int, bytes]]:
        """Publish to each channel, subscribe on it, register a client.

        Returns what was published.
        """
        published = []
        for name in names:
            if name not in self.channels:
                self.model.channels.setdefault(name, ChannelModel(name))
                self.channels[name] = store.create_channel(name, NO_LIMITS)
            channel = self.channels[name]
            model = self.model.channels[name]
            block = MsgBlock()
            for sequence in range(channel.last + 1, channel.last + 1 + self.rng.randint(1, 3)):
                self.serial += 1
                block.append(sequence, name, b"", b"%d" % self.serial, self.clock.wall_ns())
                model.offer(sequence, block.payload(len(block) - 1))
                published.append((name, sequence, block.payload(len(block) - 1)))
            channel.append(block)
            self.serial += 1
            state = SubState(
                channel.next_sub_id, b"client", inbox=b"in.%d" % self.serial, is_durable=True
            )
            model.stage_sub(state.sub_id, state)
            channel.add_sub(state)
        self.serial += 1
        info = ClientInfo(b"client-%d" % self.serial, b"hb.%d" % self.serial)
        self.model.stage_client(info.client_id, info)
        store.add_client(info)
        return published


def zombies(seeds: int) -> Counter[str]:
    met: Counter[str] = Counter()
    for seed in range(seeds):
        pause_at = 1
        calls = 1
        while pause_at <= calls:
            calls = Zombie(seed, pause_at, met).run()
            pause_at += 1
    return met


def test_an_owner_paused_at_any_call_of_a_batch_takes_nothing_from_its_successor() -> None:
    met = zombies(6)
    assert met["zombies"] > 150
    assert met["zombies-fenced"] > 0
    assert met["zombies-failed"] > 0
    assert met["zombies-confirmed"] > 0


# ---- broken on purpose
# ---------------------------------------------------------------------------------------------


def kills(
    open_store: Callable[[SimDisk, ManualClock], FileStore] = open_file_store,
    seeds: range = range(40),
) -> Callable[[], object]:
    def look() -> None:
        for seed in seeds:
            for epoch in (0, 1):
                kill_at_every_call(open_store, seed, epoch=epoch)

    return look


def caught(look: Callable[[], object]) -> str:
    with pytest.raises(Violation) as violation:
        look()
    return str(violation.value)


def unsynced(disk: SimDisk, clock: ManualClock) -> FileStore:
    return open_file_store(disk, clock, FileStoreOptions(sync=False))


def test_an_ack_before_the_sync_is_caught() -> None:
    caught(kills(unsynced))


def test_a_slice_that_is_visible_before_it_is_durable_is_caught(monkeypatch: Patch) -> None:
    publish = SliceLog._publish_file

    def unsynced_file(
        self: SliceLog, temporary: str, name: str, data: bytes, *, durable: bool
    ) -> int:
        return publish(self, temporary, name, data, durable=False)

    monkeypatch.setattr(SliceLog, "_publish_file", unsynced_file)
    caught(kills())


def test_a_slice_whose_name_is_not_synced_is_caught(monkeypatch: Patch) -> None:
    opened = SliceLog._open_slice

    def without_directory_sync(self: SliceLog, block: MsgBlock, i: int, j: int) -> None:
        disk = self._env.disk
        monkeypatch.setattr(
            disk, "fsync", lambda fd: None if fd == self.dirfd else type(disk).fsync(disk, fd)
        )
        try:
            opened(self, block, i, j)
        finally:
            monkeypatch.delattr(disk, "fsync")

    monkeypatch.setattr(SliceLog, "_open_slice", without_directory_sync)
    assert re.search("gone|is quarantined", caught(kills()))


def test_a_tail_that_is_ignored_is_caught(monkeypatch: Patch) -> None:
    monkeypatch.setattr(SliceLog, "copy_tail", lambda _self, _tail: None)
    caught(kills())


def test_a_tail_that_is_delivered_before_its_copy_is_durable_is_caught(monkeypatch: Patch) -> None:
    copy = SliceLog.copy_tail
    publish = SliceLog._publish_file

    def unsynced_file(
        self: SliceLog, temporary: str, name: str, data: bytes, *, durable: bool
    ) -> int:
        return publish(self, temporary, name, data, durable=False)

    def unsynced_copy(self: SliceLog, tail: MsgBlock) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(SliceLog, "_publish_file", unsynced_file)
            copy(self, tail)

    monkeypatch.setattr(SliceLog, "copy_tail", unsynced_copy)
    caught(kills(seeds=range(9, 120)))


def test_an_index_entry_before_the_sync_of_its_data_is_caught(monkeypatch: Patch) -> None:
    write = Syncer.sync

    def index_first(
        self: Syncer, pending: Sequence[Unsynced[FileChannel]]
    ) -> list[tuple[OSError, Unsynced[FileChannel]]]:
        for item in pending:
            if item.channel is not None and item.channel.log.staged:
                item.channel.log.finish()
        return write(self, pending)

    monkeypatch.setattr(Syncer, "sync", index_first)
    caught(kills(seeds=range(20, 120)))


def test_temporaries_that_a_successor_leaves_are_caught(monkeypatch: Patch) -> None:
    broken.temporaries_left(monkeypatch)
    caught(lambda: zombies(6))


def test_a_state_file_that_is_appended_to_instead_of_replaced_is_caught(monkeypatch: Patch) -> None:
    broken.state_files_appended(monkeypatch)
    caught(lambda: zombies(6))


def test_a_successor_that_does_not_seal_is_caught(monkeypatch: Patch) -> None:
    broken.no_seal(monkeypatch)
    caught(lambda: zombies(6))


def test_an_owner_that_is_never_confirmed_is_caught(monkeypatch: Patch) -> None:
    monkeypatch.setattr(FileStore, "confirm", lambda _self: None)
    caught(lambda: zombies(6))


def faults(
    variant: Variant, code: int = errno.EIO, seeds: range = range(60)
) -> Callable[[], object]:
    def look() -> None:
        for seed in seeds:
            for call in range(12 + seed % 5, 120, 5):
                run_history(
                    variant.open_store,
                    seed,
                    kills=[None, 30],
                    faults=[Fault(0, call, code)],
                    shape=variant.shape,
                    judge=variant.judge,
                )

    return look


def test_a_sync_that_is_tried_again_after_it_failed_is_caught(monkeypatch: Patch) -> None:
    for name in ("fdatasync", "fsync"):
        sync = getattr(SimDisk, name)

        def retried(self: SimDisk, fd: int, sync: Callable[[SimDisk, int], None] = sync) -> None:
            try:
                sync(self, fd)
            except OSError:
                sync(self, fd)

        monkeypatch.setattr(SimDisk, name, retried)
    caught(faults(SMALL))


def test_a_slice_that_is_visible_before_its_first_batch_is_caught(monkeypatch: Patch) -> None:
    publish = SliceLog._publish_file

    def empty_first(
        self: SliceLog, temporary: str, name: str, data: bytes, *, durable: bool
    ) -> int:
        fd = publish(self, temporary, name, data[:4], durable=durable)
        self._env.disk.pwrite(fd, data, 0)
        if durable:
            self._env.disk.fsync(fd)
        return fd

    monkeypatch.setattr(SliceLog, "_publish_file", empty_first)
    assert "is visible and holds no whole record" in caught(kills())


def after_a_retired_seal() -> list[int]:
    """A failed batch lies under a seal, the limits retire the seal, and a start without limits
    follows.

    Returns the sequences found whose content is not the one that was acknowledged.
    """
    disk = SimDisk()
    disk.make_dirs(STORE)
    clock = ManualClock()
    few = ChannelLimits(max_msgs=2, max_bytes=0)
    store = open_file_store(disk, clock, FileStoreOptions(slice_max_msgs=2), limits=few)
    store.recover()
    channel = store.create_channel(b"foo", few)
    acked: dict[int, bytes] = {}

    def publish(data: bytes, count: int) -> dict[bytes, StoreError]:
        block = MsgBlock()
        for sequence in range(channel.last + 1, channel.last + 1 + count):
            block.append(sequence, b"foo", b"", data, clock.wall_ns())
        channel.append(block)
        failed = store.commit()
        if not failed:
            acked.update({block.sequence(i): block.payload(i) for i in range(count)})
        return failed

    assert publish(b"first", 2) == {}
    disk.fail_next("unlink", errno.EIO)
    assert list(publish(b"unknown", 1)) == [b"foo"]
    assert publish(b"acknowledged", 2) == {}
    assert publish(b"last", 2) == {}
    store.tick(clock.wall_ns())
    (found,) = (
        open_file_store(disk.crash(process_only=True), clock, limits=NO_LIMITS).recover().channels
    )
    wrong = []
    for sequence in range(1, found.last + 1):
        block = found.read(sequence, 1, 1)
        if block is not None and block.first == sequence and block.payload(0) != acked[sequence]:
            wrong.append(sequence)
    return wrong


def test_a_failed_batch_stays_hidden_when_its_seal_has_been_removed() -> None:
    assert after_a_retired_seal() == []


def test_a_seal_that_is_retired_before_what_it_hides_is_caught(monkeypatch: Patch) -> None:
    removable = RetainedSlices.removable

    def live_ones_only(self: RetainedSlices) -> list[int]:
        dead = self.dead
        self.dead = set()
        try:
            return removable(self)
        finally:
            self.dead = dead

    monkeypatch.setattr(RetainedSlices, "removable", live_ones_only)
    assert after_a_retired_seal() == [3]


def test_an_index_that_a_clean_stop_leaves_in_the_page_cache_is_caught(monkeypatch: Patch) -> None:
    def leave(_log: SliceLog, _name: str) -> None:
        """What a killed owner wrote to its index is durable as far as the kernel likes."""

    def trust(_log: SliceLog, _slices: list[Slice], *, synced: bool) -> set[int]:
        """Nor are the last indexes of former activations written anew, which would make up for
        it.
        """
        del synced
        return set()

    monkeypatch.setattr(SliceLog, "_sync_closed", leave)
    monkeypatch.setattr(SliceLog, "_doubtful", trust)

    def look() -> None:
        for seed in range(40):
            kill_at_every_call(SMALL.open_store, seed, stride=3, judge=SMALL.judge)

    caught(look)
