"""The clocks: the only module that reads them, so that every other module can be run under a
simulated one.

``wall_ns`` stamps messages and records; ``mono`` orders timers. Code below ``server.py`` receives a
``Clock`` and never imports ``time``.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of time.

    ``wall_ns``: nanoseconds since the Unix epoch; ``mono``: seconds, counts system suspension.
    """

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""
        ...

    def mono(self) -> float:
        """Seconds on a clock that never steps back and goes on while the machine is suspended."""
        ...


#: 2262-01-01: nanoseconds in 64 bits end in April of that year, and limits of age are added to it.
LATEST_NS = 9_214_646_400_000_000_000


class SystemClock:
    """The machine's clocks.

    ``CLOCK_BOOTTIME``, not ``CLOCK_MONOTONIC``: the latter stands still during suspension.
    """

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch, ``LATEST_NS`` where the clock is set behind that."""
        try:
            return min(time.time_ns(), LATEST_NS)
        except OverflowError:
            return LATEST_NS

    def mono(self) -> float:
        """Seconds since boot, suspension included."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)


class Steps:
    """Tells when the wall clock was set. Pure; ``look`` is to be called often."""

    LEAST_S = 2.0
    """Smaller steps are corrections."""

    def __init__(self) -> None:
        self._offset: float | None = None

    def look(self, wall_ns: int, mono: float) -> str:
        """A line about a step since the last call, empty if there was none; ``mono`` in seconds."""
        offset = wall_ns / 1e9 - mono
        before = self._offset
        self._offset = offset
        if before is None or abs(offset - before) < self.LEAST_S:
            return ""
        step = offset - before
        if step > 0:
            return f"the clock of this host was set {step:.0f} s ahead"
        return (
            f"the clock of this host was set back by {-step:.0f} s: messages of channels that "
            "are written to keep the "
            "time of the newest one stored until the clock is there again"
        )


class ManualClock:
    """A clock that moves only when told to: for tests and simulations."""

    def __init__(self, wall_ns: int = 1_700_000_000_000_000_000, mono: float = 1000.0) -> None:
        self._wall_ns = wall_ns
        self._mono = mono

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""
        return self._wall_ns

    def mono(self) -> float:
        """Seconds."""
        return self._mono

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass on both clocks."""
        self._wall_ns += round(seconds * 1e9)
        self._mono += seconds
