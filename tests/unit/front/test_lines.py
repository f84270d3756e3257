"""Lines of the NATS protocol: what a NATS server takes them for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.front.lines import first_line

CLIENT = {
    b"CONNECT {}\r\n": ("connect", b"", b"", b"", 0),
    b"CONNECT {}\n": ("connect", b"", b"", b"", 0),
    b"PING\r\n": ("ping", b"", b"", b"", 0),
    b"PING\n": ("ping", b"", b"", b"", 0),
    b"PING and more\r\n": ("ping", b"", b"", b"", 0),
    b"PONG\r\n": ("pong", b"", b"", b"", 0),
    b"+OK\r\n": ("other", b"", b"", b"", 0),
    b"SUB a.b 7\r\n": ("sub", b"a.b", b"7", b"", 0),
    b"SUB a.> group 7\r\n": ("sub", b"a.>", b"7", b"group", 0),
    b"SUB \t a\t \tb \r\n": ("sub", b"a", b"b", b"", 0),
    b"UNSUB 7\r\n": ("unsub", b"", b"7", b"", 0),
    b"UNSUB 7 12\r\n": ("unsub", b"", b"7", b"", 12),
    b"UNSUB 7 -12\r\n": ("unsub", b"", b"7", b"", -1),
    b"UNSUB 7 1x\r\n": ("unsub", b"", b"7", b"", -1),
    b"PUB a 0\r\n": ("message", b"a", b"", b"", 0),
    b"PUB a r.s 5\r\n": ("message", b"a", b"", b"r.s", 5),
    b"PUB\ta\tr\t005\n": ("message", b"a", b"", b"r", 5),
    b"PUB a 999999999\r\n": ("message", b"a", b"", b"", 999_999_999),
    b"HPUB a 12 17\r\n": ("headed", b"a", b"", b"", 17),
    b"HPUB a r 12 17\r\n": ("headed", b"a", b"", b"", 17),
}
SERVER = {
    b"MSG a 7 5\r\n": ("message", b"a", b"7", b"", 5),
    b"MSG a 7 r 5\r\n": ("message", b"a", b"7", b"r", 5),
    b"HMSG a 7 12 17\r\n": ("headed", b"a", b"7", b"", 17),
    b"HMSG a 7 r 12 17\r\n": ("headed", b"a", b"7", b"r", 17),
    b"MSG a\rb 7 5\r\n": ("message", b"a\rb", b"7", b"", 5),
    b"MSG a\r 7 r\r 5\r\n": ("message", b"a\r", b"7", b"r\r", 5),
    b"HMSG \ra 7 \rr 12 17\r\n": ("headed", b"\ra", b"7", b"\rr", 17),
    b"PING\r\n": ("ping", b"", b"", b"", 0),
    b"PONG\r\n": ("pong", b"", b"", b"", 0),
    b"+OK\r\n": ("ok", b"", b"", b"", 0),
    b"-ERR 'Stale Connection'\r\n": ("error", b"", b"", b"", 0),
    b'INFO {"max_payload":5}\r\n': ("info", b"", b"", b"", 0),
}
BOTH = [(line, False, told) for line, told in CLIENT.items()] + [
    (line, True, told) for line, told in SERVER.items()
]
#: A NATS server ends the connection of a client for each of these.
REFUSED = [
    b"\r\n",
    b" PING\r\n",
    b"GET / HTTP/1.1\r\n",
    b"PUBLISH a 0\r\n",
    b"PUB\r\n",
    b"PUB \r\n",
    b"PUB a\r\n",
    b"PUB a b c 0\r\n",
    b"PUB a b c d e 0\r\n",
    b"PUB a -1\r\n",
    b"PUB a +1\r\n",
    b"PUB a 1x\r\n",
    b"PUB a 0x1\r\n",
    b"PUB a 1.0\r\n",
    b"PUB a 1234567890\r\n",
    b"PUB a 99999999999999999999\r\n",
    b"HPUB a 5\r\n",
    b"HPUB a b c 5 5\r\n",
    b"HPUB a 5 x\r\n",
    b"HPUB\r\n",
    b"SUB a\r\n",
    b"SUB\r\n",
    b"SUB a b c d\r\n",
    b"SUBa 1\r\n",
    b"UNSUB\r\n",
    b"UNSUB 1 2 3\r\n",
    b"UNSUB1\r\n",
    b"CONNECT{}\r\n",
    b"MSG a 1 0\r\n",
    b"PUT a 0\r\n",
    b"\x00",
]
#: These it takes, in its own way.
REFUSED += [b"PUB a\r 0\r\n", b"PUB a r\rs 0\r\n", b"SUB a\r 1\r\n", b"HPUB a\r 12 12\r\n"]


@pytest.mark.parametrize(("line", "of_server", "told"), BOTH)
def test_every_verb_is_cut_into_its_words(
    line: bytes, of_server: bool, told: tuple[str, bytes, bytes, bytes, int]
) -> None:
    kind, size, *rest = first_line(line, of_server=of_server)
    assert size == len(line)
    assert (kind, *rest) == told


@pytest.mark.parametrize(("line", "of_server", "told"), BOTH)
def test_the_case_of_a_verb_does_not_matter(
    line: bytes, of_server: bool, told: tuple[str, bytes, bytes, bytes, int]
) -> None:
    verb = line[: min(line.find(b) for b in (b" ", b"\t", b"\r", b"\n") if b in line)]
    for other in (verb.lower(), verb.swapcase(), verb[:1].lower() + verb[1:]):
        found = first_line(other + line[len(verb) :], of_server=of_server)
        assert (found[0], *found[2:]) == told


@pytest.mark.parametrize(("line", "of_server", "told"), BOTH)
def test_a_line_that_has_not_come_as_a_whole_is_partial(
    line: bytes, of_server: bool, told: object
) -> None:
    del told
    for size in range(len(line)):
        assert first_line(line[:size], of_server=of_server)[:2] == ("partial", 0), line[:size]


@pytest.mark.parametrize(("line", "of_server", "told"), BOTH)
def test_what_follows_a_line_changes_nothing(
    line: bytes, of_server: bool, told: tuple[str, bytes, bytes, bytes, int]
) -> None:
    for more in (b"\r\n", b"PING\r\n", b"\n\n 1 2 3 4 5 6 7 8", b"x" * 5000, b"\x00\xff"):
        kind, size, *rest = first_line(line + more, of_server=of_server)
        assert size == len(line)
        assert (kind, *rest) == told


@pytest.mark.parametrize("line", REFUSED)
def test_what_a_nats_server_refuses_is_wrong(line: bytes) -> None:
    assert first_line(line)[0] == "wrong"


@given(st.binary(max_size=64), st.booleans())
def test_any_bytes_are_something(data: bytes, of_server: bool) -> None:
    kind, size, subject, sid, other, _ = first_line(data, of_server=of_server)
    assert size <= len(data)
    if size:
        assert data[size - 1 : size] == b"\n"
        assert data.find(b"\n") == size - 1
    for word in (subject, sid, other):
        assert word in data
    if kind in {"sub", "message", "headed"}:
        assert subject
        assert not set(subject) & set(b" \t\r\n")


WORD = st.text(alphabet="abc.*>$_", min_size=1, max_size=6).map(str.encode)
BLANK = st.text(alphabet=" \t", min_size=1, max_size=3).map(str.encode)


@given(
    st.sampled_from([b"PUB", b"HPUB", b"SUB", b"UNSUB"]),
    st.lists(WORD, max_size=7),
    st.integers(0, 10**10),
    BLANK,
    BLANK,
    st.sampled_from([b"\r\n", b"\n", b" \r\n"]),
)
def test_words_are_counted_as_a_nats_server_counts_them(  # noqa: PLR0917  # one for each thing drawn
    verb: bytes, words: list[bytes], number: int, first: bytes, between: bytes, end: bytes
) -> None:
    text = str(number).encode()
    words = [*words, text]
    kind, size, subject, sid, other, got = first_line(verb + first + between.join(words) + end)
    count = len(words)
    fits = len(text) <= 9
    if verb == b"PUB" and 2 <= count <= 3 and fits:
        assert (kind, subject, got) == ("message", words[0], number)
        assert other == (words[1] if count == 3 else b"")
    elif verb == b"HPUB" and 3 <= count <= 4 and fits:
        assert (kind, subject, got) == ("headed", words[0], number)
    elif verb == b"SUB" and 2 <= count <= 3:
        assert (kind, subject, sid) == ("sub", words[0], text)
        assert other == (words[1] if count == 3 else b"")
    elif verb == b"UNSUB" and count <= 2:
        assert (kind, sid) == ("unsub", words[0])
        assert got == (0 if count == 1 else number if fits else -1)
    else:
        assert kind == "wrong"
        return
    assert size == len(verb + first + between.join(words) + end)
