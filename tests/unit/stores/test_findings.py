"""What ``ftstanctl store verify`` finds in files that were changed on purpose, and that a start
judges them in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import StoreError
from ftstan.stores.file.env import FileEnv, FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.state.confirmed import Confirmed, encode
from ftstan.stores.file.tools.restoring import Account, Restoring, SliceWriter
from ftstan.stores.file.tools.source import Source
from ftstan.stores.file.tools.verifying import check_channel, check_root
from tests.filenode import Owner
from tests.unit.stores.test_recovery_slices import VERSION, block_of, index_of, put
from tests.unit.stores.test_slices import Node, contents, fresh

if TYPE_CHECKING:
    from tests.oracle.goview import Tree
    from tests.sim.disk import SimDisk

CRC = records.Crc()


def disk_of(tree: Tree) -> SimDisk:
    disk = fresh()
    disk.add_tree("/store", {"foo": None, "foo/subs.dat": VERSION} | tree)
    return disk


def findings(tree: Tree, *, ours_from: int = 1, live: bool = False) -> list[tuple[str, str, str]]:
    """Everything that is found: what it means, the file, and the words."""
    disk = disk_of(tree)
    source = Source(disk, disk.open_dir("/store"), CRC, ours_from, live)
    found = [*check_root(source), *check_channel(source, b"foo")]
    return [(f.kind.value, f.file, f.text) for f in found]


def seals(first: str, second: str) -> Tree:
    """Two slices of ours: what was confirmed ends in the first, and the second begins within it."""
    tree: Tree = {}
    put(tree, 1, range(1, 4), first)
    put(tree, 4097, range(3, 6), second)
    end = len(tree["foo/msgs.1.dat"] or b"")
    confirmed = Confirmed(1, 1, 3, end, 3)
    return tree | {"foo/confirmed.bin": encode(confirmed, 0)}


def test_a_slice_that_hides_what_was_acknowledged_is_damage_to_a_check_and_to_a_start() -> None:
    tree = seals("old", "new")
    assert findings(tree) == [
        (
            "damage",
            "foo/msgs.4097.dat",
            "begins at sequence 3, and would hide what was acknowledged up to 3",
        )
    ]
    assert Node(disk_of(tree), Owner(3)).store.quarantined == ["foo"]


def test_a_slice_that_begins_with_a_copy_of_what_was_acknowledged_hides_nothing() -> None:
    tree = seals("same", "same")
    assert findings(tree) == []
    node = Node(disk_of(tree), Owner(3))
    assert (node.store.quarantined, node.channel().count, node.channel().last) == ([], 5, 5)


def sealed(copy: str) -> Tree:
    """Two slices of ours of which the second ends the first, where a batch was refused, and a third
    one that begins with the last message of both.
    """
    tree: Tree = {}
    put(tree, 1, range(1, 4))
    tree["foo/msgs.1.dat"] = (tree["foo/msgs.1.dat"] or b"") + bytes(
        memoryview(block_of([4, 5], "refused"))
    )
    put(tree, 2, [4, 5])
    end = len(tree["foo/msgs.2.dat"] or b"")
    put(tree, 4097, [5, 6], copy)
    return tree | {"foo/confirmed.bin": encode(Confirmed(1, 2, 5, end, 5), 0)}


def test_a_check_and_a_start_hold_against_a_slice_only_what_counted_below_it() -> None:
    tree = sealed("x")
    assert findings(tree) == []
    node = Node(disk_of(tree), Owner(3))
    assert node.store.quarantined == []
    assert contents(node) == [(k, b"x%d" % k) for k in range(1, 7)]


def test_where_a_slice_hides_what_was_acknowledged_the_seals_below_it_stay() -> None:
    tree = sealed("new")
    assert findings(tree) == [
        (
            "damage",
            "foo/msgs.4097.dat",
            "begins at sequence 5, and would hide what was acknowledged up to 5",
        )
    ]
    node = Node(disk_of(tree), Owner(3))
    assert node.store.quarantined == ["foo"]
    assert contents(node) == [*((k, b"x%d" % k) for k in range(1, 6)), (6, b"new6")]


def test_while_a_server_has_it_open_only_what_is_confirmed_counts() -> None:
    tree = seals("same", "same")
    assert findings(tree, live=True) == []
    tree = seals("same", "same")
    del tree["foo/confirmed.bin"]
    tree["foo/msgs.4097.dat"] = (tree["foo/msgs.4097.dat"] or b"") + b"half a rec"
    assert findings(tree, live=True) == []


def server(record: bytes, *, size: int | None = None, crc: int | None = None) -> bytes:
    words = (len(record) if size is None else size, CRC(record) if crc is None else crc)
    return VERSION + b"".join(n.to_bytes(4, "little") for n in words) + record


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\7\0\0\0" + bytes(20), "unsupported file version: 7 (supports [1..1])"),
        (server(b"x" * 9, size=10), "incorrect file size, expected 22 bytes, got 21 bytes"),
        (server(b"x" * 9, crc=1), "corrupted data, expected crc to be 0x00000001, got 0x"),
        (server(b"\xff" * 9), ""),
    ],
)
def test_a_server_dat_that_cannot_be_read_is_damage(data: bytes, said: str) -> None:
    ((kind, file, text),) = findings({"server.dat": data})
    assert (kind, file) == ("damage", "server.dat")
    assert said in text


@pytest.mark.parametrize("data", [b"", VERSION, VERSION + bytes(8)])
def test_a_server_dat_that_was_never_filled_is_none(data: bytes) -> None:
    assert findings({"server.dat": data}) == []


def test_state_files_of_an_unknown_version_are_damage() -> None:
    found = findings({"clients.dat": b"\7\0\0\0", "foo/subs.dat": b"\7\0\0\0"})
    assert [(kind, file) for kind, file, _ in found] == [
        ("damage", "clients.dat"),
        ("damage", "foo/subs.dat"),
    ]


def test_names_that_are_no_slices_are_told() -> None:
    tree: Tree = {"foo/msgs.x.dat": b"", "foo/msgs.7.idx": index_of(range(1, 2))}
    put(tree, 1, range(1, 3))
    assert sorted(findings(tree, ours_from=4097)) == [
        ("damage", "foo/msgs.x.dat", "message log has an invalid name: msgs.x.dat"),
        ("leftover", "foo/msgs.7.idx", "not in use"),
    ]


def test_a_slice_that_was_never_filled_and_one_of_an_unknown_version() -> None:
    tree: Tree = {"foo/msgs.2.dat": b"\1", "foo/msgs.3.dat": b"\7\0\0\0"}
    put(tree, 1, range(1, 3))
    found = findings(tree)
    assert [(kind, file) for kind, file, _ in found] == [("damage", "foo/msgs.3.dat")]


def test_an_index_that_names_another_time_than_the_data_is_damage() -> None:
    tree: Tree = {}
    put(tree, 1, range(1, 4))
    entry = bytearray((tree["foo/msgs.1.idx"] or b"")[4 + 32 : 4 + 64])
    entry[16] ^= 1
    entry[28:] = CRC(bytes(entry[:28])).to_bytes(4, "little")
    index = tree["foo/msgs.1.idx"] or b""
    tree["foo/msgs.1.idx"] = index[: 4 + 32] + bytes(entry) + index[4 + 64 :]
    ((kind, file, text),) = findings(tree)
    assert (kind, file, text) == (
        *("damage", "foo/msgs.1.dat"),
        "sequence 2: its index entry has another timestamp",
    )


def test_holes_between_and_within_slices_are_told() -> None:
    tree: Tree = {}
    put(tree, 1, [1, 2, 4])
    put(tree, 2, [7, 8])
    said = [text for _, _, text in findings(tree, ours_from=4097)]
    assert len(said) == 2
    assert any("3" in text for text in said)
    assert any("5" in text and "6" in text for text in said)


def test_a_channel_of_a_reserved_name_is_told() -> None:
    found = findings({"ft.epoch": None, "ft.epoch/subs.dat": VERSION})
    assert [(kind, file) for kind, file, _ in found] == [("damage", "ft.epoch")]
    found = findings({"admin.key.old": None, "admin.key.old/subs.dat": VERSION})
    assert found == [
        ("note", "admin.key.old", "a channel of a name that is reserved for files of servers")
    ]


# ---- what a restore refuses
# ------------------------------------------------------------------------------------------------


def writer(disk: SimDisk) -> SliceWriter:
    root = disk.open_dir("/store")
    return SliceWriter(disk, disk.open_dir_at(root, "foo"), b"foo", 7, CRC, max_bytes=1 << 30)


def test_sequences_that_go_back_or_are_none_are_refused() -> None:
    made = writer(disk_of({}))
    with pytest.raises(StoreError, match="0 is no sequence; they begin at 1"):
        made.add(0, 1, b"a")
    made.add(5, 1, b"a")
    with pytest.raises(StoreError, match="sequence 4 comes behind 5"):
        made.add(4, 1, b"b")
    made.add(5, 1, b"a")
    assert made.duplicates == 1
    ((_, first, last, _, _),) = (
        (w.channel, w.first, w.last, w.size, w.stem) for w in made.finish()
    )
    assert (first, last) == (5, 5)


def test_many_messages_are_written_as_they_come() -> None:
    disk = disk_of({})
    made = writer(disk)
    for n in range(1, 40):
        made.add(n, n, bytes(100_000))
    (written,) = made.finish()
    assert (written.first, written.last) == (1, 39)
    assert made.finish() == [written]


def test_an_attempt_that_is_given_up_leaves_no_handle() -> None:
    disk = disk_of({})
    made = writer(disk)
    before = disk.open_handles
    made.abandon()
    made.add(1, 1, b"a")
    made.abandon()
    assert disk.open_handles == before


def test_a_slice_whose_index_cannot_be_made_leaves_no_handle() -> None:
    disk = disk_of({})
    made = writer(disk)
    before = disk.open_handles

    def refuse(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        if name == "open" and any(isinstance(a, str) and a.endswith(".idx") for a in arguments):
            raise OSError(28, "No space left on device")

    disk.on_call = refuse
    with pytest.raises(OSError, match="No space"):
        made.add(1, 1, b"a")
    assert disk.open_handles == before


@pytest.mark.parametrize("name", ["a..b", "server.dat"])
def test_a_name_that_no_channel_has_is_not_restored(name: str) -> None:
    disk = disk_of({})
    root = disk.open_dir("/store")
    owner = Owner()
    env = FileEnv(disk, root, ManualClock(), FileStoreOptions(), owner, CRC, path="/store")
    with pytest.raises(StoreError, match="cannot be the name of a channel"):
        Restoring(env, Account("job", [])).open_channel(name)
