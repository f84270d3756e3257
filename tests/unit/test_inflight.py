"""The in-flight table against a dictionary."""

from __future__ import annotations

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


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(ADD, ADD, ADD, DISCARD, DISCARD, CLEAR), max_size=120))
def test_it_holds_what_a_dictionary_would_hold(ops: list[tuple[str, int, int, int]]) -> None:
    table, model = InFlight(), dict[int, tuple[int, int]]()
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


def test_a_window_that_moves_over_a_million_sequences_keeps_its_size() -> None:
    table = InFlight()
    for seq in range(1, 101):
        table.add(seq)
    # The oldest is never acknowledged: nothing may get slower or larger for that.
    for seq in range(101, 1_000_000, 997):
        table.add(seq)
        assert table.discard(seq)
    assert [s for s, _, _ in table.items()] == list(range(1, 101))


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
