"""Storage that cannot give a message now: whoever waits for it gets it when storage is well, though
nothing else happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import StoreError
from ftstan.broker import managing
from ftstan.config.options import DeliveryRules
from ftstan.stores.memory import MemoryChannel, MemoryStore
from tests.compat.driver import SECOND, SUBJECTS, Driver, sequences
from tests.unit.broker.test_dead_letters import letters, options, pending

if TYPE_CHECKING:
    from ftstan.stores.interface import ChannelLimits
    from ftstan.wire.block import MsgBlock


class _Channel(MemoryChannel):
    store: Unreadable

    def read(self, sequence: int, max_msgs: int, max_bytes: int) -> MsgBlock | None:
        if self.store.refuses:
            raise StoreError("input/output error")
        return super().read(sequence, max_msgs, max_bytes)


class Unreadable(MemoryStore):
    """A store that gives no message while it ``refuses``."""

    refuses = False

    def create_channel(self, name: bytes, limits: ChannelLimits) -> MemoryChannel:
        channel = self._channels[name] = _Channel(name, limits, self._touched, self._expiry)
        channel.store = self
        return channel


def started(rules: DeliveryRules | None = None) -> tuple[Driver, Unreadable]:
    store = Unreadable()
    driver = Driver(store) if rules is None else Driver(store, options(rules))
    driver.connect()
    return driver, store


def refuse(driver: Driver, store: Unreadable) -> None:
    """From now on nothing can be read, and nothing is remembered."""
    store.refuses = True
    driver.broker.drop_caches()


@pytest.mark.parametrize("queue", [b"", b"g"])
def test_what_a_reader_is_behind_by_comes_as_soon_as_storage_is_well(
    queue: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    driver, store = started()
    driver.publish(b"a", b"b")
    refuse(driver, store)
    driver.subscribe(queue=queue)
    driver.wait(5)
    assert sequences(driver.out) == []
    assert "delivery of subid=1 stopped after sequence 0: input/output error" in (
        capfd.readouterr().err
    )
    store.refuses = False
    driver.wait(1.1)
    assert sequences(driver.out) == [1, 2]


@pytest.mark.parametrize("queue", [b"", b"g"])
def test_a_redelivery_that_cannot_be_read_comes_after_the_next_wait(queue: bytes) -> None:
    driver, store = started()
    driver.subscribe(queue=queue, ack_wait=10)
    driver.publish(b"a", b"b")
    driver.wait(5)
    refuse(driver, store)
    driver.wait(10)
    assert sequences(driver.out) == [1, 2]
    store.refuses = False
    driver.wait(10)
    assert sequences(driver.out) == [1, 2, 1, 2]


@pytest.mark.parametrize("queue", [b"", b"g"])
def test_a_durable_that_comes_back_while_nothing_can_be_read_gets_its_messages_later(
    queue: bytes,
) -> None:
    driver, store = started()
    inbox = driver.subscribe(durable=b"dur", queue=queue, ack_wait=10)
    driver.publish(b"a", b"b")
    assert driver.leave(SUBJECTS.sub_close, inbox).error == b""
    refuse(driver, store)
    driver.subscribe(durable=b"dur", queue=queue, ack_wait=10)
    driver.wait(5)
    assert sequences(driver.out) == [1, 2]
    store.refuses = False
    driver.wait(10)
    assert sequences(driver.out) == [1, 2, 1, 2]


def test_a_dead_letter_that_cannot_be_read_is_none_yet() -> None:
    driver, store = started(DeliveryRules(1, "foo.dead"))
    driver.subscribe(durable=b"dur", ack_wait=10)
    driver.publish(b"poison")
    refuse(driver, store)
    driver.wait(15)
    assert (letters(driver), pending(driver)) == ([], [1])
    store.refuses = False
    driver.wait(10)
    assert [data for data, _ in letters(driver)] == [b"poison"]
    assert pending(driver) == []


@pytest.mark.parametrize("queue", [b"", b"g"])
def test_a_refused_dead_letter_that_cannot_be_read_is_sent_again_later(queue: bytes) -> None:
    driver, store = started(DeliveryRules(1, "foo.dead", (SECOND,)))
    driver.subscribe(durable=b"dur", queue=queue, ack_wait=10)
    driver.publish(b"m")
    # The dead-letter channel is damaged, which is looked at before the message is read.
    driver.broker.open_channel(b"foo.dead").refused = b"it is damaged"
    refuse(driver, store)
    driver.wait(5)
    assert sequences(driver.out) == [1]
    store.refuses = False
    driver.wait(20)
    assert sequences(driver.out)[1:]


def test_an_age_that_cannot_be_read_is_not_known() -> None:
    driver, store = started()
    driver.publish(b"a")
    driver.subscribe(max_in_flight=1)
    driver.publish(b"b")
    rows = managing.sub_rows(driver.broker, [b"foo"], b"", (b"", 0), 10)
    managing.add_ages(driver.broker, rows, driver.clock.wall_ns() + 3 * SECOND)
    assert rows[0]["oldest_unread_age_s"] == 3.0
    store.refuses = True
    managing.add_ages(driver.broker, rows, driver.clock.wall_ns() + 3 * SECOND)
    assert rows[0]["oldest_unread_age_s"] is None
