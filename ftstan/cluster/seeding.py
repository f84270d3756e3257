"""The ways between a datastore that one server or an FT group has, and a replicated cluster:
offline, in place, and without touching a message.

*Seeding* makes a datastore that of a node: a checkpoint beside it stands for an entry of a log that
does not exist yet. That node then makes the log, behind this entry, so that every other node finds
itself behind the beginning and copies the store. *Leaving* takes that word away again.

Both own the datastore while they work. What must last is written last: before that the datastore is
what it was.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ftstan.base.disk import LocalDisk
from ftstan.base.errors import RefusedError, StoreError
from ftstan.cluster.checkpoint import Checkpoint, CheckpointFile
from ftstan.cluster.entry import INCARNATION_SIZE, Position
from ftstan.cluster.members import is_alone
from ftstan.nats.clustered import forget_node_id, keep_node_id
from ftstan.stores.copying import UNLIMITED
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.store import FileStore

if TYPE_CHECKING:
    from ftstan.base.clock import Clock
    from ftstan.ft.ownership import StoreOwner
    from ftstan.stores.interface import Recovered, ServerInfo

_JETSTREAM: Final = "jetstream"
#: What the store of a seeded node stands for: the log begins behind it.
_FIRST: Final = 1


@dataclass(frozen=True, slots=True)
class Seeded:
    """What a datastore holds that was made a node's, or is one's no more.

    ``entry``: of the log, up to which it holds everything.
    """

    cluster: str
    node: str
    entry: int
    channels: int
    messages: int
    clients: int


def seed(directory: str, log_path: str, node: str, owner: StoreOwner, clock: Clock) -> Seeded:
    """Make the datastore of ``owner``, at ``directory``, that of ``node``, with which a cluster
    begins.

    Raises ``RefusedError`` for one that cannot be, and ``StoreError``.
    """
    file = CheckpointFile(log_path, directory)
    if file.read() is not None or os.path.lexists(os.path.join(log_path, _JETSTREAM)):
        raise RefusedError(
            f"the log path {log_path} is that of a node already",
            hint="name a directory that is new or empty",
        )
    if owner.present is not None and owner.present.ft_mixed:
        raise RefusedError(
            "the datastore is that of a mixed group", hint="end that first: ftstanctl ft mixed off"
        )
    # First as a server without a cluster: nothing that such a one has stored is taken back.
    first = _opened(owner, clock)
    found = first.recover()
    info = _sound(first, found)
    _refuse_moved(found)
    kept = keep_node_id(directory, node)
    if kept != node:
        raise RefusedError(f"the datastore is that of node {kept}", hint="give that as --node-id")
    first.set_server_info(replace(info, node_id=node))
    first.close()
    store = _opened(owner, clock, replayed=True)
    recovered = store.recover()
    store.sync_all()
    store.close()
    assert owner.present is not None
    at = Position(os.urandom(INCARNATION_SIZE), _FIRST)
    # Not that every channel says how far it was synced: a server without a cluster may still be
    # started here, and make others.
    file.write(Checkpoint(owner.present.store_id.hex(), at, _FIRST, seeds=True, clean=True))
    return _told(recovered, info, node, _FIRST)


def leave(
    directory: str,
    log_path: str,
    owner: StoreOwner,
    clock: Clock,
    *,
    not_last: bool = False,
) -> Seeded:
    """Make the datastore of a node that of a server without a cluster.

    ``not_last``: also that of a node that did not lead last, and may lack what was acknowledged
    since. Raises ``RefusedError`` for one that cannot be, and ``StoreError``.
    """
    file = CheckpointFile(log_path, directory)
    checkpoint = file.read()
    if checkpoint is None:
        raise RefusedError(
            f"there is no checkpoint of a node in {log_path}",
            hint="name the -cluster_log_path of the node that has this datastore",
        )
    at = checkpoint.at
    assert owner.present is not None
    if (
        checkpoint.store_id != owner.present.store_id.hex()
        or not file.is_marked(checkpoint)
        or checkpoint.unsound
        or checkpoint.damaged
        or not at.sequence
    ):
        raise RefusedError(
            "the datastore does not hold what the log of the cluster has",
            hint="start this node, wait until ftstanctl cluster status shows that it follows, and "
            "stop it again; or take another node",
        )
    # Who has stopped beside silent nodes only, as former previews did it, knows nothing of them.
    node = keep_node_id(directory)
    is_last = checkpoint.seeds or is_alone(checkpoint.nodes, node)
    if not not_last and not (checkpoint.clean and is_last):
        raise RefusedError(
            "this node was killed, or others could lead after it",
            hint="start all nodes, run ftstanctl cluster remove --others, then stop the node that "
            "leads; or give --not-last",
        )
    seen = max(checkpoint.seen, file.marked())
    if not not_last and (at.leader not in ("", node) or seen > at.sequence):
        raise RefusedError(
            f"node {node} has not led last: it may lack what was acknowledged since",
            hint=f"take the datastore of node {at.leader or node}, or give --not-last",
        )
    # Not before: a store that was opened so is not taken back any more to what the node had synced.
    store = _opened(owner, clock)
    recovered = store.recover()
    info = _sound(store, recovered)
    store.set_server_info(replace(info, node_id=""))
    store.close()
    try:
        # Without it the node is none any more.
        file.set_aside()
        forget_node_id(directory)
    except OSError as error:
        raise StoreError(f"{file.path} cannot be set aside: {error.strerror}") from error
    return _told(recovered, info, node, at.sequence)


def _opened(owner: StoreOwner, clock: Clock, *, replayed: bool = False) -> FileStore:
    return FileStore(
        *(LocalDisk(), owner.root, owner, clock),
        FileStoreOptions(replayed=replayed, rolls_back=False),
        limits=UNLIMITED,
        asking=owner.asking if owner.is_network else None,
    )


def _sound(store: FileStore, recovered: Recovered) -> ServerInfo:
    """Who the server is. Raises ``RefusedError`` for a store that does not hold everything but what
    a repair has found lost.
    """
    hint = "see ftstanctl store verify, and store repair"
    if recovered.info is None:
        raise RefusedError(
            "the datastore does not say which cluster id it was made with",
            hint="start a server on it once, without -clustered",
        )
    for name, why in recovered.refused.items():
        raise RefusedError(
            f'channel "{name.decode("utf-8", "backslashreplace")}": {why}', hint=hint
        )
    for channel in recovered.channels:
        if store.has_holes(channel.name):
            shown = channel.name.decode("utf-8", "backslashreplace")
            raise RefusedError(f'channel "{shown}" lacks messages between others', hint=hint)
    return recovered.info


def _refuse_moved(recovered: Recovered) -> None:
    """Raise ``RefusedError`` if a channel has moved elsewhere: a cluster would take publishes."""
    for channel in recovered.channels:
        if channel.mover is not None:
            shown = channel.name.decode("utf-8", "backslashreplace")
            raise RefusedError(
                f'channel "{shown}" has moved, and a cluster would take publishes to it',
                hint="before that: ftstanctl bridge undo, or ftstanctl channel moved CHANNEL off, "
                "or channel delete",
            )


def _told(recovered: Recovered, info: ServerInfo, node: str, entry: int) -> Seeded:
    messages = sum(channel.count for channel in recovered.channels)
    return Seeded(
        *(info.cluster_id, node, entry, len(recovered.channels), messages),
        len(recovered.clients),
    )
