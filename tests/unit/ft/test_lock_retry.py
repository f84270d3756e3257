"""When the lock is asked for again: which interval counts, and what a word of the owner changes."""

from __future__ import annotations

import random

from ftstan.ft.deadlines import FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S
from ftstan.ft.lock_retry import BackOff, Polls
from ftstan.ft.timing import FtTiming

TIMING = FtTiming(poll_interval=10.0, hb_missed_interval=100.0, first_listen=1.0)
NOW = 1000.0


class Middle(random.Random):
    """Draws nothing away from the nominal value."""

    def random(self) -> float:
        return 0.0


def polls() -> Polls:
    return Polls(Middle(), TIMING)


def test_nothing_is_due_before_anything_was_planned() -> None:
    assert not polls().is_due(float("inf"))


def test_a_poll_is_due_from_its_time_on() -> None:
    found = polls()
    found.first(NOW)
    assert found.at == NOW + 1.0
    assert not found.is_due(NOW + 0.999)
    assert found.is_due(NOW + 1.0)


def test_an_owner_with_the_lock_is_polled_quickly_and_one_without_it_slowly() -> None:
    found = polls()
    found.after(NOW, mixed=False)
    assert found.at == NOW + 10.0
    found.owner_has_lock = False
    found.after(NOW, mixed=False)
    assert found.at == NOW + 100.0


def test_a_mixed_group_is_never_polled() -> None:
    found = polls()
    found.after(NOW, mixed=True)
    assert found.at is None
    found.heed(NOW, held=False, mixed=True)
    assert found.at is None


def test_other_intervals_count_from_the_next_poll_on() -> None:
    found = polls()
    found.after(NOW, mixed=False)
    found.retime(FtTiming(poll_interval=3.0))
    assert found.at == NOW + 10.0
    found.after(NOW, mixed=False)
    assert found.at == NOW + 3.0


def test_an_owner_that_says_what_is_known_puts_nothing_off() -> None:
    found = polls()
    found.after(NOW, mixed=False)
    found.heed(NOW + 9, held=True, mixed=False)
    assert found.at == NOW + 10.0


def test_an_owner_without_the_lock_puts_each_poll_off_once_at_most() -> None:
    """Forged words that say it in turn must not keep a standby from the lock for ever."""
    found = polls()
    found.after(NOW, mixed=False)
    found.heed(NOW + 1, held=False, mixed=False)
    assert found.at == NOW + 101.0
    found.heed(NOW + 2, held=True, mixed=False)
    assert found.at == NOW + 12.0
    found.heed(NOW + 3, held=False, mixed=False)
    assert found.at == NOW + 12.0
    found.heed(NOW + 4, held=True, mixed=False)
    assert found.at == NOW + 12.0
    found.answered()
    found.heed(NOW + 5, held=False, mixed=False)
    assert found.at == NOW + 105.0


def test_an_owner_that_got_the_lock_brings_the_next_poll_forward_and_puts_none_off() -> None:
    found = polls()
    found.owner_has_lock = False
    found.after(NOW, mixed=False)
    found.heed(NOW + 1, held=True, mixed=False)
    assert found.at == NOW + 11.0
    found.owner_has_lock = False
    found.at = NOW + 2.0
    found.heed(NOW + 1, held=True, mixed=False)
    assert found.at == NOW + 2.0


def is_pausing(found: BackOff) -> bool:
    return found.until is not None


def test_each_pause_is_twice_as_long_up_to_the_longest_and_ends_once() -> None:
    found = BackOff(Middle())
    assert not found.is_over(float("inf"))
    nominal = FIRST_BACK_OFF_S
    for _ in range(10):
        assert found.begin(NOW) == nominal
        assert found.until == NOW + nominal
        assert not found.is_over(NOW + nominal - 0.001)
        assert found.is_over(NOW + nominal)
        assert not is_pausing(found)
        assert not found.is_over(NOW + nominal)
        nominal = min(2 * nominal, LONGEST_BACK_OFF_S)
    assert nominal == LONGEST_BACK_OFF_S
