"""Batches that storage refuses in a mixed group: what an original server finds behind them,
whichever call it was.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from ftstan.stores.file.env import FileStoreOptions
from tests.filenode import Owner
from tests.sim.disk import CrashMode, Killed, SimDisk
from tests.unit.stores.test_foreign_writes import after, mixed, read_by_original
from tests.unit.stores.test_slices import Node, contents, fresh, killing_at

if TYPE_CHECKING:
    from collections.abc import Iterator

BEFORE = (b"a", b"b", b"c")
REFUSED = (b"refused", b"refused, too", b"and this")
ACKED = (b"acked", b"acked, too", b"and this one")
#: Slices of one message, of two and of many: a batch goes to a new one, is split, or stays where
#: the last one was.
SHAPES = [FileStoreOptions(slice_max_msgs=n) for n in (1, 2, 100)]
shapes = pytest.mark.parametrize("options", SHAPES, ids=["one", "two", "many"])


def serving(options: FileStoreOptions) -> Node:
    node = Node(fresh(), mixed(), options)
    assert node.put(*BEFORE) == {}
    seconds(node, 1)
    return node


def seconds(node: Node, count: int) -> None:
    for _ in range(count):
        node.clock.advance(1.0)
        node.store.tick(node.clock.wall_ns())


def put_again(node: Node, *data: bytes, tries: int = 8) -> bool:
    """Publish until it is acknowledged, a second apart, as a client does."""
    for _ in range(tries):
        if not node.put(*data):
            return True
        node.clock.advance(1.0)
    return False


def refusing(options: FileStoreOptions, number: int, code: int) -> tuple[Node, bool, bool]:
    """A node whose batch met a failure of its call ``number``: whether it was refused, and whether
    it got so far.
    """
    node = serving(options)
    number += node.disk.calls
    node.disk.fail_at(number, code)
    refused = node.put(*REFUSED) != {}
    reached = node.disk.calls >= number
    node.disk.fail_no_more()
    return node, refused, reached


def refusals(options: FileStoreOptions, code: int) -> Iterator[tuple[int, Node]]:
    """Nodes that refused a batch, each because another call of it failed."""
    number = 0
    reached = True
    while reached:
        number += 1
        node, refused, reached = refusing(options, number, code)
        if refused:
            yield number, node


def found_by_both(node: Node, disk: SimDisk) -> list[tuple[int, bytes]]:
    """What a successor of ours finds, which is what an original finds before and after it."""
    before = read_by_original(disk.tree("/store"))
    new = after(node, disk)
    assert contents(new) == before
    assert read_by_original(disk.tree("/store")) == before
    return before


@shapes
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("power", [False, True], ids=["killed", "power cut"])
def test_whatever_call_is_refused_an_original_reads_what_was_acked_behind_it(
    options: FileStoreOptions, code: int, *, power: bool
) -> None:
    met = 0
    for number, node in refusals(options, code):
        assert put_again(node, *ACKED), number
        expected = contents(node)
        assert [data for _, data in expected[-3:]] == list(ACKED), number
        disk = node.disk.crash(mode=CrashMode.LOST) if power else node.disk.crash(process_only=True)
        assert found_by_both(node, disk) == expected, number
        met += 1
    assert met >= 3


@pytest.mark.slow
@pytest.mark.parametrize("options", SHAPES[1:], ids=["two", "many"])
def test_wherever_the_next_batch_dies_what_was_acked_before_is_there_for_both(
    options: FileStoreOptions,
) -> None:
    deaths = 0
    for refused, _ in refusals(options, errno.ENOSPC):
        step = 0
        while True:
            step += 1
            node, _, _ = refusing(options, refused, errno.ENOSPC)
            node.clock.advance(1.0)
            node.disk.on_call = killing_at(node.disk.calls + step)
            try:
                assert node.put(*ACKED) == {}
            except Killed:
                deaths += 1
            else:
                break
            disk = node.disk.crash(process_only=True)
            original = read_by_original(disk.tree("/store"))
            assert original[:3] == list(enumerate(BEFORE, 1)), (refused, step)
            # Neither was acknowledged: each may be there, in part, and no sequence has two
            # contents.
            assert {data for _, data in original[3:]} <= {*REFUSED, *ACKED}, (refused, step)
            new = after(node, disk)
            assert contents(new)[:3] == list(enumerate(BEFORE, 1)), (refused, step)
            assert new.put(b"behind it") == {}
            assert found_by_both(new, new.disk.crash(process_only=True)) == contents(new), (
                refused,
                step,
            )
    assert deaths > 20


@pytest.mark.parametrize("call", ["open", "fsync", "rename"])
def test_nothing_is_acked_behind_a_refused_batch_that_cannot_be_taken_away(call: str) -> None:
    node = serving(SHAPES[2])
    node.disk.fail_next("fdatasync", errno.EIO)
    assert node.put(*REFUSED) != {}

    def hook(_number: int, name: str, args: tuple[object, ...]) -> None:
        if name == call and (
            call == "fsync" or (str(args[1]).startswith("tmp.") and "msgs.1.idx" in str(args))
        ):
            raise OSError(errno.ENOSPC, "no space")

    node.disk.on_call = hook
    for _ in range(4):
        node.clock.advance(1.0)
        assert "no space" in node.put(*ACKED)[b"foo"].text.lower()
        node.store.tick(node.clock.wall_ns())
    assert contents(node) == list(enumerate(BEFORE, 1))
    node.disk.on_call = None
    assert put_again(node, *ACKED)
    assert found_by_both(node, node.disk.crash(process_only=True)) == contents(node)


def test_a_file_that_can_never_be_synced_again_ends_no_channel() -> None:
    node = serving(SHAPES[2])
    assert node.put(b"d") == {}

    def hook(_number: int, name: str, args: tuple[object, ...]) -> None:
        if name in ("fsync", "fdatasync") and node.disk._handles[args[0]].node is bad:  # type: ignore[index]
            raise OSError(errno.EIO, "a bad sector")

    folder = node.disk.open_dir_at(node.disk.open_dir("/store"), "foo")
    bad = node.disk._handles[node.disk.open(folder, "msgs.1.dat", os.O_RDONLY)].node
    node.disk.on_call = hook
    assert node.put(*REFUSED) != {}
    assert put_again(node, *ACKED, tries=3)
    assert read_by_original(node.disk.crash(process_only=True).tree("/store")) == contents(node)


def test_the_index_is_not_put_again_without_messages_that_were_acked() -> None:
    node = serving(SHAPES[2])
    node.disk.fail_next("fdatasync", errno.EIO)
    assert node.put(*REFUSED) != {}
    folder = node.disk.open_dir_at(node.disk.open_dir("/store"), "foo")
    for name in ("msgs.1.dat", "msgs.1.idx"):
        node.disk.ftruncate(node.disk.open(folder, name, os.O_RDWR), 50)
    before = node.disk.tree("/store")["foo/msgs.1.idx"]
    for _ in range(3):
        node.clock.advance(1.0)
        node.store.tick(node.clock.wall_ns())
        assert "does not hold the messages" in node.put(*ACKED)[b"foo"].text
    assert node.disk.tree("/store")["foo/msgs.1.idx"] == before


@shapes
def test_without_another_batch_what_was_refused_is_gone_within_seconds(
    options: FileStoreOptions,
) -> None:
    for number, node in refusals(options, errno.ENOSPC):
        seconds(node, 3)
        disk = node.disk.crash(process_only=True)
        assert read_by_original(disk.tree("/store")) == contents(node), number


def test_a_mixed_group_that_ends_before_a_refused_batch_is_removed_confirms_nothing_of_it() -> None:
    for mode in (CrashMode.LOST, CrashMode.ORDERED):
        for number, node in refusals(SHAPES[2], errno.EIO):

            def hook(_number: int, name: str, args: tuple[object, ...]) -> None:
                if name == "rename" and "msgs.1.idx" in str(args):
                    raise OSError(errno.ENOSPC, "no space")

            node.owner.epoch = 2
            node.owner.originals = 1
            node.owner.mixed = False
            node.disk.on_call = hook
            seconds(node, 3)
            killed = node.disk.crash(process_only=True)
            new = Node(killed, Owner(3, originals=1), node.options, node.limits, node.clock)
            delivered = contents(new)
            assert new.put(b"acked") == {}
            seconds(new, 3)
            last = Node(
                new.disk.crash(mode=mode),
                Owner(4, originals=1),
                node.options,
                node.limits,
                node.clock,
            )
            assert last.store.quarantined == [], number
            assert contents(last)[: len(delivered)] == delivered, number


def test_behind_the_end_of_a_mixed_group_publishers_do_not_wait_for_what_was_refused() -> None:
    node = serving(SHAPES[2])
    node.disk.fail_next("fdatasync", errno.EIO)
    assert node.put(*REFUSED) != {}
    node.owner.epoch = 2
    node.owner.originals = 1
    node.owner.mixed = False

    def hook(_number: int, name: str, args: tuple[object, ...]) -> None:
        if name == "rename" and "msgs.1.idx" in str(args):
            raise OSError(errno.ENOSPC, "no space")

    node.disk.on_call = hook
    assert node.put(*ACKED) == {}
    seconds(node, 2)
    expected = contents(node)
    for mode in (CrashMode.LOST, CrashMode.ORDERED):
        new = Node(
            node.disk.crash(mode=mode), Owner(3, originals=1), node.options, node.limits, node.clock
        )
        assert contents(new) == expected
