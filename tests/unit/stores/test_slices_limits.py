"""Limits of a channel: what goes, when, what operators read about it, and what never goes."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ftstan.config.limits import Limits
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.interface import ChannelLimits
from ftstan.stores.memory import MemoryStore
from ftstan.wire.block import MsgBlock
from tests.filenode import NO_LIMITS, SECOND, FileNode, Owner, simulated
from tests.sim.disk import SimDisk

if TYPE_CHECKING:
    from ftstan.stores.interface import ChannelStore

TWOS = FileStoreOptions(slice_max_msgs=2)
WARNING = "dropping old messages to make room for new ones"


def limited(disk: SimDisk | None = None, **limits: int) -> FileNode:
    given = replace(NO_LIMITS, **limits)
    return FileNode(disk or simulated(), options=TWOS, limits=given)


def slices(node: FileNode) -> list[int]:
    assert isinstance(node.disk, SimDisk)
    names = node.disk.tree("/store/foo")
    return sorted(
        int(n.split(".")[1]) for n in names if n.startswith("msgs.") and n.endswith(".dat")
    )


def bounds(channel: ChannelStore) -> tuple[int, int, int]:
    return channel.first, channel.last, channel.count


# ---- count and bytes
# -----------------------------------------------------------------------------------------------


def test_the_first_drop_is_told_once_for_each_channel_and_server(
    capfd: pytest.CaptureFixture[str],
) -> None:
    node = limited(max_msgs=3)
    node.put(b"a", b"b", b"c")
    assert WARNING not in capfd.readouterr().err
    node.put(b"d")
    node.put(b"e")
    node.put(*(b"x" for _ in range(5)), channel=b"bar")
    lines = [line for line in capfd.readouterr().err.splitlines() if WARNING in line]
    assert len(lines) == 2
    assert '[WRN] STREAM: Reached limits for store "foo" (msgs=4/3 bytes=' in lines[0]
    assert 'Reached limits for store "bar" (msgs=5/3 bytes=' in lines[1]
    after = node.successor()
    assert bounds(after.channel()) == (3, 5, 3)
    assert WARNING not in capfd.readouterr().err


def test_bytes_are_told_as_people_read_them(capfd: pytest.CaptureFixture[str]) -> None:
    node = limited(max_bytes=3000)
    node.put(b"x" * 2000, b"y" * 2000)
    assert f"(msgs=2/0 bytes=4.02 KB/2.93 KB), {WARNING}" in capfd.readouterr().err


def test_limits_are_applied_at_a_start_and_larger_ones_bring_messages_back() -> None:
    node = limited()
    node.put(*(b"%d" % i for i in range(6)))
    node.limits = replace(NO_LIMITS, max_msgs=3)
    smaller = node.successor()
    assert bounds(smaller.channel()) == (4, 6, 3)
    smaller.store.abandon()
    smaller.limits = NO_LIMITS
    larger = smaller.successor()
    assert bounds(larger.channel()) == (1, 6, 6)


def test_slices_that_a_start_finds_dead_are_removed_a_second_later() -> None:
    node = limited()
    node.put(*(b"%d" % i for i in range(6)))
    node.limits = replace(NO_LIMITS, max_msgs=2)
    after = node.successor()
    assert slices(after) == [1, 2, 3]
    after.tick()
    assert slices(after) == [3]


def test_many_dead_slices_go_a_few_at_a_time() -> None:
    node = limited()
    node.put(*(b"%d" % i for i in range(100)))
    node.limits = replace(NO_LIMITS, max_msgs=1)
    after = node.successor()
    left = 50
    while after.store.tick(after.clock.wall_ns()):
        assert 0 < left - len(slices(after)) <= 8
        left = len(slices(after))
    assert slices(after) == [50]


def test_a_slice_that_storage_does_not_remove_waits_for_the_next_second() -> None:
    node = limited()
    node.put(*(b"%d" % i for i in range(100)))
    node.limits = replace(NO_LIMITS, max_msgs=1)
    after = node.successor()
    assert isinstance(after.disk, SimDisk)
    tried = 0

    def refuse(_: int, name: str, __: object) -> None:
        nonlocal tried
        if name == "unlink":
            tried += 1
            raise OSError(errno.EIO, "Input/output error")

    after.disk.on_call = refuse
    assert not after.store.tick(after.clock.wall_ns())
    assert tried == 1
    after.disk.on_call = None
    after.clock.advance(1.0)
    assert after.store.tick(after.clock.wall_ns())


def fail_a_read(disk: SimDisk) -> None:
    """The next read fails, and once more when the file was opened anew."""
    left = [errno.EIO] * 2

    def fail(_number: int, name: str, _arguments: tuple[object, ...]) -> None:
        if name == "pread" and left:
            raise OSError(left.pop(), "it fails")

    disk.on_call = fail


def test_an_index_that_cannot_be_read_stops_the_limit_and_not_the_publish(
    capfd: pytest.CaptureFixture[str],
) -> None:
    node = limited(max_msgs=4)
    node.put(b"a", b"b", b"c", b"d")
    disk = node.disk
    assert isinstance(disk, SimDisk)
    fail_a_read(disk)
    assert node.put(b"e") == {}
    assert bounds(node.channel()) == (1, 5, 5)
    assert "Unable to remove first message:" in capfd.readouterr().err
    assert node.put(b"f") == {}
    assert bounds(node.channel()) == (3, 6, 4)


def test_the_newest_message_stays_however_large_it_is() -> None:
    node = limited(max_bytes=100)
    node.put(b"a")
    node.put(b"x" * 1000)
    assert bounds(node.channel()) == (2, 2, 1)
    after = node.successor()
    assert bounds(after.channel()) == (2, 2, 1)


@pytest.mark.parametrize(("limit", "first", "count"), [(4, 1, 4), (3, 2, 3), (2, 5, 2), (1, 6, 1)])
def test_numbers_that_do_not_exist_do_not_count(limit: int, first: int, count: int) -> None:
    """A slice of an original in the middle of the channel is gone."""
    node = limited()
    node.put(*(b"%d" % i for i in range(6)))
    assert isinstance(node.disk, SimDisk)
    tree = {
        n: data for n, data in node.disk.tree("/store").items() if not n.startswith("foo/msgs.2.")
    }
    disk = simulated()
    disk.add_tree("/store", tree)
    limits = replace(NO_LIMITS, max_msgs=limit, max_age=10 * SECOND)
    after = FileNode(
        disk, owner=Owner(2, ours_from=4097), options=TWOS, limits=limits, clock=node.clock
    )
    assert bounds(after.channel()) == (first, 6, count)
    after.tick(10)
    assert bounds(after.channel()) == (7, 6, 0)
    after.put(b"on")
    assert bounds(after.channel()) == (7, 7, 1)


# ---- age
# --------------------------------------------------------------------------------------------------


def test_messages_expire_in_the_second_after_their_age_and_never_before() -> None:
    node = limited(max_age=10 * SECOND)
    node.put(b"a")
    node.clock.advance(1)
    node.put(b"b")
    node.tick(8.999)
    assert bounds(node.channel()) == (1, 2, 2)
    node.tick(0.001)
    assert bounds(node.channel()) == (2, 2, 1)
    node.tick()
    assert bounds(node.channel()) == (3, 2, 0)


def test_messages_expire_at_a_start() -> None:
    node = limited(max_age=10 * SECOND)
    node.put(b"a", b"b", b"c")
    node.clock.advance(11)
    after = node.successor()
    assert bounds(after.channel()) == (4, 3, 0)
    assert after.put(b"d") == {}
    assert bounds(after.channel()) == (4, 4, 1)


def test_an_unexpired_head_keeps_older_messages_behind_it() -> None:
    node = limited(max_age=10 * SECOND)
    ch = node.channel()
    block = MsgBlock()
    now = node.clock.wall_ns()
    for sequence, stamp in ((1, now + 5 * SECOND), (2, now - 60 * SECOND)):
        block.append(sequence, b"foo", b"", b"x", stamp)
    ch.append(block)
    node.store.commit()
    node.tick()
    assert bounds(ch) == (1, 2, 2)
    node.tick(14)
    assert bounds(ch) == (3, 2, 0)


def test_expiry_reads_nothing_before_the_head_is_due() -> None:
    node = limited(max_age=100 * SECOND)
    node.put(b"a", b"b")
    node.tick()
    disk = node.disk
    assert isinstance(disk, SimDisk)
    before = len(disk.log)
    for _ in range(5):
        node.tick()
    assert not [line for line in disk.log[before:] if line.startswith("pread")]


def test_expiry_that_cannot_read_is_told_and_tried_again_five_seconds_later(
    capfd: pytest.CaptureFixture[str],
) -> None:
    node = limited(max_age=10 * SECOND)
    node.put(b"a", b"b", b"c")
    disk = node.disk
    assert isinstance(disk, SimDisk)
    node.clock.advance(11)
    fail_a_read(disk)
    node.tick()
    assert bounds(node.channel()) == (1, 3, 3)
    assert "Error during expiration:" in capfd.readouterr().err
    node.tick(4.9)
    assert bounds(node.channel()) == (1, 3, 3)
    node.tick(0.1)
    assert bounds(node.channel()) == (4, 3, 0)


def test_a_message_that_comes_after_all_have_expired_expires_by_its_own_time() -> None:
    node = limited(max_age=10 * SECOND)
    node.put(b"a")
    node.tick(10)
    node.put(b"b")
    node.tick(9)
    assert bounds(node.channel()) == (2, 2, 1)
    node.tick(1)
    assert bounds(node.channel()) == (3, 2, 0)


# ---- other limits while serving
# ------------------------------------------------------------------------------------


def test_slices_that_other_limits_empty_are_removed_within_two_seconds() -> None:
    node = limited()
    node.put(*(b"%d" % i for i in range(10)))
    node.tick()
    assert slices(node) == [1, 2, 3, 4, 5]
    node.store.set_limits(Limits.same(replace(NO_LIMITS, max_msgs=3)))
    node.tick()
    node.tick()
    assert bounds(node.channel()) == (8, 10, 3)
    assert slices(node) == [4, 5]


def test_slices_follow_other_limits_as_they_follow_those_of_a_start() -> None:
    node = FileNode(
        simulated(),
        options=FileStoreOptions(slice_max_bytes=0),
        limits=replace(NO_LIMITS, max_msgs=40),
    )
    node.put(*(b"%d" % i for i in range(10)))
    assert slices(node) == [1]
    node.store.set_limits(Limits.same(replace(NO_LIMITS, max_msgs=8)))
    for i in range(4):
        node.put(b"%d" % i)
    assert slices(node)[-2:] == [2, 3]


def test_the_first_drop_under_other_limits_is_told_again(capfd: pytest.CaptureFixture[str]) -> None:
    node = limited(max_msgs=3)
    node.put(*(b"%d" % i for i in range(5)))
    node.store.set_limits(Limits.same(replace(NO_LIMITS, max_msgs=3)))
    node.put(b"a")
    assert capfd.readouterr().err.count(WARNING) == 1
    node.store.set_limits(Limits.same(replace(NO_LIMITS, max_msgs=2)))
    node.put(b"b")
    assert capfd.readouterr().err.count("(msgs=4/2 bytes=") == 1


# ---- slices by a share of the limits
# -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (ChannelLimits(max_msgs=8, max_bytes=0), 2),
        (ChannelLimits(max_msgs=3, max_bytes=0), 1),
        (ChannelLimits(max_msgs=0, max_bytes=800), 4),
        (ChannelLimits(max_msgs=0, max_bytes=3), 1),
    ],
)
def test_without_slice_limits_a_slice_holds_a_quarter_of_the_channels(
    limits: ChannelLimits, expected: int
) -> None:
    node = FileNode(simulated(), options=FileStoreOptions(slice_max_bytes=0), limits=limits)
    for i in range(expected):
        node.put(b"%d" % i)
    assert slices(node) == [1]
    node.put(b"x")
    assert slices(node)[-1] == 2


@pytest.mark.parametrize(("age", "seconds"), [(40, 10), (2, 1)])
def test_without_slice_limits_a_slice_covers_a_quarter_of_the_age_and_a_second_at_least(
    age: int, seconds: float
) -> None:
    node = FileNode(
        simulated(),
        options=FileStoreOptions(slice_max_bytes=0),
        limits=replace(NO_LIMITS, max_age=age * SECOND),
    )
    node.put(b"a")
    node.clock.advance(seconds - 0.1)
    node.put(b"b")
    assert slices(node) == [1]
    node.clock.advance(0.1)
    node.put(b"c")
    assert slices(node) == [1, 2]


def test_one_slice_limit_of_the_operators_replaces_all_shares() -> None:
    node = FileNode(
        simulated(),
        options=FileStoreOptions(slice_max_bytes=0, slice_max_age=100 * SECOND),
        limits=ChannelLimits(max_msgs=4, max_bytes=0),
    )
    for i in range(12):
        node.put(b"%d" % i)
    assert slices(node) == [1]


# ---- removal that storage refuses
# ----------------------------------------------------------------------------------


def test_a_slice_that_cannot_be_removed_is_told_once_and_tried_again(
    capfd: pytest.CaptureFixture[str],
) -> None:
    node = limited(max_msgs=2)
    node.put(*(b"%d" % i for i in range(6)))
    disk = node.disk
    assert isinstance(disk, SimDisk)
    refusing = [True]

    def refuse(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        if refusing[0] and name == "unlink" and str(arguments[-1]).startswith("msgs."):
            raise OSError(errno.EACCES, "Permission denied")

    disk.on_call = refuse
    node.tick()
    node.tick()
    assert capfd.readouterr().err.count("msgs.1.dat cannot be removed: Permission denied") == 1
    assert slices(node) == [1, 2, 3]
    assert node.put(b"x") == {}
    refusing[0] = False
    node.tick()
    assert slices(node) == [3, 4]


# ---- memory
# --------------------------------------------------------------------------------------------------


def test_the_memory_store_tells_the_first_drop_too(capfd: pytest.CaptureFixture[str]) -> None:
    store = MemoryStore()
    channel = store.create_channel(b"foo", replace(NO_LIMITS, max_msgs=1))
    for sequence in (1, 2, 3):
        block = MsgBlock()
        block.append(sequence, b"foo", b"", b"x", 1)
        channel.append(block)
        store.commit()
    err = capfd.readouterr().err
    assert err.count('Reached limits for store "foo" (msgs=2/1 bytes=') == 1
