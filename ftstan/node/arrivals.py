"""How much of what clients send may wait for the data plane: a time, not a size.

Whatever comes for the core comes on one connection, in order. A megabyte of publishes is applied in
two milliseconds, one of requests that are refused takes a tenth of a second, and whoever publishes
meanwhile waits behind it. So the core says how much it gets through in ``wait``, and the listener
(``front/``) reads clients no further while more than that waits. Storage that is slow needs large
batches, not small ones: where a commit takes longer, as much may wait as is applied in that time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds of work that may wait at each of the places where it waits, and the most of it that slow
#: storage may make of that.
WAIT_S: Final = 0.005
_MOST_WAIT_S: Final = 0.1
#: Bytes that may wait at such a place at least, and at most.
LEAST: Final = 32 << 10
MOST: Final = 4 << 20
#: Bytes over which the pace is averaged; fewer than the second are too few to tell.
_OVER: Final = 256 << 10
_FEW: Final = 8 << 10


class ArrivalRoom:
    """Keeps the pace. ``tell`` is given the bytes that may wait whenever they have doubled or
    halved, from ``MOST`` on.
    """

    def __init__(self) -> None:
        self.tell: Callable[[int], None] = lambda _: None
        self._cost = 0.0
        """Seconds a byte."""
        self.wait = WAIT_S
        """Seconds of work that may wait."""
        self.room = MOST

    def committed(self, seconds: float) -> None:
        """A batch with publishes became durable in ``seconds``."""
        aim = min(max(seconds, WAIT_S), _MOST_WAIT_S)
        self.wait += (aim - self.wait) / 4

    def applied(self, size: int, seconds: float) -> None:
        """``size`` bytes were applied in ``seconds``."""
        if size < _FEW:
            return
        self._cost += (seconds / size - self._cost) * min(size / _OVER, 1.0)
        room = int(min(max(self.wait / self._cost, LEAST), MOST)) if self._cost > 0 else MOST
        if room >= 2 * self.room or 2 * room <= self.room or self._is_new_end(room):
            self.room = room
            self.tell(room)

    def _is_new_end(self, room: int) -> bool:
        return room != self.room and room in {LEAST, MOST}
