"""Subscribing: what is refused, where delivery starts, and that the response comes before the first
message.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from ftstan.base import log
from ftstan.broker.broker import BrokerOptions
from ftstan.stores.interface import ChannelLimits
from ftstan.wire import messages
from ftstan.wire.messages import StartPosition
from tests.compat.driver import SECOND, SUBJECTS, Driver, deliveries, sequences

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def driver() -> Driver:
    made = Driver()
    made.connect()
    return made


def request(**changes: bytes | int) -> bytes:
    fields: dict[str, bytes | int] = {
        "client_id": b"me",
        "subject": b"foo",
        "inbox": b"in",
        "max_in_flight": 10,
        "ack_wait_in_secs": 30,
    }
    return messages.encode(messages.SubscriptionRequest(**(fields | changes)))  # type: ignore[arg-type]


def refusal(driver: Driver, payload: bytes) -> bytes:
    answer = driver.call(SUBJECTS.subscribe, payload)
    assert answer is not None
    response = messages.parse(messages.SubscriptionResponse, answer)
    assert response.ack_inbox == b""
    return response.error


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (b"\x0a\x7f", b"stan: invalid subscription request"),
        (b"\x08\x01", b"stan: invalid subscription request"),
        (b"", b"stan: clientID missing"),
        (request(client_id=b"", ack_wait_in_secs=0), b"stan: clientID missing"),
        (
            request(ack_wait_in_secs=0, max_in_flight=0),
            b"stan: invalid ack wait time, should be >= 1s",
        ),
        (request(ack_wait_in_secs=-1), b"stan: invalid ack wait time, should be >= 1s"),
        (request(max_in_flight=0, start_position=9), b"stan: invalid MaxInflight, should be >= 1"),
        (request(max_in_flight=-1), b"stan: invalid MaxInflight, should be >= 1"),
        (request(start_position=5, subject=b""), b"stan: invalid start position"),
        (request(start_position=-1), b"stan: invalid start position"),
        (request(subject=b"", client_id=b"nobody"), b"stan: invalid subject"),
        (request(subject=b"foo.*"), b"stan: invalid subject"),
        (request(subject=b"foo.>"), b"stan: invalid subject"),
        (request(subject=b"foo..bar"), b"stan: invalid subject"),
        (request(subject=b"a/b"), b"stan: invalid subject"),
        (request(client_id=b"nobody"), b"stan: unknown clientID"),
        (
            request(client_id=b"nobody", q_group=b"g", durable_name=b"a:b"),
            b"stan: unknown clientID",
        ),
    ],
)
def test_the_first_thing_wrong_with_a_request_is_its_answer(
    driver: Driver, payload: bytes, error: bytes
) -> None:
    assert refusal(driver, payload) == error
    assert driver.broker.counts()["channels"] == 0


def test_a_durable_that_is_active_cannot_be_taken_again(driver: Driver) -> None:
    driver.subscribe(durable=b"dur")
    assert refusal(driver, request(durable_name=b"dur")) == b"stan: duplicate durable registration"


def test_one_durable_name_may_be_used_by_each_client_and_on_each_channel(driver: Driver) -> None:
    driver.connect(b"other")
    driver.subscribe(durable=b"dur")
    driver.subscribe(durable=b"dur", client_id=b"other", inbox=b"other")
    driver.subscribe(b"bar", durable=b"dur", inbox=b"bar")


def test_the_limit_of_subscriptions_counts_offline_durables_and_never_a_resume() -> None:
    driver = Driver(options=BrokerOptions(limits=ChannelLimits(max_subs=2)))
    driver.connect()
    ack_inbox = driver.subscribe(durable=b"dur")
    driver.leave(SUBJECTS.sub_close, ack_inbox)
    plain = driver.subscribe()
    assert refusal(driver, request()) == b"too many subscriptions per channel"
    resumed = driver.subscribe(durable=b"dur", inbox=b"again")
    driver.leave(SUBJECTS.unsubscribe, plain)
    driver.subscribe()
    assert refusal(driver, request()) == b"too many subscriptions per channel"
    driver.leave(SUBJECTS.unsubscribe, resumed)
    driver.subscribe()


def test_a_subscription_with_an_empty_inbox_is_accepted_and_gets_nothing(driver: Driver) -> None:
    driver.subscribe(inbox=b"")
    driver.subscribe(inbox=b"in")
    assert driver.publish(b"x")[0].error == b""
    assert sequences(driver.out) == [1]


def test_every_subscription_gets_an_ack_inbox_of_its_own(driver: Driver) -> None:
    inboxes = [driver.subscribe(inbox=b"in.%d" % i) for i in range(3)]
    assert len(set(inboxes)) == 3
    assert all(i.startswith(b"_INBOX.") and i in driver.subs.values() for i in inboxes)


def test_the_response_comes_before_the_first_message_and_after_the_ack_inbox_is_live(
    driver: Driver,
) -> None:
    driver.publish(b"old")
    reply = driver.reply()
    driver.frame(SUBJECTS.subscribe, request(start_position=StartPosition.FIRST), reply)
    driver.offer(b"new")
    out = driver.run()
    assert [o.subject for o in out][:3] == [reply, b"in", b"in"]
    ack_inbox = messages.parse(messages.SubscriptionResponse, out[0].payload).ack_inbox
    assert out[0].payload == b"\x12\x1d" + ack_inbox
    assert ack_inbox in driver.subs.values()


# ---- start positions
# -----------------------------------------------------------------------------------------------


def started(
    driver: Driver, position: int, *, sequence: int = 0, delta: int = 0, channel: bytes = b"foo"
) -> list[int]:
    """What a new subscription gets of ten messages and, behind them, of one that is published after
    it.
    """
    inbox = driver.reply()
    driver.subscribe(channel, inbox=inbox, start=position, sequence=sequence, delta=delta)
    driver.publish(b"new", channel=channel)
    return sequences(driver.out, inbox)


@pytest.fixture
def ten() -> Driver:
    """Messages 1 to 10, a second apart, the last one now."""
    made = Driver()
    made.connect()
    for i in range(10):
        if i:
            made.wait(1)
        made.publish(b"%d" % i)
    return made


@pytest.mark.parametrize(
    ("position", "sequence", "delta", "first"),
    [
        (StartPosition.NEW_ONLY, 0, 0, 11),
        (StartPosition.LAST_RECEIVED, 0, 0, 10),
        (StartPosition.FIRST, 0, 0, 1),
        (StartPosition.SEQUENCE_START, 0, 0, 1),
        (StartPosition.SEQUENCE_START, 1, 0, 1),
        (StartPosition.SEQUENCE_START, 7, 0, 7),
        (StartPosition.SEQUENCE_START, 10, 0, 10),
        (StartPosition.SEQUENCE_START, 11, 0, 11),
        (StartPosition.SEQUENCE_START, 500, 0, 11),
        (StartPosition.TIME_DELTA_START, 0, 3 * SECOND, 7),
        (StartPosition.TIME_DELTA_START, 0, 3 * SECOND - 1, 8),
        (StartPosition.TIME_DELTA_START, 0, 3600 * SECOND, 1),
        (StartPosition.TIME_DELTA_START, 0, 0, 11),
        (StartPosition.TIME_DELTA_START, 0, -SECOND, 11),
    ],
)
def test_delivery_starts_where_the_request_says(
    ten: Driver, position: int, sequence: int, delta: int, first: int
) -> None:
    assert started(ten, position, sequence=sequence, delta=delta) == list(range(first, 12))


@pytest.fixture
def debug_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("TZ", "EST5")
    time.tzset()
    path = tmp_path / "debug.log"
    log.configure(file=str(path), debug=True)
    yield path
    log.configure()
    monkeypatch.undo()
    time.tzset()


def test_the_debug_line_of_a_start_by_time_says_which_time_and_which_sequence(
    ten: Driver, debug_log: Path
) -> None:
    ten.subscribe(inbox=b"a", start=StartPosition.TIME_DELTA_START, delta=9 * SECOND + 500)
    ten.subscribe(inbox=b"b", start=StartPosition.TIME_DELTA_START, delta=SECOND)
    assert log.flush()
    lines = [line for line in debug_log.read_text().splitlines() if "[DBG]" in line]
    assert [line.partition(", sending ")[2] for line in lines] == [
        "from time time=2023-11-14 17:13:19.9999995 -0500 EST seq=1",
        "from time time=2023-11-14 17:13:28 -0500 EST seq=9",
    ]


@pytest.mark.parametrize("position", range(5))
def test_on_an_empty_channel_every_position_starts_with_the_first_message(
    driver: Driver, position: int
) -> None:
    assert started(driver, position, sequence=5, delta=SECOND) == [1]


def limited(limits: ChannelLimits) -> Driver:
    made = Driver(options=BrokerOptions(limits=limits))
    made.connect()
    made.publish(*(b"%d" % i for i in range(10)))
    return made


@pytest.mark.parametrize(
    ("position", "sequence", "first"),
    [
        (StartPosition.FIRST, 0, 8),
        (StartPosition.SEQUENCE_START, 3, 8),
        (StartPosition.SEQUENCE_START, 9, 9),
        (StartPosition.TIME_DELTA_START, 0, 8),
    ],
)
def test_positions_before_the_first_available_message_start_with_it(
    position: int, sequence: int, first: int
) -> None:
    driver = limited(ChannelLimits(max_msgs=3))
    inbox = driver.reply()
    driver.subscribe(inbox=inbox, start=position, sequence=sequence, delta=SECOND)
    assert sequences(driver.out, inbox) == list(range(first, 11))


@pytest.mark.parametrize("position", range(5))
def test_when_everything_has_expired_every_position_starts_with_the_next_message(
    position: int,
) -> None:
    driver = limited(ChannelLimits(max_age=5 * SECOND))
    driver.wait(6)
    driver.store.tick(driver.clock.wall_ns())
    assert started(driver, position, sequence=2, delta=100 * SECOND) == [11]


@pytest.mark.parametrize(
    "position", [StartPosition.FIRST, StartPosition.LAST_RECEIVED, StartPosition.SEQUENCE_START]
)
def test_a_new_reader_gets_nothing_past_its_age_also_before_the_store_has_looked(
    position: int,
) -> None:
    driver = limited(ChannelLimits(max_age=5 * SECOND))
    driver.wait(6)
    assert started(driver, position, sequence=2, delta=100 * SECOND) == [11]


def test_a_lagging_subscription_skips_what_was_dropped_before_it_was_sent() -> None:
    driver = Driver(options=BrokerOptions(limits=ChannelLimits(max_msgs=3)))
    driver.connect()
    ack_inbox = driver.subscribe(max_in_flight=1)
    for i in range(10):
        driver.publish(b"%d" % i)
    driver.broker.tick()
    driver.ack(ack_inbox, 1)
    assert [d.sequence for d in deliveries(driver.out)] == [1, 8]


def test_a_flood_of_requests_is_answered_whole_and_in_order() -> None:
    """The original drops subscription requests when too many wait.

    Here nothing of one batch is left out.
    """
    driver = Driver(options=BrokerOptions(limits=ChannelLimits(max_subs=0)))
    driver.connect()
    for n in range(5_000):
        driver.frame(SUBJECTS.subscribe, request(inbox=b"in.%d" % n), b"reply.%d" % n)
    answers = [out for out in driver.run() if out.subject.startswith(b"reply.")]
    assert [out.subject for out in answers] == [b"reply.%d" % n for n in range(5_000)]
    assert {
        messages.parse(messages.SubscriptionResponse, out.payload).error for out in answers
    } == {b""}
