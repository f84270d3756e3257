"""What a failed commit and a lost link take back, and what they must not."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import StoreError
from ftstan.stores.memory import MemoryStore
from ftstan.wire import messages
from tests.compat.driver import SUBJECTS, Driver, PubAck, deliveries, pub_acks, sequences
from tests.sim.disk import SimDisk
from tests.sim.filestore import open_file_store
from tests.sim.history import STORE

if TYPE_CHECKING:
    from ftstan.stores.interface import Store, SubState


class RefusingStore(MemoryStore):
    """A store whose commits fail for the channels named in ``broken``."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: set[bytes] = set()

    def commit(self) -> dict[bytes, StoreError]:
        for channel in [c for c in self._touched if c.name in self.broken]:
            channel._staged = None
            self._touched.remove(channel)
        return super().commit() | {
            name: StoreError(f"{name.decode()}: no disk") for name in self.broken
        }


@pytest.fixture
def store() -> RefusingStore:
    return RefusingStore()


@pytest.fixture
def driver(store: RefusingStore) -> Driver:
    made = Driver(store)
    made.connect()
    return made


# ---- a failed commit
# -----------------------------------------------------------------------------------------------


def test_when_one_channel_fails_its_publishers_get_errors_and_the_others_good_acks(
    driver: Driver, store: RefusingStore
) -> None:
    driver.subscribe()
    driver.subscribe(b"bar", inbox=b"bar")
    driver.publish(b"first")
    store.broken.add(b"foo")
    for data, channel in ((b"1", b"foo"), (b"2", b"bar"), (b"3", b"foo"), (b"4", b"bar")):
        driver.offer(data, channel=channel)
    out = driver.run()
    bad = b"foo: no disk"
    assert sorted(pub_acks(out), key=lambda a: a.guid) == [
        PubAck(b"1", bad),
        PubAck(b"2"),
        PubAck(b"3", bad),
        PubAck(b"4"),
    ]
    assert sequences(out) == []
    assert sequences(out, b"bar") == [1, 2]


def test_after_a_failed_commit_the_sequence_goes_on_behind_what_is_durable(
    driver: Driver, store: RefusingStore
) -> None:
    driver.subscribe()
    driver.publish(b"a")
    store.broken.add(b"foo")
    driver.publish(b"lost 1", b"lost 2")
    store.broken.clear()
    assert driver.publish(b"b") == [PubAck(b"b")]
    assert [(d.sequence, d.data) for d in deliveries(driver.out)] == [(1, b"a"), (2, b"b")]


def test_a_failed_commit_of_a_new_channel_leaves_it_empty(
    driver: Driver, store: RefusingStore
) -> None:
    store.broken.add(b"foo")
    assert driver.publish(b"lost")[0].error == b"foo: no disk"
    store.broken.clear()
    driver.subscribe()
    driver.publish(b"a")
    assert [(d.sequence, d.data) for d in deliveries(driver.out)] == [(1, b"a")]


def test_redelivery_and_catching_up_go_on_in_a_channel_that_cannot_store(
    driver: Driver, store: RefusingStore
) -> None:
    ack_inbox = driver.subscribe(ack_wait=1, max_in_flight=1)
    driver.publish(b"a", b"b")
    store.broken.add(b"foo")
    driver.wait(1)
    assert [(d.sequence, d.redelivered) for d in deliveries(driver.out)] == [(1, False), (1, True)]
    assert sequences(driver.ack(ack_inbox, 1)) == [2]


def test_a_subscription_whose_record_cannot_be_stored_is_refused_and_gone(
    driver: Driver, store: RefusingStore
) -> None:
    driver.publish(b"a")
    store.broken.add(b"foo")
    request = messages.SubscriptionRequest(
        client_id=b"me",
        subject=b"foo",
        inbox=b"in",
        max_in_flight=1,
        ack_wait_in_secs=1,
        durable_name=b"dur",
    )
    before = dict(driver.subs)
    assert driver.call(SUBJECTS.subscribe, messages.encode(request)) == messages.encode(
        messages.SubscriptionResponse(error=b"foo: no disk")
    )
    assert driver.subs == before
    store.broken.clear()
    driver.publish(b"b")
    assert sequences(driver.out) == []
    driver.subscribe(durable=b"dur")
    assert sequences(driver.out) == [1, 2]


def test_a_resume_whose_record_cannot_be_stored_leaves_the_durable_offline(
    driver: Driver, store: RefusingStore
) -> None:
    driver.leave(SUBJECTS.sub_close, driver.subscribe(durable=b"dur"))
    store.broken.add(b"foo")
    request = messages.SubscriptionRequest(
        client_id=b"me",
        subject=b"foo",
        inbox=b"in",
        max_in_flight=1,
        ack_wait_in_secs=1,
        durable_name=b"dur",
    )
    driver.call(SUBJECTS.subscribe, messages.encode(request))
    store.broken.clear()
    driver.publish(b"a")
    driver.subscribe(durable=b"dur", inbox=b"again")
    assert sequences(driver.out, b"again") == [1]
    assert driver.broker.counts()["subscriptions"] == 1


def subscribe_frame(
    driver: Driver, inbox: bytes, *, queue: bytes = b"", durable: bytes = b""
) -> bytes:
    """Queue a request; its reply subject."""
    request = messages.SubscriptionRequest(
        client_id=b"me",
        subject=b"foo",
        inbox=inbox,
        q_group=queue,
        durable_name=durable,
        max_in_flight=9,
        ack_wait_in_secs=30,
        start_position=messages.StartPosition.FIRST,
    )
    reply = driver.reply()
    driver.frame(SUBJECTS.subscribe, messages.encode(request), reply)
    return reply


def close_frame(driver: Driver) -> None:
    driver.frame(
        SUBJECTS.close, messages.encode(messages.CloseRequest(client_id=b"me")), driver.reply()
    )


@pytest.mark.parametrize("durable", [b"", b"dur"])
@pytest.mark.parametrize("queue", [b"", b"g"])
def test_a_subscribe_and_its_clients_close_that_fail_together_are_taken_back_once(
    driver: Driver, store: RefusingStore, queue: bytes, durable: bytes
) -> None:
    driver.subscribe()
    driver.connect(b"other")
    driver.subscribe(client_id=b"other", inbox=b"kept")
    store.broken.add(b"foo")
    subscribe_frame(driver, b"q1", queue=queue, durable=durable)
    close_frame(driver)
    driver.run()
    store.broken.clear()
    channel = driver.broker.channels.get(b"foo")
    assert channel is not None
    assert channel.stored_subs == driver.broker.counts()["subscriptions"] == 1
    assert (len(channel.subs), channel.groups, channel.durables) == (1, {}, {})


def test_a_first_member_whose_record_cannot_be_stored_leaves_no_group(
    driver: Driver, store: RefusingStore
) -> None:
    driver.publish(b"a")
    store.broken.add(b"foo")
    before = dict(driver.subs)
    reply = subscribe_frame(driver, b"q1", queue=b"g", durable=b"dur")
    (answer,) = [o.payload for o in driver.run() if o.subject == reply]
    assert messages.parse(messages.SubscriptionResponse, answer).error == b"foo: no disk"
    assert driver.subs == before
    store.broken.clear()
    driver.subscribe(inbox=b"q2", queue=b"g", durable=b"dur", start=messages.StartPosition.NEW_ONLY)
    driver.publish(b"b")
    assert sequences(driver.out, b"q1") == []
    assert sequences(driver.out, b"q2") == [2]
    assert driver.broker.counts()["subscriptions"] == 1


def test_a_member_whose_record_cannot_be_stored_leaves_the_group_as_it_was(
    driver: Driver, store: RefusingStore
) -> None:
    driver.subscribe(inbox=b"q1", queue=b"g")
    store.broken.add(b"foo")
    subscribe_frame(driver, b"q2", queue=b"g")
    driver.run()
    store.broken.clear()
    driver.publish(b"a", b"b")
    assert (sequences(driver.out, b"q1"), sequences(driver.out, b"q2")) == ([1, 2], [])


def test_a_resume_of_a_durable_group_that_cannot_be_stored_keeps_its_state(
    driver: Driver, store: RefusingStore
) -> None:
    driver.leave(SUBJECTS.sub_close, driver.subscribe(inbox=b"q1", queue=b"g", durable=b"dur"))
    driver.publish(b"a")
    store.broken.add(b"foo")
    subscribe_frame(driver, b"q2", queue=b"g", durable=b"dur")
    subscribe_frame(driver, b"q3", queue=b"g", durable=b"dur")
    driver.run()
    store.broken.clear()
    driver.subscribe(inbox=b"q4", queue=b"g", durable=b"dur", start=messages.StartPosition.NEW_ONLY)
    assert [sequences(driver.out, b"q%d" % n) for n in (2, 3, 4)] == [[], [], [1]]
    assert driver.broker.counts()["subscriptions"] == 1


def test_a_durable_group_whose_last_member_left_while_another_could_not_join_goes_on(
    driver: Driver, store: RefusingStore
) -> None:
    driver.connect(b"other")
    driver.subscribe(inbox=b"q1", queue=b"g", durable=b"dur")
    driver.publish(b"a")
    store.broken.add(b"foo")
    request = messages.SubscriptionRequest(
        client_id=b"other",
        subject=b"foo",
        inbox=b"q2",
        q_group=b"g",
        durable_name=b"dur",
        max_in_flight=9,
        ack_wait_in_secs=30,
    )
    channel = driver.broker.channels.get(b"foo")
    assert channel is not None
    added: list[SubState] = []
    channel.store.add_sub = added.append  # type: ignore[method-assign, assignment]
    driver.frame(SUBJECTS.subscribe, messages.encode(request), driver.reply())
    close_frame(driver)
    driver.run()
    store.broken.clear()
    # Both records were refused with the batch: the state is stored anew, under the id that nobody
    # has seen.
    assert [(s.sub_id, s.client_id, s.queue, s.last_sent) for s in added[1:]] == [
        (2, b"", b"dur:g", 1)
    ]
    driver.subscribe(client_id=b"other", inbox=b"q3", queue=b"g", durable=b"dur")
    assert [(d.sequence, d.redelivered) for d in deliveries(driver.out, b"q3")] == [(1, True)]
    assert driver.broker.counts()["subscriptions"] == 1


def test_a_group_gets_nothing_of_a_batch_that_failed(driver: Driver, store: RefusingStore) -> None:
    driver.subscribe(inbox=b"q1", queue=b"g")
    driver.subscribe(inbox=b"q2", queue=b"g")
    store.broken.add(b"foo")
    driver.publish(b"lost")
    assert [o for o in driver.out if o.subject in (b"q1", b"q2")] == []
    store.broken.clear()
    driver.publish(b"a", b"b")
    found = deliveries(driver.out, b"q1") + deliveries(driver.out, b"q2")
    assert [(d.sequence, d.data) for d in found] == [(1, b"a"), (2, b"b")]


def test_what_a_group_was_not_sent_because_the_link_broke_is_due_at_once(driver: Driver) -> None:
    driver.subscribe(inbox=b"q1", queue=b"g")
    driver.subscribe(inbox=b"q2", queue=b"g")
    driver.offer(b"a")
    driver.offer(b"b")
    driver.run(lost=True)
    driver.open_link()
    out = driver.wait(0)
    assert sorted(sequences(out, b"q1") + sequences(out, b"q2")) == [1, 2]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_on_a_real_store_a_failed_sync_is_an_error_ack_and_costs_no_sequence(code: int) -> None:
    disk = SimDisk()
    disk.make_dirs(STORE)
    clock = ManualClock()
    driver = Driver(file_store(disk, clock), clock=clock)
    driver.connect()
    driver.publish(b"a")
    disk.fail_next("fdatasync", code)
    (refused,) = driver.publish(b"lost")
    assert refused.error != b""
    assert driver.publish(b"b") == [PubAck(b"b")]
    driver.subscribe()
    assert [(d.sequence, d.data) for d in deliveries(driver.out)] == [(1, b"a"), (2, b"b")]
    after = Driver(file_store(disk.crash(), clock), clock=clock)
    after.connect(b"reader")
    after.subscribe(client_id=b"reader", inbox=b"reader")
    assert [(d.sequence, d.data) for d in deliveries(after.out, b"reader")] == [
        (1, b"a"),
        (2, b"b"),
    ]


def file_store(disk: SimDisk, clock: ManualClock) -> Store:
    return open_file_store(disk, clock)


# ---- a lost link
# --------------------------------------------------------------------------------------------------


def test_what_could_not_be_sent_is_due_again_as_soon_as_the_link_is_back(driver: Driver) -> None:
    driver.subscribe(ack_wait=30)
    driver.offer(b"a")
    driver.offer(b"b")
    driver.run(lost=True)
    assert sequences(driver.out) == []
    driver.open_link()
    out = driver.wait(0)
    assert sequences(out) == [1, 2]
    assert pub_acks(out) == []


def test_only_what_the_broken_batch_sent_is_due_early(driver: Driver) -> None:
    driver.subscribe(ack_wait=30)
    driver.publish(b"a")
    driver.offer(b"b")
    driver.run(lost=True)
    driver.open_link()
    assert sequences(driver.wait(0)) == [2]
    assert sequences(driver.wait(30)) == [1, 2]


def test_a_lost_redelivery_is_due_again_too(driver: Driver) -> None:
    driver.subscribe(ack_wait=5)
    driver.publish(b"a")
    driver.clock.advance(5)
    driver.run(lost=True)
    driver.open_link()
    assert sequences(driver.wait(0)) == [1]


def test_publishes_that_were_acked_into_a_broken_link_are_stored_once(driver: Driver) -> None:
    driver.offer(b"a")
    driver.run(lost=True)
    driver.open_link()
    driver.publish(b"b")
    driver.subscribe()
    assert [(d.sequence, d.data) for d in deliveries(driver.out)] == [(1, b"a"), (2, b"b")]
    assert pub_acks(driver.out) == [PubAck(b"b")]


def test_after_a_reconnect_the_ack_inboxes_and_all_requests_are_subscribed_again(
    driver: Driver,
) -> None:
    ack_inbox = driver.subscribe(max_in_flight=1)
    before = dict(driver.subs)
    driver.open_link()
    assert driver.subs == before
    driver.publish(b"a", b"b")
    assert sequences(driver.ack(ack_inbox, 1)) == [2]


def test_acks_of_publishes_that_were_applied_when_the_link_broke_are_not_mixed_with_later_ones(
    driver: Driver, store: RefusingStore
) -> None:
    driver.offer(b"a long guid of a publish whose ack is lost")
    driver._feed()
    driver.broker.link_lost(driver.now)
    driver.open_link()
    store.broken.add(b"bar")
    driver.offer(b"1")
    driver.offer(b"2", channel=b"bar")
    assert sorted(pub_acks(driver.run()), key=lambda a: a.guid) == [
        PubAck(b"1"),
        PubAck(b"2", b"bar: no disk"),
    ]
