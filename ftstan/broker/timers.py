"""Timers of the broker: one heap, no clock. Time comes in with ``run``."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: Callbacks of one run: the heartbeats of ten thousand clients may be due at one moment, and publishers must not wait
#: for all of them.
AT_ONCE: Final = 256


class Timers:
    """Callbacks by time (monotonic ns). A callback that is no longer wanted checks that itself when it runs."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.next: int | None = None
        """When the earliest callback is due."""

    def at(self, when: int, callback: Callable[[], None]) -> None:
        """Run ``callback`` at ``when`` or later."""
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, callback))
        self.next = self._heap[0][0]

    def run(self, now: int) -> bool:
        """Run what is due, the earliest first and no more than ``AT_ONCE``; returns whether anything ran.

        Callbacks added meanwhile wait for the next run, and so does what was too much: ``next`` stays in the past.
        """
        due: list[Callable[[], None]] = []
        while self._heap and self._heap[0][0] <= now and len(due) < AT_ONCE:
            due.append(heapq.heappop(self._heap)[2])
        self.next = self._heap[0][0] if self._heap else None
        for callback in due:
            callback()
        return bool(due)

    def __len__(self) -> int:
        return len(self._heap)
