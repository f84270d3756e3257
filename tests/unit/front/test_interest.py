"""Who wants which subjects, against the rules written down plainly."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ftstan.front.interest import Book

_TOKEN = st.sampled_from(["a", "b", "ab", "c*", "*", ">", "x>"])
_PATTERN = st.lists(_TOKEN, min_size=1, max_size=4).map(".".join)
_SUBJECT = st.lists(st.sampled_from(["a", "b", "ab", "c*", "*", ">"]), min_size=1, max_size=4).map(
    ".".join
)


def wants(pattern: str, subject: str) -> bool:
    wanted, given_ = pattern.split("."), subject.split(".")
    for n, token in enumerate(wanted):
        if token == ">":
            return len(given_) > n
        if n >= len(given_) or (token != "*" and token != given_[n]):
            return False
    return len(wanted) == len(given_)


def is_subject(text: str) -> bool:
    tokens = text.split(".")
    return all(tokens) and ">" not in tokens[:-1]


_STEP = st.one_of(
    st.tuples(st.just("sub"), st.integers(0, 15), _PATTERN, st.integers(0, 5)),
    st.tuples(st.just("unsub"), st.integers(0, 15), st.just(""), st.integers(0, 5)),
    st.tuples(st.just("leave"), st.integers(0, 15), st.just(""), st.just(0)),
    st.tuples(st.just("who"), st.just(0), _SUBJECT, st.just(0)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_STEP, max_size=120))
def test_what_is_found_is_what_suits(steps: list[tuple[str, int, str, int]]) -> None:
    book = Book()
    held: dict[tuple[int, int], str] = {}
    for what, owner, text, sid in steps:
        if what == "sub":
            new = is_subject(text) and (owner, sid) not in held
            assert book.subscribe(owner, text.encode(), b"%d" % sid) == new
            if new:
                held[owner, sid] = text
        elif what == "unsub":
            assert book.unsubscribe(owner, b"%d" % sid) == ((owner, sid) in held)
            held.pop((owner, sid), None)
        elif what == "leave":
            book.leave(owner)
            held = {key: pattern for key, pattern in held.items() if key[0] != owner}
        else:
            assert book.who(text.encode()) == sorted(
                (owner, b"%d" % sid)
                for (owner, sid), pattern in held.items()
                if wants(pattern, text) and not {"*", ">"} & set(text.split("."))
            )


def test_thousands_are_kept_apart() -> None:
    book = Book()
    for n in range(5000):
        assert book.subscribe(n % 16, b"_INBOX.%d.*" % n, b"%d" % n)
        assert book.subscribe(n % 16, b"_INBOX.%d" % n, b"l%d" % n)
    for n in range(0, 5000, 7):
        assert book.who(b"_INBOX.%d.x" % n) == [(n % 16, b"%d" % n)]
        assert book.who(b"_INBOX.%d" % n) == [(n % 16, b"l%d" % n)]
    for owner in range(16):
        book.leave(owner)
    assert book.who(b"_INBOX.1.x") == []


def test_no_subject_has_an_empty_token() -> None:
    book = Book()
    assert book.subscribe(0, b">", b"1")
    for subject in (b"", b".", b"a.", b".a", b"a..b"):
        assert not book.subscribe(1, subject, b"2")
        assert book.who(subject) == []
