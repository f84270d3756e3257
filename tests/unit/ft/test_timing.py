"""Intervals and the rate limit of repeated lines."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.base.errors import ConfigError
from ftstan.base.ratelimit import RateLimit
from ftstan.config.options import FtOptions
from ftstan.config.units import MILLISECOND, SECOND
from ftstan.ft.timing import FtTiming, spread, timing_of


@given(st.integers(), st.floats(0.001, 100), st.sampled_from([0.1, 0.2]))
def test_a_drawn_interval_stays_within_its_share(seed: int, nominal: float, share: float) -> None:
    drawn = spread(random.Random(seed), nominal, share)
    assert nominal * (1 - share) <= drawn <= nominal * (1 + share)


def test_members_draw_different_intervals_on_both_sides() -> None:
    drawn = [spread(random.Random(seed), 1.0, 0.1) for seed in range(50)]
    assert len(set(drawn)) == 50
    assert min(drawn) < 1 < max(drawn)


def test_the_defaults_are_those_of_the_original() -> None:
    assert (FtTiming().hb_interval, FtTiming().hb_missed_interval) == (1.0, 1.25)


def test_suspicion_must_be_slower_than_the_heartbeat() -> None:
    with pytest.raises(ConfigError) as caught:
        FtTiming(hb_interval=1.0, hb_missed_interval=1.05)
    assert str(caught.value) == (
        "ft: the missed heartbeat interval needs to be at least 10% of the heartbeat interval "
        "(hb=1s missed hb=1.05s"
    )
    FtTiming(hb_interval=0.2, hb_missed_interval=0.22)
    with pytest.raises(ConfigError, match=r"\(hb=1m30s missed hb=500ms"):
        FtTiming(hb_interval=90, hb_missed_interval=0.5)


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_an_interval_must_be_a_positive_time(value: float) -> None:
    with pytest.raises(ConfigError, match="poll_interval"):
        FtTiming(poll_interval=value)


def test_a_repeated_line_comes_at_once_then_ever_more_rarely() -> None:
    limit = RateLimit()
    shown = [tenth / 10 for tenth in range(3000) if limit.allow(tenth / 10)]
    assert shown == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]


def test_after_a_long_quiet_time_the_line_comes_at_once_again() -> None:
    limit = RateLimit()
    now = 0.0
    for now in (0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0):
        assert limit.allow(now)
    assert limit.allow(now + 60 + 121)
    assert limit.allow(now + 60 + 122)
    assert not limit.allow(now + 60 + 123)


@pytest.mark.parametrize(("is_network", "poll"), [(False, 0.05), (True, 0.5)])
def test_intervals_are_the_operators_and_polls_are_slower_on_network_storage(
    poll: float, *, is_network: bool
) -> None:
    said = FtOptions(hb_interval=2 * SECOND, hb_missed_interval=3 * SECOND, steal_after=90 * SECOND)
    timing = timing_of(said, is_network=is_network)
    assert timing == FtTiming(2.0, 3.0, poll, steal_after=90.0)
    chosen = timing_of(FtOptions(poll_interval=20 * MILLISECOND), is_network=is_network)
    assert chosen.poll_interval == 0.02


@pytest.mark.parametrize(
    "name", ["hb_interval", "poll_interval", "first_listen", "try_deadline", "look_interval"]
)
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_every_interval_is_longer_than_zero_and_ends(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"ft: {name} must be longer than zero"):
        FtTiming(**{name: value})
