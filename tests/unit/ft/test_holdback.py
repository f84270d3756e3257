"""Holding back for a successor that was named: as long as was said, and bounded whoever speaks."""

from __future__ import annotations

from ftstan.ft.deadlines import LONGEST_YIELD_S
from ftstan.ft.holdback import HoldBack

NOW = 1000.0


def test_a_member_holds_back_for_as_long_as_was_said() -> None:
    found = HoldBack()
    assert found.until < 0
    found.named(3.0, NOW, due=False)
    assert found.until == NOW + 3.0


def test_a_shorter_time_ends_no_longer_one_and_zero_does() -> None:
    found = HoldBack()
    found.named(5.0, NOW, due=False)
    found.named(1.0, NOW + 1, due=True)
    assert found.until == NOW + 5.0
    found.named(6.0, NOW + 1, due=True)
    assert found.until == NOW + 7.0
    found.named(0, NOW + 2, due=True)
    assert found.until == NOW + 2.0


def test_a_new_owner_ends_it() -> None:
    found = HoldBack()
    found.named(5.0, NOW, due=False)
    found.followed()
    assert found.until == float("-inf")


def test_a_spell_is_bounded_whatever_is_said() -> None:
    """A member that is due to ask for the lock, and is told again and again to wait."""
    found = HoldBack()
    for second in range(40):
        found.named(4.0, NOW + second, due=True)
    assert found.until == NOW + LONGEST_YIELD_S
    found.named(1e9, NOW + 40, due=True)
    assert found.until == NOW + LONGEST_YIELD_S


def test_a_spell_is_bounded_at_once_by_a_long_word() -> None:
    found = HoldBack()
    found.named(1e9, NOW, due=False)
    assert found.until == NOW + LONGEST_YIELD_S
    # Right at the end of it nothing is put off any more.
    found.named(1e9, NOW + LONGEST_YIELD_S, due=True)
    assert found.until == NOW + LONGEST_YIELD_S


def test_a_spell_is_over_when_the_lock_was_asked_for() -> None:
    found = HoldBack()
    found.named(1e9, NOW, due=True)
    found.tried()
    found.named(1e9, NOW + 1, due=True)
    assert found.until == NOW + 1 + LONGEST_YIELD_S


def test_a_spell_is_over_when_no_attempt_was_due_behind_it() -> None:
    found = HoldBack()
    found.named(5.0, NOW, due=True)
    # Not before its end, though nothing is due.
    found.named(1e9, NOW + 4, due=False)
    assert found.until == NOW + LONGEST_YIELD_S
    found.named(1e9, NOW + LONGEST_YIELD_S, due=False)
    assert found.until == NOW + 2 * LONGEST_YIELD_S
