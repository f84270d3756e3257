"""An original server behind a deletion that was cut short: what it stores and answers stays, and
nothing hides it.

It knows no intents. It goes on in what is left of the channel, or makes the channel anew.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import FencedError, RecoveryError
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.state import state_records
from ftstan.stores.interface import SubState
from ftstan.wire.codec import decode_msg_proto
from tests import filenode
from tests.filenode import FileNode, simulated
from tests.sim.disk import CrashMode, Killed, SimDisk
from tests.unit.stores.test_foreign_writes import append, original_stores, read_by_original

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL = FileStoreOptions(slice_max_msgs=2)
CRC = records.Crc()
DURABLE = SubState(1, b"me", durable_name=b"d", is_durable=True)


def sub_record(name: bytes) -> bytes:
    state = SubState(1, b"me", durable_name=name, is_durable=True)
    return state_records.sub_record(records.SUB_NEW, state, CRC)


def disk_of(node: FileNode) -> SimDisk:
    assert isinstance(node.disk, SimDisk)
    return node.disk


def channel_of(*data: bytes, mixed: bool = True, options: FileStoreOptions = SMALL) -> FileNode:
    """A node with a channel of these messages and a durable, all of it on the disk."""
    node = FileNode(simulated(), owner=filenode.Owner(mixed=mixed), options=options)
    if data:
        node.put(*data)
    node.channel().add_sub(DURABLE)
    node.store.commit()
    node.tick()
    return node


def die(node: FileNode, when: Callable[[str, tuple[object, ...]], bool]) -> SimDisk:
    """Delete the channel, and die before the first call that ``when`` names.

    The disk as the next process finds it.
    """

    def hook(_number: int, call: str, args: tuple[object, ...]) -> None:
        if when(call, args):
            raise Killed

    disk_of(node).on_call = hook
    with pytest.raises(Killed):
        node.store.delete_channel(b"foo")
    disk_of(node).on_call = None
    return disk_of(node).crash(process_only=True)


def removes(name: str) -> Callable[[str, tuple[object, ...]], bool]:
    return lambda call, args: call in ("unlink", "rmdir") and str(args[1]).startswith(name)


def next_owner(node: FileNode, disk: SimDisk) -> FileNode:
    """The owner behind it, who knows of no original server unless the group is mixed."""
    owner = filenode.Owner(node.owner.epoch + 1, mixed=node.owner.mixed)
    return FileNode(disk, owner=owner, options=node.options, clock=node.clock)


def contents(node: FileNode) -> list[tuple[int, bytes]]:
    """The messages that can be read.

    Of slices that a power cut brought back others may be missing between them.
    """
    channel = node.channels[b"foo"]
    found = []
    sequence = channel.first
    while (block := channel.read(sequence, 7, 2000)) is not None:
        there = range(block.position(sequence), len(block))
        found += [(block.sequence(i), decode_msg_proto(block.payload(i))[3]) for i in there]
        sequence = block.last + 1
    return found


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("rolled", [False, True])
def test_what_an_original_stored_behind_the_slices_that_are_left_stays(
    *, mixed: bool, rolled: bool
) -> None:
    node = channel_of(*(b"%d" % i for i in range(5)), mixed=mixed)
    disk = die(node, removes("msgs.3.dat"))
    original_stores(disk, 4 if rolled else 3, 6, b"acked", entries=rolled)
    new = next_owner(node, disk)
    assert contents(new) == [(5, b"4"), (6, b"acked")]
    assert new.store.quarantined == []
    cut = disk_of(new).crash(mode=CrashMode.LOST)
    assert contents(next_owner(new, cut)) == [(5, b"4"), (6, b"acked")]


def test_a_new_slice_with_the_number_and_the_size_of_the_one_that_was_deleted_stays() -> None:
    node = channel_of(b"old")
    disk = die(node, removes("foo"))
    original_stores(disk, 1, 1, b"new")
    new = next_owner(node, disk)
    assert contents(new) == [(1, b"new")]
    assert new.put(b"more") == {}
    assert contents(next_owner(new, disk_of(new).crash(process_only=True))) == [
        (1, b"new"),
        (2, b"more"),
    ]


def test_a_slice_with_a_number_that_was_given_out_and_not_used_is_somebody_elses() -> None:
    node = channel_of(b"a", b"b")
    assert node.store._channels[b"foo"].log.take_number() == 2
    disk = die(node, removes("subs.dat"))
    assert "msgs.2.dat" not in disk.tree("/store/foo")
    original_stores(disk, 2, 3, b"acked")
    assert contents(next_owner(node, disk)) == [(1, b"a"), (2, b"b"), (3, b"acked")]


def test_a_subs_file_that_an_original_wrote_anew_with_the_same_size_stays() -> None:
    node = channel_of(b"a")
    disk = die(node, removes("subs.dat"))
    before = disk.tree("/store/foo")["subs.dat"]
    assert before is not None
    record = sub_record(b"e")
    other = before[: -len(record)] + record
    assert (len(other), other == before) == (len(before), False)
    disk.add_tree("/store/foo", {"subs.dat": other})
    new = next_owner(node, disk)
    assert [sub.state.durable_name for sub in new.channel().recovered_subs()] == [b"e"]
    assert new.sequences() == [1]


def test_a_durable_of_an_original_in_an_empty_channel_stays_and_begins_with_the_first() -> None:
    node = channel_of(b"a", b"b")
    node.channel().purge(2)
    disk = die(node, removes("purged.bin"))
    append(disk, "subs.dat", sub_record(b"e"))
    new = next_owner(node, disk)
    assert (new.channel().last, len(new.channel().recovered_subs())) == (0, 1)
    assert new.put(b"first") == {}
    assert new.sequences() == [1]


def test_the_mark_of_an_old_purge_hides_nothing_of_an_original_whose_clock_is_behind() -> None:
    node = channel_of(b"a", b"b")
    node.clock.advance(10)
    node.channel().purge(2)
    disk = die(node, removes("purged.bin"))
    # Its messages are of 1970.
    original_stores(disk, 1, 1, b"acked", b"acked, too")
    new = next_owner(node, disk)
    assert contents(new) == [(1, b"acked"), (2, b"acked, too")]
    new.channel().purge(1)
    assert next_owner(new, disk_of(new).crash(process_only=True)).sequences() == [2]


@pytest.mark.parametrize(
    "name", ["subs.dat", "msgs.1.dat", "msgs.3.dat", "confirmed.bin", "foo", "ft.deleting."]
)
def test_a_start_of_an_original_alone_brings_nothing_back(name: str) -> None:
    node = channel_of(*(b"%d" % i for i in range(6)))
    disk = die(node, removes(name))
    if "foo" not in disk.tree("/store"):
        disk.make_dirs("/store/foo")
    # It opens the file, and makes it where there is none.
    append(disk, "subs.dat", b"")
    new = next_owner(node, disk)
    assert list(new.channels) == []
    assert not [
        name for name in disk_of(new).tree("/store") if name.startswith(("foo", "ft.deleting"))
    ]


def original_serves(disk: SimDisk) -> list[tuple[int, bytes]]:
    """An original finds what it finds, and acknowledges one message; what it has then."""
    if not any(name.startswith("foo/") for name in disk.tree("/store")):
        disk.make_dirs("/store/foo")
    tree = disk.tree("/store/foo")
    found = read_by_original(disk.tree("/store"))
    numbers = [
        int(name.split(".")[1])
        for name in tree
        if name.startswith("msgs.") and name.endswith(".dat")
    ]
    number = max(numbers, default=1)
    # Where there is no index it makes one of the data, and so does whoever comes after it.
    indexed = not numbers or f"msgs.{number}.idx" in tree
    original_stores(disk, number, found[-1][0] + 1 if found else 1, b"acked", entries=indexed)
    return read_by_original(disk.tree("/store"))


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True])
def test_wherever_a_deletion_dies_what_an_original_acknowledges_then_stays(*, power: bool) -> None:
    left = set()
    for call in range(1, 100):
        node = channel_of(*(b"%d" % i for i in range(6)))
        disk = disk_of(node)
        last = disk.calls + call
        try:
            disk.on_call = lambda number, _name, _args, last=last: killed_at(number, last)
            node.store.delete_channel(b"foo")
        except Killed:
            pass
        else:
            break
        for seed in range(8 if power else 1):
            after = disk.crash(random.Random(seed), process_only=not power)
            has = original_serves(after)
            new = next_owner(node, after)
            assert new.store.quarantined == []
            assert contents(new) == has
            left.add(len(has))
            assert contents(next_owner(new, disk_of(new).crash(mode=CrashMode.LOST))) == has
    # All were there, only the newest slice was, none was.
    assert {7, 3, 1} <= left


def killed_at(number: int, last: int) -> None:
    if number == last:
        raise Killed


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 6])
def test_wherever_the_start_that_keeps_a_channel_dies_nothing_of_it_is_lost_or_quarantined(
    count: int,
) -> None:
    for call in range(1, 400):
        node = channel_of(*(b"%d" % i for i in range(count)), mixed=False)
        node.channel().purge(1)
        disk = die(node, removes("confirmed.bin"))
        original_stores(disk, 1, 1, b"acked")
        last = disk.calls + call
        disk.on_call = lambda number, _name, _args, last=last: killed_at(number, last)
        try:
            next_owner(node, disk)
        except Killed:
            pass
        else:
            break
        disk.on_call = None
        for found in (disk.crash(process_only=True), disk.crash(mode=CrashMode.ORDERED)):
            new = next_owner(node, found)
            assert (contents(new), new.store.quarantined) == ([(1, b"acked")], [])
    assert call > 30


@pytest.mark.parametrize(
    ("call", "name"), [("rename", "confirmed.bin"), ("rename", "purged.bin"), ("unlink", "ft.")]
)
def test_a_start_that_stands_still_before_it_keeps_a_channel_takes_nothing_from_its_successor(
    call: str, name: str
) -> None:
    node = channel_of(b"a", b"b", mixed=False)
    node.channel().purge(1)
    disk = die(node, removes("confirmed.bin"))
    original_stores(disk, 1, 1, b"acked", b"acked, too")
    paused = filenode.Owner(2)
    late = disk.sibling()
    made: list[FileNode] = []

    def serve(_number: int, found: str, args: tuple[object, ...]) -> None:
        if found == call and str(args[-1]).startswith(name):
            late.on_call = None
            new = FileNode(disk, owner=filenode.Owner(3), options=SMALL, clock=node.clock)
            made.append(new)
            assert new.put(b"ours") == {}
            new.channel().purge(1)
            new.tick()
            paused.fenced = True

    late.on_call = serve
    with pytest.raises((FencedError, RecoveryError)):
        FileNode(late, owner=paused, options=SMALL, clock=node.clock)
    (new,) = made
    assert contents(next_owner(new, disk.crash(process_only=True))) == [
        (2, b"acked, too"),
        (3, b"ours"),
    ]
