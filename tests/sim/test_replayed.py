"""The store of a cluster's node under power cuts: whatever was not synced comes again from the log,
and nothing else is needed. So not even a power cut of all nodes leaves one that can only be copied.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest

from ftstan.base.clock import ManualClock
from ftstan.cluster.checkpoint import Checkpoint
from ftstan.cluster.entry import Op, Operation, Position, decode_operations, encode_operations
from ftstan.cluster.replica import Replica
from ftstan.config.limits import Limits
from ftstan.config.options import ChannelLimits, StoreLimits
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.interface import REMEMBERED_SIZE, ClientInfo, StoredAt, SubState
from ftstan.wire.block import MsgBlock, SubEvents
from tests.sim.disk import CrashMode, Killed, SimDisk
from tests.sim.filestore import open_file_store
from tests.sim.history import STORE
from tests.sim.model import read_all

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ftstan.cluster.checkpoint import CheckpointFile

LOG = bytes(range(16))
CHANNELS = (b"foo", b"bar", b"baz")
#: Disk calls of one life, at most.
LONG = 400


@dataclass
class Checkpoints:
    """The checkpoint of a node, on a disk that keeps what it was given."""

    last: Checkpoint = field(default_factory=lambda: Checkpoint("id", Position(LOG)))
    channels: frozenset[bytes] = frozenset()

    def write_channels(self, _store_id: str, names: Iterable[bytes]) -> None:
        self.channels = frozenset(names)

    def write(self, checkpoint: Checkpoint) -> None:
        self.last = checkpoint


class Node:
    """One life of a node."""

    def __init__(self, disk: SimDisk, kept: Checkpoints, most: int) -> None:
        self.clock = ManualClock()
        self.kept = kept
        options = FileStoreOptions(
            sync=False,
            auto_sync=0,
            slice_max_msgs=7,
            replayed=True,
            replayed_before=kept.last.ends,
        )
        self.store = open_file_store(disk, self.clock, options)
        limits = Limits(StoreLimits(channel=ChannelLimits(max_msgs=most)))
        self.store.set_limits(limits)
        self.replica = Replica(
            *(self.store, self.store.recover(), limits),
            node_id="a",
            file=cast("CheckpointFile", kept),
            store_id="id",
        )
        if kept.last.at.sequence:
            self.replica.expect(kept.channels)
        # Neither a channel is missed nor messages in front of one: nobody has taken them away.
        assert not self.replica.damaged
        self.replica.start_at(kept.last.at, 0)
        if not kept.last.ends:
            # As a node does that has just found the log.
            self.replica.checkpoint()

    def go_on(self, log: list[bytes], chance: random.Random) -> None:
        while (done := self.replica.at.sequence) < len(log):
            self.replica.apply(decode_operations(log[done]), Position(LOG, done + 1))
            if chance.random() < 0.2:
                self.clock.advance(1.0)
                self.store.tick(self.clock.wall_ns())
            if chance.random() < 0.1:
                self.replica.checkpoint()

    def contents(self) -> dict[bytes, object]:
        found: dict[bytes, object] = {b"": self.replica.remembered}
        for name in CHANNELS:
            local = self.replica.find(name)
            if local is not None:
                subs = [(sub.state, sub.pending) for sub in local.stored_subs()]
                found[name] = (local.store.last, read_all(local.store), subs)
        return found


def history(chance: random.Random) -> list[bytes]:
    """The bodies of a log: publishes, deliveries, purges, channels deleted and made again."""
    last = dict.fromkeys(CHANNELS, 0)
    subs: dict[bytes, int] = {}
    bodies = [encode_operations([Operation(Op.CLIENT_NEW, b"me", ClientInfo(b"me", b"inbox"))])]
    for number in range(60):
        key = number.to_bytes(REMEMBERED_SIZE, "big")
        operations = [Operation(Op.REMEMBER, b"", ({key: StoredAt(number, 1)}, 1000))]
        for name in chance.sample(CHANNELS, chance.randint(1, 2)):
            what = chance.random()
            if what < 0.05 and last[name]:
                operations.append(Operation(Op.CHANNEL_DELETE, name))
                last[name] = 0
                subs.pop(name, None)
            elif what < 0.12 and last[name]:
                operations.append(Operation(Op.PURGE, name, chance.randint(1, last[name])))
            elif what < 0.3 and name not in subs:
                subs[name] = 1
                state = SubState(1, b"me", inbox=b"i", ack_inbox=b"a")
                operations.append(Operation(Op.SUB_NEW, name, state))
            elif what < 0.5 and name in subs and last[name]:
                events = SubEvents()
                events.sent(1, last[name])
                operations.append(Operation(Op.EVENTS, name, events))
            else:
                block = MsgBlock()
                for _ in range(chance.randint(1, 9)):
                    last[name] += 1
                    data = chance.randbytes(chance.choice((10, 700)))
                    block.append(last[name], name, b"", data, last[name] * 1000)
                operations.append(Operation(Op.PUBLISH, name, block))
        bodies.append(encode_operations(operations))
    return bodies


def new_disk() -> SimDisk:
    disk = SimDisk()
    disk.make_dirs(STORE)
    return disk


def stop_at(disk: SimDisk, number: int) -> None:
    def hook(call: int, _name: str, _arguments: object) -> None:
        if call >= number:
            raise Killed

    disk.on_call = hook


@pytest.mark.parametrize("seed", range(40))
def test_a_node_needs_nothing_but_its_disk_and_the_log_after_power_cuts(seed: int) -> None:
    chance = random.Random(seed)
    log = history(chance)
    # Slices go by limits, too, or by purges alone.
    most = 20 if seed % 2 else 0
    whole = Node(new_disk(), Checkpoints(), most)
    whole.go_on(log, random.Random(0))
    disk = new_disk()
    kept = Checkpoints()
    for _ in range(4):
        stop_at(disk, disk.calls + chance.randint(1, LONG))
        try:
            Node(disk, kept, most).go_on(log, chance)
        except Killed:
            disk.kill()
        disk = disk.crash(chance, chance.choice(list(CrashMode)))
    node = Node(disk, kept, most)
    node.go_on(log, chance)
    assert node.contents() == whole.contents()
    assert node.store.quarantined == []
