"""What a subscription hands out."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

_NS = 1_000_000_000


class Source(Protocol):
    """The subscription that handed a message out, as far as whoever has the message needs it."""

    @property
    def channel(self) -> str:
        """The channel."""

    @property
    def closed(self) -> bool:
        """Whether it has ended."""

    async def ack(self, message: Message) -> None:
        """Acknowledge a message of this subscription; see ``Message.ack``."""

    async def close(self, within: float = 5.0) -> None:
        """End it and keep what the server knows of a durable; seconds."""

    async def unsubscribe(self, within: float = 5.0) -> None:
        """End it and have the server forget it; seconds."""

    async def drain(self, within: float = 30.0) -> None:
        """Handle and acknowledge what has come, then close; seconds."""


@dataclass(frozen=True, slots=True)
class Message:
    """One delivery.

    ``timestamp``: when it was stored, nanoseconds since 1970 by the server's clock.

    ``redelivered``: it was sent to this subscription or its group before; ``redelivery_count``: how
    often the server remembers that, 0 for servers older than 0.17. ``reply``: what the publisher
    gave along, usually empty.
    """

    channel: str
    sequence: int
    data: bytes
    timestamp: int
    redelivered: bool = False
    redelivery_count: int = 0
    reply: bytes = b""
    subscription: Source | None = field(default=None, repr=False, compare=False)

    @property
    def time(self) -> datetime:
        """The timestamp as a time in UTC, to the microsecond."""
        return datetime.fromtimestamp(self.timestamp // _NS, UTC).replace(
            microsecond=self.timestamp % _NS // 1000
        )

    async def ack(self) -> None:
        """Acknowledge. Doing it twice, or where acks are automatic, does no harm.

        While there is no connection the ack is kept, and sent when the session goes on. Raises
        ``SubscriptionClosedError`` when the subscription has ended.
        """
        assert self.subscription is not None, "a message that no subscription handed out"
        await self.subscription.ack(self)
