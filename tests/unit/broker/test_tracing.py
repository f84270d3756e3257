"""The protocol trace and the debug lines of subscriptions, in the original's words
(``docs/compat/logging.md``).
"""

from __future__ import annotations

import pytest

from ftstan.base.log import stream
from ftstan.wire.messages import StartPosition
from tests.compat.driver import SUBJECTS, Driver, pub_acks, pub_msg
from tests.unit.broker.test_failures import RefusingStore

Lines = list[str]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Lines:
    lines: Lines = []
    monkeypatch.setattr(stream, "trace_on", True)
    monkeypatch.setattr(stream, "trace", lambda text, **_: lines.append(text))
    return lines


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Lines:
    lines: Lines = []
    monkeypatch.setattr(stream, "debug_on", True)
    monkeypatch.setattr(stream, "debug", lambda text, **_: lines.append(text))
    return lines


def offer(driver: Driver, data: bytes, channel: bytes = b"foo") -> None:
    payload = pub_msg(data, channel, data, client_id=b"me", conn_id=b"conn.me")
    driver.frame(f"{SUBJECTS.publish}.{channel.decode()}", payload, b"_STAN.acks.me")


def test_a_message_is_traced_from_its_publisher_to_the_ack_of_its_subscriber(traced: Lines) -> None:
    driver = Driver()
    driver.connect()
    inbox = driver.subscribe(durable=b"d", ack_wait=10)
    offer(driver, b"m1")
    driver.run()
    assert traced == [
        "[Client:me] Received message from publisher subj=foo guid=m1",
        "[Client:me] Acking Publisher subj=foo guid=m1",
        "[Client:me] Delivering msg to subid=1, subject=foo, seq=1",
    ]
    traced.clear()
    driver.wait(10)
    assert traced == ["[Client:me] Redelivering msg to subid=1, subject=foo, seq=1"]
    traced.clear()
    driver.leave(SUBJECTS.sub_close, inbox)
    inbox = driver.subscribe(durable=b"d")
    assert traced[0] == "[Client:me] Redelivering to subid=1, seq=1"
    traced.clear()
    driver.ack(inbox, 1)
    assert traced == ["[Client:me] Processing ack for subid=1, subject=foo, seq=1"]


def test_no_ack_is_traced_of_a_channel_that_could_not_be_stored(traced: Lines) -> None:
    store = RefusingStore()
    driver = Driver(store)
    driver.connect()
    store.broken = {b"foo"}
    offer(driver, b"m1")
    offer(driver, b"m2", b"bar")
    assert [bool(ack.error) for ack in pub_acks(driver.run())] == [True, False]
    assert [line for line in traced if "Acking" in line] == [
        "[Client:me] Acking Publisher subj=bar guid=m2"
    ]


def test_acks_that_never_left_are_not_traced_later(traced: Lines) -> None:
    driver = Driver()
    driver.connect()
    offer(driver, b"m1")
    driver.broker.feed(bytes(driver._input), 0, len(driver._input), 0, driver.now)
    driver._input.clear()
    driver.broker.link_lost(driver.now)
    driver.run()
    assert [line for line in traced if "Acking" in line] == []


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (StartPosition.NEW_ONLY, "new-only, seq=3"),
        (StartPosition.LAST_RECEIVED, "last message, seq=2"),
        (StartPosition.FIRST, "from beginning, seq=1"),
        (StartPosition.SEQUENCE_START, "from sequence, asked_seq=2 actual_seq=2"),
    ],
)
def test_a_subscription_tells_where_it_begins(told: Lines, start: int, said: str) -> None:
    driver = Driver()
    driver.connect()
    driver.publish(b"a", b"b")
    told.clear()
    driver.subscribe(start=start, sequence=2)
    (line,) = told
    assert line.startswith(
        "[Client:me] Started new subscription, subject=foo, inbox=in, subid=1"
    ), line
    assert said in line


def test_changes_of_a_subscription_name_what_it_is(told: Lines) -> None:
    driver = Driver()
    driver.connect()
    told.clear()
    inbox = driver.subscribe(durable=b"d")
    driver.leave(SUBJECTS.sub_close, inbox)
    driver.subscribe(durable=b"d")
    driver.subscribe(inbox=b"q1", queue=b"g")
    member = driver.subscribe(inbox=b"q2", queue=b"g")
    driver.leave(SUBJECTS.unsubscribe, member)
    driver.subscribe(inbox=b"q3", queue=b"g", durable=b"d")
    driver.subscribe(inbox=b"q4", queue=b"g", durable=b"d")
    assert [line.split(" subscription, ")[0].removeprefix("[Client:me] ") for line in told] == [
        "Started new durable",
        "Suspended durable",
        "Resumed durable",
        "Started new queue",
        "Added member to queue",
        "Removed member from queue",
        "Started new durable queue",
        "Added member to durable queue",
    ]
    assert "durable=d, subid=1" in told[0]
    assert "queue=g, subid=" in told[3]


def test_the_subjects_of_a_server_are_told(told: Lines) -> None:
    Driver().broker.tell_subjects()
    assert told == [
        f"Discover subject:           {SUBJECTS.discovery}",
        f"Publish subject:            {SUBJECTS.publish_all}",
        f"Subscribe subject:          {SUBJECTS.subscribe}",
        f"Subscription Close subject: {SUBJECTS.sub_close}",
        f"Unsubscribe subject:        {SUBJECTS.unsubscribe}",
        f"Close subject:              {SUBJECTS.close}",
    ]
