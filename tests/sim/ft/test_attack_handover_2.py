"""Attacks on what a client sees around a change of owner: repeats, redeliveries, groups, channels
that open later.
"""

from __future__ import annotations

import errno
import os
from random import Random
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import StoreError
from ftstan.broker.broker import BrokerOptions
from tests.compat.driver import SECOND, SUBJECTS, Driver, PubAck, sequences
from tests.filenode import FileNode, simulated
from tests.sim.disk import CrashMode, Killed, SimDisk
from tests.sim.filestore import open_file_store
from tests.sim.ft.group import Group, Shape
from tests.sim.ft.test_named import go_on, group_of, move, serve_with_all, take_over
from tests.sim.history import STORE
from tests.sim.model import read_all
from tests.unit.stores.test_opening_later import Server as LateServer
from tests.unit.stores.test_remembered_crashes import disk_of, publish, serving

if TYPE_CHECKING:
    from ftstan.wire.block import MsgBlock

HOUR = 3600


class Server:
    """One server after the other on one simulated disk; each is killed, and its machine goes on."""

    def __init__(self, *, opens_late: bool = False) -> None:
        self.disk = SimDisk()
        self.disk.make_dirs(STORE)
        self.clock = ManualClock()
        self.most_at_once = 0 if opens_late else None

    def start(self, *alive: bytes) -> Driver:
        store = open_file_store(self.disk, self.clock, most_at_once=self.most_at_once)
        return Driver(store, BrokerOptions(), self.clock, set(alive))

    def kill(self, driver: Driver, *, down: float = 0) -> None:
        driver.store.tick(self.clock.wall_ns())
        self.disk = self.disk.crash(process_only=True)
        self.clock.advance(down)


def set_back(clock: ManualClock, seconds: int) -> None:
    """The wall clock is set, or is that of another host."""
    clock._wall_ns -= seconds * SECOND


# ---- repeats
# --------------------------------------------------------------------------------------------------


def test_alike_messages_under_a_clock_that_was_set_back_are_not_taken_for_each_other() -> None:
    node = FileNode(simulated())
    driver = serving(node)
    publish(driver, b"ft1.a")
    # The newest message is an hour ahead: until then all messages of the channel have its time.
    set_back(node.clock, HOUR)
    disk = disk_of(node)
    last = disk.calls + 1

    def die(number: int, name: str, _arguments: tuple[object, ...]) -> None:
        # Its name is on the disk, and nothing of the message is.
        if number > last and name == "pwrite":
            raise Killed

    disk.on_call = die
    with pytest.raises(Killed):
        publish(driver, b"ft1.c")
    disk.on_call = None
    node.clock.advance(1)
    after = node.successor(disk.crash(process_only=True))
    again = serving(after)
    assert publish(again, b"ft1.other") == [PubAck(b"ft1.other")]
    assert publish(again, b"ft1.c") == [PubAck(b"ft1.c")]
    # Three publishes were acknowledged.
    assert list(read_all(again.broker.store.recover().channels[0])) == [1, 2, 3]


# ---- redelivery
# --------------------------------------------------------------------------------------------------


def test_a_message_stored_by_a_host_whose_clock_is_ahead_is_due_one_ack_wait_later() -> None:
    server = Server()
    driver = server.start()
    driver.connect()
    driver.subscribe(ack_wait=5, max_in_flight=1)
    driver.publish(b"a")
    server.kill(driver)
    # The successor's host is an hour behind.
    set_back(server.clock, HOUR)
    driver = server.start(b"hb.me")
    assert sequences(driver.wait(6)) == [1]


def test_a_full_window_that_could_not_be_read_at_the_takeover_is_served_when_it_can() -> None:
    server = Server()
    driver = server.start()
    driver.connect()
    driver.subscribe(ack_wait=5, max_in_flight=1)
    driver.publish(b"a", b"b")
    server.kill(driver, down=10)
    driver = server.start(b"hb.me")

    left = [errno.EIO] * 2  # a read that fails once is tried with the file opened anew

    def fail(_number: int, name: str, _arguments: tuple[object, ...]) -> None:
        if name == "pread" and left:
            raise OSError(left.pop(), "it fails")

    server.disk.on_call = fail
    assert sequences(driver.run()) == []
    server.disk.on_call = None
    assert 1 in sequences(driver.wait(60))


# ---- channels that open later
# ----------------------------------------------------------------------------------------


def half_closed(server: LateServer, *, durable: bytes = b"", queue: bytes = b"") -> Driver:
    """A client whose end is in ``clients.dat`` and nowhere else: the owner was killed between two
    files.
    """
    driver = server.start()
    driver.connect()
    driver.publish(b"1", channel=b"a")
    driver.subscribe(channel=b"a", inbox=b"in.old", durable=durable, queue=queue)
    driver.store.tick(server.clock.wall_ns())
    writes = 0

    def die(_number: int, name: str, _arguments: tuple[object, ...]) -> None:
        nonlocal writes
        writes += name == "pwrite"
        if writes > 1:
            raise Killed

    server.disk.on_call = die
    with pytest.raises(Killed):
        driver.close()
    server.disk.on_call = None
    server.disk = server.disk.crash(process_only=True)
    driver = server.start()
    assert len(driver.broker.clients) == 0
    return driver


def test_a_durable_of_a_half_closed_client_can_be_resumed_from_a_channel_that_opens_later() -> None:
    driver = half_closed(LateServer(), durable=b"dur")
    # The same id comes again before the channel is opened.
    driver.connect(conn_id=b"conn.new")
    driver.subscribe(channel=b"a", inbox=b"in.new", durable=b"dur")
    assert sequences(driver.wait(40), b"in.old") == []


@pytest.mark.parametrize("queue", [b"", b"q"], ids=["plain", "queue"])
def test_a_client_that_comes_again_inherits_no_subscription_from_a_channel_that_opens_later(
    queue: bytes,
) -> None:
    driver = half_closed(LateServer(), queue=queue)
    driver.connect()
    driver.subscribe(channel=b"a", inbox=b"in.new", queue=queue)
    driver.publish(b"2", channel=b"a")
    driver.wait(100)
    assert set(sequences(driver.out, b"in.new")) == {1, 2}
    assert sequences(driver.out, b"in.old") == []
    assert driver.broker.counts()["subscriptions"] == 1


def test_a_reader_whose_next_message_was_unreadable_at_the_takeover_gets_it_later() -> None:
    server = Server()
    driver = server.start()
    driver.connect()
    ack_inbox = driver.subscribe(ack_wait=5)
    driver.publish(b"a")
    driver.ack(ack_inbox, 1)
    driver.store.tick(server.clock.wall_ns())
    # Stored, and the owner dies before anybody hears of it.
    driver.offer(b"b")
    driver._feed()
    driver.broker.stage()
    assert driver.store.commit() == {}
    server.disk = server.disk.crash(process_only=True)
    driver = server.start(b"hb.me")
    channel = driver.broker.channels.get(b"foo")
    assert channel is not None
    read = channel.store.read
    failures = [errno.EIO]

    def fails_once(sequence: int, max_msgs: int, max_bytes: int) -> MsgBlock | None:
        if failures:
            raise StoreError(os.strerror(failures.pop()))
        return read(sequence, max_msgs, max_bytes)

    channel.store.read = fails_once  # type: ignore[method-assign]
    driver.run()
    assert not failures
    assert 2 in sequences(driver.wait(100))


# ---- queue groups
# --------------------------------------------------------------------------------------------------


class Members:
    """A durable queue group whose members come, acknowledge and leave while owners die anywhere."""

    IDS = (b"a", b"b", b"c")

    def __init__(self, seed: int, *, power: bool, opens_late: bool) -> None:
        self.rng = Random(seed)
        self.power = power
        self.server = Server(opens_late=opens_late)
        self.driver = self.server.start()
        self.subs: dict[bytes, bytes] = {}
        self.acked: set[int] = set()
        self.stored: set[int] = set()
        self.serial = 0
        self.seen = 0

    def die_within(self, calls: int) -> None:
        disk = self.server.disk
        last = disk.calls + self.rng.randint(1, calls)

        def die(number: int, _name: str, _arguments: tuple[object, ...]) -> None:
            if number >= last:
                raise Killed

        disk.on_call = die

    def take_over(self) -> None:
        self.server.disk.on_call = None
        mode = self.rng.choice((CrashMode.LOST, CrashMode.ORDERED, CrashMode.UNORDERED))
        disk = self.server.disk
        self.server.disk = (
            disk.crash(self.rng, mode) if self.power else disk.crash(process_only=True)
        )
        self.server.clock.advance(self.rng.choice((0.1, 3, 40)))
        self.driver = self.server.start(*(b"hb." + i for i in self.IDS))
        self.seen = 0
        self.driver.run()
        known = {bytes(i) for i in self.IDS if i in self.driver.broker.clients}
        # A member whose client is gone, or that does not know whether it was taken in, comes again.
        self.subs = {i: s for i, s in self.subs.items() if i in known}

    def step(self) -> None:
        rng = self.rng
        driver = self.driver
        who = rng.choice(self.IDS)
        match rng.randrange(7):
            case 0 | 1:
                self.serial += 1
                if driver.publish(b"m%d" % self.serial, client_id=self.somebody()):
                    channel = driver.broker.channels.get(b"foo")
                    assert channel is not None
                    self.stored.add(channel.store.last)
            case 2 if who in driver.broker.clients and who not in self.subs:
                self.join(who)
            case 3 if who in self.subs:
                inbox = self.subs.pop(who)
                driver.leave(SUBJECTS.sub_close, inbox, client_id=who)
            case 4 if who in driver.broker.clients:
                self.subs.pop(who, None)
                driver.close(who)
            case 5 if self.subs:
                self.acknowledge()
            case _:
                driver.broker.open_next()
                driver.wait(rng.choice((0.1, 2)))
                driver.store.tick(self.server.clock.wall_ns())

    def somebody(self) -> bytes:
        who = self.rng.choice(self.IDS)
        if who not in self.driver.broker.clients:
            self.driver.connect(who)
        return who

    def join(self, who: bytes) -> None:
        self.subs[who] = self.driver.subscribe(
            client_id=who,
            inbox=b"in." + who,
            durable=b"dur",
            queue=b"q",
            max_in_flight=self.rng.choice((1, 2, 10)),
            ack_wait=self.rng.choice((1, 5)),
        )

    def acknowledge(self) -> None:
        for who, ack_inbox in list(self.subs.items()):
            got = {
                s
                for s in sequences(self.driver.out[self.seen :], b"in." + who)
                if self.rng.random() < 0.6
            }
            if got:
                self.acked |= got
                self.driver.ack(ack_inbox, *sorted(got))
        self.seen = len(self.driver.out)


@pytest.mark.parametrize("opens_late", [False, True], ids=["", "opens late"])
@pytest.mark.parametrize("power", [False, True], ids=["killed", "power cut"])
@pytest.mark.parametrize("seed", range(10))
def test_no_message_of_a_durable_group_is_forgotten_however_its_owners_die(
    seed: int, *, power: bool, opens_late: bool
) -> None:
    members = Members(seed, power=power, opens_late=opens_late)
    for _ in range(4):
        for _ in range(members.rng.randint(1, 25)):
            members.step()
        members.die_within(60)
        try:
            for _ in range(20):
                members.step()
        except (Killed, AssertionError):
            # The driver of a server that died, or an answer that it did not give.
            pass
        members.take_over()
    driver = members.driver
    who = members.somebody()
    members.subs.pop(who, None)
    for sub in list(driver.broker.clients.get(who).subs):  # type: ignore[union-attr]
        driver.leave(SUBJECTS.sub_close, sub.ack_inbox, client_id=who)
    driver.subscribe(
        client_id=who, inbox=b"in.last", durable=b"dur", queue=b"q", max_in_flight=1000, ack_wait=1
    )
    got: set[int] = set()
    for _ in range(30):
        driver.wait(5)
        driver.store.tick(members.server.clock.wall_ns())
    for inbox in (b"in.last", *(b"in." + i for i in members.IDS)):
        got |= set(sequences(driver.out, inbox))
    assert members.stored - members.acked <= got


# ---- an owner that is fenced while it hands over
# ---------------------------------------------------------------------


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("call", ["pread", "pwrite", "fdatasync"])
@pytest.mark.parametrize("seed", range(4))
def test_an_owner_that_is_replaced_in_the_middle_of_its_hand_over_doubles_and_loses_nothing(
    seed: int, call: str
) -> None:
    with group_of(Shape(dedup=500), seed) as group:
        owner = serve_with_all(group)
        owner.switchover()
        skip = group.rng.randint(0, 6)

        def at(name: str, _args: tuple[object, ...]) -> bool:
            nonlocal skip
            if owner.successor and name == call:
                skip -= 1
            return skip < 0

        owner.stop_before = at
        move(group, lambda: owner.paused or bool(owner.ended), also=lambda: publish_all(group))
        if owner.ended:
            # The hand-over had fewer calls of that kind.
            return
        take_over(group, owner)
        owner.paused = False
        # Repeats of what it has answered, and of what it has not, come to its successor.
        assert move(group, lambda: bool(owner.ended), also=lambda: publish_all(group))
        go_on(group, 200)


def publish_all(group: Group) -> None:
    for client in group.clients:
        if client.is_connected and len(client._open) < 8:
            client.publish(b"channel.%d" % group.client_rng.randrange(group.shape.channels))
