"""The in-flight table against a dictionary."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftstan.broker.inflight import InFlight

#: Sequences near each other, on the same slots of small tables, and at the ends of the range.
SEQUENCES = st.one_of(
    st.integers(1, 40),
    st.integers(1, 60).map(lambda n: n * 16),
    st.integers(1, 60).map(lambda n: n * 64 + 15),
    st.sampled_from([2**32, 2**63, 2**64 - 1]),
)
ADD = st.tuples(st.just("add"), SEQUENCES, st.integers(0, 50), st.integers(0, 3))
DISCARD = st.tuples(st.just("discard"), SEQUENCES, st.just(0), st.just(0))
CLEAR = st.tuples(st.just("clear"), st.just(1), st.just(0), st.just(0))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(ADD, ADD, ADD, DISCARD, DISCARD, CLEAR), max_size=120))
def test_it_holds_what_a_dictionary_would_hold(ops: list[tuple[str, int, int, int]]) -> None:
    table = InFlight()
    model = dict[int, tuple[int, int]]()
    for op, seq, expiry, count in ops:
        if op == "add":
            table.add(seq, expiry, count)
            model[seq] = (expiry, count)
        elif op == "discard":
            assert table.discard(seq) == (model.pop(seq, None) is not None)
        else:
            table.clear()
            model.clear()
        assert len(table) == table.used == len(model)
    rows = sorted((expiry, seq, count) for seq, (expiry, count) in model.items())
    assert table.items() == [(seq, expiry, count) for expiry, seq, count in rows]
    assert all(seq in table for seq in model)
    assert not any(seq in table for seq in range(100) if seq not in model)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(SEQUENCES, st.integers(0, 50)), st.integers(0, 50))
def test_due_is_everything_up_to_the_limit_in_order_and_the_earliest_of_the_rest(
    expiries: dict[int, int], limit: int
) -> None:
    table = InFlight()
    for seq, expiry in expiries.items():
        table.add(seq, expiry)
    due = sorted((e, s) for s, e in expiries.items() if e <= limit)
    later = [e for e in expiries.values() if e > limit]
    assert table.due(limit) == ([s for _, s in due], min(later, default=0))
    assert table.sequences() == sorted(expiries)


def test_a_window_that_moves_over_a_million_sequences_keeps_its_size() -> None:
    table = InFlight()
    for seq in range(1, 101):
        table.add(seq)
    # The oldest is never acknowledged: nothing may get slower or larger for that.
    for seq in range(101, 1_000_000, 997):
        table.add(seq)
        assert table.discard(seq)
    assert [s for s, _, _ in table.items()] == list(range(1, 101))


def test_in_a_moving_window_every_entry_has_its_own_slot_and_is_removed_without_a_search() -> None:
    table = InFlight()
    for seq in range(1, 5001):
        table.add(seq)
    for seq in range(5001, 100_000):
        assert table.discard(seq - 5000)
        table.add(seq)
        assert table.displaced == 0


def test_sequence_zero_does_not_exist() -> None:
    table = InFlight()
    assert 0 not in table
    assert not table.discard(0)
    with pytest.raises(ValueError, match="sequence 0"):
        table.add(0)


def test_only_entries_of_the_named_emit_are_made_due() -> None:
    table = InFlight()
    table.add(1, 500)
    assert table.expire_batch(7, 100) == 0
    assert table.items() == [(1, 500, 0)]
    assert table.expire_batch(0, 100) == 1
    assert table.items() == [(1, 100, 0)]


@pytest.mark.parametrize("step", [1, 2, 7, 16, 336, 1000, 1024, 4096, 10_000, 2**20, 2**20 + 1])
@pytest.mark.parametrize("size", [8, 100, 512, 1024, 5000])
def test_a_search_is_short_whatever_lies_between_the_sequences(step: int, size: int) -> None:
    """A member of a group of 1,024 has every 1,024th message."""
    for first in (1, 12_345, 2**40):
        table = InFlight()
        held = [first + i * step for i in range(size)]
        for seq in held:
            table.add(seq)
        # As the window moves on, and whatever is not there any more is looked for.
        for i, seq in enumerate(held):
            assert table.discard(seq)
            table.add(held[-1] + (i + 1) * step)
        steps = [table.steps(held[-1] + (i + 1) * step) for i in range(size)]
        assert sum(steps) <= 6 * size
        assert max(steps) <= 60
        assert max(table.steps(seq) for seq in held) <= 60 or step == 1


def test_a_message_that_is_never_acknowledged_does_not_make_a_window_slow() -> None:
    table = InFlight()
    table.add(1000)
    for seq in range(1001, 1400):
        table.add(seq)
    for seq in range(1001, 20_000):
        table.discard(seq)
        table.add(seq + 399)
    assert len(table) == 400
    assert table.steps(1000) <= 60
    assert max(table.steps(seq) for seq in range(20_399, 20_600)) <= 60


@pytest.mark.parametrize("seed", range(20))
def test_a_table_that_changes_its_mind_about_slots_still_holds_what_a_dictionary_would(
    seed: int,
) -> None:
    """Windows that crowd slots of their own choice, at the ends of the range, around entries that
    never leave.
    """
    rng = Random(seed)
    table = InFlight()
    model = dict[int, tuple[int, int]]()
    step = rng.choice([1, 2, 7, 16, 64, 1024, 2**20, 2**40])
    base = rng.choice([1, 12_345, 2**32 - 50, 2**63, 2**64 - 2**10])
    most = rng.choice([10, 40, 300])
    for turn in range(3000):
        draw = rng.random()
        seq = (base + rng.randrange(400) * step) % 2**64 or 1
        if draw < 0.03:
            seq = rng.choice([1, 2**32, 2**64 - 1, rng.randrange(1, 2**64)])
        if draw < 0.5 and len(model) < most:
            model[seq] = turn, turn % 4
            table.add(seq, *model[seq])
        elif draw < 0.999:
            if model and draw < 0.95:
                seq = rng.choice(list(model))
            assert table.discard(seq) == (model.pop(seq, None) is not None)
        else:
            table.clear()
            model.clear()
        if turn % 20 == 0:
            # What a removal relies on to end its search: how many are not in their own slots.
            assert table.displaced == sum(table.steps(s) > 1 for s in model)
            assert all(s in table for s in model)
    assert table.items() == [
        (s, e, c) for e, s, c in sorted((e, s, c) for s, (e, c) in model.items())
    ]


def test_entries_of_the_named_emit_count_as_sent_once_less() -> None:
    table = InFlight()
    table.add(1, 500)
    table.add(2, 500, 3)
    assert table.take_back(7) == []
    assert table.items() == [(1, 500, 0), (2, 500, 3)]
    assert table.take_back(0) == [1]
    assert table.items() == [(1, 500, 0), (2, 500, 2)]
