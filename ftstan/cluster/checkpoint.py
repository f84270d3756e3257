"""Up to where the local store is complete: one small file beside the log of this node.

A checkpoint is written only behind a sync of everything that it covers, and replaces the one before
as a whole. It names the store that it speaks of, because that can be taken away on its own.

``seen`` is the furthest position of the log that this node has heard of: a log that ends before it
has lost entries, whoever holds them.

The datastore gets the same text first, as its *mark*: so a datastore that was put back from a copy
is found out. Its mark is older than the checkpoint then.

A second file lists the channels: one whose directory is taken away is missed. It is written before
a checkpoint, and before a channel is deleted, so it never names one that may be gone. Without it
nothing is missed.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from ftstan.base.errors import StoreError
from ftstan.base.reserved import CLUSTER_MARK
from ftstan.cluster.entry import Position

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAME: Final = "checkpoint.json"
_CHANNELS: Final = "channels.json"
_LEFT: Final = ".left"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``store_id``: of the datastore. ``partial``: a rebuild of the store had begun and not ended
    if ``at`` is 0 and the store is not empty. ``nodes``: those that were added (true) or removed.
    ``unsound``: what is in the store must go before it is filled. ``ends``: every channel of the
    store says how far it was synced. ``damaged``: channels that are to be filled anew.
    ``seeds``: the log does not exist yet, and this node may make it, behind what its store has.
    ``clean``: the node has stopped, its store has everything that it has ever acknowledged, and no
    other node can lead after it, because all were removed before. ``alone``, of a mark: a server
    without a cluster has served the datastore since.
    """

    store_id: str
    at: Position
    seen: int = 0
    nodes: dict[str, bool] = field(default_factory=dict)
    unsound: bool = False
    ends: bool = False
    damaged: frozenset[bytes] = frozenset()
    seeds: bool = False
    clean: bool = False
    alone: bool = False


class CheckpointFile:
    """The file in ``directory``, which is made if it is missing; its mark is in ``datastore``."""

    def __init__(self, directory: str, datastore: str) -> None:
        self.path = os.path.join(directory, _NAME)
        self._channels = os.path.join(directory, _CHANNELS)
        self._mark = os.path.join(datastore, CLUSTER_MARK)

    def read(self) -> Checkpoint | None:
        """The checkpoint, ``None`` if there is none. Raises ``StoreError`` for one that is not
        whole: it was not written by a server that crashed, but damaged.
        """
        return _read(self.path)

    def is_marked(self, checkpoint: Checkpoint) -> bool:
        """Whether the datastore is the one that ``checkpoint`` speaks of, and no older copy of it.

        Raises ``StoreError``.
        """
        mark = _read(self._mark)
        return (
            mark is not None
            and mark.store_id == checkpoint.store_id
            and mark.at.incarnation == checkpoint.at.incarnation
            and mark.at.sequence >= checkpoint.at.sequence
        )

    def marked(self) -> int:
        """The furthest entry of the log that the datastore knows of. Raises ``StoreError``."""
        mark = _read(self._mark)
        return 0 if mark is None else max(mark.seen, mark.at.sequence)

    @property
    def was_alone(self) -> bool:
        """Whether a server without a cluster has served the datastore since. Raises
        ``StoreError``.
        """
        mark = _read(self._mark)
        return mark is not None and mark.alone

    def set_aside(self) -> None:
        """Take it away, and its mark: the datastore is no node's any more. Raises ``OSError``."""
        os.rename(self.path, f"{self.path}{_LEFT}")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._mark)

    def amend(self, checkpoint: Checkpoint) -> None:
        """Replace it, and leave the mark alone, because nothing was synced for this word: a mark
        that is older than the checkpoint must go on telling so. Raises ``StoreError``.
        """
        _write(self.path, checkpoint)

    def read_channels(self, store_id: str) -> frozenset[bytes]:
        """The channels of that datastore at its last checkpoint; none if nobody says."""
        said = _read_text(self._channels)
        try:
            if said is None or said["store"] != store_id:
                return frozenset()
            return frozenset(bytes.fromhex(name) for name in said["channels"])
        except (ValueError, KeyError, TypeError):
            return frozenset()

    def write_channels(self, store_id: str, names: Iterable[bytes]) -> None:
        """Replace that list, durable on return. Raises ``StoreError``."""
        listed = sorted(name.hex() for name in names)
        _write_text(self._channels, {"store": store_id, "channels": listed})

    def write(self, checkpoint: Checkpoint) -> None:
        """Replace it, and the mark, durable on return. Raises ``StoreError``."""
        # The mark first: a crash between the two leaves one that is ahead, never one behind.
        _write(self._mark, checkpoint)
        _write(self.path, checkpoint)


def leave_alone(datastore: str) -> bool:
    """Note that a server without a cluster serves the datastore from now on; whether it was that of
    a node of a log that exists.

    Durable on return: the node would take for its own, and unsynced, what that server has
    acknowledged. Raises ``StoreError``.
    """
    path = os.path.join(datastore, CLUSTER_MARK)
    try:
        mark = _read(path)
    except StoreError:
        # No node starts with it either.
        return False
    if mark is None or mark.seeds:
        return False
    if not mark.alone:
        _write(path, replace(mark, alone=True))
    return True


def _read(path: str) -> Checkpoint | None:
    said = _read_text(path)
    if said is None:
        return None
    try:
        at = Position(
            *(bytes.fromhex(said["incarnation"]), said["sequence"], said["crc"]),
            *(said["epoch"], said["leader"]),
        )
        nodes = {str(node): bool(is_in) for node, is_in in said.get("nodes", {}).items()}
        damaged = frozenset(bytes.fromhex(name) for name in said.get("damaged", ()))
        return Checkpoint(
            *(said["store"], at, said["seen"], nodes),
            unsound=bool(said.get("unsound", False)),
            ends=bool(said.get("ends", False)),
            damaged=damaged,
            seeds=bool(said.get("seeds", False)),
            clean=bool(said.get("clean", False)),
            alone=bool(said.get("alone", False)),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{path} is damaged: {error}",
            hint="delete the datastore and the log path of this node: it is filled again",
        ) from error


def _read_text(path: str) -> dict[str, Any] | None:
    """What stands there; nothing at all if it is not whole, ``None`` if there is no such file.

    Raises ``StoreError``.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    line, _, check = text.rstrip("\n").rpartition("\n")
    try:
        is_whole = int(check, 16) == zlib.crc32(line.encode())
        said = json.loads(line) if is_whole else {}
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _write(path: str, checkpoint: Checkpoint) -> None:
    at = checkpoint.at
    _write_text(
        path,
        {
            "incarnation": at.incarnation.hex(),
            "sequence": at.sequence,
            "crc": at.crc,
            "epoch": at.epoch,
            "leader": at.leader,
            "store": checkpoint.store_id,
            "seen": checkpoint.seen,
            "nodes": checkpoint.nodes,
            "unsound": checkpoint.unsound,
            "ends": checkpoint.ends,
            "damaged": sorted(name.hex() for name in checkpoint.damaged),
            "seeds": checkpoint.seeds,
            "clean": checkpoint.clean,
            "alone": checkpoint.alone,
        },
    )


def _write_text(path: str, said: dict[str, Any]) -> None:
    line = json.dumps(said)
    text = f"{line}\n{zlib.crc32(line.encode()):08x}\n"
    fresh = f"{path}.new"
    parent = os.path.dirname(path)
    try:
        os.makedirs(parent, 0o700, exist_ok=True)
        with open(fresh, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(fresh, path)
        # The directory, too: a rename that is not on disk brings the old one back.
        directory = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error
