"""Subscriptions: subscribe, unsubscribe, close, resume, redelivery.

Follows ``docs/compat/protocol.md`` (subscribe, delivery, unsubscribing, recovery). A subscription gets its first
message only after its response has been put into the output (``ready``), and a resumed one first gets what it had not
acknowledged (``on_hold``).
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from ftstan.broker import constants as c
from ftstan.broker.client import Client
from ftstan.broker.core import FIRST_ACK_SID, Channel, Subscription
from ftstan.errors import StoreError, WireError
from ftstan.log import stream as log
from ftstan.stores.interface import StoredSub, SubState
from ftstan.wire import messages
from ftstan.wire.subjects import publishable, valid_channel

if TYPE_CHECKING:
    from ftstan.broker.broker import Broker


class Subscriptions:
    """The subscriptions of all channels."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._next_sid = FIRST_ACK_SID
        self._recovered: deque[Subscription] = deque()
        self._unserved: dict[bytes, list[StoredSub]] = {}

    # ---- subscribe -----------------------------------------------------------------------------------------------

    def subscribe(self, reply: bytes, payload: bytes) -> None:
        """A SubscriptionRequest."""
        try:
            request = messages.parse(messages.SubscriptionRequest, payload)
        except WireError:
            self._broker.answer(reply, messages.subscription_error(c.INVALID_SUBSCRIBE))
            return
        error = self._check(request)
        if not error:
            try:
                error = self._start(request, reply)
            except StoreError as refused:
                error = refused.text
        if error:
            self._broker.answer(reply, messages.subscription_error(error))

    def _check(self, request: messages.SubscriptionRequest) -> str:
        """What is wrong with the request, in the order in which the original looks."""
        if not request.client_id:
            return c.MISSING_CLIENT_ID
        if request.ack_wait_in_secs < 1:
            return c.INVALID_ACK_WAIT
        if request.max_in_flight < 1:
            return c.INVALID_MAX_IN_FLIGHT
        if not 0 <= request.start_position <= messages.StartPosition.FIRST:
            return c.INVALID_START
        if not valid_channel(request.subject):
            return c.INVALID_SUBJECT
        if request.client_id not in self._broker.clients:
            return c.UNKNOWN_CLIENT
        return ""

    def _start(self, request: messages.SubscriptionRequest, reply: bytes) -> str:
        broker = self._broker
        channel = broker.channels.get(request.subject)
        if channel is None:
            channel = broker.open_channel(request.subject)
        if channel.refused is not None:
            return channel.refused.decode()
        if request.q_group:
            return c.QUEUES_PLANNED
        client = broker.clients.get(request.client_id)
        assert client is not None
        key = (request.client_id, request.durable_name)
        sub = channel.durables.get(key) if request.durable_name else None
        if sub is not None and sub.client is not None:
            return c.DUPLICATE_DURABLE
        resumed = sub is not None
        if sub is None:
            limit = broker.options.limits.max_subs
            if limit and channel.stored_subs >= limit:
                return c.TOO_MANY_SUBS
            sub = Subscription(channel, channel.store.next_sub_id)
            sub.durable = request.durable_name
            sub.client_id = request.client_id
            sub.last_sent = self._start_position(channel, request)
        sub.inbox = request.inbox
        sub.ack_inbox = broker.new_inbox()
        sub.max_in_flight = request.max_in_flight
        sub.ack_wait = request.ack_wait_in_secs * c.SECOND
        sub.stalled = sub.blocked = sub.hb_failed = sub.ready = False
        sub.on_hold = len(sub.pending) > 0
        self._attach(sub, client)
        state = self._state(sub)
        if resumed:
            channel.store.update_sub(state)
        else:
            channel.stored_subs += 1
            channel.store.add_sub(state)
            if sub.durable:
                channel.durables[key] = sub
        broker.answer(
            reply,
            messages.subscription_response(sub.ack_inbox),
            channel=channel,
            refusal=messages.subscription_error,
            done=partial(self._begin, sub),
            undo=partial(self._undo, sub, resumed=resumed),
        )
        log.debug(
            f"[Client:{client.shown()}] {'Resumed' if resumed else 'Started new'}"
            f"{' durable' if sub.durable else ''} subscription, subject={_show(channel.name)}, "
            f"inbox={_show(sub.inbox)},{f' durable={_show(sub.durable)},' if sub.durable else ''} subid={sub.sub_id}"
        )
        return ""

    def _start_position(self, channel: Channel, request: messages.SubscriptionRequest) -> int:
        """The sequence before the first one to deliver. What is applied but not durable counts as new."""
        store = channel.store
        # The store looks for what is too old once a second; a new reader must not get what has outlived its age since.
        store.expire(self._broker.wall)
        first, last = store.first, store.last
        position = request.start_position
        if last == 0 or position == messages.StartPosition.NEW_ONLY:
            return last
        if position == messages.StartPosition.LAST_RECEIVED:
            return last - 1
        if position == messages.StartPosition.FIRST:
            return first - 1
        if position == messages.StartPosition.SEQUENCE_START:
            return min(max(request.start_sequence, first) - 1, last)
        delta = request.start_time_delta
        return min(store.sequence_at(self._broker.wall - delta) - 1, last) if delta > 0 else last

    def _attach(self, sub: Subscription, client: Client) -> None:
        """Make the subscription live: its acks are understood from here on."""
        broker = self._broker
        sub.attach(client)
        sub.sid = self._next_sid
        self._next_sid += 1
        broker.by_sid[sub.sid] = sub
        sub.channel.by_ack_inbox[sub.ack_inbox] = sub
        sub.channel.by_inbox[sub.inbox] = sub
        sub.channel.subs.append(sub)
        client.subs.append(sub)

    def _begin(self, sub: Subscription) -> None:
        """The record is durable: listen for acks, answer, and only then deliver."""
        broker = self._broker
        if sub.client is None:
            return
        broker.replies.write(b"SUB %b %d\r\n" % (sub.ack_inbox, sub.sid))
        sub.ready = publishable(sub.inbox)
        if not sub.ready:
            log.error(
                f"[Client:{_show(sub.client_id)}] inbox {_show(sub.inbox)!r} of a subscription on "
                f"{_show(sub.channel.name)} is not a subject: nothing can be delivered to it"
            )
            return
        broker.start_jobs.append(partial(self._first_delivery, sub))

    def _first_delivery(self, sub: Subscription) -> None:
        if sub.client is None or not sub.ready:
            return
        for sequence in sorted(s for s, _, _ in sub.pending.items()):
            try:
                self._broker.redeliver(sub, sequence)
            except StoreError as error:
                self._broker.on_read_error(sub, error)
                break
        sub.on_hold = False
        if len(sub.pending):
            self._arm(sub, self._broker.now + sub.ack_wait)
        self._broker.enqueue(sub)

    def _undo(self, sub: Subscription, *, resumed: bool) -> None:
        """The record could not be stored: as if the request had never come."""
        self._forget(sub)
        if not resumed:
            sub.channel.stored_subs -= 1
            if sub.durable:
                sub.channel.durables.pop((sub.client_id, sub.durable), None)

    def _forget(self, sub: Subscription) -> None:
        """Take a live subscription out of every index."""
        broker = self._broker
        channel = sub.channel
        broker.by_sid.pop(sub.sid, None)
        channel.by_ack_inbox.pop(sub.ack_inbox, None)
        if channel.by_inbox.get(sub.inbox) is sub:
            del channel.by_inbox[sub.inbox]
        if sub in channel.subs:
            # The last one moves into the hole, as clients of the original have always seen it.
            i = channel.subs.index(sub)
            last = channel.subs.pop()
            if last is not sub:
                channel.subs[i] = last
        if sub.client is not None:
            client = sub.client
            assert isinstance(client, Client)
            client.subs.remove(sub)
        sub.attach(None)
        sub.ready = False
        sub.timer_at = 0

    @staticmethod
    def _state(sub: Subscription, *, closed: bool = False) -> SubState:
        return SubState(
            sub_id=sub.sub_id,
            client_id=sub.client_id,
            inbox=sub.inbox,
            ack_inbox=sub.ack_inbox,
            max_in_flight=sub.max_in_flight,
            ack_wait_secs=sub.ack_wait // c.SECOND,
            durable_name=sub.durable,
            last_sent=sub.last_sent,
            is_durable=bool(sub.durable),
            is_closed=closed,
        )

    # ---- unsubscribe, close --------------------------------------------------------------------------------------

    def unsubscribe(self, reply: bytes, payload: bytes, *, close: bool) -> None:
        """An UnsubscribeRequest; ``close`` keeps a durable's state."""
        broker = self._broker
        try:
            request = messages.parse(messages.UnsubscribeRequest, payload)
        except WireError:
            broker.answer(reply, messages.subscription_error(c.INVALID_UNSUBSCRIBE))
            return
        channel = broker.channels.get(request.subject)
        if channel is None:
            broker.answer(reply, messages.subscription_error(c.UNKNOWN_CHANNEL))
            return
        sub = channel.by_ack_inbox.get(request.inbox) or channel.by_inbox.get(request.inbox)
        if sub is None:
            broker.answer(reply, messages.subscription_error(c.INVALID_SUBSCRIPTION))
            return
        client = broker.clients.get(request.client_id)
        if client is None or sub.client is not client:
            broker.answer(reply, messages.subscription_error(c.UNKNOWN_CLIENT))
            return
        self.detach(sub, unsubscribe=not close)
        broker.answer(reply, messages.subscription_response(), channel=channel, refusal=messages.subscription_error)

    def detach(self, sub: Subscription, *, unsubscribe: bool) -> None:
        """End a live subscription; a durable that is not unsubscribed stays behind offline."""
        broker = self._broker
        channel = sub.channel
        if sub.sid in broker.by_sid:
            broker.replies.write(b"UNSUB %d\r\n" % sub.sid)
        client_id = sub.client_id
        self._forget(sub)
        if sub.durable and not unsubscribe:
            channel.store.update_sub(self._state(sub, closed=True))
            action = "Suspended durable"
        else:
            channel.store.delete_sub(sub.sub_id)
            channel.stored_subs -= 1
            if sub.durable:
                channel.durables.pop((client_id, sub.durable), None)
            action = "Removed durable" if sub.durable else "Removed"
        log.debug(
            f"[Client:{_show(client_id)}] {action} subscription, subject={_show(channel.name)}, "
            f"inbox={_show(sub.inbox)}, subid={sub.sub_id}"
        )

    # ---- redelivery ----------------------------------------------------------------------------------------------

    def _arm(self, sub: Subscription, at: int) -> None:
        self._broker.arm(sub, at)

    def on_ack_timer(self, sub: Subscription) -> None:
        """Resend what was not acknowledged in time, in order of expiry, whatever the window says."""
        broker = self._broker
        if sub.client is None or not sub.ready or not len(sub.pending):
            return
        if sub.hb_failed:
            self._arm(sub, broker.now + sub.ack_wait)
            return
        due, following = sub.pending.due(broker.now + c.REDELIVERY_LOOK_AHEAD)
        self._arm(sub, following or broker.now + sub.ack_wait)
        self._resend(sub, due)

    def _resend(self, sub: Subscription, due: list[int]) -> None:
        """Resend ``due``; what is too much for one emit goes with the next, and nothing goes twice."""
        broker = self._broker
        if sub.client is None or not sub.ready:
            return
        for i, sequence in enumerate(due):
            if len(broker.deliveries) > broker.budget:
                broker.timers.at(broker.now, partial(self._resend, sub, due[i:]))
                return
            if sequence not in sub.pending:
                continue
            try:
                broker.redeliver(sub, sequence)
            except StoreError as error:
                broker.on_read_error(sub, error)
                break
        if sub.stalled and len(sub.pending) < sub.max_in_flight:
            sub.stalled = False
            broker.enqueue(sub)

    # ---- recovery ------------------------------------------------------------------------------------------------

    def snapshot(self, channel: Channel) -> list[StoredSub]:
        """Every subscription that the channel's store must keep, as it is now."""
        live: list[Subscription] = channel.subs
        offline = [sub for sub in channel.durables.values() if sub.client is None]
        kept = [
            StoredSub(self._state(sub, closed=sub.client is None), {seq for seq, _, _ in sub.pending.items()})
            for sub in (*live, *offline)
        ]
        return kept + self._unserved.get(channel.name, [])

    def adopt(self, channel: Channel, stored: StoredSub) -> None:
        """Rebuild a subscription that the store kept."""
        state = stored.state
        channel.stored_subs += 1
        if state.queue:
            self._unserved.setdefault(channel.name, []).append(stored)
            log.warning(
                f'channel "{_show(channel.name)}": queue subscription {_show(state.queue)!r} is kept in the store but '
                "not served: queue subscriptions are not supported by this version"
            )
            return
        client = None if state.is_closed else self._broker.clients.get(state.client_id)
        if client is None and not state.is_durable:
            # Its client closed and the record of the removal was lost with a crash.
            if channel.refused is None:
                channel.store.delete_sub(state.sub_id)
            channel.stored_subs -= 1
            return
        sub = Subscription(channel, state.sub_id)
        sub.durable = state.durable_name
        sub.client_id = state.client_id
        sub.inbox = state.inbox
        sub.ack_inbox = state.ack_inbox
        sub.max_in_flight = state.max_in_flight
        sub.ack_wait = state.ack_wait_secs * c.SECOND
        sub.last_sent = state.last_sent
        for sequence in stored.pending:
            sub.pending.add(sequence)
        if state.is_durable:
            channel.durables[(state.client_id, state.durable_name)] = sub
        if client is None:
            return
        self._attach(sub, client)
        sub.on_hold = len(sub.pending) > 0
        sub.stalled = len(sub.pending) >= sub.max_in_flight
        sub.ready = publishable(sub.inbox) and publishable(sub.ack_inbox)
        self._recovered.append(sub)

    @property
    def recovering(self) -> bool:
        """Whether recovered subscriptions still wait for their first look."""
        return bool(self._recovered)

    def start_recovered(self) -> None:
        """Take some recovered subscriptions: resend what is overdue, set timers for the rest, let new messages flow."""
        for _ in range(min(c.RECOVERED_PER_TURN, len(self._recovered))):
            sub = self._recovered.popleft()
            if sub.client is None or not sub.ready:
                continue
            try:
                self._restart(sub)
            except StoreError as error:
                self._broker.on_read_error(sub, error)
            sub.on_hold = False
            self._broker.enqueue(sub)

    def _restart(self, sub: Subscription) -> None:
        broker = self._broker
        for sequence in sorted(s for s, _, _ in sub.pending.items()):
            stamped = broker.timestamp_of(sub.channel, sequence)
            if not stamped:
                broker.note_implied_ack(sub, sequence)
                continue
            # A restart forgets when it was sent; it cannot have been before it was stored.
            sub.pending.add(sequence, max(broker.now + stamped + sub.ack_wait - broker.wall, 1))
        sub.stalled = len(sub.pending) >= sub.max_in_flight
        self.on_ack_timer(sub)


def _show(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
