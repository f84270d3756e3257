"""Durable subscriptions: what stays when they close, and what a resume brings back."""

from __future__ import annotations

import pytest

from ftstan.broker.broker import BrokerOptions
from ftstan.wire import messages
from tests.compat.driver import SUBJECTS, Driver, deliveries, sequences


@pytest.fixture
def driver() -> Driver:
    made = Driver()
    made.connect()
    return made


def test_a_closed_durable_gets_on_where_it_stopped(driver: Driver) -> None:
    ack_inbox = driver.subscribe(durable=b"dur")
    driver.publish(b"a", b"b")
    driver.ack(ack_inbox, 1, 2)
    assert driver.leave(SUBJECTS.sub_close, ack_inbox).error == b""
    assert ack_inbox not in driver.subs.values()
    driver.publish(b"c", b"d")
    assert sequences(driver.out) == [1, 2]
    # A resume has no start position.
    driver.subscribe(durable=b"dur", inbox=b"again", start=0)
    assert [(d.sequence, d.redelivered) for d in deliveries(driver.out, b"again")] == [
        (3, False),
        (4, False),
    ]


def test_an_unsubscribed_durable_starts_over(driver: Driver) -> None:
    ack_inbox = driver.subscribe(durable=b"dur")
    driver.publish(b"a")
    driver.leave(SUBJECTS.unsubscribe, ack_inbox)
    driver.subscribe(durable=b"dur", inbox=b"again")
    assert [(d.sequence, d.redelivered) for d in deliveries(driver.out, b"again")] == [(1, False)]


def test_a_resume_first_resends_all_that_is_pending_in_order_whatever_the_window(
    driver: Driver,
) -> None:
    ack_inbox = driver.subscribe(durable=b"dur", max_in_flight=5)
    driver.publish(*(b"%d" % i for i in range(8)))
    driver.wait(3)
    driver.leave(SUBJECTS.sub_close, ack_inbox)
    ack_inbox = driver.subscribe(durable=b"dur", inbox=b"again", max_in_flight=2)
    assert [(d.sequence, d.redelivered, d.count) for d in deliveries(driver.out, b"again")] == [
        (seq, True, 1) for seq in range(1, 6)
    ]
    assert sequences(driver.ack(ack_inbox, 1, 2, 3), b"again") == []
    assert sequences(driver.ack(ack_inbox, 4), b"again") == [6]
    assert sequences(driver.ack(ack_inbox, 5, 6), b"again") == [7, 8]


def test_a_resume_in_one_batch_with_a_publish_keeps_old_before_new(driver: Driver) -> None:
    ack_inbox = driver.subscribe(durable=b"dur")
    driver.publish(b"a", b"b")
    driver.leave(SUBJECTS.sub_close, ack_inbox)
    driver.offer(b"c")
    driver.subscribe(durable=b"dur", inbox=b"again")
    assert [(d.sequence, d.redelivered) for d in deliveries(driver.out, b"again")] == [
        (1, True),
        (2, True),
        (3, False),
    ]


def test_a_resume_counts_redeliveries_on_and_keeps_their_rhythm(driver: Driver) -> None:
    ack_inbox = driver.subscribe(durable=b"dur", ack_wait=2)
    driver.publish(b"a")
    driver.wait(3)
    driver.leave(SUBJECTS.sub_close, ack_inbox)
    driver.subscribe(durable=b"dur", inbox=b"again", ack_wait=2)
    # Due at 4, had it not been closed; the resend at 3 makes that 6.
    driver.wait(3.5)
    assert [(d.at, d.count) for d in deliveries(driver.out, b"again")] == [(3, 2), (6, 3)]


def test_an_offline_durable_is_not_redelivered_to(driver: Driver) -> None:
    ack_inbox = driver.subscribe(durable=b"dur", ack_wait=1)
    driver.publish(b"a")
    driver.leave(SUBJECTS.sub_close, ack_inbox)
    driver.wait(10)
    assert sequences(driver.out) == [1]


def test_acks_to_the_inbox_of_a_closed_durable_are_lost_and_the_message_comes_again(
    driver: Driver,
) -> None:
    old = driver.subscribe(durable=b"dur")
    driver.publish(b"a")
    driver.leave(SUBJECTS.sub_close, old)
    driver.ack(old, 1)
    new = driver.subscribe(durable=b"dur", inbox=b"again")
    assert new != old
    assert sequences(driver.out, b"again") == [1]


def test_acks_that_arrive_just_before_the_close_count(driver: Driver) -> None:
    ack_inbox = driver.subscribe(durable=b"dur")
    driver.publish(b"a", b"b")
    driver.ack(ack_inbox, 1)
    driver.leave(SUBJECTS.sub_close, ack_inbox)
    driver.subscribe(durable=b"dur", inbox=b"again")
    assert sequences(driver.out, b"again") == [2]


def test_an_offline_durable_cannot_be_unsubscribed(driver: Driver) -> None:
    ack_inbox = driver.subscribe(durable=b"dur")
    driver.leave(SUBJECTS.sub_close, ack_inbox)
    assert driver.leave(SUBJECTS.unsubscribe, ack_inbox).error == b"stan: invalid subscription"


def test_closing_the_connection_closes_durables_and_ends_plain_subscriptions(
    driver: Driver,
) -> None:
    driver.subscribe(inbox=b"plain")
    ack_inbox = driver.subscribe(inbox=b"one", durable=b"one")
    driver.subscribe(b"bar", inbox=b"two", durable=b"two")
    driver.publish(b"a")
    driver.ack(ack_inbox, 1)
    driver.close()
    assert driver.broker.counts()["subscriptions"] == 2
    driver.connect()
    driver.publish(b"b")
    driver.publish(b"c", channel=b"bar")
    driver.subscribe(inbox=b"one.again", durable=b"one")
    driver.subscribe(b"bar", inbox=b"two.again", durable=b"two")
    assert sequences(driver.out, b"one.again") == [2]
    assert sequences(driver.out, b"two.again") == [1]
    assert sequences(driver.out, b"plain") == [1]


def test_a_durable_belongs_to_its_client_id(driver: Driver) -> None:
    ack_inbox = driver.subscribe(durable=b"dur")
    driver.publish(b"a")
    driver.ack(ack_inbox, 1)
    driver.close()
    driver.connect(b"other")
    driver.subscribe(client_id=b"other", inbox=b"other", durable=b"dur")
    assert sequences(driver.out, b"other") == [1]
    assert driver.broker.counts()["subscriptions"] == 2


# ---- replacing an active durable
# -----------------------------------------------------------------------------------


@pytest.fixture
def replacing() -> Driver:
    made = Driver(options=BrokerOptions(replace_durable=True))
    made.connect()
    return made


def test_with_replace_durable_a_second_request_takes_the_place_of_the_first(
    replacing: Driver,
) -> None:
    first = replacing.subscribe(durable=b"dur")
    replacing.publish(b"a")
    second = replacing.subscribe(durable=b"dur", inbox=b"second")
    assert [(d.sequence, d.redelivered) for d in deliveries(replacing.out, b"second")] == [
        (1, True)
    ]
    assert first not in replacing.subs.values()
    assert second in replacing.subs.values()
    replacing.publish(b"b")
    assert sequences(replacing.out) == [1]
    assert sequences(replacing.out, b"second") == [1, 2]
    assert replacing.broker.counts()["subscriptions"] == 1


def test_replacing_a_durable_in_the_batch_that_made_it_leaves_one_subscription(
    replacing: Driver,
) -> None:
    replacing.publish(b"pending")
    replacing.leave(SUBJECTS.sub_close, replacing.subscribe(durable=b"dur"))
    for inbox in (b"first", b"second"):
        request = messages.SubscriptionRequest(
            client_id=b"me",
            subject=b"foo",
            inbox=inbox,
            durable_name=b"dur",
            max_in_flight=9,
            ack_wait_in_secs=30,
            start_position=messages.StartPosition.FIRST,
        )
        replacing.frame(SUBJECTS.subscribe, messages.encode(request), b"reply." + inbox)
    replacing.offer(b"a")
    out = replacing.run()
    assert sequences(out, b"first") == []
    assert sequences(out, b"second") == [1, 2]
    acks = [
        messages.parse(messages.SubscriptionResponse, o.payload).ack_inbox
        for o in out
        if o.subject.startswith(b"reply.")
    ]
    assert [ack_inbox in replacing.subs.values() for ack_inbox in acks] == [False, True]


def test_replace_durable_does_not_touch_members_of_durable_groups(replacing: Driver) -> None:
    replacing.subscribe(inbox=b"q1", queue=b"g", durable=b"dur")
    replacing.subscribe(inbox=b"q2", queue=b"g", durable=b"dur")
    replacing.publish(b"a", b"b")
    assert (sequences(replacing.out, b"q1"), sequences(replacing.out, b"q2")) == ([1], [2])
