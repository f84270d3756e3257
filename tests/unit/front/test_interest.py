"""Who wants which subjects, against a model that looks at every subscription."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ftstan.front.interest import Book

OWNERS = 16
TOKENS = ["a", "b", "ab", "*", ">", "*a", "a>", ">b", "a*", ""]
SUBJECT = st.lists(st.sampled_from(TOKENS[:-1]), min_size=1, max_size=4).map(".".join)
ANY_SUBJECT = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=4).map(".".join)
OWNER = st.integers(0, OWNERS - 1)
SID = st.sampled_from(["1", "2", "3", "10", "x"])

STEP = st.one_of(
    st.tuples(st.just("subscribe"), OWNER, SUBJECT | ANY_SUBJECT, SID, st.sampled_from(["", "q"])),
    st.tuples(st.just("unsubscribe"), OWNER, SID),
    st.tuples(st.just("leave"), OWNER),
    st.tuples(st.just("who"), ANY_SUBJECT),
)


def can_be_subscribed_to(subject: str) -> bool:
    tokens = subject.split(".")
    return "" not in tokens and ">" not in tokens[:-1]


def suits(pattern: str, subject: str) -> bool:
    wanted, has = pattern.split("."), subject.split(".")
    if "" in has:
        return False
    if wanted[-1] == ">":
        wanted.pop()
        if len(has) <= len(wanted):
            return False
        has = has[: len(wanted)]
    return len(wanted) == len(has) and all(
        one in ("*", other) for one, other in zip(wanted, has, strict=True)
    )


def has_wildcard(subject: str) -> bool:
    """Whether the NATS server refuses it as a message's: it is not to be delivered from here."""
    return bool({"*", ">"} & set(subject.split(".")))


class Model:
    def __init__(self) -> None:
        self.all: dict[tuple[int, str], str] = {}

    def subscribe(self, owner: int, subject: str, sid: str) -> bool:
        if not can_be_subscribed_to(subject) or (owner, sid) in self.all:
            return False
        self.all[owner, sid] = subject
        return True

    def unsubscribe(self, owner: int, sid: str) -> bool:
        return self.all.pop((owner, sid), None) is not None

    def leave(self, owner: int) -> None:
        self.all = {key: subject for key, subject in self.all.items() if key[0] != owner}

    def who(self, subject: str) -> list[tuple[int, bytes]]:
        return sorted(
            (owner, sid.encode())
            for (owner, sid), pattern in self.all.items()
            if suits(pattern, subject) and not has_wildcard(subject)
        )


@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, max_size=60))
def test_the_book_is_what_the_model_is(steps: list[tuple[Any, ...]]) -> None:
    book, model = Book(), Model()
    for what, *words in steps:
        if what == "subscribe":
            owner, subject, sid, queue = words
            assert book.subscribe(
                owner, subject.encode(), sid.encode(), queue.encode()
            ) == model.subscribe(owner, subject, sid)
        elif what == "unsubscribe":
            owner, sid = words
            assert book.unsubscribe(owner, sid.encode()) == model.unsubscribe(owner, sid)
        elif what == "leave":
            book.leave(*words)
            model.leave(*words)
        else:
            assert book.who(words[0].encode()) == model.who(*words)


@settings(max_examples=200, deadline=None)
@given(ANY_SUBJECT, ANY_SUBJECT)
def test_a_pattern_stands_for_the_subjects_that_suit_it(pattern: str, subject: str) -> None:
    book = Book()
    is_one = book.subscribe(0, pattern.encode(), b"1")
    assert is_one == can_be_subscribed_to(pattern)
    if is_one:
        assert book.who(subject.encode()) == (
            [(0, b"1")] if suits(pattern, subject) and not has_wildcard(subject) else []
        )


def test_the_tables_grow_and_shrink_with_thousands() -> None:
    book, model = Book(), Model()
    for i in range(3000):
        subject = f"t.{i % 50}.{('*', '>', f'x{i}')[i % 3]}"
        assert book.subscribe(i % OWNERS, subject.encode(), b"%d" % i)
        assert model.subscribe(i % OWNERS, subject, str(i))
    for i in range(0, 3000, 7):
        assert book.unsubscribe(i % OWNERS, b"%d" % i)
        model.unsubscribe(i % OWNERS, str(i))
    for i in range(0, 50, 3):
        for last in ("y", f"x{i}", "y.z"):
            assert book.who(f"t.{i}.{last}".encode()) == model.who(f"t.{i}.{last}")
    for owner in range(OWNERS):
        book.leave(owner)
    assert book.who(b"t.1.y") == []


def test_what_an_owner_had_is_forgotten_without_a_look_at_each_other_one() -> None:
    # Without a word in front of the wildcard all of them lie in one place, in whatever order the
    # tables have left them there.
    book = Book()
    count = 5000
    for i in range(count):
        assert book.subscribe(0, b"*.*.%d.*" % (i % 7), b"%d" % i, b"q%d" % i)
        assert book.subscribe(1, b"same", b"%d" % i)
        assert book.subscribe(2, b"same", b"%d" % i)
    for owner in (0, 1):
        book.leave(owner)
        assert book.steps < 4 * count
    assert book.who(b"a.b.3.c") == []
    assert len(book.who(b"same")) == count
