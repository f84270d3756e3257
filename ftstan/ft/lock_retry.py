"""When a standby asks for the lock again while an owner lives: pure bookkeeping.

``standby.py`` decides about attempts after silence, and about pauses after a refused activation.
Not in a mixed group: original servers expect their own cadence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
