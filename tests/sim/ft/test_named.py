"""Histories written by hand: each of the ways in which a group of the old design lost or doubled
messages.

Those that need one process and one call are in ``tests/unit``; the table in ``docs/ft.md`` has all
of them.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from ftstan.admin.protocol import Verb
from ftstan.base.clock import ManualClock
from ftstan.base.errors import FencedError
from ftstan.ft.epoch import EPOCH_NAME
from ftstan.ft.epoch_records import SLOT_SIZE
from ftstan.ft.heartbeat import Heartbeat, encode_heartbeat
from ftstan.ft.lock import LOCK_NAME
from ftstan.ft.subjects import heartbeat_subject
from ftstan.stores.file.log import records
from ftstan.stores.file.log.slices import SliceLog
from ftstan.stores.interface import SubState
from ftstan.wire.block import MsgBlock, SubEvents
from tests.sim.disk import CrashMode, SimDisk
from tests.sim.filestore import SimOwner, open_file_store
from tests.sim.ft import broken
from tests.sim.ft.gopeer import append, find_end, interlude
from tests.sim.ft.group import Group, Shape, numbers_of
from tests.sim.ft.hosts import Client as Host
from tests.sim.ft.hosts import ClientDisk, put
from tests.sim.ft.nodes import CLUSTER
from tests.sim.ft.shapes import LIMITS, LOCAL, MIXED, NETWORK, SMALL_SLICES
from tests.sim.history import STORE
from tests.sim.model import UNLIMITED, Violation, read_all
from tests.sim.nats import Packet
from tests.sim.variants import SMALL, TIGHT
from tests.sim.volume import DirNode, FileNode, Meta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.sim.ft.clients import Client
    from tests.sim.ft.nodes import Node

    At = Callable[[str, tuple[object, ...]], bool]

pytestmark = pytest.mark.usefixtures("quiet")

#: New slices and new state files all the time.
RENEWING = Shape(options=TIGHT.options)
#: How a former owner ends: at its confirm, or before that, at a file that its successor has taken
#: away.
GIVEN_UP = ("fenced", "failed")


@contextmanager
def group_of(shape: Shape, seed: int = 1) -> Iterator[Group]:
    """A group in which nothing goes wrong by itself.

    At the end two more owners must find what was promised.
    """
    with numbers_of(shape):
        group = Group(seed, shape)
        try:
            yield group
            everybody(group)
            group.heal()
            last = group.serve()
            last.kill()
            group._bury(last)
            group.serve()
        finally:
            group.end()


def calls(name: str, *words: object) -> At:
    """A storage call of that name, with those among its arguments."""
    return lambda call, args: call == name and all(word in args for word in words)


def nothing() -> None:
    """Clients do what they do by themselves."""


def move(
    group: Group,
    until: Callable[[], bool],
    *nodes: Node,
    steps: int = 1000,
    also: Callable[[], None] = nothing,
) -> bool:
    """Clients, what was sent, ``nodes`` (all if none is named) and the clock move in small steps.

    Returns ``until()``.

    Whoever stands still goes on doing so. Members that are not named hear what is said, and get no
    storage calls. ``also``: what happens in each step besides.
    """
    for _ in range(steps):
        if until():
            return True
        also()
        group._move_clients()
        for node in nodes or tuple(group.nodes):
            node.spend(30)
        group.pass_time(0.05)
    return until()


def go_on(group: Group, steps: int) -> None:
    """Everybody moves so many steps."""
    move(group, lambda: False, steps=steps)


def pause(group: Group, node: Node, at: At, also: Callable[[], None] = nothing) -> None:
    """Let a node run under load until its data plane is about to make that call, and stop it
    there.
    """

    def of_data_plane(call: str, args: tuple[object, ...]) -> bool:
        fiber = node._current
        return fiber is not None and fiber.name == "data plane" and at(call, args)

    node.stop_before = of_data_plane
    move(group, lambda: node.paused or bool(node.ended), node, also=also)
    assert node.paused, f"{node} never came to that call: {node.ended} {node.why}"


def serve_with_all(group: Group) -> Node:
    """As ``Group.serve``, with every other member standing by: it may have ended one to start it
    again.
    """
    group.serve()
    assert move(group, lambda: not any(node.ended or node.is_misled for node in group.nodes))
    return group.serve()


def take_over(group: Group, former: Node) -> Node:
    """The lock of a paused owner goes, and another member serves."""
    assert former.paused
    group.locks.lose(former.disk)
    # What the former owner had sent before it stood still arrives meanwhile: that is not what is
    # waited for.
    assert move(
        group, lambda: any(node.serving and node.epoch > former.epoch for node in group.nodes)
    )
    successor = group.serve()
    assert former.paused
    assert successor.epoch > former.epoch
    return successor


def wake_up(group: Group, former: Node) -> str:
    """A paused node makes the call that it stood before, and goes on until it ends.

    Says how it ended.
    """
    former.first = next(fiber for fiber in former._fibers if fiber.name == "data plane")
    former.paused = False
    former.wake()
    assert not former.ended, f"{former} never made that call: {former.why}"
    assert move(group, lambda: bool(former.ended), former), f"{former} never ended"
    return former.ended


def only(group: Group, *nodes: Node) -> None:
    """All others stand still, and those that ended are not started again."""
    for node in group.nodes:
        node.paused = node not in nodes
        if node.ended:
            group._start_at[node.member] = float("inf")


def everybody(group: Group) -> None:
    """Nobody stands still."""
    only(group, *group.nodes)
    group._start_at.clear()


def visits(group: Group) -> Callable[[], None]:
    """Each call: a client comes, and those that came before and were answered leave."""
    here: list[Client] = []

    def visit() -> None:
        now = group.clock.mono()
        for visitor in here:
            if visitor.is_connected:
                visitor._close(now)
        here[:] = [visitor for visitor in here if visitor._closing_at is None and not visitor.gone]
        here.append(group._new_client())
        here[-1]._connect(now)

    return visit


def file(group: Group, name: str) -> FileNode:
    node = group.volume.root.entries[name]
    assert isinstance(node, FileNode)
    return node


def opened(node: Node, fd: object) -> object:
    """What stands behind a descriptor."""
    handle = node.disk._handles.get(fd) if isinstance(fd, int) else None
    return handle.node if handle is not None else None


# ---- locks
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [LOCAL, NETWORK], ids=["local", "network"])
def test_a_lock_file_unlinked_under_load_costs_the_owner_its_store_and_nobody_a_message(
    shape: Shape,
) -> None:
    with group_of(shape) as group:
        # An owner that moves notices it, and nobody took the store before.
        owner = group.serve()
        group._unlink_lock()
        assert move(group, lambda: bool(owner.ended))
        assert (owner.ended, group.ledger.top) == ("fenced", owner.epoch)
        # One that stands still does not; the others do not hear it, make a new lock file, and one
        # of them serves.
        owner = group.serve()
        pause(group, owner, calls("fdatasync"))
        old = file(group, LOCK_NAME)
        group._unlink_lock()
        assert move(
            group, lambda: any(node.serving and node.epoch > owner.epoch for node in group.nodes)
        )
        assert owner.disk in group.locks.holders[old]
        assert file(group, LOCK_NAME) is not old
        assert wake_up(group, owner) == "fenced"


def test_while_the_lock_service_grants_to_everybody_one_member_is_confirmed_at_a_time() -> None:
    with group_of(LOCAL) as group:
        group.serve()
        group._two_holders()
        group._generous_until = float("inf")
        # Every confirm is judged by the ledger (``SimOwner.confirm``).
        go_on(group, 600)
        assert group.met["two lock holders"] > 1
        assert group.met["refused confirms"] > 1
        assert sum(1 for node in group.nodes if node.epoch == group.ledger.top) == 1


# ---- the directory, and the epoch file in it
# --------------------------------------------------------------------------------------------------


def test_a_member_that_started_before_its_share_was_mounted_is_fenced_at_the_file_server() -> None:
    with group_of(NETWORK) as group:
        first = group.serve()
        member = next(node.member for node in group.nodes if node is not first)
        host = group._hosts[member]
        meta = Meta(0o755)
        host.bare = DirNode(group.volume.new_ino(), meta, meta)
        former = group.nodes[member]
        former.kill()
        group._bury(former)
        assert move(group, lambda: group.nodes[member] is not former)
        late = group.nodes[member]
        assert move(group, lambda: late.is_misled)
        owner = late.product.owner
        driver = late.product.group
        assert owner is not None
        assert driver is not None
        assert (owner.is_network, driver._timing.poll_interval) == (False, 0.05)
        assert host.bare.entries == {}
        # "Mount it; it goes on by itself" (docs/operate.md).
        host.bare = None
        assert move(group, lambda: not late.is_misled)
        assert (owner.is_network, driver._timing.poll_interval) == (True, 0.5)
        first.kill()
        group._bury(first)
        only(group, late)
        assert move(group, lambda: late.serving, late)
        pause(group, late, calls("fdatasync"))
        group._start_at.clear()
        for node in group.nodes:
            node.paused = node is late
        take_over(group, late)
        # Every confirm is judged by the ledger (``SimOwner.confirm``).
        assert wake_up(group, late) in GIVEN_UP


def replace_epochs(group: Group, data: bytes) -> None:
    """Another host renames a copy of the epoch file into place: rsync, or a restore."""
    disk = SimDisk(group.volume, group.met)
    root = disk.open_dir("/")
    fd = disk.open(root, "copy", os.O_RDWR | os.O_CREAT)
    disk.pwrite(fd, data, 0)
    disk.fsync(fd)
    disk.rename(root, "copy", EPOCH_NAME)
    disk.kill()
    group.lock_harmed = True


@pytest.mark.parametrize("shape", [LOCAL, NETWORK], ids=["local", "network"])
def test_an_owner_whose_epoch_file_was_replaced_ends_before_anybody_takes_a_number_from_the_copy(
    shape: Shape,
) -> None:
    with group_of(shape) as group:
        owner = group.serve()
        replace_epochs(group, bytes(file(group, EPOCH_NAME).data))
        # One probe interval, and what a probe takes.
        before = group.clock.mono()
        assert move(group, lambda: bool(owner.ended), owner)
        assert (owner.ended, group.ledger.top) == ("fenced", owner.epoch)
        assert group.clock.mono() - before < 2.0
        assert "removed or replaced" in owner.why


def test_a_heartbeat_with_a_higher_epoch_makes_an_owner_open_its_epoch_file_anew() -> None:
    with group_of(NETWORK) as group:
        owner = group.serve()
        watch = owner.product.protection._watch
        assert watch is not None
        watch.stop(0.0)
        assert move(group, lambda: watch._probe._fd is None, owner)  # type: ignore[attr-defined]
        replace_epochs(group, bytes(file(group, EPOCH_NAME).data))
        assert not move(group, lambda: bool(owner.ended), owner, steps=20)
        record = owner.product.owner
        assert record is not None
        assert record.present is not None
        beat = Heartbeat("SUCCESSOR", 1, owner.epoch + 1, record.present.store_id)
        packet = Packet(heartbeat_subject(CLUSTER, "group"), "", encode_heartbeat(beat))
        group.hub.publish(group.hub.connect(None, lambda *_: None), packet)
        assert move(group, lambda: bool(owner.ended), owner)
        assert owner.ended == "fenced"
        assert "removed or replaced" in owner.why


# ---- a paused owner
# --------------------------------------------------------------------------------------------------


def writing(owner: Node, group: Group, call: str) -> At:
    """A call of a batch: of those that only look, those of a new file and of the confirm."""
    match call:
        case "open":
            return lambda name, args: name == call and bool(int(str(args[2])) & os.O_CREAT)
        case "pread":
            return lambda name, args: (
                name == call and opened(owner, args[0]) is file(group, EPOCH_NAME)
            )
    return calls(call)


@pytest.mark.parametrize(
    "shape", [RENEWING, replace(RENEWING, network=True)], ids=["local", "network"]
)
@pytest.mark.parametrize(
    "call", ["open", "pwrite", "fdatasync", "fsync", "link", "rename", "unlink", "pread"]
)
def test_an_owner_paused_inside_a_write_across_a_takeover_takes_nothing_from_its_successor(
    call: str, shape: Shape
) -> None:
    for seed in range(2):
        with group_of(shape, seed) as group:
            owner = group.serve()
            pause(group, owner, writing(owner, group, call), visits(group))
            take_over(group, owner)
            assert wake_up(group, owner) in GIVEN_UP
            assert group.met[f"zombie {call}"] > 0 or call in {"open", "pread"}


def test_an_answer_that_was_confirmed_before_the_pause_is_true_after_the_takeover() -> None:
    late = 0
    for seed in range(6):
        with group_of(LOCAL, seed) as group:
            owner = group.serve()

            def looks_at_links(
                call: str, args: tuple[object, ...], owner: Node = owner, group: Group = group
            ) -> bool:
                # It follows the read that confirms.
                return call == "fstat" and opened(owner, args[0]) is file(group, EPOCH_NAME)

            pause(group, owner, looks_at_links)
            take_over(group, owner)
            assert wake_up(group, owner) in GIVEN_UP
            late += group.ledger.late_answers
    assert late > 0


def renames_temporary(name: str) -> At:
    return lambda call, args: call == "rename" and args[-1] == name


@pytest.mark.parametrize("name", ["subs.dat", "clients.dat"])
def test_a_former_owners_rename_finds_no_source(name: str) -> None:
    with group_of(LIMITS) as group:
        owner = group.serve()
        pause(group, owner, renames_temporary(name), visits(group))
        take_over(group, owner)
        assert wake_up(group, owner) in GIVEN_UP
        assert group.met["zombie rename"] == 1


def test_a_successors_temporary_is_not_removed_by_a_claimer_that_wakes_up() -> None:
    with group_of(replace(SMALL_SLICES, network=False)) as group:
        first = serve_with_all(group)
        claimer = next(node for node in group.nodes if node is not first)
        first.kill()
        group._bury(first)
        only(group, claimer)
        folder = group.volume.root.entries["channel.0"]
        assert isinstance(folder, DirNode)
        # It is about to look for temporaries in the channel, where its successor is about to have
        # one.
        pause(
            group,
            claimer,
            lambda call, args: call == "listdir" and opened(claimer, args[0]) is folder,
        )
        assert claimer.epoch > first.epoch
        group.locks.lose(claimer.disk)
        successor = next(node for node in group.nodes if node not in {first, claimer})
        only(group, successor)
        pause(
            group,
            successor,
            lambda call, args: call == "link" and opened(successor, args[0]) is folder,
        )
        assert successor.epoch > claimer.epoch
        temporaries = {name for name in folder.entries if _is_slice_temporary(name)}
        assert temporaries
        assert wake_up(group, claimer) in GIVEN_UP
        assert temporaries <= folder.entries.keys()
        only(group, successor)
        assert group.serve() is successor


def test_a_slice_that_a_paused_owner_removes_late_is_dropped_by_its_successor() -> None:
    with group_of(LIMITS) as group:
        owner = group.serve()
        pause(
            group, owner, lambda call, args: call == "unlink" and str(args[-1]).startswith("msgs.")
        )
        successor = take_over(group, owner)
        assert wake_up(group, owner) in GIVEN_UP
        assert group.met["zombie unlink"] > 0
        go_on(group, 100)
        assert successor.serving


def two_owners_about_to_show_a_slice() -> None:
    """The former owner is paused before it makes its file, the successor before it gives a name to
    its own.
    """
    with group_of(Shape(channels=1, options=SMALL.options)) as group:
        owner = serve_with_all(group)
        pause(group, owner, lambda call, args: call == "open" and _is_slice_temporary(args[1]))
        group.locks.lose(owner.disk)
        successor = next(node for node in group.nodes if node is not owner)
        only(group, successor)
        pause(group, successor, lambda call, args: call == "link" and _is_slice_temporary(args[1]))
        assert successor.epoch > owner.epoch
        assert wake_up(group, owner) in GIVEN_UP
        everybody(group)


def _is_slice_temporary(name: object) -> bool:
    return re.fullmatch(r"tmp\.[0-9]+\.dat", str(name)) is not None


def test_a_paused_owners_new_slice_and_its_successors_do_not_meet() -> None:
    two_owners_about_to_show_a_slice()


# ---- hosts with memories
# ---------------------------------------------------------------------------------------------


def dead_hosts_late_pages_over_clients_dat() -> int:
    """Returns how many late writes arrived in the file that had the name when its host died."""
    with group_of(NETWORK) as group:
        owner = group.serve()
        host = group._hosts[owner.member]

        def syncs_clients(call: str, args: tuple[object, ...]) -> bool:
            node = group.volume.root.entries.get("clients.dat")
            return (
                call == "fdatasync"
                and opened(owner, args[0]) is node
                and any(key[0] is node for key in host.dirty)
            )

        # Bytes of ``clients.dat`` that only its own host has: nobody was told of them.
        pause(group, owner, syncs_clients, visits(group))
        node = file(group, "clients.dat")
        late = [host._late(key) for key in host.dirty]
        owner.kill()
        group._abandon_host(owner.member)
        group._ghosts.clear()
        group._bury(owner)
        successor = group.serve()
        made = group.ledger.clients.made
        # Others are registered now, where the late bytes will be if the file is the same.
        assert move(group, lambda: successor.epoch in made.values(), also=visits(group))
        for write in late:
            put(group.volume, write)
        for _ in range(3):
            last = group.serve()
            last.kill()
            group._bury(last)
        return sum(write.node is node for write in late)


def test_a_dead_hosts_late_pages_over_clients_dat_reach_a_file_that_nobody_reads() -> None:
    assert dead_hosts_late_pages_over_clients_dat() > 0


def test_a_log_that_is_longer_than_this_host_remembers_is_read_to_its_end() -> None:
    with group_of(NETWORK) as group:
        take_over_from_memory(group, lambda _host: None)


def test_a_host_that_woke_up_and_trusts_its_old_files_reads_what_the_server_has() -> None:
    with group_of(NETWORK) as group:
        take_over_from_memory(group, lambda host: host.freeze())


def take_over_from_memory(group: Group, then: Callable[[Host], None]) -> None:
    """A member takes over on a host that remembers files of the log as they were forty batches
    ago.
    """
    owner = serve_with_all(group)
    heir = next(node for node in group.nodes if node is not owner)
    host = group._hosts[heir.member]
    remembered = [
        node
        for folder in group.volume.root.entries.values()
        if isinstance(folder, DirNode)
        for node in folder.entries.values()
        if isinstance(node, FileNode)
    ]
    for node in remembered:
        host.revalidate(node)
    then(host)
    acked = group.ledger.acked
    assert move(group, lambda: group.ledger.acked > acked + 40, owner)
    assert any(len(host.view(node)) < len(node.data) for node in remembered)
    owner.kill()
    group._bury(owner)
    only(group, heir)
    assert group.serve() is heir


# ---- epochs
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "at",
    [calls("open", "ft.claim.2"), calls("pwrite", 2 * SLOT_SIZE), calls("pwrite", 3 * SLOT_SIZE)],
    ids=["before the claim", "before the record", "before the next record"],
)
def test_an_owner_that_raises_its_epoch_while_another_takes_over_is_fenced(at: At) -> None:
    with group_of(replace(SMALL_SLICES, numbers=2)) as group:
        owner = group.nodes[0]
        only(group, owner)
        pause(group, owner, at)
        assert owner.epoch > 0
        only(group, *(node for node in group.nodes if node is not owner))
        take_over(group, owner)
        assert wake_up(group, owner) in GIVEN_UP


def test_a_paused_owners_record_that_lands_after_two_successors_frees_no_former_owner() -> None:
    two_successors_and_a_late_record()


def two_successors_and_a_late_record() -> None:
    """A claimer stands still before its record.

    Two others come to own the store, and the first of them still runs.
    """
    with group_of(Shape(members=4)) as group:
        first = serve_with_all(group)
        late = next(node for node in group.nodes if node is not first)
        only(group, late)
        group.locks.lose(first.disk)
        pause(group, late, lambda call, args: call == "pwrite" and args[1] == SLOT_SIZE)
        only(group, *(node for node in group.nodes if node not in {first, late}))
        group.locks.lose(late.disk)
        second = group.serve()
        pause(group, second, calls("fdatasync"))
        group.locks.lose(second.disk)
        third = group.serve()
        assert (first.epoch, second.epoch, third.epoch) == (1, 3, 4)
        only(group, late)
        pause(group, late, lambda call, args: call == "open" and EPOCH_NAME in args)
        # The late record is there: neither of the two may be confirmed by mistake because of it.
        only(group)
        assert wake_up(group, second) in GIVEN_UP
        everybody(group)


# ---- messages
# --------------------------------------------------------------------------------------------------


def test_a_forged_heartbeat_stops_nobody() -> None:
    with group_of(LOCAL) as group:
        owner = group.serve()
        for _ in range(30):
            group._forge()
            go_on(group, 4)
        assert owner.serving
        assert group.ledger.top == owner.epoch
        assert group.serve() is owner


# ---- channels
# --------------------------------------------------------------------------------------------------


class Deletion:
    """An operator who asks until the owner deletes a channel: a subscription that comes meanwhile
    refuses it.
    """

    def __init__(self, group: Group, owner: Node, name: bytes) -> None:
        self._group = group
        self._owner = owner
        self._name = name
        self._began = False

    def ask(self) -> None:
        if not self._began:
            self._group.ledger.deleting(self._name, self._owner.epoch)
            self._owner.administer(Verb.DELETE, self._name.decode(), force=True)

    def comes_to(self, what: str) -> At:
        """The first call of that name behind the beginning of the intent."""

        def at(call: str, args: tuple[object, ...]) -> bool:
            self._began |= call == "open" and str(args[1]).endswith(".deleting")
            return self._began and call == what

        return at


@pytest.mark.parametrize("call", ["rename", "unlink", "rmdir", "mkdir", "link"])
def test_a_channel_deleted_and_made_again_around_a_takeover_is_the_new_one(call: str) -> None:
    for seed in range(4):
        # The only channel: the directory and the slice that come behind the deletion are those of
        # its next life.
        with group_of(replace(LIMITS, channels=1), seed) as group:
            owner = group.serve()
            name = b"channel.0"
            life = owner.lives[name]
            deletion = Deletion(group, owner, name)
            pause(group, owner, deletion.comes_to(call), deletion.ask)
            successor = take_over(group, owner)
            assert wake_up(group, owner) in GIVEN_UP
            assert group.met[f"zombie {call}"] > 0
            assert group.serve() is successor
            assert (successor.lives[name] is life) == (call == "rename")


def test_what_an_original_server_stored_between_two_of_our_epochs_stays() -> None:
    for seed in range(3):
        with group_of(MIXED, seed) as group:
            for _ in range(3):
                owner = group.serve()
                only(group, owner)
                group.stop(owner)
                assert interlude(group, group.rng) > 0
                everybody(group)


def test_a_delivery_record_for_a_sequence_that_was_discarded_is_dropped() -> None:
    disk = SimDisk()
    clock = ManualClock()
    disk.make_dirs(STORE)
    store = open_file_store(disk, clock)
    store.recover()
    channel = store.create_channel(b"foo", UNLIMITED)
    block = MsgBlock()
    events = SubEvents()
    block.append(1, b"foo", b"", b"x", clock.wall_ns())
    channel.append(block)
    channel.add_sub(SubState(1, b"me", durable_name=b"dur", is_durable=True))
    assert store.commit() == {}
    for sequence in (1, 2):
        events.sent(1, sequence)
    channel.add_events(events)
    store.write_events()
    store.tick(clock.wall_ns())
    (found,) = open_file_store(disk.crash(process_only=True), clock).recover().channels
    (sub,) = found.recovered_subs()
    assert (found.last, sub.pending, sub.state.last_sent) == (1, {1}, 1)


@pytest.mark.parametrize("then", ["serve", "stop"])
def test_acks_that_a_host_left_with_the_file_server_are_durable_after_a_takeover(then: str) -> None:
    volume = SimDisk()
    clock = ManualClock()
    volume.make_dirs(STORE)
    hosts = [ClientDisk(volume.volume, Counter(), Host(Random(i))) for i in range(2)]
    first = open_file_store(hosts[0], clock, asking=hosts[0].direct())
    first.recover()
    channel = first.create_channel(b"foo", UNLIMITED)
    block = MsgBlock()
    events = SubEvents()
    block.append(1, b"foo", b"", b"x", clock.wall_ns())
    channel.append(block)
    channel.add_sub(SubState(1, b"me", durable_name=b"dur", is_durable=True))
    assert first.commit() == {}
    events.sent(1, 1)
    channel.add_events(events)
    first.write_events()
    events.acked(1, 1)
    channel.add_events(events)
    first.write_events()
    hosts[0].kill()
    hosts[0].client.flush(volume.volume, subs_file(volume))
    second = open_file_store(hosts[1], clock, asking=hosts[1].direct())
    (found,) = second.recover().channels
    assert found.recovered_subs()[0].state.last_sent == 1
    if then == "serve":
        for _ in range(2):
            clock.advance(1.1)
            second.tick(clock.wall_ns())
    else:
        second.close()
    third = open_file_store(volume.crash(Random(1), CrashMode.LOST), clock)
    (sub,) = third.recover().channels[0].recovered_subs()
    assert (sub.pending, sub.state.last_sent) == (set(), 1)


@pytest.mark.parametrize("seed", range(20))
def test_an_index_that_a_host_left_with_the_file_server_is_written_anew_by_a_clean_stop(
    seed: int,
) -> None:
    volume = SimDisk()
    clock = ManualClock()
    volume.make_dirs(STORE)
    hosts = [ClientDisk(volume.volume, Counter(), Host(Random(i))) for i in range(2)]
    first = open_file_store(hosts[0], clock, asking=hosts[0].direct())
    first.recover()
    channel = first.create_channel(b"foo", UNLIMITED)
    for sequence in range(1, 30):
        block = MsgBlock()
        block.append(sequence, b"foo", b"", b"x" * 20, clock.wall_ns())
        channel.append(block)
        assert first.commit() == {}
    first.abandon()
    second = open_file_store(hosts[1], clock, asking=hosts[1].direct())
    second.recover()
    second.close()
    third = open_file_store(volume.crash(Random(seed), CrashMode.UNORDERED), clock)
    (found,) = third.recover().channels
    assert (len(read_all(found)), third.quarantined) == (29, [])


def subs_file(disk: SimDisk) -> FileNode:
    folder = disk.volume.root.entries["store"]
    assert isinstance(folder, DirNode)
    channel = folder.entries["foo"]
    assert isinstance(channel, DirNode)
    node = channel.entries["subs.dat"]
    assert isinstance(node, FileNode)
    return node


_OURS = b"of our server"
_ORIGINALS = b"of the original"


def paused_in_a_write_while_an_original_appends(
    *, stops: bool
) -> tuple[dict[bytes, str], list[bytes]]:
    """A former owner wakes up within a write to its slice, behind what an original server appended
    to the newest one.

    ``stops``: its successor wrote nothing, and stopped cleanly; else it is killed, in a mixed
    group. Returns the channels that the next owner refuses, and the messages that it finds.
    """
    disk = SimDisk()
    clock = ManualClock()
    crc = records.Crc()
    disk.make_dirs(STORE)
    former = open_file_store(disk, clock)
    former.recover()
    channel = former.create_channel(b"foo", UNLIMITED)
    others = [disk.sibling() for _ in range(3)]
    writes: list[str] = []

    def message(sequence: int, payload: bytes) -> MsgBlock:
        block = MsgBlock()
        block.append(sequence, b"foo", b"", payload, clock.wall_ns())
        return block

    def before_the_write(_number: int, call: str, _args: tuple[object, ...]) -> None:
        if call == "pwrite" and not writes:
            writes.append(call)
            successor = open_file_store(others[0], clock)
            successor.recover()
            if stops:
                successor.close()
            others[0].kill()
            folder = others[1].open_dir_at(others[1].open_dir(STORE), "foo")
            number, last = find_end(others[1], folder)
            assert last == 2
            append(others[1], folder, number, message(3, _ORIGINALS), crc)

    for sequence in (1, 2, 3):
        if sequence == 3:
            disk.on_call = before_the_write
        channel.append(message(sequence, _OURS))
        former.commit()
    assert writes
    found = open_file_store(others[2], clock).recover()
    messages = read_all(found.channels[0]).values()
    return found.refused, [
        next(who for who in (_OURS, _ORIGINALS) if who in message) for message in messages
    ]


@pytest.mark.parametrize("stops", [True, False], ids=["stopped", "mixed"])
def test_a_former_owners_late_write_misses_what_an_original_appended(
    stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimOwner, "mixed", not stops)
    assert paused_in_a_write_while_an_original_appends(stops=stops) == (
        {},
        [_OURS, _OURS, _ORIGINALS],
    )


def test_a_log_that_ends_in_a_former_owners_slice_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SliceLog, "end_inherited", lambda _self: None)
    assert _ORIGINALS not in paused_in_a_write_while_an_original_appends(stops=True)[1]


def test_a_late_index_entry_does_not_name_what_a_clean_stop_has_cut() -> None:
    disk = SimDisk()
    clock = ManualClock()
    disk.make_dirs(STORE)
    former = open_file_store(disk, clock)
    former.recover()
    channel = former.create_channel(b"foo", UNLIMITED)
    successors = [disk.sibling(), disk.sibling()]
    stores = []
    writes: list[int] = []

    def publish(sequence: int) -> None:
        block = MsgBlock()
        block.append(sequence, b"foo", b"", b"x", clock.wall_ns())
        channel.append(block)
        assert former.commit() == {}

    def around_writes(_number: int, call: str, _args: tuple[object, ...]) -> None:
        if call != "pwrite":
            return
        writes.append(len(writes))
        if len(writes) == 1:
            # Before the data: the successor measures, and nothing is published under it.
            stores.append(open_file_store(successors[0], clock))
            stores[0].recover()
        else:
            # Before the entry that names it: the successor stops cleanly.
            stores[0].close()

    publish(1)
    disk.on_call = around_writes
    publish(2)
    with pytest.raises(FencedError):
        former.confirm()
    assert len(writes) == 2
    found = open_file_store(successors[1], clock).recover()
    assert (found.refused, found.channels[0].last) == ({}, 1)


# ---- broken on purpose
# -----------------------------------------------------------------------------------------------


def test_a_record_that_lands_late_frees_a_former_owner_where_slots_are_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken.slots_used_again(monkeypatch)
    with pytest.raises(Violation, match="was confirmed after"):
        two_successors_and_a_late_record()


def test_late_pages_reach_a_clients_dat_that_is_appended_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken.state_files_appended(monkeypatch)
    with pytest.raises(Violation, match="gone under"):
        dead_hosts_late_pages_over_clients_dat()


def test_a_slice_takes_its_successors_place_where_numbers_are_the_next_free_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken.slices_by_highest_number(monkeypatch)
    with pytest.raises(Violation, match=r"should be|had b'"):
        two_owners_about_to_show_a_slice()
