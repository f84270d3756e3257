"""A wall clock that is set is told of once for each step.

Corrections and time that passes are not.
"""

from __future__ import annotations

from ftstan.base.clock import Steps

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
