"""What a start of a cluster's node takes away behind its last ``sync_all``, and what it leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import FencedError
from ftstan.stores.file.env import FileEnv, FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.recovery.rolling_back import roll_back
from ftstan.stores.file.state.confirmed import Confirmed, encode
from tests.filenode import Owner
from tests.sim.disk import CrashMode, Killed
from tests.unit.stores.test_recovery_slices import VERSION, block_of, index_of, put
from tests.unit.stores.test_slices import fresh, killing_at

if TYPE_CHECKING:
    from tests.oracle.goview import Tree
    from tests.sim.disk import SimDisk


def end_of(number: int, sequence: int, *, length: int = -1, replayed: bool = True) -> bytes:
    """``confirmed.bin`` that says that the channel ends with ``sequence`` in that slice.

    ``length``: of the slice, by default that of records from 1 on.
    """
    if length < 0:
        length = size_of(range(1, sequence + 1))
    said = Confirmed(1, number, sequence, length, sequence, synced=False, replayed=replayed)
    return encode(said, 1)


def size_of(sequences: range) -> int:
    return len(VERSION) + len(bytes(memoryview(block_of(sequences, "x"))))


def channel(*puts: tuple[int, range], end: bytes | None = None) -> Tree:
    """A channel with these slices."""
    tree: Tree = {"foo": None, "foo/subs.dat": VERSION}
    for number, sequences in puts:
        put(tree, number, sequences)
    if end is not None:
        tree["foo/confirmed.bin"] = end
    return tree


def disk_with(tree: Tree) -> SimDisk:
    disk = fresh()
    disk.add_tree("/store", tree)
    return disk


def started(
    disk: SimDisk, *, owner: Owner | None = None, replayed_before: bool = False
) -> dict[str, bytes | None]:
    """Start on it; the channel's files then."""
    root = disk.open_dir("/store")
    options = FileStoreOptions(sync=False, replayed=True, replayed_before=replayed_before)
    env = FileEnv(disk, root, ManualClock(), options, owner or Owner(), records.Crc())
    folder = disk.open_dir("/store/foo")
    before = disk.open_handles
    try:
        roll_back(env, b"foo", folder)
    finally:
        assert disk.dead or disk.open_handles == before
    return disk.tree("/store/foo")


def files(tree: Tree) -> dict[str, bytes | None]:
    return {name.removeprefix("foo/"): data for name, data in tree.items() if name != "foo"}


WHOLE = channel((1, range(1, 6)), (2, range(6, 9)), (5, range(9, 11)), end=end_of(1, 3))


@pytest.mark.parametrize(
    "end",
    [None, end_of(1, 3, replayed=False), b"no slot of it is valid", b""],
    ids=["none", "of another owner", "damaged", "empty"],
)
@pytest.mark.parametrize("replayed_before", [False, True])
def test_what_no_owner_of_this_kind_has_marked_is_not_touched(
    end: bytes | None, *, replayed_before: bool
) -> None:
    tree = channel((1, range(1, 6)), (2, range(6, 9)), end=end)
    # Where every owner was of this kind, what is not marked came behind the last sync.
    is_new = end is None and replayed_before
    expected = {"subs.dat": VERSION} if is_new else files(tree)
    owner = Owner()
    assert started(disk_with(tree), owner=owner, replayed_before=replayed_before) == expected
    assert owner.confirms == int(is_new)


def test_a_channel_ends_where_it_was_synced_last_and_that_is_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    owner = Owner()
    tree = started(disk_with(WHOLE), owner=owner)
    expected = channel((1, range(1, 4)), end=end_of(1, 3))
    assert tree == files(expected)
    assert owner.confirms == 1
    assert 'channel "foo": goes on behind message 3: what came later was not synced' in (
        capfd.readouterr().err
    )


def test_what_was_taken_away_does_not_come_back_with_the_power() -> None:
    disk = disk_with(WHOLE)
    expected = started(disk)
    for mode in CrashMode:
        assert disk.crash(mode=mode).tree("/store/foo") == expected


def test_a_channel_that_ends_where_it_was_synced_costs_no_write(
    capfd: pytest.CaptureFixture[str],
) -> None:
    tree = channel(
        (1, range(1, 4)), (2, range(4, 9)), end=end_of(2, 8, length=size_of(range(4, 9)))
    )
    disk = disk_with(tree)
    owner = Owner()
    assert started(disk, owner=owner) == files(tree)
    assert owner.confirms == 0
    assert not {"unlink", "ftruncate", "fsync"} & {line.split()[0] for line in disk.log}
    assert "goes on behind" not in capfd.readouterr().err


def test_slices_below_the_last_one_are_none_of_its_concern() -> None:
    size = size_of(range(4, 6))
    tree = channel((1, range(1, 4)), (2, range(4, 9)), end=end_of(2, 5, length=size))
    expected = channel((1, range(1, 4)), (2, range(4, 6)), end=end_of(2, 5, length=size))
    assert started(disk_with(tree)) == files(expected)


@pytest.mark.parametrize("length", [size_of(range(1, 4)), 0], ids=["exact", "unknown"])
def test_an_index_that_is_ahead_of_its_messages_is_cut_alone(length: int) -> None:
    tree = channel((1, range(1, 4)), end=end_of(1, 3, length=length))
    tree["foo/msgs.1.idx"] = index_of(range(1, 7))
    expected = dict(files(tree))
    expected["msgs.1.idx"] = index_of(range(1, 4))
    assert started(disk_with(tree)) == expected


@pytest.mark.parametrize("length", [0, 10_000], ids=["unknown", "more than there is"])
def test_messages_are_cut_only_where_their_end_is_known(length: int) -> None:
    tree = channel((1, range(1, 6)), end=end_of(1, 3, length=length))
    expected = dict(files(tree))
    expected["msgs.1.idx"] = index_of(range(1, 4))
    assert started(disk_with(tree)) == expected


@pytest.mark.parametrize(
    ("sequences", "kept"),
    [([1, 2, 4, 9], [1, 2, 4]), ([1, 3, 2, 4], [1, 3]), ([1, 2, 2, 3], [1, 2]), ([9], [])],
    ids=["with a hole", "that goes back", "that stands still", "of other messages"],
)
def test_of_an_index_counts_what_rises_up_to_the_last_message(
    sequences: list[int], kept: list[int]
) -> None:
    tree = channel((1, range(1, 5)), end=end_of(1, 4))
    entries = [index_of([sequence])[len(VERSION) :] for sequence in sequences]
    # Half an entry more, as a power cut leaves it.
    tree["foo/msgs.1.idx"] = VERSION + b"".join(entries) + entries[0][:7]
    found = started(disk_with(tree))
    assert found["msgs.1.idx"] == VERSION + b"".join(entries[: len(kept)])
    assert found["msgs.1.dat"] == tree["foo/msgs.1.dat"]


@pytest.mark.parametrize("missing", ["dat", "idx"])
def test_half_a_slice_goes_as_well_and_a_last_one_that_is_not_there_is_no_hindrance(
    missing: str,
) -> None:
    tree = channel((2, range(6, 9)), (3, range(9, 11)), end=end_of(1, 5))
    del tree[f"foo/msgs.2.{missing}"]
    assert started(disk_with(tree)) == {"subs.dat": VERSION, "confirmed.bin": end_of(1, 5)}


def test_a_channel_that_was_never_synced_goes_but_for_what_an_original_wrote() -> None:
    tree = channel((7, range(1, 6)), (4097, range(6, 9)), (4098, range(9, 11)))
    expected = channel((7, range(1, 6)))
    found = started(disk_with(tree), owner=Owner(2, ours_from=4097), replayed_before=True)
    assert found == files(expected)


def test_the_last_slice_that_an_original_can_have_is_one_of_its() -> None:
    tree = channel((4096, range(1, 6)), (4097, range(6, 9)))
    found = started(disk_with(tree), owner=Owner(2, ours_from=4097), replayed_before=True)
    assert found["msgs.4096.dat"] == tree["foo/msgs.4096.dat"]
    assert "msgs.4097.dat" not in found


def test_the_first_slice_of_ours_is_one_of_them() -> None:
    tree = channel((1, range(1, 6)))
    assert started(disk_with(tree), replayed_before=True) == {"subs.dat": VERSION}


def test_an_owner_that_is_fenced_takes_nothing_away() -> None:
    disk = disk_with(WHOLE)
    with pytest.raises(FencedError):
        started(disk, owner=Owner(fenced=True))
    assert disk.tree("/store") == disk_with(WHOLE).tree("/store")


@pytest.mark.parametrize("name", ["confirmed.bin", "msgs.1.idx", "msgs.1.dat"])
def test_where_a_directory_has_the_name_of_a_file_nothing_is_touched(name: str) -> None:
    """It is damage, which is told later."""
    tree = WHOLE | {f"foo/{name}": None}
    disk = disk_with(tree)
    started(disk)
    assert disk.tree("/store/foo") == files(tree)


@pytest.mark.parametrize("mode", [None, *CrashMode])
def test_a_death_in_between_leaves_no_hole_and_the_next_start_the_same(
    mode: CrashMode | None,
) -> None:
    whole = disk_with(WHOLE)
    before = whole.calls
    expected = started(whole)
    for number in range(before + 1, whole.calls + 1):
        disk = disk_with(WHOLE)
        disk.on_call = killing_at(number)
        with pytest.raises(Killed):
            started(disk)
        left = disk.crash(process_only=True) if mode is None else disk.crash(mode=mode)
        if mode is not CrashMode.UNORDERED:
            is_without_hole(left)
        assert started(left) == expected


def is_without_hole(left: SimDisk) -> None:
    """No slice is missing below another one, and no index is there without its data."""
    names = left.tree("/store/foo")
    there = [name for name in ("msgs.1.dat", "msgs.2.dat", "msgs.5.dat") if name in names]
    assert there == ["msgs.1.dat", "msgs.2.dat", "msgs.5.dat"][: len(there)]
    for name in names:
        assert not name.endswith(".idx") or f"{name[:-4]}.dat" in there
