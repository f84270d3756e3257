"""What a start finds in a channel's directory before anything is judged: numbers and names of
slices, how far each is proven, and what may be an original server's.
"""

from __future__ import annotations

import errno
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.stores.file.env import FileEnv, FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.recovery.measure import (
    Found,
    Measured,
    bad_of,
    bytes_of,
    dense,
    entries_of,
    index_numbers,
    measure,
    read_entries,
    slice_numbers,
)
from ftstan.stores.file.state.confirmed import Confirmed, encode
from ftstan.wire.block import MsgBlock
from tests.filenode import Owner
from tests.unit.stores.test_recovery_slices import CRC, VERSION, block_of, index_of, put
from tests.unit.stores.test_slices import fresh

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.oracle.goview import Tree
    from tests.sim.disk import SimDisk

NOTHING = records.scan_index(b"", CRC)
ENTRY = records.INDEX_SIZE


class Channel:
    """One channel's directory and how it is read."""

    def __init__(
        self,
        tree: Tree,
        owner: Owner | None = None,
        *,
        options: FileStoreOptions | None = None,
    ) -> None:
        self.disk: SimDisk = fresh()
        self.disk.add_tree("/store", {"foo": None, **tree})
        root = self.disk.open_dir("/store")
        self.env = FileEnv(
            *(self.disk, root, ManualClock(), options or FileStoreOptions()),
            *(owner or Owner(), records.Crc()),
        )
        self.fd = self.disk.open_dir("/store/foo")

    def measured(self, *, foreign: bool = False, is_new: bool = False) -> Measured:
        """What is found; no handle stays open."""
        before = self.disk.open_handles
        names = self.disk.listdir(self.fd)
        found = measure(self.env, b"foo", self.fd, names, foreign=foreign, is_new=is_new)
        assert self.disk.open_handles == before
        return found

    def one(self, *, foreign: bool = False) -> Found:
        """The one slice that it has."""
        (found,) = self.measured(foreign=foreign).found
        return found


def tree_of(*puts: tuple[int, Sequence[int]]) -> Tree:
    tree: Tree = {}
    for number, sequences in puts:
        put(tree, number, sequences)
    return tree


def sequences(block: MsgBlock) -> list[int]:
    return [block.sequence(i) for i in range(len(block))]


# ---- names
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("msgs.7.dat", 7),
        ("msgs.0.dat", 0),
        ("msgs.-5.dat", -5),
        ("msgs.+5.dat", 5),
        ("msgs.007.dat", 7),
        (f"msgs.{(1 << 63) - 1}.dat", (1 << 63) - 1),
        (f"msgs.{-(1 << 63)}.dat", -(1 << 63)),
    ],
)
def test_a_number_is_read_however_it_is_written(name: str, number: int) -> None:
    assert slice_numbers([(name, False)]) == ({number: name}, [])
    # A directory is no slice.
    assert slice_numbers([(name, True)]) == ({}, [])


@pytest.mark.parametrize(
    "name",
    [
        f"msgs.{1 << 63}.dat",
        f"msgs.{-(1 << 63) - 1}.dat",
        "msgs.x.dat",
        "msgs..dat",
        "msgs.dat",
        "msgs.5 .dat",
        "msgs.--5.dat",
        "msgs.\N{DEVANAGARI DIGIT FIVE}.dat",
    ],
)
def test_a_name_of_a_slice_without_a_number_of_its_own_is_told(name: str) -> None:
    assert slice_numbers([(name, False)]) == ({}, [name])


@pytest.mark.parametrize("name", ["msgs.5.idx", "xmsgs.5.dat", "msgs.5.dat.bak", "subs.dat"])
def test_other_names_are_no_slices(name: str) -> None:
    assert slice_numbers([(name, False)]) == ({}, [])


def test_of_two_names_of_one_number_the_usual_one_is_it() -> None:
    for order in itertools.permutations(["msgs.+1.dat", "msgs.01.dat", "msgs.1.dat"]):
        numbers, wrong = slice_numbers([(name, False) for name in order])
        assert numbers == {1: "msgs.1.dat"}
        assert sorted(wrong) == ["msgs.+1.dat", "msgs.01.dat"]


def test_indexes_have_one_name_a_number() -> None:
    names = ["msgs.0.idx", "msgs.-5.idx", "msgs.12.idx", "msgs.01.idx", "msgs.+1.idx", "msgs.1.dat"]
    found = index_numbers([(name, False) for name in names] + [("msgs.3.idx", True)])
    assert found == [0, -5, 12]


def found_with(number: int, *, empty: bool = False) -> Found:
    tail = MsgBlock() if empty else block_of([1], "x")
    return Found(number, NOTHING, 0, tail, "", 4, b"", 4)


def test_new_slices_are_numbered_above_every_number_that_a_server_got_to_in_turn() -> None:
    assert (Measured().highest, Measured().highest_taken(100)) == (0, 0)
    m = Measured(found=[found_with(3), found_with(7)], orphans=[(9, 1)])
    assert (m.highest, m.highest_taken(100)) == (9, 9)
    assert (m.highest_taken(9), m.highest_taken(7), m.highest_taken(3)) == (7, 7, 7)
    # Where no message is, a number too high ends no channel.
    m = Measured(found=[found_with(3), found_with(200, empty=True)], orphans=[(99, 1), (100, 1)])
    assert (m.highest, m.highest_taken(100)) == (200, 99)
    m = Measured(found=[found_with(-3)], orphans=[(-7, 1)])
    assert (m.highest, m.highest_taken(100)) == (0, 0)


# ---- whose
# --------------------------------------------------------------------------------------------------


def confirmed(epoch: int, number: int, sequence: int, *, synced: bool = True) -> Confirmed:
    return Confirmed(epoch, number, sequence, 0, sequence, synced=synced)


@pytest.mark.parametrize(
    ("epoch", "originals", "foreign", "is_new", "expected"),
    [
        (None, 0, False, False, False),
        (None, 1, False, False, True),
        (None, 0, True, False, True),
        (None, 0, False, True, True),
        (3, 2, False, False, False),
        (3, 3, False, False, True),
        (3, 4, False, False, True),
        (3, 0, True, False, True),
        (3, 0, False, True, False),
    ],
)
def test_an_original_may_have_written_where_none_of_ours_has_confirmed_since(
    epoch: int | None, originals: int, expected: bool, *, foreign: bool, is_new: bool
) -> None:
    tree: Tree = {} if epoch is None else {"foo/confirmed.bin": encode(confirmed(epoch, 1, 1), 1)}
    channel = Channel(tree, Owner(5, originals=originals))
    assert channel.measured(foreign=foreign, is_new=is_new).foreign is expected


def test_it_may_have_written_to_the_slice_of_the_last_confirm_and_above() -> None:
    m = Measured(foreign=True)
    assert m.may_be_foreign(1)
    m = Measured(foreign=True, confirmed=confirmed(2, 7, 1))
    assert [number for number in range(5, 10) if m.may_be_foreign(number)] == [7, 8, 9]
    m.foreign = False
    assert not m.may_be_foreign(8)


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize("said", [None, confirmed(1, 1, 1), confirmed(1, 1, 1, synced=False)])
def test_an_entry_proves_that_its_data_were_durable_if_whoever_wrote_it_syncs(
    said: Confirmed | None, *, foreign: bool
) -> None:
    m = Measured(foreign=foreign, confirmed=said)
    assert m.synced == (not foreign and (said is None or said.synced))


def synced_before_their_index(channel: Channel, *, foreign: bool = False) -> list[str]:
    """The slices that are synced, each before its index is opened."""
    start = len(channel.disk.log)
    channel.measured(foreign=foreign)
    opened = ""
    out: list[str] = []
    read: set[str] = set()
    for line in channel.disk.log[start:]:
        call, *words = line.split()
        if call == "open":
            opened = words[-1] if words[-1].startswith("msgs") else words[-2]
            if opened.endswith(".idx"):
                read.add(opened)
        if call == "fdatasync":
            assert opened.replace(".dat", ".idx") not in read
            out.append(opened)
    return out


def test_what_an_original_may_have_left_unsynced_is_synced_before_its_index_is_believed() -> None:
    tree = tree_of((1, [1]), (2, [2]), (4097, [3]), (4098, [4]))

    def synced(owner: Owner, *, said: Confirmed | None = None, foreign: bool = False) -> list[str]:
        more: Tree = {} if said is None else {"foo/confirmed.bin": encode(said, 1)}
        return synced_before_their_index(Channel(tree | more, owner), foreign=foreign)

    ours = Owner(2, ours_from=4097)
    assert synced(ours) == []
    assert synced(ours, foreign=True) == [f"msgs.{n}.dat" for n in (1, 2, 4097, 4098)]
    assert synced(ours, said=confirmed(1, 4097, 3), foreign=True) == [
        "msgs.4097.dat",
        "msgs.4098.dat",
    ]
    # Of an original that was alone here only the newest can be unsynced.
    assert synced(Owner(3, ours_from=8193)) == ["msgs.4098.dat"]
    assert synced(Owner(3, ours_from=4098)) == []
    assert synced(Owner(3, ours_from=4099)) == ["msgs.4098.dat"]


# ---- files that are none
# --------------------------------------------------------------------------------------------------


def test_a_directory_in_place_of_a_slices_data_leaves_what_its_index_names() -> None:
    tree = tree_of((1, [1, 2]), (3, [5, 6]))
    del tree["foo/msgs.3.dat"]
    m = Channel(tree | {"foo/msgs.3.dat": None}).measured()
    assert [f.number for f in m.found] == [1]
    assert m.orphans == [(3, 6)]
    assert set(m.lost) == {3}
    assert m.problems == [("msgs.3.dat", "a directory, where a server keeps a file")]


def test_a_directory_without_an_index_takes_no_slices_place() -> None:
    tree: Tree = {"foo/msgs.3.dat": None, "foo/msgs.x.dat": None, "foo/msgs.04.dat": None}
    m = Channel(tree | {"foo/msgs.4.idx": VERSION}).measured()
    assert (m.problems, m.lost, m.found) == ([], {}, [])
    assert m.orphans == [(4, 0)]


def test_an_index_without_entries_seals_nothing() -> None:
    m = Channel({"foo/msgs.3.dat": None, "foo/msgs.3.idx": VERSION}).measured()
    assert (m.orphans, m.lost) == ([(3, 0)], {})
    assert len(m.problems) == 1


def test_indexes_without_data_are_told_with_the_last_message_that_they_name() -> None:
    tree = tree_of((1, [1, 2]), (5, [3, 4]), (9, [7]))
    del tree["foo/msgs.5.dat"]
    del tree["foo/msgs.9.dat"]
    m = Channel(tree).measured()
    assert [f.number for f in m.found] == [1]
    assert sorted(m.orphans) == [(5, 4), (9, 7)]


def test_a_directory_in_place_of_an_index_is_told_once_and_the_data_are_read() -> None:
    tree = tree_of((1, [1, 2]))
    del tree["foo/msgs.1.idx"]
    channel = Channel(tree | {"foo/msgs.1.idx": None, "foo/msgs.2.idx": None})
    m = channel.measured()
    assert m.problems == [
        (f"msgs.{n}.idx", "a directory, where a server keeps a file") for n in (1, 2)
    ]
    (found,) = m.found
    assert (found.proven.count, sequences(found.tail), found.claimed) == (0, [1, 2], 0)


def test_a_directory_in_place_of_what_was_confirmed_is_told() -> None:
    m = Channel({"foo/confirmed.bin": None}).measured()
    assert m.confirmed is None
    assert m.problems == [("confirmed.bin", "a directory, where a server keeps a file")]


def test_a_slice_named_in_another_way_is_read_and_noted() -> None:
    tree = tree_of((1, [1]), (2, [2]))
    tree["foo/msgs.02.dat"] = tree.pop("foo/msgs.2.dat")
    m = Channel(tree).measured()
    assert m.odd == {2: "msgs.02.dat"}
    assert [(f.number, f.first, f.last) for f in m.found] == [(1, 1, 1), (2, 2, 2)]
    assert m.orphans == []


def test_storage_that_fails_is_no_finding() -> None:
    channel = Channel(tree_of((1, [1])))

    def refuse(_number: int, call: str, arguments: tuple[object, ...]) -> None:
        if call == "open" and "msgs.1.idx" in arguments:
            raise OSError(errno.EIO, "refused")

    channel.disk.on_call = refuse
    with pytest.raises(OSError, match="refused"):
        channel.measured()


# ---- one slice
# --------------------------------------------------------------------------------------------------


def test_a_slice_is_proven_as_far_as_its_index_goes() -> None:
    tree: Tree = {}
    put(tree, 1, range(1, 6), named=3)
    f = Channel(tree).one()
    data = tree["foo/msgs.1.dat"] or b""
    assert (f.proven.count, sequences(f.tail), f.claimed) == (3, [4, 5], 3)
    assert (f.first, f.last, f.why, f.bad_at) == (1, 5, "", len(data))
    assert (f.rest, f.size, f.scattered, f.is_index_whole, f.empty) == (
        *(b"", len(data), False, True, False),
    )


def test_an_index_that_goes_on_beyond_the_data_claims_what_it_names() -> None:
    tree: Tree = {}
    put(tree, 1, range(1, 6))
    tree["foo/msgs.1.dat"] = VERSION + bytes(memoryview(block_of(range(1, 4), "x")))
    f = Channel(tree).one()
    # Its last entry leads nowhere: none is believed, and all of it is read.
    assert (f.proven.count, sequences(f.tail), f.claimed) == (0, [1, 2, 3], 5)
    assert f.is_index_whole


@pytest.mark.parametrize(
    ("index", "whole"),
    [
        (index_of(range(1, 4)), True),
        (index_of(range(1, 4)) + b"half", False),
        (index_of([1, 2, 4]), False),
        (VERSION, False),
        (b"", False),
    ],
    ids=["whole", "half an entry more", "with a hole", "empty", "none"],
)
def test_only_an_index_of_entries_in_turn_is_whole(index: bytes, *, whole: bool) -> None:
    tree: Tree = {}
    put(tree, 1, [1, 2, 4] if b"\4" in index[68:70] else range(1, 4))
    tree["foo/msgs.1.idx"] = index
    assert Channel(tree).one().is_index_whole is whole


def test_an_index_with_a_hole_claims_nothing() -> None:
    tree: Tree = {}
    put(tree, 1, [1, 2, 4])
    f = Channel(tree).one()
    assert (f.claimed, f.last, f.is_index_whole) == (0, 4, False)


def test_an_index_of_a_file_that_begins_elsewhere_claims_nothing() -> None:
    tree: Tree = {}
    put(tree, 1, range(3, 6))
    tree["foo/msgs.1.idx"] = index_of(range(1, 9))
    f = Channel(tree).one()
    assert (f.claimed, sequences(f.tail)) == (0, [3, 4, 5])


def test_what_ends_the_records_is_kept_from_there_on() -> None:
    tree: Tree = {}
    put(tree, 1, range(1, 3))
    whole = tree["foo/msgs.1.dat"] or b""
    tree["foo/msgs.1.dat"] = whole + b"\x18\0\0\0\1\2\3\4torn"
    channel = Channel(tree)
    f = channel.one()
    assert (f.why, f.bad_at, f.rest) == ("torn", len(whole), b"\x18\0\0\0\1\2\3\4torn")
    assert f.size == len(whole) + 12
    bad = bad_of(channel.env, b"foo", f)
    assert (bad.shown, bad.offset, bad.rest) == ("foo/msgs.1.dat", len(whole), f.rest)
    assert bad.unpromised


def test_of_zeros_a_page_is_kept_and_of_junk_everything() -> None:
    for junk, kept in ((bytes(9000), 4096), (b"\xff" * 9000, 9000)):
        tree: Tree = {}
        put(tree, 1, range(1, 3))
        tree["foo/msgs.1.dat"] = (tree["foo/msgs.1.dat"] or b"") + junk
        f = Channel(tree).one()
        assert (len(f.rest), f.why == "zeros") == (kept, kept == 4096)


def test_whole_records_behind_bad_bytes_are_told_to_the_judge() -> None:
    tree: Tree = {}
    put(tree, 1, range(1, 3))
    more = bytes(memoryview(block_of([3], "x")))
    tree["foo/msgs.1.dat"] = (tree["foo/msgs.1.dat"] or b"") + b"\xff" * 700 + more
    channel = Channel(tree)
    assert not bad_of(channel.env, b"foo", channel.one()).unpromised
    # Of a channel of another name, or of messages that are here already, they are none.
    assert bad_of(channel.env, b"bar", channel.one()).unpromised
    again = bytes(memoryview(block_of([2], "x")))
    tree["foo/msgs.1.dat"] = (tree["foo/msgs.1.dat"] or b"")[: -len(more)] + again
    other = Channel(tree)
    assert bad_of(other.env, b"foo", other.one()).unpromised


@pytest.mark.parametrize("data", [b"", b"\1\0"])
def test_a_slice_that_was_never_filled_is_empty_and_has_its_size(data: bytes) -> None:
    f = Channel({"foo/msgs.1.dat": data}).one()
    assert (f.empty, f.first, f.last, f.size, f.why) == (True, 0, 0, len(data), "")


def test_a_slice_of_an_unknown_version_is_a_problem_and_its_index_proves_nothing() -> None:
    tree: Tree = {}
    put(tree, 1, range(1, 4))
    tree["foo/msgs.1.dat"] = b"\2\0\0\0" + (tree["foo/msgs.1.dat"] or b"")[4:]
    m = Channel(tree).measured()
    assert [file for file, _ in m.problems] == ["msgs.1.dat"]
    assert "unsupported file version: 2" in m.problems[0][1]
    assert m.found[0].proven.count == 0


def test_an_index_of_an_unknown_version_names_nothing() -> None:
    tree: Tree = {}
    put(tree, 1, range(1, 4))
    tree["foo/msgs.1.idx"] = b"\2\0\0\0" + (tree["foo/msgs.1.idx"] or b"")[4:]
    channel = Channel(tree)
    assert read_entries(channel.env, channel.fd, "msgs.1.idx") == b""
    f = channel.one()
    assert (f.proven.count, f.claimed, sequences(f.tail)) == (0, 0, [1, 2, 3])


def spoilt(data: bytes | None, at: int) -> bytes:
    out = bytearray(data or b"")
    out[at] ^= 1
    return bytes(out)


@pytest.mark.parametrize("check", [True, False])
def test_checksums_count_unless_the_operator_has_said_that_they_do_not(*, check: bool) -> None:
    """``-file_crc=false``: of an index and of the data, in a slice and in an index alone."""
    options = FileStoreOptions(check_crc=check)
    tree: Tree = {}
    put(tree, 1, range(1, 6), named=3)
    put(tree, 2, range(6, 9))
    # The checksum of the second entry, and that of the fifth record.
    tree["foo/msgs.1.idx"] = spoilt(tree["foo/msgs.1.idx"], 4 + 2 * ENTRY - 1)
    size = len(bytes(memoryview(block_of([5], "x"))))
    tree["foo/msgs.1.dat"] = spoilt(tree["foo/msgs.1.dat"], -size + 4)
    tree["foo/msgs.2.idx"] = spoilt(tree["foo/msgs.2.idx"], 4 + 3 * ENTRY - 1)
    del tree["foo/msgs.2.dat"]
    m = Channel(tree, options=options).measured()
    (f,) = m.found
    if check:
        assert (f.proven.count, f.claimed, f.last) == (1, 1, 4)
        assert f.why.startswith("bad")
        assert not f.is_index_whole
        assert m.orphans == [(2, 7)]
    else:
        assert (f.proven.count, f.claimed, f.last) == (3, 3, 5)
        assert (f.why, f.is_index_whole) == ("", True)
        assert m.orphans == [(2, 8)]


@pytest.mark.parametrize("check", [True, False])
def test_so_it_is_where_an_original_may_have_written(*, check: bool) -> None:
    options = FileStoreOptions(check_crc=check)
    tree: Tree = {}
    put(tree, 1, range(1, 6))
    tree["foo/confirmed.bin"] = encode(confirmed(1, 1, 3), 1)
    tree["foo/msgs.1.idx"] = spoilt(tree["foo/msgs.1.idx"], 4 + 2 * ENTRY - 1)
    f = Channel(tree, options=options).one(foreign=True)
    # Up to what was confirmed.
    assert (f.proven.count, f.last) == (1 if check else 3, 5)


def test_where_an_original_may_have_written_only_what_was_confirmed_is_proven() -> None:
    tree: Tree = {}
    put(tree, 1, range(1, 6))
    tree["foo/confirmed.bin"] = encode(confirmed(1, 1, 2), 1)
    channel = Channel(tree)
    assert channel.one().proven.count == 5
    f = channel.one(foreign=True)
    assert (f.proven.count, sequences(f.tail), f.claimed) == (2, [3, 4, 5], 5)
    assert f.is_index_whole


# ---- records and entries of a slice
# --------------------------------------------------------------------------------------------------


def record_bytes(*numbers: int, data: str = "x") -> bytes:
    return bytes(memoryview(block_of(numbers, data)))


def test_records_are_found_by_their_sequences_in_the_index_and_behind_it() -> None:
    tree: Tree = {}
    put(tree, 1, [2, 3, 5, 6, 7], named=3)
    channel = Channel(tree)
    f = channel.one()
    before = channel.disk.open_handles

    def found(first: int, last: int) -> bytes:
        return bytes_of(channel.env, channel.fd, f, first, last)

    assert found(3, 6) == record_bytes(3, 5, 6)
    assert found(4, 4) == b""
    assert found(1, 2) == record_bytes(2)
    assert found(7, 90) == record_bytes(7)
    assert found(8, 9) == b""
    assert entries_of(channel.env, channel.fd, f) == index_of([2, 3, 5, 6, 7])[4:]
    assert channel.disk.open_handles == before


def test_what_an_index_names_beyond_what_is_proven_is_no_entry_of_a_record() -> None:
    tree: Tree = {}
    put(tree, 1, range(1, 6))
    channel = Channel(tree)
    f = channel.one()
    fewer = replace(f, proven=records.scan_index(index_of([1, 2])[4:], CRC), tail=MsgBlock())
    assert entries_of(channel.env, channel.fd, fewer) == index_of([1, 2])[4:]


def scattered(*behind: int) -> tuple[Channel, Found]:
    """A slice in which the index passes over a record of sequence 3, and names these behind it."""
    blocks = [block_of([1, 2], "x"), block_of([3], "old"), block_of(behind, "x")]
    data, index = VERSION, VERSION
    for at, block in enumerate(blocks):
        if at != 1:
            index += records.index_entries(block, 0, len(block), len(data), CRC)
        data += bytes(memoryview(block))
    channel = Channel({"foo/msgs.1.dat": data, "foo/msgs.1.idx": index}, Owner(2, ours_from=4097))
    return channel, channel.one()


def test_one_entry_that_does_not_continue_the_one_before_is_followed() -> None:
    channel, f = scattered(3)
    assert f.scattered
    assert dense(channel.env, channel.fd, f) == VERSION + record_bytes(1, 2, 3)


def test_a_slice_whose_records_are_not_in_one_piece_can_be_read_as_if_they_were() -> None:
    channel, f = scattered(3, 4)
    before = channel.disk.open_handles
    assert f.scattered
    assert (f.first, f.last) == (1, 4)
    assert dense(channel.env, channel.fd, f) == VERSION + record_bytes(1, 2, 3, 4)
    assert bytes_of(channel.env, channel.fd, f, 2, 3) == record_bytes(2, 3)
    assert bytes_of(channel.env, channel.fd, f, 5, 9) == b""
    assert bytes_of(channel.env, channel.fd, f, 4, 9) == record_bytes(4)
    assert channel.disk.open_handles == before
