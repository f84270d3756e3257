"""A registered client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ftstan.broker.state import Subscription
    from ftstan.stores.interface import ClientInfo


@dataclass(eq=False, slots=True)
class Client:
    """A client and its live subscriptions, in the order in which they were made.

    ``failed``: heartbeats in a row that were not answered; ``waiting``: heartbeats that wait for an
    answer; ``beat_at``: when the next one goes out, ``late_at``: when the last one fails (monotonic
    ns); timers of an earlier ``generation`` do nothing. ``recovered``: whether a start found it,
    and with it its subscriptions. ``heard``: whether it has connected or answered here, since the
    link was last away.
    """

    info: ClientInfo
    subs: dict[Subscription, None] = field(default_factory=dict)
    failed: int = 0
    waiting: int = 0
    beat_at: int = 0
    late_at: int = 0
    generation: int = 0
    gone: bool = False
    recovered: bool = False
    heard: bool = False

    @property
    def client_id(self) -> bytes:
        """The client's id."""
        return self.info.client_id

    def shown(self) -> str:
        """The id for log lines."""
        return self.info.client_id.decode("utf-8", "backslashreplace")
