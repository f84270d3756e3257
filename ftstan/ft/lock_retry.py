"""When a standby asks for the lock again: pure bookkeeping, in which members differ by chance.

``Polls``: while an owner lives; not in a mixed group, since original servers expect their own
cadence. ``BackOff``: after this server got the lock and could not become active with it. After
silence ``standby.py`` asks at once; ``lock_attempt.py`` is the attempt itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.ft.deadlines import FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S
from ftstan.ft.timing import POLL_SPREAD, SPREAD, spread

if TYPE_CHECKING:
    import random

    from ftstan.ft.timing import FtTiming


class Polls:
    """When to ask for the lock again: ``at``, ``None`` for never."""

    def __init__(self, rng: random.Random, timing: FtTiming) -> None:
        self._rng = rng
        self._timing = timing
        self._put_off = False
        self.at: float | None = None
        self.owner_has_lock = True
        """Whether the owner has it, as far as it says."""

    def retime(self, timing: FtTiming) -> None:
        """Plan by other intervals, from the next poll on."""
        self._timing = timing

    def is_due(self, now: float) -> bool:
        """Whether the time has come."""
        return self.at is not None and now >= self.at

    def first(self, now: float) -> None:
        """Plan the first poll of a node that has just started."""
        self.at = now + spread(self._rng, self._timing.first_listen, SPREAD)

    def after(self, now: float, *, mixed: bool) -> None:
        """Plan the next poll one interval from now; none in a mixed group."""
        interval = (
            self._timing.poll_interval if self.owner_has_lock else self._timing.hb_missed_interval
        )
        self.at = None if mixed else now + spread(self._rng, interval, POLL_SPREAD)

    def answered(self) -> None:
        """The last poll was answered."""
        self._put_off = False

    def heed(self, now: float, *, held: bool, mixed: bool) -> None:
        """An owner without the lock is alive all the same: once it is free, leave it time to take
        it.

        Words can be forged: they put off each poll once at most.
        """
        if held == self.owner_has_lock:
            return
        self.owner_has_lock = held
        before = self.at
        self.after(now, mixed=mixed)
        if before is not None and self.at is not None and (held or self._put_off):
            self.at = min(before, self.at)
        self._put_off = self._put_off or not held


class BackOff:
    """A pause before the lock is asked for again, twice as long each time: others should have it.

    ``until``: when it ends, ``None`` while there is none.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._seconds = FIRST_BACK_OFF_S
        self.until: float | None = None

    def begin(self, now: float) -> float:
        """Begin a pause; returns how many seconds it lasts."""
        pause = spread(self._rng, self._seconds, POLL_SPREAD)
        self.until = now + pause
        self._seconds = min(2 * self._seconds, LONGEST_BACK_OFF_S)
        return pause

    def is_over(self, now: float) -> bool:
        """Whether a pause has just ended."""
        if self.until is None or now < self.until:
            return False
        self.until = None
        return True
