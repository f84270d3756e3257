"""What a subscription hands out."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ftstan.client.subscription import Subscription

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Message:
    """One delivery. ``timestamp``: when it was stored, nanoseconds since 1970 by the server's clock.

    ``redelivered``: it was sent to this subscription or its group before; ``redelivery_count``: how often the server
    remembers that, 0 for servers older than 0.17. ``reply``: what the publisher gave along, usually empty.
    """

    channel: str
    sequence: int
    data: bytes
    timestamp: int
    redelivered: bool = False
    redelivery_count: int = 0
    reply: bytes = b""
    subscription: Subscription | None = field(default=None, repr=False, compare=False)

    @property
    def time(self) -> datetime:
        """The timestamp as a time in UTC, to the microsecond."""
        return datetime.fromtimestamp(self.timestamp // _NS, UTC).replace(microsecond=self.timestamp % _NS // 1000)

    async def ack(self) -> None:
        """Acknowledge. Doing it twice, or where acks are automatic, does no harm.

        While there is no connection the ack is kept, and sent when the session goes on. Raises
        ``SubscriptionClosedError`` when the subscription has ended.
        """
        assert self.subscription is not None, "a message that no subscription handed out"
        await self.subscription.ack(self)
