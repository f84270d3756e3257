"""Requests in their turn: so many a batch, and those beyond wait here while publishes and acks pass
them.

All clients share one link. Twenty thousand connects that somebody sends at once lie in it before
whatever the others send, and each costs as much as a hundred publishes. So a batch takes a bounded
number of them. The others wait in the order in which they came; what passes them is what the
original, which hears publishes, acks and requests on subscriptions of their own, lets pass as well
(``docs/compat/protocol.md``, ordering guarantees). A request never comes before a publish or an ack
that was sent before it.

Answers to heartbeats have a queue of their own: a client that answered in time must not fail
because others connect.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from ftstan.broker.constants import SID_INBOX

if TYPE_CHECKING:
    from collections.abc import Callable

    _Request = tuple[int, bytes, bytes, bytes | None, bytes]

#: Requests that one batch carries out.
REQUESTS: Final = 16
#: Channels that they may make in one batch: each may cost several syncs.
CHANNELS: Final = 4
#: Answers to heartbeats and probes that one batch takes.
ANSWERS: Final = 64
#: Bytes that may wait. Beyond that requests are refused until some are done: what comes behind them
#: on the link, others' publishes, does not wait for them.
MOST_BYTES: Final = 32 << 20
#: What one that waits takes besides its bytes.
_EACH: Final = 400


class RequestQueue:
    """What waits. ``handle`` carries one out, ``refuse`` refuses one for which there is no room, by
    its subscription and its reply subject. ``made``: how many channels have been made so far.
    """

    def __init__(
        self,
        handle: Callable[[int, bytes, bytes, bytes | None, bytes], None],
        refuse: Callable[[int, bytes], None],
        made: Callable[[], int],
    ) -> None:
        self._handle = handle
        self._refuse = refuse
        self._made = made
        self._requests: deque[_Request] = deque()
        self._answers: deque[_Request] = deque()
        self._requests_left = REQUESTS
        self._channels_left = CHANNELS
        self._answers_left = ANSWERS
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._requests) + len(self._answers)

    def take(
        self, sid: int, subject: bytes, reply: bytes, payload: bytes | None, headers: bytes
    ) -> None:
        """Carry out a request, queue it, or refuse it."""
        if sid == SID_INBOX:
            if self._answers_left and not self._answers:
                self._answers_left -= 1
                self._handle(sid, subject, reply, payload, headers)
                return
            queue = self._answers
        else:
            if self._may_take and not self._requests:
                self._carry_out((sid, subject, reply, payload, headers))
                return
            queue = self._requests
        if self._bytes >= MOST_BYTES:
            self._refuse(sid, reply)
            return
        queue.append((sid, subject, reply, payload, headers))
        self._bytes += _size(subject, reply, payload, headers)

    def go_on(self) -> bool:
        """The end of a batch: carry out some that wait, as many as it may still take.

        Returns whether any were.
        """
        before = len(self)
        # Answers first: each can end the wait of a client, or of its id.
        for _ in range(min(self._answers_left, len(self._answers))):
            self._handle(*self._next(self._answers))
        while self._may_take and self._requests:
            self._carry_out(self._next(self._requests))
        self._requests_left = REQUESTS
        self._channels_left = CHANNELS
        self._answers_left = ANSWERS
        return len(self) < before

    @property
    def _may_take(self) -> bool:
        return self._requests_left > 0 and self._channels_left > 0

    def _next(self, queue: deque[_Request]) -> _Request:
        request = queue.popleft()
        self._bytes -= _size(*request[1:])
        return request

    def _carry_out(self, request: _Request) -> None:
        before = self._made()
        self._handle(*request)
        self._requests_left -= 1
        self._channels_left -= self._made() - before

    def clear(self) -> None:
        """The link that they came on is lost, and with it whatever else was on it."""
        self._requests.clear()
        self._answers.clear()
        self._bytes = 0


def _size(subject: bytes, reply: bytes, payload: bytes | None, headers: bytes) -> int:
    return _EACH + len(subject) + len(reply) + len(payload or b"") + len(headers)
