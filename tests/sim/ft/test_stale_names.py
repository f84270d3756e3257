"""Names that a host answers from memory: what decides what is cut, kept or believed is asked from
storage.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.state import checkpoint
from ftstan.wire.block import MsgBlock
from tests.filenode import FileNode as Process
from tests.filenode import Owner, simulated
from tests.sim.disk import Killed, SimDisk
from tests.sim.filestore import open_file_store
from tests.sim.ft.hosts import Client, ClientDisk
from tests.sim.history import STORE
from tests.sim.model import UNLIMITED

if TYPE_CHECKING:
    from ftstan.stores.file.store import FileStore
    from ftstan.stores.interface import ChannelLimits, ChannelStore

pytestmark = pytest.mark.usefixtures("quiet")

SMALL = FileStoreOptions(slice_max_msgs=2)
FOO = f"{STORE}/foo"


class Hosts:
    """Two hosts with memories; the second one answers from its own whenever a client may."""

    def __init__(self) -> None:
        self.server = SimDisk()
        self.server.make_dirs(STORE)
        self.clock = ManualClock()
        self.met: Counter[str] = Counter()
        self.disks = [ClientDisk(self.server.volume, self.met, Client(Random(i))) for i in range(2)]
        self.disks[1].client.trusts_names = 1.0

    def open(
        self, host: int, options: FileStoreOptions = SMALL, limits: ChannelLimits = UNLIMITED
    ) -> FileStore:
        disk = self.disks[host]
        return open_file_store(disk, self.clock, options, limits=limits, asking=disk.direct())

    def publish(self, store: FileStore, channel: ChannelStore, count: int) -> None:
        for _ in range(count):
            block = MsgBlock()
            block.append(channel.last + 1, b"foo", b"", b"x", self.clock.wall_ns())
            channel.append(block)
            assert store.commit() == {}

    def grown(self, count: int, options: FileStoreOptions = SMALL) -> None:
        """The first host stores messages and is killed."""
        store = self.open(0, options)
        store.recover()
        self.publish(store, store.create_channel(b"foo", UNLIMITED), count)
        for node in list(self.disks[0].client.views):
            self.disks[0].client.flush(self.server.volume, node)
        self.disks[0].kill()

    def late(self, name: str, data: bytes) -> None:
        """Bytes of the first host, which is gone, arrive behind the end of a file."""
        folder = self.server.open_dir(FOO)
        fd = self.server.open(folder, name, os.O_RDWR)
        self.server.pwrite(fd, data, self.server.fstat(fd).size)


def test_what_arrived_since_the_start_is_cut_by_a_clean_stop() -> None:
    hosts = Hosts()
    hosts.grown(5)
    store = hosts.open(1)
    store.recover()
    log = store._channels[b"foo"].log
    # The newest one, of a single message, is made anew by the stop.
    ends = {
        s.number: (s.end, records.VERSION_SIZE + s.entries * records.INDEX_SIZE)
        for s in log.slices[:-1]
    }
    for number in (1, 2):
        hosts.late(f"msgs.{number}.dat", b"late")
        hosts.late(f"msgs.{number}.idx", b"late")
    store.close()
    tree = hosts.server.tree(FOO)
    found = {
        n: tuple(len(tree[f"msgs.{n}.{kind}"] or b"") for kind in ("dat", "idx")) for n in ends
    }
    assert found == ends


def test_what_arrived_since_the_start_is_not_in_what_the_archive_script_gets() -> None:
    hosts = Hosts()
    hosts.grown(5)
    before = hosts.server.tree(FOO)
    limits = replace(UNLIMITED, max_msgs=2)
    store = hosts.open(1, replace(SMALL, slice_archive_script="none-there"), limits)
    store.recover()
    for kind in ("dat", "idx"):
        hosts.late(f"msgs.1.{kind}", b"late")
    hosts.clock.advance(1)
    store.tick(hosts.clock.wall_ns())
    tree = hosts.server.tree(FOO)
    for kind in ("dat", "idx"):
        assert tree[f"msgs.1.{kind}.bak"] == before[f"msgs.1.{kind}"]
    store.abandon()


def test_a_slice_that_a_former_owner_removes_late_is_noticed_despite_a_remembered_name() -> None:
    hosts = Hosts()
    hosts.grown(5)
    store = hosts.open(1)
    (channel,) = store.recover().channels
    # The directory is open from here on.
    assert channel.read(5, 1, 1000) is not None
    folder = hosts.server.open_dir(FOO)
    for kind in ("idx", "dat"):
        hosts.disks[1].stat(hosts.disks[1].open_dir(FOO), f"msgs.1.{kind}")
        hosts.server.unlink(folder, f"msgs.1.{kind}")
    store._env.files.forget(channel.name)
    block = channel.read(1, 10, 1000)
    assert block is not None
    assert (block.first, channel.first) == (3, 3)
    store.abandon()


def test_a_host_that_woke_up_learns_the_state_of_a_file_before_it_believes_a_checkpoint() -> None:
    hosts = Hosts()
    first = hosts.open(0)
    first.recover()
    hosts.publish(first, first.create_channel(b"foo", UNLIMITED), 3)
    first.close()
    disk = hosts.disks[1]
    folder = disk.open_dir(FOO)
    # It has met every file, and does not know that its delegations were taken away.
    for name, _ in disk.listdir(folder):
        disk.close(disk.open(folder, name, os.O_RDONLY))
    disk.client.freeze()
    # Not longer, and changed: somebody has cut a file and written to it again.
    there = hosts.server.open_dir(FOO)
    for _ in range(32):
        fd = hosts.server.open(there, "msgs.1.dat", os.O_RDWR)
        hosts.server.pwrite(fd, b"y", hosts.server.fstat(fd).size - 1)
        hosts.server.close(fd)
    env = hosts.open(1)._env
    plain = open_file_store(hosts.server, hosts.clock)._env
    assert checkpoint.files_of(env, folder, disk.listdir(folder)) == checkpoint.files_of(
        plain, there, hosts.server.listdir(there)
    )


def test_a_file_that_is_shorter_than_this_host_remembers_has_the_size_that_storage_says() -> None:
    hosts = Hosts()
    hosts.grown(3)
    disk = hosts.disks[1]
    env = hosts.open(1)._env
    folder = disk.open_dir(FOO)
    disk.close(disk.open(folder, "msgs.1.dat", os.O_RDONLY))
    disk.client.freeze()
    fd = hosts.server.open(hosts.server.open_dir(FOO), "msgs.1.dat", os.O_RDWR)
    hosts.server.ftruncate(fd, 10)
    assert env.size_of(folder, "msgs.1.dat") == 10
    hosts.server.pwrite(fd, b"x" * 5000, 10)
    assert env.size_of(folder, "msgs.1.dat") == 5010


def test_a_late_rename_of_a_clean_stop_finds_no_source_while_a_successor_fills_the_file() -> None:
    process = Process(simulated(), owner=Owner(1))
    process.put(b"a", b"b")
    assert isinstance(process.disk, SimDisk)
    former = process.successor(process.disk.crash(process_only=True))
    assert isinstance(former.disk, SimDisk)
    paused: list[tuple[object, ...]] = []

    def pause(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        if name == "rename" and arguments[-1] == "msgs.1.idx":
            paused.append(arguments)
            raise Killed

    former.disk.on_call = pause
    with pytest.raises(Killed):
        former.store.close()
    after = former.successor(former.disk.sibling())
    late = former.disk.sibling()
    source, name = (str(word) for word in paused[0][1:])
    tried: list[bool] = []

    def fill(_call: int, call: str, _arguments: tuple[object, ...]) -> None:
        tree = late.tree("/store/foo")
        if (
            call == "pwrite"
            and not tried
            and any(n.startswith("tmp.") and n.endswith(".idx") for n in tree)
        ):
            tried.append(True)
            with pytest.raises(FileNotFoundError):
                late.rename(late.open_dir("/store/foo"), source, name)

    assert isinstance(after.disk, SimDisk)
    after.disk.on_call = fill
    after.store.close()
    assert tried
    assert after.successor().store._channels[b"foo"].untouched
