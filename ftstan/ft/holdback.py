"""Holding back for another member that was named as the successor: pure bookkeeping, part of the
standby.

Words can be forged. So a *spell* of holding back is bounded, whatever is heard: it goes on until
there was an attempt at the lock, or a time in which none was due.
"""

from __future__ import annotations

from ftstan.ft.deadlines import LONGEST_YIELD_S


class HoldBack:
    """Until when this node makes no attempt at the lock."""

    def __init__(self) -> None:
        self.until = float("-inf")
        self._most: float | None = None

    def named(self, seconds: float, now: float, *, due: bool) -> None:
        """Another member was named.

        ``seconds`` and ``due`` (whether an attempt is): see ``YieldTo`` and above.
        """
        if self._most is None or (now >= self.until and not due):
            self._most = now + LONGEST_YIELD_S
        if now < self._most:
            until = max(now + seconds, self.until) if seconds else now
            self.until = min(until, self._most)

    def followed(self) -> None:
        """A new owner sent a heartbeat."""
        self.until = float("-inf")

    def tried(self) -> None:
        """An attempt was answered."""
        self._most = None
