"""The key of a datastore: made once, durable, for one user only."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from ftstan.admin.keys import KEY_NAME, ensure_key, read_key
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import FencedError, StoreError
from tests.sim.disk import CrashMode, Killed, SimDisk

if TYPE_CHECKING:
    from pathlib import Path

SECRET = bytes(range(32))


def ours() -> None:
    """The store is ours."""


def simulated() -> SimDisk:
    disk = SimDisk()
    disk.make_dirs("/store")
    return disk


def open_store(path: Path) -> tuple[LocalDisk, int]:
    disk = LocalDisk()
    return disk, disk.open_dir(str(path))


def test_the_key_is_made_for_its_owner_only_whatever_the_umask(tmp_path: Path) -> None:
    disk, root = open_store(tmp_path)
    before = os.umask(0)
    try:
        ensure_key(disk, root, ours)
    finally:
        os.umask(before)
    assert (tmp_path / KEY_NAME).stat().st_mode & 0o777 == 0o600
    key = read_key(disk, root)
    assert key is not None
    assert len(key) == 32
    assert (tmp_path / KEY_NAME).read_text() == f"{key.hex()}\n"
    assert [path.name for path in tmp_path.iterdir()] == [KEY_NAME]


def test_two_stores_have_two_keys() -> None:
    keys = set()
    for _ in range(2):
        disk = simulated()
        root = disk.open_dir("/store")
        ensure_key(disk, root, ours)
        keys.add(read_key(disk, root))
    assert len(keys) == 2


def test_a_key_that_is_there_is_left_alone() -> None:
    disk = simulated()
    root = disk.open_dir("/store")
    ensure_key(disk, root, ours, secret=SECRET)
    ensure_key(disk, root, ours)
    assert read_key(disk, root) == SECRET


def test_a_store_without_a_key_has_none() -> None:
    disk = simulated()
    assert read_key(disk, disk.open_dir("/store")) is None


def test_a_fenced_owner_shows_no_key() -> None:
    disk = simulated()
    root = disk.open_dir("/store")

    def fenced() -> None:
        raise FencedError("it is another's")

    with pytest.raises(FencedError):
        ensure_key(disk, root, fenced)
    assert read_key(disk, root) is None


def test_wherever_its_maker_dies_the_key_is_whole_or_absent_and_the_next_owner_has_one() -> None:
    step = 0
    finished = False
    while not finished:
        step += 1
        disk = simulated()
        root = disk.open_dir("/store")

        def die(
            number: int, _call: str, _args: tuple[object, ...], at: int = disk.calls + step
        ) -> None:
            if number == at:
                raise Killed

        disk.on_call = die
        try:
            ensure_key(disk, root, ours, secret=SECRET)
            finished = True
        except Killed:
            pass
        for mode in CrashMode:
            found = disk.crash(random.Random(step), mode)
            directory = found.open_dir("/store")
            assert read_key(found, directory) in ({SECRET} if finished else {SECRET, None})
            ensure_key(found, directory, ours)
            assert read_key(found, directory) is not None
    assert step > 5


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_may_read_is_not_used(tmp_path: Path, mode: int) -> None:
    disk, root = open_store(tmp_path)
    ensure_key(disk, root, ours)
    (tmp_path / KEY_NAME).chmod(mode)
    with pytest.raises(StoreError, match=f"open to other users .mode {mode:04o}") as caught:
        read_key(disk, root)
    assert "chmod 600" in caught.value.hint


@pytest.mark.parametrize(
    "content", [b"", b"secret", b"0" * 63, b"0" * 65, b"G" * 64, b"0" * 64 + b"\n\n"]
)
def test_a_file_that_holds_no_key_is_told(tmp_path: Path, content: bytes) -> None:
    disk, root = open_store(tmp_path)
    (tmp_path / KEY_NAME).write_bytes(content)
    (tmp_path / KEY_NAME).chmod(0o600)
    with pytest.raises(StoreError, match="holds no key"):
        read_key(disk, root)


def test_neither_a_link_nor_a_pipe_stands_for_the_key(tmp_path: Path) -> None:
    disk, root = open_store(tmp_path)
    (tmp_path / "elsewhere").write_text("0" * 64)
    (tmp_path / KEY_NAME).symlink_to("elsewhere")
    with pytest.raises(StoreError, match="cannot be read"):
        read_key(disk, root)
    (tmp_path / KEY_NAME).unlink()
    os.mkfifo(tmp_path / KEY_NAME, 0o600)
    with pytest.raises(StoreError, match="cannot be read"):
        read_key(disk, root)
