"""One node's access to its part of a cluster: the local datastore and the link to the log.

The datastore is an ordinary one with its lock and its epoch, so that no other server touches it. It
is not synced on its own: the log is what an acknowledgement rests on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import ConfigError, RecoveryError, StoreError
from ftstan.base.log import stream as log
from ftstan.broker.constants import ANOTHER_CLUSTER
from ftstan.cluster.checkpoint import CheckpointFile
from ftstan.cluster.copying import CopySource
from ftstan.cluster.entry import Position
from ftstan.cluster.follower import Follower, Stage
from ftstan.cluster.log import ReplicatedLog
from ftstan.cluster.members import OTHERS, is_alone, without_others
from ftstan.cluster.names import beat_subject
from ftstan.cluster.purging import KnownNodes
from ftstan.cluster.replica import Replica
from ftstan.cluster.steward import Steward
from ftstan.cluster.store import ClusterStore
from ftstan.cluster.time import LeaderClock
from ftstan.config.limits import Limits
from ftstan.ft.access import FileAccess
from ftstan.ft.owned import OwnedAccess
from ftstan.nats.clustered import given_log_path, log_path, node_id
from ftstan.nats.jetstream import JetStream

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable

    from ftstan.cluster.checkpoint import Checkpoint
    from ftstan.cluster.replica import LocalChannel
    from ftstan.ft.watch import Watch
    from ftstan.nats.link import Link
    from ftstan.stores.file.store import FileStore
    from ftstan.stores.interface import Lock, Recovered, StoreContext, StoredSub

NOT_CLUSTERED: Final = (
    "stan: cannot restart server in clustered mode if it was not previously clustered"
)


class ClusterAccess(OwnedAccess):
    """Implements ``StoreAccess`` for a node of a cluster."""

    def __init__(self, context: StoreContext) -> None:
        """Open the datastore's directory. Raises ``ConfigError`` and ``StoreError``."""
        options = context.options
        self._context = context
        self.node_id = node_id(options)
        self.log_path = log_path(options)
        local = replace(options, file=replace(options.file, sync=False, auto_sync=0))
        self._inner = FileAccess(replace(context, options=local))
        self.owner = self._inner.owner
        self.place = self._inner.place
        self._file = CheckpointFile(self.log_path, options.dir)
        self._store: FileStore | None = None
        self._replica: Replica | None = None
        self._log: ReplicatedLog | None = None
        self._follower: Follower | None = None
        self._leading: ClusterStore | None = None
        self._time = LeaderClock(context.clock)
        self._nodes = KnownNodes(self.log_path, self._founders(), self._changes)
        self._is_whole = False
        """Whether the store was closed with everything in it that this node has acknowledged."""
        self.on_left: Callable[[], None] = lambda: None
        """Called on the data plane's thread when a leader that stops has appended all it will."""
        self.source: CopySource | None = None
        """What other nodes copy this one's store from, once it is recovered."""

    def lock(self) -> Lock:
        """The lock of the datastore."""
        return self._inner.lock()

    def holder(self) -> str:
        """Who has it, in words."""
        return self._inner.holder()

    def activate(self) -> None:
        """Take the datastore. Raises ``FencedError``, ``RecoveryError`` or ``StoreError``."""
        self._inner.activate()

    def watch(self, interval: float, on_failure: Callable[[BaseException], None]) -> Watch:
        """A watch over the datastore, not started."""
        return self._inner.watch(interval, on_failure)

    def follow(self, link: Link, rng: random.Random, elected: Callable[[], None]) -> Follower:
        """Recover the local store and follow the log with it. ``link``: for this alone.

        Raises ``RecoveryError``, ``StoreError``, and ``ConfigError`` for a datastore of others.
        """
        context = self._context
        options = context.options
        if self._file.was_alone:
            raise RecoveryError(
                "the datastore was served without -clustered: what was stored then is not in the "
                "log of the cluster",
                hint="go on without -clustered, or empty the datastore: it is filled from the log",
            )
        checkpoint = self._file.read()
        if checkpoint is not None and checkpoint.clean:
            checkpoint = replace(checkpoint, clean=False)
            self._file.amend(checkpoint)
        present = self.owner.present
        assert present is not None
        store_id = present.store_id.hex()
        # Nothing is taken back of a datastore that this node was not the last to write: that of a
        # server without a cluster, or of another node, or an older copy.
        is_own = (
            checkpoint is not None
            and checkpoint.store_id == store_id
            and not checkpoint.seeds
            and self._file.is_marked(checkpoint)
        )
        self._store = self._inner.open_replayed(
            self._time,
            before=checkpoint is not None and is_own and checkpoint.ends,
            rolls_back=is_own,
        )
        limits = Limits(options.limits)
        self._store.set_limits(limits)
        recovered = self._store.recover()
        info = recovered.info
        if info is not None and info.cluster_id != options.cluster_id:
            raise ConfigError(
                ANOTHER_CLUSTER.format(cluster_id=options.cluster_id, recovered=info.cluster_id),
                hint="give -cid the value that this datastore was made with",
            )
        replica = Replica(
            *(self._store, recovered, limits),
            node_id=self.node_id,
            file=self._file,
            store_id=store_id,
        )
        if checkpoint is not None:
            replica.nodes = checkpoint.nodes
        if checkpoint is not None and checkpoint.store_id == store_id:
            replica.remember_damaged(checkpoint.damaged)
            replica.seeds = checkpoint.seeds
        at, seen = self._position(checkpoint, recovered, replica, store_id)
        if at.sequence and not replica.unsound:
            replica.expect(self._file.read_channels(store_id))
        replica.start_at(at, seen)
        js = JetStream(link, context.clock, (beat_subject(options.cluster_id),))
        rlog = ReplicatedLog(js, options.cluster_id, context.clock, context.stopping)
        follower = Follower(
            *(rlog, replica, context.clock, rng),
            cluster_id=options.cluster_id,
            node_id=self.node_id,
            founders=self._founders(),
            elected=elected,
            time=self._time,
        )
        js.on_message = follower.hear
        self._replica = replica
        self._log = rlog
        self._follower = follower
        self.source = CopySource(replica, self._complete, self._subs)
        return follower

    def _complete(self) -> Position | None:
        """Up to where the store can be copied, for ``CopySource``."""
        assert self._follower is not None
        assert self._replica is not None
        if self._leading is not None:
            self._leading.catch_up()
        elif self._follower.stage not in (Stage.FOLLOWING, Stage.LEADING):
            return None
        return self._replica.at

    def _subs(self, local: LocalChannel) -> Iterable[StoredSub]:
        if self._leading is not None:
            return self._leading.current_subs(local)
        return local.stored_subs()

    def steward(self, link: Link, server: str) -> Steward:
        """Who looks after the stream while this node leads. ``link``: for this alone."""
        context = self._context
        js = JetStream(link, context.clock)
        cluster_id = context.options.cluster_id
        rlog = ReplicatedLog(js, cluster_id, context.clock, context.stopping)
        return Steward(
            *(js, rlog, context.clock, self._nodes),
            cluster_id=cluster_id,
            server=server,
            most=context.options.cluster.log_max_bytes,
        )

    @property
    def members(self) -> tuple[str, ...]:
        """The nodes of the cluster, as this one knows them. Any thread may ask."""
        return tuple(sorted(self._nodes.members))

    @property
    def is_alone(self) -> bool:
        """Whether no other node can ever lead, as a majority knows."""
        return is_alone(self._changes(), self.node_id)

    def is_removed(self, node: str) -> bool:
        """Whether somebody removed it, and nobody added it again."""
        return self._nodes.is_removed(node)

    @property
    def replica(self) -> Replica | None:
        """What the log has added up to on this node, ``None`` before it has recovered."""
        return self._replica

    @property
    def is_log_leaderless(self) -> bool:
        """Whether an append waits because no server leads the stream. Any thread may ask."""
        return self._log is not None and self._log.is_leaderless

    @property
    def leader(self) -> str:
        """The node that leads, by the last leader record that was read; empty for none."""
        return self._log.at.leader if self._log is not None else ""

    def _changes(self) -> dict[str, bool]:
        return self._replica.nodes if self._replica is not None else {}

    def change_node(self, node: str, *, is_in: bool) -> None:
        """Add a node to the cluster, or remove it, ``OTHERS`` for all but this one; returns when a
        majority has that word.

        On the data plane's thread of the node that leads. Raises ``FencedError``.
        """
        assert self._leading is not None
        changes = {node: is_in}
        if node == OTHERS:
            changes = without_others(self.members, self.node_id)
        self._leading.change_nodes(changes)

    def _position(
        self, checkpoint: Checkpoint | None, recovered: Recovered, replica: Replica, store_id: str
    ) -> tuple[Position, int]:
        """Up to where the store is complete, and the furthest entry that was heard of."""
        if checkpoint is None:
            if replica.is_empty:
                return Position(b""), 0
            if recovered.info is None or not recovered.info.node_id:
                raise RecoveryError(
                    NOT_CLUSTERED, hint="start it without -clustered, or on an empty datastore"
                )
            raise RecoveryError(
                "streaming state was recovered but cluster log path "
                f'"{given_log_path(self._context.options)}" is empty',
                hint="mount that directory, or empty the datastore too: it is filled from the log",
            )
        if checkpoint.store_id != store_id:
            if not replica.is_empty:
                raise RecoveryError(
                    f"{self._file.path} is about another datastore than this one",
                    hint="start this node on its own datastore, or empty both directories",
                )
            log.warning("cluster: the datastore is empty: it is filled again from the log")
            return Position(checkpoint.at.incarnation), checkpoint.seen
        if not self._file.is_marked(checkpoint):
            log.warning(
                "cluster: the datastore is older than the checkpoint of this node: it is thrown "
                "away, and filled again from the log"
            )
            replica.unsound = True
            return Position(checkpoint.at.incarnation), checkpoint.seen
        replica.unsound = checkpoint.unsound
        # A log path that was put back from a copy knows less than its datastore.
        return checkpoint.at, max(checkpoint.seen, self._file.marked())

    def _founders(self) -> tuple[str, ...]:
        options = self._context.options.cluster
        peers = {peer.strip() for peer in options.peers} - {""}
        if peers:
            return tuple(sorted(peers | {self.node_id}))
        return (self.node_id,) if options.bootstrap else ()

    def open(self) -> ClusterStore:
        """The store of the node that leads now."""
        assert self._replica is not None
        assert self._log is not None
        self._time.leads = True
        self._leading = ClusterStore(self._replica, self._log, self._context.clock, self.on_left)
        return self._leading

    def close(self) -> None:
        """Leave a checkpoint, close the store, release everything."""
        store = self._store
        self._store = None
        if store is not None:
            try:
                if self._replica is not None and self._replica.at.incarnation:
                    self._replica.checkpoint()
                store.close()
                # An append that nobody answered was not acknowledged to anybody either.
                self._is_whole = self._log is not None and not self._log.is_replaced
            except StoreError as error:
                log.error(f"{error.text}; what was acknowledged is in the log")
                store.abandon()
        if self._log is not None:
            self._log.js.close()
        self._inner.close()

    def note_last(self) -> None:
        """Behind ``close``: if nobody else can lead, this store is the last word."""
        if not (self._is_whole and self.is_alone):
            return
        try:
            checkpoint = self._file.read()
            if checkpoint is not None:
                self._file.amend(replace(checkpoint, clean=True))
        except StoreError as error:
            log.warning(f"cluster: {error.text}")
