"""What an append carries, read again as JetStream hands it out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.bridge.marks import Framer, Item, Mark, mark_of, origin, origin_in, origin_of
from ftstan.nats.jetstream import headers_of


def parsed(frame: tuple[bytes, bytes]) -> tuple[list[bytes], dict[str, str], bytes]:
    head, data = frame
    control, _, block = head.partition(b"\r\n")
    words = control.split(b" ")
    assert int(words[3]) == len(block)
    assert int(words[4]) == len(block) + len(data)
    assert block.endswith(b"\r\n\r\n")
    assert block.count(b"\r\n\r\n") == 1
    return words, headers_of(block)[1], data


def test_an_append_says_what_it_follows_and_where_it_comes_from() -> None:
    framer = Framer("orders.eu", "orders_eu", "run", "_INBOX.x.0-1-", "orders.eu")
    words, headers, data = parsed(framer.frame(Item(7, 1_700_000_000_000_000_001, b"re.ply", b"d")))
    assert words[:3] == [b"HPUB", b"orders.eu", b"_INBOX.x.0-1-7"]
    assert headers["nats-expected-last-sequence"] == "6"
    assert headers["nats-expected-stream"] == "orders_eu"
    assert headers["nats-msg-id"] == "orders.eu:7"
    assert headers["ftstan-reply"] == "re.ply"
    assert data == b"d"
    assert mark_of(headers) == Mark("orders.eu", 7, 1_700_000_000_000_000_001, "run")


@given(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zs", "Zl", "Zp"]), min_size=1),
    st.binary(),
    st.binary(),
    st.integers(1, 1 << 62),
)
def test_no_name_reply_or_data_breaks_an_append(
    channel: str, reply: bytes, data: bytes, sequence: int
) -> None:
    framer = Framer(channel, "stream", "run", "_INBOX.x.0-1-", channel)
    _, headers, found = parsed(framer.frame(Item(sequence, 5, reply, data)))
    assert found == data
    assert mark_of(headers) == Mark(channel, sequence, 5, "run")


def test_a_message_of_nobody_has_no_mark() -> None:
    assert mark_of({}) is None
    assert mark_of({"ftstan-channel": "a", "ftstan-sequence": "x"}) is None


def test_an_origin_names_its_place_in_a_stream() -> None:
    told = origin("orders_new", 17)
    assert origin_of(told, "orders_new") == 17
    assert origin_of(told, "others_new") == 0
    assert origin_in({"ftstan-reply": told.decode().replace("%", "%25")}, "orders_new") == 17


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"orders.replies",
        b"ftstan-bridge?stream=orders_new&seq=",
        b"ftstan-bridge?stream=orders_new&seq=017",
        b"ftstan-bridge?stream=orders_new&seq=-1",
        b"ftstan-bridge?stream=orders_new&seq=1&seq=17",
        b"ftstan-bridge?stream=orders_new&seq=" + b"9" * 5000,
    ],
)
def test_what_is_not_written_as_an_origin_is_none(reply: bytes) -> None:
    assert origin_of(reply, "orders_new") == 0
