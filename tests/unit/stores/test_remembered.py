"""``dedup.bin``: what is remembered is durable, in the right order, and survives what it must."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from ftstan.base import log
from ftstan.base.errors import FencedError, StoreError
from ftstan.config.limits import Limits
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.state.remembered import NAME
from ftstan.stores.file.store import FileStore
from ftstan.stores.interface import StoredAt
from tests.filenode import NO_LIMITS, FileNode, Owner, simulated
from tests.sim.disk import CrashMode

if TYPE_CHECKING:
    from tests.sim.disk import SimDisk

A, B, C = (bytes([i]) * 16 for i in (1, 2, 3))


def at(sequence: int) -> StoredAt:
    return StoredAt(sequence, 0xFFFF_FF00 + sequence % 256)


def disk_of(node: FileNode) -> SimDisk:
    return node.disk  # type: ignore[return-value]


@pytest.fixture
def node() -> FileNode:
    return FileNode(simulated())


def test_what_is_remembered_survives_a_power_cut(node: FileNode) -> None:
    node.store.remember([A], {A: at(1)})
    node.store.remember([B, C], {A: at(1), B: at(2), C: at(3)})
    after = node.successor(disk_of(node).crash())
    assert list(after.recovered.remembered.items()) == [(A, at(1)), (B, at(2)), (C, at(3))]


def test_a_torn_end_is_left_out(node: FileNode) -> None:
    node.store.remember([A], {A: at(1)})
    node.store.remember([B], {A: at(1), B: at(2)})
    disk = disk_of(node)
    fd = disk.open(node.root, NAME, 2)
    disk.ftruncate(fd, disk.fstat(fd).size - 3)
    assert node.successor().recovered.remembered == {A: at(1)}


def test_a_file_of_anything_else_is_nothing(node: FileNode) -> None:
    fd = disk_of(node).open(node.root, NAME, 0o102)
    disk_of(node).pwrite(fd, b"anything else at all, and longer than an entry is", 0)
    assert node.successor().recovered.remembered == {}


def test_a_former_owner_writes_to_a_dead_file(node: FileNode) -> None:
    node.store.remember([A], {A: at(1)})
    after = node.successor()
    after.store.remember([B], {A: at(1), B: at(2)})
    node.store.remember([C], {A: at(1), C: at(9)})
    assert after.successor().recovered.remembered == {A: at(1), B: at(2)}


def test_an_owner_that_is_fenced_does_not_replace_the_file(node: FileNode) -> None:
    node.store.remember([A], {A: at(1)})
    after = node.successor()
    after.owner.fenced = True
    with pytest.raises(FencedError):
        after.store.remember([B], {B: at(1)})
    assert node.successor().recovered.remembered == {A: at(1)}


def test_without_space_the_server_goes_on_and_all_of_it_is_written_later(
    node: FileNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(log.stream, "error", said.append)
    node.store.remember([A], {A: at(1)})
    disk_of(node).fail_next("pwrite", errno.ENOSPC)
    node.store.remember([B], {A: at(1), B: at(2)})
    assert ["may be stored twice" in line for line in said] == [True]
    node.store.remember([C], {A: at(1), B: at(2), C: at(3)})
    assert node.successor().recovered.remembered == {A: at(1), B: at(2), C: at(3)}


def test_storage_that_fails_ends_the_process(node: FileNode) -> None:
    node.store.remember([A], {A: at(1)})
    disk_of(node).fail_next("fdatasync", errno.EIO)
    with pytest.raises(StoreError, match=NAME):
        node.store.remember([B], {A: at(1), B: at(2)})


def test_the_file_does_not_grow_beyond_twice_the_window(node: FileNode) -> None:
    window: dict[bytes, StoredAt] = {}
    for i in range(1000):
        digest = i.to_bytes(16, "big")
        window[digest] = at(i + 1)
        if len(window) > 100:
            del window[next(iter(window))]
        node.store.remember([digest], window)
        size = disk_of(node).stat(node.root, NAME).size
        assert size <= 4 + 32 * 201
    assert list(node.successor().recovered.remembered)[-100:] == list(window)


def late(node: FileNode) -> FileStore:
    """The next owner, which has recovered and opened no channel."""
    disk = disk_of(node).sibling()
    owner = Owner(node.owner.epoch + 1)
    store = FileStore(
        disk,
        disk.open_dir(node.path),
        owner,
        node.clock,
        limits=Limits.same(NO_LIMITS),
        parallel_sync=False,
        most_at_once=0,
    )
    assert store.recover().later
    return store


def test_what_a_former_owner_adds_is_known_by_who_opens_a_channel_later_also_behind_its_own_file(
    node: FileNode,
) -> None:
    for name in (b"x", b"y", b"z"):
        node.put(b"1", channel=name)
    node.store.remember([A], {A: at(1)})
    store = late(node)
    assert store.open_channel(b"x").remembered == {}
    store.remember([B], {A: at(1), B: at(2)})
    # Its descriptor leads to the file that ours has taken the place of.
    node.store.remember([C], {A: at(1), C: at(3)})
    assert store.open_channel(b"y").remembered == {C: at(3)}
    assert store.open_channel(b"z").remembered == {}


def test_a_late_rename_over_our_file_is_read_and_ours_is_written_again(node: FileNode) -> None:
    for name in (b"x", b"y"):
        node.put(b"1", channel=name)
    node.store.remember([A], {A: at(1)})
    store = late(node)
    ours = {A: at(1), B: at(2)}
    store.remember([B], ours)
    # Paused behind the confirm of a replacement, which now gets its name.
    node.store._remembered._file.distrust()
    node.store.remember([C], {A: at(1), C: at(3)})
    assert store.open_channel(b"x").remembered == {A: at(1), C: at(3)}
    ours[C] = at(3)
    node.clock.advance(1)
    store.tick(node.clock.wall_ns())
    assert store.open_channel(b"y").remembered == {}
    assert node.successor().recovered.remembered == ours


def test_a_late_rename_that_is_seen_from_outside_has_our_file_written_again(node: FileNode) -> None:
    node.store.remember([A], {A: at(1)})
    after = node.successor()
    after.store.remember([B], {A: at(1), B: at(2)})
    node.store._remembered._file.distrust()
    node.store.remember([C], {A: at(1), C: at(3)})
    after.store.places.look(after.disk, after.root)
    after.tick()
    assert after.successor().recovered.remembered == {A: at(1), B: at(2)}


def names(node: FileNode) -> dict[str, bytes | None]:
    return disk_of(node).tree("/store")


def test_without_syncs_it_is_durable_with_everything_else() -> None:
    node = FileNode(simulated(), options=FileStoreOptions(sync=False))
    node.store.remember([A], {A: at(1)})
    node.store.remember([B], {A: at(1), B: at(2)})
    cut = disk_of(node).crash(mode=CrashMode.LOST)
    assert node.successor(cut).recovered.remembered == {A: at(1)}
    node.store.sync_all()
    cut = disk_of(node).crash(mode=CrashMode.LOST)
    assert node.successor(cut).recovered.remembered == {A: at(1), B: at(2)}


def test_while_space_is_short_it_is_told_once_and_not_tried_with_every_batch(
    node: FileNode, capfd: pytest.CaptureFixture[str]
) -> None:
    node.store.remember([A], {A: at(1)})
    tries = [0]

    def full(_number: int, call: str, arguments: tuple[object, ...]) -> None:
        if call == "pwrite":
            tries[0] += 1
            raise OSError(errno.ENOSPC, "No space left on device")

    disk_of(node).on_call = full
    window = {A: at(1)}
    for number in range(2, 12):
        digest = bytes([number]) * 16
        window[digest] = at(number)
        node.store.remember([digest], window)
    said = capfd.readouterr().err
    assert said.count("publishes that are repeated after a takeover may be stored twice") == 1
    assert tries[0] < 5
    disk_of(node).on_call = None
    node.clock.advance(60)
    node.store.remember([B], window | {B: at(12)})
    assert node.successor().recovered.remembered == window | {B: at(12)}


def test_where_a_directory_has_its_name_nothing_is_remembered_and_that_is_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    disk = simulated()
    disk.add_tree("/store", {f"{NAME}/subs.dat": records.VERSION})
    node = FileNode(disk)
    node.put(b"1", channel=b"x")
    for number in (1, 2):
        node.store.remember([A], {A: at(number)})
    said = capfd.readouterr().err
    assert said.count(f"{NAME} is no file") == 1
    assert names(node)[f"{NAME}/subs.dat"] == records.VERSION
    store = late(node)
    assert store.open_channel(b"x").remembered == {}


def test_a_file_that_is_in_its_place_is_not_written_again(
    node: FileNode, capfd: pytest.CaptureFixture[str]
) -> None:
    node.store.remember([A], {A: at(1)})
    before = disk_of(node).stat(node.root, NAME).ino
    node.store.places.suspects.append((b"", NAME))
    node.tick()
    assert disk_of(node).stat(node.root, NAME).ino == before
    assert "was replaced by somebody" not in capfd.readouterr().err


def test_a_file_that_is_removed_while_channels_are_opened_says_nothing_more(
    node: FileNode,
) -> None:
    for name in (b"x", b"y"):
        node.put(b"1", channel=name)
    node.store.remember([A], {A: at(1)})
    store = late(node)
    disk_of(node).unlink(node.root, NAME)
    assert store.open_channel(b"x").remembered == {}
    # What its owner goes on with is read from the open file.
    node.store.remember([B], {A: at(1), B: at(2)})
    assert store.open_channel(b"y").remembered == {B: at(2)}
