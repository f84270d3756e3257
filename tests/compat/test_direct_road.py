"""Clients of the listener hear what they would hear from the nats-server itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.compat.roads import CORE, HELLO, MAX_LINE, MAX_PAYLOAD, Roads

if TYPE_CHECKING:
    from collections.abc import Iterator

VERBOSE = HELLO.replace(b'"verbose": false', b'"verbose": true')
BLIND = HELLO.replace(b'"headers": true', b'"headers": false')
PEDANTIC = HELLO.replace(b'"pedantic": false', b'"pedantic": true')


@pytest.fixture(scope="module")
def roads() -> Iterator[Roads]:
    both = Roads()
    try:
        yield both
    finally:
        both.stop()


def pub(subject: str, text: str = "x", reply: str = "") -> bytes:
    return f"PUB {subject} {reply + ' ' if reply else ''}{len(text)}\r\n{text}\r\n".encode()


def hpub(subject: str, text: str = "x", header: str = "NATS/1.0\r\nA: b\r\n\r\n") -> bytes:
    size = len(header) + len(text)
    return f"HPUB {subject} {len(header)} {size}\r\n{header}{text}\r\n".encode()


A = ("open", "a")
B = ("open", "b")
LISTENS = ("say", CORE, b"SUB in.x 1\r\nSUB in.* 2\r\nSUB deep.> 3\r\nSUB in.x 4\r\n")

SCENARIOS: dict[str, tuple[list[tuple[object, ...]], int]] = {
    "a request and its answer": (
        [
            A,
            LISTENS,
            ("say", "a", b"SUB box.1 7\r\n" + pub("in.x", "hello", "box.1")),
            ("say", CORE, pub("box.1", "answer") + pub("box.1", "second", "in.x")),
            ("say", "a", pub("in.y", "one", "box.1") + b"PING\r\n" + pub("deep.a.b", "two")),
        ],
        5,
    ),
    "several subscriptions to one inbox": (
        [
            A,
            B,
            ("say", "a", b"SUB box 1\r\nSUB box 2\r\nSUB * 3\r\nSUB > 4\r\nSUB box q 5\r\n"),
            ("say", "b", b"SUB box 1\r\nSUB box.> 2\r\n"),
            ("say", CORE, pub("box", "one")),
            ("say", "a", b"UNSUB 1\r\nUNSUB 4\r\n"),
            ("say", CORE, pub("box", "two")),
        ],
        0,
    ),
    "limits with one message each way": (
        [
            A,
            B,
            ("say", "a", b"SUB box 1\r\nUNSUB 1 3\r\n"),
            ("say", CORE, pub("box", "1")),
            ("say", "b", pub("box", "2")),
            ("say", CORE, pub("box", "3")),
            ("say", CORE, pub("box", "4")),
            ("say", "b", pub("box", "5")),
            ("say", "a", b"SUB box 1\r\n"),
            ("say", CORE, pub("box", "6")),
            ("say", "b", pub("box", "7")),
        ],
        3,
    ),
    "a limit behind messages of the core": (
        [
            A,
            ("say", "a", b"SUB box 1\r\n"),
            ("say", CORE, pub("box", "1") * 3),
            ("say", "a", b"UNSUB 1 2\r\n"),
            ("say", CORE, pub("box", "2")),
        ],
        3,
    ),
    "a limit that messages of both roads have reached": (
        [
            A,
            B,
            ("say", "a", b"SUB box 1\r\n"),
            ("say", CORE, pub("box", "1") * 2),
            ("say", "b", pub("box", "2") * 2),
            ("say", "a", b"UNSUB 1 4\r\n"),
            ("say", CORE, pub("box", "3")),
            ("say", "b", pub("box", "4")),
        ],
        2,
    ),
    "a limit above what messages of both roads have reached": (
        [
            A,
            B,
            ("say", "a", b"SUB box 1\r\n"),
            ("say", CORE, pub("box", "1") * 2),
            ("say", "b", pub("box", "2") * 3),
            ("say", "a", b"UNSUB 1 6\r\n"),
            ("say", CORE, pub("box", "3")),
            ("say", CORE, pub("box", "4")),
            ("say", "b", pub("box", "5")),
        ],
        3,
    ),
    "limits that are no numbers": (
        [
            A,
            ("say", "a", b"SUB box 1\r\nUNSUB 1 x\r\nSUB box 2\r\nUNSUB 2 -1\r\n"),
            ("say", CORE, pub("box")),
            ("say", "a", b"SUB box 3\r\nUNSUB 3 0\r\nSUB box 4\r\nUNSUB 4 9999999999\r\n"),
            ("say", CORE, pub("box")),
            ("say", "a", b"SUB box 5\r\nUNSUB 5 4\r\nUNSUB 5 0\r\nUNSUB 77\r\nUNSUB 78 3\r\n"),
            ("say", CORE, pub("box")),
        ],
        0,
    ),
    "a limit that is taken back": (
        [
            A,
            ("say", "a", b"SUB box 1\r\nUNSUB 1 2\r\n"),
            ("say", CORE, pub("box", "1")),
            ("say", "a", b"UNSUB 1 4\r\n"),
            *[("say", CORE, pub("box", str(i))) for i in range(2, 7)],
        ],
        4,
    ),
    "a tap sees all": (
        [
            A,
            B,
            LISTENS,
            ("say", "b", b"SUB > 1\r\n"),
            ("say", "a", b"SUB box 1\r\n" + pub("in.x", "1", "box") + pub("in.y", "2")),
            ("say", CORE, pub("box", "3")),
            ("say", "b", b"UNSUB 1\r\n"),
            ("say", "a", pub("in.x", "4")),
        ],
        1,
    ),
    "queue members of one client": (
        [
            A,
            ("say", "a", b"SUB box q 1\r\n"),
            ("say", CORE, pub("box", "1") * 4),
            ("say", "a", b"SUB box 2\r\nSUB box r 3\r\n"),
            ("say", CORE, pub("box", "2")),
        ],
        5,
    ),
    "a queue subscription of the core": (
        [
            A,
            ("say", CORE, b"SUB in.q q 1\r\nSUB in.q 2\r\n"),
            ("say", "a", pub("in.q", "1") + pub("in.q", "2")),
        ],
        0,
    ),
    "the core takes a subject back": (
        [
            A,
            LISTENS,
            ("say", "a", pub("in.x", "1")),
            ("say", CORE, b"UNSUB 1\r\nUNSUB 2\r\n"),
            ("say", "a", pub("in.x", "2") + pub("in.y", "3")),
            ("say", CORE, b"UNSUB 4\r\n"),
            ("say", "a", pub("in.x", "4") + pub("deep.a", "5")),
            ("say", CORE, b"SUB in.x 1\r\nUNSUB 1 2\r\n"),
            ("say", "a", pub("in.x", "6") * 3),
        ],
        4,
    ),
    "headers": (
        [
            A,
            B,
            LISTENS,
            ("say", "a", b"SUB box 1\r\n" + hpub("in.x") + pub("in.x", "2") + hpub("box")),
            ("say", CORE, hpub("box", "a") + pub("box", "b") + hpub("box", "c")),
            ("say", "b", pub("in.x", "3")),
        ],
        2,
    ),
    "headers of the core in their place": (
        [
            A,
            ("open", "b", BLIND),
            ("open", "c", b""),
            ("say", "a", b"SUB box 1\r\nSUB box q 2\r\nSUB box.> 3\r\n"),
            ("say", "b", b"SUB box 1\r\nSUB box.* 2\r\nUNSUB 1 3\r\n"),
            ("say", "c", b"SUB box 1\r\n"),
            ("say", CORE, hpub("box", "a") + pub("box", "b") + hpub("box", "c") + pub("box", "d")),
            ("say", CORE, hpub("box.1", "", "none at all") + hpub("box.1", "e", "")),
            ("say", CORE, b"HPUB box.1 re 12 12\r\nNATS/1.0\r\n\r\n\r\n", 1),
            ("say", CORE, b"SUB box 1\r\n" + hpub("box", "f")),
        ],
        8,
    ),
    "a login that can read headers, and another that cannot": (
        [
            ("open", "a", BLIND),
            ("say", "a", HELLO + b"SUB box 1\r\n"),
            ("say", CORE, hpub("box", "a")),
            ("say", "a", BLIND + b"SUB box 1\r\n"),
            ("say", CORE, hpub("box", "b")),
        ],
        2,
    ),
    "verbose": (
        [
            ("open", "a", VERBOSE),
            LISTENS,
            ("say", "a", b"SUB box 1\r\nSUB box 1\r\nPING\r\n" + pub("in.x", "1") + b"UNSUB 9\r\n"),
            ("say", CORE, pub("box", "2")),
            ("say", "a", hpub("in.x") + b"SUB a..b 3\r\n" + pub("in.x", "2")),
        ],
        0,
    ),
    "pedantic": (
        [
            ("open", "a", PEDANTIC),
            LISTENS,
            ("say", "a", b"SUB box 1\r\n" + pub("in.*", "1") + pub("in.x", "2") + pub("in..x")),
            ("say", CORE, pub("box", "2")),
        ],
        0,
    ),
    "a message of a pedantic client in two reads": (
        [("open", "a", PEDANTIC), ("say", "a", pub("in..x", "12345"), 15)],
        0,
    ),
    "a login that becomes verbose, and another": (
        [
            A,
            LISTENS,
            ("say", "a", pub("in.x", "1")),
            ("say", "a", VERBOSE + pub("in.x", "2")),
            ("say", "a", HELLO + pub("in.x", "3")),
        ],
        1,
    ),
    "a login that says nothing": (
        [
            ("open", "a", b"CONNECT {}\r\n"),
            LISTENS,
            ("say", "a", pub("in.x", "1") + b"SUB box 1\r\n" + pub("in.x", "2")),
        ],
        0,
    ),
    "a login that leaves out pedantic": (
        [
            ("open", "a", b'CONNECT {"verbose":false}\r\n'),
            LISTENS,
            ("say", "a", pub("in.*", "1") + pub("in.x", "2")),
        ],
        0,
    ),
    "no login at all": (
        [
            ("open", "a", b""),
            LISTENS,
            ("say", "a", pub("in.x", "1") + b"SUB box 1\r\n" + pub("in.x", "2")),
            ("say", CORE, pub("box", "3")),
        ],
        0,
    ),
    "a limit of a verbose client": (
        [
            ("open", "a", VERBOSE),
            ("say", "a", b"SUB box 1\r\nUNSUB 1 1\r\n"),
            ("say", CORE, pub("box", "1") + pub("box", "2")),
            ("say", "a", b"SUB other 2\r\n"),
        ],
        0,
    ),
    "limits of a verbose client that end one after another": (
        [
            ("open", "a", VERBOSE),
            B,
            ("say", "a", b"".join(b"SUB box %d\r\nUNSUB %d %d\r\n" % (n, n, n) for n in (1, 2, 3))),
            ("say", CORE, pub("box", "1") * 2),
            ("say", "a", b"PING\r\nSUB box 1\r\nPING\r\nUNSUB 1 1\r\nSUB a..b 9\r\n"),
            ("say", CORE, pub("box", "2")),
            ("say", "b", pub("box", "3")),
            ("say", "a", b"SUB box 1\r\nUNSUB 1 5\r\n" + HELLO + b"SUB box 2\r\nUNSUB 2 1\r\n"),
            ("say", CORE, pub("box", "4") + pub("box", "5")),
            ("say", "a", VERBOSE + b"SUB other 1\r\n"),
            ("say", CORE, pub("other", "6")),
            ("say", "a", b"UNSUB 1 1\r\nSUB box 7\r\nPING\r\n"),
            ("say", CORE, pub("box", "7")),
        ],
        6,
    ),
    "a client that hears itself": (
        [
            A,
            LISTENS,
            ("say", "a", b"SUB in.x 1\r\n" + pub("in.x", "1")),
            ("say", "a", b"UNSUB 1\r\n" + pub("in.x", "2")),
            ("say", CORE, pub("in.x", "3")),
        ],
        1,
    ),
    "a client that does not hear itself": (
        [
            ("open", "a", HELLO.replace(b"{", b'{"echo": false, ')),
            LISTENS,
            ("say", "a", b"SUB in.x 1\r\n" + pub("in.x", "1")),
            ("say", CORE, pub("in.x", "2")),
        ],
        0,
    ),
    "a client that asks where nobody listens": (
        [
            ("open", "a", HELLO.replace(b"{", b'{"no_responders": true, ')),
            LISTENS,
            ("say", "a", b"SUB box 1\r\n" + pub("no.body", "1", "box") + pub("in.x", "2", "box")),
        ],
        0,
    ),
    "subjects that are none": (
        [
            A,
            LISTENS,
            ("say", "a", b"SUB .a 1\r\nSUB a. 2\r\nSUB a..b 3\r\nSUB a.>.b 4\r\nSUB in.*x 5\r\n"),
            ("say", "a", pub("in.", "1") + pub(".in.x", "2") + pub("in..x", "3")),
            ("say", "a", pub("in.*x", "4") + pub("in.*", "5") + pub("deep.>", "6")),
            ("say", CORE, pub("in.*x", "7") + pub("in.yx", "8") + pub("in.*", "9")),
        ],
        0,
    ),
    "a sid that is in use": (
        [
            A,
            ("say", "a", b"SUB box 1\r\nSUB other 1\r\nSUB a..b 2\r\nSUB other 2\r\n"),
            ("say", CORE, pub("box") + pub("other")),
            ("say", "a", b"UNSUB 1\r\nSUB other 1\r\n"),
            ("say", CORE, pub("box") + pub("other")),
        ],
        0,
    ),
    "a subject as long as a line may be": (
        [
            A,
            LISTENS,
            ("say", "a", b"SUB box 1\r\n" + pub("in." + "y" * (MAX_LINE - 5))),
            ("end", "a", pub("in." + "y" * (MAX_LINE - 4))),
        ],
        0,
    ),
    "a line without an end that is too long": (
        [A, LISTENS, ("end", "a", b"PUB in." + b"y" * MAX_LINE)],
        0,
    ),
    "a login that is too long": (
        [("open", "a", b""), ("end", "a", b"CONNECT {" + b" " * MAX_LINE + b"}\r\n")],
        0,
    ),
    "payloads as large as they may be": (
        [
            A,
            LISTENS,
            ("say", "a", pub("in.x", "y" * MAX_PAYLOAD)),
            ("end", "a", pub("in.x", "1") + pub("in.x", "y" * (MAX_PAYLOAD + 1))),
        ],
        2,
    ),
    "empty payloads and fragments": (
        [
            A,
            LISTENS,
            ("say", "a", b"SUB box 1\r\n" + pub("in.x", "") + pub("in.x", "\r\nPUB in.x 1\r\n"), 1),
            ("say", CORE, pub("box", "") + pub("box", "PING\r\n"), 1),
            ("say", "a", b"pub\tin.x\t box  3\nabc\r\nping\nSuB box   2\n"),
            ("say", CORE, b"pub box 1\nx\r\n"),
        ],
        4,
    ),
    "the direct road is forbidden, and allowed again": (
        [
            A,
            B,
            LISTENS,
            ("say", "a", b"SUB box 1\r\nSUB box.* 2\r\nUNSUB 2 3\r\n" + pub("in.x", "1")),
            ("say", CORE, pub("box", "1") + pub("box.1", "1")),
            ("allow", False),
            ("say", "b", b"SUB box 1\r\nUNSUB 1 3\r\n"),
            ("say", "a", pub("in.x", "2")),
            ("say", CORE, pub("box", "2") + pub("box.1", "2")),
            ("allow", True),
            ("say", CORE, (pub("box", "3") + pub("box.1", "3") + hpub("box", "h")) * 3),
            ("say", "a", pub("in.x", "3") + b"PING\r\nSUB box 2\r\n" + pub("in.x", "4")),
            ("say", CORE, pub("box", "4")),
            ("say", "b", b"SUB box 1\r\n" + pub("in.x", "5") + pub("box", "6")),
        ],
        12,
    ),
    "half a close": ([A, LISTENS, ("say", "a", b"SUB box 1\r\n"), ("half", "a")], 0),
    "the core goes and comes back": (
        [
            A,
            LISTENS,
            ("say", "a", b"SUB box 1\r\n" + pub("in.x", "1")),
            ("close", CORE),
            ("say", "a", pub("in.x", "2")),
            B,
            ("say", "b", b"SUB in.x 1\r\n"),
            ("say", "a", pub("in.x", "3")),
            ("attach",),
            ("say", "a", pub("in.x", "4")),
            LISTENS,
            ("say", "a", pub("in.x", "5")),
            ("say", CORE, pub("box", "6")),
            ("close", "b"),
            ("say", "a", pub("in.x", "7")),
        ],
        3,
    ),
    "the road changes": (
        [
            A,
            LISTENS,
            ("say", "a", b"SUB box 1\r\nUNSUB 1 5\r\n" + pub("in.x", "1")),
            ("direct", False),
            ("say", "a", pub("in.x", "2")),
            ("say", CORE, pub("box", "3")),
            ("direct", True),
            ("say", "a", pub("in.x", "4") + b"PING\r\n" + pub("in.x", "5")),
            ("say", CORE, pub("box", "6")),
        ],
        4,
    ),
}
#: Each ends the connection, with what it must say before that.
REFUSED = [
    b"PUB in.x\r\n",
    b"PUB in.x a b 1\r\nx\r\n",
    b"PUB in.x x\r\n",
    b"PUB in.x -1\r\n",
    b"PUB in.x 9999999999\r\n",
    b"PUB in.x 99999999\r\n",
    b"PUB in.x 1\r\nxx\r\n",
    b"PUB in.x 1\r\nx\n\n",
    b"PUB in.x 1\r\nx\r\r",
    b"PUB\r\n",
    b"PUBin.x 1\r\nx\r\n",
    b"HPUB in.x 1 1\r\nx\r\n",
    b"HPUB in.x 5 1\r\nx\r\n",
    b"HPUB in.x 1\r\nx\r\n",
    b"HPUB in.x x 3\r\nabc\r\n",
    b"SUB box\r\n",
    b"SUB a b c d\r\n",
    b"UNSUB\r\n",
    b"UNSUB 1 2 3\r\n",
    b"CONNECT x\r\n",
    b"CONNECT\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"MSG in.x 1 1\r\nx\r\n",
    b"\r\n",
    b"\x00\xff\r\n",
    b" PUB in.x 1\r\nx\r\n",
    b"-ERR\r\n",
    b"-ERRx\r\n",
    b"INFO\r\n",
    b"INFO x\r\n",
    b"INFO{}\r\n",
    b"RS+ a b\r\n",
    b"A+ a\r\n",
]
IGNORED = [b"+OK\r\n", b"-ERR 'x'\r\n", b"PONG\r\n", b"INFO {}\r\n", b"PING x\r\n", b"+OKx\r\n"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_clients_hear_the_same(roads: Roads, name: str) -> None:
    steps, direct = SCENARIOS[name]
    roads.compare(steps, direct=direct)


@pytest.mark.parametrize("name", ["limits with one message each way", "a tap sees all", "verbose"])
@pytest.mark.parametrize("piece", [1, 7])
def test_clients_hear_the_same_when_all_comes_in_pieces(
    roads: Roads, name: str, piece: int
) -> None:
    steps, direct = SCENARIOS[name]
    roads.compare([(*step, piece) if step[0] == "say" else step for step in steps], direct=direct)


@pytest.mark.parametrize("text", [line.decode("latin-1") for line in REFUSED])
def test_what_is_no_protocol_is_refused_in_the_same_words(roads: Roads, text: str) -> None:
    line = text.encode("latin-1")
    roads.compare(
        [A, LISTENS, ("end", "a", pub("in.x", "before") + line + pub("in.x", "behind"))],
        patience=1,
    )


#: A NATS server takes the carriage return for a part of the word.
ODD = {
    "subject": b"PUB %b\r 2\r\nab\r\n",
    "reply": b"PUB %b re\rply 2\r\nab\r\n",
    "both": b"PUB %b\r\r r\r 2\r\nab\r\n",
    "subject with headers": b"HPUB %b\r 12 14\r\nNATS/1.0\r\n\r\nab\r\n",
    "reply with headers": b"HPUB %b r\rs 12 14\r\nNATS/1.0\r\n\r\nab\r\n",
}


@pytest.mark.parametrize("piece", [0, 1, 50])
@pytest.mark.parametrize("odd", ODD)
def test_a_carriage_return_in_a_word_does_not_hide_where_the_next_line_begins(
    roads: Roads, odd: str, piece: int
) -> None:
    """Neither in what the core hears nor in what another client does: what comes directly would
    come in the middle of a message, and nobody would know the answers to PINGs apart.
    """
    line = ODD[odd]
    long = "y" * 1500
    steps: list[tuple[object, ...]] = [
        A,
        B,
        LISTENS,
        ("say", "b", b"SUB box 1\r\nSUB heard.> 2\r\n"),
        ("say", "a", line % b"in.x" + line % b"heard.x"),
    ]
    for number in range(3):
        steps += [
            # To nobody, through the NATS server: the listener asks how far that has read.
            ("say", CORE, pub("nowhere", f"lost {number}")),
            ("say", "a", pub("heard.y", long), *([piece] if piece else [])),
            ("say", CORE, pub("box", f"direct {number}")),
            ("say", "b", pub("in.x", f"request {number}", "box")),
            ("open", f"newcomer {number}"),
            ("say", f"newcomer {number}", b"SUB box 1\r\n" + pub("in.y", "new", "box")),
            ("say", CORE, pub("box", f"both {number}")),
        ]
    roads.compare(steps)


def test_an_answer_to_a_reply_with_a_carriage_return_is_one_message(roads: Roads) -> None:
    roads.compare(
        [
            A,
            LISTENS,
            ("say", "a", b"SUB box 1\r\n"),
            ("say", CORE, b"PUB re\rply 2\r\nab\r\n" + pub("box", "one") + pub("box", "two")),
        ],
        direct=2,
    )


@pytest.mark.parametrize("line", IGNORED)
def test_what_means_nothing_changes_nothing(roads: Roads, line: bytes) -> None:
    roads.compare([A, LISTENS, ("say", "a", pub("in.x", "1") + line + pub("in.x", "2"))], direct=1)


def test_clients_come_before_the_core(roads: Roads) -> None:
    roads.compare(
        [
            A,
            ("say", "a", b"SUB box 1\r\n" + pub("in.x", "1")),
            ("attach",),
            LISTENS,
            ("say", "a", pub("in.x", "2")),
            ("say", CORE, pub("box", "3")),
        ],
        core=False,
        direct=2,
    )


# ---- generated sessions

WANTED = ["in.x", "in.*", "in.>", "deep.a", "deep.>", "*.x", ">", "box", "box.*", "box.1", "own.b"]
PUBLISHED = ["in.x", "in.y", "deep.a", "deep.a.b", "box", "box.1", "own.b", "no.body", "in..x"]
OF_CORE = ["box", "box.1", "own.b", "no.body"]
NUMBER = st.integers(0, 99_999).map(str)
SID = st.sampled_from("1234")


def subscribe(subject: str, sid: str, queue: str) -> bytes:
    # One member each: which one of several gets a message is open.
    return f"SUB {subject} {f'{queue}{sid}' if queue else ''} {sid}\r\n".encode()


SUBS = st.builds(subscribe, st.sampled_from(WANTED), SID, st.sampled_from(["", "", "q"]))
UNSUBS = SID.map(lambda sid: f"UNSUB {sid}\r\n".encode())
LIMITS = st.builds(lambda sid, most: f"UNSUB {sid} {most}\r\n".encode(), SID, st.integers(-1, 6))
PUBS = st.builds(pub, st.sampled_from(PUBLISHED), NUMBER, st.sampled_from(["", "", "box"]))
HPUBS = st.builds(hpub, st.sampled_from(PUBLISHED), NUMBER)
OTHERS = st.sampled_from([b"PING\r\n", b"PONG\r\n", b"ping\n", b"+OK\r\n", HELLO])
LOGINS = st.sampled_from([HELLO, VERBOSE, PEDANTIC, BLIND])
OF_CORES = st.one_of(
    st.builds(pub, st.sampled_from(OF_CORE), NUMBER, st.sampled_from(["", "in.x"])),
    st.builds(hpub, st.sampled_from(OF_CORE), NUMBER),
)
CORE_SUBS = st.builds(
    lambda subject, sid: f"SUB {subject} {sid}\r\n".encode(),
    st.sampled_from(["in.x", "in.*", "in.>", "deep.a", "deep.>", "*.x", "*.a.b"]),
    SID,
)
PIECE = st.sampled_from([0, 0, 0, 1, 3, 11])
CLIENT = st.sampled_from("ab")


def burst(lines: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.lists(lines, min_size=1, max_size=6).map(b"".join)


def session(*more: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[tuple[object, ...]]]:
    of_client = st.one_of(SUBS, SUBS, UNSUBS, PUBS, PUBS, PUBS, OTHERS, *more)
    of_core = st.one_of(OF_CORES, OF_CORES, OF_CORES, CORE_SUBS, UNSUBS, st.just(b"PING\r\n"))
    says = st.tuples(st.just("say"), CLIENT, burst(of_client), PIECE)
    core_says = st.tuples(st.just("say"), st.just(CORE), burst(of_core), PIECE)
    return st.lists(
        st.one_of(
            says,
            says,
            says,
            core_says,
            core_says,
            core_says,
            st.tuples(st.sampled_from(["direct", "allow", "allow"]), st.booleans()),
            st.tuples(st.sampled_from(["open", "close"]), CLIENT),
            st.sampled_from([("close", CORE), ("attach",), LISTENS, LISTENS]),
            st.tuples(st.just("end"), CLIENT, burst(of_client).map(lambda x: x + b"WHAT\r\n")),
        ),
        min_size=3,
        max_size=14,
    )


EXAMPLES = int(os.environ.get("ROADS_EXAMPLES", "12"))
GENERATED = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@GENERATED
@given(steps=session(LIMITS))
def test_clients_hear_the_same_in_any_session_with_limits(
    roads: Roads, steps: list[tuple[object, ...]]
) -> None:
    roads.compare([A, B, LISTENS, *steps])


@GENERATED
@given(steps=session(LOGINS, HPUBS, LIMITS))
def test_clients_hear_the_same_in_any_session_with_logins_and_headers(
    roads: Roads, steps: list[tuple[object, ...]]
) -> None:
    roads.compare([A, B, LISTENS, *steps])
