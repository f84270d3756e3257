"""Channels that nobody uses: when they go, what keeps them, and what is left of them."""

from __future__ import annotations

import errno

import pytest

from ftstan.base.clock import ManualClock
from ftstan.broker.broker import BrokerOptions
from ftstan.stores.interface import ChannelLimits
from ftstan.stores.memory import MemoryStore
from ftstan.wire import messages
from tests.compat.driver import SECOND, SUBJECTS, Driver, PubAck, sequences
from tests.sim.disk import SimDisk
from tests.sim.filestore import open_file_store
from tests.sim.history import STORE

LIMITS = ChannelLimits(max_inactivity=2 * SECOND)
OPTIONS = BrokerOptions(limits=LIMITS)


@pytest.fixture
def driver() -> Driver:
    made = Driver(options=OPTIONS, alive={b"hb.me"})
    made.connect()
    return made


def channels(driver: Driver) -> set[bytes]:
    return {channel.name for channel in driver.broker.channels.values()}


def test_a_channel_goes_when_its_last_publish_is_so_long_ago_and_starts_anew(
    driver: Driver,
) -> None:
    driver.publish(b"a")
    driver.wait(1.5)
    driver.publish(b"b")
    driver.wait(1.9)
    assert channels(driver) == {b"foo"}
    driver.wait(0.1)
    assert channels(driver) == set()
    assert driver.publish(b"c") == [PubAck(b"c")]
    driver.subscribe()
    assert sequences(driver.out) == [1]


def test_a_live_subscription_keeps_its_channel_and_the_time_begins_when_it_ends(
    driver: Driver,
) -> None:
    ack_inbox = driver.subscribe()
    driver.wait(10)
    driver.leave(SUBJECTS.unsubscribe, ack_inbox)
    driver.wait(1.9)
    assert channels(driver) == {b"foo"}
    driver.wait(0.1)
    assert channels(driver) == set()


def test_a_queue_member_keeps_its_channel(driver: Driver) -> None:
    one = driver.subscribe(inbox=b"q1", queue=b"g")
    two = driver.subscribe(inbox=b"q2", queue=b"g")
    driver.leave(SUBJECTS.sub_close, one)
    driver.wait(5)
    assert channels(driver) == {b"foo"}
    driver.leave(SUBJECTS.sub_close, two)
    driver.wait(2)
    assert channels(driver) == set()


@pytest.mark.parametrize("queue", [b"", b"g"])
def test_what_is_offline_keeps_nothing_and_goes_with_its_channel(
    driver: Driver, queue: bytes
) -> None:
    ack_inbox = driver.subscribe(queue=queue, durable=b"dur")
    driver.publish(b"a")
    driver.leave(SUBJECTS.sub_close, ack_inbox)
    driver.wait(2)
    assert channels(driver) == set()
    driver.publish(b"b")
    before = len(driver.out)
    driver.subscribe(queue=queue, durable=b"dur", start=0)
    assert sequences(driver.out[before:]) == []


def test_the_close_of_a_connection_begins_the_time_too(driver: Driver) -> None:
    driver.subscribe()
    driver.wait(5)
    driver.close()
    driver.wait(2)
    assert channels(driver) == set()


def test_a_subscribe_that_is_refused_begins_the_time_anew() -> None:
    options = BrokerOptions(limits=ChannelLimits(max_inactivity=2 * SECOND, max_subs=1))
    driver = Driver(options=options, alive={b"hb.me"})
    driver.connect()
    driver.leave(SUBJECTS.sub_close, driver.subscribe(durable=b"dur"))
    driver.wait(1.5)
    request = messages.SubscriptionRequest(
        client_id=b"me", subject=b"foo", inbox=b"in", max_in_flight=1, ack_wait_in_secs=1
    )
    answer = driver.call(SUBJECTS.subscribe, messages.encode(request))
    assert (
        messages.parse(messages.SubscriptionResponse, answer or b"").error
        == b"too many subscriptions per channel"
    )
    driver.wait(1.9)
    assert channels(driver) == {b"foo"}
    driver.wait(0.1)
    assert channels(driver) == set()


def test_a_subscribe_that_cannot_be_stored_begins_the_time_anew() -> None:
    disk = SimDisk()
    disk.make_dirs(STORE)
    clock = ManualClock()
    driver = Driver(open_file_store(disk, clock, limits=LIMITS), OPTIONS, clock, {b"hb.me"})
    driver.connect()
    driver.publish(b"a")
    driver.wait(1.5)
    disk.volume.space = 0
    request = messages.SubscriptionRequest(
        client_id=b"me", subject=b"foo", inbox=b"in", max_in_flight=1, ack_wait_in_secs=1
    )
    answer = driver.call(SUBJECTS.subscribe, messages.encode(request))
    assert b"No space left" in messages.parse(messages.SubscriptionResponse, answer or b"").error
    disk.volume.space = None
    driver.wait(1.9)
    assert channels(driver) == {b"foo"}
    driver.wait(0.1)
    assert channels(driver) == set()


def test_the_name_of_a_deleted_channel_is_free_in_any_case(driver: Driver) -> None:
    driver.publish(b"a", channel=b"Foo")
    driver.wait(2)
    assert driver.broker._folded == {}
    assert driver.publish(b"b", channel=b"foo") == [PubAck(b"b")]


def test_a_deleted_channel_makes_room_under_the_limit_of_channels() -> None:
    limits = ChannelLimits(max_inactivity=2 * SECOND)
    driver = Driver(options=BrokerOptions(max_channels=1, limits=limits))
    driver.connect()
    driver.publish(b"a")
    assert driver.publish(b"b", channel=b"bar")[0].error == b"too many channels"
    driver.wait(2)
    assert driver.publish(b"b", channel=b"bar") == [PubAck(b"b")]


def test_without_the_limit_a_channel_stays() -> None:
    driver = Driver()
    driver.connect()
    driver.publish(b"a")
    driver.wait(1000)
    assert channels(driver) == {b"foo"}
    assert driver.broker.inactivity._armed == {}


def test_recovered_channels_have_the_whole_time_and_then_go_for_good() -> None:
    disk = SimDisk()
    disk.make_dirs(STORE)
    clock = ManualClock()
    driver = Driver(open_file_store(disk, clock, limits=LIMITS), OPTIONS, clock)
    driver.connect()
    driver.publish(b"a")
    driver.subscribe(b"used")
    disk = disk.crash(process_only=True)
    clock.advance(100)
    driver = Driver(open_file_store(disk, clock, limits=LIMITS), OPTIONS, clock, {b"hb.me"})
    driver.wait(1.9)
    assert channels(driver) == {b"foo", b"used"}
    driver.wait(0.1)
    assert channels(driver) == {b"used"}
    driver = Driver(open_file_store(disk.crash(), clock, limits=LIMITS), OPTIONS, clock)
    assert channels(driver) == {b"used"}


def test_a_deletion_that_storage_refuses_is_tried_again_after_the_same_time() -> None:
    disk = SimDisk()
    disk.make_dirs(STORE)
    clock = ManualClock()
    driver = Driver(open_file_store(disk, clock, limits=LIMITS), OPTIONS, clock)
    driver.connect()
    driver.publish(b"a")
    driver.wait(1.9)
    disk.fail_next("rename", errno.EIO)
    driver.wait(0.2)
    assert channels(driver) == {b"foo"}
    assert driver.publish(b"b") == [PubAck(b"b")]
    driver.wait(4)
    assert channels(driver) == set()


def test_while_storage_refuses_to_remove_it_the_name_is_taken_for_everybody() -> None:
    disk = SimDisk()
    disk.make_dirs(STORE)
    clock = ManualClock()
    driver = Driver(open_file_store(disk, clock, limits=LIMITS), OPTIONS, clock, {b"hb.me"})
    driver.connect()
    driver.publish(b"a")
    driver.wait(1.9)

    def refuse(_call: int, call: str, _arguments: tuple[object, ...]) -> None:
        if call == "rmdir":
            raise OSError(errno.EBUSY, "Device or resource busy")

    disk.on_call = refuse
    driver.wait(0.2)
    assert channels(driver) == set()
    assert driver.publish(b"b")[0].error == b"stan: channel is being deleted"
    disk.on_call = None
    assert driver.publish(b"c") == [PubAck(b"c")]
    driver.subscribe()
    assert sequences(driver.out) == [1]


def test_a_channel_with_something_on_the_road_is_not_deleted() -> None:
    driver = Driver(MemoryStore(), OPTIONS)
    driver.connect()
    driver.publish(b"a")
    driver.clock.advance(2)
    driver.broker.run_timers(driver.clock.wall_ns(), driver.now)
    driver.offer(b"b")
    driver._feed()
    driver.broker.inactivity.delete_due()
    assert channels(driver) == {b"foo"}
    driver.run()
    assert channels(driver) == {b"foo"}
    driver.wait(2)
    assert channels(driver) == set()
