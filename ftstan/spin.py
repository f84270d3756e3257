"""Waiting for the link: by looking again and again for a moment, where that has paid, and asleep otherwise.

Waking a thread that sleeps costs tens of microseconds, which a client that waits for one answer at a time pays each
time. So after a batch the data plane looks at its socket for a moment before it sleeps, and gives its processor to
whoever wants it between two looks. It does so only while that pays: a wait in vain ends it, until something comes again
as soon after a batch as it could have been waited for in this way, and so does a processor that is given back late, for
somebody else needs it more. A server without traffic never spins, nor does one with a message now and then.
``docs/performance.md`` has what it is worth.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ftstan.clock import Clock

#: Between two looks; longer means that others wait for this processor.
_CROWDED_S = 0.00005
#: How long it does not spin after that, or after it has waited in vain.
_REST_S = 0.02


class Poll(Protocol):
    """``select.poll``."""

    def poll(self, timeout: float | None = ..., /) -> list[tuple[int, int]]:
        """Descriptors and their events, after at most ``timeout`` milliseconds."""
        ...


def wait(poll: Poll, seconds: float) -> list[tuple[int, int]]:
    """Sleep until something is ready, at most ``seconds``."""
    return poll.poll(-(-seconds * 1000 // 1))


class Spin:
    """``seconds``: how long it looks before it sleeps.

    ``processors``: how many this process has, 0: as many as it may use. With a single one nobody else runs meanwhile.
    """

    def __init__(self, clock: Clock, seconds: float, processors: int = 0) -> None:
        self._clock = clock
        self._seconds = seconds if (processors or len(os.sched_getaffinity(0))) > 1 else 0.0
        self._pays = False
        self._rest_until = 0.0

    def wait(self, poll: Poll, seconds: float) -> list[tuple[int, int]]:
        """Wait until something is ready, at most ``seconds``; returns what is."""
        began = self._clock.mono()
        if self._pays and seconds > 0:
            events, now = self._look(poll, began + min(self._seconds, seconds))
            if events:
                return events
            seconds = max(seconds - (now - began), 0.0)
        events = wait(poll, seconds)
        if events and (now := self._clock.mono()) - began < self._seconds and now >= self._rest_until:
            self._pays = True
        return events

    def _look(self, poll: Poll, end: float) -> tuple[list[tuple[int, int]], float]:
        """Look until something is ready, or until ``end``; returns what is, and the time."""
        looked = self._clock.mono()
        while True:
            events = poll.poll(0)
            now = self._clock.mono()
            is_crowded = now - looked > _CROWDED_S
            if events or is_crowded or now >= end:
                break
            looked = now
            os.sched_yield()
        if is_crowded or not events:
            self._pays = False
            self._rest_until = now + _REST_S
        return events, now
