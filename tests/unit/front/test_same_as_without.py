"""What clients and the core hear through the listener is what they hear without it.

One of several publishes, subscribes or leaves at a time, and everybody has heard all before the
next one: so what each hears is the same each time, and so is its order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.front.sessions import LOGIN, Peer, Place, both

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.processes

CORE = b"SUB core.> 1\r\nSUB acks.* 2\r\nSUB one 3\r\n"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, Place]]:
    yield from both(tmp_path_factory.mktemp("places"), "max_payload: 100000")


class Session:
    """One core and three clients of a place; ``heard`` is what each has heard."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.core = place.core(CORE)
        self.clients = [place.client() for _ in range(3)]
        self._count = 0
        self.settle()

    def peers(self) -> list[Peer]:
        return [self.core, *self.clients]

    def settle(self) -> None:
        for peer in (self.core, *self.clients, self.core, *self.clients):
            peer.settle()

    def payload(self, size: int = 0) -> bytes:
        self._count += 1
        return b"%d" % self._count + b"x" * size

    def act(self, who: int, what: bytes) -> None:
        """``who``: 3 is the core."""
        (self.core if who == 3 else self.clients[who]).send(what)

    def heard(self) -> list[object]:
        self.settle()
        # The copies of one message for several subscriptions have no order.
        return [
            (
                peer.is_over,
                peer.lines,
                [m.payload for m in peer.messages],
                sorted(peer.messages, key=lambda m: (m.payload, m.sid)),
            )
            for peer in self.peers()
        ]

    def attach_again(self) -> None:
        self.core.close()
        self.core = self._place.core(CORE)


def same(places: tuple[Place, Place], play: Callable[[Session], None]) -> list[object]:
    heard = []
    for place in places:
        session = Session(place)
        play(session)
        heard.append(session.heard())
        place.leave()
        if place.front is not None:
            place.front.be_direct(on=True)
    assert heard[0] == heard[1]
    return heard[0]


def pub(subject: bytes, payload: bytes, reply: bytes = b"") -> bytes:
    return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload)


def hpub(subject: bytes, payload: bytes) -> bytes:
    head = b"NATS/1.0\r\na: b\r\n\r\n"
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (
        subject,
        len(head),
        len(head) + len(payload),
        head,
        payload,
    )


def direct(place: Place) -> tuple[int, int]:
    assert place.front is not None
    status = place.front.status()
    return status.direct_in, status.direct_out


def test_requests_are_answered_on_the_direct_road(places: tuple[Place, Place]) -> None:
    def play(s: Session) -> None:
        s.act(0, b"SUB in.0 7\r\n")
        for n in range(50):
            s.act(0, pub(b"core.pub", b"%d" % n, b"in.0"))
        s.settle()
        for n in range(50):
            s.act(3, pub(b"in.0", b"%d" % n))

    before = direct(places[0])
    heard = same(places, play)
    after = direct(places[0])
    assert (after[0] - before[0], after[1] - before[1]) == (50, 50)
    assert len(heard) == 4


def test_an_order_to_leave_counts_both_roads(places: tuple[Place, Place]) -> None:
    def play(s: Session) -> None:
        s.act(0, b"SUB in.0 7\r\nUNSUB 7 5\r\n")
        s.settle()
        for n in range(3):
            s.act(3, pub(b"in.0", b"core%d" % n))
            s.settle()
            s.act(1, pub(b"in.0", b"client%d" % n))
            s.settle()
        # The sid is free again.
        s.act(0, b"SUB in.1 7\r\n")
        s.settle()
        s.act(3, pub(b"in.1", b"again"))
        s.act(3, pub(b"in.0", b"nobody"))

    assert len(same(places, play)) == 4


def test_more_was_delivered_than_is_left(places: tuple[Place, Place]) -> None:
    def play(s: Session) -> None:
        s.act(0, b"SUB in.0 7\r\n")
        s.settle()
        for n in range(4):
            s.act(3, pub(b"in.0", b"%d" % n))
        s.settle()
        s.act(0, b"UNSUB 7 3\r\n")
        s.settle()
        s.act(3, pub(b"in.0", b"late"))
        s.act(3, pub(b"in.0", b"later"))
        s.settle()
        s.act(1, pub(b"in.0", b"too late"))

    same(places, play)


def test_a_tap_sees_all_in_order_and_the_core_does_too(places: tuple[Place, Place]) -> None:
    def play(s: Session) -> None:
        s.act(0, b"SUB in.0 1\r\n")
        s.settle()
        for turn in range(3):
            for n in range(20):
                s.act(0, pub(b"core.a" if n % 3 else b"other", b"%d.%d" % (turn, n)))
            if turn == 0:
                s.settle()
                s.act(1, b"SUB > 9\r\n")
                s.settle()
            if turn == 1:
                s.settle()
                s.act(1, b"UNSUB 9\r\n")
                s.settle()

    same(places, play)


def test_what_has_headers_does_not_come_late(places: tuple[Place, Place]) -> None:
    def play(s: Session) -> None:
        for n in range(30):
            make = hpub if n % 5 == 0 else pub
            s.act(0, make(b"core.a", b"%d" % n))

    same(places, play)


def test_one_of_a_group_gets_a_message(places: tuple[Place, Place]) -> None:
    for place in places:
        s = Session(place)
        for n, client in enumerate(s.clients):
            client.send(b"SUB in.q group %d\r\nSUB in.q %d\r\n" % (n, 10 + n))
        s.settle()
        for n in range(300):
            s.act(3, pub(b"in.q", b"%d" % n))
        s.settle()
        got = [sum(m.sid == b"%d" % n for m in c.messages) for n, c in enumerate(s.clients)]
        assert sum(got) == 300
        assert min(got) > 50
        for n, client in enumerate(s.clients):
            assert sum(m.sid == b"%d" % (10 + n) for m in client.messages) == 300
        place.leave()


def test_the_core_comes_and_goes_under_a_publisher(places: tuple[Place, Place]) -> None:
    def play(s: Session) -> None:
        for turn in range(4):
            for n in range(10):
                s.act(0, pub(b"core.a", b"%d.%d" % (turn, n)))
            s.settle()
            s.attach_again()

    same(places, play)


@pytest.mark.parametrize(
    "what",
    [
        *(b"XYZ\r\n", b"\r\n", b"PUB\r\n", b"PUB core.a x\r\n", b"PUB core.a 3\r\nabcdef\r\n"),
        *(b"SUB in.0\r\n", b"SUB a b c d e\r\n", b"PUB core.a 100001\r\n", b"PUB core.a -1\r\n"),
        *(b"PUB core.a 99999999999\r\n", b"SUB " + b"s" * 5000, b"PUB " + b"s" * 5000 + b" 1\r\n"),
        *(b"PUB core.a 2\r\nab\n\n", b"HPUB core.a 5 3\r\nabc\r\n", b"HPUB core.a 3\r\n"),
        *(b"PING x\r\n", b"-ERR 'x'\r\n", b"+OK\r\n", b"CONNECT {\r\n", b"\x16\x03\x01\x02\x00"),
        *(
            b"SUB a..b 5\r\n",
            b"SUB a.> 5\r\n",
            b"SUB >.a 5\r\n",
            b"UNSUB\r\n",
            b"PUBx core.a 0\r\n",
        ),
        *(b"pub core.a 0\r\n\r\nPuB\tcore.a\t 1\r\nx\r\n", b"PUB core..a 0\r\n\r\n"),
        *(b"PUB core.* 1\r\nx\r\n", b"PUB core.a 1\nx\r\n", b"UNSUB 7 x\r\n", b"INFO {}\r\n"),
    ],
)
@pytest.mark.parametrize("cut", [0, 1, 4])
def test_bad_input_has_the_same_answer(places: tuple[Place, Place], what: bytes, cut: int) -> None:
    def play(s: Session) -> None:
        s.act(0, b"SUB in.0 7\r\n" + pub(b"core.a", b"before"))
        s.settle()
        if cut:
            s.act(0, what[:cut])
            s.core.settle()
        s.act(0, what[cut:] + pub(b"core.a", b"behind"))
        s.settle()
        s.act(3, pub(b"in.0", b"answer"))

    same(places, play)


@pytest.mark.parametrize("login", [b'"verbose":true', b'"pedantic":true', b'"Verbose" : true'])
def test_who_wants_a_word_on_each_message_gets_it(
    places: tuple[Place, Place], login: bytes
) -> None:
    heard = []
    for place in places:
        s = Session(place)
        client = place.client(b"CONNECT {%b}\r\n" % login)
        client.send(b"SUB in.0 1\r\n" + pub(b"core.a", b"x") + pub(b"core.a", b"y"))
        client.settle()
        s.settle()
        s.act(3, pub(b"in.0", b"z"))
        s.settle()
        client.settle()
        heard.append((client.lines, client.messages, s.core.messages))
        place.leave()
    assert heard[0] == heard[1]
    assert len(heard[0][1]) == 1


def test_every_split_of_a_session_is_the_same(places: tuple[Place, Place]) -> None:
    session = b"SUB in.0 7\r\n" + pub(b"core.a", b"abc", b"in.0") + b"PING\r\nUNSUB 7 2\r\n"
    for cut in range(1, len(session)):

        def play(s: Session, cut: int = cut) -> None:
            s.act(0, session[:cut])
            s.core.settle()
            s.act(0, session[cut:])
            s.clients[0].settle()
            s.settle()
            s.act(3, pub(b"in.0", b"1"))

        same(places, play)


_SUBJECT = st.sampled_from([b"in.0", b"in.1", b"core.a", b"core.b", b"acks.1", b"one", b"other"])
_PATTERN = st.sampled_from([b"in.0", b"in.1", b"in.*", b">", b"core.a", b"*.1", b"one", b"other"])
_SID = st.integers(1, 3).map(lambda n: b"%d" % n)
_ACTION = st.one_of(
    st.tuples(st.just(b"PUB"), _SUBJECT, st.sampled_from([b"", b"r.1"])),
    st.tuples(st.just(b"HPUB"), _SUBJECT, st.just(b"")),
    st.tuples(st.just(b"SUB"), _PATTERN, _SID),
    st.tuples(st.just(b"UNSUB"), _SID, st.sampled_from([b"", b"1", b"2", b"3"])),
    st.tuples(st.just(b"PING"), st.just(b""), st.just(b"")),
    st.tuples(st.just(b"CONNECT"), st.just(b""), st.just(b"")),
)
_STEP: st.SearchStrategy[tuple[int, list[tuple[bytes, bytes, bytes]]]] = st.one_of(
    st.tuples(st.integers(0, 3), st.lists(_ACTION, min_size=1, max_size=12)),
    st.tuples(st.sampled_from([4, 5, 6]), st.just([])),
)


def core_subject(verb: bytes, drawn: bytes) -> bytes:
    """It does not talk to itself, nor with headers."""
    if verb == b"SUB":
        return drawn if drawn.startswith((b"core", b"one")) else b"core.b"
    return drawn if drawn.startswith(b"in") else b"in.1"


@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(_STEP, max_size=14))
def test_sessions_that_nobody_thought_of_are_the_same(
    places: tuple[Place, Place], steps: list[tuple[int, list[tuple[bytes, bytes, bytes]]]]
) -> None:
    def play(s: Session) -> None:
        for who, actions in steps:
            if who == 4:
                s.attach_again()
            elif who > 4:
                front = s._place.front
                if front is not None:
                    front.be_direct(on=who == 5)
            else:
                said = b""
                for verb, first, second in actions:
                    if who == 3 and verb in (b"PUB", b"HPUB", b"SUB"):
                        first = core_subject(verb, first)  # noqa: PLW2901
                    if verb == b"PUB" or (verb == b"HPUB" and who == 3):
                        said += pub(first, s.payload(), second if verb == b"PUB" else b"")
                    elif verb == b"HPUB":
                        said += hpub(first, s.payload())
                    elif verb == b"CONNECT":
                        said += LOGIN if who < 3 else b"PING\r\n"
                    elif who == 3 and verb in (b"SUB", b"UNSUB") and first in (b"1", b"2", b"3"):
                        # Its own stay.
                        said += b"UNSUB 1%b %b\r\n" % (first, second)
                    elif who == 3 and verb == b"SUB":
                        said += b"SUB %b 1%b\r\n" % (first, second)
                    else:
                        said += b"%b %b %b\r\n" % (verb, first, second)
                s.act(who, said)
            s.settle()

    same(places, play)
