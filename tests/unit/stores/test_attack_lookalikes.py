"""Attack: bits flip in a header or in the newest message, and whole records lie within payloads: no
index that names where the messages end lets them be somebody's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ftstan.stores.file.log import records
from tests.unit.stores.test_recovery_damage import left_by, record, written

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.oracle.goview import Tree
    from tests.unit.stores.test_slices import Node

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
