"""Attacks on fencing, third round: combinations of features, each of which is safe by itself.

A deletion that was cut short and an original server; a switch to a mixed group and a store that is
stolen; a refused batch in a mixed group and a death; a tool that stands still and a server that
stops cleanly; strange directory entries.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from greenlet import greenlet

from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import FencedError, FtstanError, RecoveryError, StoreError
from ftstan.broker.dedup import Window
from ftstan.ft.lock import StoreLock
from ftstan.ft.ownership import StoreOwner
from ftstan.stores.file.env import FileEnv, FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.state import state_records
from ftstan.stores.file.state.confirmed import ConfirmedFile, read_confirmed
from ftstan.stores.file.tools.changing import rewrite
from ftstan.stores.file.tools.rewriting import compact_channel, hand_over_channel
from ftstan.stores.interface import REMEMBERED_SIZE, ChannelLimits, StoredAt, SubState
from ftstan.wire.block import MsgBlock
from tests import filenode
from tests.filenode import FileNode, Owner, simulated
from tests.oracle.gostore import read_tree
from tests.sim.disk import CrashMode, Killed
from tests.sim.ft.locks import LockService, SimLocker
from tests.unit.ft.test_raise import writes_slot
from tests.unit.ft.test_review_fencing import LOCAL
from tests.unit.stores.test_foreign_writes import (
    after,
    append,
    mixed,
    original_stores,
    read_by_original,
)
from tests.unit.stores.test_slices import Node, contents, fresh

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ftstan.stores.file.tools.changing import Work
    from tests.sim.disk import SimDisk

SMALL = FileStoreOptions(slice_max_msgs=2)
CRC = records.Crc()


# ---- a deletion that was cut short, and an original server behind it
# -------------------------------------------------


def cut_short(where: str) -> FileNode:
    """A node whose deletion of a channel with six messages has got that far, and which serves no
    more.
    """
    node = FileNode(simulated(), owner=filenode.Owner(mixed=True), options=SMALL)
    node.put(*(b"%d" % i for i in range(6)))
    node.tick()

    def hook(_number: int, call: str, args: tuple[object, ...]) -> None:
        if (
            call == "unlink"
            and where == "the intent is left"
            and str(args[1]).startswith("ft.deleting.")
        ):
            raise Killed
        if call == "unlink" and where == "the slices are gone" and args[1] == "confirmed.bin":
            raise Killed
        if call == "rmdir" and where == "storage keeps the directory":
            raise OSError(errno.ENOTEMPTY, "a program on this host reads a file of it")

    node.disk.on_call = hook  # type: ignore[attr-defined]
    with contextlib.suppress(Killed):
        node.store.delete_channel(b"foo")
        node.store.close()
    node.disk.on_call = None  # type: ignore[attr-defined]
    return node


def left_by(node: FileNode) -> SimDisk:
    disk: SimDisk = node.disk.crash(process_only=True)  # type: ignore[attr-defined]
    if "foo" not in disk.tree("/store"):
        disk.make_dirs("/store/foo")
    return disk


def mixed_successor(node: FileNode, disk: SimDisk) -> FileNode:
    owner = filenode.Owner(node.owner.epoch + 1, mixed=True)
    return FileNode(disk, owner=owner, options=node.options, clock=node.clock)


WHERE = ["the intent is left", "the slices are gone", "storage keeps the directory"]


@pytest.mark.parametrize("where", WHERE)
def test_what_an_original_acked_behind_a_deletion_that_was_cut_short_stays(where: str) -> None:
    node = cut_short(where)
    disk = left_by(node)
    # It knows no intents: to it there is no such channel, or an empty one, whose first message is
    # number 1.
    original_stores(disk, 1, 1, b"acked", b"acked, too")
    assert read_by_original(disk.tree("/store")) == [(1, b"acked"), (2, b"acked, too")]
    new = mixed_successor(node, disk)
    assert sorted(new.channels) == [b"foo"]
    assert new.sequences() == [1, 2]


@pytest.mark.parametrize("where", WHERE)
def test_a_durable_that_an_original_answered_behind_a_deletion_that_was_cut_short_stays(
    where: str,
) -> None:
    node = cut_short(where)
    disk = left_by(node)
    row = state_records.sub_record(
        records.SUB_NEW, SubState(1, b"me", durable_name=b"d", is_durable=True), CRC
    )
    append(disk, "subs.dat", row)
    assert len(read_tree(disk.tree("/store")).channels[b"foo"].subs) == 1
    assert sorted(mixed_successor(node, disk).channels) == [b"foo"]


# ---- a claimer that has looked already, and an owner that comes between its look and its fills
# -----------------------


class Claimers:
    """A store with an owner that holds the lock, and others that take it without.

    Who is paused where is scripted.
    """

    def __init__(self) -> None:
        self.locks = LockService()
        self.disk = simulated()
        self.owner = self.member(self.disk, "OWNER")
        self.owner.try_lock()
        self.owner.activate(ft_mixed=False)

    def member(self, disk: SimDisk, name: str) -> StoreOwner:
        member = StoreOwner(
            disk, "/store", server_id=name, clock=ManualClock(), in_group=True, mountinfo=LOCAL
        )
        member._lock = StoreLock(disk, member.root, "/store", SimLocker(self.locks, disk))
        return member


def pause_at(
    disk: SimDisk, wanted: Callable[[str, tuple[object, ...]], bool], then: Callable[[], object]
) -> None:
    """Once, before a call of that process: others go on."""

    def hook(_number: int, call: str, args: tuple[object, ...]) -> None:
        if wanted(call, args):
            disk.on_call = None
            then()

    disk.on_call = hook


def stolen_while_switched_on() -> tuple[Claimers, StoreOwner]:
    """The owner has claimed the number of a mixed epoch when a thief claims the next one, and
    looks; then the owner writes its record and tells the operator that the group is mixed; then the
    thief goes on.
    """
    claimers = Claimers()
    here = greenlet.getcurrent()

    def switch() -> None:
        claimers.owner.set_mixed(on=True)
        claimers.owner.confirm()

    switching = greenlet(switch)
    pause_at(claimers.disk, writes_slot(2), here.switch)
    switching.switch()
    assert not switching.dead
    thief = claimers.member(claimers.disk.sibling(), "THIEF")
    disk = thief._disk
    assert isinstance(disk, type(claimers.disk))
    pause_at(disk, lambda call, _: call == "pwrite", switching.switch)
    with contextlib.suppress(FencedError):
        thief.activate(without_lock=True)
    assert switching.dead, "the operator was told that the group is mixed"
    return claimers, thief


def test_a_store_is_not_stolen_past_an_owner_that_has_just_recorded_a_mixed_group() -> None:
    claimers, thief = stolen_while_switched_on()
    with pytest.raises(FencedError):
        claimers.owner.confirm()
    claimers.owner.release()
    # An original server gets the lock, and writes and answers from now on; nobody else may.
    original = claimers.member(claimers.disk.sibling(), "ORIGINAL")
    original.try_lock()
    with pytest.raises(FencedError):
        thief.confirm()


def test_what_an_operator_was_told_of_a_mixed_group_is_recorded_whoever_takes_the_store() -> None:
    claimers, _ = stolen_while_switched_on()
    newest = claimers.owner.read_owner()
    assert newest is not None
    assert newest.ft_mixed


def test_a_claimer_does_not_take_an_owner_that_was_followed_for_its_predecessor() -> None:
    claimers = Claimers()
    claimers.owner.release()
    first = claimers.member(claimers.disk.sibling(), "FIRST")
    second = claimers.member(claimers.disk.sibling(), "SECOND")
    here = greenlet.getcurrent()

    def take() -> None:
        first.try_lock()
        first.activate()
        # It owns the store, and may store and answer what the one before it has named to somebody
        # else.
        first.confirm()

    taking = greenlet(take)
    # It has claimed its number when storage takes its lock away.
    pause_at(first._disk, writes_slot(2), here.switch)  # type: ignore[arg-type]
    taking.switch()
    claimers.locks.lose(first._disk)  # type: ignore[arg-type]
    second.try_lock()
    pause_at(second._disk, lambda call, _: call == "pwrite", taking.switch)  # type: ignore[arg-type]
    activation = None
    with contextlib.suppress(FencedError):
        activation = second.activate()
    assert taking.dead
    # ``Handover.decide``: somebody else has owned the store since.
    assert activation is None or activation.predecessor[0] != 1


def switched_and_stolen(owner_calls: int, thief_calls: int) -> bool:
    """The owner is preempted after so many calls of a switch, then the thief after so many.

    Whether both still were.
    """
    claimers = Claimers()
    here = greenlet.getcurrent()
    thief = claimers.member(claimers.disk.sibling(), "THIEF")
    told: list[bool] = []

    def switch() -> None:
        with contextlib.suppress(FencedError):
            claimers.owner.set_mixed(on=True)
            claimers.owner.confirm()
            told.append(True)

    def steal() -> None:
        with contextlib.suppress(FencedError):
            thief.activate(without_lock=True)

    def preempted(disk: SimDisk, calls: int, work: Callable[[], None]) -> greenlet:
        first = disk.calls
        pause_at(disk, lambda _call, _args: disk.calls - first > calls, here.switch)
        return greenlet(work)

    thiefs_disk = thief._disk
    assert isinstance(thiefs_disk, type(claimers.disk))
    switching = preempted(claimers.disk, owner_calls, switch)
    stealing = preempted(thiefs_disk, thief_calls, steal)
    switching.switch()
    stealing.switch()
    both = not switching.dead and not stealing.dead
    for player in (switching, stealing):
        while not player.dead:
            player.switch()
    owners = []
    for member in (claimers.owner, thief):
        with contextlib.suppress(FencedError):
            member.confirm()
            owners.append(member)
    assert len(owners) <= 1
    newest = claimers.owner.read_owner()
    assert newest is not None
    if told:
        assert newest.ft_mixed
        assert thief not in owners
    return both


def test_nobody_owns_a_store_without_its_lock_wherever_a_switch_to_mixed_is_preempted() -> None:
    assert sum(switched_and_stolen(one, other) for one in range(40) for other in range(40)) > 300


# ---- a refused batch in a mixed group
# --------------------------------------------------------------------------------


def refuse(node: Node, wanted: str, *words: str) -> None:
    """Let the next call of that name fail."""

    def hook(_number: int, call: str, args: tuple[object, ...]) -> None:
        if call == wanted and all(word in args for word in words):
            node.disk.on_call = None
            raise OSError(errno.ENOSPC, "no space")

    node.disk.on_call = hook


def seconds(node: Node, count: int) -> None:
    for _ in range(count):
        node.clock.advance(1.0)
        node.store.tick(node.clock.wall_ns())


def test_in_a_mixed_group_what_was_acked_behind_a_refused_batch_is_read_by_an_original() -> None:
    node = Node(fresh(), mixed())
    node.put(b"a")
    seconds(node, 1)
    # In a mixed group the entries are there before the data is synced.
    refuse(node, "fdatasync")
    assert node.put(b"refused", b"refused, too") != {}
    node.clock.advance(1.0)
    assert node.put(b"acked") == {}
    disk = node.disk.crash(process_only=True)
    assert contents(after(node, disk.crash(process_only=True))) == [(1, b"a"), (2, b"acked")]
    assert read_by_original(disk.tree("/store")) == [(1, b"a"), (2, b"acked")]


@pytest.mark.parametrize(("call", "name"), [("open", "tmp.2.idx"), ("unlink", "tmp.2.dat")])
def test_in_a_mixed_group_a_slice_that_was_refused_goes_within_seconds(
    call: str, name: str
) -> None:
    node = Node(fresh(), mixed(), SMALL)
    node.put(b"a", b"b")
    seconds(node, 1)
    refuse(node, call, name)
    assert node.put(b"refused", b"refused, too") != {}
    seconds(node, 5)
    assert node.put(b"acked", b"acked, too", b"and this") == {}
    seconds(node, 60)
    disk = node.disk.crash(process_only=True)
    expected = [(1, b"a"), (2, b"b"), (3, b"acked"), (4, b"acked, too"), (5, b"and this")]
    assert contents(after(node, disk.crash(process_only=True))) == expected
    assert read_by_original(disk.tree("/store")) == expected


@pytest.mark.parametrize("mode", [CrashMode.LOST, CrashMode.ORDERED])
def test_what_was_delivered_of_a_batch_refused_in_a_mixed_group_outlives_a_power_cut(
    mode: CrashMode,
) -> None:
    node = Node(fresh(), mixed())
    node.put(b"a")
    seconds(node, 1)
    node.disk.on_call = lambda _n, call, _a: (
        node.disk.fail_next(call, errno.EIO) if call == "fdatasync" else None
    )
    assert node.put(b"refused") != {}
    node.disk.on_call = None
    # Before the second is over the operator ends the mixed group; nothing more is published under
    # that epoch.
    node.owner.epoch = 2
    node.owner.originals = 1
    node.owner.mixed = False
    seconds(node, 3)
    killed = node.disk.crash(process_only=True)
    new = Node(killed, Owner(3, originals=1), node.options, node.limits, node.clock)
    delivered = contents(new)
    assert new.put(b"acked") == {}
    seconds(new, 3)
    last = Node(
        new.disk.crash(mode=mode), Owner(4, originals=1), node.options, node.limits, node.clock
    )
    assert last.store.quarantined == []
    assert contents(last)[: len(delivered)] == delivered


# ---- a tool that stands still
# ----------------------------------------------------------------------------------------


def paused_tool(work: Work, kind: str, *, epoch: int, stop: bool) -> FileNode:
    """The owner behind a tool that stands still before it removes the first file of that kind, and
    wakes up.
    """
    node = FileNode(simulated(), owner=filenode.Owner(epoch), options=SMALL)
    node.put(*(b"%d" % i for i in range(8)))
    node.tick()
    node.store.close()
    disk = node.disk.sibling()  # type: ignore[attr-defined]
    owner = filenode.Owner(epoch + 1)
    env = FileEnv(disk, disk.open_dir("/store"), node.clock, SMALL, owner, CRC)
    made: list[FileNode] = []

    def serve() -> None:
        owner.fenced = True
        new = FileNode(
            disk.sibling(), owner=filenode.Owner(epoch + 2), options=SMALL, clock=node.clock
        )
        made.append(new)
        assert new.sequences() == list(range(1, 9))
        assert new.put(b"acked") == {}
        for _ in range(3):
            new.tick()
        if stop:
            new.store.close()

    def removes(call: str, args: tuple[object, ...]) -> bool:
        return call == "unlink" and str(args[1]).startswith("msgs.") and str(args[1]).endswith(kind)

    pause_at(disk, removes, serve)
    with pytest.raises(FencedError):
        rewrite(env, work, max_bytes=10_000)
    return made[0].successor()


@pytest.mark.parametrize("kind", ["idx", "dat"])
@pytest.mark.parametrize(
    ("work", "epoch", "stop"),
    [
        pytest.param(compact_channel, 1, True, id="compact, behind it a clean stop"),
        pytest.param(hand_over_channel, 1, True, id="handover, behind it a clean stop"),
        pytest.param(
            hand_over_channel, 2, False, id="handover to lower numbers, behind it some seconds"
        ),
    ],
)
def test_a_tool_that_stands_still_before_it_removes_an_old_slice_takes_nothing_from_its_successor(
    work: Work, epoch: int, kind: str, *, stop: bool
) -> None:
    last = paused_tool(work, kind, epoch=epoch, stop=stop)
    block = last.channels[b"foo"].read(3, 1, 1000)
    assert block is not None
    assert block.sequence(0) == 3
    assert last.sequences() == list(range(1, 10))


@pytest.mark.parametrize("kind", ["idx", "dat"])
def test_a_compaction_that_stands_still_is_no_harm_while_its_successor_cuts_nothing(
    kind: str,
) -> None:
    assert paused_tool(compact_channel, kind, epoch=1, stop=False).sequences() == list(range(1, 10))


def still_at(
    work: Work, call: int, *, epoch: int, max_bytes: int, again: Work | None
) -> FileNode | None:
    """The owner behind a tool that stands still before that call, its successor, and the tool that
    wakes up.

    ``again``: the successor stops, and somebody runs that. ``None``: the tool had ended before that
    call.
    """
    node = FileNode(simulated(), owner=filenode.Owner(epoch), options=SMALL)
    node.store.remember([b"d" * REMEMBERED_SIZE], {b"d" * REMEMBERED_SIZE: StoredAt(1, 7)})
    node.put(*(b"%d" % i for i in range(8)))
    node.tick()
    node.store.close()
    disk = node.disk.sibling()  # type: ignore[attr-defined]
    owner = filenode.Owner(epoch + 1)
    env = FileEnv(disk, disk.open_dir("/store"), node.clock, SMALL, owner, CRC)
    made: list[FileNode] = []

    def serve() -> None:
        owner.fenced = True
        new = FileNode(
            disk.sibling(), owner=filenode.Owner(epoch + 2), options=SMALL, clock=node.clock
        )
        made.append(new)
        assert new.sequences() == list(range(1, 9))
        assert new.put(b"acked") == {}
        for _ in range(3):
            new.tick()
        if again is not None:
            new.store.close()
            other = disk.sibling()
            behind = filenode.Owner(epoch + 3)
            rewrite(
                FileEnv(other, other.open_dir("/store"), node.clock, SMALL, behind, CRC),
                again,
                max_bytes=max_bytes,
            )

    pause_at(disk, lambda _call, _args: disk.calls >= call, serve)
    with contextlib.suppress(FtstanError, FileNotFoundError):
        rewrite(env, work, max_bytes=max_bytes)
    if not made:
        return None
    last = filenode.Owner(epoch + 4)
    return FileNode(disk.sibling(), owner=last, options=SMALL, clock=node.clock)


@pytest.mark.parametrize("again", [None, compact_channel])
@pytest.mark.parametrize("max_bytes", [150, 10_000])
@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.parametrize("work", [compact_channel, hand_over_channel])
def test_wherever_a_tool_stands_still_it_takes_nothing_from_its_successors(
    work: Work, epoch: int, max_bytes: int, again: Work | None
) -> None:
    call = epoch + (again is None)
    while (last := still_at(work, call, epoch=epoch, max_bytes=max_bytes, again=again)) is not None:
        assert last.store.quarantined == []
        assert last.sequences() == list(range(1, 10)), f"call {call}"
        assert sorted(last.recovered.remembered) == [b"d" * REMEMBERED_SIZE]
        call += 4
    assert call > 100


def test_a_server_paused_before_it_expires_messages_takes_nothing_from_a_compaction() -> None:
    limits = ChannelLimits(max_msgs=6, max_bytes=0)
    node = FileNode(simulated(), options=SMALL, limits=limits)
    node.put(*(b"%d" % i for i in range(8)))

    def compact() -> None:
        node.owner.fenced = True
        disk = node.disk.sibling()  # type: ignore[attr-defined]
        env = FileEnv(disk, disk.open_dir("/store"), node.clock, SMALL, filenode.Owner(2), CRC)
        assert rewrite(env, compact_channel, max_bytes=10_000) == [(b"foo", 3)]

    pause_at(node.disk, lambda call, args: call == "unlink" and args[1] == "msgs.1.idx", compact)  # type: ignore[arg-type]
    with contextlib.suppress(FencedError):
        node.tick()
    disk = node.disk.sibling()  # type: ignore[attr-defined]
    last = FileNode(disk, owner=filenode.Owner(3), options=SMALL, limits=limits, clock=node.clock)
    assert last.sequences() == list(range(3, 9))


def test_a_handover_that_dies_forgets_no_number_of_a_message_that_was_lost() -> None:
    """``confirmed.bin`` alone remembers it, until an empty message of that number counts."""
    call = 1
    while True:
        node = FileNode(simulated(), owner=filenode.Owner(2), options=SMALL)
        node.put(*(b"%d" % i for i in range(4)))
        node.tick()
        dirfd = node.disk.open_dir("/store/foo")
        said = read_confirmed(node.disk, dirfd)
        assert said is not None
        ConfirmedFile(node.store._env).replace(dirfd, replace(said, last=9))
        disk = node.disk.crash(process_only=True)  # type: ignore[attr-defined]

        def die(number: int, _name: str, _args: tuple[object, ...], call: int = call) -> None:
            if number >= call:
                raise Killed

        env = FileEnv(disk, disk.open_dir("/store"), node.clock, SMALL, filenode.Owner(3), CRC)
        disk.on_call = die
        try:
            rewrite(env, hand_over_channel, max_bytes=10_000)
        except Killed:
            last = FileNode(
                disk.crash(process_only=True),
                owner=filenode.Owner(4),
                options=SMALL,
                clock=node.clock,
            )
            assert last.channels[b"foo"].last == 9, f"call {call}"
            call += 3
        else:
            break
    assert call > 50


@pytest.mark.parametrize("work", [compact_channel, hand_over_channel])
def test_a_tool_that_stands_still_before_it_removes_side_files_leaves_what_its_successor_remembers(
    work: Work,
) -> None:
    node = FileNode(simulated(), options=SMALL)
    node.store.remember([b"d" * REMEMBERED_SIZE], {b"d" * REMEMBERED_SIZE: StoredAt(1, 7)})
    node.put(b"a")
    node.store.close()
    disk = node.disk.sibling()  # type: ignore[attr-defined]
    owner = filenode.Owner(2)
    made: list[FileNode] = []

    def serve() -> None:
        owner.fenced = True
        new = FileNode(disk.sibling(), owner=filenode.Owner(3), options=SMALL, clock=node.clock)
        made.append(new)
        known = {b"d" * REMEMBERED_SIZE: StoredAt(1, 7), b"e" * REMEMBERED_SIZE: StoredAt(2, 8)}
        new.store.remember([b"e" * REMEMBERED_SIZE], known)
        assert new.put(b"b") == {}

    pause_at(
        disk, lambda call, args: call == "unlink" and args[1] in ("dedup.bin", "ckpt.bin"), serve
    )
    env = FileEnv(disk, disk.open_dir("/store"), node.clock, SMALL, owner, CRC)
    with contextlib.suppress(FencedError):
        rewrite(env, work, max_bytes=10_000)
    (new,) = made
    for _ in range(5):
        new.tick()
    assert sorted(new.successor().recovered.remembered) == [
        b"d" * REMEMBERED_SIZE,
        b"e" * REMEMBERED_SIZE,
    ]


# ---- directory entries that nobody expects
# ---------------------------------------------------------------------------


def make(kind: str, path: Path) -> None:
    path.unlink(missing_ok=True)
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "socket":
            with socket.socket(socket.AF_UNIX) as listening, contextlib.chdir(path.parent):
                listening.bind(path.name)
        case _:
            path.symlink_to("nowhere")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(
            ("fifo", name)
            for name in ("msgs.2.dat", "msgs.1.idx", "msgs.7.idx", "subs.dat", "confirmed.bin")
        ),
        ("fifo", "purged.bin"),
        *(("directory", name) for name in ("msgs.1.idx", "subs.dat", "confirmed.bin")),
        *(
            ("socket", name)
            for name in ("msgs.2.dat", "msgs.1.idx", "subs.dat", "confirmed.bin", "purged.bin")
        ),
        ("link to nowhere", "msgs.2.dat"),
    ],
)
def test_no_entry_of_a_channels_directory_keeps_the_other_channels_from_being_served(
    tmp_path: Path, kind: str, name: str
) -> None:
    node = FileNode(LocalDisk(), str(tmp_path))
    node.put(b"a", b"b")
    node.put(b"x", channel=b"bar")
    node.tick()
    node.store.abandon()
    make(kind, tmp_path / "foo" / name)
    served: list[bytes] = []

    def start() -> None:
        with contextlib.suppress(FtstanError, OSError):
            after_it = FileNode(LocalDisk(), str(tmp_path), filenode.Owner(2))
            served.extend(after_it.channels)
            after_it.store.abandon()

    thread = threading.Thread(target=start)
    thread.start()
    thread.join(0.5)
    hangs = thread.is_alive()
    while thread.is_alive():
        # Whoever waits for a writer of the pipe goes on.
        os.close(os.open(tmp_path / "foo" / name, os.O_RDWR | os.O_NONBLOCK))
        thread.join(0.05)
    assert not hangs
    assert b"bar" in served


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_one_file_that_cannot_be_read_refuses_the_start_which_changes_nothing_and_is_tried_again(
    code: int,
) -> None:
    # docs/store.md, section 6; docs/ft.md, activations that storage refuses. What storage refuses
    # now it may give later, here or on another host: a quarantine would last until the next start,
    # and tell of damage that is none.
    node = FileNode(simulated())
    node.put(b"a", b"b")
    node.put(b"x", channel=b"bar")
    node.store.abandon()
    disk = node.disk.sibling()  # type: ignore[attr-defined]

    def hook(_number: int, call: str, args: tuple[object, ...]) -> None:
        if call == "open" and args[1] == "msgs.1.dat" and disk._handles[args[0]].node is foo:
            raise OSError(code, "storage")

    foo = disk._walk("/store/foo")
    before = disk.tree("/store/foo")
    disk.on_call = hook
    with pytest.raises(RecoveryError, match='unable to recover channel "foo": storage'):
        node.successor(disk)
    assert disk.tree("/store/foo") == before
    disk.on_call = None
    again = node.successor(disk)
    assert (again.store.quarantined, again.sequences(), again.sequences(b"bar")) == (
        [],
        [1, 2],
        [1],
    )


def test_what_a_symbolic_link_in_a_channel_names_is_not_cut(tmp_path: Path) -> None:
    store = tmp_path / "store"
    outside = tmp_path / "outside"
    store.mkdir()
    outside.write_bytes(records.VERSION + b"precious" * 100)
    node = FileNode(LocalDisk(), str(store))
    node.put(b"a", b"b")
    node.store.close()
    (store / "foo" / "msgs.2.dat").symlink_to(outside)
    FileNode(LocalDisk(), str(store), filenode.Owner(2)).store.close()
    assert outside.stat().st_size == 804


def stray(name: str, data: bytes) -> FileNode:
    """A node on a store in one of whose channels there is one more file."""
    node = FileNode(simulated())
    node.put(b"a", b"b")
    node.put(b"x", channel=b"bar")
    node.store.close()
    node.disk.add_tree("/store/foo", {name: data})  # type: ignore[attr-defined]
    return node.successor()


@pytest.mark.parametrize("name", ["msgs.99999999999.dat", "msgs.99999999999.idx"])
def test_an_empty_file_with_a_high_number_uses_up_no_epochs(name: str) -> None:
    node = stray(name, b"")
    failures = 0
    for _ in range(20):
        failures += bool(node.put(b"c"))
        node.tick()
    assert (failures < 20, node.owner.epoch) == (True, 2)


def test_a_record_in_a_slice_with_a_high_number_does_not_refuse_the_whole_store() -> None:
    block = MsgBlock()
    block.append(3, b"foo", b"", b"c", 2_000_000_000)
    records.seal(block, CRC)
    found: list[bytes] = []
    with contextlib.suppress(StoreError):
        found.extend(
            stray("msgs.99999999999.dat", records.VERSION + bytes(memoryview(block))).channels
        )
    assert b"bar" in found


def test_what_is_in_a_slice_with_a_high_number_is_served_and_a_handover_gives_it_another() -> None:
    block = MsgBlock()
    block.append(3, b"foo", b"", b"c", 2_000_000_000)
    records.seal(block, CRC)
    node = stray("msgs.99999999999.dat", records.VERSION + bytes(memoryview(block)))
    assert node.sequences() == [1, 2, 3]
    for _ in range(3):
        assert "leaves no room" in node.put(b"d")[b"foo"].text
        assert node.put(b"y", channel=b"bar") == {}
        node.tick()
    assert node.owner.epoch == 2
    node.store.close()
    owner = filenode.Owner(3)
    disk = node.disk.sibling()  # type: ignore[attr-defined]
    rewrite(
        FileEnv(disk, disk.open_dir("/store"), node.clock, SMALL, owner, CRC),
        hand_over_channel,
        max_bytes=10_000,
    )
    last = node.successor(disk.sibling())
    assert last.sequences() == [1, 2, 3]
    assert last.put(b"d") == {}
    assert last.sequences() == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["msgs.99999999999.dat", "msgs.99999999999.idx"])
def test_a_channel_beside_an_empty_file_with_a_high_number_is_deleted_and_made_again(
    name: str,
) -> None:
    node = stray(name, b"")
    node.store.delete_channel(b"foo")
    del node.channels[b"foo"]
    assert node.put(b"anew") == {}
    assert node.sequences() == [1]
    assert node.successor().sequences() == [1]


def test_a_clean_stop_removes_an_empty_file_with_a_high_number() -> None:
    node = stray("msgs.99999999999.dat", b"")
    assert node.put(b"c") == {}
    node.store.close()
    assert "foo/msgs.99999999999.dat" not in node.disk.tree("/store")  # type: ignore[attr-defined]
    assert node.successor().sequences() == [1, 2, 3]


def test_a_store_is_opened_behind_an_original_that_has_used_up_the_numbers_of_many_epochs() -> None:
    node = Node(fresh(), mixed())
    node.put(b"a")
    seconds(node, 1)
    disk = node.disk.crash(process_only=True)
    # With slices of a few messages that is an afternoon of theirs.
    original_stores(disk, 20_000, 2, b"b")
    found: list[tuple[int, bytes]] = []
    with contextlib.suppress(StoreError):
        found = contents(after(node, disk))
    assert found == [(1, b"a"), (2, b"b")]


# ---- publishes that are remembered
# -----------------------------------------------------------------------------------


def test_a_repeat_behind_a_deletion_is_not_acknowledged_by_another_message() -> None:
    node = FileNode(simulated())
    window = Window(10, {})
    window.add(b"foo", b"ft1.x", 1, node.clock.wall_ns(), b"lost ack")
    assert node.put(b"lost ack") == {}
    window.committed(())
    node.store.delete_channel(b"foo")
    del node.channels[b"foo"]
    assert node.put(b"another message") == {}
    # The first ack did not arrive; this one would be the only one, for a message that no log holds.
    assert window.look(b"foo", b"ft1.x", node.channel()) == 0
