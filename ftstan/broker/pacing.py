"""Heartbeats that do not come together: those of many clients that came at one moment are spread
over their interval.

A few may go out at one time, so that a server with a few clients asks each exactly when the
original would. Of more than that each waits for the one before it, and all of them take half an
interval at most.
"""

from __future__ import annotations

from typing import Final

from ftstan.broker.constants import MILLISECOND

#: Heartbeats that may be due at one moment.
TOGETHER: Final = 32
#: Between two of more than these, where the interval leaves so much.
STEP: Final = MILLISECOND


class Pacing:
    """When the next heartbeats are due, in monotonic nanoseconds."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._next = 0
        """When one would be due if all of them came one step after the other."""

    def after_interval(self, now: int, clients: int) -> int:
        """When a heartbeat is due that is asked for now, of so many clients."""
        step = min(STEP, self._interval // (2 * max(clients, 1)))
        due = now + self._interval
        self._next = max(self._next, due - TOGETHER * step) + step
        if self._next > due + self._interval // 2:
            # The next ones go between those that have their time already.
            self._next = due
        return max(due, self._next)
