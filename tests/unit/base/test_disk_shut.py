"""Storage that is shut for good: for a server that ended inside a program that goes on."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from ftstan.base.disk import ShuttableDisk
from ftstan.ft.direct import ALIGN, DirectDisk, asking_disk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.usefixtures("buffered_open")
def test_what_is_written_past_the_caches_is_refused_with_everything_else(tmp_path: Path) -> None:
    disk = ShuttableDisk()
    asking = asking_disk(disk, is_network=True)
    assert isinstance(asking, DirectDisk)
    root = disk.open_dir(str(tmp_path))
    page = bytes(range(256)) * (ALIGN // 256)
    fd = asking.open(root, "ft.epoch", os.O_RDWR | os.O_CREAT)
    asking.pwrite(fd, page, 0)
    disk.shut()
    changes: list[Callable[[], object]] = [
        lambda: asking.pwrite(fd, bytes(ALIGN), 0),
        lambda: asking.open(root, "ft.claim.7", os.O_RDWR | os.O_CREAT | os.O_EXCL),
        lambda: asking.unlink(root, "ft.epoch"),
    ]
    for change in changes:
        with pytest.raises(OSError) as refused:
            change()
        assert refused.value.errno == errno.ESHUTDOWN
    assert os.listdir(tmp_path) == ["ft.epoch"]
    assert asking.pread(fd, ALIGN, 0) == page
    for handle in (fd, root):
        disk.close(handle)


def test_disks_of_two_servers_are_shut_each_by_itself(tmp_path: Path) -> None:
    one = ShuttableDisk()
    two = ShuttableDisk()
    one.shut()
    root = two.open_dir(str(tmp_path))
    two.mkdir(root, "dir")
    two.close(root)
    assert os.listdir(tmp_path) == ["dir"]


def test_a_disk_that_was_shut_changes_nothing_and_still_reads(tmp_path: Path) -> None:
    disk = ShuttableDisk()
    root = disk.open_dir(str(tmp_path))
    disk.mkdir(root, "dir")
    fd = disk.open(root, "file", os.O_RDWR | os.O_CREAT)
    disk.pwrite(fd, b"kept", 0)
    disk.shut()
    changes: list[Callable[[], object]] = [
        lambda: disk.pwrite(fd, b"lost", 0),
        lambda: disk.ftruncate(fd, 0),
        lambda: disk.fchmod(fd, 0),
        lambda: disk.fchown(fd, os.getuid(), os.getgid()),
        lambda: disk.mkdir(root, "new"),
        lambda: disk.rmdir(root, "dir"),
        lambda: disk.open(root, "new", os.O_RDWR | os.O_CREAT),
        lambda: disk.open(root, "file", os.O_RDWR | os.O_TRUNC),
        lambda: disk.link(root, "file", "new"),
        lambda: disk.rename(root, "file", "new"),
        lambda: disk.unlink(root, "file"),
    ]
    mode = disk.fstat(fd).mode
    for change in changes:
        with pytest.raises(OSError) as refused:
            change()
        assert refused.value.errno == errno.ESHUTDOWN
    assert sorted(os.listdir(tmp_path)) == ["dir", "file"]
    assert disk.pread(fd, 10, 0) == b"kept"
    assert disk.fstat(fd).mode == mode
    again = disk.open(root, "file", os.O_RDONLY)
    for handle in (again, fd, root):
        disk.close(handle)
