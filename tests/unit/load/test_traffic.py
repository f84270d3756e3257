"""The load of ``ftstanctl bench`` without sockets: what is sent, how much is under way, and what is
counted.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.base.errors import WireError
from ftstan.load.traffic import (
    ANSWERS_SID,
    HEAD_SIZE,
    HEARTBEATS_SID,
    MESSAGES_SID,
    Delays,
    Publisher,
    Subscriber,
)
from ftstan.wire.codec import (
    decode_ack,
    decode_pub_msg,
    encode_msg_proto,
    encode_pub_ack,
    redelivery_suffix,
)

MARK = b"the mark"


def msg(sid: int, payload: bytes, reply: bytes = b"") -> bytes:
    head = b" ".join(filter(None, [b"MSG any", b"%d" % sid, reply, b"%d" % len(payload)]))
    return b"%b\r\n%b\r\n" % (head, payload)


def publisher(*, count: int = 10, window: int = 4, size: int = 32) -> Publisher:
    made = Publisher()
    made.open(1 << 20)
    made.begin(
        b"_STAN.pub.test.orders",
        b"_INBOX.acks",
        client_id=b"me",
        conn_id=b"me2",
        channel=b"orders",
        guid_prefix=b"0123456789",
        mark=MARK,
        size=size,
        count=count,
        window=window,
    )
    return made


def written(traffic: Publisher | Subscriber) -> list[tuple[bytes, bytes, bytes]]:
    """Subject, reply and payload of the frames that were written, which count as sent."""
    text = bytes(traffic.out)
    traffic.out.clear()
    # What clients send is what they get, but for the verb and the number of the subscription.
    lines = []
    while text:
        line, _, rest = text.partition(b"\r\n")
        words = line.split()
        size = int(words[-1])
        lines.append((words[1], words[2] if len(words) == 4 else b"", rest[:size]))
        text = rest[size + 2 :]
    return lines


def guids(made: Publisher) -> list[bytes]:
    return [decode_pub_msg(payload)[1] for _, _, payload in written(made)]


def subscriber(*, mark: bytes = MARK, count: int = 10) -> Subscriber:
    made = Subscriber()
    made.open(1 << 20)
    made.begin(b"_INBOX.acknowledge", b"orders", mark=mark, count=count)
    return made


def delivery(sequence: int, data: bytes, *, again: bool = False) -> bytes:
    payload = encode_msg_proto(sequence, b"orders", b"", data, 1) + (
        redelivery_suffix(1) if again else b""
    )
    return msg(MESSAGES_SID, payload)


def test_every_publish_is_whole_and_has_a_guid_of_its_own() -> None:
    made = publisher(count=1000, window=1000, size=100)
    assert made.fill(1 << 20) == 1000
    frames = written(made)
    assert {(subject, reply) for subject, reply, _ in frames} == {
        (b"_STAN.pub.test.orders", b"_INBOX.acks")
    }
    fields = [decode_pub_msg(payload) for _, _, payload in frames]
    assert len({guid for _, guid, *_ in fields}) == 1000
    for client, guid, channel, reply, data, conn in fields:
        assert (client, channel, reply, conn) == (b"me", b"orders", b"", b"me2")
        assert len(guid) == 22
        assert len(data) == 100
        assert data[8:] == MARK + b"x" * 84


def test_a_publish_waits_for_the_one_that_is_a_window_before_it() -> None:
    made = publisher(count=10, window=4)
    assert made.fill(1 << 20) == 4
    first = guids(made)
    assert made.fill(1 << 20) == 0
    # The second is acknowledged, the first is not: nothing may go beyond four behind the first.
    made.feed(msg(MESSAGES_SID, encode_pub_ack(first[1], b"")))
    assert made.fill(1 << 20) == 0
    made.feed(msg(MESSAGES_SID, encode_pub_ack(first[0], b"")))
    assert made.fill(1 << 20) == 2
    made.stop()
    for guid in (*first[2:], *guids(made)):
        made.feed(msg(MESSAGES_SID, encode_pub_ack(guid, b"")))
    assert (made.done, made.wanted, made.fill(1 << 20)) == (6, 6, 0)


def test_a_chunk_is_no_larger_than_asked_for_and_one_message() -> None:
    made = publisher(count=1000, window=1000)
    n = made.fill(4096)
    size = len(bytes(made.out))
    assert 4096 <= size < 4096 + size // n + 1
    assert 0 < n < 1000


def test_an_ack_counts_once_and_only_if_it_is_ours() -> None:
    made = publisher()
    made.fill(1 << 20)
    mine = guids(made)
    strangers = (
        b"9" * 22,
        b"short",
        mine[0][:10] + b"000000000009",
        mine[0][:10] + b"00000000000x",
        b"",
    )
    for guid in (mine[0], mine[0], *strangers):
        made.feed(msg(MESSAGES_SID, encode_pub_ack(guid, b"")))
    assert (made.done, made.refused, made.delays.count) == (1, 0, 1)


def test_a_refusal_is_no_ack_and_the_first_reason_is_kept() -> None:
    made = publisher()
    made.fill(1 << 20)
    mine = guids(made)
    made.feed(
        msg(MESSAGES_SID, encode_pub_ack(mine[0], b"too much"))
        + msg(MESSAGES_SID, encode_pub_ack(mine[1], b"no"))
    )
    assert (made.done, made.refused, made.refusal, made.delays.count) == (2, 2, b"too much", 0)


def test_what_nats_does_not_carry_and_what_is_too_small_is_refused_before_sending() -> None:
    with pytest.raises(WireError, match="messages of 1048576 bytes are"):
        publisher(size=1 << 20)
    with pytest.raises(ValueError, match="a size of 16"):
        publisher(size=HEAD_SIZE - 1)


def test_what_comes_is_acknowledged_and_what_is_of_the_run_counted() -> None:
    made = publisher(count=3)
    made.fill(1 << 20)
    mine = [decode_pub_msg(payload)[4] for _, _, payload in written(made)]
    got = subscriber()
    got.feed(
        delivery(1, mine[0])
        + delivery(300, mine[1])
        + delivery(301, mine[1], again=True)
        + delivery(302, b"x" * 40)
        + delivery(303, b"")
    )
    assert (got.done, got.again, got.delays.count) == (2, 1, 2)
    assert 0 <= got.delays.least <= got.delays.most
    acks = written(got)
    assert {subject for subject, _, _ in acks} == {b"_INBOX.acknowledge"}
    assert [decode_ack(payload) for _, _, payload in acks] == [
        (b"orders", n) for n in (1, 300, 301, 302, 303)
    ]


def test_without_a_mark_everything_counts() -> None:
    got = subscriber(mark=b"")
    got.feed(delivery(1, b"") + delivery(2, b"x") + delivery(2, b"x", again=True))
    assert (got.done, got.again, got.delays.count) == (2, 1, 0)


def test_bytes_may_come_in_any_pieces() -> None:
    text = delivery(1, b"one") + b"PING\r\n" + delivery(2, b"two")
    for size in range(1, len(text)):
        got = subscriber(mark=b"")
        for at in range(0, len(text), size):
            got.feed(text[at : at + size])
        assert got.done == 2, size
        sent = bytes(got.out)
        assert sent.count(b"PONG\r\n") == 1, size
        assert sent.count(b"PUB _INBOX.acknowledge ") == 2, size


def test_what_follows_an_answer_waits_until_the_answer_was_looked_at() -> None:
    got = Subscriber()
    got.open(1 << 20)
    got.feed(msg(ANSWERS_SID, b"the ack inbox") + delivery(1, b"one"))
    assert (got.answers, got.done) == ([b"the ack inbox"], 0)
    got.begin(b"_INBOX.acknowledge", b"orders", mark=b"", count=1)
    got.feed(b"")
    assert got.done == 1


def test_heartbeats_are_answered_and_what_nats_says_is_kept() -> None:
    got = subscriber()
    got.feed(msg(HEARTBEATS_SID, b"", b"_INBOX.beat") + b"-ERR 'Permissions Violation'\r\n")
    assert bytes(got.out) == b"PUB _INBOX.beat 0\r\n\r\n"
    assert got.complaint == b"'Permissions Violation'"


def test_nobody_listens_is_an_answer() -> None:
    got = subscriber()
    head = b"NATS/1.0 503\r\n\r\n"
    got.feed(b"HMSG any %d %d %d\r\n%b\r\n" % (ANSWERS_SID, len(head), len(head), head))
    assert got.answers == [None]


@pytest.mark.parametrize("text", [b"what?\r\n", msg(MESSAGES_SID, b"\x0a\xff")])
def test_a_broken_stream_and_a_broken_message_are_errors(text: bytes) -> None:
    for traffic in (subscriber(), publisher()):
        with pytest.raises(WireError):
            traffic.feed(text)


@given(
    st.lists(st.integers(0, 10**12), min_size=1, max_size=200),
    st.lists(st.integers(0, 10**12), max_size=50),
    st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]),
)
def test_percentiles_are_those_of_the_delays_to_one_in_64(
    some: list[int], more: list[int], share: float
) -> None:
    delays = Delays()
    others = Delays()
    for ns in some:
        delays.observe(ns)
    for ns in more:
        others.observe(ns)
    delays.merge(others)
    every = sorted(some + more)
    exact = every[max(math.ceil(share * len(every)) - 1, 0)]
    assert exact <= delays.below(share) <= exact + exact // 64 + 1
    assert (delays.count, delays.least, delays.most) == (len(every), every[0], every[-1])
    assert sum(count for _, count in delays.counts()) == len(every)


def test_no_delays_have_no_percentiles() -> None:
    assert (Delays().below(0.5), Delays().counts()) == (0, [])
