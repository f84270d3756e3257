"""Patterns of channel names, judged by writing out every name that they match."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.wire.patterns import PatternSet, contains, covering, intersect, is_literal, matches

#: Patterns have at most three tokens, of which none is "c": with names of up to four tokens every
#: way to differ shows.
NAMES = [
    b".".join(tokens)
    for n in range(1, 5)
    for tokens in itertools.product((b"a", b"b", b"c"), repeat=n)
]

tokens = st.lists(st.sampled_from([b"a", b"b", b"*"]), min_size=1, max_size=3)
patterns = st.one_of(
    tokens.map(b".".join),
    st.tuples(tokens, st.just([b">"])).map(lambda t: b".".join(t[0][:2] + t[1])),
    st.just(b">"),
)


def written_out(pattern: bytes) -> set[bytes]:
    """The names that a pattern matches, by a way of its own."""
    words = {b"*": rb"[^.]+", b">": rb".+"}
    expression = rb"\.".join(words.get(token, re.escape(token)) for token in pattern.split(b"."))
    return {name for name in NAMES if re.fullmatch(expression, name)}


@pytest.mark.parametrize(
    ("pattern", "accepted", "refused"),
    [
        (b"foo", [b"foo"], [b"foo.a", b"Foo", b"fo"]),
        (b"foo.*", [b"foo.bar"], [b"foo", b"foo.bar.baz"]),
        (b"bar.>", [b"bar.a", b"bar.a.b"], [b"bar"]),
        (b">", [b"foo", b"a.b.c"], []),
        (b"*.zed", [b"foo.zed"], [b"zed", b"foo.zed.x"]),
    ],
)
def test_a_pattern_matches_as_a_nats_subject_does(
    pattern: bytes, accepted: list[bytes], refused: list[bytes]
) -> None:
    assert [name for name in accepted + refused if matches(pattern, name)] == accepted


@given(patterns)
def test_a_pattern_matches_the_names_that_are_written_out(pattern: bytes) -> None:
    assert {name for name in NAMES if matches(pattern, name)} == written_out(pattern)


@given(patterns, patterns)
def test_two_patterns_intersect_when_they_have_a_name_in_common(a: bytes, b: bytes) -> None:
    assert intersect(a, b) == bool(written_out(a) & written_out(b))
    assert intersect(a, b) == intersect(b, a)


@given(patterns, patterns)
def test_a_pattern_contains_another_when_it_matches_all_of_its_names(
    wide: bytes, narrow: bytes
) -> None:
    assert contains(wide, narrow) == (written_out(narrow) <= written_out(wide))


@given(st.lists(patterns, max_size=6))
def test_a_covering_matches_the_same_names_and_none_of_it_can_be_left_out(
    all_of_them: list[bytes],
) -> None:
    def names(some: tuple[bytes, ...]) -> set[bytes]:
        return set().union(*(written_out(pattern) for pattern in some))

    chosen = covering(all_of_them)
    assert names(chosen) == names(tuple(all_of_them))
    assert list(chosen) == [pattern for pattern in dict.fromkeys(all_of_them) if pattern in chosen]
    for pattern in chosen:
        assert not any(other != pattern and contains(other, pattern) for other in chosen)


@given(st.lists(patterns, max_size=5), patterns)
def test_a_set_of_patterns_says_what_its_patterns_say_one_by_one(
    some: list[bytes], asked: bytes
) -> None:
    together = PatternSet(some)
    assert together.match(asked) == any(matches(pattern, asked) for pattern in some)
    assert together.intersect(asked) == any(intersect(pattern, asked) for pattern in some)
    assert list(together) == list(dict.fromkeys(some))


def test_a_wildcard_is_a_whole_token() -> None:
    assert [p for p in (b"a", b"a*", b"*", b"a.>", b"a.*.b", b"a.b>") if is_literal(p)] == [
        b"a",
        b"a*",
        b"a.b>",
    ]
