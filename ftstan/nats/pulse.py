"""Is anybody at the other end of a link? A cut cable leaves a TCP connection open for minutes.

Pure: time comes in as seconds. A link that was silent for a while is asked with a PING; a server
that does not answer in time is gone, or cannot be heard, or cannot hear us. Time in which this
process did not look does not count.
"""

from __future__ import annotations

from typing import Final

ASK_AFTER_S: Final = 1.0
ANSWER_WITHIN_S: Final = 2.0
PATIENT_S: Final = 10.0
"""Of a server that nobody would replace, at a NATS server of its own.

That one's death closes the link at once, and one that a signal has stopped is replaced before
(``nats/embedded.py``). So silence means a crowded machine, on which connecting anew would take as
long, and would lose what the link holds.
"""


class Pulse:
    """One link's. ``now``: seconds of ``Clock.mono``; ``within_s``: how long an answer may take."""

    def __init__(self, now: float, within_s: float = ANSWER_WITHIN_S) -> None:
        self.within_s = within_s
        self._heard = now
        self._asked: float | None = None

    def heard(self, now: float) -> None:
        """Something arrived."""
        self._heard = now
        self._asked = None

    def overslept(self, now: float) -> None:
        """Nobody looked at the link for a while: the answer may lie in its socket."""
        if self._asked is not None:
            self._asked = now

    def must_ask(self, now: float) -> bool:
        """Whether it is time for a PING; it counts as sent then."""
        if self._asked is not None or now - self._heard < ASK_AFTER_S:
            return False
        self._asked = now
        return True

    def is_gone(self, now: float) -> bool:
        """Whether an answer is overdue."""
        return self._asked is not None and now - self._asked >= self.within_s
