"""Attack: bits flip in a header or in the newest message, and whole records lie within payloads and
names: neither an index that names where the messages end nor a record's own fields let them be
somebody's, and no neighbour's subscription goes with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ftstan.stores.file.log import records
from ftstan.stores.file.state import state_records
from ftstan.stores.interface import ClientInfo, SubState
from tests.sim.filestore import open_file_store
from tests.unit.stores.test_recovery_damage import after, left_by, record, written
from tests.unit.stores.test_slices import Node, fresh

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.oracle.goview import Tree

CRC = records.Crc()
FORGED = record(4, b"forged")
HOSTILE = b"x" * 100 + FORGED + b"y" * 300


def read(node: Node) -> dict[int, bytes]:
    """The records that a channel delivers, without their headers."""
    channel = node.channel()
    out: dict[int, bytes] = {}
    at = channel.first
    while at <= channel.last:
        block = channel.read(at, 100, 1 << 20)
        if block is None or block.position(at) >= len(block):
            break
        for i in range(block.position(at), len(block)):
            start, end = records.span(block, i, i + 1)
            out[block.sequence(i)] = bytes(memoryview(block))[start + records.HEADER_SIZE : end]
        at = max(out) + 1
    return out


def flipped(data: bytes, at: int, bit: int) -> bytes:
    out = bytearray(data)
    out[at + bit // 8] ^= 1 << bit % 8
    return bytes(out)


def offsets(data: bytes, mask: int = 0xFFFFFFFF) -> list[int]:
    """Where the records of a file begin."""
    at = records.VERSION_SIZE
    out = []
    while at + records.HEADER_SIZE <= len(data):
        out.append(at)
        at += records.HEADER_SIZE + (int.from_bytes(data[at : at + 4], "little") & mask)
    return out


def changed(node: Node, change: Callable[[bytes], bytes]) -> Node:
    """The successor of a node whose slice has changed beside its index."""

    def put(tree: Tree) -> None:
        tree["foo/msgs.1.dat"] = change(tree["foo/msgs.1.dat"] or b"")

    return node.successor(left_by(node, put))


@pytest.mark.parametrize("bit", range(64))
def test_a_bit_in_the_header_of_the_newest_message_delivers_nothing_of_its_payload(
    bit: int,
) -> None:
    new = changed(written(b"one", b"two", HOSTILE), lambda d: flipped(d, offsets(d)[-1], bit))
    assert new.store.quarantined == ["foo"]
    assert list(read(new)) == [1, 2]
    assert new.channel().last == 3


def test_a_bit_in_the_newest_message_does_not_take_the_index_from_the_others() -> None:
    def change(data: bytes) -> bytes:
        first, _, last = offsets(data)
        return flipped(flipped(data, last, 32), first, 6)

    got = read(changed(written(b"x" * 100 + record(2, b"forged") + b"y" * 300, b"2", b"3"), change))
    assert b"forged" not in got[2]


def test_a_lost_first_sector_delivers_nothing_of_the_payload_that_it_begins() -> None:
    payload = b"x" * 600 + record(2, b"forged") + b"y" * 300
    new = changed(written(payload, b"two", b"three"), lambda d: bytes(512) + d[512:])
    assert new.store.quarantined == ["foo"]
    got = read(new)
    assert list(got) == [2, 3]
    assert b"forged" not in got[2]


@pytest.mark.parametrize(("bad", "delivered"), [(2, [1, 2, 4, 6]), (3, [1, 2, 3, 6])])
def test_records_that_an_index_does_not_name_are_found_behind_it(
    bad: int, delivered: list[int]
) -> None:
    """Bad is the last message that it names, or the one behind it."""
    tail = record(4, b"x" * 50 + record(5, b"forged")) + record(6)
    new = changed(
        written(b"one", b"two", HOSTILE), lambda d: flipped(d + tail, offsets(d + tail)[bad], 40)
    )
    assert list(read(new)) == delivered


def test_an_index_of_another_file_hides_nothing() -> None:
    """None of its entries holds: it does not say where the records of this one are."""
    other = written(b"o" * 900, b"o" * 50, b"o" * 90).disk.tree("/store")["foo/msgs.1.idx"]
    old = written(b"one", b"two", b"three", b"four")

    def change(tree: Tree) -> None:
        data = tree["foo/msgs.1.dat"] or b""
        tree["foo/msgs.1.dat"] = flipped(data, offsets(data)[1], 40)
        tree["foo/msgs.1.idx"] = other

    assert list(read(old.successor(left_by(old, change)))) == [1, 3, 4]


# ---- without an index
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [HOSTILE, HOSTILE + bytes(70_000)], ids=["short", "long"])
def test_a_bit_in_any_field_lets_nothing_of_the_payload_be_a_message(payload: bytes) -> None:
    outer = record(3, payload)
    behind = record(4, b"real") + record(5, b"real")
    for at in [*range(24), *range(len(outer) - 6, len(outer)), 20 + 100, 20 + 110]:
        for bit in range(8):
            bad = flipped(outer, at, bit)
            for rest in (behind, b""):
                found = records.search_from(bad + rest, 0, b"foo", 2, CRC)
                assert found == len(outer), (at, bit, len(rest))


@pytest.mark.parametrize("bit", range(24))
def test_a_bit_in_a_size_lets_nothing_of_the_payload_be_a_message(bit: int) -> None:
    bad = flipped(record(3, HOSTILE), 0, bit) + record(4, b"real") + record(5, b"real")
    new = after(written(b"one", b"two"), bad, index=False)
    assert new.store.quarantined == ["foo"]
    got = read(new)
    assert list(got) == [1, 2, 4, 5]
    assert b"real" in got[4]


# ---- clients and subscriptions
# --------------------------------------------------------------------------------------------------


def durable(sub_id: int, name: bytes) -> SubState:
    return SubState(
        sub_id,
        b"c%d" % sub_id,
        inbox=b"_INBOX." + b"x" * 22,
        ack_inbox=b"_STAN.acks." + b"y" * 19,
        max_in_flight=16,
        ack_wait_secs=30,
        durable_name=name,
        is_durable=True,
    )


def size_of(sub: SubState) -> int:
    return len(state_records.sub_record(records.SUB_NEW, sub, CRC)) - records.HEADER_SIZE


def subs_after(subs: list[SubState], which: int, bit: int) -> tuple[Node, list[int]]:
    """The subscriptions that are left when a bit of the header of one of them changes; the first
    record of the file is none.
    """
    node = written(b"one")
    for sub in subs:
        node.channel().add_sub(sub)
        node.store.commit()

    def change(tree: Tree) -> None:
        data = tree["foo/subs.dat"] or b""
        tree["foo/subs.dat"] = flipped(data, offsets(data, records.MAX_TYPED)[which], bit)

    new = node.successor(left_by(node, change))
    return new, [s.state.sub_id for s in new.channel().recovered_subs()]


def test_a_bit_in_a_size_costs_no_neighbour_its_durable_and_is_not_cut() -> None:
    first, second = durable(1, b"a"), durable(2, b"b")
    while size_of(first) & 2:
        first = durable(1, first.durable_name + b"a")
    # Its size, 0x70, reads like the tag of a field 14 behind the first one's last field.
    while size_of(second) < 0x70:
        second = durable(2, second.durable_name + b"b")
    new, ids = subs_after([first, second], 1, 1)
    assert new.store.quarantined == ["foo"]
    assert ids == [2]


@pytest.mark.parametrize("bit", [*range(24), *range(32, 64)])
def test_a_bit_in_a_header_lets_no_name_remove_anothers_subscription(bit: int) -> None:
    evil = b"a" * 20 + state_records.sub_delete_record(1, CRC) + b"b" * 20
    new, ids = subs_after([durable(1, b"audit"), durable(2, evil), durable(3, b"c")], 2, bit)
    assert new.store.quarantined == ["foo"]
    assert ids == [1, 3]


@pytest.mark.parametrize("bit", range(24))
def test_a_bit_in_a_size_lets_no_name_remove_another_client(bit: int) -> None:
    evil = b"a" * 20 + state_records.client_delete_record(b"victim", CRC) + b"b" * 20
    node = Node(fresh())
    for client in (b"victim", b"hostile", b"other"):
        inbox = evil if client == b"hostile" else b"_INBOX.hb"
        node.store.add_client(ClientInfo(client, inbox, b"conn"))
        node.store.commit()

    def change(tree: Tree) -> None:
        data = tree["clients.dat"] or b""
        tree["clients.dat"] = flipped(data, offsets(data, records.MAX_TYPED)[1], bit)

    recovered = open_file_store(left_by(node, change), node.clock).recover()
    assert {client.client_id for client in recovered.clients} == {b"victim", b"other"}
