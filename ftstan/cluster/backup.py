"""A copy of one node's store into a directory, while the cluster serves: what a node does that lost
its disk, for an operator who is no node.

The directory gets its name when everything is there and synced.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ftstan.base.disk import LocalDisk
from ftstan.base.errors import FtstanError, RefusedError, StoreError
from ftstan.cluster.beats import decode_report
from ftstan.cluster.checkpoint import Checkpoint, CheckpointFile
from ftstan.cluster.copying import Copy
from ftstan.cluster.entry import Position
from ftstan.cluster.names import question_subject
from ftstan.cluster.replica import Replica
from ftstan.cluster.time import LeaderClock
from ftstan.stores.copying import UNLIMITED
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.store import FileStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from ftstan.base.clock import Clock
    from ftstan.cluster.beats import Report
    from ftstan.ft.ownership import StoreOwner
    from ftstan.nats.jetstream import JetStream

UNFINISHED: Final = ".unfinished"


@dataclass(frozen=True, slots=True)
class Backup:
    """What was copied: the store of ``node`` up to entry ``entry`` of the log."""

    node: str
    entry: int
    channels: int
    messages: int


class _NoCheckpoint(CheckpointFile):
    """A copy is no node: nobody goes on reading the log behind it."""

    def write(self, checkpoint: Checkpoint) -> None:
        """Write nothing."""

    def write_channels(self, store_id: str, names: Iterable[bytes]) -> None:
        """Write nothing."""


def choose(reports: list[Report], node: str = "") -> Report:
    """Whose store is copied: that of ``node``, else of the one that is furthest, rather a follower,
    and rather one of which no messages were lost.

    Raises ``RefusedError``.
    """
    sound = [said for said in reports if said.incarnation and said.sequence and not said.trouble]
    if node:
        sound = [said for said in sound if said.node == node]
    if not sound:
        who = f"node {node}" if node else "no node"
        raise RefusedError(
            f"{who} answers that could be copied" if not node else f"{who} cannot be copied now",
            hint="see ftstanctl cluster status; nodes answer to the login of the log "
            "(--log-path, or --user and --pass)",
        )
    # A leader has more to do than followers; a few entries behind it are no loss.
    return min(sound, key=lambda said: (said.lacks, said.leads, -said.sequence))


def back_up(
    js: JetStream,
    cluster_id: str,
    target: str,
    *,
    node: str,
    seconds: float,
    clock: Clock,
    owning: Callable[[str], AbstractContextManager[StoreOwner]],
) -> Backup:
    """Copy the store of a node to ``target``, which must not exist or be empty.

    ``owning``: takes a directory as a server does. Raises ``FtstanError``; nothing is left then.
    """
    if os.path.lexists(target) and not (os.path.isdir(target) and not os.listdir(target)):
        raise StoreError(f"{target} is not empty", hint="name a directory that is new or empty")
    answers = js.ask(question_subject(cluster_id), b"", seconds, lambda _came: False)
    reports = [said for one in answers if (said := decode_report(one.payload)) is not None]
    source = choose(reports, node)
    unfinished = target.rstrip("/") + UNFINISHED
    try:
        os.mkdir(unfinished, 0o700)
    except OSError as error:
        raise StoreError(
            f"{unfinished} cannot be made: {error.strerror}",
            hint="remove what an earlier backup has left there",
        ) from error
    try:
        with owning(unfinished) as owner:
            made = _fill(js, cluster_id, source, owner, clock)
        os.rename(unfinished, target)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise StoreError(f"{target} cannot be made: {error.strerror}") from error
    except (FtstanError, KeyboardInterrupt):
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return made


def _fill(
    js: JetStream, cluster_id: str, source: Report, owner: StoreOwner, clock: Clock
) -> Backup:
    # Nothing expires on the way: the clock is one that has heard nobody.
    store = FileStore(
        *(LocalDisk(), owner.root, owner, LeaderClock(clock)),
        FileStoreOptions(sync=False),
        limits=UNLIMITED,
    )
    replica = Replica(
        *(store, store.recover(), UNLIMITED),
        node_id="",
        file=_NoCheckpoint("", ""),
        store_id="",
    )
    replica.start_at(Position(bytes.fromhex(source.incarnation)), 0)
    copy = Copy(js, replica, cluster_id, source.node)
    while (at := copy.step()) is None:
        pass
    store.close()
    return Backup(source.node, at.sequence, len(replica.channels), copy.messages)
