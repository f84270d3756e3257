"""How far a batch goes: everything in the end, no more than the limit, nobody left waiting, every
range read once.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftstan.spark.offsets import FIRST, Offsets, Range, advance, capped, ranges

offsets = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 60))


def test_without_a_limit_a_batch_goes_to_the_latest() -> None:
    assert advance({"a": 3}, {"a": 9, "b": 4}, {"b": 2}, None) == {"a": 9, "b": 4}


def test_offsets_are_in_the_order_of_the_names_because_spark_compares_them_as_text() -> None:
    assert list(advance({"b": 1}, {"c": 9, "b": 2, "a": 3}, {}, None)) == ["b"]
    assert list(advance({"b": 1}, {"c": 9, "b": 2, "a": 3}, {"c": 1, "a": 1}, None)) == [
        "a",
        "b",
        "c",
    ]


def test_a_limit_is_shared_in_proportion_and_a_small_channel_gets_its_turn() -> None:
    assert advance({"a": 1, "b": 1}, {"a": 601, "b": 401}, {}, 10) == {"a": 7, "b": 5}
    assert advance({"a": 1, "b": 1}, {"a": 1_000_001, "b": 2}, {}, 10) == {"a": 10, "b": 2}


def test_a_channel_that_has_gone_keeps_its_place() -> None:
    assert advance({"a": 5, "b": 2}, {"b": 3}, {}, None) == {"a": 5, "b": 3}
    assert ranges({"a": 5, "b": 2}, {"a": 5, "b": 3}) == [Range("b", 2, 3)]


def test_a_channel_that_has_begun_anew_is_read_from_its_first_message() -> None:
    end = advance({"a": 500}, {"a": 20}, {}, None)
    assert end == {"a": 20}
    assert ranges({"a": 500}, end) == [Range("a", FIRST, 20)]


def test_a_channel_that_has_begun_anew_and_is_empty_waits_for_its_first_message() -> None:
    end = advance({"a": 2}, {"a": 1}, {}, None)
    assert end == {"a": 1}
    assert ranges({"a": 2}, end) == []
    assert ranges(end, advance(end, {"a": 2}, {}, None)) == [Range("a", 1, 2)]


def test_a_channel_that_has_appeared_is_read_from_its_first_message() -> None:
    assert ranges({"a": 5}, {"a": 5, "b": 70}) == [Range("b", FIRST, 70)]


def test_a_stream_of_what_is_there_now_ends_there() -> None:
    assert capped({"a": 9, "b": 4, "c": 2}, {"a": 7, "b": 6}, {}) == {"a": 7, "b": 4}
    assert capped({"a": 9}, {"a": 7}, {"a": 8}) == {"a": 8}
    assert capped({"a": 3}, {"a": 7}, {"a": 8}) == {"a": 3}


@given(offsets, offsets, offsets, st.integers(1, 80))
def test_every_batch_keeps_to_its_limit_and_the_last_one_reaches_the_latest(
    start: Offsets, latest: Offsets, firsts: Offsets, most: int
) -> None:
    firsts = {channel: min(firsts.get(channel, 1), end) for channel, end in latest.items()}
    at = start
    for _ in range(6 * 60 + 2):
        end = advance(at, latest, firsts, most)
        sizes = 0
        for part in ranges(at, end):
            begin = part.start or (1 if part.channel in at else firsts[part.channel])
            sizes += part.end - begin
        assert sizes <= most
        if end == at:
            break
        at = end
    assert {channel: at[channel] for channel in latest if channel in at} == {
        c: e for c, e in latest.items() if c in at
    }
    assert all(firsts[channel] == latest[channel] for channel in latest.keys() - at.keys())
