"""Timers of the broker: one heap, no clock. Time comes in with ``run``."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: Callbacks of one run: the heartbeats of ten thousand clients may be due at one moment, and
#: publishers must not wait for all of them.
AT_ONCE: Final = 64
#: Cancelled timers that may stay in the heap, besides as many as there are others.
_KEPT: Final = 64


class Timer:
    """One callback that waits; what ``Timers.cancel`` takes."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback


class Timers:
    """Callbacks by time (monotonic ns).

    One that is not wanted any more is cancelled, or checks that itself.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._count = 0
        self._cancelled = 0
        """Timers in the heap that will never run."""
        self.next: int | None = None
        """When the earliest callback is due, or a cancelled one would have been."""

    def at(self, when: int, callback: Callable[[], None]) -> Timer:
        """Run ``callback`` at ``when`` or later."""
        timer = Timer(callback)
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, timer))
        self.next = self._heap[0][0]
        return timer

    def cancel(self, timer: Timer) -> None:
        """Never run it, and keep nothing of what it refers to; nothing happens if it ran."""
        if timer.callback is None:
            return
        timer.callback = None
        self._cancelled += 1
        # A timer may be set for a day from now, and be taken back a thousand times a second.
        if self._cancelled > _KEPT + len(self._heap) // 2:
            self._heap = [row for row in self._heap if row[2].callback is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0
            self.next = self._heap[0][0] if self._heap else None

    def run(self, now: int) -> bool:
        """Run what is due, the earliest first and no more than ``AT_ONCE``.

        Returns whether anything ran.

        Callbacks added meanwhile wait for the next run, and so does what was too much: ``next``
        stays in the past.
        """
        due: list[Timer] = []
        while self._heap and self._heap[0][0] <= now and len(due) < AT_ONCE:
            timer = heapq.heappop(self._heap)[2]
            if timer.callback is None:
                self._cancelled -= 1
            else:
                due.append(timer)
        self.next = self._heap[0][0] if self._heap else None
        ran = False
        for timer in due:
            callback = timer.callback
            timer.callback = None
            # One that ran before it in this run may have cancelled it.
            if callback is not None:
                callback()
                ran = True
        return ran

    def __len__(self) -> int:
        return len(self._heap)
