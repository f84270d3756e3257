"""Delivery to plain subscriptions: the window, acknowledgements, and redelivery to the
millisecond.
"""

from __future__ import annotations

import pytest

from ftstan.broker.broker import BrokerOptions
from ftstan.stores.interface import ChannelLimits
from ftstan.wire import messages
from tests.compat.driver import SECOND, SUBJECTS, Delivery, Driver, deliveries, sequences
from tests.uncoded import uncoded


@pytest.fixture
def driver() -> Driver:
    made = Driver()
    made.connect()
    return made


def again(driver: Driver, inbox: bytes = b"in") -> list[tuple[float, int, int]]:
    """When, what and for how many times has been redelivered."""
    return [(d.at, d.sequence, d.count) for d in deliveries(driver.out, inbox) if d.redelivered]


# ---- the window
# --------------------------------------------------------------------------------------------------


def test_every_subscription_gets_every_message_once_and_in_order(driver: Driver) -> None:
    driver.subscribe(inbox=b"a")
    driver.subscribe(inbox=b"b")
    driver.publish(*(b"%d" % i for i in range(50)))
    for inbox in (b"a", b"b"):
        assert deliveries(driver.out, inbox) == [Delivery(0, i + 1, b"%d" % i) for i in range(50)]


def test_no_more_than_max_in_flight_are_sent_until_an_ack_lets_one_out(driver: Driver) -> None:
    ack_inbox = driver.subscribe(max_in_flight=3)
    driver.publish(*(b"%d" % i for i in range(10)))
    assert sequences(driver.out) == [1, 2, 3]
    assert sequences(driver.ack(ack_inbox, 2)) == [4]
    assert sequences(driver.ack(ack_inbox, 1)) == [5]
    assert sequences(driver.ack(ack_inbox, 3, 4, 5)) == [6, 7, 8]


def test_a_full_window_does_not_hold_up_other_subscriptions(driver: Driver) -> None:
    driver.subscribe(inbox=b"full", max_in_flight=1)
    driver.subscribe(inbox=b"free")
    driver.publish(b"a", b"b")
    driver.publish(b"c")
    assert sequences(driver.out, b"full") == [1]
    assert sequences(driver.out, b"free") == [1, 2, 3]


def test_a_window_that_is_just_full_opens_with_one_ack(driver: Driver) -> None:
    ack_inbox = driver.subscribe(max_in_flight=2)
    driver.publish(b"a", b"b")
    driver.publish(b"c")
    assert sequences(driver.out) == [1, 2]
    driver.ack(ack_inbox, 1)
    driver.publish(b"d")
    assert sequences(driver.out) == [1, 2, 3]


def test_acks_in_any_order_and_all_at_once_move_the_window(driver: Driver) -> None:
    ack_inbox = driver.subscribe(max_in_flight=5)
    driver.publish(*(b"%d" % i for i in range(12)))
    assert sequences(driver.ack(ack_inbox, 5, 3, 1, 4, 2)) == [6, 7, 8, 9, 10]
    assert sequences(driver.ack(ack_inbox, 10, 6)) == [11, 12]


# ---- acks that mean nothing
# ----------------------------------------------------------------------------------------


def test_acks_of_what_is_not_pending_are_ignored(driver: Driver) -> None:
    ack_inbox = driver.subscribe(max_in_flight=1, ack_wait=1)
    driver.publish(b"a", b"b")
    assert driver.ack(ack_inbox, 0, 2, 99, 2**64 - 1) == []
    assert driver.ack(ack_inbox, 1, channel=b"bar") == []
    assert driver.ack(ack_inbox, 1, channel=b"fo") == []
    driver.wait(1)
    assert again(driver) == [(1, 1, 1)]
    assert sequences(driver.ack(ack_inbox, 1)) == [2]
    assert driver.ack(ack_inbox, 1, 1, 1) == []


@pytest.mark.parametrize(
    "payload", [b"", b"\x0a\x7f", b"\x10", b"\x12\x01\x01", b"\x08\x03\x12\x01s", b"garbage"]
)
def test_garbage_on_an_ack_inbox_is_ignored(driver: Driver, payload: bytes) -> None:
    ack_inbox = driver.subscribe(max_in_flight=1)
    driver.publish(b"a", b"b")
    driver.frame(ack_inbox, payload)
    assert driver.run() == []
    assert sequences(driver.ack(ack_inbox, 1)) == [2]


def test_an_ack_that_carries_headers_counts(driver: Driver) -> None:
    ack_inbox = driver.subscribe(max_in_flight=1)
    driver.publish(b"a", b"b")
    sid = next(s for s, subject in driver.subs.items() if subject == ack_inbox)
    payload = messages.encode(messages.Ack(subject=b"foo", sequence=1))
    headers = b"NATS/1.0\r\nA: b\r\n\r\n"
    sizes = b"%d %d" % (len(headers), len(headers) + len(payload))
    driver.raw(b"HMSG %b %d %b\r\n%b%b\r\n" % (ack_inbox, sid, sizes, headers, payload))
    assert sequences(driver.run()) == [2]


def test_an_ack_on_the_inbox_of_another_subscription_does_not_count(driver: Driver) -> None:
    first = driver.subscribe(inbox=b"a", max_in_flight=1)
    driver.subscribe(b"bar", inbox=b"b", max_in_flight=1)
    driver.publish(b"1", b"2")
    driver.publish(b"1", b"2", channel=b"bar")
    assert driver.ack(first, 1, channel=b"bar") == []
    assert sequences(driver.ack(first, 1), b"a") == [2]
    assert sequences(driver.out, b"b") == [1]


# ---- redelivery
# --------------------------------------------------------------------------------------------------


def test_all_that_is_pending_is_resent_every_ack_wait_in_order_with_a_count(driver: Driver) -> None:
    driver.subscribe(ack_wait=1)
    driver.publish(b"a", b"b", b"c")
    driver.wait(3.5)
    assert again(driver) == [(float(t), seq, t) for t in (1, 2, 3) for seq in (1, 2, 3)]


def test_a_resent_message_is_the_same_but_for_its_flags(driver: Driver) -> None:
    driver.subscribe(ack_wait=1)
    driver.publish(b"a")
    driver.wait(1)
    first, second = (o.payload for o in driver.out if o.subject == b"in")
    assert second == first + b"\x30\x01\x38\x01"


def test_each_message_is_due_one_ack_wait_after_it_was_sent(driver: Driver) -> None:
    driver.subscribe(ack_wait=2)
    for data in (b"a", b"b", b"c"):
        driver.publish(data)
        driver.wait(0.5)
    driver.wait(4)
    assert again(driver) == [(2, 1, 1), (2.5, 2, 1), (3, 3, 1), (4, 1, 2), (4.5, 2, 2), (5, 3, 2)]


def test_messages_that_expire_within_15_milliseconds_go_together(driver: Driver) -> None:
    driver.subscribe(ack_wait=1)
    driver.publish(b"a")
    driver.wait(0.015)
    driver.publish(b"b")
    driver.wait(0.005)
    driver.publish(b"c")
    driver.wait(1.2)
    assert again(driver) == [(1, 1, 1), (1, 2, 1), (1.02, 3, 1)]


def test_a_message_resent_early_keeps_its_rhythm(driver: Driver) -> None:
    driver.subscribe(ack_wait=1)
    driver.publish(b"a")
    driver.wait(0.01)
    driver.publish(b"b")
    driver.wait(2.5)
    assert again(driver) == [(1, 1, 1), (1, 2, 1), (2, 1, 2), (2, 2, 2)]


def test_the_next_expiry_is_the_previous_one_plus_ack_wait_however_late_the_timer_ran(
    driver: Driver,
) -> None:
    driver.subscribe(ack_wait=1)
    driver.publish(b"a")
    driver.clock.advance(1.4)
    driver.run()
    driver.wait(0.1)
    driver.publish(b"b")
    driver.wait(2)
    # "a" was due at 1 and, resent at 1.4, is due at 2 again; the timer set at 1.4 looks at it when
    # it fires.
    assert again(driver)[0] == (1.4, 1, 1)
    assert (2.4, 1, 2) in again(driver)
    assert [t for t, seq, _ in again(driver) if seq == 2] == [2.5, 3.5]


def test_redelivery_ignores_the_window_and_new_messages_do_not(driver: Driver) -> None:
    ack_inbox = driver.subscribe(max_in_flight=2, ack_wait=1)
    driver.publish(b"a", b"b", b"c")
    driver.wait(2)
    assert again(driver) == [(1, 1, 1), (1, 2, 1), (2, 1, 2), (2, 2, 2)]
    assert sequences(driver.ack(ack_inbox, 1)) == [3]


def test_an_acknowledged_message_is_never_resent(driver: Driver) -> None:
    ack_inbox = driver.subscribe(ack_wait=1)
    driver.publish(b"a", b"b")
    driver.ack(ack_inbox, 1)
    driver.wait(1)
    driver.ack(ack_inbox, 2)
    driver.wait(10)
    assert again(driver) == [(1, 2, 1)]


def test_after_everything_is_acknowledged_a_new_message_starts_the_timer_again(
    driver: Driver,
) -> None:
    ack_inbox = driver.subscribe(ack_wait=1)
    driver.publish(b"a")
    driver.ack(ack_inbox, 1)
    driver.wait(5)
    driver.publish(b"b")
    driver.wait(1)
    assert again(driver) == [(6, 2, 1)]


def test_a_pending_message_that_the_limits_dropped_counts_as_acknowledged() -> None:
    driver = Driver(options=BrokerOptions(limits=ChannelLimits(max_msgs=2)))
    driver.connect()
    driver.subscribe(ack_wait=1, max_in_flight=2)
    driver.publish(b"a")
    driver.publish(b"b")
    driver.publish(b"c")
    driver.publish(b"d")
    assert sequences(driver.out) == [1, 2]
    driver.wait(1)
    assert again(driver) == []
    assert sequences(driver.out) == [1, 2, 3, 4]


def test_messages_dropped_in_the_batch_that_stored_them_are_not_delivered() -> None:
    driver = Driver(options=BrokerOptions(limits=ChannelLimits(max_msgs=2)))
    driver.connect()
    driver.subscribe()
    assert len(driver.publish(b"a", b"b", b"c", b"d")) == 4
    assert sequences(driver.out) == [3, 4]


# ---- unsubscribe and subscription close
# ----------------------------------------------------------------------------


@pytest.mark.parametrize("subject", [SUBJECTS.unsubscribe, SUBJECTS.sub_close])
def test_a_plain_subscription_ends_with_unsubscribe_and_with_close(
    driver: Driver, subject: str
) -> None:
    ack_inbox = driver.subscribe(ack_wait=1)
    driver.publish(b"a")
    payload = messages.encode(
        messages.UnsubscribeRequest(client_id=b"me", subject=b"foo", inbox=ack_inbox)
    )
    assert driver.call(subject, payload) == b""
    assert ack_inbox not in driver.subs.values()
    driver.publish(b"b")
    driver.wait(5)
    assert sequences(driver.out) == [1]
    assert driver.leave(subject, ack_inbox).error == b"stan: invalid subscription"


@pytest.mark.parametrize("subject", [SUBJECTS.unsubscribe, SUBJECTS.sub_close])
def test_the_first_thing_wrong_with_leaving_is_its_answer(driver: Driver, subject: str) -> None:
    driver.connect(b"other")
    ack_inbox = driver.subscribe()
    assert driver.call(subject, b"\x08\x01") == messages.encode(
        messages.SubscriptionResponse(error=b"stan: invalid unsubscribe request")
    )
    leave = driver.leave
    assert (
        leave(subject, b"x", channel=b"bar", client_id=b"nobody").error == b"stan: unknown channel"
    )
    assert leave(subject, b"x", client_id=b"nobody").error == b"stan: invalid subscription"
    assert leave(subject, ack_inbox, client_id=b"nobody").error == b"stan: unknown clientID"
    assert leave(subject, ack_inbox, client_id=b"other").error == b"stan: unknown clientID"
    assert leave(subject, ack_inbox).error == b""


def test_a_subscription_can_be_closed_by_its_message_inbox_without_a_reply_subject(
    driver: Driver,
) -> None:
    ack_inbox = driver.subscribe()
    request = messages.UnsubscribeRequest(client_id=b"me", subject=b"foo", inbox=b"in")
    driver.frame(SUBJECTS.sub_close, messages.encode(request))
    assert driver.run() == []
    assert ack_inbox not in driver.subs.values()


def test_leaving_keeps_the_order_of_those_that_stay(driver: Driver) -> None:
    inboxes = [driver.subscribe(inbox=b"in.%d" % i) for i in range(4)]
    driver.leave(SUBJECTS.unsubscribe, inboxes[0])
    driver.publish(b"x")
    # The last one moves into the hole.
    order = [o.subject for o in driver.out if o.subject.startswith(b"in.")]
    assert order == [b"in.3", b"in.1", b"in.2"]


def test_the_channel_of_a_message_too_large_for_the_link_goes_on_behind_it(
    driver: Driver, capfd: pytest.CaptureFixture[str]
) -> None:
    driver.publish(b"a", b"x" * 5000, b"c")
    driver.broker.max_payload = 4000
    ack_inbox = driver.subscribe(durable=b"dur", max_in_flight=1)
    assert sequences(driver.out) == [1]
    assert sequences(driver.ack(ack_inbox, 1)) == [3]
    assert driver.broker.skipped == 1
    capfd.readouterr()
    driver.broker.tick()
    driver.broker.tick()
    (line,) = capfd.readouterr().err.splitlines()
    assert (
        "deliveries left out: 1 since the last such line, the first one: message 2 of channel "
        '"foo" for' in line
    )
    assert uncoded(line).endswith("the NATS server carries 4000 (max_payload)")
    # A durable is behind it for good: what has been passed over counts as sent and acknowledged.
    driver.leave(SUBJECTS.sub_close, ack_inbox)
    driver.broker.max_payload = 1 << 20
    driver.out.clear()
    driver.subscribe(durable=b"dur")
    assert sequences(driver.out) == [3]
    driver.subscribe(inbox=b"new")
    assert sequences(driver.out, b"new") == [1, 2, 3]


def test_a_channel_full_of_messages_too_large_does_not_take_one_batch(driver: Driver) -> None:
    driver.publish(*(b"%d:" % i + b"x" * 5000 for i in range(40)), b"last")
    driver.broker.max_payload = 4000
    driver.broker.budget = 50_000
    driver.subscribe()
    assert sequences(driver.out) == [41]
    assert driver.broker.skipped == 40


def test_what_is_pending_and_became_too_large_for_the_link_is_over(driver: Driver) -> None:
    driver.subscribe(ack_wait=1, max_in_flight=1)
    driver.publish(b"x" * 5000, b"b")
    assert sequences(driver.out) == [1]
    driver.broker.max_payload = 4000
    driver.out.clear()
    driver.wait(1)
    assert sequences(driver.out) == [2]
    assert driver.broker.skipped == 1


def test_a_resend_that_fits_only_without_its_mark_goes_without_it(driver: Driver) -> None:
    driver.subscribe(ack_wait=1)
    driver.publish(b"x" * 5000)
    stored = len(next(o.payload for o in driver.out if o.subject == b"in"))
    driver.broker.max_payload = stored
    driver.wait(2)
    assert [(d.sequence, d.redelivered, d.count) for d in deliveries(driver.out)] == [
        (1, False, 0)
    ] * 3
    driver.broker.max_payload = stored + 4
    driver.wait(1)
    assert deliveries(driver.out)[-1].redelivered
    assert driver.broker.skipped == 0


def test_a_subscription_that_lags_a_thousand_reads_catches_up(driver: Driver) -> None:
    for i in range(30):
        driver.publish(*(b"%d:%d" % (i, k) for k in range(100)))
    driver.subscribe(max_in_flight=5000, start=messages.StartPosition.FIRST)
    assert sequences(driver.out) == list(range(1, 3001))


def test_time_on_the_wall_that_jumps_does_not_move_redelivery(driver: Driver) -> None:
    driver.subscribe(ack_wait=1)
    driver.publish(b"a")
    driver.clock = type(driver.clock)(driver.clock.wall_ns() + 3600 * SECOND, driver.clock.mono())
    driver.wait(1)
    assert again(driver) == [(1, 1, 1)]


def test_the_in_flight_example_of_the_concepts_page(driver: Driver) -> None:
    # Max in flight 2: messages 1 and 2 are sent, 2 is acknowledged, 3 arrives and is sent; then the
    # ack wait of 1 ends.
    ack_inbox = driver.subscribe(max_in_flight=2, ack_wait=10)
    driver.publish(b"1", b"2")
    driver.wait(1)
    driver.ack(ack_inbox, 2)
    driver.publish(b"3")
    driver.wait(9.5)
    assert [(d.at, d.sequence, d.redelivered) for d in deliveries(driver.out)] == [
        (0, 1, False),
        (0, 2, False),
        (1, 3, False),
        (10, 1, True),
    ]
