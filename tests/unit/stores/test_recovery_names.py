"""What else may lie in a datastore: foreign directories, links, odd names.

And channels that are read side by side.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import RecoveryError, StoreError
from ftstan.base.reserved import REPAIRED
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.store import FileStore
from ftstan.stores.interface import ChannelLimits
from ftstan.wire.block import MsgBlock
from tests.filenode import FileNode, Owner, simulated
from tests.oracle.damage import archived_tree, write_tree
from tests.sim.disk import SimDisk
from tests.sim.filestore import SimOwner
from tests.unit.stores.test_slices import Node, contents, fresh

if TYPE_CHECKING:
    from pathlib import Path

    from ftstan.stores.interface import Recovered


def opened(path: Path, options: FileStoreOptions | None = None) -> tuple[FileStore, Recovered]:
    """A store on a real directory, recovered."""
    disk = LocalDisk()
    clock = ManualClock()
    root = disk.open_dir(str(path))
    store = FileStore(disk, root, SimOwner(disk, root, clock), clock, options, path=str(path))
    return store, store.recover()


def publish(store: FileStore, name: bytes, data: bytes = b"x") -> dict[bytes, StoreError]:
    channel = store.create_channel(name, ChannelLimits())
    block = MsgBlock()
    block.append(1, name, b"", data, 1)
    channel.append(block)
    return store.commit()


@pytest.fixture
def datastore(tmp_path: Path) -> Path:
    path = tmp_path / "DATASTORE"
    write_tree(archived_tree("v0.25.6/clean.tar.gz"), path)
    return path


def test_foreign_directories_do_not_become_channels(
    datastore: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("lost+found", ".snapshot", "a*b", "a.>", "trailing.", "a..b", "hollow"):
        (datastore / name).mkdir()
    store, found = opened(datastore)
    assert len(found.channels) == 11
    log = capfd.readouterr().err
    for name in ("lost+found", ".snapshot", "a*b", "a.>", "trailing.", "a..b", "hollow"):
        assert f'directory "{name}" in the datastore' in log
    assert not (datastore / "hollow" / "subs.dat").exists()
    store.abandon()


def test_a_directory_of_the_file_system_that_cannot_be_opened_stops_nobody(
    capfd: pytest.CaptureFixture[str],
) -> None:
    disk = fresh()
    disk.add_tree("/store", {"lost+found": None, "foo/subs.dat": b"\1\0\0\0"})

    def for_root_alone(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        if name == "open_dir_at" and "lost+found" in arguments:
            raise PermissionError(13, "Permission denied")

    disk.on_call = for_root_alone
    assert list(Node(disk).channels) == [b"foo"]
    assert "the file system's own: skipped" in capfd.readouterr().err


def test_a_channel_that_cannot_be_opened_stops_the_start() -> None:
    disk = fresh()
    disk.add_tree("/store", {"foo/subs.dat": b"\1\0\0\0"})

    def refuse(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        if name == "open_dir_at" and "foo" in arguments:
            raise PermissionError(13, "Permission denied")

    disk.on_call = refuse
    with pytest.raises(
        RecoveryError, match=r'^unable to recover channel "foo": Permission denied'
    ) as caught:
        Node(disk)
    assert "the user that the servers run as" in caught.value.hint


def test_a_linked_directory_is_neither_recovered_nor_written_through(
    datastore: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (datastore / "linked").symlink_to(outside)
    store, found = opened(datastore)
    assert b"linked" not in {c.name for c in found.channels}
    assert list(publish(store, b"linked")) == [b"linked"]
    assert os.listdir(outside) == []
    assert publish(store, b"another") == {}
    store.close()


def test_a_file_in_the_place_of_a_channel_refuses_the_publish(datastore: Path) -> None:
    (datastore / "taken").write_bytes(b"notes")
    store, _ = opened(datastore)
    assert list(publish(store, b"taken")) == [b"taken"]
    assert (datastore / "taken").read_bytes() == b"notes"
    store.close()


@pytest.mark.parametrize(
    "name", [b"odd name [x]", b"caf\xc3\xa9", b"\xff\xfe", b"back\\slash", b"what?", b"a\nb"]
)
def test_any_legal_name_is_a_directory_as_it_is(datastore: Path, name: bytes) -> None:
    store, _ = opened(datastore)
    assert publish(store, name) == {}
    store.close()
    assert os.fsencode(datastore) + b"/" + name in [
        e.path for e in os.scandir(os.fsencode(datastore))
    ]
    store, found = opened(datastore)
    (channel,) = [c for c in found.channels if c.name == name]
    assert (channel.first, channel.last) == (1, 1)
    store.abandon()


def test_names_that_differ_in_case_only_are_two_channels() -> None:
    node = Node(fresh())
    node.put(b"a", channel=b"foo")
    node.put(b"b", channel=b"Foo")
    after = node.successor()
    assert (contents(after, b"foo"), contents(after, b"Foo")) == ([(1, b"a")], [(1, b"b")])


@pytest.mark.parametrize("threads", [1, 3, 16])
def test_channels_that_are_read_side_by_side_are_the_same(tmp_path: Path, threads: int) -> None:
    path = tmp_path / "DATASTORE"
    write_tree(archived_tree("v0.25.6/killed.tar.gz"), path)
    store, _ = opened(path)
    for i in range(40):
        assert publish(store, b"many.%03d" % i, b"%d" % i) == {}
    store.abandon()
    store, found = opened(path, FileStoreOptions(parallel_recovery=threads))
    names = [c.name for c in found.channels]
    assert names == sorted(names)
    assert len(names) == 51
    for i, channel in enumerate(c for c in found.channels if c.name.startswith(b"many.")):
        block = channel.read(1, 1, 100)
        assert block is not None
        assert b"\x22%c%d" % (len(str(i)), i) in block.payload(0)
    store.close()


def test_what_storage_refuses_to_one_of_them_ends_the_start(tmp_path: Path) -> None:
    path = tmp_path / "DATASTORE"
    write_tree(archived_tree("v0.25.6/killed.tar.gz"), path)

    class Refusing(LocalDisk):
        def pread(self, fd: int, size: int, offset: int) -> bytes:
            if "durables/msgs.2.dat" in os.readlink(f"/proc/self/fd/{fd}"):
                raise OSError(5, "Input/output error")
            return super().pread(fd, size, offset)

    disk = Refusing()
    clock = ManualClock()
    root = disk.open_dir(str(path))
    store = FileStore(disk, root, SimOwner(disk, root, clock), clock)
    with pytest.raises(RecoveryError, match="Input/output error"):
        store.recover()
    store.abandon()


def test_timestamps_go_on_from_the_last_stored_one_when_the_clock_went_back() -> None:
    node = Node(fresh())
    node.clock.advance(100)
    node.put(b"a")
    stamped = node.channel().last_timestamp
    node.store.close()
    after = node.successor()
    assert after.channel().last_timestamp == stamped > 0
    killed = Node(node.disk.sibling(), Owner(9))
    assert killed.channel().last_timestamp == stamped


def test_a_start_removes_every_name_under_which_a_former_owner_fills_a_file() -> None:
    """Also of slices that an original numbered below zero, and of a repair's word about holes."""
    first = FileNode(simulated())
    first.put(b"a")
    env = first.store._env
    files = ("msgs.-5.dat", "msgs.-5.idx", "msgs.7.dat", "subs.dat", "confirmed.bin", REPAIRED)
    folder = first.disk.open_dir("/store/foo")
    for name in files:
        first.disk.close(first.disk.open(folder, env.temporary(name), os.O_RDWR | os.O_CREAT))
    second = first.successor()
    assert isinstance(second.disk, SimDisk)
    assert [name for name in second.disk.tree("/store/foo") if name.startswith("tmp.")] == []
