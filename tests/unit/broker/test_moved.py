"""A channel that has moved: who may publish to it, and what keeps it."""

from __future__ import annotations

import pytest

from ftstan.base.errors import RefusedError, StoreError
from ftstan.broker import managing
from ftstan.broker.broker import BrokerOptions
from ftstan.stores.interface import ChannelLimits
from ftstan.stores.moves import no_moves
from tests.compat.driver import SECOND, Driver, PubAck, sequences

HAS_MOVED = b"stan: channel has moved"


@pytest.fixture
def driver() -> Driver:
    made = Driver(
        options=BrokerOptions(limits=ChannelLimits(max_inactivity=2 * SECOND)), alive={b"hb.me"}
    )
    made.connect()
    assert made.publish(b"a") == [PubAck(b"a")]
    return made


def mark(driver: Driver, mover: bytes | None) -> int:
    broker = driver.broker
    return managing.set_moved(broker, managing.find_channel(broker, b"foo"), mover)


def test_publishes_to_a_moved_channel_are_refused_and_readers_go_on(driver: Driver) -> None:
    assert mark(driver, b"bridge") == 1
    assert driver.publish(b"b") == [PubAck(b"b", HAS_MOVED)]
    driver.subscribe()
    assert sequences(driver.out) == [1]
    assert driver.broker.malformed.refused["publish to a moved channel"] == 1
    assert managing.channel_row(managing.find_channel(driver.broker, b"foo"))["moved"]
    mark(driver, None)
    assert driver.publish(b"c") == [PubAck(b"c")]


def test_the_mover_may_publish(driver: Driver) -> None:
    mark(driver, b"me")
    assert driver.publish(b"b") == [PubAck(b"b")]
    mark(driver, b"")
    assert driver.publish(b"c") == [PubAck(b"c", HAS_MOVED)]


def test_a_moved_channel_does_not_expire_until_it_is_taken_back(driver: Driver) -> None:
    mark(driver, b"bridge")
    driver.wait(10)
    assert driver.publish(b"b") == [PubAck(b"b", HAS_MOVED)]
    mark(driver, None)
    driver.wait(2)
    assert driver.broker.known_channel(b"foo") is None


def test_a_quarantined_channel_and_one_in_use_are_refused(driver: Driver) -> None:
    channel = managing.find_channel(driver.broker, b"foo")
    channel.applied += 1
    with pytest.raises(StoreError, match="is in use"):
        mark(driver, b"bridge")
    channel.applied -= 1
    channel.refused = b"it is damaged"
    with pytest.raises(RefusedError, match="it is damaged"):
        mark(driver, b"bridge")


def test_a_store_without_marks_says_so() -> None:
    assert "a cluster cannot mark a channel as moved" in no_moves("a cluster").text
