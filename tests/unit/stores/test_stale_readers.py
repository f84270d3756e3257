"""A file that another host removes while it is open here: many file servers then answer ESTALE, and
a client that lost its open file in a restart of the server answers EIO.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import FencedError, StoreError
from ftstan.stores.file.channel import FileChannel
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.interface import ChannelLimits
from tests.filenode import NO_LIMITS, FileNode, Owner
from tests.sim.disk import SimDisk

if TYPE_CHECKING:
    from ftstan.base.disk import FileStat
    from tests.sim.volume import Volume

OPTIONS = FileStoreOptions(slice_max_msgs=2)
FEW = ChannelLimits(max_msgs=4, max_bytes=0)


class Forgetful(SimDisk):
    """A process whose file server keeps no file without a name."""

    code = errno.ESTALE

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self._check(fd)
        return super().pread(fd, size, offset)

    def fstat(self, fd: int) -> FileStat:
        self._check(fd)
        return super().fstat(fd)

    def _check(self, fd: int) -> None:
        if not self._get(fd).node.links:
            raise OSError(self.code, os.strerror(self.code))


def removed_while_it_is_read(code: int) -> FileNode:
    """An owner that has the oldest slice open, with larger limits than the former one.

    That one had retired the slice, and removes it late.
    """
    disk = SimDisk()
    disk.make_dirs("/store")
    first = FileNode(disk, options=OPTIONS, limits=FEW)
    for _ in range(3):
        assert first.put(b"x", b"y") == {}
    second: list[FileNode] = []

    def take_over(_number: int, call: str, _args: tuple[object, ...]) -> None:
        if call == "unlink" and not second:
            first.owner.fenced = True
            second.append(opened(disk.volume, code, first))

    disk.on_call = take_over
    first.tick()
    with pytest.raises(FencedError):
        first.store.confirm()
    assert "msgs.1.dat" not in disk.tree("/store/foo")
    return second[0]


def opened(volume: Volume, code: int, first: FileNode) -> FileNode:
    disk = Forgetful(volume)
    disk.code = code
    node = FileNode(disk, owner=Owner(2), options=OPTIONS, limits=NO_LIMITS, clock=first.clock)
    assert node.sequences() == [1, 2, 3, 4, 5, 6]
    return node


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO], ids=["stale", "lost"])
def test_a_reader_goes_on_behind_a_slice_that_a_former_owner_removed_while_it_was_open(
    code: int,
) -> None:
    node = removed_while_it_is_read(code)
    block = node.channels[b"foo"].read(1, 10, 1 << 20)
    assert block is not None
    assert block.first == 3
    assert node.sequences() == [3, 4, 5, 6]


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO], ids=["stale", "lost"])
def test_limits_go_on_behind_a_slice_that_a_former_owner_removed_while_it_was_open(
    code: int,
) -> None:
    node = removed_while_it_is_read(code)
    channel = node.channels[b"foo"]
    assert isinstance(channel, FileChannel)
    channel.set_limits(ChannelLimits(max_msgs=3, max_bytes=0))
    assert node.put(b"z") == {}
    node.tick()
    assert node.sequences() == [5, 6, 7]


def test_storage_that_fails_a_read_is_told() -> None:
    node = removed_while_it_is_read(errno.EIO)
    disk = node.disk
    assert isinstance(disk, SimDisk)

    def fail(_number: int, call: str, _args: tuple[object, ...]) -> None:
        if call == "pread":
            raise OSError(errno.EIO, "it fails")

    disk.on_call = fail
    with pytest.raises(StoreError, match="reading sequence 3"):
        node.channels[b"foo"].read(3, 10, 1 << 20)
