"""``confirmed.bin`` and confirms: what can be seen of it was true, and ours, when the store was
confirmed.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import FencedError
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.state import confirmed
from ftstan.stores.interface import ChannelLimits
from tests.filenode import FileNode, Owner, simulated
from tests.sim.disk import SimDisk

if TYPE_CHECKING:
    from collections.abc import Callable

LIMITS = ChannelLimits(max_msgs=6, max_bytes=0)
CHANNELS = [b"a", b"b", b"c", b"d", b"e"]


@dataclass
class LoggedOwner(Owner):
    """Its confirms stand between the calls of the disk."""

    log: list[str] = field(default_factory=list)

    def confirm(self) -> None:
        self.log.append("confirm begins")
        super().confirm()


def watch(disk: SimDisk) -> tuple[list[str], list[str]]:
    """Judge every call from now on; returns what was made visible, and what was wrong with it."""
    handles: dict[int, tuple[str, int]] = {}
    made: list[str] = []
    wrong: list[str] = []
    durable = [0]

    def look(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        now = len(disk.log)
        began = max((i for i, line in enumerate(disk.log) if line == "confirm begins"), default=-1)
        if name == "open":
            # The lowest number that is free, as the disk gives it.
            fd = next(n for n in range(3, 10000) if n not in disk._handles)
            handles[fd] = (str(arguments[1]), now)
            return
        file, opened = (
            handles.get(arguments[0], ("", 0)) if isinstance(arguments[0], int) else ("", 0)
        )
        if (
            name in ("pwrite", "fdatasync", "fsync")
            and file.endswith((".dat", ".idx"))
            and "msgs" in file
        ):
            durable[0] = now
        if name == "pwrite" and file == confirmed.NAME:
            made.append("in place")
            if began < max(opened, durable[0]):
                wrong.append(f"written in place behind an old confirm: {disk.log[-8:]}")
        if name == "rename" and arguments[-1] == confirmed.NAME:
            made.append("replaced")
            (opened,) = [at for other, at in handles.values() if other == arguments[1]][-1:]
            if began < max(opened, durable[0]):
                wrong.append(f"replaced behind an old confirm: {disk.log[-8:]}")

    disk.on_call = look
    return made, wrong


def live(node: FileNode) -> None:
    for i in range(9):
        for channel in CHANNELS[: 1 + i % len(CHANNELS)]:
            node.stage(b"%d" % i, channel=channel)
        assert node.store.commit() == {}
        if i % 2:
            node.tick()


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("at_once", [2, 64])
def test_every_write_follows_a_confirm_begun_after_its_reason_and_its_files_opening(
    at_once: int, monkeypatch: pytest.MonkeyPatch, *, mixed: bool
) -> None:
    monkeypatch.setattr(confirmed, "_AT_ONCE", at_once)
    disk = simulated()
    made, wrong = watch(disk)
    options = FileStoreOptions(slice_max_msgs=4)
    epoch = 0

    def start() -> FileNode:
        nonlocal epoch
        epoch += 1
        return FileNode(
            disk,
            owner=LoggedOwner(epoch, mixed=mixed, log=disk.log),
            options=options,
            limits=LIMITS,
        )

    first = start()
    live(first)
    # Killed between a batch and the second in which it would be said.
    first.put(b"x", channel=b"a")
    first.store.abandon()
    second = start()
    live(second)
    channel = second.channels[b"b"]
    channel.purge(channel.last - 1)
    second.tick()
    second.put(b"y", channel=b"b")
    second.store.close()
    third = start()
    live(third)
    third.channels[b"c"].purge(third.channels[b"c"].last)
    third.store.close()
    assert wrong == []
    assert made.count("in place") > 20
    assert made.count("replaced") > 10


def test_a_server_that_is_fenced_writes_nothing_of_a_round() -> None:
    node = FileNode(simulated(), limits=LIMITS)
    live(node)
    for name in CHANNELS:
        node.stage(b"x", channel=name)
    assert node.store.commit() == {}
    before = {
        name: data
        for name, data in disk_of(node).tree("/store").items()
        if name.endswith(confirmed.NAME)
    }
    node.owner.fenced = True
    with pytest.raises(FencedError):
        node.tick()
    after = {
        name: data
        for name, data in disk_of(node).tree("/store").items()
        if name.endswith(confirmed.NAME)
    }
    assert before == after


def disk_of(node: FileNode) -> SimDisk:
    assert isinstance(node.disk, SimDisk)
    return node.disk


def refuse(call: str, node: FileNode) -> Callable[[], bool]:
    """Refuse the next call of that name on the file in its place; tells whether it happened."""
    disk = disk_of(node)
    handles: set[object] = set()
    done: list[bool] = []

    def look(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        if name == "open" and arguments[1] == confirmed.NAME:
            handles.add(next(n for n in range(3, 10000) if n not in disk._handles))
        elif name == call and arguments[0] in handles and not done:
            done.append(True)
            disk.fail_at(disk.calls, errno.EIO)

    disk.on_call = look
    return lambda: bool(done)


@pytest.mark.parametrize("call", ["pwrite", "close"])
def test_behind_a_write_that_was_refused_the_slot_that_is_whole_is_not_written_over(
    call: str, capfd: pytest.CaptureFixture[str]
) -> None:
    node = FileNode(simulated())
    for data in (b"a", b"b"):
        node.put(data)
        node.tick()
    happened = refuse(call, node)
    node.put(b"c")
    node.tick()
    assert happened()
    assert capfd.readouterr().err.count(f"{confirmed.NAME} cannot be written") == 1
    disk = disk_of(node)
    handle = disk.open_dir("/store/foo")
    inode = disk.stat(handle, confirmed.NAME).ino
    node.put(b"d")
    node.tick()
    # Not one of its slots: another file.
    assert disk.stat(handle, confirmed.NAME).ino != inode
    found = confirmed.read_confirmed(disk, handle)
    assert found is not None
    assert found.sequence == 4
