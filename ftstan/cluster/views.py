"""What monitoring sees of a node that follows: rows as ``ftstan.broker.views`` makes them, out of
the local store and what the log has told of clients and subscriptions.

Rows are copied, so that they are true for one moment; pending acks are as old as the last entry.
Nothing here touches storage but ``open_channel``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ftstan.broker.views import CensusRow, ChannelRow, ClientRow, Counters
from ftstan.config.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ftstan.broker.state import Subscription
    from ftstan.cluster.replica import FollowedSub, LocalChannel, Replica


@dataclass(frozen=True, slots=True)
class _Channel:
    name: bytes


class _Seen:
    """A subscription as the pages take one of a broker."""

    def __init__(self, replica: Replica, channel: bytes, sub: FollowedSub) -> None:
        self.channel = _Channel(channel)
        self._replica = replica
        self._sub = sub

    def seen(
        self,
    ) -> tuple[bytes, bytes, bytes, bytes, bytes, bool, bool, int, int, int, int, bool]:
        """The fields of a ``SubRow``."""
        state = self._sub.state
        pending = len(self._sub.pending)
        return (
            *(state.client_id, state.inbox, state.ack_inbox, state.durable_name, state.queue),
            state.is_durable or bool(state.durable_name),
            state.is_closed or state.client_id not in self._replica.clients,
            *(state.max_in_flight, state.ack_wait_secs * SECOND, self._sub.last_sent, pending),
            0 < state.max_in_flight <= pending,
        )


def counters(replica: Replica) -> Counters:
    """How many clients and channels there are; a follower serves none of them."""
    return Counters(
        clients=len(replica.clients), channels=len(replica.channels) + len(replica.later)
    )


def client_names(replica: Replica) -> list[bytes]:
    """The ids of all clients, in no order."""
    return list(replica.clients)


def channel_names(replica: Replica) -> list[bytes]:
    """The names of all channels, in no order."""
    return [*list(replica.channels), *list(replica.later)]


def open_channels(replica: Replica, names: Iterable[bytes]) -> None:
    """Open those that nobody has needed yet; on the data plane's thread. Raises ``StoreError``."""
    for name in names:
        replica.find(name)


def client_rows(replica: Replica, names: Iterable[bytes]) -> list[ClientRow]:
    """These clients, without those that are gone."""
    wanted = {name: info for name in names if (info := replica.clients.get(name)) is not None}
    subs: dict[bytes, list[Subscription]] = {name: [] for name in wanted}
    for channel in list(replica.channels.values()):
        for sub in list(channel.subs.values()):
            if sub.state.client_id in subs and not sub.state.is_closed:
                subs[sub.state.client_id].append(_seen(replica, channel, sub))
    return [ClientRow(name, info.hb_inbox, subs[name]) for name, info in wanted.items()]


def channel_rows(replica: Replica, names: Iterable[bytes], *, subs: bool) -> list[ChannelRow]:
    """These channels, without those that are gone or were not opened."""
    rows = []
    for name in names:
        channel = replica.channels.get(name)
        if channel is None:
            continue
        store = channel.store
        known = list(channel.subs.values())
        listed = [_seen(replica, channel, sub) for sub in known] if subs else []
        rows.append(
            ChannelRow(
                *(name, store.count, store.size, store.first, store.last, len(known)), listed
            )
        )
    return rows


def census(replica: Replica) -> list[CensusRow]:
    """The figures of all channels that were opened."""
    rows = []
    for channel in list(replica.channels.values()):
        store = channel.store
        subs = list(channel.subs.values())
        last = store.last
        slowest = min([last, *(sub.last_sent for sub in subs)])
        stalled = sum(0 < sub.state.max_in_flight <= len(sub.pending) for sub in subs)
        rows.append(
            CensusRow(
                *(store.name, store.count, store.size, last, len(subs)),
                *(sum(len(sub.pending) for sub in subs), stalled, last - slowest),
                quarantined=False,
                moved=False,
                limits=store.limits,
            )
        )
    return rows


def _seen(replica: Replica, channel: LocalChannel, sub: FollowedSub) -> Subscription:
    return cast("Subscription", _Seen(replica, channel.store.name, sub))
