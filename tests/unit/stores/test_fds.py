"""Descriptors: how many a store holds, what is closed first, and that closed files go on where they
were.
"""

from __future__ import annotations

import errno
import os
import resource
from typing import TYPE_CHECKING

import pytest

from ftstan.base.disk import LocalDisk
from ftstan.base.errors import FencedError
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.files import Files, default_limit
from ftstan.stores.interface import SubState
from tests.filenode import FileNode, Owner, simulated

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.sim.disk import SimDisk

LIMITED = FileStoreOptions(fds_limit=16, slice_max_msgs=5)


def names(count: int) -> list[bytes]:
    return [b"channel.%d" % i for i in range(count)]


def batch(node: FileNode, channels: list[bytes], data: bytes) -> None:
    """One batch that touches every channel, with a subscription's record and an event in each."""
    for name in channels:
        node.stage(data, channel=name)
    assert node.store.commit() == {}
    for name in channels:
        node.sent(1, node.channel(name).last, channel=name)


def most_open(node: FileNode, disk: SimDisk) -> list[int]:
    """Keeps the highest number of open handles from here on."""
    seen = [0]

    def look(_call: int, _name: str, _arguments: tuple[object, ...]) -> None:
        seen[0] = max(seen[0], disk.open_handles)

    disk.on_call = look
    return seen


def test_a_store_stays_below_its_limit_of_descriptors_while_many_channels_are_used() -> None:
    disk = simulated()
    node = FileNode(disk, options=LIMITED)
    seen = most_open(node, disk)
    channels = names(60)
    for name in channels:
        node.channel(name).add_sub(SubState(1, b"me", durable_name=b"d", is_durable=True))
    node.store.commit()
    for round_ in range(8):
        batch(node, channels, b"%d" % round_)
        for name in channels:
            node.channel(name).read(1, 10, 1000)
        node.tick()
    # The root, what a compaction or a new slice opens for a moment, and the two of a read.
    assert seen[0] <= 16 + 4
    for name in channels:
        assert node.sequences(name) == list(range(1, 9))
    node.store.close()
    assert disk.open_handles == 1
    after = node.successor()
    for name in channels:
        assert after.sequences(name) == list(range(1, 9))
        (stored,) = after.channel(name).recovered_subs()
        assert stored.pending == set(range(1, 9))


def test_a_store_of_many_channels_is_recovered_below_the_limit_and_holds_nothing_open() -> None:
    disk = simulated()
    node = FileNode(disk)
    channels = names(60)
    batch(node, channels, b"x")
    node.store.close()
    node.options = LIMITED
    after = node.successor()
    assert after.disk.open_handles == 1  # type: ignore[attr-defined]
    assert after.store._env.files.count == 0


def test_a_closed_slice_is_written_again_only_after_a_confirm() -> None:
    disk = simulated()
    node = FileNode(disk)
    node.put(b"a")
    node.store._env.files.limit = 0
    node.store._env.files.trim()
    assert disk.open_handles == 1
    asked = node.owner.confirms
    node.store._env.files.limit = 100
    assert node.put(b"b") == {}
    assert node.owner.confirms > asked
    assert node.sequences() == [1, 2]
    assert sorted(
        n for n in disk.tree("/store/foo") if n.endswith(".dat") and n.startswith("msgs")
    ) == ["msgs.1.dat"]


def test_a_fenced_owner_does_not_write_to_a_slice_that_it_had_closed() -> None:
    disk = simulated()
    node = FileNode(disk)
    node.put(b"a")
    node.store._env.files.limit = 0
    node.store._env.files.trim()
    before = disk.tree("/store/foo")["msgs.1.dat"]
    node.owner.fenced = True
    with pytest.raises(FencedError):
        node.put(b"b")
    assert disk.tree("/store/foo")["msgs.1.dat"] == before


def test_data_is_durable_before_its_index_is_written_however_few_files_are_open() -> None:
    disk = simulated()
    node = FileNode(disk, options=FileStoreOptions(fds_limit=1))
    channels = names(5)
    for name in channels:
        node.put(b"a", channel=name)
    opened: dict[int, str] = {}
    dirty: set[str] = set()

    def look(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        if name == "open":
            opened[-1] = str(arguments[1])
        elif -1 in opened:
            # The handle of the last open is the lowest free one: read it from the table.
            for fd in disk._handles:
                opened.setdefault(fd, opened[-1])
            del opened[-1]
        path = f"{arguments[0]}"
        if name == "pwrite" and arguments[1] and _is(disk, path, ".dat"):
            dirty.add(path)
        elif name in ("fdatasync", "fsync"):
            dirty.discard(path)
        elif name == "pwrite" and _is(disk, path, ".idx"):
            assert dirty == set(), "an index entry before its data was durable"

    disk.on_call = look
    for round_ in range(3):
        batch(node, channels, b"%d" % round_)
    assert node.sequences(channels[0]) == [1, 2, 3, 4]


def _is(disk: SimDisk, fd: str, kind: str) -> bool:
    """Whether a handle is one of a slice's files of that kind."""
    node = disk._handles[int(fd)].node
    tree = disk.volume.root.entries["store"]
    return any(
        name.endswith(kind) and child is node
        for folder in getattr(tree, "entries", {}).values()
        for name, child in getattr(folder, "entries", {}).items()
    )


def test_a_lagging_reader_opens_the_two_files_of_a_slice_once() -> None:
    disk = simulated()
    node = FileNode(disk, options=FileStoreOptions(slice_max_msgs=50))
    node.put(*(b"%d" % i for i in range(100)))
    node.store.close()
    node = node.successor()
    disk = node.disk  # type: ignore[assignment]
    before = len(disk.log)
    for sequence in range(1, 51):
        node.channel().read(sequence, 1, 1 << 20)
    opens = [line for line in disk.log[before:] if line.startswith("open ")]
    assert len(opens) == 2
    assert not [line for line in disk.log[before:] if line.startswith("close")]


def test_a_read_goes_no_further_than_the_read_buffer() -> None:
    disk = simulated()
    node = FileNode(disk, options=FileStoreOptions(read_buffer_size=0))
    node.put(*(b"%d" % i for i in range(100)))
    block = node.channel().read(1, 1024, 1 << 20)
    assert block is not None
    assert len(block) == 1
    node = FileNode(disk.sibling(), owner=Owner(2), options=FileStoreOptions(read_buffer_size=320))
    block = node.channel().read(1, 1024, 1 << 20)
    assert block is not None
    assert 2 <= len(block) <= 10


def test_files_of_a_removed_slice_are_not_held_open() -> None:
    disk = simulated()
    node = FileNode(disk, options=FileStoreOptions(slice_max_msgs=2))
    node.put(*(b"%d" % i for i in range(6)))
    assert node.channel().read(1, 1, 1000) is not None
    held = disk.open_handles
    node.store._channels[b"foo"].log.first = 5
    node.store._channels[b"foo"].log.count = 2
    node.tick()
    assert "msgs.1.dat" not in disk.tree("/store/foo")
    assert disk.open_handles <= held - 2 + 1


def test_what_is_used_least_is_closed_first() -> None:
    disk = simulated()
    files = Files(disk, 3)
    root = disk.open_dir("/store")
    disk.add_tree("/store", {"a": b"a", "b": b"b", "c": b"c", "d": b"d"})
    fds = {name: files.reader(b"x", lambda: root, name) for name in "abc"}
    assert files.reader(b"x", lambda: root, "a") == fds["a"]
    files.trim(1)
    assert files.count == 2
    with pytest.raises(OSError, match="Bad file descriptor"):
        disk.pread(fds["b"], 1, 0)
    assert disk.pread(fds["a"], 1, 0) == b"a"
    files.forget(b"x")
    assert files.count == 0


def test_the_default_limit_follows_what_the_process_may_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for soft, limit in (
        (20000, 15000),
        (1024, 768),
        (256, 192),
        (100, 36),
        (64, 16),
        (resource.RLIM_INFINITY, 1 << 20),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda _which, soft=soft: (soft, soft))
        assert default_limit() == limit


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 200, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@pytest.mark.usefixtures("few_descriptors")
def test_more_channels_than_the_process_has_descriptors_are_served_and_recovered(
    tmp_path: Path,
) -> None:
    channels = names(320)
    node = FileNode(LocalDisk(), str(tmp_path), options=FileStoreOptions(sync=False, fds_limit=150))
    for round_ in range(2):
        batch(node, channels, b"%d" % round_)
    assert node.store._env.files.count <= 150
    for name in channels[::40]:
        assert node.sequences(name) == [1, 2]
    node.tick()
    node.store.close()
    after = node.successor()
    assert len(after.channels) == 320
    assert after.sequences(channels[-1]) == [1, 2]
    after.store.close()


def test_a_process_without_descriptors_refuses_and_loses_nothing() -> None:
    disk = simulated()
    node = FileNode(disk)
    node.put(b"a")
    disk.fail_next("open_dir_at", errno.EMFILE)
    assert list(node.put(b"b", channel=b"new")) == [b"new"]
    assert node.put(b"b", channel=b"new") == {}
    assert node.sequences(b"new") == [1]
