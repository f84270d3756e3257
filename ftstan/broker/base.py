"""What the parts of a broker share: its state, its answers and timers, and what one part asks of
another.

``Broker`` extends it and is made of the parts: connections, subscriptions and the others. They know
this base and nothing of ``broker.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ftstan.broker import constants as c
from ftstan.broker.malformed import Malformed
from ftstan.broker.pending_registrations import PendingRegistrations
from ftstan.broker.publishing import Core
from ftstan.broker.timers import Timers
from ftstan.config.options import StoreLimits
from ftstan.stores.interface import ChannelLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.broker.arrivals import Arrival
    from ftstan.broker.client import Client
    from ftstan.broker.keymap import KeyMap
    from ftstan.broker.partition import Partition
    from ftstan.broker.request_queue import RequestQueue
    from ftstan.broker.state import Channel, Subscription
    from ftstan.config.options import DeliveryRules
    from ftstan.stores.interface import ClientInfo, Store
    from ftstan.wire.nuid import Nuid
    from ftstan.wire.subjects import Subjects


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """Times in nanoseconds; a limit of 0 means none. The last ones are those of ``StoreLimits``."""

    hb_interval: int = c.HB_INTERVAL
    hb_timeout: int = c.HB_TIMEOUT
    hb_fail_count: int = c.HB_FAIL_COUNT
    max_channels: int = c.MAX_CHANNELS
    replace_durable: bool = False
    limits: ChannelLimits = field(default_factory=ChannelLimits)
    channels: tuple[tuple[str, ChannelLimits], ...] = ()
    deliveries: tuple[tuple[str, DeliveryRules], ...] = ()
    partition: Partition | None = None

    @property
    def store_limits(self) -> StoreLimits:
        """The configured limits."""
        return StoreLimits(self.max_channels, self.limits, self.channels, self.deliveries)


class Subscribed(Protocol):
    """The subscriptions, as far as the other parts are concerned with them."""

    def detach(self, sub: Subscription, *, unsubscribe: bool) -> None:
        """End a live subscription; a durable that is not unsubscribed stays behind offline."""

    def deal(self, sub: Subscription, most: int) -> None:
        """Deal so many of a queue member's pending messages to the others; it is about to leave."""

    def on_ack_timer(self, sub: Subscription) -> None:
        """Send messages again that were not acknowledged in time."""


class Ending(Protocol):
    """Who is closing, as far as the other parts are concerned with it.

    ``then(error)`` runs when all is staged.
    """

    def client(self, client: Client, then: Callable[[str], None]) -> None:
        """End the subscriptions of a client that is not registered any more."""

    def subscription(
        self, sub: Subscription, then: Callable[[str], None], *, unsubscribe: bool
    ) -> None:
        """End one subscription, of a client that stays."""

    def is_leaving(self, sub: Subscription) -> bool:
        """Whether the subscription has been ended, as far as clients see."""

    def is_of(self, info: ClientInfo) -> bool:
        """Whether it is this very session that is closing."""

    def holds(
        self,
        client_id: bytes,
        again: Callable[[], None],
        refuse: Callable[[], None] = lambda: None,
    ) -> bool:
        """Whether the id is not free yet; ``again`` is called when it is, ``refuse`` if too many
        wait.
        """


class Registered(Protocol):
    """The clients, as far as the other parts are concerned with them."""

    def is_certain(self, client: Client) -> bool:
        """Whether this client is known to be the one that has its id. If not it is asked."""


class Unused(Protocol):
    """The watch over channels that nobody uses, as far as the other parts are concerned with it."""

    def check(self, channel: Channel) -> None:
        """Check whether the channel can expire, after a change of its subscriptions or limit."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One that waits for the commit, and what the commit decides.

    The fields are those of ``BrokerBase.answer``.
    """

    reply: bytes
    payload: bytes
    channel: Channel | None
    clients: bool
    client: bytes
    refusal: Callable[[str], bytes] | None
    done: Callable[[], None] | None
    undo: Callable[[], None] | None


class BrokerBase(Core, ABC):
    """A broker as its parts see it."""

    clients: KeyMap[Client]
    conns: KeyMap[Client]
    subscriptions: Subscribed
    inactivity: Unused
    closing: Ending
    connections: Registered
    request_queue: RequestQueue

    def __init__(
        self, store: Store, subjects: Subjects, options: BrokerOptions, nuid: Nuid
    ) -> None:
        super().__init__()
        self.store = store
        self.subjects = subjects
        self.options = options
        self.timers = Timers()
        self.budget = c.EMIT_BUDGET
        self.start_jobs: list[Callable[[], None]] = []
        self.later: dict[bytes, None] = {}
        """Recovered channels that wait to be opened: by whoever needs them first, else in turns
        with time to spare.
        """
        self._nuid = nuid
        self._answers: list[Answer] = []
        self.inbox_prefix = self.new_inbox() + b"."
        self.draining = False
        """Nobody is registered any more: this server is about to leave for good."""
        self.malformed = Malformed()
        self.partition = options.partition
        """Which channels are served here; ``None``: all."""
        self.elsewhere: set[bytes] = set()
        """Channels that have moved to another partition, or are still on their way here."""
        self.carried_out: dict[bytes, set[bytes]] = {}
        """Of channels that leave: reply subjects of the requests that were answered since."""
        self.arrivals: dict[bytes, Arrival] = {}
        """Channels that are on their way here from another partition, and what came for them."""
        self.pending_registrations = PendingRegistrations(self.timers)
        self.publish_prefix = subjects.publish.encode() + b"."
        self.discovery_initial = subjects.discovery.encode()[0]
        self.holds_publishes = self.partition is not None
        if self.partition is not None:
            self.publish_end = self.partition.end_sid
            self.has_second_copies = bool(self.partition.second_copies)

    @abstractmethod
    def known_channel(self, name: bytes) -> Channel | None:
        """The channel of that name if there is one; opens it if it waits for that.

        Raises ``StoreError`` if it cannot be read now, and ``FencedError``.
        """

    @abstractmethod
    def open_next(self) -> None:
        """Open one of the channels that wait. Raises ``StoreError`` and ``FencedError``."""

    @abstractmethod
    def drop_channel(self, channel: Channel) -> None:
        """Forget a channel that the store has deleted; nothing of it is in a batch."""

    def new_inbox(self) -> bytes:
        """A new inbox subject."""
        return c.INBOX_PREFIX + self._nuid.next().encode()

    def owns(self, channel: bytes) -> bool:
        """Whether requests about the channel are for this server."""
        return self.partition is None or self.partition.owns(channel)

    def on_malformed(self, kind: str, client_id: bytes, reason: str) -> None:
        """A message that could not be carried out, whatever the server knows.

        ``client_id`` is empty if unknown.
        """
        self.malformed.note(kind, client_id, reason)

    def arm(self, sub: Subscription, at: int) -> None:
        """Run the ack timer of a subscription at ``at``, or earlier if it is set for earlier."""
        if not sub.timer_at or sub.timer_at > at:
            self.set_timer(sub, at)

    def set_timer(self, sub: Subscription, at: int) -> None:
        """Set the ack timer of a subscription to ``at``, whether it was earlier or later."""
        if sub.timer_at == at:
            # A group whose members leave in one batch sets it again and again for those that stay.
            return
        self.drop_timer(sub)
        sub.timer_at = at

        def fire() -> None:
            sub.timer_at = 0
            sub.timer = None
            self.subscriptions.on_ack_timer(sub)

        sub.timer = self.timers.at(at, fire)

    def drop_timer(self, sub: Subscription) -> None:
        """Take the ack timer of a subscription back."""
        if sub.timer is not None:
            self.timers.cancel(sub.timer)
        sub.timer_at = 0
        sub.timer = None

    def answer(
        self,
        reply: bytes,
        payload: bytes,
        *,
        channel: Channel | None = None,
        clients: bool = False,
        client: bytes = b"",
        refusal: Callable[[str], bytes] | None = None,
        done: Callable[[], None] | None = None,
        undo: Callable[[], None] | None = None,
    ) -> None:
        """Answer a request once everything staged is durable.

        If ``channel``, or with ``clients`` the registrations, all or that of ``client``, fail to
        commit, ``undo`` runs and ``refusal(error text)`` is sent; else ``done`` runs first.
        """
        self._answers.append(Answer(reply, payload, channel, clients, client, refusal, done, undo))
