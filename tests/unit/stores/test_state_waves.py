"""After a takeover the ``subs.dat`` files that acks wait for are replaced many at once, and each by
every rule.
"""

from __future__ import annotations

import errno
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import FencedError
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.store import FileStore
from ftstan.stores.file.syncing import AT_ONCE
from ftstan.stores.interface import StoredSub, SubState
from ftstan.wire.block import SubEvents
from tests.filenode import NO_LIMITS, FileNode, Owner, simulated

if TYPE_CHECKING:
    from pathlib import Path

    from ftstan.stores.interface import ChannelStore
    from tests.sim.disk import SimDisk

STATE = SubState(1, b"me", inbox=b"inbox", ack_inbox=b"acks", durable_name=b"d", is_durable=True)
PATIENCE_S = 30.0
STEP_S = 0.005


def names(count: int) -> list[bytes]:
    return [b"c%03d" % i for i in range(count)]


def broker_of(channel: ChannelStore) -> set[int]:
    """Let somebody know the channel's subscription; returns what it has not acknowledged."""
    pending = {1, 2}
    channel.snapshot = lambda: [StoredSub(STATE, set(pending))]
    return pending


@dataclass
class Told(Owner):
    """Confirms stand in the log of the disk."""

    log: list[str] = field(default_factory=list)

    def confirm(self) -> None:
        self.log.append("confirm")
        super().confirm()


class Taken:
    """A datastore of many channels that a second process has taken over from one that was
    killed.
    """

    def __init__(self, count: int, options: FileStoreOptions | None = None) -> None:
        first = FileNode(simulated())
        for name in names(count):
            broker_of(first.channel(name))
            first.stage(b"one", b"two", channel=name)
            first.channel(name).add_sub(STATE)
        assert first.store.commit() == {}
        first.tick()
        assert not isinstance(first.disk, LocalDisk)
        self.disk: SimDisk = first.disk.crash(process_only=True)  # type: ignore[attr-defined]
        self.owner = Told(2, log=self.disk.log)
        self.node = FileNode(self.disk, owner=self.owner, options=options or FileStoreOptions())
        self.pending = {name: broker_of(self.node.channel(name)) for name in names(count)}
        self.files = self.found()

    def ack(self, name: bytes) -> None:
        self.pending[name].discard(1)
        self.node.acked(1, 1, channel=name)

    def found(self) -> dict[bytes, int]:
        """The inodes of the files that stand under the name."""
        look = self.disk.sibling()
        return {
            name: look.stat(look.open_dir(f"/store/{name.decode()}"), "subs.dat").ino
            for name in self.pending
        }

    def replaced(self) -> list[bytes]:
        """Channels with another file than at the takeover."""
        return [name for name, ino in self.found().items() if ino != self.files[name]]

    def lagging(self) -> list[bytes]:
        """Channels of which a successor does not know what was acknowledged."""
        after = FileNode(self.disk.crash(process_only=True), owner=Owner(3))
        found = {c.name: c.recovered_subs()[0].pending for c in after.recovered.channels}
        return [name for name, pending in self.pending.items() if found[name] != pending]

    def slow(self) -> None:
        """Let every call that waits for storage take its time."""

        def wait(_number: int, name: str, _args: tuple[object, ...]) -> None:
            if name in ("fsync", "fdatasync", "rename", "unlink"):
                self.node.clock.advance(STEP_S)

        self.disk.on_call = wait

    def turn(self) -> bool:
        return self.node.store.tick(self.node.clock.wall_ns())


def test_files_with_acks_come_before_those_with_deliveries() -> None:
    taken = Taken(6)
    *sent, acked = names(6)
    for name in sent:
        taken.node.sent(1, 2, channel=name)
    taken.ack(acked)
    taken.disk.log.clear()
    taken.node.tick()
    first = next(call for call in taken.disk.log if call.startswith("rename"))
    assert sorted(taken.replaced()) == names(6)
    dirfd = int(first.split()[1])
    channel = taken.node.channel(acked)
    assert channel.log.dirfd == dirfd  # type: ignore[attr-defined]


def test_a_wave_is_one_confirm_between_all_the_syncs_and_all_the_renames() -> None:
    taken = Taken(9)
    for name in names(9):
        taken.ack(name)
    taken.disk.log.clear()
    assert not taken.node.store.catch_up()
    calls = [
        c for c in taken.disk.log if c.startswith(("fsync", "rename", "confirm")) or "tmp." in c
    ]
    assert [c.split()[0] for c in calls] == ["open", "fsync"] * 9 + ["confirm"] + [
        "rename",
        "fsync",
    ] * 9
    assert taken.lagging() == []


def test_a_turn_of_slow_storage_is_one_wave_and_the_next_ones_are_the_rest() -> None:
    count = 2 * AT_ONCE + 5
    taken = Taken(count)
    for name in names(count):
        taken.ack(name)
    taken.slow()
    waited = taken.node.store.acks_wait
    assert waited
    assert taken.turn()
    assert len(taken.replaced()) == AT_ONCE
    assert taken.turn()
    assert len(taken.replaced()) == 2 * AT_ONCE
    taken.turn()
    assert len(taken.replaced()) == count
    assert not taken.node.store.acks_wait
    taken.disk.on_call = None
    assert taken.lagging() == []


def test_acks_that_come_while_the_rest_of_a_second_is_under_way_wait_for_none_of_it() -> None:
    count = 40
    taken = Taken(count)
    for name in names(count):
        taken.node.put(b"three", channel=name)
    taken.slow()
    assert taken.turn()
    last = names(count)[-1]
    taken.ack(last)
    assert taken.turn()
    assert last in taken.replaced()


def test_where_every_batch_is_synced_no_ack_waits_for_a_wave() -> None:
    taken = Taken(3, FileStoreOptions(sync_subs=True))
    for name in names(2):
        taken.ack(name)
        assert taken.lagging() == []
    taken.node.sent(1, 2, channel=names(3)[2])
    assert taken.replaced() == names(3)


def test_what_a_killed_owner_left_is_replaced_behind_what_only_memory_knows() -> None:
    taken = Taken(3)
    for name in names(2):
        taken.ack(name)
    taken.disk.log.clear()
    taken.node.tick()
    syncs_before = [c.split()[0] for c in taken.disk.log[: taken.disk.log.index("confirm")]]
    # The new files, and no predecessor: its late records would still count, however durable it is.
    assert syncs_before.count("fsync") == 3
    assert taken.replaced() == names(3)
    renamed = [call for call in taken.disk.log if call.startswith("rename")]
    assert len(renamed) == 3


def test_whoever_is_fenced_at_the_confirm_leaves_every_file_as_it_is() -> None:
    taken = Taken(5)
    for name in names(5):
        taken.ack(name)
    taken.owner.fenced = True
    with pytest.raises(FencedError):
        taken.node.store.catch_up()
    assert taken.replaced() == []
    for name in names(5):
        assert "tmp.4096.subs.dat" in taken.disk.tree(f"/store/{name.decode()}")
    assert not any(call.startswith(("rename", "unlink")) for call in taken.disk.log[-20:])


@pytest.mark.parametrize("call", ["open", "pwrite", "fsync", "rename"])
def test_without_space_for_one_file_the_others_are_replaced_and_that_one_a_second_later(
    call: str,
) -> None:
    taken = Taken(5)
    for name in names(5):
        taken.ack(name)
    taken.disk.fail_next(call, errno.ENOSPC)
    assert not taken.node.store.catch_up()
    assert len(taken.replaced()) == 4
    assert len(taken.lagging()) == 1
    taken.node.tick()
    assert taken.lagging() == []
    for name in names(5):
        assert not [n for n in taken.disk.tree(f"/store/{name.decode()}") if n.startswith("tmp.")]


def test_a_temporary_that_storage_let_nobody_remove_is_in_nobodys_way() -> None:
    taken = Taken(1)
    (name,) = names(1)
    taken.disk.add_tree(f"/store/{name.decode()}", {"tmp.4096.subs.dat": b"torn"})
    taken.ack(name)
    assert not taken.node.store.catch_up()
    assert taken.lagging() == []


def test_a_channel_that_is_deleted_while_it_waits_is_passed_over() -> None:
    taken = Taken(2)
    gone, other = names(2)
    taken.ack(gone)
    taken.ack(other)
    taken.node.store.delete_channel(gone)
    assert not taken.node.store.catch_up()
    assert gone.decode() not in taken.disk.tree("/store")
    assert not taken.node.store.acks_wait


class Meeting(LocalDisk):
    """Its syncs return when as many as are expected are under way.

    One that waits too long breaks the meeting.
    """

    meeting: threading.Barrier | None = None

    def fsync(self, fd: int) -> None:
        if self.meeting is not None:
            self.meeting.wait(PATIENCE_S)


def test_all_files_of_a_wave_are_at_storage_at_the_same_time(tmp_path: Path) -> None:
    disk = Meeting()

    def store(epoch: int) -> FileStore:
        return FileStore(disk, disk.open_dir(str(tmp_path)), Owner(epoch), ManualClock())

    first = store(1)
    first.recover()
    for name in names(AT_ONCE):
        made = first.create_channel(name, NO_LIMITS)
        broker_of(made)
        made.add_sub(STATE)
    assert first.commit() == {}
    first.abandon()
    second = store(2)
    for channel in second.recover().channels:
        broker_of(channel)
        events = SubEvents()
        events.acked(1, 1)
        channel.add_events(events)
    disk.meeting = threading.Barrier(AT_ONCE)
    waited = second.acks_wait
    assert waited
    assert not second.catch_up()
    assert not second.acks_wait
    disk.meeting = None
    second.close()
