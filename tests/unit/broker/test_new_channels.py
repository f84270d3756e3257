"""Publishes to channels that are not there: so many are made a batch, the other publishes wait for
theirs, and nobody waits who publishes to a channel that is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ftstan.base import log
from ftstan.base.errors import StoreError
from ftstan.broker import new_channels, request_queue
from ftstan.broker.broker import BrokerOptions
from ftstan.broker.new_channels import CHANNELS
from ftstan.broker.partition import Partition
from ftstan.wire import messages
from tests.compat.driver import SUBJECTS, Driver, PubAck, deliveries, pub_acks

if TYPE_CHECKING:
    from ftstan.config.options import ChannelLimits
    from ftstan.stores.interface import ChannelStore

MANY = 10 * CHANNELS
TOO_MANY = b"stan: too many new channels at one time"


def name(i: int) -> bytes:
    return b"new.%d" % i


@pytest.fixture
def driver() -> Driver:
    made = Driver(options=BrokerOptions(max_channels=0))
    made.connect()
    made.connect(b"other")
    made.publish(b"first")
    made.out.clear()
    return made


def storm(driver: Driver, count: int = MANY) -> list[bytes]:
    guids = [b"g%d" % i for i in range(count)]
    for i, guid in enumerate(guids):
        driver.offer(guid, channel=name(i))
    return guids


def stored(driver: Driver, channel: bytes) -> int:
    found = driver.broker.channels.get(channel)
    return 0 if found is None else found.store.count


def subscribe_request(channel: bytes, inbox: bytes) -> bytes:
    return messages.encode(
        messages.SubscriptionRequest(
            client_id=b"me",
            subject=channel,
            inbox=inbox,
            max_in_flight=10,
            ack_wait_in_secs=30,
        )
    )


def test_a_batch_makes_so_many_channels_and_publishes_to_others_pass_those_that_wait(
    driver: Driver,
) -> None:
    guids = storm(driver)
    driver.offer(b"behind all of them", client_id=b"other")
    driver.turn()
    assert [ack.guid for ack in pub_acks(driver.out)] == [*guids[:CHANNELS], b"behind all of them"]
    for turn in range(2, MANY // CHANNELS + 1):
        assert driver.broker.goes_on
        driver.offer(b"x%d" % turn, client_id=b"other")
        driver.turn()
        assert len(driver.broker.channels) == 1 + turn * CHANNELS
        assert pub_acks(driver.out)[-CHANNELS - 1].guid == b"x%d" % turn
    assert not driver.broker.goes_on
    acked = [ack.guid for ack in pub_acks(driver.out) if ack.guid.startswith(b"g")]
    assert acked == guids
    assert driver.broker.counts()["in_msgs"] == 1 + MANY + MANY // CHANNELS


def test_what_waits_for_a_channel_is_stored_in_its_order_with_what_comes_meanwhile(
    driver: Driver,
) -> None:
    storm(driver)
    last = name(MANY - 1)
    for i in range(2 * MANY // CHANNELS):
        driver.offer(b"m%02d" % i, channel=last)
        driver.turn()
    driver.subscribe(last, inbox=b"in.last", max_in_flight=100)
    got = [d.data for d in deliveries(driver.run() or driver.out, b"in.last")]
    assert got == [b"g%d" % (MANY - 1), *(b"m%02d" % i for i in range(2 * MANY // CHANNELS))]


def test_a_subscription_to_a_channel_takes_what_waits_for_it_first(driver: Driver) -> None:
    storm(driver)
    last = name(MANY - 1)
    driver.frame(SUBJECTS.subscribe, subscribe_request(last, b"in.last"), b"reply")
    driver.turn()
    assert stored(driver, last) == 1
    driver.publish(b"behind it", channel=last)
    got = [d.data for d in deliveries(driver.out, b"in.last")]
    assert got == [b"g%d" % (MANY - 1), b"behind it"]


def test_what_waits_is_stored_and_acked_whatever_its_client_does_behind_it(driver: Driver) -> None:
    guids = storm(driver)
    close = messages.encode(messages.CloseRequest(client_id=b"me"))
    driver.frame(SUBJECTS.close, close, b"closed")
    driver.turn()
    driver.offer(b"too late", channel=name(MANY - 1))
    driver.run()
    acks = pub_acks(driver.out)
    assert [ack.guid for ack in acks if not ack.error] == guids
    assert [ack.guid for ack in acks if ack.error] == [b"too late"]


def test_the_limit_counts_channels_that_are_still_to_be_made() -> None:
    limit = 3 * CHANNELS
    driver = Driver(options=BrokerOptions(max_channels=limit))
    driver.connect()
    guids = storm(driver)
    driver.offer(b"again", channel=name(limit - 1))
    driver.turn()
    refused = [ack for ack in pub_acks(driver.out) if ack.error]
    assert refused == [PubAck(guid, b"too many channels") for guid in guids[limit:]]
    assert len(driver.broker.new_channels) == limit - CHANNELS
    driver.run()
    assert len(driver.broker.channels) == limit
    assert stored(driver, name(limit - 1)) == 2
    assert driver.broker.malformed.refused == {"publish to a new channel": MANY - limit}


def test_a_flood_of_refusals_asks_for_one_line_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(options=BrokerOptions(max_channels=1))
    driver.connect()
    driver.publish(b"first")
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(
        log.stream, "error", lambda text, *, times, backs_off: asked.append((text, times))
    )
    for count in (MANY, 2):
        guids = storm(driver, count)
        before = len(driver.out)
        driver.turn()
        refused = [PubAck(guid, b"too many channels") for guid in guids]
        assert pub_acks(driver.out[before:]) == refused
    assert asked == [
        (f'Creating channel "new.{count - 1}" failed: too many channels', count)
        for count in (MANY, 2)
    ]


def test_what_waits_has_a_bound_and_what_comes_beyond_it_is_refused(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_channels, "MOST_BYTES", 8_000)
    guids = storm(driver)
    driver.offer(b"behind all of them")
    driver.turn()
    refused = [ack for ack in pub_acks(driver.out) if ack.error]
    waiting = len(driver.broker.new_channels)
    assert refused == [PubAck(guid, TOO_MANY) for guid in guids[CHANNELS + waiting :]]
    assert 0 < waiting < MANY // 2
    driver.run()
    assert [a.guid for a in pub_acks(driver.out) if not a.error] == [
        *guids[:CHANNELS],
        b"behind all of them",
        *guids[CHANNELS : CHANNELS + waiting],
    ]
    # There is room again.
    assert driver.publish(b"later", channel=b"later") == [PubAck(b"later")]


def test_a_channel_that_cannot_be_made_takes_nothing_of_what_waits_for_it_and_keeps_no_other(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = driver.store.create_channel

    def refuse_some(which: bytes, limits: ChannelLimits) -> ChannelStore:
        if which == name(MANY - 2):
            raise StoreError("no room")
        return create(which, limits)

    monkeypatch.setattr(driver.store, "create_channel", refuse_some)
    storm(driver)
    driver.offer(b"second", channel=name(MANY - 2))
    driver.run()
    assert [ack for ack in pub_acks(driver.out) if ack.error] == [
        PubAck(b"g%d" % (MANY - 2), b"no room"),
        PubAck(b"second", b"no room"),
    ]
    assert stored(driver, name(MANY - 1)) == 1
    assert not driver.broker.goes_on


def test_requests_make_so_many_channels_a_batch_too(driver: Driver) -> None:
    for i in range(MANY):
        driver.frame(SUBJECTS.subscribe, subscribe_request(name(i), b"in.%d" % i), b"reply")
    driver.offer(b"behind all of them")
    for turn in range(1, MANY // request_queue.CHANNELS + 1):
        driver.turn()
        assert len(driver.broker.channels) == 1 + turn * request_queue.CHANNELS
        assert [ack.guid for ack in pub_acks(driver.out)] == [b"behind all of them"]
    assert len([o for o in driver.out if o.subject == b"reply"]) == MANY


def test_publishes_and_requests_do_not_take_each_others_room(driver: Driver) -> None:
    storm(driver)
    for i in range(MANY):
        driver.frame(SUBJECTS.subscribe, subscribe_request(b"other.%d" % i, b"in"), b"reply")
    driver.turn()
    assert len(driver.broker.channels) == 1 + CHANNELS + request_queue.CHANNELS


def test_what_waits_is_noted_once_for_a_successor_and_not_taken_that_a_former_owner_answered(
    driver: Driver,
) -> None:
    driver.broker.taken = []
    driver.broker.answered = {(b"conn.me\0g%d" % (MANY - 1), name(MANY - 1)): 1}
    storm(driver)
    driver.run()
    assert driver.broker.taken == [(b"conn.me\0g%d" % i, name(i)) for i in range(MANY - 1)]
    assert name(MANY - 1) not in driver.broker.channels
    assert len(pub_acks(driver.out)) == MANY - 1


def test_who_has_no_more_time_refuses_what_waits(driver: Driver) -> None:
    guids = storm(driver)
    driver.turn()
    driver.broker.give_up_waiting()
    driver.run()
    assert pub_acks(driver.out)[CHANNELS:] == [PubAck(guid, TOO_MANY) for guid in guids[CHANNELS:]]
    assert len(driver.broker.channels) == 1 + CHANNELS


def test_what_waits_outlasts_the_link(driver: Driver) -> None:
    storm(driver)
    driver.run(lost=True)
    driver.open_link()
    driver.run()
    assert all(stored(driver, name(i)) == 1 for i in range(MANY))


def test_a_publish_that_has_waited_for_its_client_waits_for_its_channel() -> None:
    driver = Driver(options=BrokerOptions(max_channels=0, partition=Partition([b"new.*"])))
    guids = storm(driver)
    driver.turn()
    assert pub_acks(driver.out) == []
    driver.connect()
    driver.run()
    assert pub_acks(driver.out) == [PubAck(guid) for guid in guids]
    assert driver.broker.counts()["in_msgs"] == MANY
