"""The clock of a node's local store: that of the node which leads.

Messages expire by the leader's word. A follower whose own clock is wrong must not drop what the
leader still has: it may be the next one to lead. Nor does it believe a word that is far ahead of
its own clock: where the log shares an account with clients, it may be anybody's. Pure, but for the
clock below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ftstan.base.clock import Clock

_MOST_AHEAD_NS: Final = 600 * 1_000_000_000


class LeaderClock:
    """Implements ``Clock``. Belongs to the data plane's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard_ns = 0
        self.leads = False
        """Whether this node's own clock is the one."""

    def hear(self, wall_ns: int) -> None:
        """What the leader's clock shows; 0 if it does not say.

        The last word counts, not the latest time: a clock that was ahead may have been set back.
        """
        if wall_ns:
            self._heard_ns = wall_ns

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch; 0, at which nothing expires, before the leader is
        heard.
        """
        own = self._clock.wall_ns()
        return own if self.leads else min(self._heard_ns, own + _MOST_AHEAD_NS)

    def mono(self) -> float:
        """As the clock below."""
        return self._clock.mono()
