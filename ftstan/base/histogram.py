"""A histogram that one thread fills and others read: counts by upper bound, for latencies that
metrics show.

No clock and no lock: whoever measures gives seconds, and a reader may see an observation's count
before its sum.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

#: Upper bounds in seconds, from a page cache to a storage that is about to be given up.
LATENCY_BOUNDS: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)


class Histogram:
    """Observations by size; ``sum`` is their total."""

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BOUNDS) -> None:
        """``bounds``: ascending; what is above the last one counts, too."""
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one observation."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[int]:
        """For each bound the observations up to it, and last the number of all."""
        total = 0
        out = []
        for count in self._counts:
            total += count
            out.append(total)
        return out
