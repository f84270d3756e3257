"""Storage that refuses: what fails, what goes on, what is tried again, and when the process must
end.
"""

from __future__ import annotations

import errno
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import StoreError, StoreFullError
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.log.slices import SliceLog
from ftstan.stores.interface import CLIENTS, ClientInfo, StoredSub, SubState
from tests.filenode import SECOND, FileNode, simulated
from tests.sim.disk import CrashMode, SimDisk

if TYPE_CHECKING:
    from collections.abc import Callable

LARGE = b"x" * 3000


def sub(number: int, last_sent: int = 0) -> SubState:
    return SubState(
        number, b"me", durable_name=b"d%d" % number, last_sent=last_sent, is_durable=True
    )


def client(number: int) -> ClientInfo:
    return ClientInfo(b"c%d" % number, b"hb.%d" % number + b"x" * 200)


def refusing(code: int, *names: str) -> Callable[[int, str, tuple[object, ...]], None]:
    """A hook under which every call of these names fails."""

    def hook(_call: int, name: str, _arguments: tuple[object, ...]) -> None:
        if name in names:
            raise OSError(code, "refused")

    return hook


def node_on(disk: SimDisk, **options: object) -> FileNode:
    return FileNode(disk, options=replace(FileStoreOptions(), **options))  # type: ignore[arg-type]


# ---- no space: messages
# --------------------------------------------------------------------------------------------


def test_without_space_publishes_are_refused_and_service_resumes_when_there_is_some() -> None:
    disk = simulated()
    node = node_on(disk)
    node.put(b"a", b"b")
    disk.volume.space = 100
    for _ in range(20):
        (error,) = node.put(LARGE).values()
        assert isinstance(error, StoreFullError)
        assert "No space left on device" in error.text
        node.tick(0.1)
    assert (node.channel().last, node.sequences()) == (2, [1, 2])
    disk.volume.space = None
    node.tick(2)
    assert node.put(b"c") == {}
    assert node.sequences() == [1, 2, 3]
    for mode in CrashMode:
        assert node.successor(disk.crash(mode=mode)).sequences() == [1, 2, 3]


def test_after_a_failed_write_the_next_one_goes_to_a_new_slice_behind_what_is_durable() -> None:
    disk = simulated()
    node = node_on(disk)
    node.put(b"a")
    disk.volume.space = 100
    node.put(LARGE)
    disk.volume.space = None
    node.put(b"b")
    tree = disk.tree("/store/foo")
    scan = records.scan_index((tree["msgs.2.idx"] or b"")[4:], records.Crc())
    assert (scan.first, scan.last) == (2, 2)
    assert b"b" in (tree["msgs.2.dat"] or b"")


def test_a_full_disk_uses_up_no_slice_numbers_and_is_not_asked_with_every_batch() -> None:
    disk = simulated()
    node = node_on(disk)
    node.put(b"a")
    disk.volume.space = 0
    node.put(LARGE)
    node.put(LARGE)
    before = len(disk.log)
    for _ in range(1000):
        assert node.put(LARGE)
    assert len(disk.log) == before
    for _ in range(100):
        node.clock.advance(2)
        assert node.put(LARGE)
    disk.volume.space = None
    node.clock.advance(2)
    assert node.put(b"b") == {}
    assert "msgs.2.dat" in disk.tree("/store/foo")
    assert not [n for n in disk.tree("/store/foo") if n.startswith("tmp.")]


def test_publishers_that_never_pause_are_served_again_within_a_second_of_space() -> None:
    disk = simulated()
    node = node_on(disk)
    node.put(b"a")
    disk.volume.space = 0
    for _ in range(1000):
        assert node.put(LARGE)
        node.clock.advance(0.01)
    disk.volume.space = None
    refused = 0
    while node.put(b"b"):
        refused += 1
        node.clock.advance(0.01)
    assert refused <= 100


def test_a_full_disk_does_not_stop_the_work_of_every_second() -> None:
    disk = simulated()
    node = FileNode(
        disk,
        options=FileStoreOptions(slice_max_msgs=2),
        limits=replace(node_on(disk).limits, max_msgs=2),
    )
    node.put(*(b"%d" % i for i in range(6)))
    disk.volume.space = 0
    assert node.put(LARGE)
    node.tick()
    assert "msgs.1.dat" not in disk.tree("/store/foo")


# ---- no space: state files
# -----------------------------------------------------------------------------------------


def test_without_space_subscriptions_are_refused_and_later_the_file_is_replaced() -> None:
    disk = simulated()
    node = node_on(disk)
    state: list[StoredSub] = [StoredSub(sub(1))]
    node.channel().snapshot = lambda: state
    node.channel().add_sub(sub(1))
    node.store.commit()
    disk.volume.space = 10
    node.channel().add_sub(sub(2))
    (error,) = node.store.commit().values()
    assert isinstance(error, StoreFullError)
    node.tick()
    old = disk.stat(disk.open_dir("/store/foo"), "subs.dat").ino
    disk.volume.space = None
    node.tick(2)
    assert disk.stat(disk.open_dir("/store/foo"), "subs.dat").ino != old
    found = node.successor(disk.crash()).channel().recovered_subs()
    assert [s.state.sub_id for s in found] == [1]


def test_a_refused_removal_of_a_subscription_is_stored_later_from_what_the_broker_knows() -> None:
    disk = simulated()
    node = node_on(disk)
    state = [StoredSub(sub(1)), StoredSub(sub(2))]
    node.channel().snapshot = lambda: state
    for stored in state:
        node.channel().add_sub(stored.state)
    node.put(b"a")
    disk.volume.space = 10
    node.channel().delete_sub(2)
    state.pop()
    assert node.put(LARGE)
    disk.volume.space = None
    node.tick(2)
    found = node.successor(disk.crash()).channel().recovered_subs()
    assert [s.state.sub_id for s in found] == [1]


def test_events_are_not_piled_up_while_the_disk_is_full() -> None:
    disk = simulated()
    node = node_on(disk)
    pending: set[int] = set()
    node.channel().snapshot = lambda: [StoredSub(sub(1, max(pending, default=0)), set(pending))]
    node.channel().add_sub(sub(1))
    node.put(*(b"%d" % i for i in range(500)))
    disk.volume.space = 0
    for sequence in range(1, 501):
        pending.add(sequence)
        node.sent(1, sequence)
        if sequence % 50 == 0:
            node.tick()
    assert len(node.store._channels[b"foo"]._events) < 100
    disk.volume.space = None
    node.tick(2)
    (stored,) = node.successor(disk.crash()).channel().recovered_subs()
    assert (stored.pending, stored.state.last_sent) == (set(range(1, 501)), 500)


def test_a_subscription_whose_batch_failed_behind_its_record_is_not_found_again() -> None:
    disk = simulated()
    node = node_on(disk)
    state = [StoredSub(sub(1))]
    node.channel().snapshot = lambda: state
    node.channel().add_sub(sub(1))
    node.put(b"a")
    node.stage(b"b")
    node.channel().add_sub(sub(2))
    synced: list[int] = []

    def refuse(_call: int, name: str, _arguments: tuple[object, ...]) -> None:
        if name == "fdatasync" and not synced:
            synced.append(1)
            raise OSError(errno.EIO, "refused")

    disk.on_call = refuse
    assert list(node.store.commit()) == [b"foo"]
    disk.on_call = None
    node.tick()
    found = node.successor(disk.crash(process_only=True)).channel().recovered_subs()
    assert [s.state.sub_id for s in found] == [1]


def test_without_space_for_clients_connections_are_refused_and_the_rest_goes_on() -> None:
    disk = simulated()
    node = node_on(disk)
    node.put(b"a")
    node.store.add_client(client(1))
    assert node.store.commit() == {}
    refused = [True]

    def refuse(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        clients = node.store._clients.file._fd
        if refused[0] and (
            (name == "pwrite" and arguments[0] == clients)
            or (name == "open" and "tmp.0.clients.dat" in arguments)
        ):
            raise OSError(errno.ENOSPC, "No space left on device")

    disk.on_call = refuse
    node.store.add_client(client(2))
    node.stage(b"b")
    failed = node.store.commit()
    assert list(failed) == [CLIENTS]
    assert isinstance(failed[CLIENTS], StoreFullError)
    node.store.delete_client(b"c2")
    assert list(node.store.commit()) == [CLIENTS]
    refused[0] = False
    node.tick(2)
    node.store.add_client(client(3))
    assert node.store.commit() == {}
    after = node.successor(disk.crash())
    assert after.recovered.clients == [client(1), client(3)]
    assert after.sequences() == [1, 2]


def test_a_delayed_refusal_of_space_by_a_sync_replaces_the_state_file() -> None:
    disk = simulated()
    node = node_on(disk)
    node.store.add_client(client(1))
    node.store.commit()
    node.store.add_client(client(2))
    disk.fail_next("fdatasync", errno.ENOSPC)
    assert list(node.store.commit()) == [CLIENTS]
    node.store.delete_client(b"c2")
    assert node.store.commit() == {}
    assert node.successor(disk.crash()).recovered.clients == [client(1)]


def test_events_whose_background_sync_finds_no_space_are_written_to_a_new_file() -> None:
    disk = simulated()
    node = node_on(disk)
    node.channel().add_sub(sub(1))
    node.put(b"a", b"b")
    node.sent(1, 1)
    node.tick()
    node.sent(1, 2)
    disk.fail_next("fdatasync", errno.ENOSPC)
    node.tick()
    node.tick()
    (stored,) = node.successor(disk.crash()).channel().recovered_subs()
    assert stored.pending == {1, 2}


# ---- errors that are not about space
# -------------------------------------------------------------------------------


def test_one_channel_that_fails_leaves_the_others_serving() -> None:
    disk = simulated()
    node = node_on(disk)
    node.put(b"a")
    node.put(b"a", channel=b"bar")
    for _ in range(5):
        node.stage(b"b")
        node.stage(b"b", channel=b"bar")
        disk.fail_next("pwrite", errno.EIO)
        assert list(node.store.commit()) == [b"foo"]
        node.tick(3)
    assert node.sequences(b"bar") == [1, 2, 3, 4, 5, 6]
    assert node.put(b"c") == {}
    assert node.sequences() == [1, 2]


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EROFS])
def test_storage_that_fails_on_two_channels_ends_the_process(code: int) -> None:
    disk = simulated()
    node = node_on(disk)
    node.put(b"a")
    node.put(b"a", channel=b"bar")
    node.stage(b"b")
    node.stage(b"b", channel=b"bar")
    disk.on_call = refusing(code, "pwrite")
    with pytest.raises(StoreError, match='storage fails on channels "bar", "foo"') as error:
        node.store.commit()
    assert not isinstance(error.value, StoreFullError)
    assert error.value.hint


def test_a_channel_that_works_again_does_not_count_as_failing() -> None:
    disk = simulated()
    node = node_on(disk)
    for name in (b"foo", b"bar", b"foo", b"bar"):
        node.put(b"a", channel=name)
        disk.fail_next("fdatasync", errno.EIO)
        assert list(node.put(b"lost", channel=name)) == [name]
        node.clock.advance(3)
        assert node.put(b"b", channel=name) == {}
    assert node.sequences() == [1, 2, 3, 4]


def test_a_file_system_that_became_read_only_ends_the_process_at_the_first_state_file() -> None:
    disk = simulated()
    node = node_on(disk)
    node.store.add_client(client(1))
    node.store.commit()
    disk.on_call = refusing(errno.EROFS, "pwrite", "open", "rename", "link", "unlink", "mkdir")
    node.store.add_client(client(2))
    with pytest.raises(StoreError):
        node.store.commit()


def test_a_file_system_that_became_read_only_keeps_serving_reads_of_one_channel() -> None:
    disk = simulated()
    node = node_on(disk)
    node.put(b"a")
    disk.on_call = refusing(errno.EROFS, "pwrite", "link", "unlink", "mkdir")
    for _ in range(5):
        (error,) = node.put(b"b").values()
        assert "refused" in error.text
        node.clock.advance(3)
    assert node.sequences() == [1]


@pytest.mark.parametrize("when", ["while it is written", "when it is full", "before the stop"])
def test_an_index_whose_sync_failed_once_is_whole_after_a_clean_stop_and_a_power_cut(
    when: str,
) -> None:
    """A failed sync makes the kernel forget, and the next one succeeds with nothing on the disk."""
    disk = simulated()
    node = node_on(disk, slice_max_msgs=2)
    node.put(b"a")
    if when == "when it is full":
        # The sync of a full slice is part of the batch that goes on behind it.
        node.put(b"b")
        disk.fail_next("fdatasync", errno.EIO)
        assert list(node.put(b"c")) == [b"foo"]
    else:
        disk.fail_next("fdatasync", errno.EIO)
        if when == "while it is written":
            node.tick()
            node.put(b"b")
        else:
            while node.store.prepare_close(1):
                pass
    assert disk.met["EIO fdatasync"] == disk.met["sync-dropped"] == 1
    if when != "before the stop":
        node.tick(10)
        node.put(b"last")
    node.store.close()
    for mode in CrashMode:
        tree = disk.crash(mode=mode).tree("/store/foo")
        for name in [name for name in tree if name.endswith(".idx")]:
            scan = records.scan_index((tree[name] or b"")[4:], records.Crc())
            assert scan.count
            assert scan.end == len(tree[name.replace("idx", "dat")] or b"")


@pytest.mark.parametrize("sync_index", [False, True])
def test_a_file_whose_sync_failed_is_never_written_or_synced_again(*, sync_index: bool) -> None:
    disk = simulated()
    node = node_on(disk, sync_index=sync_index)
    node.put(b"a")
    dirty = node.store._channels[b"foo"].log._active
    assert dirty is not None
    node.put(b"b")
    if sync_index:
        # The data is synced, then its index is not.
        seen: list[int] = []

        def refuse(_call: int, name: str, _arguments: tuple[object, ...]) -> None:
            if name == "fdatasync":
                seen.append(1)
                if len(seen) == 2:
                    raise OSError(errno.EIO, "refused")

        disk.on_call = refuse
        assert list(node.put(b"c")) == [b"foo"]
        disk.on_call = None
    else:
        disk.fail_next("fdatasync", errno.EIO)
        node.tick()
    number = dirty.slice.number
    before = len(disk.log)
    assert node.put(b"d") == {}
    node.tick()
    touched = [
        line for line in disk.log[before:] if line.split(" ")[0] in ("pwrite", "fdatasync", "fsync")
    ]
    assert touched
    # The number between them is left out: it tells a successor that this index may not be on the
    # disk.
    assert f"msgs.{number + 2}.dat" in disk.tree("/store/foo")
    node.store.close()
    last = 4 if sync_index else 3
    assert node.successor().sequences() == list(range(1, last + 1))


def test_a_background_sync_that_fails_takes_nothing_back_that_is_staged() -> None:
    disk = simulated()
    node = node_on(disk)
    node.put(b"a")
    node.stage(b"b")
    node.channel().add_sub(sub(1))
    disk.fail_next("fdatasync", errno.EIO)
    node.tick()
    assert node.store.commit() == {}
    assert node.sequences() == [1, 2]
    assert len(node.successor(disk.crash()).channel().recovered_subs()) == 1


def test_a_failed_background_sync_of_a_state_file_ends_the_process() -> None:
    disk = simulated()
    node = node_on(disk)
    node.channel().add_sub(sub(1))
    node.put(b"a")
    node.tick()
    node.sent(1, 1)
    disk.fail_next("fdatasync", errno.EIO)
    with pytest.raises(StoreError, match="a state file cannot be synced"):
        node.tick()


def test_a_channel_that_cannot_have_a_directory_is_refused_and_the_server_goes_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    node = node_on(simulated())
    node.store.add_client(client(1))
    node.store.commit()
    node.channel(b"clients.dat").snapshot = list
    node.channel(b"clients.dat").add_sub(sub(1))
    (error,) = node.store.commit().values()
    assert error.text == "mkdir clients.dat: not a directory"
    (line,) = capfd.readouterr().err.splitlines()
    assert line.endswith(
        '[ERR] STREAM: Creating channel "clients.dat" failed: mkdir clients.dat: not a directory'
    )
    node.tick()
    assert node.put(b"a") == {}


def test_a_channel_whose_name_the_file_system_refuses_is_named_with_the_reason(
    capfd: pytest.CaptureFixture[str],
) -> None:
    node = node_on(simulated())
    name = b"x" * 300
    (error,) = node.put(b"a", channel=name).values()
    assert error.text == f"mkdir {name.decode()}: file name too long"
    (line,) = capfd.readouterr().err.splitlines()
    assert '[ERR] STREAM: Creating channel "xxx' in line
    assert line.endswith("file name too long")
    assert node.put(b"a") == {}


# ---- what one batch costs
# ------------------------------------------------------------------------------------------


def counted(node: FileNode, act: Callable[[], object]) -> dict[str, int]:
    """Calls by name and kind of file, everything else by name alone."""
    disk = node.disk
    assert isinstance(disk, SimDisk)
    seen: dict[str, int] = {}

    def look(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        kind = ""
        if arguments and isinstance(arguments[0], int):
            held = disk._handles[arguments[0]].node
            for folder in disk.volume.root.entries["store"].entries.values():  # type: ignore[union-attr]
                for path, child in getattr(folder, "entries", {}).items():
                    if child is held:
                        kind = path.rpartition(".")[2] if path.startswith("msgs.") else path
        seen[f"{name} {kind}"] = seen.get(f"{name} {kind}", 0) + 1

    disk.on_call = look
    act()
    disk.on_call = None
    return seen


@pytest.fixture
def warm() -> FileNode:
    node = node_on(simulated())
    for name in (b"foo", b"bar"):
        node.channel(name).add_sub(sub(1))
        node.put(b"a", channel=name)
        node.sent(1, 1, channel=name)
    node.tick()
    return node


def batch(node: FileNode) -> None:
    for name in (b"foo", b"bar"):
        node.stage(*(b"%d" % i for i in range(300)), channel=name)
    assert node.store.commit() == {}
    for name in (b"foo", b"bar"):
        node.sent(1, *range(2, 200), channel=name)
    node.store.write_events()


def test_a_batch_costs_a_channel_one_write_and_sync_of_data_and_a_write_of_index_and_subs(
    warm: FileNode,
) -> None:
    assert counted(warm, lambda: batch(warm)) == {
        "pwrite dat": 2,
        "fdatasync dat": 2,
        "pwrite idx": 2,
        "pwrite subs.dat": 2,
    }


def test_the_options_add_a_sync_of_index_and_of_subscriptions() -> None:
    node = node_on(simulated(), sync_index=True, sync_subs=True)
    for name in (b"foo", b"bar"):
        node.channel(name).add_sub(sub(1))
        node.put(b"a", channel=name)
        node.sent(1, 1, channel=name)
    node.tick()
    assert node.store.events_first
    assert counted(node, lambda: batch(node)) == {
        "pwrite dat": 2,
        "fdatasync dat": 2,
        "pwrite idx": 2,
        "fdatasync idx": 2,
        "pwrite subs.dat": 2,
        "fdatasync subs.dat": 2,
    }


def test_with_index_syncs_a_power_cut_after_the_ack_leaves_every_entry() -> None:
    disk = simulated()
    node = node_on(disk, sync_index=True)
    node.put(b"a")
    node.put(b"b")
    index = disk.crash(mode=CrashMode.LOST).tree("/store/foo")["msgs.1.idx"]
    assert records.scan_index((index or b"")[4:], records.Crc()).last == 2


def test_within_a_second_index_and_events_are_durable(warm: FileNode) -> None:
    batch(warm)
    seen = counted(warm, warm.tick)
    assert (seen["fdatasync idx"], seen["fdatasync subs.dat"]) == (2, 2)
    assert "fdatasync dat" not in seen


def test_without_syncs_everything_is_synced_in_the_operators_period_data_before_index() -> None:
    node = node_on(simulated(), sync=False, auto_sync=10 * SECOND)
    node.channel().add_sub(sub(1))
    node.put(b"a")
    node.sent(1, 1)
    node.tick()
    node.put(b"b")
    for _ in range(9):
        assert not {"fdatasync dat", "fdatasync idx"} & counted(node, node.tick).keys()
    seen = counted(node, node.tick)
    assert (seen["fdatasync dat"], seen["fdatasync idx"], seen.get("fdatasync subs.dat", 0)) == (
        1,
        1,
        0,
    )
    assert list(seen).index("fdatasync dat") < list(seen).index("fdatasync idx")
    assert "fdatasync dat" not in counted(node, lambda: node.tick(100))


def test_without_syncs_and_without_a_period_nothing_is_synced_before_the_stop() -> None:
    node = node_on(simulated(), sync=False, auto_sync=0)
    node.put(b"a")
    node.tick()
    node.put(b"b")
    assert not {"fdatasync dat", "fdatasync idx"} & counted(node, lambda: node.tick(100_000)).keys()
    seen = counted(node, node.store.close)
    assert (seen["fdatasync dat"], seen["fdatasync idx"]) == (1, 1)


# ---- broken on purpose
# ---------------------------------------------------------------------------------------------


def test_a_batch_that_costs_more_than_it_may_is_counted(
    monkeypatch: pytest.MonkeyPatch, warm: FileNode
) -> None:
    finish = SliceLog.finish

    def synced(self: SliceLog) -> int | None:
        fd = finish(self)
        self.sync()
        return fd

    monkeypatch.setattr(SliceLog, "finish", synced)
    assert counted(warm, lambda: batch(warm))["fdatasync idx"] == 2


def test_subscriptions_that_a_killed_owner_left_in_memory_are_durable_after_one_tick() -> None:
    disk = simulated()
    node = FileNode(disk)
    node.put(b"a", b"b")
    node.channel().add_sub(SubState(1, b"me", durable_name=b"d", is_durable=True))
    assert node.store.commit() == {}
    node.tick()
    node.sent(1, 1)  # written, and the process dies before the second is over
    after = node.successor()
    after.tick()
    assert isinstance(after.disk, SimDisk)
    later = after.successor(after.disk.crash(random.Random(1), CrashMode.LOST))
    assert [sub.pending for sub in later.channel().recovered_subs()] == [{1}]
