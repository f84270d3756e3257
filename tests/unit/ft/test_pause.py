"""A pause that the datastore keeps."""

from __future__ import annotations

import errno
import random
from typing import TYPE_CHECKING

import pytest

from ftstan.base.disk import LocalDisk
from ftstan.base.errors import StoreError
from ftstan.ft.pause import end_pause, is_paused, keep_pause, paused_members
from tests.sim.disk import CrashMode, SimDisk

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ["node-a", "host1:4222", "a/b%c", "h\u00f6st", "." * 64, "\u00e9" * 32]


@pytest.mark.parametrize("name", NAMES)
def test_a_pause_is_kept_for_one_name_until_it_is_ended(tmp_path: Path, name: str) -> None:
    disk = LocalDisk()
    root = disk.open_dir(str(tmp_path))
    other = f"{name[:60]}-x"
    for _ in range(2):
        keep_pause(disk, root, name, "paused by me")
    assert is_paused(disk, root, name)
    assert not is_paused(disk, root, other)
    keep_pause(disk, root, other, "paused by me")
    assert paused_members(disk, root) == sorted([name, other])
    for _ in range(2):
        end_pause(disk, root, name)
    assert paused_members(disk, root) == [other]


def test_a_pause_that_was_kept_survives_a_power_cut() -> None:
    disk = SimDisk()
    disk.make_dirs("/store")
    keep_pause(disk, disk.open_dir("/store"), "node-a", "paused by me")
    for mode in CrashMode:
        found = disk.crash(random.Random(1), mode)
        assert is_paused(found, found.open_dir("/store"), "node-a")


def test_storage_that_refuses_is_told(tmp_path: Path) -> None:
    disk = LocalDisk()
    root = disk.open_dir(str(tmp_path))
    (tmp_path / "ft.paused.node-a").mkdir()
    with pytest.raises(StoreError, match="the pause of node-a cannot be removed"):
        end_pause(disk, root, "node-a")


def test_a_pause_that_storage_does_not_keep_or_show_is_told() -> None:
    disk = SimDisk()
    disk.make_dirs("/store")
    root = disk.open_dir("/store")
    disk.fail_next("fsync", errno.EIO)
    with pytest.raises(StoreError, match="the pause of node-a cannot be kept"):
        keep_pause(disk, root, "node-a", "paused by me")
    disk.fail_next("stat", errno.EIO)
    with pytest.raises(StoreError, match="the pause of node-a cannot be looked for"):
        is_paused(disk, root, "node-a")
