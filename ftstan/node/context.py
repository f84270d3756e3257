"""What the parts of one server share: options, clock, threads and connections, and the ways in
which the server ends.

``server.Node`` is a ``Context`` that also makes the parts and starts and stops them. The parts
(pages, the driver of the group, hand-over, self-protection and so on) are given the ``Context`` and
never import ``Node``; what one part may ask of another is one of the protocols below.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from ftstan.admin.member import Member
from ftstan.base import log
from ftstan.base.clock import Clock, SystemClock
from ftstan.base.errors import (
    EndedError,
    FencedError,
    FtstanError,
    ReleasedError,
    StoppedError,
    StoreError,
)
from ftstan.base.states import NodeState
from ftstan.config.units import SECOND
from ftstan.nats.credentials import own
from ftstan.nats.link import Link
from ftstan.node.awake import Awake
from ftstan.node.dataplane import DataPlane, shown
from ftstan.node.runtime import Host, ProcessHost
from ftstan.stores import registry
from ftstan.wire.nuid import Nuid

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.admin.protocol import Request
    from ftstan.base.disk import Space
    from ftstan.base.histogram import Histogram
    from ftstan.base.states import Clustering, NodeStatus
    from ftstan.broker.managing import Row
    from ftstan.broker.partition import Partition
    from ftstan.cluster.replica import Replica
    from ftstan.config.options import LinkOptions, ServerOptions, ServerTlsOptions, StoreLimits
    from ftstan.front.listener import Front
    from ftstan.ft.digest import Member as GroupMember
    from ftstan.ft.moves import Moves
    from ftstan.ft.owned import Owner
    from ftstan.ft.standby import Standby
    from ftstan.ft.warm import Warm, WarmLag
    from ftstan.nats.control import Control
    from ftstan.nats.embedded import NatsServerChild
    from ftstan.node.cluster_peers import ClusterPeers
    from ftstan.stores.encryption.cipher import KeyRing
    from ftstan.stores.interface import StoreKind

T = TypeVar("T")

EXIT_FENCED = 75
#: A node whose storage fails so soon after it took over would, restarted at once, only use up
#: epochs.
_SOON_S = 60.0
_PAUSE_S = 5


class GroupPeers(Protocol):
    """What this node knows of the other members of the group."""

    @property
    def members(self) -> tuple[GroupMember, ...]:
        """All members, including this one."""
        ...


class GroupPart(Protocol):
    """The group's driver (``group.FtGroup``), for the other parts."""

    reconnects: int
    takeovers: dict[str, int]

    @property
    def peers(self) -> GroupPeers:
        """What this node knows of the other members."""
        ...

    @property
    def standby(self) -> Standby:
        """The state machine of a standby."""
        ...

    @property
    def activated(self) -> bool:
        """Whether this member took an epoch."""
        ...

    @property
    def mixed(self) -> bool:
        """Whether original servers may be members."""
        ...

    @property
    def connected(self) -> bool:
        """Whether the control connection stands."""
        ...

    @property
    def looks_for_nats(self) -> bool:
        """Whether this member has a connection to NATS, or tries to have one."""
        ...

    @property
    def tries(self) -> dict[str, int]:
        """Attempts at the store lock, counted by outcome."""
        ...

    @property
    def warm_lag(self) -> WarmLag | None:
        """How far this standby's reading is behind the owner."""
        ...

    @property
    def handover_age(self) -> float | None:
        """Seconds since the owner before this one was asked to hand over."""
        ...

    @property
    def leaves(self) -> bool:
        """Whether this owner looks for a successor, or has one."""
        ...

    @property
    def trouble(self) -> str:
        """Why storage refused the last activation."""
        ...

    @property
    def switchover_at_ns(self) -> int:
        """When this owner is to hand over (Unix nanoseconds), 0 for no such plan."""
        ...

    async def switchover(self, to: str = "") -> str:
        """Hand over to a standby; returns its server id. Raises ``FtstanError``."""
        ...

    def plan_switchover(self, to: str, at_ns: int) -> None:
        """Hand over later; ``at_ns`` 0 or less ends the plan. Raises ``RefusedError``."""
        ...

    def pause(self) -> None:
        """Do not take over until ``resume``."""
        ...

    def resume(self) -> None:
        """Take over again when it is time."""
        ...

    def note_epoch(self) -> None:
        """The owner may have raised its epoch."""
        ...

    def renew(self, options: LinkOptions) -> None:
        """Present ``options`` to NATS from the next connection on."""
        ...


class ClusterPart(Protocol):
    """The driver of a cluster's node (``clustered.ClusterNode``), for the other parts."""

    peers: ClusterPeers
    """What is known of the other nodes."""

    @property
    def node_id(self) -> str:
        """The id of this node."""
        ...

    @property
    def role(self) -> str:
        """What it is for the cluster: a word of ``ClusterRole``."""
        ...

    @property
    def leads(self) -> bool:
        """Whether it leads, or is about to."""
        ...

    @property
    def followed(self) -> Replica | None:
        """What there is to see of a node that follows; ``None`` for others."""
        ...

    @property
    def clustering(self) -> Clustering | None:
        """How far it is with the log, ``None`` before it has recovered."""
        ...

    async def step_down(self, to: str) -> str:
        """Let another node lead; returns which are ready for it. Raises ``RefusedError``."""
        ...

    async def change_node(self, node: str, *, is_in: bool) -> None:
        """Add a node to the cluster, or remove it. Raises ``FtstanError``."""
        ...

    def set_limits(self, limits: StoreLimits) -> None:
        """Other limits of the local store, on the data plane's thread."""
        ...


class MemberPart(Member, Protocol):
    """What operators ask of the node (``member.NodeMember``), for the other parts."""

    async def set_limits(self, limits: StoreLimits) -> list[str]:
        """Set other limits; returns one line for each change."""
        ...


class StatusPart(Protocol):
    """Where the node's status is made (``status.StatusSource``), for the other parts."""

    def now(self) -> NodeStatus:
        """The status, made from memory without asking storage."""
        ...

    async def refreshed(self) -> NodeStatus:
        """The status, after asking storage who holds the store."""
        ...


class ProtectionPart(Protocol):
    """Self-protection (``protection.Protection``), for the other parts."""

    @property
    def may_beat(self) -> bool:
        """Whether a heartbeat may be sent."""
        ...

    @property
    def probe_age(self) -> float | None:
        """Seconds since the last successful probe."""
        ...

    @property
    def probes(self) -> Histogram | None:
        """How long the probes of this activation took."""
        ...

    @property
    def room(self) -> Space | None:
        """Free space on the datastore's file system."""
        ...


class MonitorPart(Protocol):
    """The monitoring pages (``monitor.http.Monitor``), for the other parts."""

    url: str
    """Where others find them; empty while there are none."""

    async def open(self, tls: ServerTlsOptions, child: NatsServerChild | None) -> int:
        """Listen; the port, 0 for none. Raises ``NatsError``."""
        ...

    def check(self, tls: ServerTlsOptions) -> None:
        """Read what a reload would have them use. Raises ``NatsError`` and ``ConfigError``."""
        ...

    def renew(self, tls: ServerTlsOptions) -> None:
        """Use it from the next connection on. Raises ``NatsError`` and ``ConfigError``."""
        ...

    async def stop(self) -> None:
        """Listen no more. Raises ``NatsError``."""
        ...


class MovesPart(Protocol):
    """What operators ask about channels that move (``move_orders.MoveOrders``), for the other
    parts.
    """

    def rows(self, after: str) -> list[Row]:
        """Every move that is known here, of channels behind ``after``."""
        ...

    async def offer(self, request: Request) -> Row:
        """Let another server have a channel. Raises ``FtstanError``, as the others do."""
        ...

    async def accept(self, request: Request) -> Row:
        """Bring a channel here."""
        ...

    async def undo(self, request: Request) -> str:
        """Take a move back; returns what was done."""
        ...

    async def clean(self, request: Request) -> str:
        """Remove what a channel has left here; returns what was done."""
        ...


class PartitionPart(Protocol):
    """The exchange with other partitions (``partition.Partitioning``), for the other parts."""

    partition: Partition | None

    def orders(self) -> MovesPart | None:
        """What operators ask about channels that move; ``None``: there is no other partition."""
        ...

    def look(self) -> None:
        """Let what the datastore says of moves change the list. On the data plane.

        Raises ``RecoveryError`` and ``StoreError``.
        """
        ...

    def moves(self) -> Moves:
        """What is known of channels that move."""
        ...

    def limits(self, limits: StoreLimits) -> StoreLimits:
        """What holds on this server, if ``limits`` is what the configuration says."""
        ...


def _control(*arguments: Any, **named: Any) -> Control:
    # Late, like what follows: only members of a group have it, and it brings a client of NATS.
    from ftstan.nats.control import Control  # noqa: PLC0415

    return Control(*arguments, **named)


def _warm(*arguments: Any, **named: Any) -> Warm:
    from ftstan.ft.warm import Warm  # noqa: PLC0415

    return Warm(*arguments, **named)


class Context:
    """What the parts of one server share; belongs to the control thread where nothing else is said.

    The attributes of the class connect it with the machine; a simulation puts its own in their
    place.
    """

    plane_class: Callable[[Callable[[BaseException], None], Awake], DataPlane] = DataPlane
    link_class: Callable[..., Link] = Link
    control_class: Callable[..., Control] = staticmethod(_control)
    warm_class: Callable[..., Warm] = staticmethod(_warm)
    random_class: Callable[[], random.Random] = random.Random
    store_kind: Callable[[str], StoreKind] = staticmethod(registry.load)

    monitor: MonitorPart
    member: MemberPart
    """What operators ask of this node."""
    status: StatusPart
    """How this node is."""
    protection: ProtectionPart
    partitioning: PartitionPart
    group: GroupPart | None = None
    cluster: ClusterPart | None = None

    def __init__(
        self, options: ServerOptions, clock: Clock | None = None, host: Host | None = None
    ) -> None:
        self.options = options
        """A reload puts others in their place."""
        self.host = host or ProcessHost()
        self.clock = clock or SystemClock()
        self.nuid = Nuid()
        self.server_id = self.nuid.next()
        self.role = NodeState.STANDALONE
        """What the node is for now, also before it serves; what is shown is ``status``."""
        self.plane = self.plane_class(self.storage_failed, Awake(options.io_spin / SECOND))
        self.owner: Owner | None = None
        """The right to the directory or database of the store; a group needs one."""
        self.calls_of_storage: dict[int, float] | None = None
        """Of an owner's directory: ``TimedDisk.calls``, if its disk has them."""
        self.owns = False
        """Whether this node may have written anything: an activation was begun."""
        self.child: NatsServerChild | None = None
        self.front: Front | None = None
        """The listener in front of it, if there is one."""
        self.nats_urls: list[str] = []
        """Where this node's connections go."""
        self.presented = own(options)
        """How our links present themselves to NATS."""
        self.link: Link | None = None
        """The data link; it belongs to the data plane's thread."""
        self.ring: KeyRing | None = None
        """What encrypts stored payloads, if anything does."""
        self.opens_aside = False
        """Whether what people ask this node by (pages, orders) is still being opened."""
        self.unbridged = 0
        """Publishes that arrived during hand-overs and were dropped before this node served."""
        self.started_ns = self.clock.wall_ns()
        self._started = self.clock.mono()
        self.stop_signal = 0
        self.hands_over = False
        """Whether the stop is a switchover that somebody asked for."""
        self.stopping = asyncio.Event()
        self._no_more = threading.Event()
        """The same for the data plane's thread."""
        self._exit_status = 0
        self._failure: FtstanError | None = None
        self._serving_since = 0.0

    def call(self, function: Callable[[], T], *, may_lose: bool = False) -> asyncio.Future[T]:
        """Run something on the data plane's thread; ``may_lose``: see ``DataPlane.call``."""
        return asyncio.wrap_future(self.plane.call(function, may_lose=may_lose))

    def note_epoch(self) -> None:
        """Let log lines say under which epoch this node serves.

        Several servers in one program have no such word.
        """
        present = self.owner.present if self.owner is not None else None
        if self.host.owns_process:
            log.note(epoch=present.epoch if present is not None else None)

    # ---- ending
    # ----------------------------------------------------------------------------------------------

    def request_stop(self, number: int) -> None:
        """Stop cleanly. ``number``: the signal that asked for it, or 0.

        A successor finishes its takeover first, for publishers wait for it; who asks a second time
        does not want that.
        """
        self.stop_signal = number
        if self.stopping.is_set() or self.group is None:
            self._no_more.set()
        self.stopping.set()

    def leave(self, why: str, status: int = EXIT_FENCED) -> None:
        """Stop cleanly with one line that says why; by default to come back as a standby."""
        log.stream.fatal(why, code="FTS-2199")
        self._exit_status = status
        self._end()

    def request_handover(self, successor: str) -> None:
        """Stop cleanly in favour of the member ``successor``, by its name.

        Ends as a node that stands by when it is started again.
        """
        log.stream.info(f"ft: switchover: handing over to server {successor}")
        self._exit_status = EXIT_FENCED
        self.hands_over = True
        self._end()

    def request_step_down(self, to: str, status: int = EXIT_FENCED) -> None:
        """Stop cleanly in favour of the node ``to`` of the cluster, empty for any."""
        log.stream.info("server lost leadership, performing leader stepdown actions")
        log.stream.info(f"cluster: {to or 'another node'} is to lead")
        self._exit_status = status
        self.hands_over = True
        self._end()

    def fail(self, error: FtstanError) -> None:
        """End with this error."""
        if self.stopping.is_set() or isinstance(error, StoppedError):
            return
        self._failure = error
        self._end()

    def _end(self) -> None:
        self._no_more.set()
        self.stopping.set()

    def die(self, why: str) -> NoReturn:
        """End at once, also if storage never answers."""
        if self.link is not None:
            self.link.cut()
        self.host.end(why, EXIT_FENCED)

    def fenced(self, error: FencedError) -> NoReturn:
        """The store belongs to somebody else: out at once, with one line that says why."""
        if isinstance(error, ReleasedError):
            raise StoppedError("the server stops") from error
        self.host.end(error.text, EXIT_FENCED)

    def storage_failed(self, error: BaseException) -> None:
        """The data plane or the watch can not go on: nothing more is sent or written.

        On any thread.
        """
        with contextlib.suppress(EndedError):
            if isinstance(error, StoreError) and self.clock.mono() - self._serving_since < _SOON_S:
                self.host.pause_and_end(shown(error), EXIT_FENCED, _PAUSE_S)
            self.host.end(
                shown(error), EXIT_FENCED if isinstance(error, FtstanError | MemoryError) else 2
            )

    def thread_failed(self, failure: threading.ExceptHookArgs) -> None:
        """A thread that nothing was to end did: this node is not whole any more."""
        name = failure.thread.name if failure.thread is not None else "?"
        error = failure.exc_value
        self.die(
            f"the thread {name} ended: "
            f"{shown(error) if error is not None else failure.exc_type.__name__}"
        )

    # ---- views
    # ----------------------------------------------------------------------------------------------

    @property
    def uptime(self) -> float:
        """Seconds since this process started."""
        return self.clock.mono() - self._started

    def is_ft_active(self) -> bool:
        """Whether this node is the active one and serves."""
        return self.role is NodeState.ACTIVE and self.is_serving()

    def is_serving(self) -> bool:
        """Whether clients are answered now."""
        serving = self.plane.serving
        return serving is not None and serving.ready

    @property
    def unanswered(self) -> int:
        """Publishes that arrived during hand-overs and were not answered, as far as they were
        counted.
        """
        serving = self.plane.serving
        return self.unbridged + (serving.unbridged if serving is not None else 0)

    @property
    def ends(self) -> bool:
        """Whether nothing is to be finished any more, not even a takeover."""
        return self._no_more.is_set()

    @property
    def hears_nats(self) -> bool:
        """Whether the control thread has a connection to NATS; true where there is none."""
        return self.group is None or self.group.connected

    @property
    def is_up(self) -> bool:
        """Whether the node does what it is for: it serves, or has begun to stand by; and can be
        asked.
        """
        stands_by = (self.group is not None and self.group.looks_for_nats) or (
            self.cluster is not None
        )
        return (self.is_serving() or stands_by) and not self.opens_aside

    @property
    def looks_for_nats(self) -> bool:
        """Whether the control thread has a connection to NATS or tries to.

        True where there is none.
        """
        return self.group is None or self.group.looks_for_nats
