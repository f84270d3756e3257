"""Requests in their turn: so many a batch, and those beyond wait here while publishes and acks pass
them.

All clients share one link. Twenty thousand connects that somebody sends at once lie in it before
whatever the others send, and each costs as much as a hundred publishes. So a batch takes a bounded
number of them. The others wait in the order in which they came; what passes them is what the
original, which hears publishes, acks and requests on subscriptions of their own, lets pass as well
(``docs/compat/protocol.md``, ordering guarantees). A request never comes before a publish or an ack
that was sent before it.

Connects have a queue of their own, so that who has connected goes on subscribing and closing while
very many others connect; the two take turns. Answers to heartbeats have one, too: a client that
answered in time must not fail because others connect. Pings wait for nobody: one costs little more
than a publish, and a client that misses three takes its connection for lost.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from ftstan.broker.constants import SID_CONNECT, SID_INBOX, SID_PING

if TYPE_CHECKING:
    from collections.abc import Callable

    _Request = tuple[int, bytes, bytes, bytes | None, bytes]

#: Requests that one batch carries out.
REQUESTS: Final = 16
#: Channels that they may make in one batch: each may cost several syncs.
CHANNELS: Final = 4
#: Answers to heartbeats and probes that one batch takes.
ANSWERS: Final = 64
#: Bytes that may wait in each queue. Beyond that requests are refused until some are done: what
#: comes behind them on the link, others' publishes, does not wait for them.
MOST_BYTES: Final = 32 << 20
_OTHERS: Final = 0
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
        self._connects: deque[_Request] = deque()
        self._others: deque[_Request] = deque()
        self._answers: dict[bytes, _Request] = {}
        """By subject: each is to a question of its own."""
        self._bytes = dict.fromkeys((SID_CONNECT, SID_INBOX, _OTHERS), 0)
        """Of each of these queues."""
        self._requests_left = REQUESTS
        self._channels_left = CHANNELS
        self._answers_left = ANSWERS

    def __len__(self) -> int:
        return len(self._connects) + len(self._others) + len(self._answers)

    def take(
        self, sid: int, subject: bytes, reply: bytes, payload: bytes | None, headers: bytes
    ) -> None:
        """Carry out a request, queue it, or refuse it."""
        if sid == SID_INBOX:
            if self._answers_left and not self._answers:
                self._answers_left -= 1
                self._handle(sid, subject, reply, payload, headers)
                return
        elif sid == SID_PING:
            self._handle(sid, subject, reply, payload, headers)
            return
        elif self._may_take and not self._waiting_like(sid):
            self._carry_out((sid, subject, reply, payload, headers))
            return
        request = (sid, subject, reply, payload, headers)
        queue = _queue_of(sid)
        if self._bytes[queue] >= MOST_BYTES:
            self._refuse(sid, reply)
            return
        if sid != SID_INBOX:
            self._waiting_like(sid).append(request)
        elif subject not in self._answers:
            self._answers[subject] = request
        else:
            return
        self._bytes[queue] += _size(request)

    def hear(self, subject: bytes) -> None:
        """Whoever has waited for an answer on ``subject`` for long enough: take it if it has come,
        and waits here.
        """
        request = self._answers.pop(subject, None)
        if request is not None:
            self._bytes[SID_INBOX] -= _size(request)
            self._handle(*request)

    def go_on(self) -> bool:
        """The end of a batch: carry out some that wait, as many as it may still take.

        Returns whether any were.
        """
        before = len(self)
        # Answers first: each can end the wait of a client, or of its id.
        for _ in range(min(self._answers_left, len(self._answers))):
            self.hear(next(iter(self._answers)))
        while self._may_take and (self._connects or self._others):
            for queue in (self._others, self._connects):
                if queue and self._may_take:
                    request = queue.popleft()
                    self._bytes[_queue_of(request[0])] -= _size(request)
                    self._carry_out(request)
        self._requests_left = REQUESTS
        self._channels_left = CHANNELS
        self._answers_left = ANSWERS
        return len(self) < before

    @property
    def _may_take(self) -> bool:
        return self._requests_left > 0 and self._channels_left > 0

    def _waiting_like(self, sid: int) -> deque[_Request]:
        return self._connects if sid == SID_CONNECT else self._others

    def _carry_out(self, request: _Request) -> None:
        before = self._made()
        self._handle(*request)
        self._requests_left -= 1
        self._channels_left -= self._made() - before

    def clear(self) -> None:
        """The link that they came on is lost, and with it whatever else was on it."""
        self._connects.clear()
        self._others.clear()
        self._answers.clear()
        self._bytes = dict.fromkeys(self._bytes, 0)


def _queue_of(sid: int) -> int:
    return sid if sid in {SID_CONNECT, SID_INBOX} else _OTHERS


def _size(request: _Request) -> int:
    _, subject, reply, payload, headers = request
    return _EACH + len(subject) + len(reply) + len(payload or b"") + len(headers)
