"""What operators change in a broker: nothing is said to be done before it is durable and the store
was still ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import FencedError, RefusedError, StoreError
from ftstan.broker import managing
from ftstan.broker.broker import BrokerOptions
from ftstan.broker.constants import CLIENT_REPLACED
from ftstan.stores.interface import CLIENTS
from ftstan.stores.memory import MemoryChannel, MemoryStore
from ftstan.wire.messages import StartPosition
from tests.compat.driver import SUBJECTS, Driver, PubAck, sequences
from tests.sim.disk import SimDisk
from tests.sim.filestore import open_file_store
from tests.sim.history import STORE


class Fragile(MemoryStore):
    """A memory store whose commits can be refused, and that can belong to somebody else."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[bytes] = set()
        self.fenced = False

    def commit(self) -> dict[bytes, StoreError]:
        super().commit()
        return {name: StoreError("disk full") for name in self.refused}

    def confirm(self) -> None:
        if self.fenced:
            raise FencedError("store fenced: somebody else owns it")


@dataclass
class Place:
    store: Fragile = field(default_factory=Fragile)
    driver: Driver = field(init=False)

    def __post_init__(self) -> None:
        self.driver = Driver(self.store, alive={b"hb.me"})
        self.driver.connect()


def test_a_kick_is_done_when_its_batch_is_committed_and_not_before() -> None:
    driver = Place().driver
    ack_inbox = driver.subscribe(durable=b"d")
    client = managing.find_client(driver.broker, b"me")
    promise = managing.kick(driver.broker, client)
    assert not promise.done()
    driver.run()
    assert promise.result(0) is None
    assert driver.ping(client.info.conn_id) == CLIENT_REPLACED.encode()
    assert ack_inbox not in driver.subs.values()
    (row,) = managing.sub_rows(driver.broker, [b"foo"], b"", (b"", 0), 10)
    assert (row["durable_name"], row["is_offline"]) == ("d", True)


def test_what_cannot_be_stored_is_not_said_to_be_done() -> None:
    place = Place()
    place.driver.publish(b"a")
    client = managing.find_client(place.driver.broker, b"me")
    place.store.refused = {CLIENTS, b"new"}
    kicked = managing.kick(place.driver.broker, client)
    made = managing.create_channel(place.driver.broker, b"new")
    place.driver.run()
    for promise in (kicked, made):
        with pytest.raises(StoreError, match="disk full"):
            promise.result(0)


def test_a_server_that_was_replaced_never_says_that_something_was_done() -> None:
    place = Place()
    broker = place.driver.broker
    place.driver.publish(b"a")
    promises = [
        managing.create_channel(broker, b"new"),
        managing.kick(broker, managing.find_client(broker, b"me")),
    ]
    place.store.fenced = True
    with pytest.raises(FencedError):
        place.driver.run()
    assert [promise.done() for promise in promises] == [False, False]
    with pytest.raises(FencedError):
        managing.delete_channel(broker, managing.find_channel(broker, b"foo"))
    # Nothing was deleted, either.
    assert place.driver.broker.channels.get(b"foo") is not None


def test_whoever_gives_up_waiting_does_not_disturb_the_others() -> None:
    driver = Place().driver
    promise = managing.create_channel(driver.broker, b"new")
    assert promise.cancel()
    driver.run()
    assert driver.publish(b"a", channel=b"new") == [PubAck(b"a")]


@pytest.mark.parametrize("queue", [b"", b"g"])
@pytest.mark.parametrize("durable", [b"", b"dur"])
@pytest.mark.parametrize("live", [True, False])
def test_a_channel_goes_with_every_kind_of_subscription_and_starts_anew(
    queue: bytes, durable: bytes, *, live: bool
) -> None:
    disk = SimDisk()
    clock = ManualClock()
    disk.make_dirs(STORE)
    driver = Driver(open_file_store(disk, clock), BrokerOptions(), clock, {b"hb.me"})
    driver.connect()
    driver.publish(b"a")
    for inbox in (b"in1", b"in2") if queue else (b"in1",):
        ack_inbox = driver.subscribe(inbox=inbox, queue=queue, durable=durable)
        if not live:
            driver.leave(SUBJECTS.sub_close, ack_inbox)
    channel = managing.find_channel(driver.broker, b"foo")
    if live or durable:
        with pytest.raises(RefusedError, match="subscription"):
            managing.delete_channel(driver.broker, channel)
        promise = managing.end_subscriptions(driver.broker, channel)
        driver.run()
        assert promise.result(0) is None
    managing.delete_channel(driver.broker, channel)
    assert managing.channel_rows(driver.broker, [b"foo"]) == []
    assert managing.client_row(managing.find_client(driver.broker, b"me"))["subscriptions"] == 0
    driver.publish(b"b")
    before = len(driver.out)
    driver.subscribe(queue=queue, durable=durable)
    assert sequences(driver.out[before:]) == [1]
    assert managing.channel_row(managing.find_channel(driver.broker, b"foo"))["msgs"] == 1


def test_a_channel_that_was_made_is_there_after_a_restart() -> None:
    disk = SimDisk()
    clock = ManualClock()
    disk.make_dirs(STORE)
    store = open_file_store(disk, clock)
    driver = Driver(store, BrokerOptions(), clock, {b"hb.me"})
    promise = managing.create_channel(driver.broker, b"made")
    driver.run()
    assert promise.result(0) is None
    store.abandon()
    again = Driver(open_file_store(disk, clock), BrokerOptions(), clock, {b"hb.me"})
    assert managing.channel_rows(again.broker, [b"made"])[0]["last_seq"] == 0


@pytest.mark.parametrize("name", [b"", b"a..b", b"a b", b"a/b", b"a.*", b">"])
def test_what_cannot_name_a_channel_is_refused(name: bytes) -> None:
    driver = Place().driver
    with pytest.raises(RefusedError, match="cannot name a channel"):
        managing.create_channel(driver.broker, name)


# ---- purging
# --------------------------------------------------------------------------------------------------


def purge(
    driver: Driver, *, keep: int = 0, up_to: int = 0, channel: bytes = b"foo"
) -> managing.Row:
    found = managing.find_channel(driver.broker, channel)
    return managing.purge_channel(driver.broker, found, keep=keep, up_to=up_to)


def test_a_purge_takes_what_it_was_asked_for_and_the_sequence_goes_on() -> None:
    driver = Place().driver
    driver.publish(*(b"%d" % i for i in range(1, 21)))
    assert purge(driver, keep=30) == {"purged": 0, "left": 20, "next": 21}
    assert purge(driver, up_to=5) == {"purged": 5, "left": 15, "next": 21}
    assert purge(driver, up_to=3) == {"purged": 0, "left": 15, "next": 21}
    assert purge(driver, keep=4) == {"purged": 11, "left": 4, "next": 21}
    assert purge(driver, up_to=10_000) == {"purged": 4, "left": 0, "next": 21}
    assert purge(driver) == {"purged": 0, "left": 0, "next": 21}
    before = len(driver.out)
    driver.publish(b"new")
    driver.subscribe()
    assert sequences(driver.out[before:]) == [21]


@pytest.mark.parametrize(
    ("start", "wanted"),
    [
        ({"start": StartPosition.FIRST}, [8, 9, 10]),
        ({"start": StartPosition.SEQUENCE_START, "sequence": 2}, [8, 9, 10]),
        ({"start": StartPosition.SEQUENCE_START, "sequence": 9}, [9, 10]),
        ({"start": StartPosition.LAST_RECEIVED}, [10]),
        ({"start": StartPosition.TIME_DELTA_START, "delta": 3600 * 10**9}, [8, 9, 10]),
        ({"start": StartPosition.NEW_ONLY}, []),
    ],
)
def test_whoever_subscribes_after_a_purge_begins_with_what_is_left(
    start: dict[str, Any], wanted: list[int]
) -> None:
    driver = Place().driver
    driver.publish(*(b"%d" % i for i in range(1, 11)))
    purge(driver, up_to=7)
    before = len(driver.out)
    driver.subscribe(**start)
    assert sequences(driver.out[before:]) == wanted
    driver.publish(b"11")
    assert sequences(driver.out[before:]) == [*wanted, 11]


@pytest.mark.parametrize("queue", [b"", b"g"])
def test_what_is_pending_of_a_purge_is_dropped_as_if_it_had_expired(queue: bytes) -> None:
    driver = Place().driver
    driver.publish(*(b"%d" % i for i in range(1, 9)))
    ack_inbox = driver.subscribe(durable=b"d", queue=queue, max_in_flight=4, ack_wait=1)
    assert sequences(driver.out) == [1, 2, 3, 4]
    purge(driver, up_to=6)
    driver.ack(ack_inbox, 2)
    before = len(driver.out)
    # Nothing of it comes again, and its window opens for what is left.
    driver.wait(1)
    assert sequences(driver.out[before:]) == [7, 8]
    (row,) = managing.sub_rows(driver.broker, [b"foo"], b"", (b"", 0), 10)
    assert (row["pending_count"], row["last_sent"], row["is_stalled"]) == (2, 8, False)


def test_a_durable_that_comes_back_after_a_purge_and_a_restart_gets_what_is_left() -> None:
    disk = SimDisk()
    clock = ManualClock()
    disk.make_dirs(STORE)
    store = open_file_store(disk, clock)
    driver = Driver(store, BrokerOptions(), clock, {b"hb.me"})
    driver.connect()
    driver.publish(*(b"%d" % i for i in range(1, 9)))
    driver.subscribe(durable=b"d", max_in_flight=3)
    assert purge(driver, up_to=5) == {"purged": 5, "left": 3, "next": 9}
    store.abandon()
    again = Driver(open_file_store(disk.crash(), clock), BrokerOptions(), clock, {b"hb.me"})
    again.connect(b"other")
    again.wait(40)
    assert set(sequences(again.out)) == {6, 7, 8}
    assert managing.channel_row(managing.find_channel(again.broker, b"foo"))["first_seq"] == 6


def test_a_server_replaced_before_a_purge_does_none_and_during_it_reports_none() -> None:
    place = Place()
    place.driver.publish(b"a", b"b")
    place.store.fenced = True
    with pytest.raises(FencedError):
        purge(place.driver)
    place.store.fenced = False
    channel = managing.find_channel(place.driver.broker, b"foo")
    assert channel.store.count == 2
    asked: list[int] = []

    def replaced() -> None:
        asked.append(channel.store.count)
        if asked[-1] == 0:
            raise FencedError("store fenced: somebody else owns it")

    place.store.confirm = replaced  # type: ignore[method-assign]
    with pytest.raises(FencedError):
        purge(place.driver)
    assert asked == [2, 0]


@pytest.mark.parametrize(("keep", "up_to"), [(-1, 0), (0, -1), (1, 1)])
def test_bounds_that_mean_nothing_purge_nothing(keep: int, up_to: int) -> None:
    driver = Place().driver
    driver.publish(b"a", b"b")
    with pytest.raises(RefusedError, match="cannot purge"):
        purge(driver, keep=keep, up_to=up_to)
    assert managing.channel_row(managing.find_channel(driver.broker, b"foo"))["msgs"] == 2


def test_a_channel_that_is_quarantined_is_not_purged() -> None:
    driver = Place().driver
    driver.publish(b"a")
    managing.find_channel(
        driver.broker, b"foo"
    ).refused = b'channel "foo" is quarantined: run ftstanctl store verify'
    with pytest.raises(RefusedError, match="is quarantined"):
        purge(driver)
    assert managing.channel_row(managing.find_channel(driver.broker, b"foo"))["msgs"] == 1


def test_where_sequences_are_missing_a_purge_keeps_no_fewer_than_it_was_told() -> None:
    driver = Place().driver
    driver.publish(*(b"%d" % i for i in range(1, 11)))
    store = managing.find_channel(driver.broker, b"foo").store
    # As if two of the ten were lost: count says eight.
    assert isinstance(store, MemoryChannel)
    store.count -= 2
    assert purge(driver, keep=3)["purged"] == 5
    assert store.first == 6


# ---- ages
# --------------------------------------------------------------------------------------------------


def ages(driver: Driver) -> dict[str, tuple[float | None, float | None]]:
    """By durable or queue: how old the oldest unread message is, how long ago the last ack was."""
    rows = managing.sub_rows(driver.broker, [b"foo"], b"", (b"", 0), 10)
    managing.add_ages(driver.broker, rows, driver.clock.wall_ns())
    return {
        row["durable_name"] or row["queue_name"]: (
            row["oldest_unread_age_s"],
            row["last_ack_age_s"],
        )
        for row in rows
    }


def test_a_report_tells_how_old_the_oldest_unread_message_is_and_when_somebody_acked_last() -> None:
    driver = Place().driver
    driver.publish(b"1")
    slow = driver.subscribe(durable=b"slow", max_in_flight=1)
    driver.subscribe(durable=b"idle", inbox=b"in.idle")
    assert ages(driver) == {"slow": (None, None), "idle": (None, None)}
    driver.wait(10)
    driver.publish(b"2")
    driver.wait(5)
    driver.ack(slow, 1)
    driver.wait(5)
    driver.publish(b"3")
    driver.wait(2)
    assert ages(driver) == {"slow": (2, 7), "idle": (None, None)}


def test_what_one_member_of_a_queue_group_has_got_is_not_unread_for_the_others() -> None:
    driver = Place().driver
    driver.subscribe(queue=b"q", inbox=b"in.1", max_in_flight=1)
    driver.subscribe(queue=b"q", inbox=b"in.2", max_in_flight=1)
    driver.publish(b"1", b"2")
    assert ages(driver) == {"q": (None, None)}
    driver.publish(b"3")
    driver.wait(4)
    assert ages(driver) == {"q": (4, None)}


def test_what_cannot_be_read_has_no_age(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Place().driver
    driver.subscribe(durable=b"slow", max_in_flight=1)
    driver.publish(b"1", b"2")

    def fails(*_: object) -> None:
        raise StoreError("a slice is damaged")

    monkeypatch.setattr(MemoryChannel, "read", fails)
    assert ages(driver) == {"slow": (None, None)}
