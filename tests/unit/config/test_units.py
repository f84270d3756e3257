"""Durations, sizes and integers as the original reads and prints them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.base.errors import ConfigError
from ftstan.config.grammar import parse_size
from ftstan.config.units import (
    MAX_INT64,
    MIN_INT64,
    format_bytes,
    format_duration,
    parse_duration,
    parse_int,
    quote,
)


@pytest.mark.parametrize(
    ("text", "nanos"),
    [
        ("0", 0),
        ("-0", 0),
        ("1ns", 1),
        ("1us", 1_000),
        ("1\N{MICRO SIGN}s", 1_000),
        ("1\N{GREEK SMALL LETTER MU}s", 1_000),
        ("1.5ms", 1_500_000),
        (".5s", 500_000_000),
        ("5.s", 5_000_000_000),
        ("+1s", 1_000_000_000),
        ("-1s", -1_000_000_000),
        ("1h30m", 5_400_000_000_000),
        ("1m30s500ms", 90_500_000_000),
        ("2562047h47m16.854775807s", MAX_INT64),
        ("-2562047h47m16.854775808s", MIN_INT64),
    ],
)
def test_a_duration_is_read(text: str, nanos: int) -> None:
    assert parse_duration(text) == nanos


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", 'time: invalid duration ""'),
        ("-", 'time: invalid duration "-"'),
        ("abc", 'time: invalid duration "abc"'),
        (".s", 'time: invalid duration ".s"'),
        ("2562048h", 'time: invalid duration "2562048h"'),
        ("2562047h47m16.854775808s", 'time: invalid duration "2562047h47m16.854775808s"'),
        ("5", 'time: missing unit in duration "5"'),
        ("1m30", 'time: missing unit in duration "1m30"'),
        ("1d", 'time: unknown unit "d" in duration "1d"'),
        ("1h 30m", 'time: unknown unit "h " in duration "1h 30m"'),
        ("1h-5m", 'time: unknown unit "h-" in duration "1h-5m"'),
    ],
)
def test_what_is_no_duration_is_refused_in_the_words_of_the_original(
    text: str, complaint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_duration(text)
    assert str(caught.value) == complaint


@pytest.mark.parametrize(
    ("nanos", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1_000, "1µs"),
        (1_500_000, "1.5ms"),
        (500_000_000, "500ms"),
        (1_000_000_000, "1s"),
        (90_000_000_000, "1m30s"),
        (90_500_000_000, "1m30.5s"),
        (3_600_000_000_000, "1h0m0s"),
        (3_600_250_000_000, "1h0m0.25s"),
        (86_400_000_000_000, "24h0m0s"),
        (31_536_000_000_000_000, "8760h0m0s"),
        (-60_000_000_000, "-1m0s"),
        (MIN_INT64, "-2562047h47m16.854775808s"),
    ],
)
def test_a_duration_is_printed(nanos: int, text: str) -> None:
    assert format_duration(nanos) == text


@given(st.integers(MIN_INT64, MAX_INT64))
def test_a_printed_duration_is_read_back(nanos: int) -> None:
    assert parse_duration(format_duration(nanos)) == nanos


@given(st.text())
def test_any_text_is_a_duration_or_an_error_for_the_operator(text: str) -> None:
    try:
        nanos = parse_duration(text)
    except ConfigError:
        return
    assert MIN_INT64 <= nanos <= MAX_INT64


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("+5", 5),
        ("-5", -5),
        ("007", 7),
        ("010", 8),
        ("0o10", 8),
        ("0x1F", 31),
        ("0X_1f", 31),
        ("0b11", 3),
        ("1_000", 1000),
        ("0_7", 7),
        ("9223372036854775807", MAX_INT64),
        ("-9223372036854775808", MIN_INT64),
    ],
)
def test_an_integer_is_read(text: str, value: int) -> None:
    assert parse_int(text) == value


@pytest.mark.parametrize(
    "text", ["", "abc", "1.5", " 5", "5 ", "08", "1__0", "_1", "1_", "0x", "--5", "5k", "\u0665"]
)
def test_what_is_no_integer_is_a_parse_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^parse error$"):
        parse_int(text)


@pytest.mark.parametrize(
    "text", ["9223372036854775808", "-9223372036854775809", "0x10000000000000000"]
)
def test_an_integer_beyond_64_bits_is_out_of_range(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^value out of range$"):
        parse_int(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("10", 10),
        ("-5", -5),
        ("007", 7),
        ("1k", 1000),
        ("1K", 1000),
        ("1m", 1000**2),
        ("1g", 1000**3),
        ("1t", 1000**4),
        ("1e", 1000**6),
        ("1kb", 1024),
        ("-1KB", -1024),
        ("1Kb", 1024),
        ("1Ki", 1024),
        ("1KiB", 1024),
        ("1MB", 1024**2),
        ("1gb", 1024**3),
        ("1TB", 1024**4),
        ("1PiB", 1024**5),
        (" 10 ", 10),
    ],
)
def test_a_size_is_read(text: str, size: int) -> None:
    assert parse_size("mb", text) == size


@pytest.mark.parametrize("text", ["10B", "10i", "abc", "k", "10mins", "1kx"])
def test_a_word_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match=f"^mb should be a size, got '{text}'$"):
        parse_size("mb", text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KB"),
        (1500, "1.46 KB"),
        (1_048_575, "1024.00 KB"),
        (1_048_576, "1.00 MB"),
        (1_024_000_000, "976.56 MB"),
        (123_456_789_012, "114.98 GB"),
        (2**50 - 1, "1.00 PB"),
        (2**60, "1.00 EB"),
        (MAX_INT64, "8.00 EB"),
    ],
)
def test_bytes_are_printed(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("a b", '"a b"'),
        ('a"b\\', '"a\\"b\\\\"'),
        ("\n\t\x00\x7f", '"\\n\\t\\x00\\x7f"'),
        ("café", '"café"'),
        ("\udcff", '"\\xff"'),
        ("\u2028", '"\\u2028"'),
        ("\U000e0001", '"\\U000e0001"'),
    ],
)
def test_a_word_is_quoted_so_that_every_character_can_be_seen(text: str, quoted: str) -> None:
    assert quote(text) == quoted
