"""What may not be larger than so much: requests before they are decoded, names, acks, and messages
that would grow.
"""

from __future__ import annotations

import time

import pytest

from ftstan.base.errors import WireError
from ftstan.broker.bounds import MAX_ID, MAX_NAME, MAX_REQUEST
from ftstan.broker.publishing import INVALID_PUBLISH
from ftstan.wire import codec, messages
from tests.compat.driver import (
    SUBJECTS,
    Driver,
    PubAck,
    connect_request,
    pub_acks,
    pub_msg,
    sequences,
)

PUBLISH = f"{SUBJECTS.publish}.foo"
#: Two bytes, field 15, that every message skips.
SKIPPED = b"\x78\x00"


@pytest.fixture
def driver() -> Driver:
    made = Driver()
    made.connect()
    return made


def padded(request: bytes, size: int) -> bytes:
    """The request, with fields of two bytes that nobody knows, ``size`` bytes long (or one
    less).
    """
    return request + SKIPPED * ((size - len(request)) // 2)


def subscribe_request(**changes: bytes | int) -> bytes:
    fields: dict[str, bytes | int] = {
        "client_id": b"me",
        "subject": b"foo",
        "inbox": b"in",
        "max_in_flight": 1,
    }
    fields |= {"ack_wait_in_secs": 1} | changes
    return messages.encode(messages.SubscriptionRequest(**fields))  # type: ignore[arg-type]


LEAVE = messages.encode(messages.UnsubscribeRequest(client_id=b"me", subject=b"foo", inbox=b"in"))
CONNECT = connect_request(b"you", b"hb.you", b"conn.you")


@pytest.mark.parametrize(
    ("subject", "request_", "cls", "error"),
    [
        (SUBJECTS.discovery, CONNECT, messages.ConnectResponse, "stan: invalid connection request"),
        (
            SUBJECTS.subscribe,
            subscribe_request(),
            messages.SubscriptionResponse,
            "stan: invalid subscription request",
        ),
        (
            SUBJECTS.unsubscribe,
            LEAVE,
            messages.SubscriptionResponse,
            "stan: invalid unsubscribe request",
        ),
        (
            SUBJECTS.sub_close,
            LEAVE,
            messages.SubscriptionResponse,
            "stan: invalid unsubscribe request",
        ),
        (
            SUBJECTS.close,
            messages.encode(messages.CloseRequest(client_id=b"me")),
            messages.CloseResponse,
            "stan: invalid close request",
        ),
    ],
)
def test_a_request_above_the_bound_is_refused_and_one_below_it_is_not(
    driver: Driver, subject: str, request_: bytes, cls: type[messages.CloseResponse], error: str
) -> None:
    driver.subscribe()
    answer = driver.call(subject, padded(request_, MAX_REQUEST + 2))
    assert messages.parse(cls, answer or b"").error == error.encode()
    assert len(driver.broker.clients) == 1
    assert sum(driver.broker.malformed.totals.values()) == 1
    answer = driver.call(subject, padded(request_, MAX_REQUEST))
    assert messages.parse(cls, answer or b"").error == b""


def test_a_ping_above_the_bound_is_not_answered_and_a_heartbeat_may_be_answered_with_anything(
    driver: Driver,
) -> None:
    ping = messages.encode(messages.Ping(conn_id=b"conn.me"))
    assert driver.call(SUBJECTS.pings, padded(ping, MAX_REQUEST + 2)) is None
    assert driver.call(SUBJECTS.pings, padded(ping, MAX_REQUEST)) == b""
    driver.alive.clear()
    (beat,) = [o for o in driver.wait(30) if o.subject == b"hb.me"]
    driver.frame(beat.reply, bytes(MAX_REQUEST * 2))
    driver.wait(20)
    assert driver.broker.clients.get(b"me").failed == 0  # type: ignore[union-attr]
    assert driver.broker.malformed.totals == {"ping": 1}


def test_a_hundred_thousand_fields_are_read_in_less_than_a_tenth_of_a_second() -> None:
    request = padded(messages.encode(messages.CloseRequest(client_id=b"me")), 1 << 20)
    began = time.process_time()
    for _ in range(5):
        assert messages.parse(messages.CloseRequest, request).client_id == b"me"
    # 524,000 fields each: a few milliseconds. In Python it was almost a second.
    assert time.process_time() - began < 0.5
    with pytest.raises(WireError, match="truncated"):
        messages.parse(messages.CloseRequest, request + b"\x78")


@pytest.mark.parametrize(
    ("field", "most", "what"),
    [
        ("client_id", MAX_ID, "client id"),
        ("subject", MAX_NAME, "channel"),
        ("q_group", MAX_NAME, "queue group"),
        ("durable_name", MAX_NAME, "durable name"),
        ("inbox", MAX_ID, "inbox"),
    ],
)
def test_a_name_in_a_subscription_has_a_bound(
    driver: Driver, field: str, most: int, what: str
) -> None:
    driver.call(SUBJECTS.discovery, connect_request(b"x" * MAX_ID, b"hb", b"conn.x"))
    long = driver.call(SUBJECTS.subscribe, subscribe_request(**{field: b"x" * (most + 1)}))
    error = messages.parse(messages.SubscriptionResponse, long or b"").error
    assert error == f"stan: invalid subscription request: {what} of more than {most} bytes".encode()
    assert len(driver.broker.channels) == 0
    fits = driver.call(SUBJECTS.subscribe, subscribe_request(**{field: b"x" * most}))
    assert messages.parse(messages.SubscriptionResponse, fits or b"").error == b""


@pytest.mark.parametrize(
    ("field", "what"),
    [(0, "client id"), (1, "heartbeat inbox"), (2, "connection id")],
    ids=["id", "inbox", "conn"],
)
def test_a_name_in_a_connect_has_a_bound(driver: Driver, field: int, what: str) -> None:
    names = [b"you", b"hb.you", b"conn.you"]
    names[field] = b"x" * (MAX_ID + 1)
    answer = messages.parse(
        messages.ConnectResponse,
        driver.call(SUBJECTS.discovery, connect_request(names[0], names[1], names[2])) or b"",
    )
    assert (
        answer.error
        == f"stan: invalid connection request: {what} of more than {MAX_ID} bytes".encode()
    )
    names[field] = b"x" * MAX_ID
    answer = messages.parse(
        messages.ConnectResponse,
        driver.call(SUBJECTS.discovery, connect_request(names[0], names[1], names[2])) or b"",
    )
    assert answer.error == b""


def refusal(driver: Driver, payload: bytes, subject: str = PUBLISH) -> PubAck:
    before = len(driver.out)
    driver.frame(subject, payload, b"_STAN.acks.me")
    driver.run()
    (ack,) = pub_acks(driver.out[before:])
    return ack


def test_the_names_in_a_publish_have_bounds_and_a_long_guid_is_not_repeated(driver: Driver) -> None:
    long = b"g" * (MAX_ID + 1)
    bad = INVALID_PUBLISH
    assert refusal(driver, pub_msg(long, b"foo", b"", conn_id=b"conn.me")) == PubAck(b"", bad)
    assert refusal(driver, pub_msg(long, b"foo", b"")[:-1]) == PubAck(b"", bad)
    assert refusal(driver, pub_msg(b"g", b"foo", b"", conn_id=long)) == PubAck(b"g", bad)
    assert refusal(driver, pub_msg(b"g", b"foo", b"", client_id=long)) == PubAck(b"g", bad)
    assert refusal(driver, pub_msg(b"g", b"c" * (MAX_NAME + 1), b"", conn_id=b"conn.me")) == PubAck(
        b"g", bad
    )
    assert len(driver.broker.channels) == 0
    longest = b"c" * MAX_NAME
    subject = f"{SUBJECTS.publish}.{longest.decode()}"
    assert (
        refusal(driver, pub_msg(b"g" * MAX_ID, longest, b"", conn_id=b"conn.me"), subject).error
        == b""
    )
    assert driver.broker.malformed.totals == {"publish": 5}


def test_an_ack_above_the_bound_is_not_even_decoded(driver: Driver) -> None:
    ack_inbox = driver.subscribe()
    driver.publish(b"x")
    ack = messages.encode(messages.Ack(subject=b"foo", sequence=1))
    driver.frame(ack_inbox, padded(ack, MAX_REQUEST + 2))
    driver.run()
    assert driver.broker.malformed.totals == {"ack": 1}
    assert len(driver.broker.by_sid[64].pending) == 1
    driver.frame(ack_inbox, padded(ack, MAX_REQUEST))
    driver.run()
    assert len(driver.broker.by_sid[64].pending) == 0


def test_a_message_too_large_for_nats_is_refused_and_the_largest_taken_can_be_resent(
    driver: Driver,
) -> None:
    most = driver.broker.max_payload = 5000
    driver.subscribe(ack_wait=1)
    # Tags, lengths, the longest sequence, time and mark of a resend.
    room = most - (11 + 10 + len(b"\x12\x03foo") + 3 + len(codec.redelivery_suffix(2**32 - 1)))
    ack = refusal(driver, pub_msg(b"g", b"foo", b"x" * (room + 1), conn_id=b"conn.me"))
    assert ack == PubAck(
        b"g",
        b"stan: invalid publish request: up to 5001 bytes when delivered, the NATS server "
        b"carries 5000",
    )
    assert driver.broker.counts()["total_msgs"] == 0
    assert refusal(driver, pub_msg(b"g", b"foo", b"x" * room, conn_id=b"conn.me")) == PubAck(b"g")
    driver.wait(3)
    assert sequences(driver.out) == [1, 1, 1, 1]
    assert max(len(o.payload) for o in driver.out) <= most
    assert driver.broker.malformed.totals == {}
    # Another NATS server after a reconnect: its limit counts.
    driver.broker.max_payload = 1 << 20
    assert refusal(driver, pub_msg(b"h", b"foo", b"x" * (room + 1), conn_id=b"conn.me")) == PubAck(
        b"h"
    )


def test_the_reply_in_a_publish_counts_too(driver: Driver) -> None:
    driver.broker.max_payload = 5000
    message = messages.PubMsg(
        client_id=b"me", guid=b"g", subject=b"foo", reply=b"r" * 4980, conn_id=b"conn.me"
    )
    assert b"carries 5000" in refusal(driver, messages.encode(message)).error
    assert len(driver.broker.channels) == 0


def test_an_ack_timer_goes_with_its_subscription(driver: Driver) -> None:
    driver.publish(b"x")
    for _ in range(1000):
        driver.leave(SUBJECTS.unsubscribe, driver.subscribe(ack_wait=7 * 86_400))
    for _ in range(1000):
        driver.leave(SUBJECTS.sub_close, driver.subscribe(ack_wait=7 * 86_400, durable=b"dur"))
    # Some that were taken back stay until there are more of them than of others.
    assert len(driver.broker.timers) < 200
    driver.subscribe(ack_wait=1)
    driver.out.clear()
    driver.wait(1)
    assert sequences(driver.out) == [1]
