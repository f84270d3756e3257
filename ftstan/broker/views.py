"""What monitoring sees of a broker: rows copied out in one short step each, for whoever renders
them elsewhere.

Nothing here changes anything, and nothing touches storage: what a store says of a channel it keeps
in memory. A step runs on the data plane's thread, so each one has a bound that its caller keeps
(``node/pages.py``); what can be long, the subscriptions of a channel, is copied as a list of
objects first and looked at in portions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ftstan.broker.records import all_subs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ftstan.broker.broker import Broker
    from ftstan.broker.client import Client
    from ftstan.broker.state import Channel, Subscription
    from ftstan.config.options import ChannelLimits

    _Fields = tuple[bytes, bytes, bytes, bytes, bytes, bool, bool, int, int, int, int, bool]


class SubRow(NamedTuple):
    """One subscription.

    ``queue``: the stored name of its group; ``durable``: empty for members; ``ack_wait``: ns.
    """

    client_id: bytes
    inbox: bytes
    ack_inbox: bytes
    durable: bytes
    queue: bytes
    is_durable: bool
    is_offline: bool
    max_in_flight: int
    ack_wait: int
    last_sent: int
    pending: int
    stalled: bool


class ClientRow(NamedTuple):
    """One client and its live subscriptions, oldest first."""

    client_id: bytes
    hb_inbox: bytes
    subs: list[Subscription]


class ChannelRow(NamedTuple):
    """One channel: what is stored, and its subscriptions if they were asked for."""

    name: bytes
    msgs: int
    size: int
    first: int
    last: int
    stored_subs: int
    subs: list[Subscription]


class CensusRow(NamedTuple):
    """One channel in figures: ``pending`` acks, ``stalled`` readers, ``lag`` of the last reader in
    messages.

    ``limits``: those in force, 0 for none.
    """

    name: bytes
    msgs: int
    size: int
    last: int
    subs: int
    pending: int
    stalled: int
    lag: int
    quarantined: bool
    moved: bool
    limits: ChannelLimits


@dataclass(frozen=True, slots=True)
class Counters:
    """What a broker counts as it goes.

    ``channels`` includes those that recovery has left for later; ``dead_letters``: those stored, by
    the channel that they come from.
    """

    clients: int = 0
    channels: int = 0
    in_msgs: int = 0
    in_bytes: int = 0
    out_msgs: int = 0
    out_bytes: int = 0
    redelivered: int = 0
    skipped: int = 0
    dead_letters: Mapping[bytes, int] = field(default_factory=dict)
    dead_letters_refused: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)


def counters(broker: Broker) -> Counters:
    """The counters, without looking at a single channel."""
    dead = broker.dead_letters
    return Counters(
        clients=len(broker.clients),
        channels=len(broker.channels) + len(broker.later),
        in_msgs=broker.in_msgs,
        in_bytes=broker.in_bytes,
        out_msgs=broker.out_msgs,
        out_bytes=broker.out_bytes,
        redelivered=broker.redelivered,
        skipped=broker.skipped,
        dead_letters={} if dead is None else dict(dead.stored),
        dead_letters_refused=0 if dead is None else dead.refused,
        refused={f"malformed {kind}": count for kind, count in broker.malformed.totals.items()}
        | broker.malformed.refused,
    )


def client_names(broker: Broker) -> list[bytes]:
    """The ids of all clients, in no order."""
    return list(broker.clients.objects)


def channel_names(broker: Broker) -> list[bytes]:
    """The names of all channels, in no order, those that recovery has left for later too."""
    return [*broker.channels.objects, *broker.later]


def client_rows(clients: Sequence[Client]) -> list[ClientRow]:
    """What is shown of these clients."""
    return [
        ClientRow(client.info.client_id, client.info.hb_inbox, list(client.subs))
        for client in clients
    ]


def channel_rows(channels: Sequence[Channel], *, subs: bool) -> list[ChannelRow]:
    """What is shown of these channels, with or without their subscriptions."""
    rows = []
    for channel in channels:
        store = channel.store
        listed = all_subs(channel) if subs else []
        rows.append(
            ChannelRow(
                channel.name,
                store.count,
                store.size,
                store.first,
                store.last,
                channel.stored_subs,
                listed,
            )
        )
    return rows


def sub_rows(subs: Sequence[Subscription]) -> list[_Fields]:
    """The fields of ``SubRow`` for each; the rows themselves are made by whoever has the time."""
    return [sub.seen() for sub in subs]


def census(channels: Sequence[Channel]) -> list[CensusRow]:
    """The figures of these channels.

    The work for one grows with its subscriptions, by some nanoseconds for each.
    """
    rows = []
    for channel in channels:
        store = channel.store
        last = store.last
        rows.append(
            CensusRow(
                channel.name,
                store.count,
                store.size,
                last,
                channel.stored_subs,
                *channel.census(),
                channel.refused is not None,
                channel.mover is not None,
                store.limits,
            )
        )
    return rows
