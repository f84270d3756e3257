"""Closing in portions: a client may have a hundred thousand subscriptions, and nobody else waits
for all of them.

A client that closes is unregistered at once, and the record of that goes first: whatever a crash
cuts off, the next start finds subscriptions without their client and closes them, also if another
session has the id by then (``client.py``). From then on nothing is delivered to it. Its
subscriptions end in portions, channel by channel, one portion a turn of the loop; then it is
answered, and only then its id is free: connects that name it wait until then. The same holds for
whoever is closed for missed heartbeats, replaced, or closed by an operator; and for one queue
member that leaves with very many messages, which are dealt in portions.
A stop for a successor that waits leaves to the next start what may lie in channels that are not
open.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ftstan.broker.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.broker.base import BrokerBase
    from ftstan.broker.state import Channel, Subscription
    from ftstan.stores.interface import ClientInfo

#: What one turn may cost: a subscription costs 1, and so do so many messages that it leaves to
#: others of its group.
PORTION: Final = 32
MESSAGES: Final = 16
#: Channels that one turn touches: each costs a sync.
CHANNELS: Final = 4
#: Recovered channels that one turn opens, because the client may have subscriptions in them.
OPENED: Final = 32
#: What is left for those that wait, however many others close at once.
_LEAST: Final = PORTION // 4
#: Requests that wait for one id.
MOST_WAITING: Final = 256


@dataclass(eq=False, slots=True)
class _Leaving:
    """``client``: ``None`` for one subscription.

    ``subs``: what is left, the next one last; ``failure``: a record's.
    """

    client: Client | None
    subs: list[Subscription]
    unsubscribe: bool
    then: Callable[[str], None]
    failure: str = ""
    waiting: list[Callable[[], None]] = field(default_factory=list)

    def refused(self, text: str) -> bytes:
        """The store refused the record that ends the registration."""
        self.failure = text
        return b""


class Closing:
    """Who is closing.

    ``then(error)`` of each runs when all is staged; ``error``: what storage refused, or empty.
    """

    def __init__(self, broker: BrokerBase) -> None:
        self._broker = broker
        self._jobs: deque[_Leaving] = deque()
        """Each has its turn."""
        self._by_id: dict[bytes, _Leaving] = {}
        self._alone: set[Subscription] = set()
        """Subscriptions that leave, of clients that stay."""
        self._left = PORTION
        self._touched: set[Channel] = set()

    def __len__(self) -> int:
        return len(self._jobs)

    def client(self, client: Client, then: Callable[[str], None]) -> None:
        """End the subscriptions of a client that is not registered any more: at once if they are
        few.
        """
        job = _Leaving(client, _by_channel(client), False, then)
        if not self._broker.later and self._is_small(job.subs) and self._advance(job):
            then("")
            return
        for sub in client.subs:
            sub.ready = False
            if sub.group is not None:
                sub.group.update(sub)
        self._broker.answer(b"", b"", clients=True, client=client.client_id, refusal=job.refused)
        self._by_id[client.client_id] = job
        self._jobs.append(job)

    def subscription(
        self, sub: Subscription, then: Callable[[str], None], *, unsubscribe: bool
    ) -> None:
        """End one subscription, of a client that stays: at once if it leaves little to others."""
        job = _Leaving(None, [sub], unsubscribe, then)
        if _weight(sub) <= max(self._left, 1):
            self._broker.subscriptions.detach(sub, unsubscribe=unsubscribe)
            then("")
            return
        sub.ready = False
        assert sub.group is not None
        sub.group.update(sub)
        self._alone.add(sub)
        self._jobs.append(job)

    def is_leaving(self, sub: Subscription) -> bool:
        """Whether the subscription has been ended, as far as clients see."""
        return sub in self._alone or (isinstance(sub.client, Client) and sub.client.gone)

    def is_of(self, info: ClientInfo) -> bool:
        """Whether it is this very session that is closing."""
        job = self._by_id.get(info.client_id)
        if job is None or job.client is None:
            return False
        known = job.client.info
        return known.conn_id == info.conn_id and known.hb_inbox == info.hb_inbox

    def holds(
        self,
        client_id: bytes,
        again: Callable[[], None],
        refuse: Callable[[], None] = lambda: None,
    ) -> bool:
        """Whether the id is not free yet; ``again`` is called when it is.

        ``refuse`` is called instead where too many wait already.
        """
        job = self._by_id.get(client_id)
        if job is None:
            return False
        if len(job.waiting) < MOST_WAITING:
            job.waiting.append(again)
        else:
            refuse()
        return True

    def go_on(self) -> bool:
        """The end of a batch: close some more; returns whether anything was done."""
        self._left = max(self._left, _LEAST)
        some = len(self._jobs)
        for _ in range(some):
            job = self._jobs.popleft()
            if self._advance(job):
                self._end(job)
            else:
                # The next one has its turn first.
                self._jobs.append(job)
            if self._left <= 0:
                break
        self._left = PORTION
        self._touched.clear()
        return some > 0

    def finish(self) -> None:
        """Close everything that is left, whatever it takes: nobody is served any more."""
        while self._jobs:
            self.go_on()

    def _is_small(self, subs: list[Subscription]) -> bool:
        if len(subs) > self._left or sum(map(_weight, subs)) > self._left:
            return False
        return len(self._touched | {sub.channel for sub in subs}) <= CHANNELS

    def _advance(self, job: _Leaving) -> bool:
        """Close what this turn may; returns whether that was all."""
        broker = self._broker
        for _ in range(min(len(broker.later), OPENED) if job.client is not None else 0):
            broker.open_next()
        if broker.later and job.client is not None:
            self._left = 0
            return False
        while job.subs:
            sub = job.subs[-1]
            if sub.client is None or (job.client is not None and sub.client is not job.client):
                # It could not be stored, or has left by itself.
                job.subs.pop()
                continue
            if self._left <= 0 or (
                sub.channel not in self._touched and len(self._touched) >= CHANNELS
            ):
                return False
            self._touched.add(sub.channel)
            weight = _weight(sub)
            if weight > self._left:
                broker.subscriptions.deal(sub, self._left * MESSAGES)
                self._left = 0
                return False
            self._left -= weight
            broker.subscriptions.detach(sub, unsubscribe=job.unsubscribe)
            job.subs.pop()
        return True

    def _end(self, job: _Leaving) -> None:
        if job.client is None:
            self._alone = {sub for sub in self._alone if sub.client is not None}
        else:
            del self._by_id[job.client.client_id]
        job.then(job.failure)
        for again in job.waiting:
            again()


def _weight(sub: Subscription) -> int:
    """The work of ending a subscription, in units of the bound."""
    if sub.group is None or sub.group.size < 2:
        return 1
    return 1 + len(sub.pending) // MESSAGES


def _by_channel(client: Client) -> list[Subscription]:
    """The subscriptions of a client, the last one first, and those of one channel together."""
    found: dict[Channel, list[Subscription]] = {}
    for sub in client.subs:
        found.setdefault(sub.channel, []).append(sub)
    return [sub for subs in reversed(found.values()) for sub in reversed(subs)]
