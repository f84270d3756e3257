"""What comes for a channel that is on its way here, while its former server may still answer.

Publishes and requests are kept in the order of their kinds, unanswered, up to a bound. If the
channel comes, those that its former server has not answered are carried out; else all are dropped,
and their senders try again, as they do when nobody serves a channel (``docs/partitioning.md``,
moving a channel).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Container

#: Bytes of publishes that are kept at most, and requests. What comes beyond makes all of it
#: worthless: nobody could say any more in which order a publisher has published.
MOST_BYTES: Final = 64 << 20
MOST_REQUESTS: Final = 4096
#: What a kept publish costs beside its bytes.
_OVERHEAD: Final = 256


class Arrival:
    """Of one channel."""

    def __init__(self) -> None:
        self.publishes: list[tuple[bytes, bytes, bytes]] = []
        """Subject, reply and payload of each."""
        self.requests: list[tuple[bytes, bytes, Callable[[], None]]] = []
        """The inbox that a subscription asks for, or nothing; the reply subject; and what carries
        the request out.
        """
        self.dropped = 0
        """Publishes that nobody will answer."""
        self._bytes = 0

    def keep_publish(self, subject: bytes, reply: bytes, payload: bytes) -> None:
        """Keep a publish, if none was dropped yet."""
        self._bytes += _OVERHEAD + len(subject) + len(reply) + len(payload)
        if self.dropped or self._bytes > MOST_BYTES:
            self.dropped += len(self.publishes) + 1
            self.publishes.clear()
        else:
            self.publishes.append((subject, reply, payload))

    def keep_request(self, inbox: bytes, reply: bytes, again: Callable[[], None]) -> None:
        """Keep a request, if there are not too many."""
        if len(self.requests) < MOST_REQUESTS:
            self.requests.append((inbox, reply, again))

    def carry_out(self, live: Container[bytes], done: Container[bytes]) -> None:
        """Carry out what was kept, without what the former server did: subscriptions whose inboxes
        are ``live``, and requests whose reply subjects are ``done``.
        """
        for inbox, reply, again in self.requests:
            if not ((inbox and inbox in live) or (reply and reply in done)):
                again()
