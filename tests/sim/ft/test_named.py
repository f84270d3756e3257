"""Histories written by hand: each of the ways in which a group of the old design lost or doubled messages.

Those that need one process and one call are in ``tests/unit``; the table in ``docs/ft.md`` has all of them.
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

from ftstan import log
from ftstan.clock import ManualClock
from ftstan.errors import FencedError
from ftstan.ft.epoch import EPOCH_NAME
from ftstan.ft.slots import SLOT_SIZE
from ftstan.stores.file import slices
from ftstan.stores.interface import SubState
from ftstan.wire.block import MsgBlock, SubEvents
from tests.sim.disk import CrashMode, SimDisk
from tests.sim.filestore import open_file_store
from tests.sim.ft import broken
from tests.sim.ft.gopeer import interlude
from tests.sim.ft.group import Group, Shape
from tests.sim.ft.hosts import Client, ClientDisk, put
from tests.sim.ft.shapes import LIMITS, LOCAL, MIXED, NETWORK, SMALL_SLICES
from tests.sim.history import STORE
from tests.sim.model import UNLIMITED, Violation, read_all
from tests.sim.variants import SMALL
from tests.sim.volume import DirNode, FileNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.sim.ft.nodes import Node

    At = Callable[[str, tuple[object, ...]], bool]

#: How a former owner ends: at its confirm, or before that, at a file that its successor has taken away.
GIVEN_UP = ("fenced", "failed")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    log.configure(file=os.devnull)
    yield
    log.configure()


@contextmanager
def group_of(shape: Shape, seed: int = 1) -> Iterator[Group]:
    """A group in which nothing goes wrong by itself; at the end two more owners must find what was promised."""
    group = Group(seed, shape)
    try:
        yield group
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


def pause(group: Group, node: Node, at: At) -> None:
    """Let a node run until it is about to make that call, and stop it there."""
    node.stop_before = at
    for _ in range(400):
        if node.paused or node.ended:
            break
        run(group, node)
    assert node.paused, f"{node} never came to that call: {node.ended}"


def run(group: Group, node: Node) -> None:
    node.spend(30)
    group.clock.advance(0.05)
    node.wake()


def take_over(group: Group, former: Node) -> Node:
    """The lock of a paused owner goes, and another member serves."""
    group.locks.lose(former.disk)
    return group.serve()


def wake_up(group: Group, former: Node) -> str:
    """A paused owner goes on until it ends; says how."""
    former.paused = False
    for _ in range(400):
        if former.ended:
            return former.ended
        run(group, former)
    raise AssertionError(f"{former} never ended")


def file(group: Group, name: str) -> FileNode:
    node = group.volume.root.entries[name]
    assert isinstance(node, FileNode)
    return node


# ---- locks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [LOCAL, NETWORK], ids=["local", "network"])
def test_a_lock_file_unlinked_under_load_costs_the_owner_its_store_and_nobody_a_message(shape: Shape) -> None:
    with group_of(shape) as group:
        owner = group.serve()
        group._unlink_lock()
        # As long as the owner is heard nobody makes a new lock file; once it is not, somebody does.
        owner.connect(False)
        for _ in range(200):
            for node in list(group.nodes):
                node.spend(60)
            group.pass_time(0.05)
            if owner.ended:
                break
        assert owner.ended == "fenced"
        assert group.ledger.top > owner.epoch


def test_while_the_lock_service_grants_to_everybody_one_member_is_confirmed_at_a_time() -> None:
    with group_of(LOCAL) as group:
        group.serve()
        group._two_holders()
        for _ in range(300):
            group.locks.generous = True
            for node in group.nodes:
                run(group, node)
        assert group.met["two lock holders"] > 1
        assert sum(1 for node in group.nodes if node.epoch == group.ledger.top) == 1


# ---- a paused owner --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [replace(SMALL_SLICES, network=False), SMALL_SLICES], ids=["local", "network"])
@pytest.mark.parametrize("call", ["open", "pwrite", "fdatasync", "fsync", "link", "rename", "unlink", "pread"])
def test_an_owner_paused_inside_a_write_across_a_takeover_takes_nothing_from_its_successor(
    call: str, shape: Shape
) -> None:
    for seed in range(2):
        with group_of(shape, seed) as group:
            owner = next(n for n in [group.serve()] if not n.paused)
            pause(group, owner, calls(call))
            take_over(group, owner)
            assert wake_up(group, owner) in GIVEN_UP


def test_an_answer_that_was_confirmed_before_the_pause_is_true_after_the_takeover() -> None:
    late = 0
    for seed in range(6):
        with group_of(LOCAL, seed) as group:
            owner = group.serve()
            # The look at the link count follows the read that confirms.
            pause(group, owner, calls("fstat", 5))
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
        pause(group, owner, renames_temporary(name))
        take_over(group, owner)
        assert wake_up(group, owner) in GIVEN_UP


def test_a_successors_temporary_is_not_removed_by_a_claimer_that_wakes_up() -> None:
    with group_of(replace(SMALL_SLICES, network=False)) as group:
        first = group.serve()
        for node in group.nodes:
            node.paused = node is not first
        first.kill()
        group._bury(first)
        claimer = next(n for n in group.nodes if n.paused)
        claimer.paused = False
        pause(group, claimer, lambda call, _: call == "listdir" and claimer.epoch > 0)
        for node in group.nodes:
            node.paused = node is claimer
        successor = take_over(group, claimer)
        pause(group, successor, calls("link"))
        assert wake_up(group, claimer) in GIVEN_UP
        successor.paused = False
        assert group.serve() is successor


def test_a_slice_that_a_paused_owner_removes_late_is_dropped_by_its_successor() -> None:
    with group_of(LIMITS) as group:
        owner = group.serve()
        pause(group, owner, lambda call, args: call == "unlink" and str(args[-1]).startswith("msgs."))
        successor = take_over(group, owner)
        wake_up(group, owner)
        for _ in range(100):
            run(group, successor)
        assert successor.serving


def two_owners_about_to_show_a_slice() -> None:
    """The former owner is paused before it makes its file, the successor before it gives a name to its own."""
    with group_of(Shape(channels=1, options=SMALL.options)) as group:
        owner = group.serve()
        pause(group, owner, lambda call, args: call == "open" and _is_slice_temporary(args[1]))
        group.locks.lose(owner.disk)
        successor = next(node for node in group.nodes if node is not owner)
        only(group, successor)
        pause(group, successor, lambda call, args: call == "link" and _is_slice_temporary(args[1]))
        assert wake_up(group, owner) in GIVEN_UP
        only(group, *group.nodes)


def _is_slice_temporary(name: object) -> bool:
    return re.fullmatch(r"tmp\.[0-9]+\.dat", str(name)) is not None


def test_a_paused_owners_new_slice_and_its_successors_do_not_meet() -> None:
    two_owners_about_to_show_a_slice()


# ---- hosts with memories ---------------------------------------------------------------------------------------------


def clients_dat_not_synced(group: Group) -> tuple[Node, FileNode]:
    """An owner with bytes of ``clients.dat`` that only its own host has."""
    owner = group.serve()
    member = group.nodes.index(owner)
    while "clients.dat" not in group.volume.root.entries:
        run(group, owner)
    for _ in range(300):
        node = file(group, "clients.dat")

        def syncs_clients(call: str, args: tuple[object, ...], node: FileNode = node) -> bool:
            fd = args[0] if args else None
            return call == "fdatasync" and isinstance(fd, int) and owner.disk._handles[fd].node is node

        owner.stop_before = syncs_clients
        run(group, owner)
        if owner.paused and any(key[0] is node for key in group._clients[member].dirty):
            return owner, node
        owner.paused = False
    raise AssertionError("nobody connected")


def dead_hosts_late_pages_over_clients_dat() -> int:
    """Returns how many late writes arrived in the file that had the name when its host died."""
    with group_of(NETWORK) as group:
        owner, node = clients_dat_not_synced(group)
        client = group._clients[group.nodes.index(owner)]
        late = [client._late(key) for key in client.dirty]
        owner.kill()
        group._abandon_host(group.nodes.index(owner))
        group._ghosts.clear()
        group._bury(owner)
        group.serve()
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
        take_over_from_memory(group, lambda _client: None)


def test_a_host_that_woke_up_and_trusts_its_old_files_reads_what_the_server_has() -> None:
    with group_of(NETWORK) as group:
        take_over_from_memory(group, lambda client: client.freeze())


def take_over_from_memory(group: Group, then: Callable[[Client], None]) -> None:
    """A member takes over on a host that remembers files of the log as they were forty batches ago."""
    owner = group.serve()
    home = next(i for i, node in enumerate(group.nodes) if node is not owner)
    client = group._clients[home]
    remembered = [
        node
        for folder in group.volume.root.entries.values()
        if isinstance(folder, DirNode)
        for node in folder.entries.values()
        if isinstance(node, FileNode)
    ]
    for node in remembered:
        client.revalidate(node)
    then(client)
    for _ in range(40):
        run(group, owner)
    assert any(len(client.view(node)) < len(node.data) for node in remembered)
    for member, n in enumerate(group.nodes):
        n.paused = member != home
    owner.kill()
    group._bury(owner)
    assert group.nodes.index(group.serve()) == home


# ---- epochs ----------------------------------------------------------------------------------------------------------


def test_an_owner_that_raises_its_epoch_while_another_takes_over_is_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "NUMBERS_PER_EPOCH", 2)
    for at in (calls("open", "ft.claim.2"), calls("pwrite", 2 * SLOT_SIZE), calls("pwrite", 3 * SLOT_SIZE)):
        with group_of(SMALL_SLICES) as group:
            owner = group.nodes[0]
            for node in group.nodes[1:]:
                node.paused = True
            pause(group, owner, at)
            for node in group.nodes[1:]:
                node.paused = False
            take_over(group, owner)
            assert wake_up(group, owner) in GIVEN_UP


def test_a_paused_owners_record_that_lands_after_two_successors_frees_no_former_owner() -> None:
    two_successors_and_a_late_record()


def two_successors_and_a_late_record() -> None:
    """A claimer stands still before its record; two others come to own the store, and the first of them still runs."""
    with group_of(Shape(members=4)) as group:
        first = group.serve()
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
        late.stop_before = lambda call, args: call == "open" and EPOCH_NAME in args
        for _ in range(20):
            run(group, late)
        assert late.paused
        # The late record is there: neither of the two may be confirmed by mistake because of it.
        only(group, second)
        for _ in range(40):
            run(group, second)
        assert second.ended in GIVEN_UP
        only(group, *group.nodes)


def only(group: Group, *nodes: Node) -> None:
    """All others stand still."""
    for node in group.nodes:
        node.paused = node not in nodes


# ---- messages --------------------------------------------------------------------------------------------------------


def test_a_forged_heartbeat_stops_nobody() -> None:
    with group_of(LOCAL) as group:
        owner = group.serve()
        for _ in range(30):
            group._forge()
            group.pass_time(0.2)
            for node in group.nodes:
                node.spend(60)
        assert owner.serving
        assert group.ledger.top == owner.epoch
        assert group.serve() is owner


# ---- channels --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["rename", "unlink", "rmdir", "mkdir", "link"])
def test_a_channel_deleted_and_made_again_around_a_takeover_is_the_new_one(call: str) -> None:
    met: Counter[str] = Counter()
    for seed in range(4):
        with group_of(LIMITS, seed) as group:
            owner = group.serve()
            deleting = [False]

            def in_deletion(name: str, args: tuple[object, ...], deleting: list[bool] = deleting) -> bool:
                deleting[0] |= name == "open" and any(str(a).endswith(".deleting") for a in args)
                return deleting[0] and name == call

            pause(group, owner, in_deletion)
            take_over(group, owner)
            assert wake_up(group, owner) in GIVEN_UP
            met += group.met
    assert met["zombie unlink"] + met["zombie rename"] + met["refused confirms"] > 0


def test_what_an_original_server_stored_between_two_of_our_epochs_stays() -> None:
    for seed in range(3):
        with group_of(MIXED, seed) as group:
            for _ in range(3):
                owner = group.serve()
                owner.stopping = True
                for node in group.nodes:
                    node.paused = node is not owner
                while not owner.ended:
                    owner.spend(100)
                assert interlude(group, group.rng) > 0
                for node in group.nodes:
                    node.paused = False


def test_a_delivery_record_for_a_sequence_that_was_discarded_is_dropped() -> None:
    disk, clock = SimDisk(), ManualClock()
    disk.make_dirs(STORE)
    store = open_file_store(disk, clock)
    store.recover()
    channel = store.create_channel(b"foo", UNLIMITED)
    block, events = MsgBlock(), SubEvents()
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
    volume, clock = SimDisk(), ManualClock()
    volume.make_dirs(STORE)
    hosts = [ClientDisk(volume.volume, Counter(), Client(Random(i))) for i in range(2)]
    first = open_file_store(hosts[0], clock, asking=hosts[0].direct())
    first.recover()
    channel = first.create_channel(b"foo", UNLIMITED)
    block, events = MsgBlock(), SubEvents()
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
def test_an_index_that_a_host_left_with_the_file_server_is_written_anew_by_a_clean_stop(seed: int) -> None:
    volume, clock = SimDisk(), ManualClock()
    volume.make_dirs(STORE)
    hosts = [ClientDisk(volume.volume, Counter(), Client(Random(i))) for i in range(2)]
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


def test_a_late_index_entry_does_not_name_what_a_clean_stop_has_cut() -> None:
    disk, clock = SimDisk(), ManualClock()
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


# ---- broken on purpose -----------------------------------------------------------------------------------------------


def test_a_record_that_lands_late_frees_a_former_owner_where_slots_are_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken.slots_used_again(monkeypatch)
    with pytest.raises(Violation):
        two_successors_and_a_late_record()


def test_late_pages_reach_a_clients_dat_that_is_appended_to(monkeypatch: pytest.MonkeyPatch) -> None:
    broken.state_files_appended(monkeypatch)
    with pytest.raises(Violation):
        dead_hosts_late_pages_over_clients_dat()


def test_a_slice_takes_its_successors_place_where_numbers_are_the_next_free_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken.slices_by_highest_number(monkeypatch)
    with pytest.raises(Violation):
        two_owners_about_to_show_a_slice()
