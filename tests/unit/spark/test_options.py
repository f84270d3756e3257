"""Options of the data source and filters of a query: what they mean, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from ftstan.base.errors import ConfigError
from ftstan.spark.log import EVERYTHING, MAX_TIME, MIN_TIME, Bounds
from ftstan.spark.options import BATCH, ReadOptions, nanoseconds
from ftstan.spark.places import kind_of
from ftstan.spark.pushdown import pushed
from ftstan.spark.resolve import ENDLESS

TIMES = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001  Hypothesis


def options(**given_: Any) -> ReadOptions:
    return ReadOptions.of({"path": "/nss"} | {name: str(value) for name, value in given_.items()})


def test_without_options_everything_is_read() -> None:
    o = options()
    assert o.bounds("orders") == EVERYTHING
    assert o.wants("orders")
    assert (o.fail_on_data_loss, o.allow_unconfirmed, o.push_filters, o.strict) == (
        True,
        False,
        False,
        False,
    )


def test_names_of_options_are_read_in_any_case() -> None:
    assert ReadOptions.of({"PATH": "/nss", "failondataloss": "False"}).fail_on_data_loss is False


def test_offsets_are_from_inclusive_to_exclusive() -> None:
    o = options(
        startingOffsets='{"orders": 5, "audit": -2}', endingOffsets='{"orders": 9, "audit": -1}'
    )
    assert o.bounds("orders") == Bounds(first=5, last=8)
    assert o.bounds("audit") == o.bounds("other") == Bounds(first=1, last=ENDLESS)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1700000000123", 1_700_000_000_123_000_000),
        ("-1", -1_000_000),
        ("1970-01-01T00:00:00.000001Z", 1000),
        ("1969-12-31T23:59:59.999999", -1000),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000_000_000_000),
    ],
)
def test_a_time_is_milliseconds_or_an_iso_time(text: str, ns: int) -> None:
    assert options(startingTimestamp=text).bounds("orders").since == ns
    assert options(endingTimestamp=text).bounds("orders").until == ns - 1


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        ({"path": ""}, "which datastore"),
        ({"startingOffsets": "first"}, "startingOffsets is 'first'"),
        ({"startingOffsets": '{"orders": "5"}'}, "startingOffsets is"),
        ({"startingOffsets": '{"orders": true}'}, "startingOffsets is"),
        ({"startingOffsets": '{"orders": -3}'}, "startingOffsets is"),
        ({"startingOffsets": '{"orders": -1}'}, "cannot start at latest"),
        ({"endingOffsets": "earliest"}, "cannot end at earliest"),
        ({"endingOffsets": '{"orders": -2}'}, "cannot end at earliest"),
        ({"startingTimestamp": "noon"}, "startingTimestamp is 'noon'"),
        ({"subscribe": " , "}, "subscribe names no channel"),
        ({"subscribePattern": "("}, "subscribePattern '\\('"),
        ({"minPartitions": "0"}, "minPartitions is '0'"),
        ({"maxPartitionBytes": "5x"}, "maxPartitionBytes is '5x'"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss is 'maybe'"),
        ({"mode": "DROPMALFORMED"}, "mode is 'DROPMALFORMED'"),
        ({"frobnicate": "1"}, 'no option "frobnicate"'),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_hint(given_: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        ReadOptions.of({"path": "/nss"} | given_)
    assert caught.value.hint


@pytest.mark.parametrize("name", BATCH)
def test_a_misspelt_option_is_answered_with_the_right_one(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ReadOptions.of({f"{name[:2]}{name[3:]}x": "1"})
    assert caught.value.hint == f"did you mean {name}?"


def test_a_size_has_units() -> None:
    assert options(maxPartitionBytes="64m").max_partition_bytes == 64 << 20
    assert options(maxPartitionBytes=1000).max_partition_bytes == 1000


def test_a_place_that_is_not_there_is_one_line(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        kind_of(str(tmp_path / "nowhere"))
    (tmp_path / "_delta_log").mkdir()
    assert kind_of(str(tmp_path)) == "delta"


# ---- filters
# --------------------------------------------------------------------------------------------------


def matches(f: Filter, value: Any) -> bool:
    """What a filter says of a value of its column, as Spark sees it."""
    match f:
        case EqualTo() | EqualNullSafe():
            return bool(value == f.value)
        case GreaterThan():
            return bool(value > f.value)
        case GreaterThanOrEqual():
            return bool(value >= f.value)
        case LessThan():
            return bool(value < f.value)
        case LessThanOrEqual():
            return bool(value <= f.value)
        case In():
            return value in f.value
    raise TypeError(f)


COMPARISONS = st.sampled_from(
    (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
)


def within(bounds: Bounds, sequence: int, ns: int) -> bool:
    return bounds.first <= sequence <= bounds.last and bounds.since <= ns <= bounds.until


@given(
    COMPARISONS, st.integers(-5, 50), st.lists(st.integers(-5, 50), max_size=4), st.integers(1, 45)
)
def test_no_sequence_that_matches_is_left_out(
    kind: Any, value: int, others: list[int], sequence: int
) -> None:
    filters: list[Filter] = [kind(("sequence",), value), In(("sequence",), tuple(others))]
    for some in ([filters[0]], [filters[1]], filters):
        if all(matches(f, sequence) for f in some):
            assert within(pushed(some).bounds, sequence, 0)


@given(COMPARISONS, TIMES, st.integers(-3000, 3000))
def test_no_time_that_matches_is_left_out_and_bounds_are_as_tight_as_a_microsecond(
    kind: Any, value: datetime, distance: int
) -> None:
    ns = nanoseconds(value) + distance
    # The column holds the microsecond that the message's nanosecond lies in.
    column = ns // 1000
    bounds = pushed([kind(("timestamp",), value)]).bounds
    seen = matches(kind(("timestamp",), nanoseconds(value) // 1000), column)
    assert within(bounds, 1, ns) == seen


def test_filters_of_the_channel_choose_channels() -> None:
    found = pushed(
        [
            In(("channel",), ("orders", "audit")),
            StringStartsWith(("channel",), "o"),
            IsNotNull(("channel",)),
        ]
    )
    assert [name for name in ("orders", "audit", "other") if found.wants(name)] == ["orders"]
    assert not pushed([EqualTo(("channel",), "a"), EqualTo(("channel",), "b")]).wants("a")


def test_what_is_not_understood_leaves_everything_possible() -> None:
    filters = [
        Not(EqualTo(("sequence",), 5)),
        EqualTo(("data",), b"x"),
        GreaterThan(("a", "sequence"), 5),
    ]
    assert pushed(filters).bounds == EVERYTHING
    assert pushed([EqualTo(("timestamp",), "noon")]).bounds == Bounds(
        since=MIN_TIME, until=MAX_TIME
    )
