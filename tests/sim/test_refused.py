"""Batches that storage refused, and of which bytes lie behind the end of a channel all the same: no
later owner takes them for messages, whenever its predecessor was killed.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from ftstan.stores.file.env import FileStoreOptions
from tests.filenode import FileNode, simulated
from tests.sim.disk import Killed, SimDisk
from tests.sim.model import read_all
from tests.unit.stores.test_slices import killing_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    #: What an owner does that moves the last record of its predecessor's newest slice.
    Moving = Callable[[FileNode], None]

#: Slices of one message, of two and of many: a batch goes to a new one, is split, or stays where
#: the last one was.
SHAPES = [FileStoreOptions(slice_max_msgs=n) for n in (1, 2, 100)]
shapes = pytest.mark.parametrize("options", SHAPES, ids=["one", "two", "many"])
MOST_CALLS = 400


def refusals(options: FileStoreOptions, *before: bytes) -> Iterator[FileNode]:
    """Nodes that have acknowledged ``before`` and refused a batch, each for another call of it."""
    for call in range(1, MOST_CALLS):
        node = FileNode(simulated(), options=options)
        node.channel().keep()
        assert node.store.commit() == {}
        if before:
            assert node.put(*before) == {}
        disk = disk_of(node)
        at = disk.calls + call
        disk.fail_at(at, errno.ENOSPC)
        refused = node.put(b"refused", b"and this")
        if disk.calls < at:
            return
        disk.fail_no_more()
        if refused:
            node.tick()
            yield node


def disk_of(node: FileNode) -> SimDisk:
    assert isinstance(node.disk, SimDisk)
    return node.disk


def killed_everywhere(node: FileNode, work: Moving) -> Iterator[FileNode]:
    """Successors of one that succeeded ``node`` and was killed in ``work``, each in another call of
    it, and behind the last one.
    """
    tree = disk_of(node).tree("/store")
    for call in range(1, MOST_CALLS):
        disk = simulated()
        disk.add_tree("/store", tree)
        second = node.successor(disk)
        disk.on_call = killing_at(disk.calls + call)
        try:
            work(second)
        except Killed:
            yield second.successor(disk.crash(process_only=True))
        else:
            yield second.successor(disk.crash(process_only=True))
            return
    pytest.fail("it never came to an end")


def move(node: FileNode) -> None:
    node.channel().set_moved(b"bridge")


def stop(node: FileNode) -> None:
    node.store.close()


@pytest.mark.parametrize("options", SHAPES[1:], ids=["two", "many"])
@pytest.mark.parametrize("work", [move, stop])
def test_a_copy_of_what_was_acknowledged_behind_a_refused_batch_is_no_damage(
    options: FileStoreOptions, work: Moving
) -> None:
    met = 0
    for node in refusals(options, b"a", b"b", b"c"):
        node.clock.advance(60)
        assert node.put(b"d", b"e") == {}
        node.tick()
        expected = read_all(node.channel())
        assert len(expected) >= 5
        for third in killed_everywhere(node, work):
            assert third.store.quarantined == []
            assert read_all(third.channel()) == expected
            met += 1
    assert met > 20
