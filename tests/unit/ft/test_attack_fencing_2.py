"""Attacks on what one activation keeps of channels and files that another, or it itself, has
replaced since.
"""

from __future__ import annotations

import contextlib
import errno
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from ftstan.admin.keys import KEY_NAME, ensure_key
from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import FencedError, StoreError
from ftstan.broker.broker import BrokerOptions
from ftstan.config.limits import Limits
from ftstan.ft.ownership import StoreOwner
from ftstan.ft.watch import WATCH_NAME, Probe, decode_watch
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.store import FileStore
from ftstan.stores.interface import ChannelLimits, ClientInfo, SubState
from tests.compat.driver import SECOND, Driver, sequences
from tests.filenode import NO_LIMITS, FileNode, Owner, simulated
from tests.sim.disk import SimDisk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOCAL = "36 35 8:1 / / rw - ext4 /dev/sda1 rw\n"
DURABLE = SubState(1, b"me", inbox=b"in", ack_inbox=b"acks", durable_name=b"d", is_durable=True)


def subscribe(node: FileNode, channel: bytes = b"foo", durable: bytes = b"d") -> None:
    """A durable that is answered."""
    ch = node.channel(channel)
    sub_id = ch.next_sub_id
    ch.add_sub(
        SubState(
            sub_id, b"me", inbox=b"in", ack_inbox=b"acks", durable_name=durable, is_durable=True
        )
    )
    assert node.store.commit() == {}
    node.store.confirm()


def durables(node: FileNode, channel: bytes = b"foo") -> list[bytes]:
    return [s.state.durable_name for s in node.channels[channel].recovered_subs()]


def after_kill(node: FileNode) -> FileNode:
    assert isinstance(node.disk, SimDisk)
    return node.successor(node.disk.crash(process_only=True))


def taken_over() -> FileNode:
    """An owner that has taken over a channel with five messages and a durable, and has not had its
    first second.
    """
    first = FileNode(simulated())
    first.put(b"1", b"2", b"3", b"4", b"5")
    subscribe(first)
    first.tick()
    return after_kill(first)


# ---- a channel that was deleted, and its object that is still waiting somewhere
# --------------------------------------


def test_a_channel_deleted_in_the_first_second_after_a_takeover_does_not_end_the_owner() -> None:
    node = taken_over()
    node.store.delete_channel(b"foo")
    node.tick()
    node.tick()
    assert after_kill(node).channels == {}


def test_a_channel_made_again_right_after_a_takeover_keeps_its_subscription_and_messages() -> None:
    node = taken_over()
    node.store.delete_channel(b"foo")
    del node.channels[b"foo"]
    node.put(b"new")
    subscribe(node, durable=b"new")
    node.tick()
    node.tick()
    third = after_kill(node)
    assert third.recovered.refused == {}
    assert (durables(third), third.channels[b"foo"].last, third.sequences()) == ([b"new"], 1, [1])


def test_a_channel_deleted_while_a_stop_is_prepared_is_not_written_to_again() -> None:
    node = FileNode(simulated(), options=FileStoreOptions(sync_index=True))
    for channel in (b"a", b"foo"):
        node.put(b"1", b"2", b"3", channel=channel)
    node.tick()
    node.put(b"4", channel=b"foo")
    # Both wait for their turn of the stop; only the first has it before the second is deleted and
    # made again.
    assert node.store.prepare_close(0)
    queue = node.store._leaving._queue
    assert [channel.name for channel in queue] == [b"a", b"foo"]
    node.store.delete_channel(b"foo")
    del node.channels[b"foo"]
    node.put(b"new", channel=b"foo")
    subscribe(node)
    while node.store.prepare_close(1):
        pass
    third = after_kill(node)
    assert third.recovered.refused == {}
    assert (durables(third), third.channels[b"foo"].last, third.sequences()) == ([b"d"], 1, [1])


@dataclass
class Servers:
    """Brokers one after the other on one simulated disk."""

    limits: ChannelLimits = NO_LIMITS
    disk: SimDisk = field(default_factory=simulated)
    clock: ManualClock = field(default_factory=ManualClock)
    epoch: int = 0

    def start(self, most_at_once: int | None = None) -> Driver:
        self.epoch += 1
        store = FileStore(
            self.disk,
            self.disk.open_dir("/store"),
            Owner(self.epoch),
            self.clock,
            FileStoreOptions(),
            limits=Limits.same(self.limits),
            parallel_sync=False,
            most_at_once=most_at_once,
        )
        return Driver(store, BrokerOptions(limits=self.limits), self.clock, {b"hb.me"})

    def kill(self, driver: Driver) -> None:
        self.disk = self.disk.crash(process_only=True)


def test_an_inactive_channel_made_again_after_a_takeover_keeps_its_new_state() -> None:
    servers = Servers(ChannelLimits(max_msgs=0, max_bytes=0, max_inactivity=SECOND // 2))
    driver = servers.start()
    driver.connect()
    driver.publish(b"1", b"2", b"3")
    driver.subscribe(durable=b"old")
    driver.close()
    servers.kill(driver)
    # Its successor deletes the channel, which has a durable that is offline and nobody else, and
    # makes it again.
    driver = servers.start()
    driver.wait(0.6)
    assert not driver.broker.channels.objects
    driver.connect()
    driver.subscribe(durable=b"new")
    assert driver.publish(b"4")[0].error == b""
    driver.store.tick(servers.clock.wall_ns())
    driver.store.tick(servers.clock.wall_ns())
    servers.kill(driver)
    (found,) = FileNode(servers.disk, owner=Owner(servers.epoch + 1)).recovered.channels
    assert ([s.state.durable_name for s in found.recovered_subs()], found.last) == ([b"new"], 1)


# ---- stores that open their channels by and by
# -----------------------------------------------------------------------


def torn_close(servers: Servers, durable: bytes = b"") -> None:
    """A client of three channels closes, and its server dies when ``clients.dat`` says so and no
    ``subs.dat`` does.
    """
    driver = servers.start()
    driver.connect()
    for name in (b"a", b"b", b"c"):
        driver.publish(b"1", channel=name)
        driver.subscribe(channel=name, inbox=b"old." + name, durable=durable)
    driver.store.tick(servers.clock.wall_ns())
    assert isinstance(driver.store, FileStore)
    driver.store.delete_client(b"me")
    assert driver.store.commit() == {}
    servers.kill(driver)


@pytest.mark.parametrize("most_at_once", [None, 0], ids=["at once", "by and by"])
def test_a_client_that_comes_back_after_a_torn_close_resumes_its_durable(
    most_at_once: int | None,
) -> None:
    servers = Servers()
    torn_close(servers, durable=b"d")
    driver = servers.start(most_at_once)
    driver.connect()
    driver.subscribe(channel=b"b", inbox=b"new", durable=b"d")
    assert sequences(driver.out, b"new") == [1]


@pytest.mark.parametrize("most_at_once", [None, 0], ids=["at once", "by and by"])
def test_a_client_that_comes_back_after_a_torn_close_has_no_subscription_of_its_former_life(
    most_at_once: int | None,
) -> None:
    servers = Servers()
    torn_close(servers)
    driver = servers.start(most_at_once)
    driver.connect()
    driver.publish(b"2", channel=b"b")
    assert (driver.broker.counts()["subscriptions"], sequences(driver.out, b"old.b")) == (0, [])


# ---- a late call of a former owner, and a third owner that reads
# -----------------------------------------------------

LIMITS = ChannelLimits(max_msgs=4, max_bytes=0)


def purge(node: FileNode) -> None:
    node.channel().purge(4)
    node.tick()


def close(node: FileNode) -> None:
    node.store.prepare_close(1)
    node.store.close()


def delete(node: FileNode) -> None:
    node.store.delete_channel(b"foo")
    node.channels.pop(b"foo")


def make_again(node: FileNode) -> None:
    delete(node)
    node.put(b"again")
    node.tick()


FORMER: dict[str, Callable[[FileNode], None]] = {
    "purge": purge,
    "close": close,
    "delete": delete,
    "again": make_again,
}


def interrupted(
    number: int,
    what_former_does: Callable[[FileNode], None],
    what_successor_does: Callable[[FileNode], None],
) -> FileNode | None:
    """The successor of an owner that stood still before a call of what it does, and made that call
    too late.

    ``None``: it does not have so many.
    """
    first = FileNode(simulated(), options=FileStoreOptions(slice_max_msgs=2), limits=LIMITS)
    for n in range(6):
        first.put(b"%d" % n)
    subscribe(first)
    first.tick()
    disk = first.disk
    second: list[FileNode] = []
    assert isinstance(disk, SimDisk)
    due = disk.calls + 1 + number

    def take_over(call: int, _name: str, _arguments: tuple[object, ...]) -> None:
        if call == due:
            first.owner.fenced = True
            second.append(node := first.successor())
            node.put(b"told")
            node.tick()
            what_successor_does(node)

    disk.on_call = take_over
    with contextlib.suppress(FencedError, StoreError):
        what_former_does(first)
    return second[0] if second else None


@pytest.mark.parametrize("what_successor_does", ["again", "purge", "close"])
@pytest.mark.parametrize("what_former_does", list(FORMER))
def test_wherever_a_former_owner_stands_still_the_third_owner_finds_what_the_second_has_told(
    what_former_does: str, what_successor_does: str
) -> None:
    number = 0
    while (
        told := interrupted(number, FORMER[what_former_does], FORMER[what_successor_does])
    ) is not None:
        number += 1
        if what_successor_does != "close":
            told.put(b"last word")
        third = after_kill(told)
        assert third.recovered.refused == {}
        before = told.channels[b"foo"]
        after = third.channels[b"foo"]
        assert (after.first, after.last, after.count) == (
            before.first,
            before.last,
            before.count,
        ), number
        assert third.sequences() == list(range(before.first, before.last + 1))
    assert number > 5


# ---- small files
# --------------------------------------------------------------------------------------------------


def test_an_answered_subscription_outlives_a_late_record_of_its_client_without_space() -> None:
    """The guard of the answer is that ``clients.dat`` was replaced; without space it is not."""
    first = FileNode(simulated())
    me = ClientInfo(b"me", b"hb.me", b"conn.me", 1, 5, 3)
    first.store.add_client(me)
    first.put(b"1")
    first.tick()
    assert isinstance(first.disk, SimDisk)
    # The former owner stands still inside the append of what ends the client, whom nobody has told
    # so.
    successors: list[FileNode] = []

    def take_over(_number: int, name: str, _arguments: tuple[object, ...]) -> None:
        if name != "pwrite" or successors:
            return
        first.owner.fenced = True
        node = first.successor()
        successors.append(node)
        assert isinstance(node.disk, SimDisk)
        full = ["clients.dat"]

        def refuse(_n: int, call: str, arguments: tuple[object, ...]) -> None:
            if call == "open" and any(str(a).endswith("clients.dat") for a in arguments) and full:
                raise OSError(errno.ENOSPC, "no space left on device")

        node.disk.on_call = refuse
        channel = node.channel()
        channel.add_sub(DURABLE)
        told.update(node.store.commit())

    told: dict[bytes, StoreError] = {}
    first.store.delete_client(b"me")
    first.disk.on_call = take_over
    first.store.commit()
    with pytest.raises(FencedError):
        first.store.confirm()
    third = successors[0].successor(first.disk.crash(process_only=True))
    is_registered = [c.client_id for c in third.recovered.clients] == [b"me"]
    assert b"foo" in told or is_registered


def test_a_former_owner_that_removes_unfinished_keys_late_spares_its_successors_key() -> None:
    disk = simulated()
    root = disk.open_dir("/store")
    former = disk.sibling()
    former_root = former.open_dir("/store")
    fenced: list[bool] = []

    def confirm() -> None:
        if fenced:
            raise FencedError("another server owns the datastore")

    def wake_up(_number: int, name: str, _arguments: tuple[object, ...]) -> None:
        if name == "rename" and not fenced:
            fenced.append(True)
            with pytest.raises(FencedError):
                ensure_key(former, former_root, confirm)

    disk.on_call = wake_up
    ensure_key(disk, root, lambda: None)
    assert KEY_NAME in disk.tree("/store")


def test_what_an_owner_writes_once_a_second_is_seen_although_a_former_owners_first_probe_comes_late(
    tmp_path: Path,
) -> None:
    """Where nobody hears an owner on NATS, a standby steals the store from one that it does not see
    there either.
    """

    class Late(LocalDisk):
        wake_up: Callable[[], None] | None = None

        def unlink(self, dirfd: int, name: str) -> None:
            wake_up = self.wake_up
            self.wake_up = None
            if wake_up is not None:
                wake_up()
            super().unlink(dirfd, name)

    def owner(disk: LocalDisk) -> StoreOwner:
        made = StoreOwner(
            disk, str(tmp_path), server_id="A", clock=ManualClock(), in_group=True, mountinfo=LOCAL
        )
        made.activate(without_lock=True)
        return made

    disk = Late()
    former = owner(disk)
    former_probe = Probe(disk, former.root, former, server_id="A", look=lambda: None)
    successors: list[tuple[StoreOwner, Probe]] = []

    def take_over() -> None:
        successor = owner(LocalDisk())
        probe = Probe(LocalDisk(), successor.root, successor, server_id="B", look=lambda: None)
        probe()
        successors.append((successor, probe))

    disk.wake_up = take_over
    try:
        former_probe()
        _, probe = successors[0]
        with pytest.raises(FencedError):
            former_probe()
        probe()
        seen = []
        for _ in range(3):
            probe()
            found = decode_watch((tmp_path / WATCH_NAME).read_bytes())
            seen.append((found.epoch, found.server_id) if found is not None else None)
        assert seen == [(2, "B")] * 3
    finally:
        for one in (former_probe, *(p for _, p in successors)):
            one.close()
        for one_owner in (former, *(o for o, _ in successors)):
            one_owner.close()
