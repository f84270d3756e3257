"""Deliveries that are left out, because the NATS server does not carry a message of that size:
counted, and told.

Such a message was stored by an original server, or under a larger ``max_payload``; of what is
published now none is taken. It stays in the store as it is. One line for all of them, at a falling
rate.
"""

from __future__ import annotations

from ftstan.base.log import stream as log
from ftstan.base.ratelimit import RateLimit
from ftstan.broker.malformed import quoted


class Skipped:
    """Counts the deliveries left out since the last log line."""

    def __init__(self) -> None:
        self._count = 0
        self._first = ""
        self._limit = RateLimit()

    def note(self, channel: bytes, client_id: bytes, sequence: int, size: int, most: int) -> None:
        """A message of ``size`` bytes is not delivered to a client, because the NATS server carries
        ``most``.
        """
        if not self._count:
            self._first = (
                f"message {sequence} of channel {quoted(channel)} for client "
                f"{quoted(client_id[:64])} has {size} "
                f"bytes, the NATS server carries {most}"
            )
        self._count += 1

    def tell(self, now: float) -> None:
        """Write what is due at ``now`` seconds: to be called once a second, so no line comes more
        often.
        """
        if self._count and self._limit.allow(now):
            log.error(
                f"deliveries left out: {self._count} since the last such line, the first one: "
                f"{self._first} "
                "(max_payload)"
            )
            self._count = 0
