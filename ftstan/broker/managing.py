"""What operators look at and change in a broker: channels, clients, subscriptions, one short step
each.

Every function is called between two batches, on the data plane's thread. What has to be durable is
staged and promised: the future that comes back is settled when the batch that holds it is committed
and confirmed, so a server that has been fenced never says that something was done. Follows
``docs/admin.md``.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ftstan.base.errors import RefusedError, StoreError
from ftstan.base.log import stream as log
from ftstan.base.reserved import RESERVED_HINT, is_reserved
from ftstan.broker.constants import SECOND
from ftstan.broker.records import all_subs
from ftstan.broker.state import Channel
from ftstan.broker.views import SubRow
from ftstan.stores import purge_bound
from ftstan.wire.subjects import publishable, valid_channel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftstan.broker.broker import Broker
    from ftstan.broker.client import Client
    from ftstan.broker.state import Subscription
    from ftstan.stores.interface import ChannelStore

Row = dict[str, Any]


# ---- looking
# --------------------------------------------------------------------------------------------------


def find_channel(broker: Broker, name: bytes) -> Channel:
    """The channel of that name. Raises ``RefusedError`` if there is none, and ``StoreError``."""
    channel = broker.known_channel(name)
    if channel is None:
        raise RefusedError(f'there is no channel "{_show(name)}"', hint="see ftstanctl channel ls")
    return channel


def find_client(broker: Broker, client_id: bytes) -> Client:
    """The registered client of that id. Raises ``RefusedError`` if there is none."""
    client = broker.clients.get(client_id)
    if client is None:
        raise RefusedError(
            f'no client "{_show(client_id)}" is registered', hint="see ftstanctl client ls"
        )
    return client


def channel_rows(broker: Broker, names: Sequence[bytes]) -> list[Row]:
    """These channels, without those that are gone; opens those that recovery has left for later."""
    found = [channel for name in names if (channel := broker.known_channel(name)) is not None]
    return [channel_row(channel) for channel in found]


def channel_row(channel: Channel) -> Row:
    """What is shown of a channel, in the words of monitoring."""
    store = channel.store
    return {
        "name": _text(channel.name),
        "msgs": store.count,
        "bytes": store.size,
        "first_seq": store.first,
        "last_seq": store.last,
        "subscriptions": channel.stored_subs,
        "quarantined": channel.refused is not None,
        "moved": channel.mover is not None,
    }


def client_rows(broker: Broker, ids: Sequence[bytes]) -> list[Row]:
    """These clients, without those that are gone."""
    return [
        client_row(client)
        for client_id in ids
        if (client := broker.clients.get(client_id)) is not None
    ]


def client_row(client: Client) -> Row:
    """What is shown of a client."""
    return {
        "id": _text(client.client_id),
        "hb_inbox": _text(client.info.hb_inbox),
        "subscriptions": len(client.subs),
        "failed_heartbeats": client.failed,
    }


def sub_rows(
    broker: Broker, names: Sequence[bytes], client_id: bytes, after: tuple[bytes, int], most: int
) -> list[Row]:
    """At most ``most`` subscriptions of these channels, in this order and by their ids.

    Of one client if one is named.

    ``after``: the channel and the id that they come behind.
    """
    rows: list[Row] = []
    for name in names:
        channel = broker.known_channel(name)
        if channel is None:
            continue
        subs = [
            sub
            for sub in all_subs(channel)
            if (not client_id or sub.client_id == client_id)
            and (name != after[0] or sub.sub_id > after[1])
        ]
        rows += [sub_row(sub) for sub in sorted(subs, key=lambda s: s.sub_id)[: most - len(rows)]]
        if len(rows) >= most:
            break
    return rows


def find_sub(broker: Broker, name: bytes, sub_id: int) -> Subscription:
    """One subscription. Raises ``RefusedError`` if there is none of that id, or no such channel."""
    for sub in all_subs(find_channel(broker, name)):
        if sub.sub_id == sub_id:
            return sub
    raise RefusedError(
        f'channel "{_show(name)}" has no subscription {sub_id}', hint="see ftstanctl sub ls"
    )


def sub_row(sub: Subscription) -> Row:
    """What is shown of a subscription, in the words of monitoring; ``ack_wait`` in seconds.

    ``last_ack_ns``: the time of its client's last acknowledgement (Unix nanoseconds), 0 for none
    that this owner has seen.
    """
    seen = SubRow._make(sub.seen())
    return {
        "channel": _text(sub.channel.name),
        "id": sub.sub_id,
        "client_id": _text(seen.client_id),
        "inbox": _text(seen.inbox),
        "ack_inbox": _text(seen.ack_inbox),
        "durable_name": _text(seen.durable),
        "queue_name": _text(seen.queue),
        "is_durable": seen.is_durable,
        "is_offline": seen.is_offline,
        "max_inflight": seen.max_in_flight,
        "ack_wait": seen.ack_wait // SECOND,
        "last_sent": seen.last_sent,
        "pending_count": seen.pending,
        "is_stalled": seen.stalled,
        "last_ack_ns": sub.acked_at,
    }


def add_ages(broker: Broker, rows: Sequence[Row], wall_ns: int) -> None:
    """Add to rows of subscriptions how many seconds ago things were, ``None``: not known.

    ``last_ack_age_s``: since its client acknowledged something last, as far as this owner has seen;
    ``oldest_unread_age_s``: since the first stored message that it was not sent was published,
    which is read from the store: one read for each row that is behind.
    """
    for row in rows:
        acked_ns = row["last_ack_ns"]
        row["last_ack_age_s"] = _age(acked_ns, wall_ns)
        row["oldest_unread_age_s"] = None
        channel = broker.known_channel(row["channel"].encode("utf-8", "surrogateescape"))
        if channel is not None:
            group = channel.groups.get(row["queue_name"].encode("utf-8", "surrogateescape"))
            sent = row["last_sent"] if group is None else group.last_sent
            row["oldest_unread_age_s"] = _age(_published(channel, sent + 1), wall_ns)


def _published(channel: Channel, sequence: int) -> int:
    """When the first message at or after ``sequence`` was published (ns), 0: there is none, or it
    cannot be read.
    """
    store = channel.store
    if max(sequence, store.first) > store.last:
        return 0
    try:
        block = store.read(max(sequence, store.first), 1, 1)
    except StoreError:
        # The delivery tells of the damage; the report goes on without this age.
        return 0
    if block is None:
        return 0
    at = block.position(sequence)
    return block.timestamp(at) if at < len(block) else 0


def _age(then_ns: int, wall_ns: int) -> float | None:
    return round(max(wall_ns - then_ns, 0) / SECOND, 3) if then_ns else None


# ---- changing
# --------------------------------------------------------------------------------------------------


def create_channel(broker: Broker, name: bytes) -> Future[None]:
    """Make an empty channel, within the limits.

    Raises ``RefusedError``; the future may hold a ``StoreError``.
    """
    shown = _show(name)
    if not (valid_channel(name) and publishable(name)):
        raise RefusedError(
            f'"{shown}" cannot name a channel',
            hint="tokens between dots, none of them empty; no blanks, /, * or >",
        )
    if is_reserved(name):
        raise RefusedError(f'"{shown}" cannot name a channel', hint=RESERVED_HINT)
    if broker.known_channel(name) is not None:
        raise RefusedError(
            f'there is a channel "{shown}" already', hint="see ftstanctl channel info"
        )
    try:
        channel = broker.open_channel(name)
    except StoreError as error:
        raise RefusedError(error.text, hint=error.hint or "see the limits of channels") from error
    channel.store.keep()
    return _promise(broker, channel=channel)


def end_subscriptions(broker: Broker, channel: Channel) -> Future[None]:
    """Unsubscribe everybody, durables and queue groups too."""
    for sub in all_subs(channel):
        broker.subscriptions.detach(sub, unsubscribe=True)
    return _promise(broker, channel=channel)


def delete_channel(broker: Broker, channel: Channel) -> None:
    """Delete a channel that nobody subscribes to, durable and confirmed on return.

    Raises ``RefusedError`` if somebody does, ``StoreError``, and ``FencedError``.
    """
    count = len(all_subs(channel))
    if count:
        plural = "" if count == 1 else "s"
        raise RefusedError(
            f'channel "{_show(channel.name)}" has {count} subscription{plural}',
            hint="they, and where their durables stand, would be lost: --force says that this is "
            "meant",
        )
    broker.store.confirm()
    broker.store.delete_channel(channel.name)
    broker.drop_channel(channel)
    broker.store.confirm()
    log.info(f'Channel "{_show(channel.name)}" has been deleted', channel=channel.name)


def purge_channel(broker: Broker, channel: Channel, *, keep: int, up_to: int) -> Row:
    """Remove all messages of a channel but the newest ``keep``, or those up to the sequence
    ``up_to``.

    0: without that bound. Durable and confirmed on return; subscriptions stay, and what they have
    not acknowledged of it counts as expired. Returns ``purged`` and ``left``, in messages, and
    ``next``, the next message's sequence. Raises ``RefusedError``, ``StoreError`` and
    ``FencedError``.
    """
    if channel.refused is not None:
        raise RefusedError(
            _show(channel.refused),
            hint="nothing was purged; ftstanctl store repair ends the damage",
        )
    store = channel.store
    before = store.count
    sequence = purge_bound.bound(store, keep=keep, up_to=up_to)
    broker.store.confirm()
    try:
        if sequence > 0:
            store.purge(sequence)
    finally:
        broker.drop_caches()
    broker.store.confirm()
    row = {"purged": before - store.count, "left": store.count, "next": store.last + 1}
    log.info(
        f'Channel "{_show(channel.name)}" has been purged up to sequence {store.first - 1}: '
        f"{row['purged']} messages",
        channel=channel.name,
    )
    return row


def set_moved(broker: Broker, channel: Channel, mover: bytes | None) -> int:
    """Mark the channel as one that has moved: from now on only the client ``mover`` may publish to
    it; ``None``: everybody may again.

    Durable and confirmed on return. Returns the channel's last sequence: of a channel that has
    moved it is the final one. Raises ``RefusedError``, ``StoreError`` and ``FencedError``.
    """
    if channel.refused is not None:
        raise RefusedError(_show(channel.refused), hint="nothing was changed")
    if channel.applied != channel.store.last:
        # Its last sequence would not be the final one.
        raise StoreError(f'channel "{_show(channel.name)}" is in use', hint="try again")
    broker.store.confirm()
    try:
        channel.store.set_moved(mover)
    finally:
        # Also what was refused may be there, and is obeyed.
        channel.mover = channel.store.mover
    broker.store.confirm()
    if mover is None:
        log.info(f'Channel "{_show(channel.name)}" takes publishes again', channel=channel.name)
        broker.inactivity.check(channel)
    else:
        log.warning(
            f'Channel "{_show(channel.name)}" has moved: publishes are refused',
            channel=channel.name,
        )
    return channel.store.last


def promise_store(broker: Broker, store: ChannelStore) -> Future[None]:
    """Settled when what is staged in ``store``, of a channel that is not served here, is durable,
    and the datastore was ours after that.
    """
    return _promise(broker, channel=Channel(store.name, store))


def kick(broker: Broker, client: Client) -> Future[None]:
    """Close a client as one that does not answer heartbeats: its durables stay behind offline."""
    future: Future[None] = Future()

    def closed(error: str) -> None:
        _promise(broker, clients=True, client=client.client_id, future=future, error=error)

    broker.connections.remove(client, closed)
    return future


def _promise(
    broker: Broker,
    *,
    channel: Channel | None = None,
    clients: bool = False,
    client: bytes = b"",
    future: Future[None] | None = None,
    error: str = "",
) -> Future[None]:
    """Settled when everything staged is durable and the store was ours after that.

    ``error``: something was refused.
    """
    future = future or Future()

    def refused(text: str) -> bytes:
        # Whoever asked has a deadline, which a slow commit can outlast.
        if future.set_running_or_notify_cancel():
            future.set_exception(
                StoreError(text, hint="see the server's log; ask again when storage is well")
            )
        return b""

    def done() -> None:
        if error:
            refused(error)
        elif future.set_running_or_notify_cancel():
            future.set_result(None)

    broker.answer(
        b"", b"", channel=channel, clients=clients, client=client, refusal=refused, done=done
    )
    return future


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _show(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
