"""Attack: a file that an original made and never synced, after a power cut: its size is there, and
zeros. Found by the group simulator: seed 5000970 (a mixed group).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.stores.file.env import FileEnv, FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.tools.changing import source_to_judge
from ftstan.stores.file.tools.repairing import make_plan
from tests.filenode import Owner
from tests.sim.ft.group import run_history
from tests.sim.ft.shapes import shape_of
from tests.unit.stores.test_foreign_writes import mixed
from tests.unit.stores.test_recovery_damage import left_by
from tests.unit.stores.test_slices import Node, contents, fresh

if TYPE_CHECKING:
    from tests.sim.disk import SimDisk


def left_with(name: str) -> SimDisk:
    node = Node(fresh(), mixed())
    node.put(b"a", b"b")
    return left_by(node, lambda tree: tree.update({name: bytes(4)}))


def is_damaged(disk: SimDisk, owner: Owner) -> bool:
    root = disk.open_dir("/store")
    env = FileEnv(disk, root, ManualClock(), FileStoreOptions(), owner, records.Crc())
    return make_plan(source_to_judge(env), None).damaged


@pytest.mark.parametrize("name", ["foo/msgs.2.dat", "foo/subs.dat", "clients.dat", "server.dat"])
def test_a_file_of_which_only_the_size_has_arrived_is_one_that_was_never_filled(name: str) -> None:
    disk = left_with(name)
    assert not is_damaged(disk.sibling(), mixed(2))
    node = Node(disk, mixed(2))
    assert node.store.quarantined == []
    assert contents(node) == [(1, b"a"), (2, b"b")]
    assert node.put(b"c") == {}
    node.store.close()
    tree = node.disk.tree("/store")
    if name != "server.dat":
        assert tree.get(name, records.VERSION) == records.VERSION


def test_zeros_in_front_of_records_are_no_empty_file() -> None:
    node = Node(fresh(), mixed())
    node.put(b"a")
    data = node.disk.tree("/store")["foo/msgs.1.dat"] or b""
    disk = left_by(node, lambda tree: tree.update({"foo/msgs.1.dat": bytes(4) + data[4:]}))
    assert Node(disk, mixed(2)).store.quarantined == ["foo"]


def test_one_of_ours_whose_index_names_messages_is_damage() -> None:
    node = Node(fresh())
    node.put(b"a")
    disk = left_by(node, lambda tree: tree.update({"foo/msgs.1.dat": bytes(4)}))
    assert Node(disk, Owner(2)).store.quarantined == ["foo"]


def test_the_history_of_a_mixed_group_that_met_it() -> None:
    run_history(5000970, shape_of(5000970))
