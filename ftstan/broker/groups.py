"""Queue groups: who joins, what happens to the messages of who leaves, what stays of a durable
group without members.

Follows ``docs/compat/protocol.md`` (queue groups). A group is known by its channel and its stored
name: the name of the group, or ``durable:group``. Choosing members and sending to them is
``ftstan.broker.state`` and ``ftstan.broker.publishing``.

- The position of a group is the highest one that a record of a member carries. A member that leaves
  gives what it has pending, and the position if nobody else carries it, to those that stay,
  *before* its record is deleted: in whatever order a crash cuts them off, no message that the group
  has not acknowledged is forgotten.
- The last member of a durable group that closes becomes its *shadow*: a record without a client id,
  with the position and what is pending. The next member takes that record over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.base.log import stream as log
from ftstan.broker import constants as c
from ftstan.broker.records import state_of
from ftstan.broker.state import QueueGroup, Subscription

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.broker.base import BrokerBase
    from ftstan.broker.state import Channel
    from ftstan.wire import messages


def stored_name(request: messages.SubscriptionRequest) -> bytes:
    """The name by which the group of a request is known and stored."""
    if request.durable_name:
        return request.durable_name + b":" + request.q_group
    return request.q_group


class Groups:
    """The queue groups of all channels."""

    def __init__(self, broker: BrokerBase) -> None:
        self._broker = broker
        self._without_client: list[Subscription] = []

    # ---- joining
    # ----------------------------------------------------------------------------------------------

    def new_member(
        self, channel: Channel, request: messages.SubscriptionRequest, start: Callable[[], int]
    ) -> Subscription:
        """A subscription for a new member.

        ``start`` gives the position of a group that does not exist yet.
        """
        name = stored_name(request)
        group = channel.groups.get(name)
        last_sent = 0
        if group is None:
            last_sent = start()
            group = channel.groups[name] = QueueGroup(channel, name)
            group.last_sent = last_sent
        sub = Subscription(channel, channel.store.next_sub_id, group)
        sub.last_sent = last_sent
        return sub

    def joined(self, sub: Subscription, request: messages.SubscriptionRequest) -> None:
        """The member is in its group; its record is staged next."""
        group = _group(sub)
        if group.shadow is sub:
            group.shadow = None
        if request.durable_name and not group.durable:
            # A plain group may bear the name of a durable one: it is one group, and durable from
            # now on.
            group.durable = True
            for member in group.members():
                if member is not sub:
                    sub.channel.store.update_sub(state_of(member))

    # ---- leaving
    # ----------------------------------------------------------------------------------------------

    def leave(self, sub: Subscription, *, unsubscribe: bool) -> str:
        """A member has left: store what becomes of it; returns what that was, for the log."""
        group = _group(sub)
        if group.size:
            self.deal(sub)
            self.delete(sub)
            return (
                "Removed member from durable queue"
                if group.durable
                else "Removed member from queue"
            )
        if group.durable and not unsubscribe:
            self._make_shadow(sub)
            sub.channel.store.update_sub(state_of(sub))
            return "Suspended durable queue"
        del sub.channel.groups[group.name]
        self.delete(sub)
        return "Removed durable queue" if group.durable else "Removed queue"

    def delete(self, sub: Subscription) -> None:
        """Stage the removal of a record, and stop counting it."""
        sub.channel.store.delete_sub(sub.sub_id)
        self.discount(sub)

    @staticmethod
    def discount(sub: Subscription) -> None:
        """Stop counting the subscription as a stored one of its channel."""
        if sub.counted:
            sub.counted = False
            sub.channel.stored_subs -= 1

    def undo(self, sub: Subscription, *, resumed: bool, live: bool) -> None:
        """A member's record could not be stored.

        ``live``: it had not left by itself in the same batch.
        """
        group = _group(sub)
        if live and group.size:
            self.deal(sub)
            if resumed:
                self.delete(sub)
            else:
                self.discount(sub)
            return
        if live:
            self._make_shadow(sub)
        if resumed or group.shadow is not sub:
            return
        if group.stored and group.durable:
            # Those who were here before left in the same batch: the group's state is with this one
            # now.
            sub.channel.store.add_sub(state_of(sub))
        else:
            group.shadow = None
            self.discount(sub)
            del sub.channel.groups[group.name]

    @staticmethod
    def _make_shadow(sub: Subscription) -> None:
        group = _group(sub)
        # Monitoring goes on showing whose it was; its record has no client id
        # (``records.state_of``).
        group.shadow = sub
        sub.last_sent = group.last_sent
        sub.stalled = False

    def deal(self, leaver: Subscription, most: int = 0) -> None:
        """Deal what a leaver has pending to the members, round robin, and make sure that one
        carries the position.

        ``most``: so many of its messages, in no order; it is a member still, and the rest of it
        comes later.
        """
        broker = self._broker
        group = _group(leaver)
        channel = leaver.channel
        pending = leaver.pending.some(most) if most else leaver.pending.items()
        # Those that get something: a thousand members that leave one after the other would look at
        # each other a million times.
        members = [member for member in group.members(len(pending) + 1) if member is not leaver]
        owners = {}
        for i, (sequence, _, _) in enumerate(pending):
            owner = members[i % len(members)]
            broker.hand_over(leaver, owner, sequence, broker.now - c.MOVED_EXPIRY)
            owners[owner.sub_id] = owner
        for owner in owners.values():
            if owner.timer_at == 0 or owner.timer_at != owner.moved_at:
                owner.moved_at = broker.now + c.MOVED_DELAY
                broker.set_timer(owner, owner.moved_at)
            # Else members that come and go would put it off for ever.
        if channel.refused is not None:
            return
        # With the next commit, in front of the records staged below and of the one that ends the
        # leaver.
        channel.store.add_events(channel.events)
        # Who is behind was not the one that carried it.
        if not most and leaver.last_sent >= group.last_sent and not group.carries():
            heir = group.head
            assert heir is not None
            heir.last_sent = group.last_sent
            channel.store.update_sub(state_of(heir))

    # ---- recovery
    # ----------------------------------------------------------------------------------------------

    def adopt(self, sub: Subscription) -> None:
        """A recovered record of a member or a shadow.

        ``settle`` decides about those without a client.
        """
        group = _group(sub)
        group.stored = True
        group.last_sent = max(group.last_sent, sub.last_sent)
        if sub.client is None:
            self._without_client.append(sub)
            return
        group.untreated += 1
        group.on_hold |= len(sub.pending) > 0

    def settle(self, channel: Channel) -> None:
        """All records of the channel are here: give what has no client to the members, or keep it
        as the shadow.
        """
        rest = self._without_client
        self._without_client = []
        # The one with the highest position is kept.
        for sub in sorted(rest, key=lambda s: s.last_sent, reverse=True):
            group = _group(sub)
            if sub.client_id:
                log.warning(
                    f'channel "{_show(channel.name)}": member of queue group '
                    f'"{_show(group.name)}" of client '
                    f'"{_show(sub.client_id)}", which is not registered (subid={sub.sub_id})'
                )
            if group.size:
                self.deal(sub)
            elif group.shadow is not None:
                for sequence, _, _ in sub.pending.items():
                    self._broker.hand_over(sub, group.shadow, sequence, 0)
                if channel.refused is None:
                    channel.store.add_events(channel.events)
            elif group.durable:
                had_client = bool(sub.client_id)
                self._make_shadow(sub)
                if had_client and channel.refused is None:
                    channel.store.update_sub(state_of(sub))
                continue
            else:
                # Several of one group may have lost their client.
                channel.groups.pop(group.name, None)
            self.discount(sub)
            if channel.refused is None:
                channel.store.delete_sub(sub.sub_id)

    def treated(self, group: QueueGroup) -> None:
        """A recovered member's pending messages were looked at.

        After the last one, new messages flow.
        """
        group.untreated -= 1
        if group.untreated:
            return
        group.on_hold = False
        for member in group.members():
            member.pending.clear_counts()
        self._broker.enqueue(group)


def _group(sub: Subscription) -> QueueGroup:
    assert sub.group is not None
    return sub.group


def _show(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
