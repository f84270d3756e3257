"""Slices of ours of which only the index is left: what they end stays hidden, what they name is
damage, and the tools say and do what a start does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.stores.file.env import FileEnv, FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.state.confirmed import Confirmed, decode, encode
from ftstan.stores.file.tools.changing import source_to_judge, start_and_stop
from ftstan.stores.file.tools.repairing import Repair, make_plan
from ftstan.wire.block import MsgBlock
from ftstan.wire.codec import decode_msg_proto
from tests.filenode import Owner
from tests.unit.stores.test_recovery_slices import CRC, VERSION, block_of, index_of, put
from tests.unit.stores.test_slices import Node, fresh

if TYPE_CHECKING:
    from tests.oracle.goview import Tree
    from tests.sim.disk import SimDisk

LOST = {"absent": None, "empty": b"", "head": VERSION, "zeros": bytes(300)}
how = pytest.mark.parametrize("lost", list(LOST))

ACKED = [(n, f"x{n}".encode()) for n in range(1, 11)]
HIGHER = [(n, f"x{n}".encode()) for n in range(21, 31)]


def lose(tree: Tree, number: int, lost: str = "absent") -> None:
    """Leave the index of a slice, and of its data what ``LOST`` says."""
    name = f"foo/msgs.{number}.dat"
    if LOST[lost] is None:
        del tree[name]
    else:
        tree[name] = LOST[lost]


def fenced(*, newer: bool, late: str = "refused") -> Tree:
    """Slice 1 with 1 to 10, and 11 and 12 that its owner wrote when 4097 stood; 4097 with 11 to 20.

    ``newer``: 4098 with 21 to 30.
    """
    tree: Tree = {"foo": None, "foo/subs.dat": VERSION}
    put(tree, 1, range(1, 11))
    tree["foo/msgs.1.dat"] = (tree["foo/msgs.1.dat"] or b"") + bytes(
        memoryview(block_of([11, 12], late))
    )
    put(tree, 4097, range(11, 21))
    if newer:
        put(tree, 4098, range(21, 31))
    return tree


def disk_of(tree: Tree) -> SimDisk:
    disk = fresh()
    disk.add_tree("/store", tree)
    return disk


def contents(node: Node) -> list[tuple[int, bytes]]:
    """Every message as (sequence, data), also where some between are missing."""
    channel = node.channels[b"foo"]
    found: list[tuple[int, bytes]] = []
    at = max(channel.first, 1)
    while at <= channel.last and (block := channel.read(at, 7, 2000)) is not None:
        found += [
            (block.sequence(i), bytes(decode_msg_proto(block.payload(i))[3]))
            for i in range(block.position(at), len(block))
        ]
        at = found[-1][0] + 1
    return found


def start(disk: SimDisk, epoch: int = 3, *, ours_from: int = 1) -> Node:
    return Node(disk, Owner(epoch, ours_from))


def env_of(disk: SimDisk, epoch: int = 4, *, ours_from: int = 1) -> FileEnv:
    root = disk.open_dir("/store")
    owner = Owner(epoch, ours_from)
    return FileEnv(disk, root, ManualClock(), FileStoreOptions(), owner, CRC, path="/store")


def damage(disk: SimDisk, *, ours_from: int = 1) -> list[tuple[str, str]]:
    """What a repair would find."""
    plan = make_plan(source_to_judge(env_of(disk, ours_from=ours_from)), None)
    return [(f.file, f.text) for rows in plan.findings.values() for f in rows if f.kind == "damage"]


def repaired(disk: SimDisk, *, ours_from: int = 1) -> tuple[SimDisk, list[tuple[str, str]], Tree]:
    """The store behind a repair and the start that belongs to it, what that said, and its
    copies.
    """
    env = env_of(disk, ours_from=ours_from)
    disk.make_dirs("/aside")
    source = source_to_judge(env)
    steps = Repair(env, source, disk.open_dir("/aside")).run(make_plan(source, None))
    assert start_and_stop(env) == []
    aside = disk.tree("/aside")
    return disk.crash(process_only=True), [(step.file, step.text) for step in steps], aside


@how
@pytest.mark.parametrize("newer", [True, False], ids=["an older slice", "the newest slice"])
def test_what_a_slice_without_messages_ends_stays_hidden(lost: str, *, newer: bool) -> None:
    tree = fenced(newer=newer)
    lose(tree, 4097, lost)
    node = start(disk_of(tree))
    last = 30 if newer else 20
    assert (node.store.quarantined, node.channel().last) == (["foo"], last)
    assert contents(node) == ACKED + (HIGHER if newer else [])


@how
@pytest.mark.parametrize("newer", [True, False], ids=["an older slice", "the newest slice"])
def test_a_repair_finds_it_keeps_what_counts_and_gives_no_number_out_again(
    lost: str, *, newer: bool
) -> None:
    tree = fenced(newer=newer)
    lose(tree, 4097, lost)
    disk = disk_of(tree)
    what = "no message is in it, its index names sequences 11 to 20"
    assert ("foo/msgs.4097.dat", what) in damage(disk)
    disk, steps, aside = repaired(disk)
    assert ("foo", "10 messages are lost: sequences 11 to 20") in steps
    kept = "kept 10 messages, left out 0 bad records and 2 that do not count"
    assert ("foo/msgs.1.dat", kept) in steps
    assert any(file.startswith("foo/msgs.4097.") for file, _ in steps)
    assert aside["foo/msgs.1.dat"] == tree["foo/msgs.1.dat"]
    assert aside["foo/msgs.4097.idx"] == tree["foo/msgs.4097.idx"]
    assert damage(disk.crash(process_only=True)) == []
    node = start(disk, 6)
    assert node.store.quarantined == []
    assert contents(node) == ACKED + (HIGHER if newer else [])
    assert node.put(b"next") == {}
    assert node.channel().last == (31 if newer else 21)


def test_copies_with_which_it_began_are_served_from_where_they_came() -> None:
    """A start copies what may not be durable: the messages of both are the same."""
    tree = fenced(newer=True, late="x")
    lose(tree, 4097)
    node = start(disk_of(tree))
    twelve = [*ACKED, (11, b"x11"), (12, b"x12")]
    assert (node.store.quarantined, contents(node)) == (["foo"], twelve + HIGHER)
    disk, steps, _ = repaired(disk_of(tree))
    assert ("foo", "8 messages are lost: sequences 13 to 20") in steps
    assert contents(start(disk, 6)) == twelve + HIGHER


def test_where_it_held_nothing_but_copies_nothing_is_missing() -> None:
    tree = fenced(newer=False, late="x")
    put(tree, 4097, [11, 12])
    put(tree, 4098, range(13, 15))
    tree["foo/msgs.1.dat"] = (tree["foo/msgs.1.dat"] or b"") + bytes(
        memoryview(block_of([13, 14], "refused"))
    )
    lose(tree, 4097)
    assert damage(disk_of(tree)) == []
    node = start(disk_of(tree))
    assert (node.store.quarantined, contents(node)[10:]) == (
        [],
        [(11, b"x11"), (12, b"x12"), (13, b"x13"), (14, b"x14")],
    )


def test_what_lies_behind_the_copies_that_its_index_names_is_hidden_and_told() -> None:
    """Late bytes of a former owner, or copies that the index does not name yet."""
    tree = fenced(newer=False, late="x")
    tree["foo/msgs.4097.idx"] = index_of([11])
    lose(tree, 4097)
    text = (
        "no message is in it, its index ends with sequence 11, and lower slices go on behind that"
    )
    assert damage(disk_of(tree)) == [("foo/msgs.4097.dat", text)]
    node = start(disk_of(tree))
    assert (node.store.quarantined, contents(node)) == (["foo"], [*ACKED, (11, b"x11")])
    disk, steps, aside = repaired(disk_of(tree))
    kept = "kept 11 messages, left out 0 bad records and 1 that do not count"
    assert ("foo/msgs.1.dat", kept) in steps
    assert aside["foo/msgs.1.dat"] == tree["foo/msgs.1.dat"]
    assert contents(start(disk, 6)) == [*ACKED, (11, b"x11")]


def test_what_was_confirmed_below_it_is_never_hidden() -> None:
    tree = fenced(newer=True)
    end = len(tree["foo/msgs.1.dat"] or b"")
    tree["foo/confirmed.bin"] = encode(Confirmed(1, 1, 12, end, 12), 0)
    lose(tree, 4097)
    node = start(disk_of(tree))
    twelve = [*ACKED, (11, b"refused11"), (12, b"refused12")]
    assert (node.store.quarantined, contents(node)) == (["foo"], twelve + HIGHER)
    assert contents(start(repaired(disk_of(tree))[0], 6)) == twelve + HIGHER


@how
def test_without_syncs_it_is_no_damage_and_what_it_ends_stays_hidden_all_the_same(
    lost: str,
) -> None:
    tree = fenced(newer=False)
    lose(tree, 4097, lost)
    disk = disk_of(tree)
    options = FileStoreOptions(sync=False)
    node = Node(disk, Owner(3), options)
    if lost == "zeros":
        # Of no version that a server writes.
        assert node.store.quarantined == ["foo"]
        return
    assert (node.store.quarantined, contents(node), node.channel().last) == ([], ACKED, 20)
    assert node.put(b"next") == {}
    again = Node(disk.crash(process_only=True), Owner(4), options)
    assert (again.store.quarantined, contents(again)) == ([], [*ACKED, (21, b"next")])
    again.store.close()
    last = Node(again.disk.sibling(), Owner(5), options)
    assert (last.store.quarantined, contents(last)) == ([], [*ACKED, (21, b"next")])


def test_below_all_others_and_behind_a_seal_it_tells_nothing() -> None:
    tree: Tree = {"foo": None, "foo/subs.dat": VERSION}
    # What the limits removed, index first, and a power cut kept of it.
    tree["foo/msgs.1.idx"] = index_of(range(1, 4))
    put(tree, 4097, range(4, 7))
    # A batch that was refused, and again with success.
    tree["foo/msgs.8193.idx"] = index_of(range(7, 9), "refused")
    put(tree, 8194, range(7, 9))
    assert damage(disk_of(tree)) == []
    node = start(disk_of(tree), 4)
    assert node.store.quarantined == []
    assert [n for n, _ in contents(node)] == [4, 5, 6, 7, 8]


def test_what_an_original_went_on_with_below_it_counts_now_and_later() -> None:
    """An original takes the highest slice that has data, whatever an index says."""
    tree: Tree = {"foo": None, "foo/subs.dat": VERSION}
    put(tree, 1, range(1, 4))
    tree["foo/msgs.4097.idx"] = index_of(range(3, 8), "ours")
    tree["foo/confirmed.bin"] = encode(Confirmed(1, 1, 2, 0, 2), 0)
    expected = [(n, f"x{n}".encode()) for n in (1, 2, 3)]
    disk = disk_of(tree)
    # Whether an original may have served is in the epochs: it has, behind the second.
    first = Node(disk, Owner(3, originals=2))
    assert (first.store.quarantined, contents(first), first.channel().last) == ([], expected, 7)
    first.put(b"more")
    first.store.tick(0)
    left = disk.crash(process_only=True)
    # Nobody knows of it any more.
    second = start(left, 4)
    assert second.store.quarantined == []
    assert contents(second) == [*expected, (8, b"more")]


def test_a_repair_leaves_what_an_original_went_on_with() -> None:
    tree: Tree = {"foo": None, "foo/subs.dat": VERSION}
    put(tree, 1, range(1, 4))
    tree["foo/msgs.4097.idx"] = index_of(range(3, 8), "ours")
    tree["foo/confirmed.bin"] = encode(Confirmed(1, 1, 2, 0, 2), 0)
    tree["foo/subs.dat"] = VERSION + b"no record at all"
    disk = disk_of(tree)
    root = disk.open_dir("/store")
    owner = Owner(3, originals=2)
    env = FileEnv(disk, root, ManualClock(), FileStoreOptions(), owner, CRC, path="/store")
    disk.make_dirs("/aside")
    source = source_to_judge(env)
    Repair(env, source, disk.open_dir("/aside")).run(make_plan(source, None))
    assert start_and_stop(env) == []
    node = start(disk.crash(process_only=True), 4)
    assert [n for n, _ in contents(node)] == [1, 2, 3]
    assert node.channel().last == 7


def test_a_slice_that_is_lost_behind_a_clean_stop_is_damage_where_a_higher_one_stands() -> None:
    node = Node(fresh())
    node.put(b"a", b"b")
    second = node.successor()
    second.put(b"c", b"d")
    third = second.successor()
    third.put(b"e", b"f")
    third.store.close()
    tree = third.disk.tree("/store")
    numbers = sorted(int(n.split(".")[1]) for n in tree if "/msgs." in n and n.endswith(".dat"))
    lose(tree, numbers[1])
    after = Node(disk_of(tree), Owner(4))
    assert after.store.quarantined == ["foo"]
    assert damage(disk_of(tree)) != []


def test_a_slice_whose_first_record_cannot_be_read_ends_what_its_index_says() -> None:
    tree = fenced(newer=True)
    data = bytearray(tree["foo/msgs.4097.dat"] or b"")
    data[20] ^= 255
    data[-3] ^= 255
    tree["foo/msgs.4097.dat"] = bytes(data)
    expected = ACKED + [(n, f"x{n}".encode()) for n in range(12, 20)] + HIGHER
    node = start(disk_of(tree))
    assert (node.store.quarantined, contents(node)) == (["foo"], expected)
    assert contents(start(repaired(disk_of(tree))[0], 6)) == expected


# ---- the last sequence
# --------------------------------------------------------------------------------------------------


def test_an_index_that_is_moved_to_the_side_takes_no_sequence_with_it() -> None:
    """In a store of an original it is no damage, and the next start would leave its numbers out."""
    tree: Tree = {"foo": None, "foo/subs.dat": VERSION}
    put(tree, 1, range(1, 11))
    tree["foo/msgs.2.idx"] = index_of(range(11, 21))
    assert damage(disk_of(tree), ours_from=8193) == []
    before = start(disk_of(tree), 3, ours_from=8193)
    assert (before.store.quarantined, before.channel().last) == ([], 20)
    disk, steps, _ = repaired(disk_of(tree), ours_from=8193)
    assert ("foo/msgs.2.idx", "moved to the side directory") in steps
    node = start(disk, 6, ours_from=8193)
    assert (node.store.quarantined, node.channel().last) == ([], 20)


def test_a_repair_that_dies_before_it_removes_an_index_says_the_last_sequence_first() -> None:
    tree = fenced(newer=False)
    lose(tree, 4097)
    disk = disk_of(tree)
    env = env_of(disk)
    disk.make_dirs("/aside")
    source = source_to_judge(env)
    removed: list[int | None] = []

    def look(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        if name == "unlink" and "msgs.4097.idx" in arguments:
            now = disk.tree("/store")
            said = decode(now["foo/confirmed.bin"] or b"")
            removed.append(said.last if said else None)
            assert len(now["foo/msgs.1.dat"] or b"") < len(tree["foo/msgs.1.dat"] or b"")

    disk.on_call = look
    Repair(env, source, disk.open_dir("/aside")).run(make_plan(source, None))
    assert removed == [20]


# ---- other damage that a start quarantines
# --------------------------------------------------------------------------------------------------


def both(tree: Tree, *, ours_from: int) -> tuple[list[tuple[str, str]], Node]:
    """What a repair finds where a start quarantines, and the node behind the repair."""
    assert start(disk_of(tree), ours_from=ours_from).store.quarantined == ["foo"]
    found = damage(disk_of(tree), ours_from=ours_from)
    disk, _, _ = repaired(disk_of(tree), ours_from=ours_from)
    assert damage(disk.crash(process_only=True), ours_from=ours_from) == []
    node = start(disk, 6, ours_from=ours_from)
    assert node.store.quarantined == []
    return found, node


def test_two_contents_of_one_sequence_are_damage_that_a_repair_ends() -> None:
    tree: Tree = {"foo": None, "foo/subs.dat": VERSION}
    put(tree, 1, range(1, 11), "one")
    put(tree, 2, range(8, 16), "two")
    found, node = both(tree, ours_from=8193)
    text = "sequences 8 to 10 have another content than in msgs.1.dat"
    assert found == [("foo/msgs.2.dat", text)]
    names = [f"one{n}" for n in range(1, 11)] + [f"two{n}" for n in range(11, 16)]
    assert [data.decode() for _, data in contents(node)] == names


def test_where_an_original_went_on_behind_records_without_entries_a_repair_keeps_the_new_ones() -> (
    None
):
    tree: Tree = {"foo": None, "foo/subs.dat": VERSION + b"no record at all"}
    put(tree, 1, range(1, 6), "old", named=3)
    put(tree, 2, range(4, 7), "new")
    # Something that has to be repaired: a hole.
    put(tree, 3, range(9, 11), "new")
    assert [file for file, _ in damage(disk_of(tree), ours_from=8193)] == ["foo/msgs.3.dat"]
    disk, _, _ = repaired(disk_of(tree), ours_from=8193)
    said = [data.decode() for _, data in contents(start(disk, 6, ours_from=8193))]
    assert said == ["old1", "old2", "old3", "new4", "new5", "new6", "new9", "new10"]


@pytest.mark.parametrize("again", [False, True], ids=["of another channel", "of a lower sequence"])
def test_a_whole_record_behind_the_end_is_damage_that_a_repair_ends(*, again: bool) -> None:
    tree: Tree = {"foo": None, "foo/subs.dat": VERSION}
    put(tree, 1, range(1, 4))
    block = block_of([2], "other")
    stray = bytes(memoryview(block)) if again else record_of_another_channel()
    tree["foo/msgs.1.dat"] = (tree["foo/msgs.1.dat"] or b"") + stray
    found, node = both(tree, ours_from=8193)
    assert [file for file, _ in found] == ["foo/msgs.1.dat"]
    assert [data for _, data in contents(node)] == [b"x1", b"x2", b"x3"]


def record_of_another_channel() -> bytes:
    block = MsgBlock()
    block.append(4, b"bar", b"", b"bar", 1_000_000_004)
    records.seal(block, CRC)
    return bytes(memoryview(block))


def test_messages_of_a_file_of_an_unknown_version_are_kept() -> None:
    tree: Tree = {"foo": None, "foo/subs.dat": VERSION}
    put(tree, 1, range(1, 4))
    tree["foo/msgs.1.dat"] = b"\7\0\0\0" + (tree["foo/msgs.1.dat"] or b"")[4:]
    _, node = both(tree, ours_from=1)
    assert [data for _, data in contents(node)] == [b"x1", b"x2", b"x3"]


# ---- names
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", ["0", "-3", "01", "+1"])
def test_a_repair_keeps_a_slice_of_a_name_that_a_start_serves(number: str) -> None:
    tree: Tree = {"foo": None, "foo/subs.dat": VERSION}
    put(tree, 1, range(1, 4))
    tree[f"foo/msgs.{number}.dat"] = tree.pop("foo/msgs.1.dat")
    del tree["foo/msgs.1.idx"]
    put(tree, 2, range(4, 7))
    assert damage(disk_of(tree), ours_from=8193) == []
    put(tree, 3, range(8, 9))
    disk, steps, _ = repaired(disk_of(tree), ours_from=8193)
    assert ("foo", "1 messages are lost: sequences 7") in steps
    node = start(disk, 6, ours_from=8193)
    assert node.store.quarantined == []
    assert [n for n, _ in contents(node)] == [1, 2, 3, 4, 5, 6, 8]


def test_a_file_of_no_slices_name_goes_to_the_side_and_is_told() -> None:
    tree: Tree = {"foo": None, "foo/subs.dat": VERSION}
    put(tree, 1, range(1, 4))
    tree["foo/msgs.01.dat"] = tree["foo/msgs.x.dat"] = tree["foo/msgs.1.dat"]
    disk, steps, aside = repaired(disk_of(tree))
    told = "no slice's name: moved to the side directory"
    assert [("foo/msgs.01.dat", told), ("foo/msgs.x.dat", told)] == [
        step for step in steps if step[1] == told
    ]
    assert {"foo/msgs.01.dat", "foo/msgs.x.dat"} <= set(aside)
    assert "foo/msgs.x.dat" not in disk.tree("/store")
