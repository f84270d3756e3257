"""The local store of a node: what the entries of the log add up to.

A leader and its followers fill their stores by the same ``apply``, in the order of the log; so the
stores of all nodes hold the same. Nothing here is synced before a checkpoint: a start goes back to
what was synced, channel by channel (``stores/file/recovery/rolling_back.py``), and what came behind
the checkpoint is applied again from the log. Some channels may be further than the checkpoint.
Applying twice must therefore change nothing: messages that are there already are passed over, and
what would leave a hole is an error. A channel that is deleted
stands between two checkpoints, so that no entry of its former life is ever applied to its next one.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, cast

from ftstan.base.errors import FencedError, StoreError
from ftstan.base.log import stream as log
from ftstan.cluster.checkpoint import Checkpoint
from ftstan.cluster.entry import Kind, Op, Operation, Position, decode_operations
from ftstan.stores.interface import ClientInfo, Recovered, ServerInfo, StoredAt, StoredSub
from ftstan.wire.block import PACKED_HEAD, MsgBlock, SubEvents, unpack_block

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ftstan.cluster.checkpoint import CheckpointFile
    from ftstan.cluster.entry import Entry, Remembered
    from ftstan.config.limits import Limits
    from ftstan.stores.file.store import FileStore
    from ftstan.stores.interface import ChannelStore, SubState

#: As much of a channel is compared at once: messages, bytes.
_COMPARED: Final = 1024
_COMPARED_BYTES: Final = 4 << 20
#: Bytes that a copy may store before they are synced.
_FILLED_BYTES: Final = 64 << 20


class BehindError(FencedError):
    """The local store could not take what the log has: it must not be served any more."""


class HoleError(BehindError):
    """The local store lacks messages that its checkpoint covers: it must be filled anew."""


@dataclass(slots=True)
class FollowedSub:
    """A subscription as the log left it."""

    state: SubState
    last_sent: int
    pending: set[int]


@dataclass(slots=True)
class LocalChannel:
    """A channel of the local store, and its subscriptions while this node follows."""

    store: ChannelStore
    subs: dict[int, FollowedSub] = field(default_factory=dict)
    staged: int = 0
    """The last message that was given to the store."""

    def stored_subs(self) -> list[StoredSub]:
        """The subscriptions, as a recovery would find them."""
        return [
            StoredSub(replace(sub.state, last_sent=sub.last_sent), set(sub.pending))
            for sub in self.subs.values()
        ]


class Replica:
    """Fills ``store``, which is recovered. ``recovered``: what was found in it."""

    def __init__(
        self,
        store: FileStore,
        recovered: Recovered,
        limits: Limits,
        *,
        node_id: str,
        file: CheckpointFile,
        store_id: str,
    ) -> None:
        self.store = store
        self.info = recovered.info
        self.clients = {info.client_id: info for info in recovered.clients}
        self.channels: dict[bytes, LocalChannel] = {}
        self.refused = dict(recovered.refused)
        self.later = dict.fromkeys(recovered.later)
        self.remembered = dict(recovered.remembered)
        self.at = Position(b"")
        """Up to which entry everything was applied."""
        self.seen = 0
        """The furthest entry of this log that was heard of."""
        self.nodes: dict[str, bool] = {}
        """Nodes that were added to the cluster (true) or removed. Replaced, never changed: other
        threads look.
        """
        self.unsound = False
        """Whether the store is not what its checkpoint says: it is emptied, but only when there is
        something to fill it from.
        """
        self.found_damaged: frozenset[bytes] = frozenset()
        """Channels that a former life of this node has found damaged, and those that lack messages
        between others.
        """
        self.lacking: frozenset[bytes] = frozenset()
        """Channels of which a repair has found messages lost, here or where they were copied."""
        self.missing: frozenset[bytes] = frozenset()
        """Channels that this node had at its last checkpoint, and whose directories are gone."""
        self.seeds = False
        """Whether there is no log yet, and this node may make it behind what the store has."""
        self.manifests: dict[str, bytes] = {}
        """What other nodes were told that copy this store, by their tokens. None of it counts any
        more when the store is given up.
        """
        self.follows = True
        """Whether subscriptions are kept here, because no broker does."""
        self._limits = limits
        self._node_id = node_id
        self._file = file
        self._store_id = store_id
        self._pieces: list[bytes] = []
        self._filled = 0
        self._written = Position(b"")
        self._listed: frozenset[bytes] = frozenset()
        for channel in recovered.channels:
            self._adopt(channel)

    @property
    def is_empty(self) -> bool:
        """Whether the store holds nothing at all."""
        return not (self.channels or self.clients or self.later or self.info)

    @property
    def damaged(self) -> frozenset[bytes]:
        """Channels whose messages here cannot all be read, as far as anybody has looked."""
        met = (name for name in self.channels if self.store.is_quarantined(name))
        return self.found_damaged.union(self.refused, self.missing, met)

    def remember_damaged(self, names: Iterable[bytes]) -> None:
        """A former life of this node has found these channels damaged, which not every start meets.
        One that was repaired since is sound. Raises ``StoreError``.
        """
        for name in names:
            self.find(name)
            if not self.store.is_mended(name):
                self.found_damaged |= {name}

    def check_sound(self, name: bytes) -> None:
        """Raise ``BehindError`` for a channel that is damaged here: other nodes have all of it. The
        next start knows.
        """
        if name in self.refused or name in self.found_damaged or self.store.is_quarantined(name):
            self._note_damage()
            raise BehindError(
                f'channel "{_shown(name)}" is damaged on this node',
                hint="start the node again: it copies the channel from another one",
            )

    def _note_damage(self) -> None:
        """On disk, too: not every start meets it, and who leads ends without another checkpoint."""
        with contextlib.suppress(StoreError):
            known = self._file.read()
            if known is not None and known.damaged != self.damaged - self.missing:
                self._file.amend(replace(known, damaged=self.damaged - self.missing))

    def _adopt(self, channel: ChannelStore) -> LocalChannel:
        subs = {
            stored.state.sub_id: FollowedSub(
                stored.state, stored.state.last_sent, set(stored.pending)
            )
            for stored in channel.recovered_subs()
        }
        local = self.channels[channel.name] = LocalChannel(channel, subs)
        if self.store.has_holes(channel.name):
            # A server without a cluster serves around them; other nodes have what is missing.
            self.found_damaged |= {channel.name}
        elif self.store.lost(channel.name):
            self.lacking |= {channel.name}
        return local

    # ---- applying
    # ----------------------------------------------------------------------------------------------

    def take(self, entry: Entry, at: Position) -> None:
        """Apply the next entry of the log. ``at``: the position behind it.

        Raises ``BehindError`` if the store refuses, and ``DamageError``.
        """
        if entry.kind is Kind.LEADER:
            # What a former leader had begun and not ended counts for nothing, and will not go on.
            self._pieces.clear()
            self.at = at
            return
        self._pieces.append(entry.body)
        if entry.more:
            return
        body = b"".join(self._pieces)
        self._pieces.clear()
        self.apply(decode_operations(body), at)

    def apply(self, operations: Iterable[Operation], at: Position) -> None:
        """Carry out one batch, which ends at ``at``. Raises ``BehindError``."""
        try:
            for operation in operations:
                self._do(operation)
            failed = self.store.commit()
            self.store.write_events()
        except StoreError as error:
            self._note_damage()
            raise BehindError(
                f"the local store refused what the log has: {error.text}", hint=error.hint
            ) from error
        if failed:
            self._note_damage()
            name, refusal = next(iter(failed.items()))
            shown = _shown(name)
            raise BehindError(
                f'the local store refused what the log has for channel "{shown}": {refusal.text}',
                hint=refusal.hint,
            )
        self.at = at

    def _do(self, operation: Operation) -> None:
        name = operation.name
        match operation.op, operation.argument:
            case Op.PUBLISH, MsgBlock() as block:
                self._publish(name, block)
            case Op.EVENTS, SubEvents() as events:
                self._events(name, events)
            case Op.KEEP, _:
                self.channel(name).store.keep()
            case Op.SUB_NEW | Op.SUB_UPDATE, state:
                self._sub(operation.op, name, cast("SubState", state))
            case Op.SUB_DELETE, int(sub_id):
                local = self.channel(name)
                local.store.delete_sub(sub_id)
                local.subs.pop(sub_id, None)
            case Op.CLIENT_NEW, ClientInfo() as client:
                self.clients[name] = client
                self.store.add_client(client)
            case Op.CLIENT_DELETE, _:
                if self.clients.pop(name, None) is not None:
                    self.store.delete_client(name)
            case Op.SERVER_INFO, ServerInfo() as info:
                self.info = replace(info, node_id=self._node_id)
                self.store.set_server_info(self.info)
            case Op.REMEMBER, tuple() as remembered:
                self._remember(remembered)
            case Op.PURGE, int(sequence):
                self._settle()
                self.channel(name).store.purge(sequence)
            case Op.CHANNEL_DELETE, _:
                self._delete(name)
            case Op.NODE, int(is_in):
                self.nodes = self.nodes | {name.decode(): bool(is_in)}
            case _:
                raise StoreError(f"the log has an operation that makes no sense: {operation.op!r}")

    def find(self, name: bytes) -> LocalChannel | None:
        """The channel, ``None`` if there is none. Raises ``StoreError``."""
        local = self.channels.get(name)
        if local is None and name in self.later:
            found = self.store.open_channel(name)
            del self.later[name]
            self.refused |= found.refused
            for channel in found.channels:
                local = self._adopt(channel)
        return local

    def channel(self, name: bytes) -> LocalChannel:
        """The channel, made if there is none. Raises ``StoreError``."""
        return self.find(name) or self._adopt(
            self.store.create_channel(name, self._limits.of(name))
        )

    def forget(self, name: bytes) -> None:
        """A channel could not be made after all."""
        self.channels.pop(name, None)

    def set_limits(self, limits: Limits) -> None:
        """Other limits from now on."""
        self._limits = limits
        self.store.set_limits(limits)

    def _publish(self, name: bytes, block: MsgBlock) -> None:
        local = self.channel(name)
        # A batch may publish to one channel twice.
        last = max(local.store.last, local.staged)
        if not len(block):
            return
        if block.last <= last:
            self._compare(name, local.store, block)
            return
        if block.first <= last:
            self._compare(name, local.store, block)
            block = behind(block, last)
        if block.first != last + 1:
            shown = _shown(name)
            raise HoleError(
                f'channel "{shown}": message {block.first} follows message {last}: the local store '
                "has lost messages"
            )
        local.staged = block.last
        local.store.append(block)

    def _compare(self, name: bytes, store: ChannelStore, block: MsgBlock) -> None:
        """What the log brings again, the store has as it was: it is not synced, and a power cut can
        leave the end of a channel behind what it holds.

        Raises ``HoleError`` for a message that is missing, and ``BehindError`` for another one.
        """
        shown = _shown(name)
        sequence = max(block.first, store.first)
        last = min(block.last, store.last)
        while sequence <= last:
            found = store.read(sequence, _COMPARED, _COMPARED_BYTES)
            at = found.position(sequence) if found is not None else 0
            if found is None or at == len(found) or found.sequence(at) != sequence:
                raise HoleError(
                    f'channel "{shown}": message {sequence} is missing in the local store'
                )
            for here in range(at, len(found)):
                if sequence > last or found.sequence(here) != sequence:
                    break
                there = block.position(sequence)
                if block.sequence(there) != sequence or (
                    (block.timestamp(there), block.payload(there))
                    != (found.timestamp(here), found.payload(here))
                ):
                    raise BehindError(
                        f'channel "{shown}": message {sequence} of the local store is not the one '
                        "that the log has",
                        hint="the log may have lost entries: look at what the other nodes hold "
                        "before this datastore is emptied",
                    )
                sequence += 1

    def _settle(self) -> None:
        for error in self.store.commit().values():
            raise error
        self.store.write_events()

    def _events(self, name: bytes, events: SubEvents) -> None:
        local = self.channel(name)
        if self.follows:
            for what, sub_id, sequence in events.items():
                sub = local.subs.get(sub_id)
                if sub is None:
                    continue
                if what == "sent":
                    sub.pending.add(sequence)
                    sub.last_sent = max(sub.last_sent, sequence)
                else:
                    sub.pending.discard(sequence)
        local.store.add_events(events)

    def _sub(self, op: Op, name: bytes, state: SubState) -> None:
        local = self.channel(name)
        if op is Op.SUB_NEW:
            local.store.add_sub(state)
        else:
            local.store.update_sub(state)
        if not self.follows:
            return
        known = local.subs.get(state.sub_id)
        if known is None or op is Op.SUB_NEW:
            local.subs[state.sub_id] = FollowedSub(state, state.last_sent, set())
        else:
            known.state = state
            known.last_sent = max(known.last_sent, state.last_sent)

    def _remember(self, remembered: Remembered) -> None:
        fresh, size = remembered
        for key, at in fresh.items():
            self.remembered.pop(key, None)
            self.remembered[key] = StoredAt(*at)
        while len(self.remembered) > size:
            del self.remembered[next(iter(self.remembered))]
        self.store.remember(list(fresh), self.remembered)

    def _delete(self, name: bytes) -> None:
        self._settle()
        self.missing -= {name}
        if self.find(name) is not None:
            self.checkpoint()
            # From here on nobody misses it.
            self._list_channels(but=name)
            self.store.delete_channel(name)
            self.channels.pop(name, None)
            self.found_damaged -= {name}
            self.lacking -= {name}
            shown = _shown(name)
            if self.follows:
                log.info(f'Channel "{shown}" has been deleted', channel=shown)

    # ---- checkpoints
    # ----------------------------------------------------------------------------------------------

    def start_at(self, at: Position, seen: int) -> None:
        """Go on behind ``at``, which a checkpoint or an empty store stands for."""
        self.at = self._written = at
        self.seen = max(seen, at.sequence)

    def hear(self, sequence: int) -> None:
        """The log had an entry with this sequence, somebody says who has it."""
        self.seen = max(self.seen, sequence)

    @property
    def stored(self) -> int:
        """Up to which entry the store is complete whatever happens to this machine."""
        return self._written.sequence

    @property
    def is_recorded(self) -> bool:
        """Whether the last checkpoint says all there is to say."""
        return self._written == self.at

    def checkpoint(self) -> None:
        """Sync the store and say up to where it is complete. Raises ``BehindError``.

        Nothing is said of half a batch, nor of an unsound store: what was said before holds.
        """
        if not (self._pieces or self.unsound):
            self._record(unsound=False)

    def expect(self, names: Iterable[bytes]) -> None:
        """The last checkpoint had these channels: one that is not there was taken away."""
        self._listed = frozenset(names)
        self.missing = self._listed - self.channels.keys() - self.later.keys()
        for name in sorted(self.missing):
            log.error(f'cluster: channel "{_shown(name)}" is gone from the datastore of this node')

    def _list_channels(self, *, but: bytes = b"") -> None:
        """Note which channels there are, on disk. Raises ``StoreError``."""
        names = self.missing.union(self.store.kept) - {but}
        if names != self._listed:
            self._file.write_channels(self._store_id, names)
            self._listed = names

    def _record(self, *, unsound: bool) -> None:
        try:
            self.store.sync_all()
            self._list_channels()
            seen = max(self.seen, self.at.sequence)
            ends = self.store.are_ends_known
            self._file.write(
                Checkpoint(
                    *(self._store_id, self.at, seen, self.nodes),
                    unsound=unsound,
                    ends=ends,
                    damaged=self.damaged - self.missing,
                    seeds=self.seeds,
                )
            )
        except StoreError as error:
            raise BehindError(error.text, hint=error.hint) from error
        self._written = self.at

    # ---- being filled from another node
    # ----------------------------------------------------------------------------------------------

    def forsake(self) -> None:
        """The store holds nothing for certain from now on, on disk too, and nothing at all if it
        was unsound: another node is there to fill it. Raises ``BehindError``.
        """
        at = Position(self.at.incarnation)
        self.manifests.clear()
        if self.unsound:
            self.empty(at, self.seen)
            return
        self._pieces.clear()
        self.start_at(at, self.seen)
        self.checkpoint()

    def doubt(self) -> None:
        """The store is not what its checkpoint says. On disk nothing changes yet."""
        self.manifests.clear()
        self._pieces.clear()
        self.unsound = True
        self.start_at(Position(self.at.incarnation), self.seen)

    def drop(self, name: bytes) -> None:
        """Delete a channel, damaged or not, if there is one. Raises ``StoreError``."""
        self._settle()
        if self.find(name) is not None:
            self.store.discard_channel(name)
            self.channels.pop(name, None)
            self.refused.pop(name, None)
        self.found_damaged -= {name}
        self.lacking -= {name}

    def accept_lost(self, name: bytes, lost: list[tuple[int, int]], last: int) -> None:
        """A repair of the node that is copied has found these messages lost. ``last``: the last one
        that there was. Raises ``StoreError``.
        """
        self.store.accept_lost(name, lost, last)
        if self.store.lost(name):
            self.lacking |= {name}

    def fill(self, local: LocalChannel, block: MsgBlock) -> None:
        """Store messages that follow those that are there. Raises ``StoreError``."""
        local.staged = block.last
        local.store.append(block)
        self._settle()
        self._filled += block.nbytes
        if self._filled >= _FILLED_BYTES:
            # A copy that is killed goes on from here.
            self._filled = 0
            self.store.sync_all()

    def adopt(self, operations: list[Operation], at: Position) -> None:
        """All messages up to ``at`` are here: take the rest in place of what was there, and leave a
        checkpoint. Raises ``BehindError``.
        """
        for local in self.channels.values():
            for sub_id in local.subs:
                local.store.delete_sub(sub_id)
            local.subs.clear()
        for client in list(self.clients):
            self.store.delete_client(client)
        self.clients.clear()
        self.remembered.clear()
        self.nodes = {}
        self.found_damaged = frozenset()
        self.missing = frozenset()
        self.apply(operations, at)
        self.checkpoint()

    def empty(self, at: Position, seen: int) -> None:
        """Throw the store away and begin at ``at``. Raises ``BehindError``."""
        self.manifests.clear()
        # First the word that it is not complete: a crash in between must not leave half of it.
        self._pieces.clear()
        self.start_at(at, seen)
        self._record(unsound=True)
        try:
            self.clear()
        except StoreError as error:
            raise BehindError(error.text, hint=error.hint) from error
        self.unsound = False
        self.checkpoint()

    def clear(self) -> None:
        """Throw away everything in the store. Raises ``StoreError``."""
        for name in (*self.channels, *self.later):
            if self.find(name) is not None:
                self.store.discard_channel(name)
        self.refused.clear()
        self.found_damaged = self.missing = self.lacking = frozenset()
        for client in list(self.clients):
            self.store.delete_client(client)
        self._settle()
        self.channels.clear()
        self.clients.clear()
        self.later.clear()


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def behind(block: MsgBlock, last: int) -> MsgBlock:
    """The messages of ``block`` behind sequence ``last``."""
    size = sum(PACKED_HEAD + block.sizes(i, i + 1) for i in range(block.position(last + 1)))
    return unpack_block(block.pack()[size:])
