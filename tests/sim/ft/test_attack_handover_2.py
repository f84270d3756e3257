"""Attacks on what a client sees around a change of owner: repeats, redeliveries, groups, channels that open later."""

from __future__ import annotations

import errno

import pytest

from ftstan.broker.broker import BrokerOptions
from ftstan.clock import ManualClock
from ftstan.wire import messages
from tests.compat.driver import SECOND, SUBJECTS, Driver, PubAck, deliveries, sequences
from tests.filenode import FileNode, simulated
from tests.sim.disk import Killed, SimDisk
from tests.sim.filestore import open_file_store
from tests.sim.history import STORE
from tests.sim.model import read_all
from tests.unit.test_opening_later import Server as LateServer
from tests.unit.test_remembered_crashes import disk_of, publish, serving

HOUR = 3600


class Server:
    """One server after the other on one simulated disk; each is killed, and its machine goes on."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.disk.make_dirs(STORE)
        self.clock = ManualClock()

    def start(self, *alive: bytes) -> Driver:
        return Driver(open_file_store(self.disk, self.clock), BrokerOptions(), self.clock, set(alive))

    def kill(self, driver: Driver, *, down: float = 0) -> None:
        driver.store.tick(self.clock.wall_ns())
        self.disk = self.disk.crash(process_only=True)
        self.clock.advance(down)


def set_back(clock: ManualClock, seconds: int) -> None:
    """The wall clock is set, or is that of another host."""
    clock._wall_ns -= seconds * SECOND


# ---- repeats ---------------------------------------------------------------------------------------------------------


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


# ---- redelivery ------------------------------------------------------------------------------------------------------


def test_a_message_stored_by_a_host_whose_clock_is_ahead_is_due_one_ack_wait_after_the_takeover() -> None:
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


def test_a_full_window_whose_messages_could_not_be_read_at_the_takeover_is_served_when_they_can() -> None:
    server = Server()
    driver = server.start()
    driver.connect()
    driver.subscribe(ack_wait=5, max_in_flight=1)
    driver.publish(b"a", b"b")
    server.kill(driver, down=10)
    driver = server.start(b"hb.me")
    server.disk.fail_next("pread", errno.EIO)
    assert sequences(driver.run()) == []
    server.disk.fail_no_more()
    assert 1 in sequences(driver.wait(60))


# ---- channels that open later ----------------------------------------------------------------------------------------


def half_closed(server: LateServer, **subscription: bytes) -> Driver:
    """A client whose end is in ``clients.dat`` and nowhere else: the owner was killed between two files."""
    driver = server.start()
    driver.connect()
    driver.publish(b"1", channel=b"a")
    driver.subscribe(channel=b"a", inbox=b"in.old", **subscription)
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


def test_a_durable_of_a_client_that_had_half_closed_can_be_resumed_from_a_channel_that_opens_later() -> None:
    driver = half_closed(LateServer(), durable=b"dur")
    # The same id comes again before the channel is opened.
    driver.connect(conn_id=b"conn.new")
    driver.subscribe(channel=b"a", inbox=b"in.new", durable=b"dur")
    assert sequences(driver.wait(40), b"in.old") == []


@pytest.mark.parametrize("subscription", [{}, {"queue": b"q"}], ids=["plain", "queue"])
def test_a_client_that_comes_again_inherits_no_subscription_from_a_channel_that_opens_later(
    subscription: dict[str, bytes],
) -> None:
    driver = half_closed(LateServer(), **subscription)
    driver.connect()
    driver.subscribe(channel=b"a", inbox=b"in.new", **subscription)
    driver.publish(b"2", channel=b"a")
    driver.wait(100)
    assert set(sequences(driver.out, b"in.new")) == {1, 2}
    assert sequences(driver.out, b"in.old") == []
    assert driver.broker.counts()["subscriptions"] == 1
