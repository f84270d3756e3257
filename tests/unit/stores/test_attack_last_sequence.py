"""Attack: a channel without subscriptions whose only slice is lost. What ``confirmed.bin`` and the
marks beside it know of its sequences keeps them from being given out again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.base.clock import ManualClock
from ftstan.stores.file.env import FileEnv, FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.tools.changing import source_of
from ftstan.stores.file.tools.repairing import Repair, make_plan
from ftstan.stores.file.tools.verifying import DefectKind
from tests.filenode import Owner
from tests.unit.stores.test_recovery_damage import left_by
from tests.unit.stores.test_slices import Node, fresh

if TYPE_CHECKING:
    from tests.oracle.goview import Tree
    from tests.sim.disk import SimDisk


def killed() -> Node:
    """Publishes alone, a few seconds, and no clean stop: there is no ``subs.dat``."""
    node = Node(fresh())
    for data in (b"a", b"b", b"c", b"d"):
        node.put(data)
        node.clock.advance(1.1)
        node.store.tick(node.clock.wall_ns())
    tree = node.disk.tree("/store")
    assert "foo/confirmed.bin" in tree
    assert "foo/subs.dat" not in tree
    return node


def without(*names: str) -> SimDisk:
    def change(tree: Tree) -> None:
        for name in names:
            del tree[name]

    return left_by(killed(), change)


def tool_env(disk: SimDisk) -> FileEnv:
    root = disk.open_dir("/store")
    return FileEnv(disk, root, ManualClock(), FileStoreOptions(), Owner(2), records.Crc())


def test_data_and_index_both_gone_quarantine_the_channel() -> None:
    new = killed().successor(without("foo/msgs.1.dat", "foo/msgs.1.idx"))
    assert new.store.quarantined == ["foo"]
    assert new.channel().last == 4


def test_verify_calls_it_damage() -> None:
    source = source_of(tool_env(without("foo/msgs.1.dat", "foo/msgs.1.idx")))
    found = make_plan(source, None).findings[b"foo"]
    assert [f.kind for f in found] == [DefectKind.DAMAGE]
    assert found[0].text == "was acknowledged up to sequence 4, and ends at 0"


def test_a_repair_keeps_the_last_sequence() -> None:
    disk = without("foo/msgs.1.dat")
    disk.make_dirs("/aside")
    env = tool_env(disk)
    source = source_of(env)
    Repair(env, source, disk.open_dir("/aside")).run(make_plan(source, None))
    new = Node(disk, Owner(3))
    assert new.put(b"e") == {}
    assert new.channels[b"foo"].last == 5


def test_a_purge_that_is_all_that_is_left_keeps_the_last_sequence() -> None:
    node = killed()
    node.channel().purge(4)
    names = [n for n in node.disk.tree("/store") if n.startswith("foo/") and "purged" not in n]

    def change(tree: Tree) -> None:
        for name in names:
            del tree[name]

    new = node.successor(left_by(node, change))
    assert new.put(b"e") == {}
    assert new.channel().last == 5
