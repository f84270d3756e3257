"""Whole records within the payload of a message, as copies of slices have them, or within a text
that a client chose: whatever ends the record around them, nobody has stored them here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.stores.file.log import records
from ftstan.stores.file.state import state_records
from ftstan.stores.interface import ClientInfo, SubState
from tests.sim.filestore import open_file_store
from tests.unit.stores.test_confirmed import contents_of_readable
from tests.unit.stores.test_recovery_damage import after, left_by, record, written
from tests.unit.stores.test_slices import Node, contents, fresh

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.oracle.goview import Tree
    from tests.sim.disk import SimDisk

CRC = records.Crc()
INNER = record(5000, b"nobody published this")
PLAIN = record(3, b"plain" * 50)
OUTER = record(3, b"x" * 100 + INNER + b"y" * 3000)


@pytest.mark.parametrize("size", [9, 12, 30, 140, 1000, 3000, len(OUTER) - 1])
def test_the_end_that_a_full_disk_or_a_kill_tears_is_cut(size: int) -> None:
    node = after(written(b"one", b"two"), OUTER[:size])
    assert contents(node) == [(1, b"one"), (2, b"two")]
    assert not node.store.quarantined
    assert node.put(b"three") == {}
    assert contents(node.successor())[-1] == (3, b"three")


def grown(data: bytes) -> bytes:
    return (int.from_bytes(data[:4], "little") + 4096).to_bytes(4, "little") + data[4:]


def spoilt(data: bytes) -> bytes:
    return data[:-50] + b"?" + data[-49:]


def without_fields(data: bytes) -> bytes:
    return data[:8] + b"\xff" + data[9:]


@pytest.mark.parametrize(
    ("data", "damage"),
    [
        (OUTER, spoilt),
        (OUTER, without_fields),
        (PLAIN, grown),
        (PLAIN, spoilt),
        (PLAIN, without_fields),
    ],
)
def test_whole_records_behind_a_spoilt_one_are_found_and_those_within_it_are_not(
    data: bytes, damage: Callable[[bytes], bytes]
) -> None:
    bad = damage(data) + record(4) + record(6)
    at = records.search_from(bad, 0, b"foo", 2, CRC)
    assert records.next_record(bad, at, b"foo", 2, CRC) == len(data)
    node = after(written(b"one", b"two"), bad, index=False)
    assert node.store.quarantined == ["foo"]
    assert contents_of_readable(node) == [1, 2, 4, 6]


def test_records_of_any_size_and_of_every_cut_tell_where_they_end() -> None:
    for data in (b"", b"d", b"d" * 127, b"d" * 128, b"d" * 20_000):
        whole = record(3, data)
        for size in range(8, min(len(whole), 300) + 1):
            assert records.search_from(whole[:size], 0, b"foo", 2, CRC) == len(whole)
        for size in range(8):
            assert records.search_from(whole[:size], 0, b"foo", 2, CRC) == size


# ---- clients and subscriptions
# --------------------------------------------------------------------------------------------------


def ending_with(name: str, tail: bytes) -> Callable[[Tree], None]:
    def change(tree: Tree) -> None:
        tree[name] = (tree[name] or b"") + tail

    return change


def within(text: bytes) -> bytes:
    return b"a" * 50 + text + b"c" * 50


GONE = state_records.client_delete_record(b"victim", CRC)
EVIL = state_records.client_record(ClientInfo(b"evil", within(GONE), b"conn"), CRC)


def registered(disk: SimDisk) -> set[bytes]:
    return {client.client_id for client in open_file_store(disk, ManualClock()).recover().clients}


@pytest.mark.parametrize("cut", [20, 1])
def test_a_torn_registration_costs_nobody_else_theirs(cut: int) -> None:
    node = Node(fresh())
    node.store.add_client(ClientInfo(b"victim", b"_INBOX.hb", b"conn-1"))
    node.store.commit()
    assert registered(left_by(node, ending_with("clients.dat", EVIL[:-cut]))) == {b"victim"}


def test_of_a_spoilt_registration_only_what_it_is_itself_is_lost() -> None:
    node = Node(fresh())
    node.store.add_client(ClientInfo(b"victim", b"_INBOX.hb", b"conn-1"))
    node.store.commit()
    other = state_records.client_record(ClientInfo(b"other", b"_INBOX.o", b"conn-2"), CRC)
    tail = EVIL[:-3] + b"???" + other
    assert registered(left_by(node, ending_with("clients.dat", tail))) == {b"victim", b"other"}


def test_a_torn_subscription_costs_nobody_else_theirs() -> None:
    node = written(b"one")
    node.channel().add_sub(SubState(1, b"c", durable_name=b"audit", is_durable=True))
    node.store.commit()
    name = within(state_records.sub_delete_record(1, CRC))
    torn = state_records.sub_record(records.SUB_NEW, SubState(2, b"c", durable_name=name), CRC)
    new = node.successor(left_by(node, ending_with("foo/subs.dat", torn[:-20])))
    assert not new.store.quarantined
    assert [sub.state.sub_id for sub in new.channel().recovered_subs()] == [1]
