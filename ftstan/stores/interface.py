"""What a store is: the contract between the broker and whatever keeps its messages.

A batch goes one way (``docs/architecture.md``): the broker *stages* what it applied, ``commit``
makes it durable, ``confirm`` proves that the store is still ours, and only then anything is sent.
So every method that stages returns at once, and ``commit`` is the only one that a publisher waits
for.

Rules that every store keeps:

- ``first``, ``last``, ``count`` and ``size`` of a channel speak of durable messages only;
- a channel whose commit failed drops everything staged for it, is reported by name, and the others
  proceed;
- records that name a sequence (``SubEvents``) are staged only after that sequence is durable, and
  written by ``write_events``; they are durable after ``sync_events``;
- nothing is written, removed or renamed after ``confirm`` has raised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ftstan.base.disk import LocalDisk
from ftstan.config.options import ChannelLimits

if TYPE_CHECKING:
    from ftstan.base.clock import Clock
    from ftstan.base.disk import Disk
    from ftstan.base.errors import StoreError
    from ftstan.config.limits import Limits
    from ftstan.config.options import ServerOptions
    from ftstan.wire.block import MsgBlock, SubEvents

__all__ = [
    "AHEAD_NS",
    "BEING_DELETED",
    "CLIENTS",
    "MAX_NUMBER",
    "REMEMBERED_SIZE",
    "ChannelLimits",
    "ChannelStore",
    "ClientInfo",
    "Confirm",
    "Lock",
    "Recovered",
    "ServerInfo",
    "Store",
    "StoreAccess",
    "StoreContext",
    "StoreKind",
    "StoredAt",
    "StoredSub",
    "SubState",
    "client_key",
    "is_client_key",
]

#: The key under which ``Store.commit`` reports that client registrations could not be stored: no
#: channel has this name.
CLIENTS = b""


def client_key(client_id: bytes) -> bytes:
    """The key under which ``Store.commit`` reports that one client's registration, or the end of
    it, could not be stored, and others could: no channel's name begins with a blank.
    """
    return b" " + client_id


def is_client_key(key: bytes) -> bool:
    """Whether it is one of ``client_key``."""
    return key.startswith(b" ")


#: What a client is told while a deleted channel is still being removed
#: (``docs/compat/protocol.md``, error strings).
BEING_DELETED = "stan: channel is being deleted"

#: The highest sequence and subscription id of a channel that goes on. Files have 64 bits for them:
#: behind the last one an acknowledged message would have a number that no start can read. Nobody
#: counts as far as this.
MAX_NUMBER = (1 << 63) - 1

#: A message that is stamped with a time further ahead than this was stored under a clock that was
#: wrong (ns).
AHEAD_NS = 86_400_000_000_000

#: Bytes in the digest of a remembered publish.
REMEMBERED_SIZE = 16


class StoredAt(NamedTuple):
    """Where a remembered publish went: its sequence, and a check value of the record (0 to 2^32 -
    1).
    """

    sequence: int
    mark: int


#: Raises ``FencedError`` unless the store is still ours, judged by storage and nothing else.
Confirm = Callable[[], None]


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Identity and subjects of the server, kept in ``server.dat``
    (``docs/compat/filestore.md``).
    """

    cluster_id: str
    discovery: str
    publish: str
    subscribe: str
    unsubscribe: str
    close: str
    sub_close: str
    acks_subs: str
    node_id: str = ""
    encrypted: bool = field(default=False, kw_only=True, compare=False)
    """Whether the store has encrypted payloads: no part of who the server is, and ours alone, the
    original skips it.
    """


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """A registered client. Strings of the wire are bytes: the protocol does not promise UTF-8."""

    client_id: bytes
    hb_inbox: bytes
    conn_id: bytes = b""
    protocol: int = 0
    ping_interval: int = 0
    ping_max_out: int = 0


@dataclass(frozen=True, slots=True)
class SubState:
    """A stored subscription.

    A durable queue member has no ``durable_name``: its ``queue`` is ``durable:group``.
    """

    sub_id: int
    client_id: bytes
    queue: bytes = b""
    inbox: bytes = b""
    ack_inbox: bytes = b""
    max_in_flight: int = 0
    ack_wait_secs: int = 0
    durable_name: bytes = b""
    last_sent: int = 0
    is_durable: bool = False
    is_closed: bool = False


@dataclass(slots=True)
class StoredSub:
    """A recovered subscription: its state and the sequences that were sent and not acknowledged."""

    state: SubState
    pending: set[int] = field(default_factory=set)


class ChannelStore(Protocol):
    """One channel's messages and subscriptions."""

    #: Set by the broker: every stored subscription as it is now, with what it has not acknowledged.
    #: A store that has to write a channel's subscriptions as a whole asks for it, in any call that
    #: may write; ``None``: it helps itself.
    snapshot: Callable[[], Iterable[StoredSub]] | None

    @property
    def mover(self) -> bytes | None:
        """The id of the client that may still publish to a channel that has moved; ``None``: it has
        not moved.
        """
        ...

    @property
    def name(self) -> bytes:
        """The channel's name."""
        ...

    @property
    def limits(self) -> ChannelLimits:
        """The limits in force."""
        ...

    @property
    def first(self) -> int:
        """Sequence of the first available message.

        ``last + 1`` when all are gone, 0 when there never was one.
        """
        ...

    @property
    def last(self) -> int:
        """Sequence of the last durable message, 0 when there never was one."""
        ...

    @property
    def count(self) -> int:
        """Available messages."""
        ...

    @property
    def size(self) -> int:
        """Bytes as monitoring counts them (memory: encoded messages; file: plus 40 each)."""
        ...

    @property
    def last_timestamp(self) -> int:
        """Timestamp (ns) of the last durable message, 0 when there never was one."""
        ...

    @property
    def next_sub_id(self) -> int:
        """The id for the next new subscription: one above the highest ever seen."""
        ...

    def keep(self) -> None:
        """Stage the channel itself: from the next commit on it is in the store, also without a
        message.
        """
        ...

    def append(self, block: MsgBlock) -> None:
        """Stage messages whose sequences go on from what was staged before."""
        ...

    def read(self, sequence: int, max_msgs: int, max_bytes: int) -> MsgBlock | None:
        """A block that holds the first existing durable message at or after ``sequence`` (whatever
        its size).

        ``None`` if there is none. The block may begin before and go on behind it. Raises
        ``DamageError`` if the stored bytes are not what was written.
        """
        ...

    def sequence_at(self, timestamp: int) -> int:
        """First sequence whose timestamp is at or after ``timestamp`` (ns).

        ``last + 1`` if none is.
        """
        ...

    def add_sub(self, state: SubState) -> None:
        """Stage a new subscription."""
        ...

    def update_sub(self, state: SubState) -> None:
        """Stage a replacement of the subscription's state; its pending sequences stay."""
        ...

    def delete_sub(self, sub_id: int) -> None:
        """Stage the removal of a subscription."""
        ...

    def add_events(self, events: SubEvents) -> None:
        """Stage sent and acknowledged sequences, in order.

        Takes what is in ``events`` and leaves it empty.
        """
        ...

    def recovered_subs(self) -> Sequence[StoredSub]:
        """The subscriptions found at recovery."""
        ...

    def expire(self, now_ns: int) -> None:
        """Drop messages older than the age limit and whatever the other limits no longer allow."""
        ...

    def purge(self, sequence: int) -> None:
        """Drop every message up to ``sequence`` for good, durable on return.

        Called outside a batch.

        ``last`` and the subscriptions stay, and the next message gets ``last + 1``. Raises
        ``FencedError``, and ``StoreError`` if storage refuses or the channel must not be written:
        then all of them may be gone, or some of the oldest, or none.
        """
        ...

    def set_moved(self, mover: bytes | None) -> None:
        """Mark the channel as one that has moved: only the client ``mover`` may publish to it.

        ``None``: everybody may again. Called outside a batch, durable on return. Raises
        ``RefusedError`` if this store cannot keep that, ``StoreError`` if it may be kept or not,
        and ``FencedError``.
        """
        ...


@dataclass(frozen=True, slots=True)
class ChannelEnd:
    """Where a channel ends: its last sequence, the number of its newest slice, bytes of that
    slice's index.
    """

    name: bytes
    last: int
    slice_number: int
    index_end: int


@dataclass(slots=True)
class Recovered:
    """What a store held when it was opened. ``info`` is ``None`` for a store that never served.

    ``refused``: channels that are damaged and must not be written, with the text that publishers
    and subscribers get. ``later``: names that ``Store.open_channel`` has not been asked for yet;
    the store holds more than can be read while publishers wait. ``remembered``: what the last
    ``Store.remember`` was given, oldest first. It can name messages that no log holds. Of
    ``Store.open_channel``: what a former owner has remembered since, of any channel.
    ``activation``: a number that no other owner of the store has; 0 if nobody has a former owner.
    """

    info: ServerInfo | None
    clients: list[ClientInfo]
    channels: list[ChannelStore]
    refused: dict[bytes, str] = field(default_factory=dict)
    later: list[bytes] = field(default_factory=list)
    remembered: dict[bytes, StoredAt] = field(default_factory=dict)
    activation: int = 0


class Store(Protocol):
    """A place where channels rest.

    One thread uses it; it may block on storage, and nothing else waits for it.
    """

    @property
    def kind(self) -> str:
        """The name in logs and monitoring: ``FILE`` or ``MEMORY``."""
        ...

    def recover(self) -> Recovered:
        """Read everything back. Raises ``RecoveryError`` when the store must not be served."""
        ...

    def set_server_info(self, info: ServerInfo) -> None:
        """Make identity and subjects durable at once."""
        ...

    def add_client(self, info: ClientInfo) -> None:
        """Stage a client registration."""
        ...

    def delete_client(self, client_id: bytes) -> None:
        """Stage the end of a client's registration."""
        ...

    def create_channel(self, name: bytes, limits: ChannelLimits) -> ChannelStore:
        """A new, empty channel; it appears in the store with the first commit that touches it.

        Raises ``StoreError`` if it cannot be made now.
        """
        ...

    def open_channel(self, name: bytes) -> Recovered:
        """Read back a channel that ``recover`` has left for later.

        In what it returns are the channel and, if it is damaged, why it is refused; nothing, if
        there is no channel of that name. Raises ``StoreError`` if it cannot be read now, and
        ``FencedError``.
        """
        ...

    def set_limits(self, limits: Limits) -> None:
        """From now on these limits hold, for every channel there is and for those that are found
        later.

        Called before ``recover`` and whenever others are given. Messages that they no longer allow
        go with the next commit of their channel, or with ``tick``.
        """
        ...

    def delete_channel(self, name: bytes) -> None:
        """Forget a channel and everything in it, durable on return; called outside a batch.

        Raises ``StoreError`` if there is no such channel, if something is staged in it, or if
        storage refuses before anything has changed.
        """
        ...

    def commit(self) -> dict[bytes, StoreError]:
        """Make everything staged durable, ``SubEvents`` excepted.

        Returns the channels that failed, with their errors.

        The key ``CLIENTS`` stands for all client registrations, ``client_key`` for those of one
        client. Raises ``StoreError`` if the store
        cannot go on and ``FencedError`` if it is not ours.
        """
        ...

    def remember(self, fresh: Sequence[bytes], window: Mapping[bytes, StoredAt]) -> None:
        """Make the digests of publishes durable that are staged, before ``commit``.

        ``window``: every digest (``REMEMBERED_SIZE`` bytes) with its message, oldest first;
        ``fresh``: those that are new. Raises ``StoreError`` if the store cannot go on.
        """
        ...

    def confirm(self) -> None:
        """Raise ``FencedError`` unless the store is still ours."""
        ...

    @property
    def events_first(self) -> bool:
        """Whether ``write_events`` comes before the output of a batch instead of after it."""
        ...

    def write_events(self) -> None:
        """Hand staged ``SubEvents`` to the file system, unsynced unless the operator asked for
        more.
        """
        ...

    @property
    def acks_wait(self) -> bool:
        """Whether acks are in memory only, after ``write_events``, because their file must be
        replaced first.
        """
        ...

    def catch_up(self) -> bool:
        """Replace some files that acks wait for, many at once; returns whether others wait.

        ``tick`` does so, too.
        """
        ...

    def tick(self, now_ns: int) -> bool:
        """Work of once a second: syncs of what no publisher waits for, expiry, removal of dead
        slices.

        Returns whether more of it waits: call it again after the next batch.
        """
        ...

    def ends(self, most: int) -> list[ChannelEnd]:
        """Where at most ``most`` channels end: those that were written to since the last call, then
        others in turn.

        For standbys that read ahead; empty if there are no files.
        """
        ...

    def prepare_close(self, seconds: float) -> bool:
        """Do some of what ``close`` would do, for about so long, while the store is still served.

        Returns whether another call would make ``close`` shorter. Raises ``StoreError`` and
        ``FencedError``.
        """
        ...

    def close(self) -> None:
        """Write and sync what is left and release every handle."""
        ...

    def abandon(self) -> None:
        """Release every handle and write nothing: the store belongs to somebody else now."""
        ...


class Lock(Protocol):
    """What keeps other servers away from a store.

    Contention is its business; safety rests on ``Store.confirm``.
    """

    def acquire(self) -> None:
        """Take it now, without waiting; nothing happens if it is held.

        Raises ``LockBusyError`` if somebody else holds it and ``LockFaultError`` if it cannot be
        asked for.
        """
        ...

    def verify(self) -> None:
        """Raise ``FencedError`` unless it is still held, as far as storage can tell."""
        ...

    def release(self) -> None:
        """Give it back; never fails, and does nothing if it is not held."""
        ...


@dataclass(frozen=True, slots=True)
class StoreContext:
    """What a node hands to the kind of store that ``-store`` names.

    ``stopping`` is set, from another thread, when the node stops: a ``recover`` that takes long
    should then raise ``StoppedError`` at the next good moment. ``progress`` may be called during
    ``recover``: channels recovered so far, and how many there are. ``disk``: for every storage call
    of a store in files; another thread may shut it.
    """

    options: ServerOptions
    server_id: str
    clock: Clock
    stopping: threading.Event = field(default_factory=threading.Event)
    progress: Callable[[int, int], None] = lambda _done, _of: None
    disk: Disk = field(default_factory=LocalDisk)


class StoreAccess(Protocol):
    """One node's access to one store, before, while and after it owns it.

    Every method may block on storage.
    """

    @property
    def place(self) -> str:
        """What and where it is, for messages: ``datastore /data/stan``."""
        ...

    def lock(self) -> Lock:
        """The lock that ``activate`` needs; the same object each time."""
        ...

    def holder(self) -> str:
        """Who owns the store, in words; empty if nobody knows."""
        ...

    def activate(self) -> None:
        """Become the owner; the lock is held.

        From then on no former owner can be confirmed any more.

        Raises ``FencedError``, ``RecoveryError`` or ``StoreError``.
        """
        ...

    def open(self) -> Store:
        """The store under the present activation, not recovered yet."""
        ...

    def close(self) -> None:
        """Release everything, the lock too; the store was closed or abandoned."""
        ...


class StoreKind(Protocol):
    """What an entry point of the group ``ftstan.stores`` names.

    Its name is what operators write after ``-store``.
    """

    def __call__(self, context: StoreContext) -> StoreAccess:
        """Prepare access for one node; nothing of the store is read or owned yet.

        Raises ``StoreError``.
        """
        ...
