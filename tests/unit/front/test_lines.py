"""Lines of the NATS protocol, as the listener reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.front.lines import first_line


@pytest.mark.parametrize(
    ("data", "read"),
    [
        (b"PING\r\n", ("ping", 6, b"", b"", b"", 0)),
        (b"pong\n", ("pong", 5, b"", b"", b"", 0)),
        (b"PUB a.b 12\r\n", ("message", 12, b"a.b", b"", b"", 12)),
        (b"pUb\ta.b \t r  0\r\nPING\r\n", ("message", 16, b"a.b", b"", b"r", 0)),
        (b"PUB a 007\r\n", ("message", 11, b"a", b"", b"", 7)),
        (b"SUB a.* 1\r\n", ("sub", 11, b"a.*", b"1", b"", 0)),
        (b"SUB a.> queue 12\r\n", ("sub", 18, b"a.>", b"12", b"queue", 0)),
        (b"UNSUB 7\r\n", ("unsub", 9, b"", b"7", b"", 0)),
        (b"UNSUB 7 5\r\n", ("unsub", 11, b"", b"7", b"", 5)),
        (b"UNSUB 7 x\r\n", ("unsub", 11, b"", b"7", b"", -1)),
        (b"HPUB a 12 15\r\n", ("headed", 14, b"a", b"", b"", 15)),
        (b"HPUB a r 12 15\r\n", ("headed", 16, b"a", b"", b"", 15)),
        (b"CONNECT {}\r\n", ("connect", 12, b"", b"", b"", 0)),
        (b"+OK\r\n", ("other", 5, b"", b"", b"", 0)),
    ],
)
def test_lines_of_clients(data: bytes, read: tuple[object, ...]) -> None:
    assert first_line(data) == read


@pytest.mark.parametrize(
    "data",
    [
        *(b"\r\n", b"X", b"PIX", b" PING\r\n", b"PUBa 1\r\n", b"SUB\r\n", b"SUB a\r\n"),
        *(b"SUB a b c d\r\n", b"UNSUB \r\n", b"UNSUB 1 2 3\r\n", b"PUB a\r\n", b"PUB a -1\r\n"),
        *(b"PUB a b c 1\r\n", b"PUB a 1234567890\r\n", b"PUB a 1x\r\n", b"PUB a +1\r\n"),
        *(b"HPUB a 1\r\n", b"HPUB a b c 1 2\r\n", b"MSG a 1 0\r\n", b"\0"),
    ],
)
def test_what_a_nats_server_refuses(data: bytes) -> None:
    assert first_line(data)[0] == "wrong"


@pytest.mark.parametrize(
    ("data", "read"),
    [
        (b"MSG a 1 5\r\n", ("message", 11, b"a", b"1", b"", 5)),
        (b"MSG a 1 r 5\r\n", ("message", 13, b"a", b"1", b"", 5)),
        (b"HMSG a 1 2 5\r\n", ("headed", 14, b"a", b"1", b"", 5)),
        (b"HMSG a 1 r 2 5\r\n", ("headed", 16, b"a", b"1", b"", 5)),
        (b"-ERR 'no'\r\n", ("error", 11, b"", b"", b"", 0)),
        (b"INFO {}\r\n", ("info", 9, b"", b"", b"", 0)),
        (b"+OK\r\n", ("ok", 5, b"", b"", b"", 0)),
    ],
)
def test_lines_of_servers(data: bytes, read: tuple[object, ...]) -> None:
    assert first_line(data, of_server=True) == read


@given(
    st.sampled_from([b"PUB a.b r 3\r\n", b"SUB a q 1\r\n", b"UNSUB 1 2\r\n", b"CONNECT {}\r\n"]),
    st.data(),
)
def test_a_part_of_a_line_is_no_line_yet(line: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(line) - 1))
    assert first_line(line[:cut])[:2] == ("partial", 0)
    assert first_line(line + b"PING\r\n") == first_line(line)


@given(st.binary(max_size=40))
def test_whatever_comes_is_a_line_a_part_or_wrong(data: bytes) -> None:
    for of_server in (False, True):
        kind, size, *_ = first_line(data, of_server=of_server)
        assert (kind == "wrong") or (kind == "partial") == (size == 0)
        assert size <= len(data)
