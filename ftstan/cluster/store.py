"""The store of a leader: what the broker stages goes into the log first, then into the local store.

A commit encodes what was staged, appends it, and returns when a majority has it; only then is the
local store given the same, by the code that followers use. Deliveries and acks of subscribers go
with the next batch, or a fifth of a second later by themselves. ``confirm`` believes an append that
was answered a moment ago; else it makes one, because nothing else proves that this node still
leads.

If the local store cannot take what the log has, this node ends: it must not answer from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ftstan.base.errors import StoreError
from ftstan.base.log import stream as log
from ftstan.cluster.entry import Op, Operation, encode_operations
from ftstan.stores.interface import Recovered
from ftstan.stores.moves import no_moves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ftstan.base.clock import Clock
    from ftstan.cluster.log import ReplicatedLog
    from ftstan.cluster.replica import LocalChannel, Replica
    from ftstan.config.limits import Limits
    from ftstan.stores.interface import (
        ChannelEnd,
        ChannelLimits,
        ChannelStore,
        ClientInfo,
        ServerInfo,
        StoredAt,
        StoredSub,
        SubState,
    )
    from ftstan.wire.block import MsgBlock, SubEvents

#: For so long an append that was answered proves that this node leads.
_PROOF_S: Final = 0.25
#: While nothing is published a checkpoint is made so often, else only so often.
_QUIET_S: Final = 5.0
_BUSY_S: Final = 120.0
#: Bytes of a channel's name: that of its directory.
_LONGEST_NAME: Final = 255


class ClusterChannel:
    """One channel of a leader. Implements ``ChannelStore``."""

    def __init__(
        self,
        local: LocalChannel,
        stage: Callable[[Operation], None],
        append: Callable[[], None],
        check: Callable[[bytes], None],
    ) -> None:
        self._inner: ChannelStore = local.store
        self._check = check
        self._stage = stage
        self._append = append
        self._recovered = local.stored_subs()
        self._snapshot: Callable[[], Iterable[StoredSub]] | None = None
        self._next_sub_id = self._inner.next_sub_id
        self.name = self._inner.name

    @property
    def snapshot(self) -> Callable[[], Iterable[StoredSub]] | None:
        """What the broker has set."""
        return self._snapshot

    @snapshot.setter
    def snapshot(self, value: Callable[[], Iterable[StoredSub]] | None) -> None:
        # Not to the local store: the broker is ahead of it by a batch that may never be committed.
        self._snapshot = value

    @property
    def limits(self) -> ChannelLimits:
        """The limits in force on this node."""
        return self._inner.limits

    @property
    def first(self) -> int:
        """Sequence of the first available message."""
        return self._inner.first

    @property
    def last(self) -> int:
        """Sequence of the last message that a majority has."""
        return self._inner.last

    @property
    def count(self) -> int:
        """Available messages."""
        return self._inner.count

    @property
    def size(self) -> int:
        """Bytes in the local store."""
        return self._inner.size

    @property
    def last_timestamp(self) -> int:
        """Timestamp of the last message."""
        return self._inner.last_timestamp

    @property
    def next_sub_id(self) -> int:
        """The id for the next new subscription."""
        return max(self._next_sub_id, self._inner.next_sub_id)

    def keep(self) -> None:
        """Stage the channel itself."""
        self._stage(Operation(Op.KEEP, self.name))

    def append(self, block: MsgBlock) -> None:
        """Stage messages."""
        self._stage(Operation(Op.PUBLISH, self.name, block))

    def read(self, sequence: int, max_msgs: int, max_bytes: int) -> MsgBlock | None:
        """Messages of the local store. Raises ``BehindError`` if it is found damaged."""
        try:
            return self._inner.read(sequence, max_msgs, max_bytes)
        finally:
            # A read passes over what is damaged, and other nodes have it.
            self._check(self.name)

    def sequence_at(self, timestamp: int) -> int:
        """First sequence at or after a time."""
        return self._inner.sequence_at(timestamp)

    def add_sub(self, state: SubState) -> None:
        """Stage a new subscription."""
        self._next_sub_id = max(self._next_sub_id, state.sub_id + 1)
        self._stage(Operation(Op.SUB_NEW, self.name, state))

    def update_sub(self, state: SubState) -> None:
        """Stage the new state of a subscription."""
        self._stage(Operation(Op.SUB_UPDATE, self.name, state))

    def delete_sub(self, sub_id: int) -> None:
        """Stage the end of a subscription."""
        self._stage(Operation(Op.SUB_DELETE, self.name, sub_id))

    def add_events(self, events: SubEvents) -> None:
        """Stage sent and acknowledged sequences; leaves ``events`` empty."""
        if len(events):
            self._stage(Operation(Op.EVENTS, self.name, events.take()))

    def recovered_subs(self) -> Sequence[StoredSub]:
        """The subscriptions as the log had left them when this node began to lead."""
        return self._recovered

    def expire(self, now_ns: int) -> None:
        """Apply the limits to the local store."""
        self._inner.expire(now_ns)

    @property
    def mover(self) -> bytes | None:
        """No channel can be marked as moved here."""
        return None

    def set_moved(self, mover: bytes | None) -> None:
        """Refuse it. Raises ``RefusedError``."""
        if mover is not None:
            raise no_moves("a cluster")

    def purge(self, sequence: int) -> None:
        """Drop messages, on every node. Raises ``FencedError``."""
        self._stage(Operation(Op.PURGE, self.name, sequence))
        self._append()


class ClusterStore:
    """Implements ``Store`` for the node that leads."""

    kind = "RAFT_FILE"

    def __init__(
        self,
        replica: Replica,
        rlog: ReplicatedLog,
        clock: Clock,
        left: Callable[[], None] = lambda: None,
    ) -> None:
        """``left()``: called when a stop has appended the last entry."""
        self._left = left
        self._replica = replica
        self._log = rlog
        self._clock = clock
        self._staged: list[Operation] = []
        self._only_events = True
        self._channels: dict[bytes, ClusterChannel] = {}
        self._proven = float("-inf")
        self._checkpoint_at = clock.mono() + _QUIET_S
        self._busy_since = clock.mono()
        self._published = clock.mono()

    # ---- recovery
    # ----------------------------------------------------------------------------------------------

    def recover(self) -> Recovered:
        """What the entries of the log up to now add up to."""
        replica = self._replica
        channels: list[ChannelStore] = [self._wrap(local) for local in replica.channels.values()]
        return Recovered(
            replica.info,
            list(replica.clients.values()),
            channels,
            {},
            list(replica.later),
            dict(replica.remembered),
            self._log.at.epoch,
        )

    def _wrap(self, local: LocalChannel) -> ClusterChannel:
        channel = ClusterChannel(local, self._stage, self._append, self._replica.check_sound)
        self._channels[channel.name] = channel
        return channel

    def open_channel(self, name: bytes) -> Recovered:
        """A channel that nobody has needed yet. Raises ``StoreError``, and ``BehindError`` if it is
        damaged.
        """
        if name in self._channels:
            return Recovered(None, [], [])
        local = self._replica.find(name)
        if local is None:
            return Recovered(None, [], [])
        self._replica.check_sound(name)
        return Recovered(None, [], [self._wrap(local)], activation=self._log.at.epoch)

    def current_subs(self, local: LocalChannel) -> Iterable[StoredSub]:
        """The subscriptions of a channel, as the broker has them once nothing waits."""
        channel = self._channels.get(local.store.name)
        snapshot = channel.snapshot if channel is not None else None
        return snapshot() if snapshot is not None else local.stored_subs()

    # ---- staging
    # ----------------------------------------------------------------------------------------------

    def _stage(self, operation: Operation) -> None:
        self._staged.append(operation)
        if operation.op is not Op.EVENTS:
            self._only_events = False

    def set_server_info(self, info: ServerInfo) -> None:
        """Identity and subjects, on every node."""
        self._stage(Operation(Op.SERVER_INFO, b"", info))
        self._append()

    def add_client(self, info: ClientInfo) -> None:
        """Stage a registration."""
        self._stage(Operation(Op.CLIENT_NEW, info.client_id, info))

    def delete_client(self, client_id: bytes) -> None:
        """Stage the end of a registration."""
        self._stage(Operation(Op.CLIENT_DELETE, client_id))

    def create_channel(self, name: bytes, limits: ChannelLimits) -> ClusterChannel:
        """A new channel, made on this node at once: what the file system refuses, no log has.

        Raises ``StoreError``.
        """
        del limits
        shown = name.decode("utf-8", "backslashreplace")
        if len(name) > _LONGEST_NAME:
            raise StoreError(f"mkdir {shown}: file name too long")
        local = self._replica.channel(name)
        local.store.keep()
        for error in self._replica.store.commit().values():
            self._replica.forget(name)
            raise error
        return self._wrap(local)

    def set_limits(self, limits: Limits) -> None:
        """Other limits, on this node."""
        self._replica.set_limits(limits)

    def delete_channel(self, name: bytes) -> None:
        """Delete a channel, on every node. Raises ``StoreError`` if there is none."""
        if self._replica.find(name) is None:
            shown = name.decode("utf-8", "backslashreplace")
            raise StoreError(f'channel "{shown}" not found')
        self._stage(Operation(Op.CHANNEL_DELETE, name))
        self._append()
        self._channels.pop(name, None)
        # Behind the deletion: nothing of the channel's former life is ever applied again.
        self._replica.checkpoint()

    def change_nodes(self, changes: Mapping[str, bool]) -> None:
        """Add nodes to the cluster (true), or remove them, on every node, in one entry.

        Raises ``FencedError``.
        """
        for node, is_in in changes.items():
            self._stage(Operation(Op.NODE, node.encode(), int(is_in)))
        self._append()

    # ---- the commit
    # ----------------------------------------------------------------------------------------------

    def commit(self) -> dict[bytes, StoreError]:
        """Append what was staged; returns when a majority has it. No channel fails alone.

        Raises ``FencedError`` if this node does not lead any more, or its store is behind.
        """
        if self._staged and not self._only_events:
            self._append()
        return {}

    def _append(self) -> None:
        staged = self._staged
        self._staged = []
        self._only_events = True
        body = encode_operations(staged)
        began = self._clock.mono()
        self._log.append(body)
        # Since it was asked for: the answer may have waited.
        self._proven = began
        self._replica.apply(staged, self._log.at)
        if any(operation.op is Op.PUBLISH for operation in staged):
            self._published = self._clock.mono()

    def remember(self, fresh: Sequence[bytes], window: Mapping[bytes, StoredAt]) -> None:
        """Stage the digests of publishes; they go with the next commit."""
        self._stage(Operation(Op.REMEMBER, b"", ({key: window[key] for key in fresh}, len(window))))

    def confirm(self) -> None:
        """Raise ``FencedError`` unless this node leads."""
        if self._clock.mono() - self._proven > _PROOF_S:
            self._append()

    events_first = False

    def write_events(self) -> None:
        """Events wait for the next batch, or for ``catch_up``."""

    @property
    def acks_wait(self) -> bool:
        """Whether events are in memory only."""
        return bool(self._staged)

    def catch_up(self) -> bool:
        """Append the events that wait."""
        if self._staged:
            self._append()
        return False

    def tick(self, now_ns: int) -> bool:
        """Once a second: upkeep of the local store, and a checkpoint when it disturbs nobody."""
        if self._staged:
            self._append()
        more = self._replica.store.tick(now_ns)
        now = self._clock.mono()
        quiet = now - self._published > 1.0
        due = now >= self._checkpoint_at if quiet else now >= self._busy_since + _BUSY_S
        if due and not self._replica.is_recorded:
            self._replica.checkpoint()
            now = self._clock.mono()
            self._checkpoint_at = now + _QUIET_S
            self._busy_since = now
        return more

    def ends(self, most: int) -> list[ChannelEnd]:
        """Nobody reads these files ahead."""
        del most
        return []

    def prepare_close(self, seconds: float) -> bool:
        """Sync ahead of the stop what a stop would sync."""
        del seconds
        if self._staged:
            self._append()
        self._replica.checkpoint()
        return False

    def close(self) -> None:
        """Append what is left, and leave a checkpoint. The local store is its owner's to close."""
        if self._staged:
            self._append()
        # What is left to do here is local: another node need not wait for it.
        self._left()
        self._replica.checkpoint()
        log.debug("cluster: the leader's store is closed")

    def abandon(self) -> None:
        """Write nothing more."""
        self._staged.clear()
