"""A former owner's late ``rmdir`` takes the directory of a channel while nothing is in it: nothing
is lost by that.
"""

from __future__ import annotations

import errno
import os
import random
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import FencedError, RecoveryError
from ftstan.stores.interface import StoredSub, SubState
from tests.filenode import FileNode, simulated
from tests.sim.disk import CrashMode, SimDisk

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.base.errors import StoreError

    Commit = Callable[[FileNode], dict[bytes, StoreError]]

STATE = SubState(1, b"me", durable_name=b"d", is_durable=True)


def rmdir(disk: SimDisk) -> bool:
    """The former owner's call on the directory of ``foo``; whether it took it."""
    late = disk.sibling()
    try:
        late.rmdir(late.open_dir("/store"), "foo")
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.ENOTEMPTY}:
            raise
        return False
    return True


class Late:
    """The ``rmdir``, in front of one of a disk's next calls: number ``at``, counted from 1."""

    def __init__(self, disk: SimDisk, at: int) -> None:
        self.disk = disk
        self.at = at
        self.came = self.took = False
        disk.on_call = self._call

    def _call(self, *_: object) -> None:
        self.at -= 1
        if not self.at:
            self.came = True
            self.took = rmdir(self.disk)


def first_temporary(call: str, args: tuple[object, ...]) -> bool:
    return call == "open" and str(args[1]).startswith("tmp.")


def publish(node: FileNode) -> dict[bytes, StoreError]:
    return node.put(b"acked")


def subscribe(node: FileNode) -> dict[bytes, StoreError]:
    node.channel().add_sub(STATE)
    return node.store.commit()


def both(node: FileNode) -> dict[bytes, StoreError]:
    node.stage(b"acked")
    return subscribe(node)


@pytest.mark.parametrize("commit", [publish, subscribe, both])
@pytest.mark.parametrize("is_there", [False, True])
def test_in_front_of_whichever_call_it_comes_the_commit_succeeds_and_survives_a_power_cut(
    commit: Commit, *, is_there: bool
) -> None:
    took = []
    for at in range(1, 1000):
        disk = simulated()
        if is_there:
            # A former owner made it, and nothing in it.
            disk.make_dirs("/store/foo")
        node = FileNode(disk)
        late = Late(disk, at)
        assert commit(node) == {}
        if not late.came:
            break
        took.append(late.took)
        disk.on_call = None
        assert node.put(b"acked, too") == {}
        node.tick()
        for mode in CrashMode:
            after = node.successor(disk.crash(random.Random(at), mode))
            assert after.sequences() == ([1] if commit is subscribe else [1, 2])
            assert len(after.channels[b"foo"].recovered_subs()) == (commit is not publish)
            assert after.store.quarantined == []
    # mkdir of a new one comes first; then the sync of the root, the opening and the temporary.
    assert took.count(True) == 3 + is_there
    assert took.count(False) > 3


def test_storage_that_calls_the_directory_stale_is_understood_too() -> None:
    """What a network file system says of a directory that was removed by another host."""
    disk = simulated()
    node = FileNode(disk)

    def stale(_number: int, call: str, args: tuple[object, ...]) -> None:
        if first_temporary(call, args):
            disk.on_call = None
            assert rmdir(disk)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    disk.on_call = stale
    assert publish(node) == {}
    assert node.successor().sequences() == [1]


def test_an_owner_that_is_fenced_does_not_make_the_directory_again() -> None:
    disk = simulated()
    node = FileNode(disk)
    made = []

    def fence(_number: int, call: str, args: tuple[object, ...]) -> None:
        if call == "mkdir":
            made.append(args)
        if first_temporary(call, args):
            # The successor has deleted the channel.
            node.owner.fenced = True
            rmdir(disk)

    disk.on_call = fence
    with pytest.raises(FencedError):
        node.put(b"x")
    assert len(made) == 1
    assert "foo" not in disk.tree("/store")


def emptied(node: FileNode, commit: Commit) -> None:
    """A first commit that is refused for want of space: its directory stays, and nothing is in
    it.
    """
    disk = node.disk
    assert isinstance(disk, SimDisk)
    disk.fail_next("pwrite", errno.ENOSPC)
    assert commit(node).keys() == {b"foo"}
    assert {name for name in disk.tree("/store") if name.startswith("foo")} == {"foo"}


def no_subs() -> list[StoredSub]:
    return []


@pytest.mark.parametrize("parked", [False, True])
def test_a_subs_dat_that_was_refused_and_is_due_again_does_not_end_the_process(
    *, parked: bool
) -> None:
    node = FileNode(simulated())
    node.channel().snapshot = no_subs
    emptied(node, subscribe)
    if parked:
        node.store._env.files.trim(1 << 30)
    assert isinstance(node.disk, SimDisk)
    assert rmdir(node.disk)
    node.tick()
    node.tick()
    assert publish(node) == {}
    assert node.successor().sequences() == [1]


def test_a_slice_that_was_visible_and_never_acked_is_forgotten_with_its_directory() -> None:
    node = FileNode(simulated())
    disk = node.disk
    assert isinstance(disk, SimDisk)
    refused: list[str] = []

    def refuse(_number: int, call: str, args: tuple[object, ...]) -> None:
        # The slice has its name, and that cannot be synced.
        if call == "link":
            refused.append("")
        elif call == "fsync" and len(refused) == 1:
            refused.append("")
            raise OSError(errno.EIO, "storage")

    disk.on_call = refuse
    assert node.put(b"never acked") != {}
    assert [name for name in disk.tree("/store") if name.endswith(".dat")] == ["foo/msgs.1.dat"]

    def refuse_last(_number: int, call: str, args: tuple[object, ...]) -> None:
        if call == "unlink" and args[-1] == "msgs.1.dat":
            disk.on_call = None
            disk.fail_next("fsync", errno.EIO)

    # It goes in the next second, but the sync behind that is refused: it counts as one that may
    # still be there.
    disk.on_call = refuse_last
    node.tick()
    assert rmdir(disk)
    slog = node.store._channels[b"foo"].log
    assert slog.dead == {1}
    assert publish(node) == {}
    assert slog.dead == set()
    node.tick()
    assert node.put(b"acked, too") == {}
    # A name is not used twice.
    assert "foo/msgs.1.dat" not in disk.tree("/store")
    assert node.successor().sequences() == [1, 2]


@pytest.mark.parametrize("commit", [publish, subscribe])
@pytest.mark.parametrize("parked", [False, True])
def test_a_clean_stop_ends_well_although_the_directory_has_gone(
    commit: Commit, *, parked: bool
) -> None:
    node = FileNode(simulated())
    node.channel().snapshot = no_subs
    emptied(node, commit)
    if parked:
        node.store._env.files.trim(1 << 30)
    assert isinstance(node.disk, SimDisk)
    assert rmdir(node.disk)
    node.store.close()
    after = node.successor()
    assert after.channels == {}
    assert publish(after) == {}


@pytest.mark.parametrize("commit", [publish, subscribe])
def test_a_directory_that_went_with_files_in_it_is_not_made_again(commit: Commit) -> None:
    """An operator's ``rm -r``: what was acked is gone, and a channel that looks well would hide
    it.
    """
    disk = simulated()
    node = FileNode(disk)
    assert commit(node) == {}
    root = disk.sibling()
    fd = root.open_dir("/store")
    below = root.open_dir_at(fd, "foo")
    for name, _ in root.listdir(below):
        root.unlink(below, name)
    root.rmdir(fd, "foo")
    node.store._env.files.trim(1 << 30)
    failed = node.put(b"x")
    assert "No such file or directory" in failed[b"foo"].text
    assert "foo" not in disk.tree("/store")


def test_a_start_goes_on_when_it_comes_between_the_listing_and_the_opening() -> None:
    disk = simulated()
    other = FileNode(disk)
    other.put(b"x", channel=b"bar")
    disk.make_dirs("/store/foo")
    later = disk.sibling()

    def at_opening(_number: int, call: str, args: tuple[object, ...]) -> None:
        if call == "open_dir_at" and args[1] == "foo":
            later.on_call = None
            assert rmdir(disk)

    later.on_call = at_opening
    after = other.successor(later)
    assert list(after.channels) == [b"bar"]
    assert publish(after) == {}


def test_a_start_does_not_pass_over_a_channel_that_only_this_hosts_memory_does_not_know() -> None:
    disk = simulated()
    node = FileNode(disk)
    assert publish(node) == {}
    later = disk.sibling()

    def remembered(_number: int, call: str, args: tuple[object, ...]) -> None:
        if call == "open_dir_at" and args[1] == "foo":
            raise FileNotFoundError(errno.ENOENT, "no such name, as this host remembers")

    later.on_call = remembered
    with pytest.raises(RecoveryError):
        node.successor(later)
