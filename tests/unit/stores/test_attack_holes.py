"""Attack: messages and names of zeros are no pages that never arrived: a flipped bit in one of them
costs nothing behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ftstan.stores.file.log import records
from ftstan.stores.interface import SubState
from tests.filenode import Owner
from tests.unit.stores.test_attack_lookalikes import flipped, offsets
from tests.unit.stores.test_confirmed import contents_of_readable
from tests.unit.stores.test_foreign_writes import after, left, mixed, original_stores
from tests.unit.stores.test_recovery_damage import left_by, record, written
from tests.unit.stores.test_slices import Node, fresh

if TYPE_CHECKING:
    from tests.sim.disk import SimDisk

PAYLOADS = pytest.mark.parametrize("payload", [b"text" * 500, bytes(2000)], ids=["text", "zeros"])


def left_and_flipped(
    payload: bytes, bit: int, *, owner: Owner, without: tuple[str, ...] = ()
) -> tuple[Node, SimDisk]:
    """What an original stored behind a clean stop of ours, with one bit of its first record
    changed.
    """
    node = left(b"a", b"b", owner=owner)
    disk = node.disk.sibling()
    at = len(disk.tree("/store")["foo/msgs.1.dat"] or b"")
    original_stores(disk, 1, 3, payload, *[b"acked %d" % n for n in range(4, 1000)])
    tree = {name: data for name, data in disk.tree("/store").items() if name not in without}
    tree["foo/msgs.1.dat"] = flipped(tree["foo/msgs.1.dat"] or b"", at, bit)
    found = fresh()
    found.add_tree("/store", tree)
    return node, found


@PAYLOADS
@pytest.mark.parametrize("owner", [mixed(2), Owner(2)], ids=["mixed", "noticed"])
@pytest.mark.parametrize("bit", [4, 10, 20, 32, 100, 1000])
def test_a_bit_in_a_message_of_zeros_costs_nothing_behind_it(
    owner: Owner, payload: bytes, bit: int
) -> None:
    """In its size, its checksum, its fields, its payload."""
    node, found = left_and_flipped(payload, bit, owner=mixed() if owner.mixed else Owner())
    new = after(node, found, owner)
    assert new.store.quarantined == ["foo"]
    assert contents_of_readable(new) == [1, 2, *range(4, 1000)]


@PAYLOADS
def test_nor_does_it_at_our_first_start_on_a_store_of_the_original(payload: bytes) -> None:
    _, found = left_and_flipped(
        payload, 32, owner=Owner(), without=("ckpt.bin", "foo/confirmed.bin")
    )
    new = Node(found, Owner(2, ours_from=4097))
    # Its index ends at a whole record: the bad one is met when it is read.
    assert new.channel().last == 999
    assert len(found.tree("/store/foo")["msgs.1.dat"] or b"") > 20_000


def test_a_bit_in_a_size_does_not_let_a_later_message_of_zeros_end_the_file() -> None:
    bad = flipped(record(2, b"short"), 0, 14)
    node = written(b"one")

    def change(tree: dict[str, bytes | None]) -> None:
        data = tree["foo/msgs.1.dat"] or b""
        tree["foo/msgs.1.dat"] = data + bad + record(3, bytes(4000)) + record(4)
        del tree["foo/msgs.1.idx"]

    new = node.successor(left_by(node, change))
    assert new.store.quarantined == ["foo"]
    assert contents_of_readable(new) == [1, 3, 4]


def test_a_bit_in_a_subscription_with_a_name_of_zeros_costs_no_neighbour_its_own() -> None:
    node = written(b"one")
    for sub_id, name in ((1, b"a"), (2, bytes(2000)), (3, b"c")):
        node.channel().add_sub(SubState(sub_id, b"c", durable_name=name, is_durable=True))
        node.store.commit()

    def change(tree: dict[str, bytes | None]) -> None:
        data = tree["foo/subs.dat"] or b""
        tree["foo/subs.dat"] = flipped(data, offsets(data, records.MAX_TYPED)[2], 32)

    new = node.successor(left_by(node, change))
    assert new.store.quarantined == ["foo"]
    assert [s.state.sub_id for s in new.channel().recovered_subs()] == [1, 3]
