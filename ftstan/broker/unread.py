"""Readers whose next message storage could not give: each is offered messages again after a while.

A reader is served when something happens to its channel or to itself. Behind the last publish of a
quiet channel nothing does: without this, one failed read right after a takeover would keep a
message for ever.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from ftstan.broker.constants import SECOND

if TYPE_CHECKING:
    from ftstan.broker.base import BrokerBase
    from ftstan.broker.state import Listener, Subscription

_AGAIN: Final = SECOND


class Unread:
    """Subscriptions whose delivery stopped; each has one timer."""

    def __init__(self, broker: BrokerBase) -> None:
        self._broker = broker
        self._waiting: set[Listener] = set()

    def note(self, sub: Subscription) -> None:
        """Delivery to the subscription, or to its group, has stopped."""
        broker = self._broker
        who = sub if sub.group is None else sub.group
        if who not in self._waiting:
            self._waiting.add(who)
            broker.timers.at(broker.now + _AGAIN, partial(self._again, who))

    def _again(self, who: Listener) -> None:
        self._waiting.discard(who)
        self._broker.enqueue(who)
