"""The file that says whether a channel has moved: what cannot be read counts as moved."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import zlib
from typing import TYPE_CHECKING, Any, cast

import pytest

from ftstan.base.errors import FencedError, RecoveryError, RefusedError, StoreError
from ftstan.cli.ctl import main
from ftstan.stores.file.env import TEMPORARY
from ftstan.stores.file.log.moved_mark import NOBODY, decode
from tests.datastores import serving
from tests.filenode import FileNode, Owner
from tests.sim.disk import SimDisk
from tests.unit.stores.test_purging import killed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ftstan.base.disk import Disk


def mark(body: bytes, magic: bytes = b"FTSTMOV1") -> bytes:
    return magic + struct.pack("<I", zlib.crc32(body)) + body


def test_a_mark_names_who_may_still_publish() -> None:
    assert decode(mark(struct.pack("<QB", 7, 1) + b"bridge")) == (b"bridge", "")
    assert decode(mark(struct.pack("<QB", 7, 1))) == (b"", "")
    assert decode(mark(struct.pack("<QB", 7, 0))) == (None, "")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"FTSTMOV1",
        mark(struct.pack("<QB", 7, 0))[:-1],
        mark(struct.pack("<QB", 7, 0)) + b"x",
        b"x" + mark(struct.pack("<QB", 7, 0))[1:],
    ],
)
def test_a_damaged_mark_lets_nobody_publish(data: bytes) -> None:
    mover, wrong = decode(data)
    assert mover == NOBODY
    assert "damaged" in wrong


def test_a_mark_of_another_release_lets_nobody_publish() -> None:
    mover, wrong = decode(mark(struct.pack("<QB", 7, 0), b"FTSTMOV2"))
    assert mover == NOBODY
    assert "another release" in wrong


def opened() -> FileNode:
    """A store with one message in its channel."""
    disk = SimDisk()
    disk.make_dirs("/store")
    node = FileNode(disk)
    node.put(b"a")
    return node


def test_a_mark_is_there_for_every_later_owner_until_it_is_taken_away() -> None:
    node = opened()
    node.channel().set_moved(b"bridge")
    assert node.channel().mover == b"bridge"
    assert killed(node).channel().mover == b"bridge"
    second = node.successor()
    assert second.channel().mover == b"bridge"
    second.channel().set_moved(None)
    assert killed(second).channel().mover is None
    assert second.successor().channel().mover is None


def test_a_clean_stop_keeps_the_mark() -> None:
    node = opened()
    node.channel().set_moved(b"bridge")
    node.store.close()
    assert node.successor().channel().mover == b"bridge"


def test_an_owner_that_was_fenced_marks_nothing() -> None:
    node = opened()
    node.owner.fenced = True
    with pytest.raises(FencedError):
        node.channel().set_moved(b"bridge")
    assert node.successor().channel().mover is None


@pytest.mark.parametrize("call", range(12))
def test_a_mark_that_storage_refuses_counts_at_once_if_it_counts_at_the_next_start(
    call: int,
) -> None:
    node = opened()
    assert isinstance(node.disk, SimDisk)
    node.disk.fail_at(node.disk.calls + call, errno.EIO)
    try:
        node.channel().set_moved(b"bridge")
    except StoreError:
        assert node.channel().mover == node.successor().channel().mover


@pytest.mark.parametrize("call", range(12))
def test_a_mark_whose_end_storage_refuses_ends_at_once_if_it_has_at_the_next_start(
    call: int,
) -> None:
    node = opened()
    node.channel().set_moved(b"bridge")
    assert isinstance(node.disk, SimDisk)
    node.disk.fail_at(node.disk.calls + call, errno.EIO)
    try:
        node.channel().set_moved(None)
    except StoreError:
        assert node.channel().mover == node.successor().channel().mover


def test_in_a_mixed_group_and_without_a_directory_no_channel_is_marked() -> None:
    node = opened()
    node.owner.mixed = True
    with pytest.raises(RefusedError, match="mixed group"):
        node.channel().set_moved(b"bridge")
    node.channel().set_moved(None)
    node.owner.mixed = False
    with pytest.raises(RefusedError, match="holds nothing yet"):
        node.channel(b"new").set_moved(b"bridge")


def test_a_datastore_that_became_mixed_all_the_same_is_not_served() -> None:
    node = opened()
    node.channel().set_moved(b"bridge")
    node.store.close()
    owner = Owner(node.owner.epoch + 1, node.owner.ours_from)
    owner.mixed = True
    assert isinstance(node.disk, SimDisk)
    with pytest.raises(RecoveryError, match='channel "foo" has moved: an original server'):
        FileNode(node.disk.sibling(), node.path, owner, node.options, node.limits, node.clock)
    owner.mixed = False
    assert node.successor().channel().mover == b"bridge"


def test_the_operators_word_does_not_make_a_datastore_mixed_in_which_a_channel_has_moved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path / "store") as node:
        node.publish(b"foo", b"a")
        node.channel(b"foo").set_moved(b"bridge")
        node.stop()
    words = [
        "ft",
        "mixed",
        "on",
        "--dir",
        str(tmp_path / "store"),
        "--server",
        "nats://127.0.0.1:9",
    ]
    assert main([*words, "--group", "g"]) != 0
    assert 'channel "foo" has moved: an original server' in capsys.readouterr().err
    with serving(tmp_path / "store") as node:
        node.channel(b"foo").set_moved(None)
        node.stop()
    assert main([*words, "--group", "g"]) == 0


def test_what_a_former_owner_had_not_made_visible_goes() -> None:
    node = opened()
    dirfd = node.disk.open_dir_at(node.root, "foo")
    left = f"{TEMPORARY}7.moved.bin"
    node.disk.close(node.disk.open(dirfd, left, os.O_RDWR | os.O_CREAT))
    assert node.successor().channel().mover is None
    assert left not in {name for name, _ in node.disk.listdir(dirfd)}


class Interrupted:
    """A disk on which ``work`` is done right before call number ``at`` from now on."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self.at = -1
        self.work: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        called = getattr(self._disk, name)
        if self.at >= 0 and callable(called):
            self.at -= 1
            if self.at < 0:
                self.work()
        return called


@pytest.mark.parametrize("before", [(), (b"a",), (b"a", b"b")], ids=len)
def test_no_former_owner_writes_behind_the_last_sequence_of_a_channel_that_has_moved(
    before: tuple[bytes, ...],
) -> None:
    for at in range(200):
        disk = SimDisk()
        disk.make_dirs("/store")
        interrupted = Interrupted(disk)
        former = FileNode(cast("Disk", interrupted))
        former.put(b"c", channel=b"other")
        former.channel().keep()
        former.store.commit()
        if before:
            former.put(*before)
        told: list[int] = []
        successors: list[FileNode] = []

        def take_over(
            former: FileNode = former,
            disk: SimDisk = disk,
            told: list[int] = told,
            successors: list[FileNode] = successors,
        ) -> None:
            successor = former.successor(disk.sibling())
            former.owner.fenced = True
            successor.channel().set_moved(b"bridge")
            told.append(successor.channel().last)
            successors.append(successor)

        interrupted.work = take_over
        interrupted.at = at
        with contextlib.suppress(FencedError):
            former.put(b"late")
        if not told:
            break
        (successor,) = successors
        assert [successor.successor().channel().last] == told, at
    assert at > 1


def test_a_deleted_channel_takes_its_mark_along() -> None:
    node = opened()
    node.channel().set_moved(b"bridge")
    node.store.delete_channel(b"foo")
    node.channels.clear()
    node.put(b"a")
    assert node.successor().channel().mover is None


def test_a_store_with_a_moved_channel_is_not_handed_over_and_is_copied_with_its_mark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    with serving(store) as node:
        node.publish(b"foo", b"a")
        node.channel(b"foo").set_moved(b"bridge")
        node.stop()
    assert main(["store", "handover", str(store)]) != 0
    assert "has moved" in "".join(capsys.readouterr())
    assert main(["store", "compact", str(store)]) == 0
    copy = tmp_path / "copy"
    assert main(["store", "copy", str(store), str(copy)]) == 0
    for place in (store, copy):
        with serving(place) as node:
            assert node.channel(b"foo").mover == b"bridge"
