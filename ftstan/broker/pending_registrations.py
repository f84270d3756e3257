"""Requests that come before their client: a partition may hear of a connect later than its client
is answered.

Every partition handles every connect, and a client goes on with the first answer. One that is
slower, because it asks an older client of that id whether it lives, keeps what comes meanwhile for
up to ``CONNECT_WITHIN``, in its order, and takes it when the client is registered. Nothing else
waits for it (``docs/compat/partitioning.md``, "What clients see").
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ftstan.broker.constants import CONNECT_WITHIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.broker.timers import Timers

#: Clients that did not come are remembered, so many at most, and refused at once when they ask
#: again.
REMEMBERED: Final = 256
#: Requests, and bytes of them, that wait at one time; what comes beyond that is refused at once.
MOST_REQUESTS: Final = 4096
MOST_BYTES: Final = 8 << 20

_Key = tuple[bytes, bytes]


@dataclass(slots=True)
class _Waiting:
    size: int = 0
    requests: list[Callable[[], None]] = field(default_factory=list)


class PendingRegistrations:
    """What waits for clients, by client id and connection id; subscriptions name no connection."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._waiting: dict[_Key, _Waiting] = {}
        self._missing: OrderedDict[_Key, None] = OrderedDict()
        self._requests = 0
        self._bytes = 0
        self._over = False

    def __len__(self) -> int:
        """Requests that wait."""
        return self._requests

    def hold(
        self, client_id: bytes, conn_id: bytes, again: Callable[[], None], size: int, now: int
    ) -> bool:
        """Keep a request of ``size`` bytes; ``again`` takes it.

        Returns false if it is to be refused at once.
        """
        key = client_id, conn_id
        if self._over or key in self._missing:
            return False
        if self._requests >= MOST_REQUESTS or self._bytes + size > MOST_BYTES:
            return False
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = _Waiting()
            self._timers.at(now + CONNECT_WITHIN, lambda: self._late(key, waiting))
        waiting.requests.append(again)
        waiting.size += size
        self._requests += 1
        self._bytes += size
        return True

    def registered(self, client_id: bytes, conn_id: bytes) -> None:
        """The client is registered: handle the requests that waited for it."""
        keys = [(client_id, conn_id), (client_id, b"")]
        if conn_id:
            # A publish that names its connection need not name its client.
            keys.append((b"", conn_id))
        for key in keys:
            self._missing.pop(key, None)
            self._take(key)

    def give_up(self) -> None:
        """Refuse all waiting and future requests: this server stops."""
        self._over = True
        for key in list(self._waiting):
            self._take(key)

    def _late(self, key: _Key, waiting: _Waiting) -> None:
        if self._waiting.get(key) is not waiting:
            return
        if len(self._missing) == REMEMBERED:
            self._missing.popitem(last=False)
        self._missing[key] = None
        self._take(key)

    def _take(self, key: _Key) -> None:
        waiting = self._waiting.pop(key, None)
        if waiting is None:
            return
        self._requests -= len(waiting.requests)
        self._bytes -= waiting.size
        for again in waiting.requests:
            again()
