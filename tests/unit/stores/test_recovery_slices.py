"""What a start makes of slices that do not fit each other, or their indexes: which records count,
what is said of the others, and when the channel is quarantined.
"""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import RecoveryError
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.recovery import measure, opening
from ftstan.wire.block import MsgBlock
from tests.filenode import Owner
from tests.sim.disk import CrashMode
from tests.unit.stores.test_foreign_writes import original_stores
from tests.unit.stores.test_recovery_damage import TORN, contents_of, left_by, record, written
from tests.unit.stores.test_slices import Node, contents, fresh

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.oracle.goview import Tree
    from tests.sim.disk import SimDisk

CRC = records.Crc()
VERSION = b"\1\0\0\0"


def block_of(sequences: Sequence[int], data: str) -> MsgBlock:
    block = MsgBlock()
    for n in sequences:
        block.append(n, b"foo", b"", f"{data}{n}".encode(), 1_000_000_000 + n)
    records.seal(block, CRC)
    return block


def index_of(sequences: Sequence[int], data: str = "x") -> bytes:
    block = block_of(sequences, data)
    return VERSION + records.index_entries(block, 0, len(block), 4, CRC)


def put(
    tree: Tree,
    number: int,
    sequences: Sequence[int],
    data: str = "x",
    *,
    named: int | None = None,
) -> None:
    """A slice with these records, whose index names the first ``named`` of them."""
    tree[f"foo/msgs.{number}.dat"] = VERSION + bytes(memoryview(block_of(sequences, data)))
    tree[f"foo/msgs.{number}.idx"] = index_of(sequences[:named], data)


def original(*puts: tuple[Any, ...], named: int | None = None) -> Node:
    """Our first start on a store of an original with these slices; ``named``: of the first one."""
    tree: Tree = {"foo": None, "foo/subs.dat": VERSION}
    for at, words in enumerate(puts):
        put(tree, *words, named=None if at else named)
    disk = fresh()
    disk.add_tree("/store", tree)
    return Node(disk, Owner(2, ours_from=4097))


def shown(node: Node) -> list[str]:
    """What the messages of ``foo`` hold."""
    return [data.decode() for _, data in contents(node)]


def names(letter: str, *numbers: int) -> list[str]:
    return [f"{letter}{n}" for n in numbers]


# ---- slices of the original that overlap
# ------------------------------------------------------------------------------------------------


def test_of_two_slices_that_hold_the_same_the_lower_one_is_shortened() -> None:
    node = original((1, range(1, 6)), (2, range(3, 9)), (3, range(8, 10)))
    assert node.store.quarantined == []
    assert shown(node) == names("x", *range(1, 10))


@pytest.mark.parametrize("fits", [True, False])
def test_records_that_an_index_passes_over_are_not_compared_with_another_slice(
    *, fits: bool
) -> None:
    tree: Tree = {"foo": None, "foo/subs.dat": VERSION}
    parts = [block_of([1, 2], "x"), block_of([3], "old"), block_of([3, 4], "x")]
    data, index = VERSION, VERSION
    for at, block in enumerate(parts):
        if at != 1:
            index += records.index_entries(block, 0, len(block), len(data), CRC)
        data += bytes(memoryview(block))
    tree |= {"foo/msgs.1.dat": data, "foo/msgs.1.idx": index}
    put(tree, 2, range(3, 6), "x" if fits else "y")
    disk = fresh()
    disk.add_tree("/store", tree)
    node = Node(disk, Owner(2, ours_from=4097))
    assert node.store.quarantined == ([] if fits else ["foo"])
    if fits:
        assert shown(node) == names("x", 1, 2, 3, 4, 5)


def test_a_slice_whose_records_are_all_in_another_one_counts_for_nothing() -> None:
    node = original((1, range(1, 4)), (2, range(1, 7)), (3, range(7, 8)))
    assert node.store.quarantined == []
    assert shown(node) == names("x", *range(1, 8))


def test_where_an_original_went_on_behind_records_without_entries_the_new_ones_count(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It was killed between records and their entries, took them for nothing, and gave their
    sequences out again: nobody was told of the first ones.
    """
    node = original((1, range(1, 6), "old"), (2, range(4, 7), "new"), named=3)
    assert node.store.quarantined == []
    assert shown(node) == [*names("old", 1, 2, 3), *names("new", 4, 5, 6)]
    assert (
        "msgs.1.dat has records of sequences 4 to 5 that its index does not name, and msgs.2.dat "
        "others, which are served: an original server was killed and went on there"
    ) in capfd.readouterr().err


@pytest.mark.parametrize(
    ("numbers", "first", "last"),
    [
        ((2, 1), range(1, 6), range(4, 7)),
        ((1, 2), range(1, 6), range(5, 7)),
        ((1, 2), range(1, 6), range(3, 7)),
    ],
    ids=["in a lower slice", "not right behind the index", "before the end of the index"],
)
def test_other_contents_of_the_same_sequences_are_damage(
    numbers: tuple[int, int], first: range, last: range
) -> None:
    node = original((numbers[0], first, "old"), (numbers[1], last, "new"), named=3)
    assert node.store.quarantined == ["foo"]


def test_no_more_than_a_batch_is_passed_over_and_no_index_that_may_be_half_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stores = (1, range(1, 6), "old"), (2, range(4, 7), "new")
    monkeypatch.setattr(measure, "_ORIGINALS_BATCH", 2)
    assert original(*stores, named=3).store.quarantined == []
    monkeypatch.setattr(measure, "_ORIGINALS_BATCH", 1)
    assert original(*stores, named=3).store.quarantined == ["foo"]
    monkeypatch.setattr(measure, "_ORIGINALS_BATCH", 1024)
    monkeypatch.setattr(measure, "_ORIGINALS_BUFFER", 3)
    assert original(*stores, named=3).store.quarantined == ["foo"]


# ---- holes
# ------------------------------------------------------------------------------------------------


def test_an_original_is_served_around_its_holes_which_are_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    node = original((1, [1, 2, 4]), (2, [7, 8]))
    assert node.store.quarantined == []
    assert contents_of(node, b"foo") == [1, 2, 4, 7, 8]
    said = capfd.readouterr().err
    assert "1 sequences between 1 and 4 are missing in msgs.1.dat" in said
    assert "sequences 5 to 6 are missing between msgs.1.dat" in said


def test_messages_that_only_the_index_of_an_original_names_are_gone_and_their_numbers_are_used(
    capfd: pytest.CaptureFixture[str],
) -> None:
    tree: Tree = {
        "foo": None,
        "foo/subs.dat": VERSION,
        "foo/msgs.1.dat": VERSION,
        "foo/msgs.1.idx": index_of(range(1, 4)),
    }
    disk = fresh()
    disk.add_tree("/store", tree)
    node = Node(disk, Owner(2, ours_from=4097))
    channel = node.channel()
    assert (node.store.quarantined, channel.first, channel.last) == ([], 4, 3)
    assert "sequences 1 to 3 are missing behind the beginning, an index names them" in (
        capfd.readouterr().err
    )
    node.put(b"next")
    assert contents(node) == [(4, b"next")]


def test_messages_that_our_index_names_and_the_data_ends_before_are_damage(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The file ends behind a whole record: nothing in it is bad."""
    node = written(b"a", b"b", b"c")

    def change(tree: Tree) -> None:
        second = records.entry((tree["foo/msgs.1.idx"] or b"")[4:], 1)[1]
        tree["foo/msgs.1.dat"] = (tree["foo/msgs.1.dat"] or b"")[:second]

    new = node.successor(left_by(node, change))
    assert new.store.quarantined == ["foo"]
    assert "sequences 2 to 3 are missing at offset" in capfd.readouterr().err
    assert new.channel().last == 3


def test_a_slice_of_ours_without_a_message_names_nothing_below_another_one() -> None:
    tree: Tree = {
        "foo": None,
        "foo/subs.dat": VERSION,
        "foo/msgs.1.dat": VERSION,
        "foo/msgs.1.idx": index_of(range(1, 10)),
    }
    put(tree, 2, range(1, 4))
    disk = fresh()
    disk.add_tree("/store", tree)
    node = Node(disk, Owner(2))
    assert (node.store.quarantined, node.channel().last) == ([], 3)
    assert shown(node) == names("x", 1, 2, 3)


def test_an_index_of_another_file_names_nothing_of_this_one() -> None:
    node = written(b"a", b"b")

    def change(tree: Tree) -> None:
        tree["foo/msgs.1.idx"] = index_of(range(5, 9), "other")

    new = node.successor(left_by(node, change))
    assert new.store.quarantined == []
    assert contents(new) == [(1, b"a"), (2, b"b")]


def test_what_is_served_of_an_originals_newest_slice_survives_the_power() -> None:
    """The original may not have synced it, and whoever reads it here is told of it."""
    disk = fresh()
    disk.make_dirs("/store/foo")
    original_stores(disk, 1, 1, b"a", b"b")
    node = Node(disk, Owner(2, ours_from=4097))
    assert contents(node) == [(1, b"a"), (2, b"b")]
    cut = node.disk.crash(mode=CrashMode.LOST)
    assert contents(Node(cut, Owner(3, ours_from=4097))) == [(1, b"a"), (2, b"b")]


# ---- ends of slices of ours
# ------------------------------------------------------------------------------------------------


def torn(*, sync: bool) -> tuple[Node, SimDisk]:
    """A killed node, and its disk with another slice of it that holds nothing whole."""
    node = Node(fresh(), options=FileStoreOptions(sync=sync))
    node.put(b"a")
    return node, left_by(node, lambda tree: tree.update({"foo/msgs.2.dat": VERSION + TORN}))


def test_where_everything_is_synced_a_slice_of_ours_without_a_record_is_damage() -> None:
    """It was named when its first batch was durable."""
    node, disk = torn(sync=True)
    new = node.successor(disk)
    assert (new.store.quarantined, contents_of(new, b"foo")) == (["foo"], [1])
    assert disk.tree("/store/foo")["msgs.2.dat"] == VERSION + TORN


def test_a_slice_of_ours_with_nothing_whole_in_it_is_put_aside_for_an_empty_one() -> None:
    node, disk = torn(sync=False)
    new = node.successor(disk)
    assert (new.store.quarantined, contents(new)) == ([], [(1, b"a")])
    tree = disk.tree("/store/foo")
    assert tree["msgs.2.dat"] == VERSION
    assert tree["cut.2.msgs.2.dat.4"] == TORN
    new.put(b"b")
    assert contents(new) == [(1, b"a"), (2, b"b")]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_without_space_for_the_slice_that_ends_a_torn_one_the_next_start_finds_the_same(
    code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    node, disk = torn(sync=False)
    disk.on_call = refusing(code, "msgs.2.dat")
    new = node.successor(disk)
    assert contents(new) == [(1, b"a")]
    assert "is not cut at offset 4: no space for another slice" in capfd.readouterr().err
    assert disk.tree("/store/foo")["msgs.2.dat"] == VERSION + TORN
    disk.on_call = None
    again = new.successor(disk.sibling())
    assert contents(again) == [(1, b"a")]
    assert disk.tree("/store/foo")["msgs.2.dat"] == VERSION


def refusing(code: int, made: str) -> Callable[[int, str, tuple[object, ...]], None]:
    """A disk that has no room for a new file that ends with this name."""

    def hook(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        temporary = any(isinstance(a, str) and a.endswith(f".{made}") for a in arguments)
        if name == "open" and temporary:
            raise OSError(code, "no room")

    return hook


def test_storage_that_fails_while_a_torn_slice_is_ended_ends_the_start() -> None:
    node, disk = torn(sync=False)
    disk.on_call = refusing(errno.EIO, "msgs.2.dat")
    with pytest.raises((RecoveryError, OSError)):
        node.successor(disk)


# ---- reading
# ------------------------------------------------------------------------------------------------


def test_a_slice_that_a_former_owner_removes_while_it_is_read_is_no_loss() -> None:
    """Paused behind a confirm, it removes what its limits have retired."""
    tree: Tree = {"foo": None, "foo/subs.dat": VERSION}
    put(tree, 1, range(1, 4))
    put(tree, 2, range(4, 6))
    disk = fresh()
    disk.add_tree("/store", tree)
    other = disk.sibling()
    folder = other.open_dir("/store/foo")
    removed: list[str] = []

    def remove(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        if name == "open" and "msgs.1.idx" in arguments and not removed:
            for file in ("msgs.1.idx", "msgs.1.dat"):
                removed.append(file)
                other.unlink(folder, file)

    disk.on_call = remove
    node = Node(disk, Owner(2, ours_from=1))
    assert removed
    assert (node.store.quarantined, contents_of(node, b"foo")) == ([], [4, 5])


def test_a_file_that_is_listed_and_cannot_be_opened_ends_the_start() -> None:
    tree: Tree = {"foo": None, "foo/subs.dat": VERSION}
    put(tree, 1, range(1, 4))
    disk = fresh()
    disk.add_tree("/store", tree)

    def hide(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        if name == "open" and "msgs.1.dat" in arguments:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", "msgs.1.dat")

    disk.on_call = hide
    with pytest.raises(RecoveryError) as caught:
        Node(disk, Owner(2, ours_from=4097))
    assert caught.value.text == (
        "unable to recover channel \"foo\": No such file or directory: 'msgs.1.dat'"
    )
    assert caught.value.hint == "check the storage"


def test_what_a_purge_hid_is_not_given_out_again_when_its_files_are_gone() -> None:
    node = written(b"a", b"b", b"c")
    node.channel().purge(3)

    def change(tree: Tree) -> None:
        for name in [name for name in tree if name.startswith("foo/msgs.")]:
            del tree[name]
        tree.pop("foo/confirmed.bin", None)
        tree["foo/subs.dat"] = VERSION

    disk = left_by(node, change)
    assert "purged.bin" in disk.tree("/store/foo")
    new = node.successor(disk)
    assert (new.channel().first, new.channel().last, new.channel().count) == (4, 3, 0)
    new.put(b"d")
    assert contents(new) == [(4, b"d")]


@pytest.mark.parametrize(
    ("processors", "seconds", "threads"), [(4, 0.5, True), (4, 0.0001, False), (1, 0.5, False)]
)
def test_channels_that_take_long_are_read_side_by_side_where_there_are_processors(
    processors: int, seconds: float, monkeypatch: pytest.MonkeyPatch, *, threads: bool
) -> None:
    clock = ManualClock()
    pools: list[int] = []

    def counted(most: int, name: str) -> Any:
        pools.append(most)
        return ThreadPoolExecutor(most, name)

    def read(item: int) -> int:
        clock.advance(seconds)
        return 2 * item

    monkeypatch.setattr(opening, "ThreadPoolExecutor", counted)
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    env = cast("Any", SimpleNamespace(clock=clock, options=SimpleNamespace(parallel_recovery=1)))
    found = list(opening._each(env, read, range(200), parallel=True))
    assert found == [2 * n for n in range(200)]
    assert pools == ([processors] if threads else [])
    assert list(opening._each(env, read, range(3), parallel=False)) == [0, 2, 4]
    assert len(pools) == threads


def test_an_index_that_goes_bad_while_the_channel_is_served_costs_no_message() -> None:
    """The channel is quarantined, and all of it is read from the data."""
    node = written(b"a", b"b", b"c")
    new = node.successor(left_by(node, lambda tree: None))
    folder = new.disk.open_dir("/store/foo")
    new.disk.pwrite(new.disk.open(folder, "msgs.1.idx", 2), bytes(96), 4)
    assert contents_of(new, b"foo") == [1, 2, 3]


# ---- quarantine
# ------------------------------------------------------------------------------------------------


def test_a_channel_whose_directory_was_renamed_is_read_as_it_is() -> None:
    """Every record names another channel: nothing of it was lost, and nothing of it is served as
    whole.
    """
    tree: Tree = {"foo": None}
    put(tree, 1, range(1, 4))
    tree = {name.replace("foo", "bar"): data for name, data in tree.items()}
    disk = fresh()
    disk.add_tree("/store", tree | {"bar/subs.dat": VERSION})
    node = Node(disk, Owner(2))
    assert node.store.quarantined == ["bar"]
    assert contents_of(node, b"bar") == [1, 2, 3]


def test_a_record_of_another_channel_is_damage_wherever_it_lies() -> None:
    node = written(b"a")
    stray = record(2, b"stray", b"other")

    def change(tree: Tree) -> None:
        tree["foo/msgs.1.dat"] = (tree["foo/msgs.1.dat"] or b"") + stray

    new = node.successor(left_by(node, change))
    assert (new.store.quarantined, contents_of(new, b"foo")) == (["foo"], [1])


def test_slices_whose_data_are_no_files_hide_what_lies_behind_the_lowest_of_them() -> None:
    tree: Tree = {"foo": None, "foo/subs.dat": VERSION}
    put(tree, 1, range(1, 10))
    for number, first in ((2, 6), (3, 4)):
        tree[f"foo/msgs.{number}.dat"] = None
        tree[f"foo/msgs.{number}.idx"] = index_of(range(first, first + 2), "other")
    disk = fresh()
    disk.add_tree("/store", tree)
    node = Node(disk, Owner(2))
    assert (node.store.quarantined, contents_of(node, b"foo")) == (["foo"], [1, 2, 3])
