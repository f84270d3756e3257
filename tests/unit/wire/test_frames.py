"""NATS framing: any split of a stream gives the same events, and nothing else than the protocol is
accepted.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.base.errors import WireError
from ftstan.wire.frames import OutBuf, Parser, pub_frame
from tests.oracle.wiregen import few, many

Event = tuple[Any, ...]

_tokens = st.binary(min_size=1, max_size=12).map(
    lambda raw: bytes(0x21 + byte % 0x5E for byte in raw)
)
_subjects = st.lists(_tokens, min_size=1, max_size=4).map(b".".join)
_payloads = st.binary(max_size=120) | st.sampled_from(
    [b"", b"\r\n", b"PING\r\n", b"MSG a 1 0\r\n\r\n"]
)
_text = st.binary(max_size=60).map(lambda raw: bytes(0x20 + byte % 0x5F for byte in raw).strip())


@st.composite
def _msg(draw: st.DrawFn) -> tuple[bytes, Event]:
    subject = draw(_subjects)
    reply = draw(_subjects | st.just(b""))
    payload = draw(_payloads)
    sid = draw(st.integers(0, 10**9))
    blank = draw(st.sampled_from([b" ", b"  ", b"\t"]))
    line = blank.join(
        word for word in (b"MSG", subject, b"%d" % sid, reply, b"%d" % len(payload)) if word
    )
    return line + b"\r\n" + payload + b"\r\n", ("MSG", subject, sid, reply, payload)


@st.composite
def _hmsg(draw: st.DrawFn) -> tuple[bytes, Event]:
    subject = draw(_subjects)
    reply = draw(_subjects | st.just(b""))
    payload = draw(_payloads)
    headers = b"NATS/1.0" + draw(st.sampled_from([b"", b" 503", b"\r\nA: b"])) + b"\r\n\r\n"
    sid = draw(st.integers(0, 10**9))
    sizes = (b"%d" % len(headers), b"%d" % (len(headers) + len(payload)))
    line = b" ".join(word for word in (b"HMSG", subject, b"%d" % sid, reply, *sizes) if word)
    return line + b"\r\n" + headers + payload + b"\r\n", (
        "HMSG",
        subject,
        sid,
        reply,
        headers,
        payload,
    )


_frames = st.one_of(
    _msg(),
    _hmsg(),
    st.just((b"PING\r\n", ("PING",))),
    st.just((b"PONG\r\n", ("PONG",))),
    st.just((b"+OK\r\n", ("+OK",))),
    _text.map(lambda text: (b"INFO " + text + b"\r\n", ("INFO", text))),
    _text.map(lambda text: (b"-ERR " + text + b"\r\n", ("-ERR", text))),
)


def feed_in_pieces(raw: bytes, cuts: list[int]) -> list[Event]:
    parser = Parser(1 << 20)
    edges = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    return [event for a, b in itertools.pairwise(edges) for event in parser.feed(raw[a:b])]


@many
@given(st.lists(_frames, max_size=8), st.lists(st.integers(0, 2000), max_size=12))
def test_any_split_of_a_stream_gives_the_same_events(
    frames: list[tuple[bytes, Event]], cuts: list[int]
) -> None:
    raw = b"".join(line for line, _ in frames)
    events = [event for _, event in frames]
    assert feed_in_pieces(raw, []) == events
    assert feed_in_pieces(raw, cuts) == events


def test_a_stream_may_come_byte_by_byte() -> None:
    raw = b"INFO {}\r\nMSG a.b 7 r 5\r\nh\r\nlo\r\nHMSG a 8 12 14\r\nNATS/1.0\r\n\r\nhi\r\nPING\r\n"
    assert feed_in_pieces(raw, list(range(len(raw)))) == [
        ("INFO", b"{}"),
        ("MSG", b"a.b", 7, b"r", b"h\r\nlo"),
        ("HMSG", b"a", 8, b"", b"NATS/1.0\r\n\r\n", b"hi"),
        ("PING",),
    ]


@few
@given(st.lists(_frames, min_size=1, max_size=4), st.data())
def test_an_incomplete_frame_is_kept_and_never_reported(
    frames: list[tuple[bytes, Event]], data: st.DataObject
) -> None:
    last, _ = frames[-1]
    raw = (
        b"".join(line for line, _ in frames[:-1]) + last[: data.draw(st.integers(0, len(last) - 1))]
    )
    assert feed_in_pieces(raw, []) == [event for _, event in frames[:-1]]


@pytest.mark.parametrize(
    "raw",
    [
        b"HELLO\r\n",
        b"\r\n",
        b"MSG\r\n",
        b"MSG a 1\r\n",
        b"MSG a one 0\r\n\r\n",
        b"MSG a 1 -1\r\n\r\n",
        b"MSG a 1 r s 0\r\n\r\n",
        b"MSG a 1 3\r\nabcdef",
        b"MSG a 1 99999999999999999999\r\n",
        b"MSG a 1 2097153\r\n",
        b"HMSG a 1 5\r\n",
        b"HMSG a 1 12 4\r\nNATS/1.0\r\n\r\n\r\n",
        b"PUB a 0\r\n\r\n",
    ],
)
def test_what_is_not_the_protocol_breaks_the_stream(raw: bytes) -> None:
    with pytest.raises(WireError):
        Parser(1 << 20).feed(raw)
    with pytest.raises(WireError):
        feed_in_pieces(raw, list(range(len(raw))))


def test_a_line_without_end_breaks_the_stream_instead_of_filling_memory() -> None:
    with pytest.raises(WireError):
        feed_in_pieces(b"A" * (3 << 20), [1 << 20, 2 << 20])


@few
@given(_subjects, _subjects | st.just(b""), _payloads)
def test_a_publish_frame_is_one_control_line_and_the_payload(
    subject: bytes, reply: bytes, payload: bytes
) -> None:
    line = b" ".join(word for word in (b"PUB", subject, reply, b"%d" % len(payload)) if word)
    frame = line + b"\r\n" + payload + b"\r\n"
    assert pub_frame(subject, reply, payload) == frame
    out = OutBuf()
    out.write(b"PONG\r\n")
    out.publish(subject, reply, payload)
    assert bytes(memoryview(out)) == b"PONG\r\n" + frame
    assert len(out) == len(frame) + 6


@few
@given(_subjects, _subjects | st.just(b""), _payloads)
def test_what_is_published_is_what_a_subscriber_is_sent(
    subject: bytes, reply: bytes, payload: bytes
) -> None:
    words = pub_frame(subject, reply, payload).removeprefix(b"PUB " + subject)
    assert Parser(1 << 20).feed(b"MSG " + subject + b" 1" + words) == [
        ("MSG", subject, 1, reply, payload)
    ]


@few
@given(st.lists(_frames, max_size=8), st.integers(1, 50))
def test_counting_messages_agrees_with_reading_them(
    frames: list[tuple[bytes, Event]], chunk: int
) -> None:
    raw = b"".join(line for line, _ in frames)
    parser = Parser(1 << 20)
    counted = sum(parser.count_messages(raw[i : i + chunk]) for i in range(0, len(raw), chunk))
    assert counted == sum(event[0] in {"MSG", "HMSG"} for _, event in frames)
