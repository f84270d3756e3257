"""Batches that storage refused, and of which bytes lie behind the end of a channel all the same: no
later owner takes them for messages, whenever its predecessor was killed.
"""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import StoreError
from ftstan.stores.file.env import FileStoreOptions
from tests.filenode import FileNode, simulated
from tests.sim.disk import SimDisk
from tests.sim.model import read_all

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
            yield node


def disk_of(node: FileNode) -> SimDisk:
    assert isinstance(node.disk, SimDisk)
    return node.disk


def slice_names(node: FileNode) -> set[str]:
    return {name for name in disk_of(node).tree("/store/foo") if name.startswith("msgs.")}


def killed_everywhere(node: FileNode, work: Moving) -> Iterator[FileNode]:
    """Successors of ``node``, which was killed in ``work``, each before another call of it, and
    behind the last one.
    """
    disk = disk_of(node)
    left = []
    disk.on_call = lambda *_: left.append(disk.crash(process_only=True))
    work(node)
    disk.on_call = None
    left.append(disk.crash(process_only=True))
    yield from (node.successor(found) for found in left)


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
        for third in killed_everywhere(node.successor(), work):
            assert third.store.quarantined == []
            assert read_all(third.channel()) == expected
            met += 1
    assert met > 20


@shapes
@pytest.mark.parametrize("before", [(), (b"a",), (b"a", b"b", b"c")], ids=len)
def test_nothing_that_was_refused_comes_behind_the_last_sequence_of_a_channel_that_has_moved(
    options: FileStoreOptions, before: tuple[bytes, ...]
) -> None:
    met = 0
    for node in refusals(options, *before):
        expected = read_all(node.channel())
        last = node.channel().last
        marked = [found for found in killed_everywhere(node, move) if found.channel().mover]
        for found in [*marked, marked[-1].successor()]:
            assert found.store.quarantined == []
            assert (found.channel().last, read_all(found.channel())) == (last, expected)
        # Whoever may still publish goes on behind that.
        assert node.put(b"more") == {}
        assert node.successor().channel().last == last + 1
        # And ends what was refused, so that nothing more needs to.
        names = slice_names(node)
        move(node)
        assert slice_names(node) == names
        met += 1
    assert met > 2


@pytest.mark.parametrize("before", [(), (b"a",), (b"a", b"b", b"c")], ids=len)
def test_nothing_that_was_refused_comes_behind_a_mark_that_was_refused_at_first(
    before: tuple[bytes, ...],
) -> None:
    for call in range(1, MOST_CALLS):
        node = list(refusals(SHAPES[-1], *before))[-2]
        disk = disk_of(node)
        at = disk.calls + call
        disk.fail_at(at, errno.ENOSPC)
        with contextlib.suppress(StoreError):
            move(node)
        if disk.calls < at:
            break
        disk.fail_no_more()
        last = node.channel().last
        move(node)
        found = node.successor(disk.crash())
        assert (found.channel().mover, found.channel().last) == (b"bridge", last)
    assert call > 10
