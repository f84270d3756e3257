"""Compaction: when clients.dat and subs.dat are written anew, and that nothing of them is lost by
it.
"""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from ftstan.base.errors import FencedError
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.recovery import judging
from ftstan.stores.file.state.statefile import StateFile
from ftstan.stores.interface import ClientInfo, StoredSub, SubState
from tests.filenode import SECOND, FileNode, simulated
from tests.sim.disk import CrashMode, Killed, SimDisk
from tests.sim.volume import DirNode

SMALL = FileStoreOptions(compact_min_size=0, compact_interval=300 * SECOND)
CRC = records.Crc()


def client(number: int) -> ClientInfo:
    return ClientInfo(b"c%d" % number, b"hb.%d" % number, b"conn%d" % number, 1, 5, 3)


def sub(number: int) -> SubState:
    return SubState(number, b"me", durable_name=b"d%d" % number, is_durable=True)


def kinds(disk: SimDisk, name: str) -> list[int]:
    """Types of the records of a state file, in order."""
    rows, _, why = records.scan_typed((disk.tree("/store")[name] or b"")[4:], CRC)
    assert why == ""
    return [kind for kind, _ in rows]


def ino(node: FileNode, name: str, channel: bytes = b"") -> int:
    dirfd = node.disk.open_dir_at(node.root, channel.decode()) if channel else node.root
    return node.disk.stat(dirfd, name).ino


def with_events(options: FileStoreOptions = SMALL, messages: int = 10) -> tuple[SimDisk, FileNode]:
    """A subscription that was sent ten messages."""
    disk = simulated()
    node = FileNode(disk, options=options)
    node.put(*(b"%d" % i for i in range(messages)))
    node.channel().add_sub(sub(1))
    node.store.commit()
    node.sent(1, *range(1, messages + 1))
    return disk, node


# ---- subs.dat
# --------------------------------------------------------------------------------------------------


def test_subscriptions_are_compacted_at_the_originals_share_of_dead_records() -> None:
    disk, node = with_events()
    node.acked(1, 1, 2, 3, 4, 5)
    node.tick()
    assert kinds(disk, "foo/subs.dat").count(records.SUB_ACK) == 5
    node.acked(1, 6)
    node.tick()
    assert kinds(disk, "foo/subs.dat") == [records.SUB_NEW] + [records.SUB_MSG] * 4
    (stored,) = node.successor(disk.crash(process_only=True)).channel().recovered_subs()
    assert stored.pending == {7, 8, 9, 10}
    assert stored.state.last_sent == 10


def test_the_highest_subscription_id_outlives_its_record() -> None:
    disk = simulated()
    node = FileNode(disk, options=SMALL)
    for number in (1, 2, 3):
        node.channel().add_sub(sub(number))
    node.store.commit()
    for number in (2, 3):
        node.channel().delete_sub(number)
    node.store.commit()
    node.tick()
    assert kinds(disk, "foo/subs.dat") == [records.SUB_DELETE, records.SUB_NEW]
    assert node.successor(disk.crash(process_only=True)).channel().next_sub_id == 4


def test_what_the_broker_knows_is_what_is_written() -> None:
    disk, node = with_events()
    queue = StoredSub(SubState(7, b"q", queue=b"d:g", is_durable=True), {3})
    node.channel().snapshot = lambda: [
        StoredSub(replace(sub(1), last_sent=10, is_closed=True), {9}),
        queue,
    ]
    node.acked(1, *range(1, 9))
    node.tick()
    first, second = node.successor(disk.crash(process_only=True)).channel().recovered_subs()
    assert (first.pending, first.state.is_closed, first.state.last_sent) == ({9}, True, 10)
    assert (second.pending, second.state.queue) == ({3}, b"d:g")


@pytest.mark.parametrize(
    "options",
    [
        replace(SMALL, compact_enabled=False),
        replace(SMALL, compact_min_size=1 << 20),
        replace(SMALL, compact_fragmentation=90),
    ],
)
def test_options_keep_a_file_from_being_compacted(options: FileStoreOptions) -> None:
    disk, node = with_events(options)
    node.acked(1, *range(1, 9))
    node.tick()
    assert kinds(disk, "foo/subs.dat").count(records.SUB_ACK) == 8


def test_a_file_is_not_compacted_again_before_the_interval_is_over() -> None:
    disk, node = with_events()
    node.acked(1, *range(1, 7))
    node.tick()
    node.acked(1, 7, 8, 9, 10)
    node.tick()
    assert kinds(disk, "foo/subs.dat").count(records.SUB_ACK) == 4
    node.tick(298)
    assert kinds(disk, "foo/subs.dat").count(records.SUB_ACK) == 4
    node.sent(1)
    node.acked(1)
    node.tick(2)
    assert kinds(disk, "foo/subs.dat") == [records.SUB_NEW]


def test_compaction_happens_outside_the_batch() -> None:
    _, node = with_events()
    before = ino(node, "subs.dat", b"foo")
    node.acked(1, *range(1, 9))
    node.put(b"x")
    assert ino(node, "subs.dat", b"foo") == before
    node.tick()
    assert ino(node, "subs.dat", b"foo") != before


# ---- clients.dat
# --------------------------------------------------------------------------------------------------


def test_clients_are_compacted_when_deletions_reach_the_share_of_all() -> None:
    disk = simulated()
    node = FileNode(disk, options=SMALL)
    node.store.commit()
    for number in range(4):
        node.store.add_client(client(number))
        node.store.commit()
    node.store.delete_client(b"c0")
    node.store.commit()
    node.tick()
    assert len(kinds(disk, "clients.dat")) == 5
    node.store.delete_client(b"c1")
    node.store.commit()
    node.tick()
    assert kinds(disk, "clients.dat") == [records.CLIENT_ADD] * 2
    found = node.successor(disk.crash(process_only=True)).recovered.clients
    assert found == [client(2), client(3)]


def test_a_compacted_file_keeps_its_mode_and_owner() -> None:
    disk = simulated()
    node = FileNode(disk, options=SMALL)
    node.store.add_client(client(1))
    node.store.commit()
    fd = disk.open(node.root, "clients.dat", 2)
    disk.fchmod(fd, 0o640)
    disk.fchown(fd, 123, 456)
    node.store.delete_client(b"c1")
    node.store.commit()
    node.tick()
    stat = disk.stat(node.root, "clients.dat")
    assert (stat.mode, stat.uid, stat.gid) == (0o640, 123, 456)
    assert kinds(disk, "clients.dat") == []


# ---- safety
# --------------------------------------------------------------------------------------------------


def test_a_compaction_that_dies_at_any_call_loses_nothing() -> None:
    calls = 0
    for mode in CrashMode:
        for dies_at in range(1, 60):
            disk, node = with_events()
            node.store.add_client(client(1))
            node.store.add_client(client(2))
            node.store.commit()
            node.store.delete_client(b"c1")
            node.store.commit()
            node.tick(0)
            node.acked(1, *range(1, 9))
            last = disk.calls + dies_at

            def kill(
                call: int, _name: str, _arguments: tuple[object, ...], last: int = last
            ) -> None:
                if call == last:
                    raise Killed

            disk.on_call = kill
            try:
                node.tick()
            except Killed:
                calls += 1
            else:
                break
            after = node.successor(disk.crash(mode=mode))
            assert after.recovered.clients == [client(2)]
            (stored,) = after.channel().recovered_subs()
            # Acknowledged less than a second ago: known or not, but sent and not acknowledged is
            # still pending.
            assert {9, 10} <= stored.pending <= set(range(1, 11))
    assert calls > 40


def test_a_fenced_owner_replaces_nothing() -> None:
    disk, node = with_events()
    node.acked(1, *range(1, 9))
    node.owner.fenced = True
    with pytest.raises(FencedError):
        node.tick()
    assert records.SUB_ACK in kinds(disk, "foo/subs.dat")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["open", "pwrite", "fsync", "rename"])
def test_a_compaction_that_storage_refuses_leaves_the_old_file_in_use(call: str, code: int) -> None:
    disk, node = with_events()
    node.acked(1, *range(1, 9))
    before = ino(node, "subs.dat", b"foo")

    def refuse(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        if name == call and (name not in ("open", "rename") or "tmp.0.subs.dat" in arguments):
            raise OSError(code, "refused")

    disk.on_call = refuse
    node.store._channels[b"foo"].settle()
    disk.on_call = None
    assert ino(node, "subs.dat", b"foo") == before
    node.channel().add_sub(sub(2))
    assert node.store.commit() == {}
    assert ino(node, "subs.dat", b"foo") == before
    found = node.successor(disk.crash(process_only=True)).channel().recovered_subs()
    assert [s.state.sub_id for s in found] == [1, 2]


def test_a_rename_whose_sync_failed_is_not_written_behind() -> None:
    rename_whose_sync_fails(parked=False)


def test_nor_is_it_where_the_file_was_closed_and_is_opened_by_its_name() -> None:
    rename_whose_sync_fails(parked=True)


def rename_whose_sync_fails(*, parked: bool) -> None:
    disk, node = with_events()
    node.acked(1, *range(1, 9))
    if parked:
        node.store._channels[b"foo"].park()
    synced = 0

    def refuse(_call: int, name: str, _arguments: tuple[object, ...]) -> None:
        nonlocal synced
        if name == "fsync":
            synced += 1
            if synced == 2:
                raise OSError(errno.EIO, "refused")

    disk.on_call = refuse
    node.store._channels[b"foo"].settle()
    disk.on_call = None
    assert synced == 2
    node.channel().add_sub(sub(2))
    assert node.store.commit() == {}
    for mode in CrashMode:
        found = node.successor(disk.crash(mode=mode)).channel().recovered_subs()
        assert [s.state.sub_id for s in found] == [1, 2]


def test_a_zombies_compaction_finds_no_source_for_its_rename() -> None:
    disk, node = with_events()
    node.acked(1, *range(1, 9))
    after: list[FileNode] = []

    def take_over(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        if name == "rename" and "subs.dat" in arguments and not after:
            after.append(node.successor())
            after[0].channel().add_sub(sub(2))
            after[0].store.commit()

    disk.on_call = take_over
    node.store._channels[b"foo"].settle()
    found = after[0].successor().channel().recovered_subs()
    assert [s.state.sub_id for s in found] == [1, 2]


# ---- broken on purpose
# ---------------------------------------------------------------------------------------------


def test_a_successor_that_leaves_a_zombies_temporary_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(judging, "remove_temporaries", lambda _disk, _dirfd: None)
    with pytest.raises(AssertionError):
        test_a_zombies_compaction_finds_no_source_for_its_rename()


def test_a_compaction_that_is_not_durable_before_its_rename_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Hasty(SimDisk):
        def fsync(self, fd: int) -> None:
            """Names are synced, files are not."""
            if isinstance(self._handles[fd].node, DirNode):
                super().fsync(fd)

    def hasty() -> SimDisk:
        disk = Hasty()
        disk.make_dirs("/store")
        return disk

    monkeypatch.setattr(f"{__name__}.simulated", hasty)
    with pytest.raises((AssertionError, ValueError)):
        test_a_compaction_that_dies_at_any_call_loses_nothing()


def test_a_file_that_is_written_behind_a_rename_of_unknown_fate_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StateFile, "_is_in_place", lambda _self: True)
    with pytest.raises(AssertionError):
        test_a_rename_whose_sync_failed_is_not_written_behind()
