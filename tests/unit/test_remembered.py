"""``dedup.bin``: what is remembered is durable, in the right order, and survives what it must."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from ftstan import log
from ftstan.errors import FencedError, StoreError
from ftstan.stores.file.remembered import NAME
from ftstan.stores.interface import StoredAt
from tests.filenode import FileNode, simulated

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
