"""What few histories come to: ends for standbys, syncs on demand, slices whose index cannot be read
when their messages go, and stops in the middle of a start.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import StoppedError, StoreError
from ftstan.config.limits import Limits
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.store import FileStore
from ftstan.stores.interface import ChannelEnd
from ftstan.wire.block import MsgBlock
from tests.filenode import Owner
from tests.sim.disk import CrashMode
from tests.unit.stores.test_recovery_damage import contents_of
from tests.unit.stores.test_slices import NO_LIMITS, Node, contents, fresh

#: Two messages in a slice.
SMALL = FileStoreOptions(slice_max_msgs=2)


def sliced(count: int = 6) -> Node:
    """A successor that reads ``count`` messages from slices of two, and writes to none of them."""
    node = Node(fresh(), options=SMALL)
    for n in range(1, count + 1):
        node.put(b"m%d" % n)
        node.clock.advance(1)
    return node.successor()


def spoil(node: Node, *names: str, size: int = 64) -> None:
    """Put ``size`` zeros into these files of the channel, behind their versions."""
    folder = node.disk.open_dir("/store/foo")
    for name in names:
        fd = node.disk.open(folder, name, 2)
        node.disk.pwrite(fd, bytes(size), 4)
        node.disk.close(fd)


def test_standbys_are_told_the_ends_of_channels_with_news_first_and_of_the_others_in_turn() -> None:
    node = Node(fresh())
    for name in (b"a", b"b", b"c"):
        node.put(b"1", channel=name)
    assert {end.name for end in node.store.ends(10)} == {b"a", b"b", b"c"}
    node.put(b"2", b"3", channel=b"c")
    assert node.store.ends(1) == [ChannelEnd(b"c", 3, 1, 4 + 3 * 32)]
    told = [node.store.ends(1)[0].name for _ in range(6)]
    assert sorted(told[:3]) == sorted(told[3:]) == [b"a", b"b", b"c"]
    assert node.store.ends(0) == []


def test_the_end_of_an_empty_channel_is_told() -> None:
    node = Node(fresh())
    node.channel(b"empty").keep()
    assert node.store.commit() == {}
    assert ChannelEnd(b"empty", 0, 0, 0) in node.store.ends(10)


def test_whoever_keeps_account_elsewhere_has_everything_synced() -> None:
    node = Node(fresh(), options=FileStoreOptions(sync=False))
    node.put(b"a", b"b")
    node.store.sync_all()
    node.store.sync_all()
    cut = node.disk.crash(mode=CrashMode.LOST)
    assert contents(node.successor(cut)) == [(1, b"a"), (2, b"b")]


def test_a_sync_that_storage_refuses_is_told() -> None:
    node = Node(fresh(), options=FileStoreOptions(sync=False))
    node.put(b"a")

    def refuse(_call: int, name: str, _arguments: tuple[object, ...]) -> None:
        if name in {"fsync", "fdatasync"}:
            raise OSError(5, "Input/output error")

    node.disk.on_call = refuse
    with pytest.raises(StoreError, match="cannot be synced"):
        node.store.sync_all()


def test_an_index_that_cannot_be_read_is_made_anew_from_the_data() -> None:
    node = sliced()
    spoil(node, "msgs.2.idx")
    channel = node.channel()
    channel.purge(3)
    assert (channel.first, channel.last, channel.count) == (4, 6, 3)
    assert [n for n, _ in contents(node)] == [4, 5, 6]


def test_messages_whose_index_cannot_be_read_are_purged_by_their_sequences(
    capfd: pytest.CaptureFixture[str],
) -> None:
    node = sliced()
    spoil(node, "msgs.2.idx", "msgs.2.dat")
    channel = node.channel()
    channel.purge(3)
    assert (channel.first, channel.last, channel.count) == (4, 6, 3)
    assert "Unable to remove first message" in capfd.readouterr().err
    channel.purge(4)
    assert (channel.first, channel.count) == (5, 2)
    assert contents(node) == [(5, b"m5"), (6, b"m6")]


def test_messages_whose_index_cannot_be_read_expire_later(
    capfd: pytest.CaptureFixture[str],
) -> None:
    node = sliced()
    channel = node.channel()
    spoil(node, "msgs.1.idx", "msgs.1.dat")
    node.store.set_limits(Limits.same(replace(NO_LIMITS, max_age=10**9)))
    node.clock.advance(3600)
    node.store.tick(node.clock.wall_ns())
    assert channel.count == 6
    assert "Error during expiration" in capfd.readouterr().err


def test_a_time_is_found_in_whatever_slice_it_lies_and_behind_the_last_message() -> None:
    node = sliced()
    channel = node.channel()
    start = node.clock.wall_ns() - 6 * 10**9
    assert [channel.sequence_at(start + n * 10**9) for n in (-5, 0, 1, 2, 3, 5)] == [
        *(1, 1, 2, 3, 4, 6)
    ]
    assert channel.sequence_at(start + 6 * 10**9) == 7
    channel.purge(3)
    assert channel.sequence_at(start) == 4


def test_a_channel_with_a_batch_under_way_is_not_purged() -> None:
    node = Node(fresh())
    node.put(b"a")
    channel = node.channel()
    block = MsgBlock()
    block.append(2, b"foo", b"", b"b", 1)
    channel.append(block)
    with pytest.raises(StoreError, match='channel "foo" is in use'):
        channel.purge(1)
    assert node.store.commit() == {}
    assert contents(node) == [(1, b"a"), (2, b"b")]


def test_nothing_is_purged_of_a_channel_that_never_had_a_message() -> None:
    node = Node(fresh())
    channel = node.channel(b"empty")
    channel.keep()
    node.store.commit()
    channel.purge(5)
    assert (channel.first, channel.last) == (0, 0)


def test_a_start_ends_when_the_server_stops() -> None:
    node = Node(fresh())
    node.put(b"a")
    disk = node.disk.sibling()
    stopping = threading.Event()
    stopping.set()
    store = FileStore(
        disk,
        disk.open_dir("/store"),
        Owner(2),
        ManualClock(),
        FileStoreOptions(),
        limits=Limits.same(NO_LIMITS),
        parallel_sync=False,
        stopping=stopping,
    )
    with pytest.raises(StoppedError):
        store.recover()


@pytest.mark.parametrize(("size", "readable"), [(20, [1, 2, 4, 5, 6]), (64, [1, 2, 5, 6])])
def test_where_data_and_index_are_lost_the_channel_is_quarantined_and_the_rest_is_read(
    size: int, readable: list[int]
) -> None:
    node = sliced()
    spoil(node, "msgs.2.idx")
    spoil(node, "msgs.2.dat", size=size)
    assert contents_of(node, b"foo") == readable
    assert node.store.quarantined == ["foo"]
