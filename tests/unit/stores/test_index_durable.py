"""Indexes that may read well and not be on the disk: what a clean stop leaves survives the power,
whoever wrote it.
"""

from __future__ import annotations

import errno
import os
from random import Random
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import StoreError
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.state import checkpoint
from tests.filenode import FileNode, Owner, simulated
from tests.sim.disk import CrashMode, SimDisk

if TYPE_CHECKING:
    from collections.abc import Callable

FOO = "/store/foo"


def small(disk: SimDisk, **options: object) -> FileNode:
    """Two messages a slice."""
    made: dict[str, object] = {"slice_max_msgs": 2, **options}
    return FileNode(disk, options=FileStoreOptions(**made))  # type: ignore[arg-type]


def killed(node: FileNode) -> SimDisk:
    assert isinstance(node.disk, SimDisk)
    return node.disk.crash(process_only=True)


def indexed(disk: SimDisk) -> dict[int, tuple[int, int]]:
    """First and last sequence that each index names, by slice number."""
    found = {}
    for name, data in disk.tree(FOO).items():
        if name.endswith(".idx"):
            scan = records.scan_index((data or b"")[records.VERSION_SIZE :], records.Crc())
            found[int(name.split(".")[1])] = (scan.first, scan.last)
    return found


def whole(disk: SimDisk) -> dict[int, tuple[int, int]]:
    """The same of the data: what each index must name."""
    found = {}
    for name, data in disk.tree(FOO).items():
        if name.startswith("msgs.") and name.endswith(".dat"):
            block, _, why = records.scan_data(
                (data or b"")[records.VERSION_SIZE :], b"foo", 0, records.Crc()
            )
            assert not why
            found[int(name.split(".")[1])] = (block.first, block.last)
    return found


def stop_and_cut_the_power(node: FileNode) -> None:
    """A clean stop, after which nothing may depend on a page cache."""
    node.store.close()
    assert isinstance(node.disk, SimDisk)
    for mode in CrashMode:
        after = node.disk.crash(Random(1), mode)
        assert indexed(after) == whole(after) == whole(node.disk)
        again = node.successor(after)
        assert again.store._checkpoint.get(b"foo") is not None
        assert again.store._channels[b"foo"].untouched


def refusing(disk: SimDisk, node: FileNode, nth: int) -> None:
    """Refuse the ``nth`` sync of a file of the log from now on."""
    del node
    seen = [0]

    def refuse(_call: int, name: str, _arguments: tuple[object, ...]) -> None:
        if name == "fdatasync":
            seen[0] += 1
            if seen[0] == nth:
                disk.on_call = None
                disk.fail_at(disk.calls, errno.EIO)

    disk.on_call = refuse


def roll_that_fails(node: FileNode, disk: SimDisk) -> None:
    node.put(b"a", b"b")
    refusing(disk, node, 1)
    assert node.put(b"c")
    assert disk.met["EIO fdatasync"] == 1
    assert node.put(b"c") == {}
    assert node.put(b"d", b"e") == {}


def background_sync_that_fails(node: FileNode, disk: SimDisk) -> None:
    node.put(b"a")
    refusing(disk, node, 1)
    node.tick()
    assert disk.met["EIO fdatasync"] == 1
    assert node.put(b"b", b"c") == {}
    assert node.put(b"d", b"e") == {}


def write_that_fails(node: FileNode, disk: SimDisk) -> None:
    node.put(b"a")
    # The data is refused, and so is the sync of the index that is left with it.
    refusing(disk, node, 1)
    failing = disk.on_call
    assert failing is not None

    def both(call: int, name: str, arguments: tuple[object, ...]) -> None:
        failing(call, name, arguments)
        if disk.on_call is None:
            refusing(disk, node, 1)

    disk.on_call = both
    assert node.put(b"b")
    assert disk.met["EIO fdatasync"] == 2
    disk.on_call = None
    assert node.put(b"b") == {}
    assert node.put(b"c", b"d") == {}


def index_write_that_fails(node: FileNode, disk: SimDisk) -> None:
    node.put(b"a")
    seen = [0]

    def refuse(_call: int, name: str, _arguments: tuple[object, ...]) -> None:
        if name == "pwrite":
            seen[0] += 1
            if seen[0] == 2:
                disk.on_call = None
                raise OSError(errno.EIO, "refused")

    disk.on_call = refuse
    assert node.put(b"b")
    assert node.put(b"c", b"d", b"e") == {}


FAILURES = [
    roll_that_fails,
    background_sync_that_fails,
    write_that_fails,
    index_write_that_fails,
]


@pytest.mark.parametrize("fail", FAILURES)
def test_an_index_whose_sync_failed_is_written_anew_by_the_clean_stop_of_a_successor(
    fail: Callable[[FileNode, SimDisk], None],
) -> None:
    disk = simulated()
    node = small(disk)
    fail(node, disk)
    stop_and_cut_the_power(node.successor(killed(node)))


@pytest.mark.parametrize("fail", FAILURES)
def test_an_index_whose_sync_failed_is_written_anew_by_the_clean_stop_of_a_later_successor(
    fail: Callable[[FileNode, SimDisk], None],
) -> None:
    disk = simulated()
    node = small(disk)
    fail(node, disk)
    after = node.successor(killed(node))
    after.put(b"x", b"y", b"z")
    stop_and_cut_the_power(after.successor(killed(after)))


@pytest.mark.parametrize("fail", FAILURES)
def test_an_index_whose_sync_failed_is_written_anew_by_the_clean_stop_of_its_owner(
    fail: Callable[[FileNode, SimDisk], None],
) -> None:
    disk = simulated()
    node = small(disk)
    fail(node, disk)
    stop_and_cut_the_power(node)


def test_the_last_index_of_a_killed_owner_is_written_anew_by_a_clean_stop() -> None:
    disk = simulated()
    node = small(disk)
    node.put(b"a")
    refusing(disk, node, 1)
    node.tick()
    stop_and_cut_the_power(node.successor(killed(node)))


def test_a_clean_stop_rewrites_the_last_index_of_a_killed_owner_without_free_numbers() -> None:
    # The next number belongs to the next activation.
    node = FileNode(simulated(), owner=Owner(1), options=FileStoreOptions(slice_max_msgs=2))
    channel = node.store.create_channel(b"foo", node.limits)
    node.channels[b"foo"] = channel
    node.store._channels[b"foo"].log._highest = 4095
    node.put(b"a")
    disk = node.disk
    assert isinstance(disk, SimDisk)
    refusing(disk, node, 1)
    node.tick()
    after = node.successor(killed(node))
    after.put(b"b")
    assert sorted(indexed(after.disk.sibling() if isinstance(after.disk, SimDisk) else disk)) == [
        4096,
        4097,
    ]
    stop_and_cut_the_power(after.successor(killed(after)))


def test_an_index_whose_sync_failed_and_then_seemed_to_succeed_is_written_anew() -> None:
    disk = simulated()
    node = small(disk, slice_max_msgs=40)
    # More than a sector of entries: what is written behind them does not bring them back.
    node.put(*(b"%d" % i for i in range(36)))
    refusing(disk, node, 1)
    with pytest.raises(OSError, match="Input/output error"):
        node.store._channels[b"foo"].sync()
    assert node.put(*(b"%d" % i for i in range(6))) == {}
    assert node.put(b"x") == {}
    after = node.successor(killed(node))
    after.put(b"y")
    stop_and_cut_the_power(after)


def test_an_index_that_was_synced_is_not_written_anew() -> None:
    disk = simulated()
    node = small(disk)
    node.put(*(b"%d" % i for i in range(6)))
    after = node.successor(killed(node))
    assert after.store._channels[b"foo"].log.unsure == {3}


def test_what_an_owner_without_syncs_left_is_durable_after_its_successors_clean_stop() -> None:
    disk = simulated()
    node = small(disk, sync=False)
    node.put(b"a")
    # Everything is synced now, and what says so is written; the next time is in a minute.
    node.tick()
    node.put(*(b"%d" % i for i in range(6)))
    after = node.successor(killed(node))
    after.put(b"x")
    stop_and_cut_the_power(after)


def test_a_clean_stop_that_was_refused_half_way_describes_nothing_that_is_not_durable() -> None:
    node = small(simulated())
    node.put(b"a", b"b", b"c")
    folder = node.disk.open_dir(FOO)
    fd = node.disk.open(folder, "msgs.1.dat", os.O_RDWR)
    # What a former owner left behind its last message.
    node.disk.pwrite(fd, b"late", node.disk.fstat(fd).size)
    after = node.successor(killed(node))
    disk = after.disk
    assert isinstance(disk, SimDisk)
    renamed = [False]

    def refuse(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        if name == "rename" and arguments[-1] == "msgs.1.idx":
            renamed[0] = True
        elif name == "fsync" and renamed[0]:
            renamed[0] = False
            disk.fail_at(disk.calls, errno.EIO)

    disk.on_call = refuse
    channel = after.store._channels[b"foo"]
    channel.close()
    disk.on_call = None
    assert disk.met["EIO fsync"] == 1
    assert 1 in channel.log.unsure
    assert checkpoint.entry_of(after.store._env, channel.log) is None
    stop_and_cut_the_power(after)


def test_an_index_that_was_lost_in_a_mixed_group_is_good_again_within_a_second() -> None:
    disk = simulated()
    node = FileNode(disk, owner=Owner(1, mixed=True))
    node.put(b"a")
    refusing(disk, node, 2)
    (error,) = node.put(b"b").values()
    assert isinstance(error, StoreError)
    node.tick()
    after = disk.crash(Random(1), CrashMode.LOST)
    assert indexed(after) == whole(after) == {1: (1, 2)}
    assert node.put(b"c") == {}
    assert node.sequences() == [1, 2, 3]


# ---- lost below who has read it
# --------------------------------------------------------------------------------------

_ENTRY = records.INDEX_SIZE


@pytest.mark.parametrize(
    ("start", "end"),
    [
        pytest.param(11 * _ENTRY, 19 * _ENTRY, id="entries"),
        pytest.param(11 * _ENTRY + 16, 12 * _ENTRY, id="half of one"),
        pytest.param(39 * _ENTRY + 16, 40 * _ENTRY, id="half of the last one"),
        pytest.param(0, 40 * _ENTRY, id="all of it"),
    ],
)
@pytest.mark.parametrize("by_time", [False, True])
def test_what_an_index_loses_after_it_was_measured_is_made_anew(
    start: int, end: int, *, by_time: bool
) -> None:
    """A dead host had not synced it, its file server restarts, and what the host sends again lies
    behind zeros.
    """
    disk = SimDisk()
    disk.make_dirs("/store")
    node = FileNode(disk)
    times = []
    for i in range(40):
        node.clock.advance(1)
        times.append(node.clock.wall_ns())
        assert node.put(b"%d" % i) == {}
    heir = node.successor(killed(node))
    (name,) = (name for name in heir.disk.tree(FOO) if name == "msgs.1.idx")  # type: ignore[attr-defined]
    folder = heir.disk.open_dir(FOO)
    fd = heir.disk.open(folder, name, os.O_RDWR)
    heir.disk.pwrite(fd, bytes(end - start), records.VERSION_SIZE + start)
    heir.disk.close(fd)
    channel = heir.channels[b"foo"]
    if by_time:
        assert [channel.sequence_at(time) for time in times] == list(range(1, 41))
    assert heir.sequences() == list(range(1, 41))
    assert heir.put(b"more") == {}
    assert [channel.sequence_at(time) for time in times] == list(range(1, 41))
    stop_and_cut_the_power(heir)
