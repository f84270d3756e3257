"""The watch of an owner: what one probe asks, what it makes of the answers, and what the thread
publishes.
"""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from portalocker.constants import LockFlags
from portalocker.exceptions import AlreadyLocked, LockException
from portalocker.portalocker import BaseLocker

from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk, Space
from ftstan.base.errors import FencedError, StoreError
from ftstan.ft import watch
from ftstan.ft.epoch import EPOCH_NAME
from ftstan.ft.epoch_records import Departure, Ending
from ftstan.ft.lock import LOCK_NAME, OfdLocker
from ftstan.ft.ownership import StoreOwner
from ftstan.ft.watch import (
    WATCH_NAME,
    Probe,
    Watch,
    WatchRecord,
    decode_watch,
    departure,
    is_farewell,
)
from ftstan.stores.file.inode_watch import Places
from tests.sim.disk import ENDLESS, SimDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from portalocker.types import FileArgument

    from ftstan.ft.epoch_records import EpochRecord

EXCLUSIVE = LockFlags.EXCLUSIVE | LockFlags.NON_BLOCKING
LOCAL = "36 35 8:1 / / rw - ext4 /dev/sda1 rw\n"


def nothing() -> None:
    """There are no state files."""


class Node:
    """An owner of a real directory."""

    def __init__(self, path: Path, server_id: str = "A") -> None:
        self.path = path
        self.disk = LocalDisk()
        self.owner = StoreOwner(
            self.disk,
            str(path),
            server_id=server_id,
            clock=ManualClock(),
            in_group=False,
            mountinfo=LOCAL,
        )
        self.probes: list[Probe] = []

    def activate(self) -> Node:
        self.owner.try_lock()
        self.owner.activate()
        return self

    def probe(self, look: Callable[[], None] = nothing) -> Probe:
        probe = Probe(self.disk, self.owner.root, self.owner, server_id="A", look=look)
        self.probes.append(probe)
        return probe

    def record(self) -> WatchRecord | None:
        """What stands in the file, but for when it was written."""
        found = decode_watch((self.path / WATCH_NAME).read_bytes())
        return found and replace(found, at_ns=0)

    def end(self) -> None:
        for probe in self.probes:
            probe.close()
        self.owner.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path).activate()
    yield node
    node.end()


# ---- one probe
# --------------------------------------------------------------------------------------------------


def test_each_probe_leaves_its_number_under_the_epoch_of_the_owner(node: Node) -> None:
    probe = node.probe()
    for counter in (1, 2, 3):
        probe()
        assert node.record() == WatchRecord(1, "A", counter)


def test_the_file_carries_a_lock_of_its_own_and_stays_in_its_place(node: Node) -> None:
    probe = node.probe()
    probe()
    first = (node.path / WATCH_NAME).stat().st_ino
    fd = os.open(node.path / WATCH_NAME, os.O_RDWR)
    try:
        with pytest.raises(AlreadyLocked):
            OfdLocker().lock(fd, EXCLUSIVE)
        probe()
        assert (node.path / WATCH_NAME).stat().st_ino == first
        probe.close()
        OfdLocker().lock(fd, EXCLUSIVE)
    finally:
        os.close(fd)


def test_a_former_owner_that_still_holds_the_lock_of_its_file_is_in_nobodys_way(node: Node) -> None:
    former = node.probe()
    former()
    (node.path / LOCK_NAME).unlink()
    successor = Node(node.path, "B").activate()
    try:
        successor.probe()()
        assert successor.record() == WatchRecord(2, "A", 1)
    finally:
        successor.end()


def test_an_owner_that_was_superseded_is_fenced_and_writes_nothing(node: Node) -> None:
    probe = node.probe()
    probe()
    before = (node.path / WATCH_NAME).read_bytes()
    (node.path / LOCK_NAME).unlink()
    successor = Node(node.path, "B").activate()
    try:
        with pytest.raises(FencedError, match="superseded by epoch 2 of server B"):
            probe()
        assert (node.path / WATCH_NAME).read_bytes() == before
    finally:
        successor.end()


@pytest.mark.parametrize("replace", [False, True])
def test_a_lock_file_that_was_removed_or_replaced_fences(node: Node, *, replace: bool) -> None:
    probe = node.probe()
    probe()
    (node.path / LOCK_NAME).unlink()
    if replace:
        (node.path / LOCK_NAME).touch()
    with pytest.raises(FencedError, match="lock file was"):
        probe()


def test_an_epoch_file_that_was_removed_fences(node: Node) -> None:
    probe = node.probe()
    probe()
    (node.path / EPOCH_NAME).unlink()
    with pytest.raises(FencedError, match="removed or replaced"):
        probe()


def test_a_self_raise_is_no_successor(node: Node) -> None:
    probe = node.probe()
    probe()
    node.owner.raise_epoch()
    probe()
    assert node.record() == WatchRecord(2, "A", 2)


def test_while_the_owner_raises_its_own_epoch_nothing_is_judged(node: Node) -> None:
    probe = node.probe()
    probe()

    class Late:
        """The record of the next epoch is there, and the owner does not know it yet."""

        identity = node.owner.identity
        raises = 0

        def confirm_beside(self) -> None:
            node.owner.confirm_beside()

        def verify_lock(self) -> None:
            node.owner.verify_lock()

    late = Late()
    other = Probe(node.disk, node.owner.root, late, server_id="A", look=nothing)
    node.probes.append(other)
    other()
    late.raises = 1
    node.owner.raise_epoch()
    other()
    late.raises = 2
    other()
    # Nothing is under way any more, and somebody has the next number: that is a successor.
    (node.path / LOCK_NAME).unlink()
    successor = Node(node.path, "B").activate()
    with pytest.raises(FencedError):
        other()
    successor.end()


def test_the_state_files_are_looked_at_last(node: Node) -> None:
    looks: list[WatchRecord | None] = []
    node.probe(lambda: looks.append(node.record()))()
    assert looks == [WatchRecord(1, "A", 1)]


# ---- errors of storage
# -----------------------------------------------------------------------------------------------


class Locker(BaseLocker):
    """Grants every lock, unless it is told otherwise."""

    def __init__(self, error: OSError | None = None) -> None:
        self._error = error

    def lock(self, file_obj: FileArgument, flags: LockFlags) -> None:
        if self._error is not None:
            raise LockException(self._error, str(self._error), fh=file_obj) from self._error

    def unlock(self, file_obj: FileArgument) -> None:
        """Nothing was taken."""


class Steady:
    """An owner whose store is its own."""

    identity = (7, b"nonce")
    raises = 0

    def confirm_beside(self) -> None:
        """Still ours."""

    def verify_lock(self) -> None:
        """Still there."""


def simulated(locker: Locker | None = None, disk: SimDisk | None = None) -> tuple[SimDisk, Probe]:
    disk = disk or SimDisk()
    disk.make_dirs("/store")
    probe = Probe(
        disk,
        disk.open_dir("/store"),
        Steady(),
        server_id="A",
        look=nothing,
        locker=locker or Locker(),
    )
    return disk, probe


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EROFS, errno.ENXIO])
@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_a_write_that_storage_refuses_is_one_line_with_the_errno(call: str, code: int) -> None:
    disk, probe = simulated()
    probe()
    disk.fail_next(call, code)
    with pytest.raises(StoreError, match=rf"ft\.watch: .*\({errno.errorcode[code]}\)") as caught:
        probe()
    assert caught.value.hint


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["open", "pwrite", "fdatasync"])
def test_a_full_disk_answers_and_ends_nobody(call: str, code: int) -> None:
    disk, probe = simulated()
    disk.fail_next(call, code)
    probe()
    probe()
    data = disk.tree("/store")[WATCH_NAME]
    assert data is not None
    assert decode_watch(data) is not None


class Contested(SimDisk):
    """A former owner, or a lost answer, makes the file so often before this owner does."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._times = times

    def open(self, dir_fd: int, name: str, flags: int, mode: int = 0o640) -> int:
        if name == WATCH_NAME and self._times:
            self._times -= 1
            self.close(super().open(dir_fd, name, flags, mode))
        return super().open(dir_fd, name, flags, mode)


@pytest.mark.parametrize("times", [1, 2])
def test_a_file_that_a_former_owner_made_in_between_is_replaced(times: int) -> None:
    disk, probe = simulated(disk=Contested(times))
    assert probe()
    data = disk.tree("/store")[WATCH_NAME]
    assert data is not None
    found = decode_watch(data)
    assert found is not None
    assert replace(found, at_ns=0) == WatchRecord(7, "A", 1)


def test_a_file_that_others_make_again_and_again_is_a_failure_of_storage() -> None:
    _, probe = simulated(disk=Contested(100))
    with pytest.raises(StoreError, match="EEXIST"):
        probe()


def test_a_lock_that_storage_refuses_is_a_failure_of_storage() -> None:
    _, probe = simulated(Locker(OSError(errno.ENOLCK, "No locks available")))
    with pytest.raises(StoreError, match="ENOLCK"):
        probe()
    probe.close()


# ---- while the owner goes on to its next epoch
# -----------------------------------------------------------------------------------------------


class Going(Steady):
    """An owner that is about to raise its epoch, or in the middle of it."""

    def __init__(self, raises: int = 0) -> None:
        self.raises = raises
        self.is_overtaken = False

    def confirm_beside(self) -> None:
        if self.is_overtaken:
            # By itself, while it was looked at.
            self.raises = 2
            raise FencedError("superseded")


def going(owner: Steady, disk: SimDisk | None = None) -> tuple[SimDisk, Probe]:
    disk = disk or SimDisk()
    disk.make_dirs("/store")
    root = disk.open_dir("/store")
    return disk, Probe(disk, root, owner, server_id="A", look=nothing, locker=Locker())


def test_a_first_probe_in_the_middle_of_it_makes_no_file() -> None:
    disk, probe = going(Going(1))
    assert not probe()
    assert disk.tree("/store") == {}


def test_a_later_one_asks_storage_and_judges_nothing() -> None:
    owner = Going()
    looked: list[bool] = []
    disk, probe = going(owner)
    probe._look = lambda: looked.append(True)
    assert probe()
    before = disk.tree("/store")[WATCH_NAME]
    owner.is_overtaken = True
    assert not probe()
    assert disk.tree("/store")[WATCH_NAME] != before
    assert looked == [True]
    # Without a raise behind it somebody else has taken the store.
    with pytest.raises(FencedError):
        probe()


def test_whoever_begins_it_while_the_file_is_made_is_not_judged_and_nothing_more_is_removed() -> (
    None
):
    owner = Going()
    disk, probe = going(owner, Contested(1))

    def hook(_number: int, call: str, arguments: tuple[object, ...]) -> None:
        if call == "open" and WATCH_NAME in arguments:
            owner.raises = 1

    disk.on_call = hook
    assert not probe()
    assert sum(line.startswith("unlink") for line in disk.log) == 1
    owner.raises = 2
    disk.on_call = None
    assert probe()


def test_a_directory_of_that_name_is_left_alone_and_the_rest_is_asked() -> None:
    disk, probe = simulated()
    disk.add_tree("/store", {f"{WATCH_NAME}/subs.dat": b"x"})
    before = disk.tree("/store")
    assert probe()
    assert disk.tree("/store") == before
    assert probe.room == ENDLESS


@pytest.mark.parametrize("by", ["removed", "replaced"])
def test_a_file_that_lost_its_name_to_a_former_owner_is_made_anew(by: str) -> None:
    disk, probe = simulated()
    assert probe()
    other = disk.sibling()
    root = other.open_dir("/store")
    other.unlink(root, WATCH_NAME)
    if by == "replaced":
        other.close(other.open(root, WATCH_NAME, os.O_RDWR | os.O_CREAT))
    # This one writes where nobody looks, and the next one makes another file.
    handles = disk.open_handles
    assert probe()
    assert disk.open_handles == handles - 1
    assert probe()
    assert disk.open_handles == handles
    found = decode_watch(disk.tree("/store")[WATCH_NAME] or b"")
    assert found is not None
    assert found.counter == 3


def test_a_file_that_cannot_be_closed_is_let_go_without_a_word() -> None:
    disk, probe = simulated()
    assert probe()
    disk.fail_next("close", errno.EIO)
    probe.close()
    probe.close()


def test_a_state_file_that_cannot_be_looked_at_is_a_failure_of_storage() -> None:
    _, probe = simulated()

    def look() -> None:
        raise OSError(errno.EIO, "Input/Output Error")

    probe._look = look
    with pytest.raises(StoreError) as caught:
        probe()
    assert caught.value.text == (
        "the storage of this server fails: a state file: input/output error (EIO)"
    )
    assert caught.value.hint == "check the storage and the kernel log of this host"


def test_every_probe_writes_something_new_before_it_syncs() -> None:
    """After a lost lock the first sync of NFS says EIO, and one with nothing to write says that all
    is well.
    """
    disk, probe = simulated()
    probe()
    contents = set()
    for _ in range(5):
        disk.log.clear()
        probe()
        contents.add(disk.tree("/store")[WATCH_NAME])
        assert [line.split()[0] for line in disk.log][:2] == ["pwrite", "fdatasync"]
    assert len(contents) == 5


class Roomless(SimDisk):
    """Storage that does not say how much room there is."""

    def space(self, fd: int) -> Space:
        raise OSError(errno.ENOSYS, "not here")


def test_a_probe_looks_for_room_and_judges_nobody_by_it() -> None:
    _, probe = simulated()
    probe()
    assert probe.room == ENDLESS
    _, other = simulated(disk=Roomless())
    other()
    assert other.room is None


def test_what_is_torn_or_of_another_kind_is_no_record() -> None:
    data = WatchRecord(3, "server", 9).encode()
    assert decode_watch(data) == WatchRecord(3, "server", 9)
    for i in range(0, len(data), 97):
        assert decode_watch(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :]) is None
    assert decode_watch(data[:-1]) is None
    assert decode_watch(b"") is None


# ---- the thread
# --------------------------------------------------------------------------------------------------


class Step:
    """A probe that the test lets go on."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.go = threading.Event()
        self.error: Exception | None = None
        self.closed = threading.Event()

    def __call__(self) -> bool:
        self.began.set()
        assert self.go.wait(60)
        if self.error is not None:
            raise self.error
        return True

    def close(self) -> None:
        self.closed.set()


def started(step: Step, clock: ManualClock) -> tuple[Watch, list[BaseException]]:
    failures: list[BaseException] = []
    watch = Watch(step, clock, 0.001, failures.append)  # type: ignore[arg-type]
    watch.start()
    assert step.began.wait(60)
    return watch, failures


def test_a_probe_that_hangs_is_seen_from_outside_since_its_start() -> None:
    step = Step()
    clock = ManualClock()
    watch, failures = started(step, clock)
    start = clock.mono()
    clock.advance(20)
    assert (watch.since, watch.passed) == (start, 0)
    step.go.set()
    assert watch.stop(60)
    assert watch.passed > 0
    assert (watch.since, watch.passed_at, failures) == (None, start + 20, [])
    assert step.closed.is_set()


def test_a_failure_is_told_once_with_its_hint_and_ends_the_thread() -> None:
    step = Step()
    step.error = StoreError("storage fails", hint="check it")
    watch, failures = started(step, ManualClock())
    step.go.set()
    assert step.closed.wait(60)
    assert watch.stop(60)
    assert [(type(error), str(error)) for error in failures] == [
        (StoreError, "storage fails; check it")
    ]


def test_after_a_stop_a_failure_counts_for_nothing() -> None:
    step = Step()
    step.error = FencedError("not ours")
    watch, failures = started(step, ManualClock())
    assert not watch.stop(0.0)
    step.go.set()
    assert watch.stop(60)
    assert failures == []


class Looks:
    """A probe that answers what the test says, and lets a second pass."""

    room = ENDLESS

    def __init__(self, clock: ManualClock, *answers: bool | Exception) -> None:
        self._clock = clock
        self._answers = list(answers)

    def __call__(self) -> bool:
        self._clock.advance(1)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """Nothing is open."""


def test_what_cannot_be_judged_counts_as_one_probe_since_its_beginning() -> None:
    clock = ManualClock()
    failures: list[BaseException] = []
    watch = Watch(Looks(clock, True, False, False, True), clock, 1.0, failures.append)
    start = clock.mono()
    assert watch.room == ENDLESS
    assert watch.turn()
    assert (watch.since, watch.passed, watch.passed_at) == (None, 1, start + 1)
    assert watch.turn()
    assert watch.turn()
    assert (watch.since, watch.passed, watch.passed_at) == (start + 1, 1, start + 1)
    assert watch.turn()
    assert (watch.since, watch.passed, watch.passed_at) == (None, 2, start + 4)
    assert watch.took.cumulative()[-1] == 2
    assert failures == []


@pytest.mark.parametrize("error", [FencedError("not ours"), ZeroDivisionError("a bug")])
def test_a_failure_that_has_no_hint_is_told_as_it_is(error: Exception) -> None:
    clock = ManualClock()
    failures: list[BaseException] = []
    watch = Watch(Looks(clock, error), clock, 1.0, failures.append)
    assert not watch.turn()
    assert failures == [error]
    assert watch.since is None


# ---- state files
# --------------------------------------------------------------------------------------------------


def test_a_state_file_that_is_not_in_its_place_is_suspected_once(tmp_path: Path) -> None:
    disk = LocalDisk()
    places = Places()
    (tmp_path / "foo").mkdir()
    files = {
        (b"", "server.dat"): tmp_path / "server.dat",
        (b"foo", "subs.dat"): tmp_path / "foo" / "subs.dat",
    }
    root = disk.open_dir(str(tmp_path))
    for unit, path in files.items():
        path.write_bytes(b"x")
        fd = disk.open(root, str(path), os.O_RDONLY)
        places.put(unit, partial(disk.fstat, fd))
        disk.close(fd)
    places.look(disk, root)
    assert not places.suspects
    for path in files.values():
        path.rename(path.with_suffix(".old"))
    files[b"", "server.dat"].write_bytes(b"somebody else's")
    for _ in range(3):
        places.look(disk, root)
    assert set(places.suspects) == set(files)
    assert len(places.suspects) == 2
    disk.close(root)


def test_many_channels_are_looked_at_a_few_at_a_time_and_none_is_forgotten() -> None:
    disk = SimDisk()
    places = Places()
    disk.make_dirs("/store")
    names = [f"c{i}" for i in range(150)]
    disk.add_tree("/store", {f"{name}/subs.dat": b"x" for name in names})
    root = disk.open_dir("/store")
    for name in names:
        dirfd = disk.open_dir_at(root, name)
        places.put((name.encode(), "subs.dat"), partial(disk.stat, dirfd, "subs.dat"))
        disk.unlink(dirfd, "subs.dat")
    disk.log.clear()
    places.look(disk, root)
    assert len([line for line in disk.log if line.startswith("stat ")]) == 64
    for _ in range(3):
        places.look(disk, root)
    assert {channel.decode() for channel, _ in places.suspects} == set(names)


# ---- the last word
# --------------------------------------------------------------------------------------------------


def last_word(path: Path, *, ending: Ending, kill: bool = False) -> EpochRecord:
    """What the second owner of a directory records of the first, which served for 10 s."""
    clock = ManualClock(1_700_000_000_000_000_000)
    records = []
    for _ in range(2):
        owner = StoreOwner(
            LocalDisk(),
            str(path),
            server_id="A",
            clock=clock,
            in_group=True,
            name="node-a",
            mountinfo=LOCAL,
        )
        owner.try_lock()
        records.append(owner.activate().record())
        probe = Probe(
            LocalDisk(), owner.root, owner, server_id="A", look=nothing, wall_ns=clock.wall_ns
        )
        clock.advance(7)
        probe()
        probe.close()
        clock.advance(3)
        if not kill:
            owner.ending = ending
        owner.close()
        clock.advance(60)
    assert records[0].name == "node-a"
    return records[1]


def test_the_next_owner_records_when_and_how_the_one_before_it_ended(tmp_path: Path) -> None:
    record = last_word(tmp_path, ending=Ending.SIGTERM)
    assert (record.left, record.left_ns) == (Ending.SIGTERM, 1_700_000_010_000_000_000)


def test_a_first_owner_that_ends_before_its_first_probe_has_a_last_word_too(tmp_path: Path) -> None:
    node = Node(tmp_path).activate()
    node.owner.ending = Ending.SIGTERM
    node.end()
    left = departure((tmp_path / WATCH_NAME).read_bytes())
    assert left is not None
    assert (left.epoch, left.how) == (1, Ending.SIGTERM)


def test_of_an_owner_that_died_it_records_the_last_sign_of_life(tmp_path: Path) -> None:
    record = last_word(tmp_path, ending=Ending.SIGTERM, kill=True)
    assert (record.left, record.left_ns) == (Ending.UNSAID, 1_700_000_007_000_000_000)


def test_the_last_word_of_an_owner_with_a_lock_is_no_farewell() -> None:
    data = watch.last_word(3, "server", 5, Ending.DRAIN)
    assert not is_farewell(data, 3)
    assert departure(data) == Departure(3, 5, Ending.DRAIN)


def test_a_former_owner_leaves_no_last_word_in_the_file_of_its_successor(tmp_path: Path) -> None:
    node = Node(tmp_path).activate()
    node.probe()()
    successor = Node(tmp_path, "B")
    # It was taken without the lock: what a hung owner does not notice.
    successor.owner.activate(without_lock=True)
    successor.probe()()
    before = (tmp_path / WATCH_NAME).read_bytes()
    node.owner.ending = Ending.SIGTERM
    node.end()
    assert (tmp_path / WATCH_NAME).read_bytes() == before
    successor.end()


def test_what_older_releases_wrote_has_no_time_and_no_end() -> None:
    data = WatchRecord(3, "server", 9).encode()
    assert not any(data[158:])
    assert departure(data) is None
    assert departure(b"") is departure(b"torn") is departure(None) is None
