"""The text in the reply field of a dead letter."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.wire.origin import PREFIX, Origin, encode_origin, parse_origin

NAMES = st.binary(max_size=20)
NUMBERS = st.integers(0, (1 << 64) - 1)


def test_the_text_is_that_of_the_page() -> None:
    origin = Origin(b"orders", 42, b"pay", b"", b"worker-1", 5, 1764253563123456789)
    assert encode_origin(origin) == (
        b"ftstan-dead-letter?channel=orders&seq=42&durable=pay&client=worker-1&deliveries=5"
        b"&first=1764253563123456789"
    )


def test_any_parser_of_urls_reads_it() -> None:
    origin = Origin(b"a b.c", 7, b"", b"d:g&h=%", b"me", 2, 9, "é?".encode())
    query = parse_qs(urlsplit(encode_origin(origin).decode()).query)
    assert query == {
        "channel": ["a b.c"],
        "seq": ["7"],
        "queue": ["d:g&h=%"],
        "client": ["me"],
        "deliveries": ["2"],
        "first": ["9"],
        "reply": ["é?"],
    }


@given(
    st.builds(
        Origin,
        st.binary(min_size=1, max_size=20),
        st.integers(1, (1 << 64) - 1),
        NAMES,
        NAMES,
        NAMES,
        NUMBERS,
        NUMBERS,
        NAMES,
    )
)
def test_every_origin_is_read_back_as_it_was(origin: Origin) -> None:
    encoded = encode_origin(origin)
    assert parse_origin(encoded) == origin
    assert encoded.isascii()
    assert not set(encoded) & set(b" \r\n\t\0")
    assert parse_origin(encoded + b"&later=key") == origin


@given(st.binary(max_size=60))
def test_anything_else_is_no_origin_and_no_error(text: bytes) -> None:
    assert parse_origin(text) is None or text.startswith(PREFIX)
    parse_origin(PREFIX + text)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"seq=1",
        b"channel=a",
        b"channel=a&seq=-1",
        b"channel=a&seq=x",
        b"channel=a&seq=" + b"9" * 5000,
    ],
)
def test_what_lacks_its_parts_is_none(text: bytes) -> None:
    assert parse_origin(PREFIX + text) is None
