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

    ``failed``: heartbeats in a row that were not answered; ``token``: the heartbeat waiting for an answer, 0 = none;
    ``generation``: timers of an earlier one do nothing.
    """

    info: ClientInfo
    subs: list[Subscription] = field(default_factory=list)
    failed: int = 0
    token: int = 0
    generation: int = 0
    gone: bool = False

    @property
    def client_id(self) -> bytes:
        """The client's id."""
        return self.info.client_id

    def shown(self) -> str:
        """The id for log lines."""
        return self.info.client_id.decode("utf-8", "backslashreplace")
