"""A state file that somebody put another file in the place of is written again from memory, and
nothing is lost.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import StoppedError
from ftstan.config.limits import Limits
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.store import FileStore
from ftstan.stores.interface import ClientInfo, ServerInfo, StoredSub, SubState
from tests.filenode import NO_LIMITS, FileNode, Owner, simulated

if TYPE_CHECKING:
    from tests.sim.disk import SimDisk

INFO = ServerInfo("cluster", *("subject" for _ in range(7)))
STATE = SubState(1, b"me", inbox=b"inbox", ack_inbox=b"acks", durable_name=b"d", is_durable=True)
EMPTY = b"\x01\x00\x00\x00"
FILES = ["server.dat", "clients.dat", "foo/subs.dat"]


def served() -> FileNode:
    node = FileNode(simulated())
    node.store.set_server_info(INFO)
    node.store.add_client(ClientInfo(b"me", b"hb"))
    # What the broker knows, kept as it does.
    known = [StoredSub(STATE)]
    node.channel().add_sub(STATE)
    node.channel().snapshot = lambda: known
    assert node.put(b"one") == {}
    return node


def disk_of(node: FileNode) -> SimDisk:
    disk = node.disk
    assert hasattr(disk, "volume")
    return disk  # type: ignore[return-value]


def displace(node: FileNode, name: str, *, gone: bool = False) -> None:
    """What a former owner's late rename, or its late unlink, does."""
    disk = disk_of(node).sibling()
    folder, _, last = name.rpartition("/")
    dirfd = disk.open_dir(f"/store/{folder}".rstrip("/"))
    if gone:
        disk.unlink(dirfd, last)
    else:
        disk.add_tree("/store", {f"{folder}/other".lstrip("/"): EMPTY})
        disk.rename(dirfd, "other", last)


def look(node: FileNode) -> None:
    """What the watch does, on its own thread and with its own descriptors."""
    disk = disk_of(node).sibling()
    node.store.places.look(disk, disk.open_dir("/store"))


def found_after_a_kill(node: FileNode) -> tuple[ServerInfo | None, list[bytes], list[SubState]]:
    successor = node.successor(disk_of(node).crash(process_only=True))
    (channel,) = successor.recovered.channels
    clients = [c.client_id for c in successor.recovered.clients]
    return successor.recovered.info, clients, [s.state for s in channel.recovered_subs()]


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_a_displaced_state_file_is_back_after_a_look_and_a_tick(name: str, *, gone: bool) -> None:
    node = served()
    displace(node, name, gone=gone)
    look(node)
    node.tick()
    assert found_after_a_kill(node) == (INFO, [b"me"], [STATE])


@pytest.mark.parametrize("name", FILES)
def test_what_is_stored_after_that_is_in_the_file_that_has_the_name(name: str) -> None:
    node = served()
    displace(node, name)
    look(node)
    node.tick()
    node.store.add_client(ClientInfo(b"you", b"hb"))
    node.channel().add_sub(SubState(2, b"you", inbox=b"i"))
    assert node.store.commit() == {}
    info, clients, subs = found_after_a_kill(node)
    assert (info, sorted(clients), [s.sub_id for s in subs]) == (INFO, [b"me", b"you"], [1, 2])


def test_a_look_in_the_middle_of_a_replacement_suspects_for_nothing() -> None:
    """The thread that owns the files looks again, and finds them where they should be."""
    node = served()
    for unit in [(b"", "server.dat"), (b"", "clients.dat"), (b"foo", "subs.dat")]:
        node.store.places.suspects.append(unit)
    disk_of(node).log.clear()
    node.tick()
    assert not [
        line for line in disk_of(node).log if line.startswith("rename") and line.endswith("s.dat")
    ]
    assert not [
        line
        for line in disk_of(node).log
        if line.startswith("rename") and line.endswith("server.dat")
    ]


def test_a_channel_that_was_deleted_is_not_missed() -> None:
    node = served()
    node.store.delete_channel(b"foo")
    look(node)
    assert not node.store.places.suspects
    node.store.places.suspects.append((b"foo", "subs.dat"))
    node.tick()


def test_a_file_of_a_former_activation_is_not_watched_before_it_is_ours() -> None:
    node = served()
    successor = node.successor()
    displace(node, "clients.dat")
    look(successor)
    assert not successor.store.places.suspects


def test_a_recovery_ends_between_two_channels_when_the_node_stops() -> None:
    node = FileNode(simulated())
    for i in range(20):
        assert node.put(b"x", channel=b"c%d" % i) == {}
    node.store.close()
    disk = disk_of(node).sibling()
    stopping = threading.Event()
    opened = 0

    def on_call(_: int, name: str, arguments: tuple[object, ...]) -> None:
        nonlocal opened
        if name == "open_dir_at":
            opened += 1
            if opened == 5:
                stopping.set()

    disk.on_call = on_call
    store = FileStore(
        disk,
        disk.open_dir("/store"),
        Owner(2),
        node.clock,
        FileStoreOptions(),
        limits=Limits.same(NO_LIMITS),
        parallel_sync=False,
        stopping=stopping,
    )
    with pytest.raises(StoppedError):
        store.recover()
    assert 5 <= opened < 20
    store.abandon()
