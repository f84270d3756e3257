"""Attack: an index loses entries while its slice is written to. It is made anew in memory, and what
is stored behind that must not be missing in it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import DamageError
from ftstan.stores.file.channel import FileChannel
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.interface import ChannelLimits
from ftstan.wire.block import MsgBlock
from tests.filenode import Owner
from tests.sim.disk import CrashMode
from tests.unit.stores.test_slices import Node, contents, fresh

if TYPE_CHECKING:
    from ftstan.stores.file.log.slices import SliceLog

#: Retention must not look for ever.
pytestmark = pytest.mark.timeout(20)

HOUR = 3600 * 10**9
NO_LIMITS = ChannelLimits(max_msgs=0, max_bytes=0)


def index_of(node: Node) -> int:
    """An open descriptor of the index, which the server knows nothing of."""
    root = node.disk.open_dir("/store")
    return node.disk.open(node.disk.open_dir_at(root, "foo"), "msgs.1.idx", os.O_RDWR)


def log_of(node: Node) -> SliceLog:
    channel = node.channel()
    assert isinstance(channel, FileChannel)
    return channel.log


def made_anew(
    limits: ChannelLimits, options: FileStoreOptions | None = None, owner: Owner | None = None
) -> Node:
    """Entries are gone, as a file server that restarts leaves it: zeros, where unsynced ones
    were.
    """
    node = Node(fresh(), owner or Owner(), options or FileStoreOptions(), limits)
    assert node.put(b"a") == {}
    assert node.put(b"b", b"c") == {}
    fd = index_of(node)
    node.disk.pwrite(fd, bytes(3 * 32), 4)
    node.disk.close(fd)
    assert [data for _, data in contents(node)] == [b"a", b"b", b"c"]
    assert node.put(b"d") == {}
    return node


@pytest.mark.parametrize("is_mixed", [False, True])
def test_what_is_stored_behind_it_is_read_also_by_those_who_follow(is_mixed: bool) -> None:
    node = made_anew(NO_LIMITS, owner=Owner(mixed=is_mixed))
    for _ in range(3):
        assert contents(node) == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d")]
        node.store.close()
        node = Node(node.disk.sibling(), Owner(node.owner.epoch + 1, mixed=is_mixed))


def test_without_syncs_its_data_are_synced_with_the_next_ones() -> None:
    node = made_anew(NO_LIMITS, FileStoreOptions(sync=False))
    log_of(node).sync()
    again = Node(node.disk.crash(mode=CrashMode.LOST), Owner(2))
    assert contents(again) == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d")]


def test_it_expires() -> None:
    node = made_anew(ChannelLimits(max_msgs=0, max_bytes=0, max_age=HOUR))
    node.clock.advance(4000)
    node.store.tick(node.clock.wall_ns())
    assert (node.channel().last, node.channel().count) == (4, 0)


def test_the_limit_is_kept() -> None:
    node = made_anew(ChannelLimits(max_msgs=4, max_bytes=0))
    for _ in range(4):
        assert node.put(b"e") == {}
    assert node.channel().first == 5


@pytest.mark.parametrize("left", [4 + 32 + 28, 4 + 2 * 32])
def test_an_index_that_ends_within_an_entry_or_behind_one_ends_no_server(left: int) -> None:
    """As one that lost all behind its first page does."""
    limits = ChannelLimits(max_msgs=4, max_bytes=0)
    node = Node(fresh(), Owner(), FileStoreOptions(slice_max_msgs=4), limits)
    assert node.put(b"a", b"b", b"c", b"d") == {}
    fd = index_of(node)
    node.disk.ftruncate(fd, left)
    node.disk.close(fd)
    assert node.channel().last == 4
    for _ in range(4):
        assert node.put(b"e") == {}
    assert node.channel().first == 5


def test_an_index_in_memory_that_is_too_short_is_damage_and_no_hang() -> None:
    node = Node(fresh(), Owner(), limits=ChannelLimits(max_msgs=0, max_bytes=0, max_age=HOUR))
    assert node.put(b"a", b"b") == {}
    log = log_of(node)
    log.slices[0].index = b""
    with pytest.raises(DamageError, match="the index has no entry for sequence 1"):
        log.entries(log.slices[0])
    node.clock.advance(4000)
    node.store.tick(node.clock.wall_ns())
    assert node.channel().count == 2


def test_a_purge_that_ends_in_a_hole_behind_what_the_limits_dropped_last() -> None:
    node = Node(fresh(), Owner(), FileStoreOptions(slice_max_msgs=10000), NO_LIMITS)
    block = MsgBlock()
    # Limits look at 4096 entries at once, and do not see what follows.
    for sequence in [*range(1, 4097), *range(5000, 5003)]:
        block.append(sequence, b"foo", b"", b"x", node.clock.wall_ns())
    channel = node.channel()
    channel.append(block)
    assert node.store.commit() == {}
    log_of(node).set_limits(ChannelLimits(max_msgs=3, max_bytes=0))
    channel.expire(node.clock.wall_ns())
    assert channel.first == 4097
    channel.purge(4500)
    assert (channel.first, channel.count) == (5000, 3)
