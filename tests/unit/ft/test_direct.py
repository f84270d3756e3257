"""Reads and writes past the caches: whole pages through aligned memory, and a clear refusal where
that cannot be.
"""

from __future__ import annotations

import errno
import os
import random
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk, ShuttableDisk, TimedDisk
from ftstan.base.errors import FencedError, StoreError
from ftstan.ft.direct import ALIGN, DirectDisk, asking_disk
from ftstan.ft.epoch import claim
from ftstan.ft.fencing_check import Confirmer
from ftstan.ft.survey import survey_store
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.store import FileStore
from ftstan.wire.block import MsgBlock
from tests.sim.filestore import SimOwner
from tests.sim.model import UNLIMITED

if TYPE_CHECKING:
    from pathlib import Path

PAGE = bytes(range(256)) * 16


@pytest.mark.usefixtures("buffered_open")
def test_pages_come_back_as_they_were_written(tmp_path: Path) -> None:
    disk = DirectDisk()
    root = disk.open_dir(str(tmp_path))
    fd = disk.open(root, "file", os.O_RDWR | os.O_CREAT)
    disk.pwrite(fd, PAGE, 2 * ALIGN)
    disk.pwrite(fd, bytearray(PAGE + PAGE), 3 * ALIGN)
    assert disk.pread(fd, ALIGN, 0) == bytes(ALIGN)
    assert disk.pread(fd, 8 * ALIGN, 2 * ALIGN) == PAGE * 3
    assert disk.pread(fd, ALIGN, 5 * ALIGN) == b""
    disk.ftruncate(fd, 2 * ALIGN + 100)
    assert disk.pread(fd, 2 * ALIGN, 2 * ALIGN) == PAGE[:100]
    disk.close(fd)
    disk.close(root)


@pytest.mark.usefixtures("buffered_open")
@pytest.mark.parametrize("size", [0, 1, ALIGN - 1, ALIGN, ALIGN + 1, 3 * ALIGN + 77])
def test_any_part_of_a_file_can_be_read(tmp_path: Path, size: int) -> None:
    whole = random.Random(size).randbytes(size)
    (tmp_path / "file").write_bytes(whole)
    disk = DirectDisk()
    root = disk.open_dir(str(tmp_path))
    fd = disk.open(root, "file", os.O_RDONLY)
    edges = (0, 1, 4, ALIGN - 1, ALIGN, ALIGN + 5, 2 * ALIGN, size - 1, size, size + 1)
    for offset in (edge for edge in edges if edge >= 0):
        for length in (0, 1, 8, ALIGN, 2 * ALIGN + 3, 5 * ALIGN):
            assert disk.pread(fd, length, offset) == whole[offset : offset + length]
    disk.close(fd)
    disk.close(root)


@pytest.mark.usefixtures("buffered_open")
def test_a_killed_owners_store_is_read_through_it_to_the_last_byte(tmp_path: Path) -> None:
    disk = LocalDisk()
    clock = ManualClock()
    root = disk.open_dir(str(tmp_path))
    published: list[bytes] = []
    for life in range(3):
        owner = SimOwner(disk, root, clock)
        options = FileStoreOptions(slice_max_msgs=7)
        store = FileStore(disk, root, owner, clock, options, asking=DirectDisk())
        found = {channel.name: channel for channel in store.recover().channels}
        channel = found.get(b"foo") or store.create_channel(b"foo", UNLIMITED)
        kept: list[bytes] = []
        while (
            len(kept) < channel.last
            and (block := channel.read(len(kept) + 1, 1000, 1 << 30)) is not None
        ):
            kept += [block.payload(i) for i in range(len(block))]
        assert [data in payload for data, payload in zip(published, kept, strict=True)] == [
            True
        ] * 11 * life
        assert store.quarantined == []
        for i in range(11):
            data = b"%d %d " % (life, i) * 50
            block = MsgBlock()
            block.append(channel.last + 1, b"foo", b"", data, clock.wall_ns())
            channel.append(block)
            assert store.commit() == {}
            published.append(data)
        store.abandon()
    disk.close(root)


@pytest.mark.usefixtures("buffered_open")
def test_an_epoch_is_claimed_and_confirmed_through_it(tmp_path: Path) -> None:
    disk = asking_disk(LocalDisk(), is_network=True)
    root = disk.open_dir(str(tmp_path))
    clock = ManualClock()
    first = claim(disk, root, server_id="A", clock=clock, survey=lambda: survey_store(disk, root))
    confirm = Confirmer(disk, root, first, is_network=True)
    second = claim(disk, root, server_id="B", clock=clock, survey=lambda: survey_store(disk, root))
    assert (first.epoch, second.epoch) == (1, 2)
    with pytest.raises(FencedError, match="superseded by epoch 2 of server B"):
        confirm()
    confirm.close()
    disk.close(root)


def test_files_are_made_with_the_mode_that_was_asked_for(tmp_path: Path) -> None:
    disk = DirectDisk()
    root = disk.open_dir(str(tmp_path))
    disk.close(disk.open(root, "file", os.O_RDWR | os.O_CREAT, 0o600))
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_a_direct_write_that_stops_inside_a_page_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DirectDisk()
    root = disk.open_dir(str(tmp_path))
    fd = disk.open(root, "file", os.O_RDWR | os.O_CREAT)
    monkeypatch.setattr(os, "pwritev", lambda *_: ALIGN // 2)
    with pytest.raises(OSError, match="direct write stopped inside a page") as caught:
        disk.pwrite(fd, PAGE, 0)
    assert caught.value.errno == errno.EIO


def test_a_disk_that_knows_what_is_under_way_has_a_direct_one_that_knows_it_too() -> None:
    disk = TimedDisk()
    direct = asking_disk(disk, is_network=True)
    assert isinstance(direct, DirectDisk)
    assert isinstance(direct, TimedDisk)
    assert direct.calls is disk.calls


def test_a_disk_that_can_be_shut_has_a_direct_one_that_is_shut_and_timed_with_it(
    tmp_path: Path,
) -> None:
    disk = ShuttableDisk()
    direct = asking_disk(disk, is_network=True)
    assert isinstance(direct, ShuttableDisk)
    assert isinstance(direct, DirectDisk)
    assert direct.calls is disk.calls
    root = direct.open_dir(str(tmp_path))
    disk.shut()
    with pytest.raises(OSError, match="this server has ended"):
        direct.mkdir(root, "late")


def test_files_are_opened_past_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "open", lambda _name, flags, *_a, **_k: flags)
    assert DirectDisk().open(9, "file", os.O_RDONLY) & os.O_DIRECT


@pytest.mark.parametrize(("code", "error"), [(errno.EINVAL, StoreError), (errno.EIO, OSError)])
def test_a_file_system_without_direct_io_is_refused_in_plain_words(
    monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    def refuse(*_args: object, **_kwargs: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(
        error, match="direct I/O" if code == errno.EINVAL else "Input/output"
    ) as caught:
        DirectDisk().open(9, "ft.epoch", os.O_RDONLY)
    assert not isinstance(caught.value, StoreError) or "-ft_allow direct_io" in caught.value.hint


def test_a_write_that_stops_inside_a_page_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *_args: 100)
    with pytest.raises(OSError, match="inside a page"):
        DirectDisk().pwrite(9, PAGE, 0)


def test_a_local_file_system_is_read_through_the_disk_given() -> None:
    disk = LocalDisk()
    assert asking_disk(disk, is_network=False) is disk


def test_a_network_file_system_is_read_through_it_only_if_the_operator_says_so() -> None:
    disk = LocalDisk()
    assert isinstance(asking_disk(disk, is_network=True), DirectDisk)
    assert asking_disk(disk, is_network=True, direct=False) is disk
