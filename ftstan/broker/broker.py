"""Broker: what STAN means, as an actor without I/O and without a clock.

The data plane drives one batch at a time: ``feed`` (bytes in), ``run_timers``, ``stage``, then the store's commit and
its confirmation, then ``conclude`` (what failed), and the output is in ``replies``, ``deliveries`` and ``acks``, to be
sent in this order. Answers wait until their record is durable: ``answer`` keeps them back until ``conclude``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from ftstan.broker import constants as c
from ftstan.broker.connections import Connections
from ftstan.broker.core import Channel, Core, KeyMap, Subscription
from ftstan.broker.subscriptions import Subscriptions
from ftstan.broker.timers import Timers
from ftstan.errors import QuarantineError, StoreError
from ftstan.log import stream as log
from ftstan.stores.interface import CLIENTS, ChannelLimits, Recovered, Store
from ftstan.wire.subjects import publishable

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.broker.client import Client
    from ftstan.wire.nuid import Nuid
    from ftstan.wire.subjects import Subjects


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """Times in nanoseconds; a limit of 0 means none."""

    hb_interval: int = 30 * c.SECOND
    hb_timeout: int = 10 * c.SECOND
    hb_fail_count: int = 10
    max_channels: int = 100
    limits: ChannelLimits = field(default_factory=ChannelLimits)


@dataclass(frozen=True, slots=True)
class _Answer:
    reply: bytes
    payload: bytes
    channel: Channel | None
    clients: bool
    refusal: Callable[[str], bytes] | None
    done: Callable[[], None] | None
    undo: Callable[[], None] | None


class Broker(Core):
    """One server's clients, channels and subscriptions."""

    clients: KeyMap[Client]
    conns: KeyMap[Client]

    def __init__(self, store: Store, subjects: Subjects, options: BrokerOptions, nuid: Nuid) -> None:
        super().__init__()
        self.store = store
        self.subjects = subjects
        self.options = options
        self.timers = Timers()
        self.start_jobs: list[Callable[[], None]] = []
        self._nuid = nuid
        self._answers: list[_Answer] = []
        self._folded: dict[bytes, bytes] = {}
        self.inbox_prefix = self.new_inbox() + b"."
        self.link_events: list[tuple[int, bytes]] = []
        self.connections = Connections(self)
        self.subscriptions = Subscriptions(self)
        self._handlers: dict[int, Callable[[bytes, bytes], None]] = {
            c.SID_CONNECT: self.connections.connect,
            c.SID_SUBSCRIBE: self.subscriptions.subscribe,
            c.SID_UNSUBSCRIBE: partial(self.subscriptions.unsubscribe, close=False),
            c.SID_SUB_CLOSE: partial(self.subscriptions.unsubscribe, close=True),
            c.SID_CLOSE: self.connections.close,
            c.SID_PING: self.connections.ping,
        }

    def new_inbox(self) -> bytes:
        """A new inbox subject."""
        return b"_INBOX." + self._nuid.next().encode()

    # ---- recovery ------------------------------------------------------------------------------------------------

    def recover(self, recovered: Recovered, wall: int, now: int) -> None:
        """Rebuild clients, channels and subscriptions. Timers start from ``now``."""
        self.wall, self.now = wall, now
        for info in recovered.clients:
            self.connections.adopt(info)
        for stored_channel in recovered.channels:
            channel = self._add_channel(Channel(stored_channel.name, stored_channel))
            refused = recovered.refused.get(channel.name)
            channel.refused = refused.encode() if refused is not None else None
            for stored in stored_channel.recovered_subs():
                self.subscriptions.adopt(channel, stored)

    def subscribe_lines(self) -> bytes:
        """The SUB lines of everything this server listens to: for a new NATS connection."""
        s = self.subjects
        rows: list[tuple[bytes, int]] = [
            (s.publish_all.encode(), c.SID_PUBLISH),
            (s.discovery.encode(), c.SID_CONNECT),
            (s.subscribe.encode(), c.SID_SUBSCRIBE),
            (s.unsubscribe.encode(), c.SID_UNSUBSCRIBE),
            (s.sub_close.encode(), c.SID_SUB_CLOSE),
            (s.close.encode(), c.SID_CLOSE),
            (s.pings.encode(), c.SID_PING),
            (self.inbox_prefix + b"*", c.SID_INBOX),
        ]
        # Ack inboxes first: a client that is answered may ack at once.
        acks = [b"SUB %b %d\r\n" % (s.ack_inbox, sid) for sid, s in self.by_sid.items() if publishable(s.ack_inbox)]
        return b"".join(acks) + b"".join(b"SUB %b %d\r\n" % row for row in rows)

    def unsubscribe_lines(self) -> bytes:
        """The UNSUB lines of everything but the inbox: this server listens to clients no more."""
        sids = [*self.by_sid, *(sid for sid in self._handlers), c.SID_PUBLISH]
        return b"".join(b"UNSUB %d\r\n" % sid for sid in sids)

    # ---- in ------------------------------------------------------------------------------------------------------

    def on_request(self, sid: int, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        """A message for one of the request subjects or the reply inbox."""
        if sid == c.SID_INBOX:
            self.connections.on_inbox(subject, headers)
            return
        handler = self._handlers.get(sid)
        if handler is not None:
            handler(reply, payload)

    def on_link(self, kind: int, text: bytes) -> None:
        """Keep lines of the link itself for the data plane."""
        self.link_events.append((kind, text))

    def open_channel(self, name: bytes) -> Channel:
        """Create a channel; raises ``StoreError`` with the text for the client."""
        if b"\0" in name:
            raise StoreError(f"mkdir {name.decode('utf-8', 'backslashreplace')}: invalid argument")
        limit = self.options.max_channels
        if limit and len(self.channels) >= limit:
            raise StoreError(c.TOO_MANY_CHANNELS)
        other = self._folded.get(name.lower())
        if other is not None:
            raise StoreError(
                f"rejecting channel {_quoted(name)} because channel {_quoted(other)} alreay exists "
                "(different cases not allowed)"
            )
        channel = self._add_channel(Channel(name, self.store.create_channel(name, self.options.limits)))
        log.info(f"Channel {_quoted(name)} has been created")
        return channel

    def _add_channel(self, channel: Channel) -> Channel:
        self.channels[channel.name] = channel
        self._folded[channel.name.lower()] = channel.name
        channel.store.snapshot = partial(self.subscriptions.snapshot, channel)
        return channel

    def arm(self, sub: Subscription, at: int) -> None:
        """Run the ack timer of a subscription at ``at``, or earlier if it is set for earlier."""
        if sub.timer_at and sub.timer_at <= at:
            return
        sub.timer_at = at

        def fire() -> None:
            if sub.timer_at == at:
                sub.timer_at = 0
                self.subscriptions.on_ack_timer(sub)

        self.timers.at(at, fire)

    def run_timers(self, wall: int, now: int) -> bool:
        """Run what is due at ``now``; returns whether anything ran."""
        self.wall, self.now = wall, now
        ran = self.timers.run(now)
        if self.subscriptions.recovering:
            self.subscriptions.start_recovered()
            ran = True
        return ran

    def on_read_error(self, sub: Subscription, error: StoreError) -> None:
        """Delivery to a subscription stops here; it is tried again at its next trigger."""
        log.error(
            f"[Client:{sub.client_id.decode('utf-8', 'backslashreplace')}] delivery of subid={sub.sub_id} stopped "
            f"after sequence {sub.last_sent}: {error.text}"
        )

    # ---- out -----------------------------------------------------------------------------------------------------

    def answer(
        self,
        reply: bytes,
        payload: bytes,
        *,
        channel: Channel | None = None,
        clients: bool = False,
        refusal: Callable[[str], bytes] | None = None,
        done: Callable[[], None] | None = None,
        undo: Callable[[], None] | None = None,
    ) -> None:
        """Answer a request once everything staged is durable.

        If ``channel``, or with ``clients`` the registrations, fail to commit, ``undo`` runs and ``refusal(error text)``
        is sent; else ``done`` runs first.
        """
        self._answers.append(_Answer(reply, payload, channel, clients, refusal, done, undo))

    @property
    def has_work(self) -> bool:
        """Whether anything waits for a commit, a confirmation or the link."""
        return bool(self._answers or self.touched or self.ready or self.start_jobs or self.output_size)

    @property
    def output_size(self) -> int:
        """Bytes that wait to be sent."""
        return len(self.replies) + len(self.deliveries) + len(self.acks)

    def conclude(self, failed: dict[bytes, StoreError]) -> bool:
        """Turn a committed and confirmed batch into output; returns whether more can be delivered at once."""
        for name, refusal in failed.items():
            if isinstance(refusal, QuarantineError):
                self._refuse(name, refusal)
        answers, self._answers = self._answers, []
        for a in answers:
            error = failed.get(a.channel.name) if a.channel is not None else None
            if a.clients and error is None:
                error = failed.get(CLIENTS)
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
        jobs, self.start_jobs = self.start_jobs, []
        for job in jobs:
            job()
        more = self.settle(failed)
        self.write_events()
        return more

    def _refuse(self, name: bytes, error: QuarantineError) -> None:
        """From here on the channel takes nothing new."""
        channel = self.channels.get(name)
        if channel is not None:
            channel.refused = error.text.encode()

    @property
    def quarantined(self) -> list[bytes]:
        """Names of the channels that take nothing new because their files are damaged."""
        return [channel.name for channel in self.channels.values() if channel.refused is not None]

    def link_lost(self, now: int) -> None:
        """The output of this batch never left: what it delivered is due again as soon as the link is back."""
        for sub in self.lost(now):
            self.arm(sub, now)

    def tick(self) -> None:
        """Once a second."""
        self.drop_caches()

    # ---- views ---------------------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Totals for monitoring: clients, subscriptions, channels, messages and bytes."""
        channels = self.channels.values()
        return {
            "clients": len(self.clients),
            "subscriptions": sum(
                len(ch.subs) + sum(1 for s in ch.durables.values() if s.client is None) for ch in channels
            ),
            "channels": len(channels),
            "total_msgs": sum(ch.store.count for ch in channels),
            "total_bytes": sum(ch.store.size for ch in channels),
            "in_msgs": self.in_msgs,
            "in_bytes": self.in_bytes,
            "out_msgs": self.out_msgs,
            "out_bytes": self.out_bytes,
        }


def _quoted(name: bytes) -> str:
    """A name in double quotes as the original prints it."""
    out = []
    for ch in name.decode("utf-8", "surrogateescape"):
        code = ord(ch)
        if ch in '"\\':
            out.append("\\" + ch)
        elif 0xDC80 <= code <= 0xDCFF:
            out.append(f"\\x{code - 0xDC00:02x}")
        elif ch.isprintable():
            out.append(ch)
        else:
            out.append({"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(ch, f"\\x{code:02x}"))
    return '"' + "".join(out) + '"'
