"""A wall clock that is set is told of once for each step.

Corrections and time that passes are not.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ftstan.base.clock import LATEST_NS, Steps, SystemClock

if TYPE_CHECKING:
    import pytest

HOUR_NS = 3_600_000_000_000


def test_a_clock_that_went_ahead_and_came_back_is_told_of() -> None:
    steps = Steps()
    wall = 1_700_000_000_000_000_000
    mono = 5.0
    assert steps.look(wall, mono) == ""
    assert steps.look(wall + 250_000_000, mono + 0.25) == ""
    assert steps.look(wall + HOUR_NS, mono + 0.5) == "the clock of this host was set 3600 s ahead"
    assert steps.look(wall + HOUR_NS + 250_000_000, mono + 0.75) == ""
    assert steps.look(wall, mono + 1).startswith("the clock of this host was set back by 3600 s: ")
    assert steps.look(wall + 1_500_000_000, mono + 1.5) == ""


def test_a_clock_behind_the_end_of_64_bits_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    def overflows() -> int:
        raise OverflowError("timestamp too large to convert to C _PyTime_t")

    monkeypatch.setattr(time, "time_ns", overflows)
    assert SystemClock().wall_ns() == LATEST_NS
    monkeypatch.setattr(time, "time_ns", lambda: 2**63 - 1)
    assert SystemClock().wall_ns() == LATEST_NS
