"""Forecasts: a straight line to each limit, told in a sentence."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import ConfigError
from ftstan.config.options import ChannelLimits
from ftstan.spark.queries.forecasting import Forecast, Usage, forecast, limits_of

if TYPE_CHECKING:
    from pathlib import Path

NOW = dt.datetime(2026, 11, 23, 12, 0, tzinfo=dt.UTC)
DAY = 86_400
#: A million messages of 100 bytes, 100,000 of them within the last day.
ORDERS = Usage(
    "orders", 1_000_000, 100_000_000, NOW - dt.timedelta(days=10), 100_000, 10_000_000, DAY
)
HOUR_NS = 3600 * 10**9


def _forecast(limits: ChannelLimits, usage: Usage = ORDERS) -> dict[str, Forecast]:
    return {one.limit: one for one in forecast(usage, limits, NOW)}


def test_a_limit_of_messages_is_reached_on_a_named_day() -> None:
    one = _forecast(ChannelLimits(max_msgs=1_300_000, max_bytes=0))["max_msgs"]
    assert one.fills_at == NOW + dt.timedelta(days=3)
    assert one.per_second == pytest.approx(100_000 / DAY)
    assert one.says == (
        "orders fills its limit of 1,300,000 messages on Thursday 2026-11-26 12:00 UTC; then the "
        "oldest messages go"
    )


def test_bytes_count_with_what_a_server_adds_to_each_message() -> None:
    one = _forecast(ChannelLimits(max_msgs=0, max_bytes=249_000_000))["max_bytes"]
    assert one.used == 166_000_000
    assert one.fills_at == NOW + dt.timedelta(days=5)


def test_a_channel_at_its_limit_is_told_so() -> None:
    one = _forecast(ChannelLimits(max_msgs=1_000_000, max_bytes=0))["max_msgs"]
    assert (one.fills_at, one.says) == (
        NOW,
        "orders is at its limit of 1,000,000 messages: the oldest messages go",
    )


def test_a_channel_that_nothing_comes_to_does_not_fill() -> None:
    quiet = replace(ORDERS, recent_messages=0, recent_payload=0)
    one = _forecast(ChannelLimits(max_msgs=2_000_000, max_bytes=0), quiet)["max_msgs"]
    assert (one.fills_at, one.says) == (
        None, "orders does not fill its limit of 2,000,000 messages: nothing came lately",
    )  # fmt: skip


def test_a_maximum_age_may_keep_a_channel_below_its_limit() -> None:
    limits = ChannelLimits(max_msgs=2_000_000, max_bytes=0, max_age=15 * 24 * HOUR_NS)
    found = _forecast(limits)
    assert found["max_msgs"].fills_at is None
    assert found["max_msgs"].says.endswith("at this rate what is old goes before")
    assert found["max_age"].fills_at == NOW + dt.timedelta(days=5)
    assert found["max_age"].says.startswith(
        "orders fills its limit of an age of 15 days, 0:00:00 on Saturday 2026-11-28"
    )


def test_a_rate_so_low_that_no_calendar_has_the_day_is_never() -> None:
    slow = replace(ORDERS, messages=1, recent_messages=1, recent_payload=1)
    assert _forecast(ChannelLimits(max_msgs=10**15, max_bytes=0), slow)["max_msgs"].fills_at is None


def test_what_is_unlimited_has_no_row() -> None:
    assert _forecast(ChannelLimits(max_msgs=0, max_bytes=0)) == {}


def test_limits_come_from_the_defaults_a_file_and_options_the_last_word_wins(
    tmp_path: Path,
) -> None:
    usual = limits_of("", {}).of(b"orders")
    assert (usual.max_msgs, usual.max_bytes, usual.max_age) == (1_000_000, 1_024_000_000, 0)
    path = tmp_path / "server.conf"
    path.write_text(
        'streaming { store_limits { max_msgs: 500, channels { "orders.*" { max_age: "2h" } } } }\n'
    )
    limits = limits_of(str(path), {})
    assert limits.of(b"other").max_msgs == 500
    assert (limits.of(b"orders.a").max_msgs, limits.of(b"orders.a").max_age) == (500, 2 * HOUR_NS)
    limits = limits_of(
        str(path), {"": {"max_bytes": 7}, "orders.*": {"max_age": 60, "max_msgs": 0}}
    )
    assert (limits.of(b"other").max_msgs, limits.of(b"other").max_bytes) == (500, 7)
    assert (limits.of(b"orders.a").max_age, limits.of(b"orders.a").max_msgs) == (60 * 10**9, 0)


def test_a_limit_that_does_not_exist_and_a_file_that_is_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no limit max_messages"):
        limits_of("", {"orders": {"max_messages": 5}})
    with pytest.raises(ConfigError, match="nowhere"):
        limits_of(str(tmp_path / "nowhere.conf"), {})
