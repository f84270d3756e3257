"""When a follower may want to lead: the leader has been silent for a while. Pure, time is given.

Safety does not depend on it: two nodes that want to lead at once append one leader record each, and
the stream takes one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

#: Seconds of silence, drawn anew after each sign of life: nodes that differ do not stand together.
SHORTEST_S: Final = 0.6
LONGEST_S: Final = 1.0
#: A node that has just started listens for longer.
FIRST_S: Final = 1.5
#: Behind the word of a leader that it stops.
_FAREWELL_S: Final = 0.1
#: ... and that another node shall follow: that one may have to read the log first. If it has died
#: just now, nobody leads for so long.
YIELD_S: Final = 3.0
#: A turn that comes so late was preceded by a pause, or by work: what came meanwhile is unread.
LATE_S: Final = 0.3


class Silence:
    """``now`` is in seconds of ``Clock.mono``."""

    def __init__(self, rng: random.Random, now: float) -> None:
        self._rng = rng
        self._expected = now
        self._due = now + FIRST_S + rng.uniform(0.0, LONGEST_S - SHORTEST_S)

    @property
    def due(self) -> float:
        """When it has lasted long enough."""
        return self._due

    def heard(self, now: float) -> None:
        """The leader gave a sign of life: a beat, or an entry of the log."""
        self._due = max(self._due, now + self._rng.uniform(SHORTEST_S, LONGEST_S))

    def leaves(self, now: float) -> None:
        """The leader said that it stops."""
        self._due = now + self._rng.uniform(0.0, _FAREWELL_S)

    def yields(self, now: float) -> None:
        """The leader said that it stops, and that another node shall follow."""
        self._due = now + YIELD_S + self._rng.uniform(0.0, LONGEST_S - SHORTEST_S)

    def look_at(self, when: float) -> None:
        """This node will look at ``when``, or before."""
        self._expected = when

    def turn(self, now: float) -> None:
        """This node looks. If it comes late, silence begins anew."""
        if now - self._expected > LATE_S:
            self.heard(now)
        self._expected = now

    def is_long(self, now: float) -> bool:
        """Whether somebody else should lead."""
        return now >= self._due
