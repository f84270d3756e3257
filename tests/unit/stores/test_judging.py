"""What is made of the slices that a start has measured: which count and up to where, what is
damage, what may be cut, and where the channel ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import pytest

from ftstan.stores.file.channel import FileChannel
from ftstan.stores.file.env import MOST_EPOCHS_AHEAD, NUMBERS_PER_EPOCH, FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.recovery.judging import ChannelVerdict, judge
from ftstan.stores.file.state.confirmed import Confirmed, encode
from tests.filenode import Owner
from tests.unit.stores.test_measure import Channel
from tests.unit.stores.test_recovery_slices import CRC, VERSION, block_of, index_of, put
from tests.unit.stores.test_slices import Node, contents, fresh

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftstan.base.disk import Disk
    from ftstan.stores.file.log.slices import SliceLog
    from ftstan.stores.file.log.view import Slice
    from tests.oracle.goview import Tree

TORN = b"\x18\0\0\0\1\2\3\4torn"
OURS = Owner()
#: The lowest numbers were an original's.
SECOND = Owner(2, ours_from=4097)
#: What the second owner can get to.
HIGHEST = NUMBERS_PER_EPOCH * (2 + MOST_EPOCHS_AHEAD)


@dataclass
class Log:
    """What is asked of the log of a channel before it is settled."""

    dirfd: int
    name: bytes = b"foo"


@dataclass
class Outcome:
    """What was judged, in numbers of slices."""

    pieces: list[tuple[int, int]]
    last: int
    dead: set[int] = field(default_factory=set)
    ends: list[int] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    damage: list[tuple[str, str]] = field(default_factory=list)
    hiding: set[int] = field(default_factory=set)
    passed: list[tuple[int, int, int]] = field(default_factory=list)


def verdict(
    tree: Tree,
    owner: Owner = OURS,
    *,
    options: FileStoreOptions | None = None,
    asking: bool = False,
) -> ChannelVerdict:
    channel = Channel(tree, owner, options=options)
    if asking:
        channel.env.asking = cast("Disk", channel.disk)
    m = channel.measured()
    log = cast("SliceLog", Log(channel.fd))
    before = channel.disk.tree("/store")
    v = judge(channel.env, log, m)
    # It reads, and writes nothing.
    assert channel.disk.tree("/store") == before
    return v


def judged(
    tree: Tree,
    owner: Owner = OURS,
    *,
    options: FileStoreOptions | None = None,
    asking: bool = False,
) -> Outcome:
    v = verdict(tree, owner, options=options, asking=asking)
    return Outcome(
        [(f.number, last) for f, last in v.pieces],
        v.last,
        v.dead,
        [f.number for f, _ in v.ends],
        [f.number for f, _ in v.cuts],
        v.damage,
        hiding=v.hiding,
        passed=[(f.number, last, later.number) for f, last, later in v.passed],
    )


def slices(*puts: tuple[int, Sequence[int]] | tuple[int, Sequence[int], str]) -> Tree:
    tree: Tree = {}
    for words in puts:
        put(tree, *words)
    return tree


def said(number: int, sequence: int, *, last: int = 0, epoch: int = 9, synced: bool = True) -> Tree:
    slot = Confirmed(epoch, number, sequence, 0, last or sequence, synced=synced)
    return {"foo/confirmed.bin": encode(slot, 1)}


def index_size(*sequences: int) -> int:
    return 4 + len(bytes(memoryview(block_of(sequences, "x"))))


UNSYNCED = FileStoreOptions(sync=False)
CUTTING = FileStoreOptions(truncate_bad_eof=True)


# ---- seals
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (range(1, 6), range(6, 9), Outcome([(1, 5), (2, 8)], 8)),
        (range(1, 6), range(3, 9), Outcome([(1, 2), (2, 8)], 8)),
        (range(1, 6), range(2, 4), Outcome([(1, 1), (2, 3)], 3)),
        (range(1, 6), range(1, 9), Outcome([(2, 8)], 8, {1})),
        (range(3, 6), range(3, 9), Outcome([(2, 8)], 8, {1})),
        (range(4, 6), range(3, 9), Outcome([(2, 8)], 8, {1})),
    ],
)
def test_a_slice_of_ours_ends_every_lower_one_at_its_own_first_message(
    first: range, second: range, expected: Outcome
) -> None:
    # Whoever had no sync has no promise in the part that is hidden.
    assert judged(slices((1, first), (2, second)), options=UNSYNCED) == expected


def test_one_of_ours_ends_those_of_an_original_as_well() -> None:
    tree = slices((7, range(1, 6)), (4097, range(4, 9)))
    assert judged(tree, SECOND) == Outcome([(7, 3), (4097, 8)], 8)


def test_slices_of_an_original_end_nothing() -> None:
    tree = slices((7, range(5, 9)), (8, range(1, 7)))
    assert judged(tree, SECOND) == Outcome([(8, 4), (7, 8)], 8)
    tree = slices((7, range(5, 9)), (4096, range(1, 7)))
    assert judged(tree, SECOND) == Outcome([(4096, 4), (7, 8)], 8)


def test_a_slice_without_a_record_is_dead() -> None:
    tree: Tree = {"foo/msgs.2.dat": VERSION, "foo/msgs.9.dat": b""}
    put(tree, 1, [1])
    assert judged(tree) == Outcome([(1, 1)], 1, {2, 9})


# ---- what was confirmed before
# --------------------------------------------------------------------------------------------------


HIDING = ("msgs.2.dat", "begins at sequence 3, and 4 was confirmed in msgs.1.dat")


def test_a_slice_that_hides_what_was_confirmed_must_hold_the_same() -> None:
    same = slices((1, range(1, 6)), (2, range(3, 9))) | said(1, 4)
    assert judged(same) == Outcome([(1, 2), (2, 8)], 8)
    other = slices((1, range(1, 6)), (2, range(3, 9), "y")) | said(1, 4)
    assert judged(other) == Outcome([(1, 2), (2, 8)], 8, damage=[HIDING], hiding={2})


@pytest.mark.parametrize(
    ("tree", "owner"),
    [
        # Behind what was confirmed anything may come.
        (slices((1, range(1, 6)), (2, range(5, 9), "y")) | said(1, 4), OURS),
        # What was confirmed was confirmed in it.
        (slices((1, range(1, 6)), (2, range(3, 9), "y")) | said(2, 8), OURS),
        # Below it is nothing that was confirmed.
        (slices((1, range(3, 6)), (2, range(1, 3), "y")) | said(1, 2), OURS),
        (slices((1, range(1, 6)), (2, range(5, 9)), (3, range(7, 9), "y")) | said(1, 6), OURS),
    ],
    ids=["behind", "in itself", "nothing below", "in one between"],
)
def test_a_slice_that_hides_nothing_that_was_confirmed_is_sealed(tree: Tree, owner: Owner) -> None:
    found = judged(tree, owner, options=CUTTING)
    assert (found.damage, found.hiding) == ([], set())


def test_the_slices_between_are_compared_up_to_what_was_confirmed() -> None:
    # The difference lies behind it: sequence 5 was never confirmed.
    tree = slices((1, range(1, 5)), (2, range(3, 5)))
    blocks = bytes(memoryview(block_of([3, 4], "x"))) + bytes(memoryview(block_of([5], "y")))
    tree["foo/msgs.2.dat"] = VERSION + blocks
    put(tree, 1, range(1, 6))
    del tree["foo/msgs.2.idx"]
    assert judged(tree | said(1, 4)).damage == []
    assert judged(tree | said(1, 5)).hiding == {2}


def test_what_an_original_wrote_in_its_turn_is_no_seal() -> None:
    tree = slices((7, range(1, 6)), (8, range(3, 9))) | said(7, 4, epoch=1)
    assert judged(tree, SECOND).hiding == set()


def refused(number: int, sequences: range, *behind: int, data: str = "refused") -> Tree:
    """A slice behind whose messages lie whole records of a batch that was refused."""
    tree = slices((number, sequences))
    more = bytes(memoryview(block_of(behind, data)))
    tree[f"foo/msgs.{number}.dat"] = (tree[f"foo/msgs.{number}.dat"] or b"") + more
    return tree


def test_what_was_sealed_when_it_was_confirmed_is_no_measure_for_a_copy() -> None:
    tree = refused(1, range(1, 7), 7, 8) | slices((2, [7, 8]), (3, [8])) | said(2, 8)
    assert judged(tree) == Outcome([(1, 6), (2, 7), (3, 8)], 8)
    # Nor where a slice that counts for nothing is what holds it.
    tree = slices((1, range(1, 7)), (2, [7, 8], "refused"), (3, [7, 8]), (4, [8])) | said(3, 8)
    assert judged(tree) == Outcome([(1, 6), (3, 7), (4, 8)], 8, {2})
    # Nor where only the index is left of the slice that sealed it.
    tree = refused(1, range(1, 7), 7, 8) | slices((2, [7]), (3, [8]), (4, [8])) | said(3, 8)
    del tree["foo/msgs.2.dat"]
    assert judged(tree).hiding == set()


def test_what_a_confirmed_slice_holds_is_the_measure_whatever_lies_below() -> None:
    tree = refused(1, range(1, 7), 7, 8) | slices((2, [7, 8]), (3, [8], "refused")) | said(2, 8)
    words = "begins at sequence 8, and 8 was confirmed in msgs.2.dat"
    assert judged(tree) == Outcome(
        [(1, 6), (2, 7), (3, 8)], 8, damage=[("msgs.3.dat", words)], hiding={3}
    )


def test_every_slice_that_hides_something_is_named() -> None:
    tree = slices((1, range(1, 6)), (2, range(4, 6), "y"), (3, range(3, 9), "z")) | said(1, 5)
    found = judged(tree)
    assert (found.hiding, [file for file, _ in found.damage]) == (
        {2, 3},
        ["msgs.2.dat", "msgs.3.dat"],
    )


# ---- slices of an original that overlap
# --------------------------------------------------------------------------------------------------


def test_of_two_that_begin_together_the_longer_one_counts() -> None:
    expected = Outcome([(2, 8)], 8, {1})
    assert judged(slices((1, range(1, 6)), (2, range(1, 9))), SECOND) == expected
    assert judged(slices((2, range(1, 9)), (1, range(1, 6))), SECOND) == expected
    assert judged(slices((1, range(1, 9)), (2, range(1, 9))), SECOND) == Outcome([(1, 8)], 8, {2})


def test_one_that_lies_within_another_counts_for_nothing() -> None:
    tree = slices((1, range(1, 9)), (2, range(3, 6)))
    assert judged(tree, SECOND) == Outcome([(1, 8)], 8, {2})
    tree = slices((1, range(1, 9)), (2, range(3, 9)))
    assert judged(tree, SECOND) == Outcome([(1, 8)], 8, {2})


def test_two_contents_of_the_same_messages_are_damage_which_names_both_files() -> None:
    tree = slices((1, range(1, 6)), (2, range(3, 9), "y"), (3, range(9, 11)))
    words = "sequences 3 to 5 have another content than in msgs.1.dat"
    assert judged(tree, SECOND) == Outcome([(1, 5), (3, 10)], 10, damage=[("msgs.2.dat", words)])
    tree = slices((1, range(1, 9)), (2, range(3, 6), "y"))
    assert judged(tree, SECOND).damage == [("msgs.2.dat", words)]


def went_on(named: int, last: int, begins: int) -> Tree:
    """An original that named so many of its messages and went on at another one."""
    tree: Tree = {}
    put(tree, 1, range(1, last + 1), "old", named=named)
    put(tree, 2, range(begins, begins + 5), "new")
    return tree


def test_where_an_original_went_on_the_later_slice_counts() -> None:
    expected = Outcome([(1, 3), (2, 8)], 8, passed=[(1, 5, 2)])
    assert judged(went_on(3, 5, 4), SECOND) == expected


def test_without_syncs_a_power_cut_may_have_taken_entries_of_what_was_acknowledged() -> None:
    found = judged(went_on(3, 5, 4), SECOND, options=UNSYNCED)
    assert (found.passed, len(found.damage)) == ([], 1)


@pytest.mark.parametrize(
    ("named", "more", "is_passed"),
    [(3, 1024, True), (3, 1025, False), (1000, 3, False), (999, 3, True), (1001, 3, True)],
)
def test_an_original_passes_over_one_batch_unless_it_was_making_its_index_anew(
    named: int, more: int, *, is_passed: bool
) -> None:
    tree = went_on(named, named + more, named + 1)
    assert (judged(tree, SECOND).passed != []) is is_passed


def test_an_index_that_was_damaged_is_no_sign_that_an_original_went_on() -> None:
    tree = went_on(3, 5, 4)
    tree["foo/msgs.1.idx"] = (tree["foo/msgs.1.idx"] or b"") + b"half"
    assert judged(tree, SECOND).passed == []


# ---- ends
# --------------------------------------------------------------------------------------------------


def torn_slice(number: int, sequences: Sequence[int], *, named: int | None = None) -> Tree:
    tree: Tree = {}
    put(tree, number, sequences, named=named)
    tree[f"foo/msgs.{number}.dat"] = (tree[f"foo/msgs.{number}.dat"] or b"") + TORN
    return tree


def test_what_ends_the_newest_slice_of_ours_is_read_around_and_of_an_original_cut() -> None:
    assert judged(torn_slice(1, [1, 2])) == Outcome([(1, 2)], 2, ends=[1])
    assert judged(torn_slice(1, [1, 2]), SECOND) == Outcome([(1, 2)], 2, cuts=[1])
    assert judged(torn_slice(4096, [1, 2]), SECOND) == Outcome([(4096, 2)], 2, cuts=[4096])
    assert judged(torn_slice(4097, [1, 2]), SECOND) == Outcome([(4097, 2)], 2, ends=[4097])


@pytest.mark.parametrize(("number", "is_ours"), [(HIGHEST - 1, True), (HIGHEST, False)])
def test_a_number_that_none_of_ours_can_have_is_nobodys_who_still_writes(
    number: int, *, is_ours: bool
) -> None:
    found = judged(torn_slice(number, [1, 2]), Owner(2))
    assert (found.ends, found.cuts) == (([number], []) if is_ours else ([], [number]))


def test_a_slice_that_another_one_ends_may_end_as_it_likes() -> None:
    tree = torn_slice(1, [1, 2]) | slices((2, [3, 4]))
    assert judged(tree) == Outcome([(1, 2), (2, 4)], 4)
    # But not before the messages that come next.
    tree = torn_slice(1, [1, 2]) | slices((2, [4, 5]))
    words = f"unexpected EOF at offset {index_size(1, 2)}"
    assert judged(tree) == Outcome([(1, 2), (2, 5)], 5, damage=[("msgs.1.dat", words)])
    assert judged(tree, SECOND).damage == [("msgs.1.dat", words)]


def test_whoever_tells_to_cut_cuts_what_is_torn_wherever_it_lies() -> None:
    tree = torn_slice(1, [1, 2]) | slices((2, [4, 5]))
    assert judged(tree, options=CUTTING) == Outcome([(1, 2), (2, 5)], 5, cuts=[1])
    # What is bad and not torn stays damage.
    tree["foo/msgs.1.dat"] = (tree["foo/msgs.1.dat"] or b"")[: -len(TORN)] + b"\1\0\0\0" + b"j" * 30
    assert len(judged(tree, options=CUTTING).damage) == 1


def test_what_our_index_names_and_is_not_there_was_promised() -> None:
    tree = slices((1, range(1, 4)))
    tree["foo/msgs.1.idx"] = index_of(range(1, 6))
    words = f"sequences 4 to 5 are missing at offset {index_size(1, 2, 3)}"
    assert judged(tree) == Outcome([(1, 3)], 5, damage=[("msgs.1.dat", words)])
    # Of an original, or without syncs, the index may be ahead.
    assert judged(tree, SECOND) == Outcome([(1, 3)], 5)
    assert judged(tree, options=UNSYNCED) == Outcome([(1, 3)], 5)
    assert judged(tree, options=CUTTING) == Outcome([(1, 3)], 5)
    torn = tree | {"foo/msgs.1.dat": (tree["foo/msgs.1.dat"] or b"") + TORN}
    words = f"unexpected EOF at offset {index_size(1, 2, 3)}"
    assert judged(torn) == Outcome([(1, 3)], 5, damage=[("msgs.1.dat", words)])
    assert judged(torn, options=UNSYNCED) == Outcome([(1, 3)], 5, ends=[1])


def test_what_our_index_names_before_the_next_slice_is_promised_too() -> None:
    tree = slices((1, range(1, 4)))
    tree["foo/msgs.1.idx"] = index_of(range(1, 6))
    words = f"sequences 4 to 5 are missing at offset {index_size(1, 2, 3)}"
    damage = [("msgs.1.dat", words)]
    assert judged(tree | slices((2, [6]))) == Outcome([(1, 3), (2, 6)], 6, damage=damage)
    # The next one has them.
    assert judged(tree | slices((2, [4, 5]))) == Outcome([(1, 3), (2, 5)], 5)
    assert judged(tree | slices((2, [3, 4, 5]))) == Outcome([(1, 2), (2, 5)], 5)


def test_a_hole_before_the_next_slice_that_no_index_denies_is_none_of_ours() -> None:
    assert judged(slices((1, [1, 2]), (2, [5]))) == Outcome([(1, 2), (2, 5)], 5)


def test_a_slice_that_holds_nothing_whole_is_ended_only_above_all_others() -> None:
    empty: Tree = {"foo/msgs.3.dat": VERSION + TORN}
    above = slices((1, [1, 2])) | empty
    assert judged(above, options=UNSYNCED) == Outcome([(1, 2)], 2, {3}, ends=[3])
    # With syncs it was durable before it was visible.
    words = "unexpected EOF at offset 4"
    assert judged(above) == Outcome([(1, 2)], 2, {3}, damage=[("msgs.3.dat", words)])
    below = slices((4, [1, 2])) | empty
    assert judged(below, options=UNSYNCED) == Outcome(
        [(4, 2)], 2, {3}, damage=[("msgs.3.dat", words)]
    )
    assert judged(empty, options=UNSYNCED) == Outcome([], 0, {3}, ends=[3])
    assert judged(empty, SECOND) == Outcome([], 0, {3}, cuts=[3])


def test_what_gives_another_content_to_a_message_is_not_cut() -> None:
    tree = slices((1, range(1, 4)))
    again = tree | {
        "foo/msgs.1.dat": (tree["foo/msgs.1.dat"] or b"") + bytes(memoryview(block_of([2], "y")))
    }
    assert len(judged(again).damage) == 1
    # The same once more says nothing new.
    same = tree | {
        "foo/msgs.1.dat": (tree["foo/msgs.1.dat"] or b"") + bytes(memoryview(block_of([2], "x")))
    }
    found = judged(same)
    assert (found.damage, found.ends) == ([], [1])


# ---- where the channel ends
# --------------------------------------------------------------------------------------------------


def test_an_empty_channel_ends_at_nothing() -> None:
    assert judged({}) == Outcome([], 0)
    assert judged(said(0, 0, last=7)) == Outcome([], 7)


def test_a_channel_ends_behind_every_message_that_was_confirmed() -> None:
    tree = slices((1, range(1, 4)))
    words = "sequence 5 was confirmed and the log ends at 3"
    damage = [("msgs.1.dat", words)]
    assert judged(tree | said(1, 3)) == Outcome([(1, 3)], 3)
    assert judged(tree | said(1, 3, last=9)) == Outcome([(1, 3)], 9)
    assert judged(tree | said(1, 5)) == Outcome([(1, 3)], 5, damage=damage)
    # A power cut may have taken it back, or the operator gives it up.
    assert judged(tree | said(1, 5, synced=False)) == Outcome([(1, 3)], 5)
    assert judged(tree | said(1, 5), options=CUTTING) == Outcome([(1, 3)], 5)


def index_alone(number: int, *sequences: int) -> Tree:
    return {f"foo/msgs.{number}.idx": index_of(sequences)}


def test_an_index_without_its_data_above_the_newest_slice_holds_its_numbers() -> None:
    tree = slices((2, range(1, 4)))
    words = "no message is in it, its index names sequences 4 to 5"
    found = judged(tree | index_alone(3, 4, 5))
    assert found == Outcome([(2, 3)], 5, damage=[("msgs.3.dat", words)])
    assert judged(tree | index_alone(3, 4, 5), options=UNSYNCED) == Outcome([(2, 3)], 5)
    assert judged(tree | index_alone(3, 4, 5), SECOND) == Outcome([(2, 3)], 5)
    # What it names is there.
    assert judged(tree | index_alone(3, 2, 3)) == Outcome([(2, 3)], 3)
    # Below the newest one it was removed, its index late.
    assert judged(tree | index_alone(1, 4, 5)) == Outcome([(2, 3)], 3)


def test_so_does_one_whose_data_hold_no_message() -> None:
    tree = slices((2, range(1, 4))) | index_alone(3, 4, 5) | {"foo/msgs.3.dat": VERSION}
    words = "no message is in it, its index names sequences 4 to 5"
    assert judged(tree) == Outcome([(2, 3)], 5, {3}, damage=[("msgs.3.dat", words)])
    assert judged(tree, SECOND) == Outcome([(2, 3)], 5, {3})
    ours = Owner(2, ours_from=3)
    assert judged(tree, ours).damage == [("msgs.3.dat", words)]
    assert judged(tree, Owner(2, ours_from=4)).damage == []
    below = slices((4, range(1, 4))) | index_alone(3, 4, 5) | {"foo/msgs.3.dat": VERSION}
    assert judged(below) == Outcome([(4, 3)], 3, {3})


def test_an_entry_of_ours_is_strict_only_while_everything_is_synced() -> None:
    tree = slices((1, [1]))
    assert verdict(tree).strict
    assert not verdict(tree, options=UNSYNCED).strict
    assert not verdict(tree, options=CUTTING).strict
    assert not verdict(tree | said(1, 1, synced=False)).strict
    assert not verdict(tree, Owner(originals=1)).strict


# ---- copies
# --------------------------------------------------------------------------------------------------


ROOM = "its number leaves no room for a copy of what may not be durable"


def unproven(number: int) -> Tree:
    """A newest slice whose last record no index proves, and one that a damaged name has."""
    tree: Tree = {}
    put(tree, 1, range(1, 4), named=2)
    put(tree, number, range(1, 6), named=4)
    return tree


def test_where_no_number_is_left_for_a_copy_the_channel_is_damaged() -> None:
    # Of the last number that we can get to: the copy needs a higher one.
    assert judged(unproven(HIGHEST - 1), Owner(2)).damage == []
    # What stands above is no former owner's: it is synced, not copied.
    assert judged(unproven(HIGHEST), Owner(2)).damage == []
    assert judged(unproven(HIGHEST), Owner(2), asking=True).damage == []
    # Its records are not in one piece, so that it must be copied.
    tree = scattered(HIGHEST)
    foreign = Owner(2, ours_from=HIGHEST + 1)
    assert judged(tree, foreign).damage == [(f"msgs.{HIGHEST}.dat", ROOM)]
    assert judged(scattered(HIGHEST - 1), foreign).damage == []


def scattered(number: int) -> Tree:
    """A slice whose index passes over a record."""
    data, index = VERSION, VERSION
    for data_of, sequences in (("x", [1, 2]), ("old", [3]), ("x", [3, 4])):
        block = block_of(sequences, data_of)
        if data_of == "x":
            index += records.index_entries(block, 0, len(block), len(data), CRC)
        data += bytes(memoryview(block))
    return {f"foo/msgs.{number}.dat": data, f"foo/msgs.{number}.idx": index}


def test_where_a_sync_commits_nothing_of_another_host_an_originals_newest_is_copied_too() -> None:
    foreign = Owner(2, ours_from=HIGHEST + 1)
    tree = slices((HIGHEST, [1, 2, 3]))
    put(tree, 5, [4, 5, 6], named=2)
    assert judged(tree, foreign) == Outcome([(HIGHEST, 3), (5, 6)], 6)
    assert judged(tree, foreign, asking=True).damage == [(f"msgs.{HIGHEST}.dat", ROOM)]
    # One of which the index names everything has nothing to be copied.
    put(tree, 5, [4, 5, 6])
    assert judged(tree, foreign, asking=True).damage == []


def test_a_file_of_a_number_that_nobody_gets_to_ends_no_channel_while_it_is_empty() -> None:
    tree = slices((1, [1, 2])) | {f"foo/msgs.{HIGHEST + 5}.dat": VERSION}
    disk = fresh()
    disk.add_tree("/store", {"foo": None, "foo/subs.dat": VERSION, **tree})
    node = Node(disk, Owner(2))
    assert node.store.quarantined == []
    assert node.put(b"next") == {}
    assert contents(node) == [(1, b"x1"), (2, b"x2"), (3, b"next")]


def served(tree: Tree, owner: Owner) -> tuple[Node, list[Slice]]:
    disk = fresh()
    disk.add_tree("/store", {"foo": None, "foo/subs.dat": VERSION, **tree})
    node = Node(disk, owner)
    channel = node.channel()
    assert isinstance(channel, FileChannel)
    return node, channel.log.slices


def test_of_a_slice_that_another_one_ends_the_index_is_used_as_far_as_it_counts() -> None:
    tree = slices((1, range(1, 6)), (2, range(4, 7)))
    node, found = served(tree, Owner(2))
    assert [(s.number, s.first, s.last, s.entries, s.contiguous) for s in found] == [
        (1, 1, 3, 3, True),
        (2, 4, 6, 3, True),
    ]
    assert [s.index for s in found] == [None, None]
    assert [n for n, _ in contents(node)] == [1, 2, 3, 4, 5, 6]
    tree = slices((1, [1, 2, 4, 5]), (2, range(5, 7)))
    _, found = served(tree, Owner(2))
    assert [(s.last, s.entries, s.contiguous) for s in found] == [(4, 3, False), (6, 2, True)]


def test_what_the_index_of_an_original_does_not_name_is_kept_in_memory(
    capfd: pytest.CaptureFixture[str],
) -> None:
    tree: Tree = {}
    put(tree, 1, range(1, 6), named=3)
    node, found = served(tree, SECOND)
    assert [(s.last, s.entries, s.contiguous) for s in found] == [(5, 5, True)]
    assert found[0].index == index_of(range(1, 6))[4:]
    assert [n for n, _ in contents(node)] == [1, 2, 3, 4, 5]
    assert "has lost entries" not in capfd.readouterr().err
    assert node.disk.tree("/store")["foo/msgs.1.idx"] == tree["foo/msgs.1.idx"]


def test_the_owner_that_has_a_higher_epoch_gets_to_higher_numbers() -> None:
    foreign = replace(SECOND, ours_from=HIGHEST + 1)
    assert judged(scattered(HIGHEST), foreign).damage == [(f"msgs.{HIGHEST}.dat", ROOM)]
    assert judged(scattered(HIGHEST), replace(foreign, epoch=3)).damage == []
