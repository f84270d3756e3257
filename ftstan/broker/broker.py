"""Broker: what STAN means, as an actor without I/O and without a clock.

The data plane drives one batch at a time: ``feed`` (bytes in), ``run_timers``, ``stage``, then the
store's commit and its confirmation, then ``conclude`` (what failed), and the output is in
``replies``, ``deliveries`` and ``acks``, to be sent in this order. Answers wait until their record
is durable: ``answer`` keeps them back until ``conclude``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ftstan.base.errors import QuarantineError, StoreError
from ftstan.base.log import stream as log
from ftstan.base.reserved import RESERVED_HINT, is_reserved
from ftstan.broker import constants as c
from ftstan.broker.ahead import tell_ahead
from ftstan.broker.base import BrokerBase, BrokerOptions
from ftstan.broker.bounds import CROWDED, CROWDED_REFUSALS, LARGE, REFUSALS, exhausted
from ftstan.broker.channel_expiry import ChannelExpiry
from ftstan.broker.closing import Closing
from ftstan.broker.connections import Connections
from ftstan.broker.lines import ack_lines, publish_rows
from ftstan.broker.malformed import quoted
from ftstan.broker.new_channels import NewChannels
from ftstan.broker.publishing import HAS_MOVED, SERVERS_REPLY
from ftstan.broker.records import all_subs, stored_subs
from ftstan.broker.request_queue import RequestQueue
from ftstan.broker.skipped import Skipped
from ftstan.broker.state import Channel, Subscription
from ftstan.broker.subscriptions import Subscriptions
from ftstan.broker.tracing import Tracing
from ftstan.broker.unread import Unread
from ftstan.config.limits import Limits, changes
from ftstan.stores.interface import CLIENTS, ChannelStore, Recovered, Store, StoredSub, client_key
from ftstan.wire.subjects import valid_channel

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from ftstan.broker.dead_letters import DeadLetters
    from ftstan.config.options import StoreLimits
    from ftstan.wire.nuid import Nuid
    from ftstan.wire.subjects import Subjects


__all__ = ["Broker", "BrokerOptions"]


class Broker(BrokerBase):
    """One server's clients, channels and subscriptions."""

    subscriptions: Subscriptions
    inactivity: ChannelExpiry
    closing: Closing
    connections: Connections

    def __init__(
        self, store: Store, subjects: Subjects, options: BrokerOptions, nuid: Nuid
    ) -> None:
        super().__init__(store, subjects, options, nuid)
        self.limits = Limits(options.store_limits)
        self.link_events: list[tuple[int, bytes]] = []
        self._folded: dict[str, list[bytes]] = {}
        self._was_lost = False
        self._skipped = Skipped()
        self._tracing = Tracing()
        self._trace_or_not()
        self._unread = Unread(self)
        self.connections = Connections(self)
        self.subscriptions = Subscriptions(self)
        self.inactivity = ChannelExpiry(self)
        self.closing = Closing(self)
        self.new_channels = NewChannels(self._make_for_waiting)
        self._channels_made = 0
        #: Of publishes in this batch to channels that may not be made: the last one's channel, why,
        #: and how many.
        self._not_made: tuple[bytes, str, int] | None = None
        self.request_queue = RequestQueue(
            self._carry_out, self._refuse_crowd, lambda: self._channels_made
        )
        self._handlers: dict[int, Callable[[bytes, bytes], None]] = {
            c.SID_CONNECT: self.connections.connect,
            c.SID_SUBSCRIBE: self.subscriptions.subscribe,
            c.SID_UNSUBSCRIBE: partial(self.subscriptions.unsubscribe, close=False),
            c.SID_SUB_CLOSE: partial(self.subscriptions.unsubscribe, close=True),
            c.SID_CLOSE: self.connections.close,
            c.SID_PING: self.connections.ping,
        }

    # ---- recovery
    # ----------------------------------------------------------------------------------------------

    def recover(self, recovered: Recovered, wall: int, now: int) -> None:
        """Rebuild clients, channels and subscriptions. Timers start from ``now``."""
        self.wall = wall
        self.now = now
        for number, info in enumerate(recovered.clients):
            self.connections.adopt(info, number).recovered = True
        self.later = dict.fromkeys(recovered.later)
        for name in recovered.later:
            self._folded.setdefault(_lower(name), []).append(name)
        self._adopt(recovered)

    def _adopt(self, recovered: Recovered) -> list[Channel]:
        """Take over channels and their subscriptions; returns the channels."""
        channels = []
        for stored_channel in recovered.channels:
            channel = self._add_channel(Channel(stored_channel.name, stored_channel))
            # Nanoseconds: under a clock that was set back no other owner's message has the time of
            # one of ours, so that nobody takes an alike one for what a former owner remembered and
            # never stored (``dedup.py``).
            channel.last_ts = min(
                channel.last_ts + (recovered.activation if channel.last_ts else 0), c.LATEST
            )
            refused = recovered.refused.get(channel.name) or exhausted(stored_channel)
            channel.refused = refused.encode() or None
            channel.mover = stored_channel.mover
            if channel.mover is not None:
                shown = channel.name.decode("utf-8", "backslashreplace")
                log.warning(f'Channel "{shown}" has moved: publishes are refused', channel=shown)
            if channel.name not in recovered.refused and refused:
                log.error(f"channel {quoted(channel.name)}: {refused}", channel=channel.name)
            tell_ahead(stored_channel, self.wall)
            self.subscriptions.adopt_all(channel)
            self.inactivity.check(channel)
            channels.append(channel)
        return channels

    def known_channel(self, name: bytes) -> Channel | None:
        """The channel of that name if there is one; opens it if it waits for that.

        Raises ``StoreError`` if it cannot be read now, and ``FencedError``.
        """
        if name in self.later:
            # Before the name is struck off: what storage refuses now is tried again with the next
            # request.
            found = self.store.open_channel(name)
            del self.later[name]
            self._unfold(name)
            if self.window is not None:
                self.window.learn(found.remembered)
            for channel in self._adopt(found):
                self.replies.write(ack_lines(channel.by_ack_inbox.values()))
        return self.channels.get(name)

    def open_next(self) -> None:
        """Open one of the channels that wait. Raises ``StoreError`` and ``FencedError``."""
        if self.later:
            self.known_channel(next(iter(self.later)))

    def tell_subjects(self) -> None:
        """Write debug lines with the subjects that clients use."""
        s = self.subjects
        for what, subject in (
            ("Discover subject:", s.discovery),
            ("Publish subject:", s.publish_all)
            if self.partition is None
            else ("Publish subjects root:", s.publish),
            ("Subscribe subject:", s.subscribe),
            ("Subscription Close subject:", s.sub_close),
            ("Unsubscribe subject:", s.unsubscribe),
            ("Close subject:", s.close),
        ):
            log.debug(f"{what:<27} {subject}")

    def subscribe_lines(self) -> bytes:
        """The SUB lines of everything this server listens to: for a new NATS connection."""
        s = self.subjects
        rows: list[tuple[bytes, int]] = [
            *self.publish_rows,
            (s.discovery.encode(), c.SID_CONNECT),
            (s.subscribe.encode(), c.SID_SUBSCRIBE),
            (s.unsubscribe.encode(), c.SID_UNSUBSCRIBE),
            (s.sub_close.encode(), c.SID_SUB_CLOSE),
            (s.close.encode(), c.SID_CLOSE),
            (s.pings.encode(), c.SID_PING),
            (self.inbox_prefix + b"*", c.SID_INBOX),
        ]
        # Ack inboxes first: a client that is answered may ack at once.
        return ack_lines(self.by_sid.values()) + b"".join(b"SUB %b %d\r\n" % row for row in rows)

    @property
    def publish_rows(self) -> tuple[tuple[bytes, int], ...]:
        """The subjects on which publishes come, with their sids."""
        return tuple(publish_rows(self.subjects.publish_all, self.partition))

    def unsubscribe_lines(self) -> bytes:
        """The UNSUB lines of everything but the inbox: this server listens to clients no more."""
        # Publishes last: the successor must not get a publish whose sender this server has closed
        # since. Of publish subjects that overlap the one whose copy counts is the last to go.
        publishes = [sid for _, sid in reversed(self.publish_rows)]
        sids = [*self.by_sid, *(sid for sid in self._handlers), *publishes]
        return b"".join(b"UNSUB %d\r\n" % sid for sid in sids)

    # ---- in
    # ----------------------------------------------------------------------------------------------

    def on_request(
        self, sid: int, subject: bytes, reply: bytes, payload: bytes | None, headers: bytes
    ) -> None:
        """A message for one of the request subjects or the reply inbox.

        ``payload`` is ``None`` if it is too large.
        """
        self.request_queue.take(sid, subject, reply, payload, headers)

    def _carry_out(
        self, sid: int, subject: bytes, reply: bytes, payload: bytes | None, headers: bytes
    ) -> None:
        if sid == c.SID_INBOX:
            self.connections.on_inbox(subject, headers)
            return
        handler = self._handlers.get(sid)
        if handler is None:
            return
        if self.is_servers(reply):
            # Answering would be speaking to servers in a server's name, past the permissions of
            # whoever asks.
            self.on_malformed(REFUSALS[sid][0], b"", SERVERS_REPLY)
        elif payload is None:
            self._refuse_large(sid, reply)
        else:
            handler(reply, payload)

    def is_servers(self, subject: bytes) -> bool:
        """Whether servers listen on ``subject``."""
        return self.subjects.is_servers(subject)

    def _refuse_large(self, sid: int, reply: bytes) -> None:
        """Refuse a request that is too large to decode."""
        kind, refusal = REFUSALS[sid]
        self.on_malformed(kind, b"", LARGE)
        if refusal:
            self.answer(reply, refusal)

    def _refuse_crowd(self, sid: int, reply: bytes) -> None:
        """Refuse a request because too many wait. Partitions say nothing: another has room."""
        if sid not in REFUSALS:
            return
        self.on_malformed(REFUSALS[sid][0], b"", CROWDED)
        refusal = CROWDED_REFUSALS.get(sid)
        if refusal is not None and self.partition is None and not self.is_servers(reply):
            self.answer(reply, refusal)

    def is_second_copy(self, sid: int, channel: bytes) -> bool:
        """Whether a publish for one of several publish subjects came for an earlier one too."""
        return self.partition is not None and self.partition.is_second_copy(sid, channel)

    def hold_publish(
        self, client_id: bytes, conn_id: bytes, subject: bytes, reply: bytes, payload: bytes
    ) -> bool:
        """Keep a publish of a client that is not registered yet; whether it was kept."""
        again = partial(self.publish_again, subject, reply, payload)
        return self.pending_registrations.hold(client_id, conn_id, again, len(payload), self.now)

    def on_refused(self, kind: str) -> None:
        """A well-formed message that was refused all the same: its sender knows why."""
        self.malformed.refused[kind] += 1

    def on_link(self, kind: int, text: bytes) -> None:
        """Keep lines of the link itself for the data plane."""
        self.link_events.append((kind, text))

    def open_channel(self, name: bytes) -> Channel:
        """The channel of that name, created if there is none.

        Raises ``StoreError`` with the text for the client.
        """
        channel = self.known_channel(name)
        if channel is None:
            channel = self._make_channel(name)
        for reply, payload in self.new_channels.take(name):
            self.take_waiting(channel, reply, payload)
        return channel

    def _make_channel(self, name: bytes) -> Channel:
        if is_reserved(name):
            raise StoreError(c.INVALID_SUBJECT, hint=RESERVED_HINT)
        try:
            channel = self._create_channel(name)
        except StoreError as error:
            _tell_failed(name, error.text)
            raise
        self._channels_made += 1
        self.inactivity.check(channel)
        log.info(f"Channel {quoted(name)} has been created", channel=name)
        return channel

    def wait_for_channel(self, name: bytes, reply: bytes, payload: bytes) -> bytes | None:
        """Keep a publish to a channel that is not there, and that another batch will make.

        Returns nothing if it was kept, the text for the publisher if it is refused, ``None`` if the
        channel may be made now.
        """
        if name in self.later:
            return None
        text = ""
        if name not in self.new_channels:
            text = self._refusal_of_new(name)
            if not text and self.new_channels.may_make():
                return None
        if not text:
            if self.new_channels.keep(name, reply, payload):
                return b""
            text = c.MANY_NEW_CHANNELS
        # A flood of them is told in one line a batch: it must be cheap.
        if self._not_made and self._not_made[1] != text:
            self._tell_not_made()
        self._not_made = (name, text, self._not_made[2] + 1 if self._not_made else 1)
        return text.encode()

    def _tell_not_made(self) -> None:
        if self._not_made:
            _tell_failed(*self._not_made)
            self._not_made = None

    def _make_for_waiting(self, name: bytes) -> None:
        try:
            self.open_channel(name)
        except StoreError as error:
            for reply, payload in self.new_channels.take(name):
                self.refuse_waiting(reply, payload, error.text.encode())

    def give_up_waiting(self) -> None:
        """Refuse the publishes whose channels are still to be made: there is no more time."""
        for reply, payload in self.new_channels.take_all():
            self.refuse_waiting(reply, payload, c.MANY_NEW_CHANNELS.encode())

    def check_new(self, name: bytes) -> None:
        """Raise ``StoreError`` with the text for the client if no such channel may be made."""
        if text := self._refusal_of_new(name):
            raise StoreError(text)

    def _refusal_of_new(self, name: bytes) -> str:
        if name in self.elsewhere:
            return HAS_MOVED.decode()
        if b"\0" in name:
            return c.ZERO_BYTE.format(name=name.decode("utf-8", "backslashreplace"))
        limit = self.limits.max_channels
        # Who waits already comes first.
        waiting = 0 if name in self.new_channels else len(self.new_channels)
        if limit and len(self.channels) + len(self.later) + waiting >= limit:
            return c.TOO_MANY_CHANNELS
        others = self._folded.get(_lower(name))
        if others:
            return c.CASE_CLASH.format(new=quoted(name), old=quoted(others[0]))
        return ""

    def _create_channel(self, name: bytes) -> Channel:
        self.check_new(name)
        return self._add_channel(
            Channel(name, self.store.create_channel(name, self.limits.of(name)))
        )

    def may_publish_to(self, name: bytes) -> bool:
        """Whether ``name`` is that of a channel, or may become one.

        A reserved name may have been an original's.
        """
        return valid_channel(name) and (name in self.later or not is_reserved(name))

    def _add_channel(self, channel: Channel) -> Channel:
        self.channels[channel.name] = channel
        channel.rules = self.limits.rules_of(channel.name)
        self._folded.setdefault(_lower(channel.name), []).append(channel.name)
        channel.store.snapshot = partial(stored_subs, channel)
        return channel

    def set_limits(self, limits: StoreLimits) -> list[str]:
        """Other limits from now on; returns what changed, a line each.

        Nobody is refused what they have: channels and subscriptions above a limit stay. Messages
        above one go within a second, and a channel with another limit of inactivity has the whole
        new time from now.
        """
        changed = changes(self.options.store_limits, limits)
        if changed:
            self.options = replace(
                self.options,
                max_channels=limits.max_channels,
                limits=limits.channel,
                channels=limits.channels,
                deliveries=limits.deliveries,
            )
            self.limits = Limits(limits)
            self._set_rules()
            before = [
                (channel, channel.store.limits.max_inactivity) for channel in self.channels.values()
            ]
            self.store.set_limits(self.limits)
            for channel, inactivity in before:
                if channel.store.limits.max_inactivity != inactivity:
                    self.inactivity.check(channel)
        return changed

    def _set_rules(self) -> None:
        """What was sent already is due when it was; other rules hold from then on."""
        for channel in self.channels.values():
            rules = self.limits.rules_of(channel.name)
            if rules != channel.rules:
                channel.rules = rules
                for sub in all_subs(channel):
                    sub.set_rules(rules)

    def drop_channel(self, channel: Channel) -> None:
        """Forget a channel that the store has deleted; nothing of it is in a batch."""
        self.drop_caches()
        del self.channels[channel.name]
        self._unfold(channel.name)
        if self.window is not None:
            self.window.ended(channel.name)
        if self.dead_letters is not None:
            self.dead_letters.forget(channel.name)

    # ---- channels that move to other partitions, or come from one
    # ----------------------------------------------------------------------------------------------

    def let_go(self, channel: Channel) -> list[StoredSub]:
        """Forget a channel that another server goes on with, and keep its store as it is.

        Between two batches, when nothing of it is under way: returns its subscriptions as they are
        now, which the store is to write if it has to write any.
        """
        self.write_events()
        subs = stored_subs(channel)
        self.subscriptions.let_go(channel)
        # Whatever still holds it must take nothing for it.
        channel.mover = b""
        channel.store.snapshot = lambda: subs
        self.drop_channel(channel)
        return subs

    def take_over(
        self, store: ChannelStore, subs: Sequence[StoredSub], same: Container[bytes]
    ) -> Channel:
        """Serve a channel that was somebody else's, or ours before ``let_go``.

        ``subs``: its subscriptions, which ``store`` has; ``same``: ids of clients that they belong
        to. The ack inboxes are subscribed to with the next output.
        """
        channel = self._add_channel(Channel(store.name, store))
        refused = exhausted(store)
        channel.refused = refused.encode() or None
        self.subscriptions.adopt_all(channel, subs, same)
        self.inactivity.check(channel)
        self.replies.write(ack_lines(channel.by_ack_inbox.values()))
        return channel

    def _unfold(self, name: bytes) -> None:
        same = self._folded[_lower(name)]
        same.remove(name)
        if not same:
            del self._folded[_lower(name)]

    def run_timers(self, wall: int, now: int) -> bool:
        """The rest of a batch: what is due at ``now``, and some of what waits.

        Returns whether anything was done.
        """
        self.wall = wall
        self.now = now
        if self._was_lost:
            self._was_lost = False
            self.connections.link_is_back()
        ran = self.timers.run(now)
        if self.subscriptions.resending.recovering:
            self.subscriptions.resending.start_recovered()
            ran = True
        self._tell_not_made()
        ran |= self.new_channels.go_on()
        ran |= self.request_queue.go_on()
        return self.closing.go_on() or ran

    def on_read_error(self, sub: Subscription, error: StoreError) -> None:
        """Delivery to a subscription stops here.

        It is tried again at its next trigger, or after a while.
        """
        log.error(
            f"[Client:{sub.client_id.decode('utf-8', 'backslashreplace')}] delivery of "
            f"subid={sub.sub_id} stopped "
            f"after sequence {sub.last_sent}: {error.text}",
            backs_off=True,
            client=sub.client_id,
            channel=sub.channel.name,
        )
        self._unread.note(sub)

    def on_skipped(self, sub: Subscription, seq: int, size: int) -> None:
        """A message of ``size`` bytes is not delivered to a subscription: the NATS server does not
        carry it.
        """
        self._skipped.note(sub.channel.name, sub.client_id, seq, size, self.max_payload)

    # ---- out
    # ----------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether anything waits for a commit, a confirmation or the link."""
        batch = self._answers or self.touched or self.ready or self.start_jobs or self.output_size
        return bool(batch or self.goes_on)

    @property
    def goes_on(self) -> bool:
        """Whether the next turn has work left over by the last one: requests, channels to make,
        subscriptions to close or to resume.
        """
        return bool(
            self.is_full
            or self.request_queue
            or self.new_channels
            or self.closing
            or self.subscriptions.resending.recovering
        )

    @property
    def output_size(self) -> int:
        """Bytes that wait to be sent."""
        return len(self.replies) + len(self.deliveries) + len(self.acks)

    def conclude(self, failed: dict[bytes, StoreError]) -> bool:
        """Turn a committed and confirmed batch into output.

        Returns whether more can be delivered at once.
        """
        for name, refusal in failed.items():
            if isinstance(refusal, QuarantineError):
                self._refuse(name, refusal)
        answers = self._answers
        self._answers = []
        for a in answers:
            error = failed.get(a.channel.name) if a.channel is not None else None
            if a.clients and error is None:
                error = failed.get(CLIENTS) or failed.get(client_key(a.client))
            payload = a.payload
            if error is not None:
                if a.undo is not None:
                    a.undo()
                assert a.refusal is not None
                payload = a.refusal(error.text)
            elif a.done is not None:
                a.done()
            if a.reply:
                self.replies.publish(a.reply, b"", payload)
        if self.dead_letters is not None:
            self.dead_letters.concluded(failed)
        self._tracing.committed(failed)
        jobs = self.start_jobs
        self.start_jobs = []
        for job in jobs:
            job()
        more = self.settle(failed)
        self.write_events()
        return more

    def _refuse(self, name: bytes, error: QuarantineError) -> None:
        """Refuse whatever is new on this channel from now on."""
        channel = self.channels.get(name)
        if channel is not None:
            channel.refused = error.text.encode()

    @property
    def dead_letters(self) -> DeadLetters | None:
        """What gives messages up; ``None`` while nothing was due for it."""
        return self.subscriptions.resending.dead_letters

    @property
    def quarantined(self) -> list[bytes]:
        """Names of the channels that take nothing new because their files are damaged."""
        return [channel.name for channel in self.channels.values() if channel.refused is not None]

    @property
    def moved(self) -> list[bytes]:
        """Names of the channels that take no publishes because they have moved."""
        return [channel.name for channel in self.channels.values() if channel.mover is not None]

    def link_lost(self, now: int) -> None:
        """The output of this batch never left: what it delivered is due again as soon as the link
        is back.
        """
        self._was_lost = True
        self.request_queue.clear()
        self._tracing.lost()
        for sub in self.lost(now):
            self.arm(sub, now)

    def tick(self) -> None:
        """The work of each second."""
        self._trace_or_not()
        self.drop_caches()
        self.malformed.tell(self.now / c.SECOND)
        self._skipped.tell(self.now / c.SECOND)

    def _trace_or_not(self) -> None:
        """The operator may switch the trace on and off while we serve."""
        self.tracer = self._tracing if log.trace_on else None

    # ---- views
    # ----------------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Totals in one step, for who may take it; ``ftstan.broker.views`` has portions."""
        channels = self.channels.values()
        return {
            "clients": len(self.clients),
            "subscriptions": sum(ch.stored_subs for ch in channels),
            "channels": len(channels) + len(self.later),
            "total_msgs": sum(ch.store.count for ch in channels),
            "total_bytes": sum(ch.store.size for ch in channels),
            "in_msgs": self.in_msgs,
            "in_bytes": self.in_bytes,
            "out_msgs": self.out_msgs,
            "out_bytes": self.out_bytes,
        }


def _tell_failed(name: bytes, why: str, times: int = 1) -> None:
    log.error(
        f"Creating channel {quoted(name)} failed: {why}", backs_off="channel creation", times=times
    )


def _lower(name: bytes) -> str:
    """The name in lower case, letter by letter as the original does it: one for one, whatever
    stands around it.
    """
    return "".join(ch.lower()[0] for ch in name.decode("utf-8", "surrogateescape"))
