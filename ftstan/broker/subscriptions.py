"""Subscriptions: subscribe, unsubscribe, close, resume, redelivery.

Follows ``docs/compat/protocol.md`` (subscribe, delivery, unsubscribing, recovery). A subscription
gets its first message only after its response has been put into the output (``ready``), and a
resumed one first gets what it had not acknowledged (``on_hold``).
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from ftstan.base.errors import StoreError, WireError
from ftstan.base.log import stream as log
from ftstan.broker import constants as c
from ftstan.broker.bounds import excess_of_subscribe
from ftstan.broker.client import Client
from ftstan.broker.groups import Groups, stored_name
from ftstan.broker.malformed import quoted
from ftstan.broker.records import all_subs, state_of
from ftstan.broker.resending import Resending
from ftstan.broker.state import Channel, QueueGroup, Subscription
from ftstan.wire import messages
from ftstan.wire.subjects import publishable, valid_channel

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from ftstan.broker.base import BrokerBase
    from ftstan.stores.interface import StoredSub


class Subscriptions:
    """The subscriptions of all channels."""

    def __init__(self, broker: BrokerBase) -> None:
        self._broker = broker
        self._next_sid = broker.publish_end
        self._groups = Groups(broker)
        self.resending = Resending(broker, self._groups)

    # ---- subscribe
    # ----------------------------------------------------------------------------------------------

    def subscribe(self, reply: bytes, payload: bytes) -> None:
        """Handle a SubscriptionRequest."""
        try:
            request = messages.parse(messages.SubscriptionRequest, payload)
        except WireError as undecodable:
            self._broker.on_malformed("subscribe", b"", undecodable.text)
            self._broker.answer(reply, messages.subscription_error(c.INVALID_SUBSCRIBE))
            return
        error = self._check(request)
        if error:
            self._broker.on_malformed("subscribe", request.client_id, error)
        elif not self._broker.owns(request.subject):
            # Another partition answers, or nobody.
            again = partial(self.subscribe, reply, payload)
            self._keep(request.subject, request.inbox, reply, again)
            return
        elif self._is_held(request, reply, payload):
            return
        elif request.client_id not in self._broker.clients:
            error = c.UNKNOWN_CLIENT if self._broker.partition is None else c.INVALID_SUBSCRIBE
        else:
            try:
                error = self._start(request, reply)
            except StoreError as refused:
                error = refused.text
            if error:
                log.error(
                    f"Unable to create subscription on {quoted(request.subject)}: {error}",
                    backs_off="subscribe",
                )
            channel = self._broker.channels.get(request.subject)
            if error and channel is not None:
                self._broker.inactivity.check(channel)
        self._note(request.subject, reply)
        if error:
            self._broker.answer(reply, messages.subscription_error(error))

    def _is_held(self, request: messages.SubscriptionRequest, reply: bytes, payload: bytes) -> bool:
        """Whether the request waits for its client to be registered, or for it to be certain who
        has its id: a subscription names no connection, and ends with the session it was made in.
        """
        broker = self._broker
        if broker.partition is None:
            return False
        client = broker.clients.get(request.client_id)
        if client is not None and broker.connections.is_certain(client):
            return False
        again = partial(self.subscribe, reply, payload)
        if broker.pending_registrations.hold(
            request.client_id, b"", again, len(payload), broker.now
        ):
            return True
        if client is None:
            log.error(
                f"[Client:{_show(request.client_id)}] Rejecting subscription on "
                f"{quoted(request.subject)}: "
                "connection not created yet",
                backs_off="subscription without a client",
            )
        return False

    def _keep(self, name: bytes, inbox: bytes, reply: bytes, again: Callable[[], None]) -> None:
        """Keep a request about a channel that is on its way here: nobody else may answer it."""
        arrival = self._broker.arrivals.get(name)
        if arrival is not None:
            arrival.keep_request(inbox, reply, again)

    def _note(self, name: bytes, reply: bytes) -> None:
        """A request about a channel that leaves is answered here: its next server leaves it out."""
        done = self._broker.carried_out.get(name)
        if done is not None:
            done.add(reply)

    def on_ack_timer(self, sub: Subscription) -> None:
        """Send messages again that the subscription did not acknowledge in time."""
        self.resending.on_ack_timer(sub)

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
        if excess := excess_of_subscribe(request):
            return excess
        if not valid_channel(request.subject):
            return c.INVALID_SUBJECT
        return ""

    def _start(self, request: messages.SubscriptionRequest, reply: bytes) -> str:
        broker = self._broker
        channel = broker.open_channel(request.subject)
        if channel.refused is not None:
            return channel.refused.decode()
        client = broker.clients.get(request.client_id)
        assert client is not None
        if request.q_group and b":" in request.durable_name:
            return c.DURABLE_QUEUE_COLON
        sub = self._kept(channel, request)
        if sub is not None and sub.client is not None:
            if not broker.options.replace_durable:
                text = f"[Client:{client.shown()}] Duplicate durable subscription registration"
                log.error(
                    text,
                    backs_off="duplicate durable",
                    client=client.client_id,
                    channel=channel.name,
                )
                return c.DUPLICATE_DURABLE
            self.detach(sub, unsubscribe=False)
        resumed = sub is not None
        if sub is None:
            limit = channel.store.limits.max_subs
            if limit and channel.stored_subs >= limit:
                return c.TOO_MANY_SUBS
            sub = self._new(channel, request)
            sub.counted = True
            channel.stored_subs += 1
        sub.client_id = request.client_id
        sub.inbox = request.inbox
        sub.ack_inbox = client.marked(broker.new_inbox())
        sub.max_in_flight = request.max_in_flight
        sub.ack_wait = request.ack_wait_in_secs * c.SECOND
        sub.stalled = sub.hb_failed = sub.ready = False
        sub.on_hold = len(sub.pending) > 0
        self._attach(sub, client)
        if sub.group is not None:
            self._groups.joined(sub, request)
        if resumed:
            channel.store.update_sub(state_of(sub))
        else:
            channel.store.add_sub(state_of(sub))
        broker.answer(
            reply,
            messages.subscription_response(sub.ack_inbox),
            channel=channel,
            refusal=messages.subscription_error,
            done=partial(self._begin, sub, sub.sid),
            undo=partial(self._undo, sub, resumed=resumed),
        )
        if log.debug_on:
            self._tell_start(sub, request, resumed=resumed)
        return ""

    def _tell_start(
        self, sub: Subscription, request: messages.SubscriptionRequest, *, resumed: bool
    ) -> None:
        joined = sub.group is not None and sub.group.size > 1
        if resumed or joined:
            _tell(sub, sub.client_id, f"{'Resumed' if resumed else 'Added member to'}{_kind(sub)}")
            return
        following = sub.last_sent + 1
        match request.start_position:
            case messages.StartPosition.NEW_ONLY:
                start = f"new-only, seq={following}"
            case messages.StartPosition.LAST_RECEIVED:
                start = f"last message, seq={following}"
            case messages.StartPosition.FIRST:
                start = f"from beginning, seq={following}"
            case messages.StartPosition.SEQUENCE_START:
                start = f"from sequence, asked_seq={request.start_sequence} actual_seq={following}"
            case _:
                since = _shown_time(self._broker.wall - request.start_time_delta)
                start = f"from time time={since} seq={following}"
        _tell(sub, sub.client_id, f"Started new{_kind(sub)}", f", sending {start}")

    @staticmethod
    def _kept(channel: Channel, request: messages.SubscriptionRequest) -> Subscription | None:
        """The subscription that the request would resume: a durable, or the shadow of a durable
        group.
        """
        if request.q_group:
            group = channel.groups.get(stored_name(request))
            return None if group is None else group.shadow
        return channel.durables.get((request.client_id, request.durable_name))

    def _new(self, channel: Channel, request: messages.SubscriptionRequest) -> Subscription:
        start = partial(self._start_position, channel, request)
        if request.q_group:
            return self._groups.new_member(channel, request, start)
        sub = Subscription(channel, channel.store.next_sub_id)
        sub.last_sent = start()
        if request.durable_name:
            sub.durable = request.durable_name
            channel.durables[(request.client_id, request.durable_name)] = sub
        return sub

    def _start_position(self, channel: Channel, request: messages.SubscriptionRequest) -> int:
        """The sequence before the first one to deliver.

        What is applied but not durable counts as new.
        """
        store = channel.store
        # The store looks for what is too old once a second; a new reader must not get what has
        # outlived its age since.
        store.expire(self._broker.wall)
        first = store.first
        last = store.last
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
        if sub.group is not None:
            sub.group.add(sub)
        else:
            sub.place = len(sub.channel.subs)
            sub.channel.subs.append(sub)
        client.subs[sub] = None

    def _begin(self, sub: Subscription, sid: int) -> None:
        """The record is durable: listen for acks, answer, and only then deliver."""
        broker = self._broker
        group = sub.group
        if group is not None:
            group.stored = True
        if sub.client is None or sub.sid != sid or broker.closing.is_leaving(sub):
            # It left in the batch that brought it, or came back.
            return
        broker.replies.write(b"SUB %b %d\r\n" % (sub.ack_inbox, sub.sid))
        sub.ready = broker.subjects.is_inbox(sub.inbox)
        if not sub.ready:
            log.error(
                f"[Client:{_show(sub.client_id)}] inbox {_show(sub.inbox)!r} of a subscription on "
                f"{_show(sub.channel.name)} is not a subject for clients: nothing can be "
                "delivered to it",
                backs_off="inbox",
            )
        if group is not None:
            group.update(sub)
            if sub.on_hold:
                group.resuming = sub
        broker.start_jobs.append(partial(self._first_delivery, sub))

    def _first_delivery(self, sub: Subscription) -> None:
        if sub.client is not None and sub.ready:
            self.resending.resume(sub, partial(self._release, sub))
        else:
            self._release(sub)

    def _release(self, sub: Subscription) -> None:
        """Let the subscription have new messages from now on."""
        sub.on_hold = False
        if sub.group is not None and sub.group.resuming is sub:
            sub.group.resuming = None
        self._broker.enqueue(sub)

    def _undo(self, sub: Subscription, *, resumed: bool) -> None:
        """The record could not be stored: as if the request had never come."""
        live = sub.client is not None
        self._forget(sub)
        if sub.group is not None:
            self._groups.undo(sub, resumed=resumed, live=live)
        elif not resumed:
            self._groups.discount(sub)
            if sub.channel.durables.get((sub.client_id, sub.durable)) is sub:
                del sub.channel.durables[(sub.client_id, sub.durable)]
        self._broker.inactivity.check(sub.channel)

    def _forget(self, sub: Subscription) -> None:
        """Take a live subscription out of every index."""
        broker = self._broker
        channel = sub.channel
        broker.by_sid.pop(sub.sid, None)
        channel.by_ack_inbox.pop(sub.ack_inbox, None)
        if channel.by_inbox.get(sub.inbox) is sub:
            del channel.by_inbox[sub.inbox]
        if sub.group is not None:
            if sub.client is not None:
                sub.group.remove(sub)
            if sub.group.resuming is sub:
                sub.group.resuming = None
                broker.enqueue(sub.group)
        elif sub.client is not None:
            # The last one moves into the hole, as clients of the original have always seen it.
            last = channel.subs.pop()
            if last is not sub:
                channel.subs[sub.place] = last
                last.place = sub.place
        if sub.client is not None:
            client = sub.client
            assert isinstance(client, Client)
            del client.subs[sub]
        sub.attach(None)
        sub.ready = False
        broker.drop_timer(sub)

    # ---- unsubscribe, close
    # --------------------------------------------------------------------------------------

    def unsubscribe(self, reply: bytes, payload: bytes, *, close: bool) -> None:
        """Handle an UnsubscribeRequest; ``close`` keeps a durable's state."""
        broker = self._broker
        try:
            request = messages.parse(messages.UnsubscribeRequest, payload)
        except WireError as undecodable:
            broker.on_malformed(
                "subscription close" if close else "unsubscribe", b"", undecodable.text
            )
            broker.answer(reply, messages.subscription_error(c.INVALID_UNSUBSCRIBE))
            return
        if not broker.owns(request.subject):
            again = partial(self.unsubscribe, reply, payload, close=close)
            self._keep(request.subject, b"", reply, again)
            return
        self._note(request.subject, reply)
        try:
            channel = broker.known_channel(request.subject)
        except StoreError as error:
            broker.answer(reply, messages.subscription_error(error.text))
            return
        if channel is None:
            broker.answer(reply, messages.subscription_error(c.UNKNOWN_CHANNEL))
            return
        sub = channel.by_ack_inbox.get(request.inbox) or channel.by_inbox.get(request.inbox)
        if sub is None or broker.closing.is_leaving(sub):
            broker.answer(reply, messages.subscription_error(c.INVALID_SUBSCRIPTION))
            return
        client = broker.clients.get(request.client_id)
        if client is None or sub.client is not client:
            broker.answer(reply, messages.subscription_error(c.UNKNOWN_CLIENT))
            return

        def left(_: str) -> None:
            done = messages.subscription_response()
            broker.answer(reply, done, channel=channel, refusal=messages.subscription_error)

        broker.closing.subscription(sub, left, unsubscribe=not close)

    def deal(self, sub: Subscription, most: int) -> None:
        """Deal so many of a queue member's pending messages to the others; it is about to leave."""
        self._groups.deal(sub, most)

    def detach(self, sub: Subscription, *, unsubscribe: bool) -> None:
        """End a live subscription; a durable that is not unsubscribed stays behind offline."""
        broker = self._broker
        channel = sub.channel
        if sub.sid in broker.by_sid:
            broker.replies.write(b"UNSUB %d\r\n" % sub.sid)
        client_id = sub.client_id
        self._forget(sub)
        if sub.group is not None:
            action = self._groups.leave(sub, unsubscribe=unsubscribe)
        elif sub.durable and not unsubscribe:
            channel.store.update_sub(state_of(sub))
            action = "Suspended durable"
        else:
            self._groups.delete(sub)
            if sub.durable:
                del channel.durables[(client_id, sub.durable)]
            action = "Removed durable" if sub.durable else "Removed"
        broker.inactivity.check(channel)
        if log.debug_on:
            _tell(sub, client_id, action)

    # ---- recovery
    # ----------------------------------------------------------------------------------------------

    def adopt_all(
        self,
        channel: Channel,
        stored: Iterable[StoredSub] | None = None,
        same: Container[bytes] = (),
    ) -> None:
        """Rebuild the subscriptions that a channel's store kept, or ``stored``.

        ``same``: ids of clients that are those which these subscriptions belong to, also if they
        have come since the start.
        """
        for each in channel.store.recovered_subs() if stored is None else stored:
            self._adopt(channel, each, same)
        self._groups.settle(channel)

    def let_go(self, channel: Channel) -> None:
        """Forget the live subscriptions of a channel that another server goes on with; nothing of
        them is stored.
        """
        for sub in all_subs(channel):
            if sub.client is not None:
                self._forget(sub)
        waiting = self.resending.recovering
        left = [sub for sub in waiting if sub.channel is not channel]
        if len(left) < len(waiting):
            self.resending.recovering.clear()
            self.resending.recovering.extend(left)

    def _adopt(self, channel: Channel, stored: StoredSub, same: Container[bytes]) -> None:
        state = stored.state
        client = (
            None
            if state.is_closed and not state.queue
            else self._broker.clients.get(state.client_id)
        )
        if client is not None and not (
            (client.recovered or client.client_id in same) and client.may_have_made(state.ack_inbox)
        ):
            # The client that it belonged to is gone, and this one took its id since: here, in whose
            # start the channel was not opened, or at a former owner that ended before the end of
            # this subscription was stored.
            client = None
        if client is None and not state.is_durable and not state.queue:
            # Its client closed and the record of the removal was lost with a crash.
            if channel.refused is None:
                channel.store.delete_sub(state.sub_id)
            return
        group = None
        if state.queue:
            group = channel.groups.get(state.queue)
            if group is None:
                group = channel.groups[state.queue] = QueueGroup(channel, state.queue)
            group.durable |= state.is_durable
        sub = Subscription(channel, state.sub_id, group)
        sub.counted = True
        channel.stored_subs += 1
        sub.durable = state.durable_name
        sub.client_id = state.client_id
        sub.inbox = state.inbox
        sub.ack_inbox = state.ack_inbox
        sub.max_in_flight = state.max_in_flight
        sub.ack_wait = state.ack_wait_secs * c.SECOND
        sub.last_sent = state.last_sent
        for sequence in stored.pending:
            sub.pending.add(sequence)
        if group is None and state.is_durable:
            channel.durables[(state.client_id, state.durable_name)] = sub
        if client is not None:
            sub.on_hold = len(sub.pending) > 0
            sub.stalled = len(sub.pending) >= sub.max_in_flight
            sub.ready = self._broker.subjects.is_inbox(sub.inbox) and publishable(sub.ack_inbox)
            self._attach(sub, client)
            self.resending.recovering.append(sub)
        elif group is None and not state.is_closed and channel.refused is None:
            # Else the next start gives it to whoever has the client's id by then.
            channel.store.update_sub(state_of(sub))
        if group is not None:
            self._groups.adopt(sub)


def _kind(sub: Subscription) -> str:
    if sub.group is not None:
        return " durable queue" if sub.group.durable else " queue"
    return " durable" if sub.durable else ""


def _shown_time(wall_ns: int) -> str:
    """As the original's debug lines have it: nanoseconds without trailing zeros, offset, zone."""
    seconds, nanos = divmod(wall_ns, c.SECOND)
    fraction = f".{nanos:09d}".rstrip("0") if nanos else ""
    local = datetime.fromtimestamp(seconds).astimezone()
    return f"{local:%Y-%m-%d %H:%M:%S}{fraction} {local:%z %Z}"


def _tell(sub: Subscription, client_id: bytes, action: str, start: str = "") -> None:
    """Write the debug line about a subscription's change."""
    extra = ""
    if sub.group is not None:
        extra = f" queue={_show(sub.group.name)},"
    elif sub.durable:
        extra = f" durable={_show(sub.durable)},"
    log.debug(
        f"[Client:{_show(client_id)}] {action} subscription, subject={_show(sub.channel.name)}, "
        f"inbox={_show(sub.inbox)},{extra} subid={sub.sub_id}{start}",
        client=client_id,
        channel=sub.channel.name,
        subid=sub.sub_id,
    )


def _show(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
