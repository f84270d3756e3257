"""Attacks on fencing, fifth round: what an original server leaves beside what ours knows, and calls
that fail between two steps.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import RecoveryError
from ftstan.ft.epoch_records import Ending
from ftstan.ft.ownership import StoreOwner
from ftstan.ft.watch import WATCH_NAME, Probe, decode_watch, is_farewell
from ftstan.stores.interface import ChannelLimits
from ftstan.wire import messages
from tests.filenode import SECOND, FileNode, Owner, simulated
from tests.sim.disk import CrashMode, SimDisk
from tests.sim.model import read_all
from tests.unit.stores.test_foreign_writes import append, original_stores

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOCAL = "36 35 8:1 / / rw - ext4 /dev/sda1 rw\n"
SHORT = ChannelLimits(max_msgs=0, max_bytes=0, max_age=10 * SECOND)


def bodies(node: FileNode, channel: bytes = b"foo") -> dict[int, bytes]:
    """What the messages of a channel carry."""
    found = read_all(node.channels[channel])
    return {n: messages.parse(messages.MsgProto, data).data for n, data in found.items()}


# ---- channels of an original server
# --------------------------------------------------------------------------------------------------


def behind_a_clean_stop() -> tuple[FileNode, SimDisk]:
    """A node of ours that has left its store, and the disk of the original that comes then."""
    node = FileNode(simulated())
    node.put(b"ours")
    node.tick()
    node.store.close()
    assert isinstance(node.disk, SimDisk)
    disk = node.disk.sibling()
    disk.make_dirs("/store/new")
    return node, disk


def test_what_is_served_of_a_channel_that_an_original_made_behind_a_clean_stop_is_durable() -> None:
    node, disk = behind_a_clean_stop()
    original_stores(disk, 1, 1, b"one", b"two", channel="new")
    second = node.successor(disk)
    served = bodies(second, b"new")
    assert served == {1: b"one", 2: b"two"}
    cut = disk.crash(mode=CrashMode.LOST)
    third = second.successor(cut)
    assert third.store.quarantined == []
    assert bodies(third, b"new") == served


def test_in_such_a_channel_the_record_counts_that_the_original_went_on_with() -> None:
    node, disk = behind_a_clean_stop()
    original_stores(disk, 1, 1, b"one", channel="new")
    original_stores(disk, 1, 2, b"never acked", entries=False, channel="new")
    original_stores(disk, 1, 2, b"acked", b"acked, too", channel="new")
    second = node.successor(disk)
    assert second.store.quarantined == []
    expected = {1: b"one", 2: b"acked", 3: b"acked, too"}
    assert bodies(second, b"new") == expected
    assert second.put(b"ours", channel=b"new") == {}
    third = second.successor(disk.crash(mode=CrashMode.LOST))
    assert bodies(third, b"new") == expected | {4: b"ours"}


@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("junk", [bytes(5000), b"\x07junk" * 1000], ids=["zeros", "junk"])
@pytest.mark.parametrize("mixed", [False, True])
def test_the_first_server_of_ours_serves_what_an_original_acked_behind_what_a_power_cut_left(
    junk: bytes, *, rolled: bool, mixed: bool
) -> None:
    disk = simulated()
    disk.make_dirs("/store/foo")
    original_stores(disk, 1, 1, b"one")
    append(disk, "msgs.1.dat", junk)
    original_stores(disk, 1, 2, b"acked", b"acked, too")
    append(disk, "msgs.1.dat", junk)
    original_stores(disk, 1, 4, b"behind another one")
    expected = {1: b"one", 2: b"acked", 3: b"acked, too", 4: b"behind another one"}
    if not rolled:
        # It was killed before it wrote the entry.
        original_stores(disk, 1, 5, b"the last one", entries=False)
        expected[5] = b"the last one"
    else:
        original_stores(disk, 2, 5, b"in the next slice")
        expected[5] = b"in the next slice"
    first = FileNode(disk, owner=Owner(2, ours_from=4097, mixed=mixed))
    assert first.store.quarantined == []
    assert bodies(first) == expected
    assert first.put(b"ours") == {}
    first.tick()
    second = first.successor(disk.crash(mode=CrashMode.LOST))
    assert bodies(second) == expected | {max(expected) + 1: b"ours"}


def test_a_channel_of_ours_that_a_stop_could_not_describe_stays_quarantined() -> None:
    node = FileNode(simulated())
    node.put(b"1", b"2", b"3")
    node.tick()
    assert isinstance(node.disk, SimDisk)
    tree = node.disk.tree("/store")
    data = tree["foo/msgs.1.dat"]
    assert data is not None
    tree["foo/msgs.1.dat"] = data[:-5]
    disk = simulated()
    disk.add_tree("/store", tree)
    second = node.successor(disk)
    assert second.store.quarantined == ["foo"]
    second.store.close()
    assert second.successor(disk).store.quarantined == ["foo"]


@pytest.mark.parametrize("rolled", [False, True])
def test_the_first_server_of_ours_serves_what_an_original_acked_behind_a_record_without_an_entry(
    *, rolled: bool
) -> None:
    disk = simulated()
    disk.make_dirs("/store/foo")
    original_stores(disk, 1, 1, b"one")
    original_stores(disk, 1, 2, b"never acked", b"nor this", entries=False)
    original_stores(disk, 1, 2, b"acked", b"acked, too")
    expected = {1: b"one", 2: b"acked", 3: b"acked, too"}
    if rolled:
        original_stores(disk, 2, 4, b"in the next slice")
        expected[4] = b"in the next slice"
    # The group is not mixed: its epochs begin above all that the original wrote.
    first = FileNode(disk, owner=Owner(2, ours_from=4097))
    assert first.store.quarantined == []
    assert bodies(first) == expected
    assert first.put(b"ours") == {}
    first.tick()
    second = first.successor(disk.crash(mode=CrashMode.LOST))
    assert bodies(second) == expected | {max(expected) + 1: b"ours"}


def sync(disk: SimDisk, *names: str) -> None:
    """As the original does it before it acknowledges."""
    root = disk.open_dir("/store")
    folder = disk.open_dir_at(root, "foo")
    for name in names:
        fd = disk.open(folder, name, os.O_RDWR)
        disk.fsync(fd)
        disk.close(fd)
    for handle in (folder, root):
        disk.close(handle)


@pytest.mark.parametrize("more", [(), (b"as many", b"as in", b"the former one")])
def test_in_the_next_slice_the_original_went_on_behind_records_without_an_entry(
    more: tuple[bytes, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    disk = simulated()
    disk.make_dirs("/store/foo")
    original_stores(disk, 1, 1, b"one")
    sync(disk, "msgs.1.dat", "msgs.1.idx")
    original_stores(disk, 1, 2, b"never acked", b"nor this", b"nor that", entries=False)
    original_stores(disk, 2, 2, b"acked", *more)
    expected = dict(enumerate([b"one", b"acked", *more], 1))
    first = FileNode(disk, owner=Owner(3, ours_from=4097))
    assert "msgs.1.dat has records of sequences 2 to 4 that its" in capfd.readouterr().err
    assert first.store.quarantined == []
    assert bodies(first) == expected
    assert first.put(b"ours") == {}
    first.tick()
    second = first.successor(disk.crash(mode=CrashMode.LOST))
    assert second.store.quarantined == []
    assert bodies(second) == expected | {max(expected) + 1: b"ours"}


def flip(disk: SimDisk, name: str, at: int) -> None:
    """One bit of the byte at ``at`` is another one."""
    root = disk.open_dir("/store")
    folder = disk.open_dir_at(root, "foo")
    fd = disk.open(folder, name, os.O_RDWR)
    disk.pwrite(fd, bytes([disk.pread(fd, 1, at)[0] ^ 1]), at)
    for handle in (fd, folder, root):
        disk.close(handle)


def cut(disk: SimDisk, name: str, size: int) -> None:
    root = disk.open_dir("/store")
    folder = disk.open_dir_at(root, "foo")
    fd = disk.open(folder, name, os.O_RDWR)
    disk.ftruncate(fd, size)
    for handle in (fd, folder, root):
        disk.close(handle)


@pytest.mark.parametrize("harm", ["none", "a flipped entry", "a lost entry", "a torn entry"])
def test_two_contents_of_one_sequence_that_had_entries_are_for_the_operator(harm: str) -> None:
    disk = simulated()
    disk.make_dirs("/store/foo")
    original_stores(disk, 1, 1, *(b"%d" % n for n in range(1, 6)))
    original_stores(disk, 2, 4, b"another 4", b"another 5", b"6")
    header, entry = 4, 32
    if harm == "a flipped entry":
        flip(disk, "msgs.1.idx", header + 2 * entry - 1)
    elif harm == "a lost entry":
        cut(disk, "msgs.1.idx", header + entry)
    elif harm == "a torn entry":
        cut(disk, "msgs.1.idx", header + 2 * entry + 7)
    first = FileNode(disk, owner=Owner(3, ours_from=4097))
    assert first.store.quarantined == ["foo"]


@pytest.mark.parametrize(
    ("named", "hidden"), [(1000, 3), (2000, 3), (5, 1025)], ids=["one buffer", "two", "too many"]
)
def test_records_behind_an_index_that_may_have_been_made_anew_are_for_the_operator(
    named: int, hidden: int
) -> None:
    """An original that was killed over it had acknowledged them."""
    disk = simulated()
    disk.make_dirs("/store/foo")
    original_stores(disk, 1, 1, *(b"%d" % n for n in range(1, named + 1)))
    original_stores(disk, 1, named + 1, *(b"hidden",) * hidden, entries=False)
    original_stores(disk, 2, named + 1, b"another one")
    first = FileNode(disk, owner=Owner(3, ours_from=4097))
    assert first.store.quarantined == ["foo"]


# ---- calls that fail between two steps
# --------------------------------------------------------------------------------------------------


def test_a_message_is_not_hidden_by_a_slice_that_could_not_be_ended_for_want_of_space() -> None:
    refused = 0
    for at in itertools.count(1):
        first = FileNode(simulated(), limits=SHORT)
        first.put(b"1", b"2", b"3")
        first.tick()
        assert isinstance(first.disk, SimDisk)
        disk = first.disk.crash(process_only=True)
        append(disk.sibling(), "msgs.1.dat", b"\x20\0\0\0torn")
        first.clock.advance(4)
        number = disk.calls + at
        disk.fail_at(number, errno.ENOSPC)
        try:
            node = FileNode(disk, owner=Owner(2), clock=first.clock, limits=SHORT)
        except (RecoveryError, OSError):
            refused += 1
            continue
        if disk.calls < number:
            break
        disk.fail_no_more()
        node.clock.advance(2)
        assert node.put(b"4") == {}
        for _ in range(5):
            node.tick()
        assert bodies(node) == {4: b"4"}, f"failed at call {at}"
        assert node.put(b"5") == {}
        assert bodies(node) == {4: b"4", 5: b"5"}, f"failed at call {at}"
        assert node.channel().count == 2
    assert at - refused > 20


# ---- the last word of an owner
# --------------------------------------------------------------------------------------------------


class Interrupted(LocalDisk):
    """A process that stands still before one of its calls, while ``then`` happens."""

    def __init__(self, at: int, then: Callable[[], None]) -> None:
        self._left = at
        self._then = then
        self.armed = False

    def _enter(self) -> None:
        if self.armed:
            self._left -= 1
            if self._left == 0:
                self._then()

    @property
    def is_through(self) -> bool:
        """Whether it ended before that call."""
        return self._left > 0

    def open(self, dirfd: int, name: str, flags: int, mode: int = 0o640) -> int:
        self._enter()
        return super().open(dirfd, name, flags, mode)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self._enter()
        return super().pread(fd, size, offset)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._enter()
        super().pwrite(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        self._enter()
        super().fdatasync(fd)

    def close(self, fd: int) -> None:
        self._enter()
        super().close(fd)


def owner_of(path: Path, disk: LocalDisk, name: str = "node") -> StoreOwner:
    return StoreOwner(
        disk,
        str(path),
        server_id=name,
        clock=ManualClock(1_700_000_000_000_000_000),
        in_group=True,
        name=name,
        mountinfo=LOCAL,
    )


@pytest.mark.parametrize("probed", [False, True], ids=["before its first probe", "behind one"])
@pytest.mark.parametrize("lockless", [False, True], ids=["with the lock", "without it"])
@pytest.mark.parametrize("probes", [0, 1], ids=["successor not probed", "successor probed"])
def test_wherever_an_owner_stands_still_in_its_last_word_its_successor_is_in_nobodys_way(
    tmp_path: Path, probes: int, *, lockless: bool, probed: bool
) -> None:
    for at in itertools.count(1):
        path = tmp_path / str(at)
        successor = owner_of(path, LocalDisk(), "B")
        probe = Probe(LocalDisk(), successor.root, successor, server_id="B", look=lambda: None)

        def take(successor: StoreOwner = successor, probe: Probe = probe) -> None:
            successor.activate(without_lock=True)
            for _ in range(probes):
                assert probe()

        disk = Interrupted(at, take)
        former = owner_of(path, disk, "A")
        if not lockless:
            former.try_lock()
        former.activate(without_lock=lockless)
        if probed:
            first = Probe(LocalDisk(), former.root, former, server_id="A", look=lambda: None)
            assert first()
            first.close()
        former.ending = Ending.SIGTERM
        disk.armed = True
        former.release()
        disk.armed = False
        if disk.is_through:
            assert at > 5
            successor.close()
            return
        # Nobody may take the store from it for what the former owner has left there.
        record = successor.read_owner()
        assert record is not None
        assert record.epoch == 2
        watch = successor.read_watch()
        assert watch is not None
        assert not is_farewell(watch, record.epoch)
        successor.confirm()
        assert probe()
        assert probe()
        left = decode_watch((path / WATCH_NAME).read_bytes())
        assert left is not None
        assert (left.epoch, left.server_id) == (2, "B")
        probe.close()
        successor.close()
        former.close()


def test_an_owner_whose_names_are_cut_within_a_letter_confirms_and_goes_on(tmp_path: Path) -> None:
    owner = owner_of(tmp_path, LocalDisk(), "\u20ac" * 60)
    owner.try_lock()
    owner.activate()
    owner.confirm()
    owner.raise_epoch()
    owner.confirm()
    record = owner.read_owner()
    assert record is not None
    assert record.epoch == 2
    assert record.describe()
    owner.close()


@pytest.mark.parametrize("content", [b"", b"torn", b"\xff" * 4096, None])
def test_whatever_stands_in_the_watch_file_costs_nobody_the_store(
    tmp_path: Path, content: bytes | None
) -> None:
    if content is None:
        (tmp_path / WATCH_NAME).mkdir()
    else:
        (tmp_path / WATCH_NAME).write_bytes(content)
    owner = owner_of(tmp_path, LocalDisk())
    owner.try_lock()
    activation = owner.activate()
    assert (activation.left, activation.left_ns) == (Ending.UNSAID, 0)
    probe = Probe(LocalDisk(), owner.root, owner, server_id="A", look=lambda: None)
    # Nor does it end who has it.
    assert probe()
    assert probe()
    probe.close()
    owner.ending = Ending.SIGTERM
    owner.close()


def test_a_pipe_under_the_name_of_the_watch_file_holds_up_no_stop(tmp_path: Path) -> None:
    owner = owner_of(tmp_path, LocalDisk())
    owner.try_lock()
    owner.activate()
    pipe = tmp_path / WATCH_NAME
    os.mkfifo(pipe)
    owner.ending = Ending.SIGTERM
    ending = threading.Thread(target=owner.close, daemon=True)
    ending.start()
    ending.join(10)
    hangs = ending.is_alive()
    if hangs:
        # Whoever reads from it lets the thread go.
        os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
        ending.join(10)
    assert not hangs
