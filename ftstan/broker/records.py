"""What the store keeps: subscriptions, and the server's subjects (``docs/compat/filestore.md``,
subscriptions).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.broker.constants import SECOND
from ftstan.stores.interface import ServerInfo, StoredSub, SubState
from ftstan.wire.subjects import Subjects

if TYPE_CHECKING:
    from ftstan.broker.state import Channel, Subscription


def info_of(cluster_id: str, subjects: Subjects) -> ServerInfo:
    """The record of a server."""
    return ServerInfo(
        cluster_id=cluster_id,
        discovery=subjects.discovery,
        publish=subjects.publish,
        subscribe=subjects.subscribe,
        unsubscribe=subjects.unsubscribe,
        close=subjects.close,
        sub_close=subjects.sub_close,
        acks_subs=subjects.acks_subs,
    )


def subjects_of(info: ServerInfo, usual: Subjects) -> Subjects:
    """The subjects that clients of a store were told.

    What an old record does not have is as ``usual``.
    """
    return Subjects(
        discovery=info.discovery,
        publish=info.publish,
        subscribe=info.subscribe,
        unsubscribe=info.unsubscribe,
        sub_close=info.sub_close or usual.sub_close,
        close=info.close,
        acks_subs=info.acks_subs,
    )


def state_of(sub: Subscription) -> SubState:
    """The record of a subscription as it is now: an offline durable is closed, a shadow has no
    client id.
    """
    group = sub.group
    return SubState(
        sub_id=sub.sub_id,
        client_id=b"" if group is not None and group.shadow is sub else sub.client_id,
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


def all_subs(channel: Channel) -> list[Subscription]:
    """Every subscription of the channel: live ones, offline durables, queue groups with what stays
    of them.
    """
    kept = list(channel.subs)
    kept += [sub for sub in channel.durables.values() if sub.client is None]
    for group in channel.groups.values():
        kept += group.members()
        if group.shadow is not None:
            kept.append(group.shadow)
    return kept


def stored_subs(channel: Channel) -> list[StoredSub]:
    """What the channel's store must keep of every subscription, as it is now."""
    return [
        StoredSub(state_of(sub), {sequence for sequence, _, _ in sub.pending.items()})
        for sub in all_subs(channel)
    ]
