"""On NFS a file that loses its name while it is open keeps another one: nothing of ours stays
behind by it.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import FencedError
from ftstan.broker.broker import BrokerOptions
from ftstan.ft.epoch_loss import find_epochs
from ftstan.ft.survey import survey_store
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.tools.reading import channel_names
from ftstan.stores.file.tools.source import Source
from ftstan.stores.file.tools.verifying import check_channel, check_root
from ftstan.stores.interface import ChannelLimits, ClientInfo, SubState
from ftstan.wire import messages
from tests.compat.driver import SUBJECTS, Driver, PubAck, sequences
from tests.filenode import FileNode, Owner
from tests.sim.disk import CrashMode, SimDisk
from tests.sim.filestore import open_file_store
from tests.sim.ft.hosts import Client, ClientDisk
from tests.sim.volume import DirNode
from tests.sim.volume import FileNode as Node

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL = FileStoreOptions(slice_max_msgs=2)
LEFT = ".nfs0000000000a1b2c300000001"


class Mount:
    """A volume that hosts reach over the network; ``process`` is one more process on a host."""

    def __init__(self) -> None:
        self.met: Counter[str] = Counter()
        self.server = SimDisk(met=self.met)
        self.server.make_dirs("/store")
        self.hosts = [Client(Random(i)) for i in range(2)]

    def process(self, host: int = 0) -> ClientDisk:
        return ClientDisk(self.server.volume, self.met, self.hosts[host])

    def left(self) -> list[str]:
        """Names that clients have given, at any depth."""
        return [name for name in self.server.tree("/store") if ".nfs" in name]

    def lose_host(self, process: ClientDisk) -> None:
        process.client.dead = True
        process.kill()

    def links(self, path: str) -> dict[str, int]:
        """How many names each file of a directory has."""
        folder: object = self.server.volume.root
        for part in path.strip("/").split("/"):
            assert isinstance(folder, DirNode)
            folder = folder.entries[part]
        assert isinstance(folder, DirNode)
        return {name: node.links for name, node in folder.entries.items() if isinstance(node, Node)}


def owner_on(disk: ClientDisk, epoch: int = 1, options: FileStoreOptions = SMALL) -> FileNode:
    return FileNode(disk, owner=Owner(epoch), options=options, asking=disk.direct())


# ---- the simulation
# --------------------------------------------------------------------------------------------------


def made(disk: SimDisk, name: str) -> tuple[int, int]:
    root = disk.open_dir("/store")
    fd = disk.open(root, name, os.O_RDWR | os.O_CREAT)
    disk.pwrite(fd, b"bytes", 0)
    disk.fsync(fd)
    return root, fd


def test_a_name_that_goes_while_its_file_is_open_becomes_another_until_the_last_close() -> None:
    mount = Mount()
    one = mount.process()
    two = mount.process()
    root, fd = made(one, "file")
    again = two.open(two.open_dir("/store"), "file", os.O_RDONLY)
    one.unlink(root, "file")
    (left,) = mount.left()
    with pytest.raises(OSError, match="busy") as caught:
        one.unlink(root, left)
    assert caught.value.errno == errno.EBUSY
    one.close(fd)
    assert mount.left() == [left]
    assert two.pread(again, 9, 0) == b"bytes"
    two.close(again)
    assert mount.left() == []
    assert mount.met["silly renames"] == 1


def test_a_host_that_dies_leaves_the_name_for_ever_and_another_host_can_remove_it() -> None:
    mount = Mount()
    disk = mount.process()
    root, _ = made(disk, "file")
    disk.unlink(root, "file")
    mount.lose_host(disk)
    (left,) = mount.left()
    other = mount.process(1)
    other.unlink(other.open_dir("/store"), left)
    assert mount.left() == []


def test_a_process_that_dies_closes_its_files() -> None:
    mount = Mount()
    disk = mount.process()
    root, _ = made(disk, "file")
    disk.unlink(root, "file")
    disk.kill()
    assert mount.left() == []


def test_a_rename_over_an_open_file_gives_the_old_one_another_name() -> None:
    mount = Mount()
    disk = mount.process()
    root, fd = made(disk, "old")
    _, new = made(disk, "new")
    disk.rename(root, "new", "old")
    assert len(mount.left()) == 1
    disk.close(fd)
    assert mount.left() == []
    # The name has moved with the file that was renamed.
    disk.unlink(root, "old")
    assert len(mount.left()) == 1
    disk.close(new)
    assert mount.left() == []


def test_only_the_name_by_which_it_was_opened_counts() -> None:
    mount = Mount()
    disk = mount.process()
    root, fd = made(disk, "one")
    disk.link(root, "one", "two")
    disk.unlink(root, "two")
    assert mount.left() == []
    other = mount.process(1)
    other.unlink(other.open_dir("/store"), "one")
    assert mount.left() == []
    disk.close(fd)


# ---- nothing of ours stays behind
# ------------------------------------------------------------------------------------


def test_slices_that_were_made_have_one_name_each_also_after_their_host_died() -> None:
    mount = Mount()
    disk = mount.process()
    node = owner_on(disk)
    for n in range(9):
        assert node.put(b"%d" % n) == {}
        assert mount.left() == []
    assert node.sequences() == list(range(1, 10))
    mount.lose_host(disk)
    links = mount.links("/store/foo")
    assert sum(name.endswith(".dat") for name in links) == 5
    assert set(links.values()) == {1}
    after = owner_on(mount.process(1), 2)
    assert after.sequences() == list(range(1, 10))


def test_no_file_loses_its_name_while_it_is_open_whatever_a_store_does() -> None:
    mount = Mount()
    options = FileStoreOptions(slice_max_msgs=4, compact_min_size=0, compact_interval=0)
    for epoch in range(1, 6):
        node = owner_on(mount.process(epoch % 2), epoch, options)
        node.store.add_client(ClientInfo(b"c%d" % epoch, b"hb"))
        channel = node.channel()
        channel.add_sub(
            SubState(channel.next_sub_id, b"me", durable_name=b"d%d" % epoch, is_durable=True)
        )
        for n in range(10):
            assert node.put(b"%d %d" % (epoch, n)) == {}
            node.sent(1, channel.last)
            node.acked(1, channel.last)
            node.sequences()
            node.tick()
        node.store.delete_client(b"c%d" % epoch)
        assert node.store.commit() == {}
        channel.purge(channel.last - 5)
        node.tick()
        node.sequences()
        node.put(b"x", channel=b"bar")
        node.sequences(b"bar")
        node.store.delete_channel(b"bar")
        node.store.close()
        node.disk.kill()  # type: ignore[attr-defined]
    assert mount.met["silly renames"] == 0
    assert mount.left() == []


def test_an_index_is_durable_before_it_is_closed() -> None:
    mount = Mount()
    disk = mount.process()
    node = owner_on(disk, options=FileStoreOptions())
    disk.fail_next("close", errno.EIO)
    assert node.put(b"a") == {}
    assert node.put(b"b") == {}
    node.tick()
    mount.lose_host(disk)
    found = FileNode(mount.server.crash(mode=CrashMode.LOST), owner=Owner(2))
    assert found.sequences() == [1, 2]


@pytest.mark.parametrize("call", ["unlink", "link", "close"])
def test_storage_that_fails_between_the_two_names_costs_a_batch_at_most(call: str) -> None:
    mount = Mount()
    disk = mount.process()
    node = owner_on(disk)
    node.put(b"a", b"b")

    def refuse(_call: int, name: str, _arguments: tuple[object, ...]) -> None:
        if name == call:
            raise OSError(errno.EIO, "refused")

    disk.on_call = refuse
    failed = node.put(b"lost")
    assert (failed == {}) == (call == "close")
    disk.on_call = None
    node.clock.advance(10)
    assert node.put(b"c") == {}
    there = node.sequences()
    assert there == list(range(1, 4 + (call == "close")))
    mount.lose_host(disk)
    after = owner_on(mount.process(1), 2)
    assert after.sequences() == there
    after.tick()
    assert set(mount.links("/store/foo").values()) == {1}
    assert mount.left() == []
    assert not [name for name in mount.links("/store/foo") if name.startswith("tmp.")]


def test_a_slice_that_cannot_be_opened_again_is_ended_and_the_next_batch_opens_another() -> None:
    mount = Mount()
    disk = mount.process()
    node = owner_on(disk, options=FileStoreOptions())
    node.put(b"a")
    disk.fail_next("open", errno.EIO)
    assert b"foo" in node.put(b"lost")
    node.clock.advance(10)
    assert node.put(b"b") == {}
    assert node.sequences() == [1, 2]
    after = owner_on(mount.process(1), 2)
    assert after.sequences() == [1, 2]


# ---- what others left
# ------------------------------------------------------------------------------------------------


def test_what_clients_left_is_no_channel_no_slice_and_no_temporary_and_a_start_removes_it() -> None:
    mount = Mount()
    node = owner_on(mount.process())
    node.put(b"a", b"b", b"c")
    node.store.close()
    root = mount.server.open_dir("/store")
    known = look(mount.server, root)
    mount.server.add_tree("/store", {LEFT: b"x", f"foo/{LEFT}": b"\1\0\0\0", ".nfs00000001": b""})
    assert look(mount.server, root) == known
    after = owner_on(mount.process(1), 2)
    assert list(after.channels) == [b"foo"]
    assert after.sequences() == [1, 2, 3]
    assert mount.left() == []


def look(disk: SimDisk, root: int) -> tuple[object, ...]:
    """What everybody who lists directories makes of a datastore."""
    source = Source(disk, root, records.Crc(0xEDB88320), 1)
    found = [*check_root(source), *check_channel(source, b"foo")]
    return survey_store(disk, root), find_epochs(disk, root), channel_names(source), found


@pytest.mark.parametrize("code", [errno.EBUSY, errno.ENOENT, errno.ESTALE])
def test_what_cannot_be_removed_now_stays_and_nobody_minds(code: int) -> None:
    mount = Mount()
    node = owner_on(mount.process())
    node.put(b"a")
    mount.server.add_tree("/store", {LEFT: b"x", f"foo/{LEFT}": b"x"})
    disk = mount.process(1)

    def refuse(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        if name == "unlink" and arguments[-1] == LEFT:
            raise OSError(code, os.strerror(code))

    disk.on_call = refuse
    after = owner_on(disk, 2)
    assert after.put(b"b") == {}
    assert after.sequences() == [1, 2]
    after.store.close()
    assert len(mount.left()) == 2


def test_a_start_that_is_not_ours_any_more_removes_nothing() -> None:
    mount = Mount()
    mount.server.add_tree("/store", {LEFT: b"x"})
    disk = mount.process()
    owner = Owner(fenced=True)
    with pytest.raises(FencedError):
        FileNode(disk, owner=owner, asking=disk.direct())
    assert mount.left() == [LEFT]


# ---- a channel that cannot be removed
# --------------------------------------------------------------------------------


def doomed_channel(mount: Mount) -> tuple[ClientDisk, int]:
    """``foo`` is being deleted while a program of its host reads a slice of it; the owner died.

    ``bar`` is alive.
    """
    clock = ManualClock()
    disk = mount.process()
    driver = Driver(
        open_file_store(disk, clock, SMALL, asking=disk.direct()), BrokerOptions(), clock
    )
    driver.connect()
    driver.publish(b"1", b"2", b"3")
    driver.publish(b"other", channel=b"bar")
    reader = mount.process()
    fd = reader.open(reader.open_dir("/store/foo"), "msgs.1.dat", os.O_RDONLY)
    driver.store.delete_channel(b"foo")
    disk.kill()
    assert [name.partition("/")[0] for name in mount.left()] == ["foo"]
    return reader, fd


def test_a_deleted_channel_that_cannot_be_removed_at_a_start_refuses_itself_and_nothing_else(
    capfd: pytest.CaptureFixture[str],
) -> None:
    mount = Mount()
    clock = ManualClock()
    reader, fd = doomed_channel(mount)
    capfd.readouterr()
    disk = mount.process()
    driver = Driver(
        open_file_store(disk, clock, SMALL, asking=disk.direct()),
        BrokerOptions(),
        clock,
        {b"hb.me"},
    )
    said = capfd.readouterr().err
    assert said.count('channel "foo" cannot be removed') == 1
    assert {channel.name for channel in driver.broker.channels.values()} == {b"bar"}
    assert driver.publish(b"x")[0].error == b"stan: channel is being deleted"
    request = messages.SubscriptionRequest(
        client_id=b"me", subject=b"foo", inbox=b"in", max_in_flight=1, ack_wait_in_secs=30
    )
    answer = driver.call(SUBJECTS.subscribe, messages.encode(request)) or b""
    assert (
        messages.parse(messages.SubscriptionResponse, answer).error
        == b"stan: channel is being deleted"
    )
    assert driver.publish(b"more", channel=b"bar") == [PubAck(b"more")]
    for _ in range(3):
        clock.advance(1.1)
        driver.store.tick(clock.wall_ns())
    assert "cannot be removed" not in capfd.readouterr().err
    reader.close(fd)
    clock.advance(1.1)
    driver.store.tick(clock.wall_ns())
    assert not [
        name for name in mount.server.tree("/store") if name.startswith(("foo", "ft.deleting"))
    ]
    assert driver.publish(b"new") == [PubAck(b"new")]
    driver.subscribe()
    assert sequences(driver.out) == [1]


def test_a_channel_that_one_start_could_not_remove_is_removed_by_the_next() -> None:
    mount = Mount()
    clock = ManualClock()
    reader, fd = doomed_channel(mount)
    for _ in range(2):
        disk = mount.process()
        store = open_file_store(disk, clock, SMALL, asking=disk.direct())
        assert [channel.name for channel in store.recover().channels] == [b"bar"]
        store.close()
        disk.kill()
    reader.close(fd)
    disk = mount.process(1)
    store = open_file_store(disk, clock, SMALL, asking=disk.direct())
    assert [channel.name for channel in store.recover().channels] == [b"bar"]
    assert not [
        name for name in mount.server.tree("/store") if name.startswith(("foo", "ft.deleting"))
    ]


def refusing(code: int, name: str) -> Callable[[int, str, tuple[object, ...]], None]:
    def refuse(_call: int, call: str, _arguments: tuple[object, ...]) -> None:
        if call == name:
            raise OSError(code, os.strerror(code))

    return refuse


@pytest.mark.parametrize("code", [errno.ENOTEMPTY, errno.EBUSY, errno.EIO])
def test_on_any_storage_a_directory_that_stays_refuses_its_channel_only(code: int) -> None:
    disk = SimDisk()
    clock = ManualClock()
    disk.make_dirs("/store")
    store = open_file_store(disk, clock)
    driver = Driver(store, BrokerOptions(), clock)
    driver.connect()
    driver.publish(b"1")
    driver.publish(b"2", channel=b"bar")
    disk.on_call = refusing(code, "rmdir")
    store.delete_channel(b"foo")
    disk = disk.crash(process_only=True)
    disk.on_call = refusing(code, "rmdir")
    store = open_file_store(disk, clock)
    assert [channel.name for channel in store.recover().channels] == [b"bar"]
    disk.on_call = None
    assert store.create_channel(b"foo", ChannelLimits()).last == 0
