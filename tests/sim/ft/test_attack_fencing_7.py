"""Attacks on fencing, seventh round: what a former owner left is visible and not durable, and goes
when storage fails once more.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import FencedError, StoreError
from ftstan.ft.epoch import EPOCH_NAME, read_owner
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.interface import ChannelLimits
from ftstan.wire.block import MsgBlock
from tests.filenode import FileNode, simulated
from tests.filenode import Owner as Epoch
from tests.sim.disk import CrashMode, Killed, SimDisk
from tests.sim.ft.hosts import Client, ClientDisk
from tests.sim.volume import FileNode as File
from tests.unit.ft.test_epoch import ROOT, Owner, new_store, next_owner
from tests.unit.stores.test_deletion import calls_before_the_intent, killed_at, with_channels

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.volume import Volume


# --- the epoch file


def forget(disk: SimDisk) -> None:
    """Storage drops from its memory what it could not write, or goes down and comes back: what no
    sync has made durable is gone, below processes that go on.
    """
    file = disk._walk(ROOT).entries[EPOCH_NAME]
    assert isinstance(file, File)
    file.data[:] = file.durable
    file.changes.clear()


def fail_sync(disk: SimDisk, which: int) -> None:
    """Let one sync of a claim fail: 0 is that of the claim's name."""
    seen: list[str] = []

    def count(_number: int, call: str, _args: tuple[object, ...]) -> None:
        if call == "fsync":
            if len(seen) == which:
                disk.fail_next("fsync", errno.EIO)
            seen.append(call)

    disk.on_call = count


def die_in_sync(disk: SimDisk, which: int) -> None:
    """Let the process die with its host before one sync of a claim.

    Nobody else's sync makes durable what it had sent.
    """
    seen: list[str] = []

    def count(_number: int, call: str, _args: tuple[object, ...]) -> None:
        if call == "fsync":
            if len(seen) == which:
                file = disk._walk(ROOT).entries[EPOCH_NAME]
                assert isinstance(file, File)
                file.forget()
                raise Killed
            seen.append(call)

    disk.on_call = count


@pytest.mark.parametrize("spoil", [fail_sync, die_in_sync])
@pytest.mark.parametrize("failures", [1, 2, 3])
def test_an_owner_stays_fenced_when_storage_forgets_what_a_claimer_between_had_not_synced(
    spoil: Callable[[SimDisk, int], None], failures: int
) -> None:
    # The name of the claim, the slots below, the record.
    for which in range(3):
        disk = new_store()
        former = Owner(disk)
        confirm_former = former.confirmer(former.claim())
        confirm_former()
        for i in range(failures):
            between = next_owner(disk, f"B{i}")
            spoil(between.disk, which)
            with contextlib.suppress(StoreError, Killed):
                between.claim()
        owner = next_owner(disk, "C")
        confirm = owner.confirmer(owner.claim())
        confirm()
        forget(disk)
        confirm()
        with pytest.raises(FencedError):
            confirm_former()
        last = next_owner(disk, "D")
        last.confirmer(last.claim())()
        found = read_owner(disk, disk.open_dir(ROOT))
        assert found is not None
        assert found.server_id == "D"


# --- deletion


@pytest.mark.parametrize("mode", [CrashMode.LOST, CrashMode.UNORDERED])
def test_a_deletion_whose_intent_was_not_durable_takes_a_channel_as_a_whole_or_not_at_all(
    mode: CrashMode,
) -> None:
    first = calls_before_the_intent() + 1
    cut = 0
    for call in range(4, 80, 6):
        disk, node = with_channels()
        assert killed_at(disk, first, lambda node=node: node.store.delete_channel(b"foo"))  # type: ignore[misc]
        disk = disk.crash(process_only=True)
        if not killed_at(disk, call, lambda node=node, disk=disk: node.successor(disk)):  # type: ignore[misc]
            break
        after = node.successor(disk.crash(random.Random(call), mode))
        cut += 1
        if b"foo" in after.channels:
            assert after.sequences() == [1, 2, 3, 4, 5, 6]
            assert len(after.channel().recovered_subs()) == 1
    assert cut > 5


# --- seals


def sealed() -> tuple[SimDisk, FileNode]:
    """A refused batch whose sequence another message has, in a slice that seals it.

    Both slices hold nothing any more that the limits allow.
    """
    disk = simulated()
    options = FileStoreOptions(slice_max_msgs=2)
    node = FileNode(disk, options=options, limits=ChannelLimits(max_msgs=2, max_bytes=0))
    assert node.put(b"first") == {}
    writes: list[str] = []

    def fail_index(_number: int, call: str, _args: tuple[object, ...]) -> None:
        if call == "pwrite":
            writes.append(call)
            if len(writes) == 2:
                disk.on_call = None
                disk.fail_next("pwrite", errno.EIO)

    disk.on_call = fail_index
    assert node.put(b"refused")
    node.clock.advance(2)
    for batch in ((b"acked",), (b"acked too",), (b"newer", b"newest")):
        assert node.put(*batch) == {}
    return disk, node


def work_of_seconds(node: FileNode) -> None:
    """Let the slices go."""
    for _ in range(2):
        node.tick()


def content(node: FileNode, sequence: int) -> bytes:
    """What is read for a sequence, nothing if the log does not have it."""
    channel = node.channel()
    block = channel.read(sequence, 1, 1 << 20) if sequence >= channel.first else None
    if block is None or (at := block.position(sequence)) == len(block):
        return b""
    return bytes(block.payload(at)) if block.sequence(at) == sequence else b""


def test_a_seal_does_not_go_before_what_a_former_owner_removed_below_it_has_durably_gone() -> None:
    first = 0
    met = 0
    while True:
        first += 1
        disk, node = sealed()
        if not killed_at(disk, first, partial(work_of_seconds, node)):
            break
        names = disk.tree("/store/foo")
        if "msgs.1.dat" in names or "msgs.3.dat" not in names:
            continue
        for call in range(1, 60):
            left = disk.crash(process_only=True)
            after = node.successor(left)
            if not killed_at(left, call, partial(work_of_seconds, after)):
                break
            if "msgs.3.dat" in left.tree("/store/foo"):
                continue
            for seed in range(8):
                found = FileNode(left.crash(random.Random(seed)), owner=Epoch(9))
                met += 1
                assert b"refused" not in content(found, 2)
    assert met > 30


# --- an original on a host that died


def on_a_host(volume: Volume) -> ClientDisk:
    """A process on a host of its own, on network storage."""
    client = Client(random.Random(1))
    client.trusts_names = 0
    return ClientDisk(volume, Counter(), client)


def lose_uncommitted(volume: SimDisk, path: str) -> None:
    """The file server goes down and comes back: what only dead hosts had sent is lost."""
    for file in volume._walk(path).entries.values():
        if isinstance(file, File) and file.changes and all(host.dead for host in file.by):
            file.data[:] = file.durable
            file.changes.clear()
            file.by.clear()


def test_what_was_delivered_of_an_originals_last_batch_outlives_its_host_and_the_file_server() -> (
    None
):
    crc = records.Crc(FileStoreOptions().crc_polynomial)
    block = MsgBlock()
    for sequence in range(1, 5):
        block.append(sequence, b"foo", b"", b"m%d" % sequence, sequence)
    records.seal(block, crc)
    known = records.cut(block, 3)
    data = records.VERSION + bytes(memoryview(known))
    index = records.VERSION + records.index_entries(known, 0, 3, records.VERSION_SIZE, crc)
    server = SimDisk()
    server.add_tree(
        "/store/foo", {"msgs.1.dat": data, "msgs.1.idx": index, "subs.dat": records.VERSION}
    )
    original = on_a_host(server.volume)
    folder = original.open_dir("/store/foo")
    fd = original.open(folder, "msgs.1.dat", os.O_RDWR)
    original.pwrite(fd, bytes(memoryview(block))[len(data) - records.VERSION_SIZE :], len(data))
    # Its kernel has sent it, and the host dies before it asks for it to be made durable.
    original.close(fd)
    original.client.dead = True
    original.kill()
    ours = on_a_host(server.volume)
    owner = FileNode(ours, owner=Epoch(2, 4097), asking=ours.direct())
    assert owner.sequences() == [1, 2, 3, 4]
    lose_uncommitted(server, "/store/foo")
    assert server.tree("/store/foo")["msgs.1.dat"] == data
    assert owner.sequences() == [1, 2, 3, 4]
    ours = on_a_host(server.volume)
    successor = FileNode(ours, owner=Epoch(3, 4097), asking=ours.direct())
    assert successor.sequences() == [1, 2, 3, 4]
    assert b"m4" in content(successor, 4)
