"""How much a NATS server may have to read behind what it has read: the window of one link.

One connection carries everything, in order, so an acknowledgement waits behind the deliveries that
were written before it. A NATS server reads slowly while one of its clients does not take what it is
sent: it stalls whoever sends to that client, for milliseconds each time that it reads. Socket
buffers hold megabytes, which take seconds then. So every piece of output is followed by a PING, and
what is sent before its PONG has come is bounded by a window. It halves when an answer is late, and
doubles when one was in time and the window was too small. A server that is far away is given its
distance: what the quickest answer took.

Pure: time comes in as seconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

#: Bytes that may be on their way to a server at hand while answers come in time, and while they do
#: not.
WIDEST: Final = 1 << 20
NARROWEST: Final = 128 << 10
#: Bytes more for each second of distance, and the most of all.
_PER_SECOND: Final = 200 << 20
_MOST: Final = 8 << 20
#: Bytes that are worth a PING.
PIECE: Final = 64 << 10
#: Seconds within which a PING behind a piece is answered by a server at hand that is not held up.
LATE_S: Final = 0.04
#: The same while nobody knows how far it is.
_FIRST_LATE_S: Final = 0.5


@dataclass(slots=True)
class _Piece:
    """Output whose PING is not answered yet."""

    size: int
    sent_at: float
    late_at: float


class SendWindow:
    """The window of one link, from one connect to the next."""

    def __init__(self) -> None:
        self._width = WIDEST // 4
        self._pieces: deque[_Piece] = deque()
        self._on_the_way = 0
        self._since = 0
        """Bytes sent behind the last PING."""
        self._was_full = False
        self._distance: float | None = None

    @property
    def room(self) -> int:
        """Bytes that may be sent now."""
        return self._width - self._on_the_way

    def sent(self, size: int, now: float) -> bool:
        """Note ``size`` bytes of output; returns whether a PING must follow them."""
        self._since += size
        self._on_the_way += size
        self._was_full |= self._on_the_way >= self._width
        if self._since < PIECE:
            return False
        self._pieces.append(_Piece(self._since, now, now + self._patience))
        self._since = 0
        return True

    def answered(self, now: float) -> None:
        """The PING of the oldest piece was answered."""
        piece = self._pieces.popleft()
        self._on_the_way -= piece.size
        took = max(now - piece.sent_at, 0.0)
        self._distance = took if self._distance is None else min(self._distance, took)
        if self._was_full and not self._pieces:
            widest = min(WIDEST + round(self._distance * _PER_SECOND), _MOST)
            self._width = min(self._width * 2, widest)
            self._was_full = False

    def looked(self, now: float) -> None:
        """Everything that had arrived at ``now`` was read: an answer that was due is late."""
        if self._pieces and now >= self._pieces[0].late_at:
            self._width = max(self._width // 2, NARROWEST)
            self._was_full = False
            # Until the next halving the server has as long again.
            for piece in self._pieces:
                piece.late_at = max(piece.late_at, now + self._patience)

    @property
    def _patience(self) -> float:
        return _FIRST_LATE_S if self._distance is None else self._distance + LATE_S
