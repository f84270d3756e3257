"""Identifiers: their form, what one process shares, and that none comes twice."""

from __future__ import annotations

import itertools
import random
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from ftstan.wire.nuid import ALPHABET, COUNTER_LENGTH, LENGTH, PREFIX_LENGTH, Nuid
from tests.oracle.wiregen import few


def number(nuid: str) -> int:
    value = 0
    for character in nuid[PREFIX_LENGTH:]:
        value = value * len(ALPHABET) + ALPHABET.index(character)
    return value


@few
@given(st.integers())
def test_an_identifier_is_22_letters_and_digits(seed: int) -> None:
    nuid = Nuid(random.Random(seed).randrange).next()
    assert len(nuid) == LENGTH == 22
    assert set(nuid) <= set(ALPHABET)


@few
@given(st.integers())
def test_one_generator_keeps_its_first_twelve_characters_and_counts_upwards(seed: int) -> None:
    nuids = Nuid(random.Random(seed).randrange)
    made = [nuids.next() for _ in range(100)]
    assert len({nuid[:12] for nuid in made}) == 1
    assert made == sorted(set(made))
    steps = {number(b) - number(a) for a, b in itertools.pairwise(made)}
    assert len(steps) == 1
    assert 33 <= steps.pop() < 333


def test_the_same_randomness_gives_the_same_identifiers() -> None:
    a = Nuid(random.Random(7).randrange)
    b = Nuid(random.Random(7).randrange)
    assert [a.next() for _ in range(10)] == [b.next() for _ in range(10)]


def test_two_generators_share_nothing() -> None:
    assert Nuid().next()[:12] != Nuid().next()[:12]


def test_a_used_up_counter_changes_the_prefix_instead_of_repeating() -> None:
    draws = iter([*[0] * 12, 62**COUNTER_LENGTH - 40, 0, *[1] * 12, 5, 0])
    nuids = Nuid(lambda n: next(draws) % n)
    assert nuids.next() == "0" * 12 + "z" * 9 + ALPHABET[62 - 40 + 33]
    assert nuids.next() == "1" * 12 + "0" * 9 + "5"


def test_threads_never_get_the_same_identifier() -> None:
    nuids = Nuid()
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: [nuids.next() for _ in range(500)], range(8)))
    assert len({nuid for batch in made for nuid in batch}) == 4000
