"""An original server between two activations of ours: what it wrote is served, and what we leave it
can read.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import pytest

from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.state.confirmed import NAME, decode
from ftstan.wire.block import MsgBlock
from tests.filenode import Owner
from tests.oracle.gostore import read_tree
from tests.sim.disk import CrashMode, Killed, SimDisk
from tests.unit.stores.test_slices import Node, contents, fresh

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.oracle.goview import Tree

CRC = records.Crc()
VERSION = b"\1\0\0\0"


def mixed(epoch: int = 1) -> Owner:
    return Owner(epoch, mixed=True)


def append(disk: SimDisk, name: str, data: bytes, channel: str = "foo") -> None:
    """As an original does it: at the end, and whoever looks sees it, but nothing is synced."""
    root = disk.open_dir("/store")
    folder = disk.open_dir_at(root, channel)
    fd = disk.open(folder, name, os.O_RDWR | os.O_CREAT)
    if not disk.fstat(fd).size:
        disk.pwrite(fd, VERSION, 0)
        disk.fsync(folder)
    disk.pwrite(fd, data, disk.fstat(fd).size)
    for handle in (fd, folder, root):
        disk.close(handle)


def original_stores(
    disk: SimDisk, number: int, first: int, *data: bytes, entries: bool = True, channel: str = "foo"
) -> None:
    """An original appends messages to slice ``number``.

    ``entries``: it lives long enough for the index, too.
    """
    block = MsgBlock()
    for sequence, payload in enumerate(data, first):
        block.append(sequence, channel.encode(), b"", payload, 2_000_000_000)
    records.seal(block, CRC)
    name = f"msgs.{number}"
    end = len(disk.tree(f"/store/{channel}").get(f"{name}.dat") or VERSION)
    append(disk, f"{name}.dat", bytes(memoryview(block)), channel)
    if entries:
        append(disk, f"{name}.idx", records.index_entries(block, 0, len(block), end, CRC), channel)


def read_by_original(tree: Tree) -> list[tuple[int, bytes]]:
    channel = read_tree(tree).channels.get(b"foo")
    return [(n, m.data) for n, m in sorted(channel.messages.items())] if channel else []


def left(*data: bytes, owner: Owner | None = None) -> Node:
    """A node that stopped cleanly after it had stored ``data``."""
    node = Node(fresh(), owner or mixed())
    node.put(*data)
    node.store.close()
    return node


def after(node: Node, disk: SimDisk, owner: Owner | None = None) -> Node:
    return Node(disk, owner or mixed(node.owner.epoch + 1), node.options, node.limits, node.clock)


@pytest.mark.parametrize(
    "owner", [mixed(2), Owner(2)], ids=["mixed", "noticed by what the clean stop left"]
)
@pytest.mark.parametrize("rolled", [False, True])
def test_what_an_original_stored_behind_ours_is_served_and_no_power_cut_takes_it_back(
    owner: Owner, *, rolled: bool
) -> None:
    node = left(b"a", b"b", owner=mixed() if owner.mixed else Owner())
    disk = node.disk.sibling()
    original_stores(disk, 1, 3, b"c")
    if rolled:
        original_stores(disk, 2, 4, b"d")
    expected = [(1, b"a"), (2, b"b"), (3, b"c"), *([(4, b"d")] if rolled else [])]
    new = after(node, disk, owner)
    assert contents(new) == expected
    cut = new.disk.crash(mode=CrashMode.LOST)
    assert contents(after(new, cut, mixed(3))) == expected


@pytest.mark.parametrize(
    "owner", [mixed(2), Owner(2)], ids=["mixed", "noticed by what the clean stop left"]
)
def test_entries_of_messages_that_the_power_took_are_no_damage(
    owner: Owner, capfd: pytest.CaptureFixture[str]
) -> None:
    node = left(b"a", b"b", owner=mixed() if owner.mixed else Owner())
    disk = node.disk.sibling()
    tree = disk.tree("/store")
    original_stores(disk, 1, 3, b"c", b"d")
    lost = disk.tree("/store")
    lost["foo/msgs.1.dat"] = tree["foo/msgs.1.dat"]
    found = fresh()
    found.add_tree("/store", lost)
    new = after(node, found, owner)
    # The numbers may have been told to somebody: they are not given out again.
    assert new.put(b"e") == {}
    new.store.close()
    assert read_by_original(new.disk.tree("/store")) == [(1, b"a"), (2, b"b"), (5, b"e")]
    lines = capfd.readouterr().err
    assert "quarantined" not in lines
    assert 'channel "foo": sequences 3 to 4 are missing behind msgs.1.dat' in lines


@pytest.mark.parametrize("rolled", [False, True])
def test_the_index_says_which_of_two_records_of_one_sequence_counts(*, rolled: bool) -> None:
    node = left(b"a", b"b")
    disk = node.disk.sibling()
    # We, or an original, were killed between a record and its entry: nobody was promised anything
    # of it.
    original_stores(disk, 1, 3, b"never acked", b"nor this", entries=False)
    original_stores(disk, 1, 3, b"acked", b"acked, too", b"and this")
    if rolled:
        original_stores(disk, 2, 6, b"in the next slice")
    expected = [(1, b"a"), (2, b"b"), (3, b"acked"), (4, b"acked, too"), (5, b"and this")]
    expected += [(6, b"in the next slice")] if rolled else []
    new = after(node, disk)
    assert contents(new) == expected
    assert read_by_original(new.disk.tree("/store")) == expected
    cut = new.disk.crash(mode=CrashMode.LOST)
    assert contents(after(new, cut)) == expected


def test_an_index_that_names_another_place_without_a_record_there_is_not_followed() -> None:
    node = left(b"a")
    disk = node.disk.sibling()
    original_stores(disk, 1, 2, b"b", entries=False)
    block = MsgBlock()
    block.append(2, b"foo", b"", b"somewhere else", 2_000_000_000)
    records.seal(block, CRC)
    append(disk, "msgs.1.idx", records.index_entries(block, 0, 1, 4000, CRC))
    assert contents(after(node, disk)) == [(1, b"a"), (2, b"b")]


def test_when_a_serving_group_becomes_mixed_its_files_become_fit_for_an_original() -> None:
    node = Node(fresh(), Owner(), FileStoreOptions(slice_max_msgs=4))
    node.put(b"a", b"b")
    node.store.tick(node.clock.wall_ns())
    disk = node.disk.crash(process_only=True)
    node = Node(disk, Owner(2), node.options, node.limits, node.clock)
    node.put(b"c")
    # The first owner was not dead: what it still writes is behind our seal, and an original would
    # read it.
    original_stores(disk.sibling(), 1, 3, b"late")
    assert read_by_original(disk.tree("/store")) != contents(node)
    node.owner.mixed = True
    node.store.tick(node.clock.wall_ns())
    assert (
        read_by_original(disk.tree("/store")) == contents(node) == [(1, b"a"), (2, b"b"), (3, b"c")]
    )
    node.put(b"d")
    assert read_by_original(disk.tree("/store")) == contents(node)


def test_behind_a_killed_owner_of_a_mixed_group_an_original_is_believed() -> None:
    node = Node(fresh(), mixed())
    node.put(b"a")
    node.store.tick(node.clock.wall_ns())
    disk = node.disk.crash(process_only=True)
    original_stores(disk, 1, 2, b"b", b"c")
    original_stores(disk, 2, 4, b"d")
    new = after(node, disk)
    expected = [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d")]
    assert contents(new) == expected
    assert contents(after(new, new.disk.crash(mode=CrashMode.LOST))) == expected


def batches(node: Node, acked: dict[int, bytes], count: int) -> None:
    for _ in range(count):
        last = node.channel().last
        data = [b"%d of epoch %d" % (last + i, node.owner.epoch) for i in (1, 2)]
        assert node.put(*data) == {}
        acked |= {last + i: payload for i, payload in enumerate(data, 1)}
        node.store.tick(node.clock.wall_ns())


def deaths(first_too: bool) -> Iterator[tuple[SimDisk, str, dict[int, bytes]]]:
    """Lives of two activations of a mixed group, ended at every call in turn: disk, that call, what
    was acked.

    ``first_too``: the first one dies so, else the second one.
    """
    for kill in itertools.count(1):
        acked: dict[int, bytes] = {}
        calls: list[str] = []

        def die(
            _call: int,
            name: str,
            _arguments: tuple[object, ...],
            at: int = kill,
            log: list[str] = calls,
        ) -> None:
            log.append(name)
            if len(log) == at:
                raise Killed

        disk = fresh()
        try:
            if first_too:
                disk.on_call = die
            node = Node(disk, mixed(), FileStoreOptions(slice_max_msgs=5))
            batches(node, acked, 3)
            if first_too:
                return
            disk = disk.crash(process_only=True)
            disk.on_call = die
            node = Node(disk, mixed(2), node.options, node.limits, node.clock)
            batches(node, acked, 3)
        except Killed:
            disk.on_call = None
            yield disk, calls[-1], acked
        else:
            return


def entries_and_records(tree: Tree) -> dict[int, tuple[list[int], list[int]]]:
    """Sequences in the index and in the data of each slice that has both, by number.

    Nothing else may be in them.
    """
    found = {}
    for name, data in tree.items():
        index = (
            tree.get(name.removesuffix(".dat") + ".idx")
            if name.endswith(".dat") and "/msgs." in name
            else None
        )
        if data is not None and index is not None:
            block, end, _ = records.scan_data(data[4:], b"foo", 0, CRC)
            assert end == len(data) - 4, f"{name} has bytes behind its last record"
            named = [records.entry(index[4:], k)[0] for k in range(len(index[4:]) // 32)]
            found[int(name.split(".")[1])] = (named, [block.sequence(i) for i in range(len(block))])
    return dict(sorted(found.items()))


@pytest.mark.parametrize("first_too", [True, False])
def test_in_a_mixed_group_a_death_at_any_call_leaves_what_was_acked_to_an_original(
    *, first_too: bool
) -> None:
    count = 0
    for disk, call, acked in deaths(first_too):
        count += 1
        for left_over in (disk.crash(process_only=True), disk.crash(mode=CrashMode.LOST)):
            seen = dict(read_by_original(left_over.tree("/store")))
            assert {n: seen.get(n) for n in acked} == acked, f"killed at call {count}, {call}"
            assert list(seen) == list(range(1, len(seen) + 1))
    assert count > 30


def test_in_a_mixed_group_no_record_waits_for_its_entry_while_it_is_synced() -> None:
    """An original takes a short index for the whole truth, and appends behind the record that is
    not in it.
    """
    count = 0
    for disk, call, _ in deaths(first_too=True):
        if call in {"fdatasync", "fsync"}:
            count += 1
            for named, there in entries_and_records(
                disk.crash(process_only=True).tree("/store")
            ).values():
                assert named == there
    assert count > 5


def test_in_a_mixed_group_nothing_is_served_before_what_lies_behind_a_seal_is_cut() -> None:
    count = 0
    for disk, call, _ in deaths(first_too=True):
        count += 1
        new = Node(disk.crash(process_only=True), mixed(2), FileStoreOptions(slice_max_msgs=5))
        slices = entries_and_records(new.disk.tree("/store"))
        assert all(named == there for named, there in slices.values()), (
            f"killed at call {count}, {call}"
        )
        in_order = [sequence for named, _ in slices.values() for sequence in named]
        assert in_order == list(range(1, len(in_order) + 1)), f"killed at call {count}, {call}"
    assert count > 30


# ---- who looks with care, and for how long
# ---------------------------------------------------------------------------


def confirmed_by(disk: SimDisk) -> int:
    """The epoch in ``confirmed.bin``, 0 without the file."""
    found = decode(disk.tree("/store/foo").get(NAME) or b"")
    return found.epoch if found is not None else 0


def test_a_channel_is_read_with_care_until_an_owner_has_said_that_it_did() -> None:
    node = Node(fresh(), mixed())
    node.put(b"a", b"b")
    node.store.tick(node.clock.wall_ns())
    # The group is mixed no more. The first owner dies before its first second is over, the next one
    # does not.
    for epoch in (2, 3):
        node, changed = reopened(node.disk, Owner(epoch, originals=1))
        assert "fdatasync msgs.1.dat" in changed
        assert contents(node) == [(1, b"a"), (2, b"b")]
        assert confirmed_by(node.disk) == 1
    node.store.tick(node.clock.wall_ns())
    assert confirmed_by(node.disk) == 3
    node, changed = reopened(node.disk, Owner(4, originals=1))
    node.store.tick(node.clock.wall_ns())
    assert changed == []
    assert confirmed_by(node.disk) == 3
    # Mixed again in between: again somebody else may have written.
    _, changed = reopened(node.disk, Owner(6, originals=5))
    assert "fdatasync msgs.1.dat" in changed


def test_a_channel_that_only_an_original_wrote_is_read_with_care_once() -> None:
    disk = fresh()
    disk.make_dirs("/store/foo")
    original_stores(disk, 1, 1, b"a", b"b")
    node = Node(disk, Owner(2, originals=1))
    node.store.tick(node.clock.wall_ns())
    node, changed = reopened(node.disk, Owner(3, originals=1))
    assert changed == []
    assert contents(node) == [(1, b"a"), (2, b"b")]


def reopened(found: SimDisk, owner: Owner) -> tuple[Node, list[str]]:
    """After the process was killed: a node, and what its start synced and wrote."""
    disk = found.crash(process_only=True)
    opened: list[str] = []
    changed: list[str] = []

    def note(_number: int, call: str, args: tuple[object, ...]) -> None:
        if call == "open":
            opened.append(str(args[1]))
        elif call in {"fdatasync", "pwrite", "rename", "link"}:
            changed.append(f"{call} {opened[-1]}")

    disk.on_call = note
    return Node(disk, owner), changed
