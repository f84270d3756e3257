"""Subscriptions as the store keeps them (``docs/compat/filestore.md``, subscriptions)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.broker.constants import SECOND
from ftstan.stores.interface import StoredSub, SubState

if TYPE_CHECKING:
    from ftstan.broker.state import Channel, Subscription


def state_of(sub: Subscription) -> SubState:
    """The record of a subscription as it is now: an offline durable is closed, a shadow has no client id."""
    group = sub.group
    return SubState(
        sub_id=sub.sub_id,
        client_id=sub.client_id,
        queue=group.name if group is not None else b"",
        inbox=sub.inbox,
        ack_inbox=sub.ack_inbox,
        max_in_flight=sub.max_in_flight,
        ack_wait_secs=sub.ack_wait // SECOND,
        durable_name=sub.durable,
        last_sent=sub.last_sent,
        is_durable=group.durable if group is not None else bool(sub.durable),
        is_closed=bool(sub.durable) and sub.client is None,
    )


def stored_subs(channel: Channel) -> list[StoredSub]:
    """Every subscription that the channel's store must keep, as it is now."""
    kept = list(channel.subs)
    kept += [sub for sub in channel.durables.values() if sub.client is None]
    for group in channel.groups.values():
        kept += group.members()
        if group.shadow is not None:
            kept.append(group.shadow)
    return [StoredSub(state_of(sub), {sequence for sequence, _, _ in sub.pending.items()}) for sub in kept]
