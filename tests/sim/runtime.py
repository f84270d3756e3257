"""What a simulated process runs in: threads that move only when told to, an event loop, and a clock
of its machine.

Threads are greenlets: a pause can fall between any two storage calls, and everything follows from
the seed. The event loop is asyncio's own with time that is given to it; it never waits for
anything.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent, greenlet

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from ftstan.base.clock import ManualClock

_SPINS = 10_000


class MachineClock:
    """The clocks of one machine, which stand still while the whole machine does.

    ``true``: the time of the world.
    """

    def __init__(self, true: ManualClock) -> None:
        self._true = true
        self._lost = 0.0
        self._stopped_at: float | None = None

    def mono(self) -> float:
        """Seconds."""
        now = self._true.mono() if self._stopped_at is None else self._stopped_at
        return now - self._lost

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""
        return self._true.wall_ns() - round((self._true.mono() - self.mono()) * 1e9)

    def stop(self) -> None:
        """The machine stands still, its clocks too."""
        if self._stopped_at is None:
            self._stopped_at = self._true.mono()

    def go_on(self) -> None:
        """The machine goes on from where it stood."""
        if self._stopped_at is not None:
            self._lost += self._true.mono() - self._stopped_at
            self._stopped_at = None


class Fiber:
    """A thread of a simulated process. It runs until it parks, or until it is out of its budget."""

    def __init__(self, name: str, target: Callable[[], None]) -> None:
        self.name = name
        self.over = False
        self._target = target
        self._ready: Callable[[], bool] | None = None
        self._greenlet = greenlet(self._run)

    @property
    def runnable(self) -> bool:
        """Whether it has something to do."""
        return not self.over and (self._ready is None or self._ready())

    def resume(self, error: BaseException | None = None) -> None:
        """Let it run, or raise ``error`` where it stands.

        What ends it with an error is raised here.
        """
        self._greenlet.parent = getcurrent()
        if error is None:
            self._greenlet.switch()
        elif self._greenlet:
            self._greenlet.throw(error)
        else:
            self.over = True

    def park(self, ready: Callable[[], bool] | None) -> None:
        """Stop here until ``ready`` holds; ``None``: until it is its turn again.

        Called within the fiber.
        """
        self._ready = ready
        parent = self._greenlet.parent
        assert parent is not None
        parent.switch()
        self._ready = None

    def _run(self) -> None:
        try:
            self._target()
        finally:
            self.over = True


class _NothingToSelect:
    """Stands for the selector: in a simulation nothing ever becomes readable by itself."""

    def select(self, _timeout: float | None) -> list[Any]:
        return []


class SimLoop(asyncio.BaseEventLoop):
    """An event loop with the clock of a simulated machine."""

    def __init__(self, clock: MachineClock) -> None:
        super().__init__()
        self._machine = clock
        self._selector = _NothingToSelect()
        self.failures: list[BaseException] = []
        self.set_exception_handler(self._on_failure)

    def time(self) -> float:
        return self._machine.mono()

    def _process_events(self, event_list: list[Any]) -> None:
        del event_list

    def _write_to_self(self) -> None:
        """Nobody sleeps here."""

    def _check_closed(self) -> None:
        """What a dead process would still have done, as its tasks are forgotten, is done by
        nobody.
        """

    def _on_failure(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None:
            self.failures.append(error)

    def run_ready(self) -> None:
        """Run everything that is due now."""
        if not self._has_due():
            return
        events._set_running_loop(self)
        try:
            for _ in range(_SPINS):
                self._run_ready_once()
                if not self._has_due():
                    return
        finally:
            events._set_running_loop(None)
        raise AssertionError("the event loop never comes to rest")

    def _run_ready_once(self) -> None:
        """What asyncio's ``_run_once`` does, without the look at a selector."""
        ready: deque[events.Handle] = self._ready  # type: ignore[attr-defined]
        scheduled: list[Any] = self._scheduled  # type: ignore[attr-defined]
        if scheduled:
            end = self._machine.mono() + self._clock_resolution  # type: ignore[attr-defined]
            while scheduled and (scheduled[0]._cancelled or scheduled[0]._when < end):
                timer = heapq.heappop(scheduled)
                timer._scheduled = False
                if not timer._cancelled:
                    ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        """It goes when its time comes."""

    def _has_due(self) -> bool:
        if self._ready:  # type: ignore[attr-defined]
            return True
        scheduled = self._scheduled  # type: ignore[attr-defined]
        return bool(scheduled) and scheduled[0]._when <= self._machine.mono()

    def abandon(self) -> None:
        """The process is gone: whatever it waited for never comes."""
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            task.cancel()
        self.failures.clear()
        self.set_exception_handler(lambda *_: None)
        self.run_ready()
        self.close()
