"""The key of a datastore: made once, durable, for one user only."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from ftstan.admin.keys import (
    KEY_NAME,
    Keys,
    ensure_key,
    fingerprint,
    read_key,
    read_keys,
    rotate_key,
)
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


# ---- replacing it
# --------------------------------------------------------------------------------------------------

NEW = bytes([7] * 32)
NOW_NS = 1_700_000_000_000_000_000


def test_after_a_rotation_both_keys_count_until_the_time_that_was_stated(tmp_path: Path) -> None:
    disk, root = open_store(tmp_path)
    ensure_key(disk, root, ours, secret=SECRET)
    done = rotate_key(disk, root, ours, grace_s=60, now_ns=NOW_NS, secret=NEW)
    found = read_keys(disk, root)
    assert found == done == Keys(NEW, SECRET, NOW_NS + 60 * 10**9)
    assert found.accepted(NOW_NS + 60 * 10**9 - 1) == (NEW, SECRET)
    assert found.accepted(NOW_NS + 60 * 10**9) == (NEW,)
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    # At the next one the oldest of three counts no more, and without grace the former one neither.
    rotate_key(disk, root, ours, grace_s=60, now_ns=NOW_NS)
    assert SECRET not in read_keys(disk, root).accepted(NOW_NS)
    rotate_key(disk, root, ours, grace_s=0, now_ns=NOW_NS)
    assert len(read_keys(disk, root).accepted(NOW_NS)) == 1
    assert [path.name for path in tmp_path.iterdir()] == [KEY_NAME]


def test_wherever_a_rotation_dies_there_is_a_key_and_the_former_one_counts() -> None:
    finished = False
    step = 0
    while not finished:
        step += 1
        disk = simulated()
        root = disk.open_dir("/store")
        ensure_key(disk, root, ours, secret=SECRET)

        def die(
            number: int, _call: str, _args: tuple[object, ...], at: int = disk.calls + step
        ) -> None:
            if number == at:
                raise Killed

        disk.on_call = die
        try:
            rotate_key(disk, root, ours, grace_s=60, now_ns=NOW_NS, secret=NEW)
            finished = True
        except Killed:
            pass
        for mode in CrashMode:
            found = disk.crash(random.Random(step), mode)
            keys = read_keys(found, found.open_dir("/store"))
            assert keys.current in ({NEW} if finished else {SECRET, NEW})
            assert SECRET in keys.accepted(NOW_NS)
            assert set(keys.accepted(NOW_NS)) <= {SECRET, NEW}
    assert step > 10


def test_who_does_not_own_the_store_replaces_no_key() -> None:
    disk = simulated()
    root = disk.open_dir("/store")
    ensure_key(disk, root, ours, secret=SECRET)

    def fenced() -> None:
        raise FencedError("not ours")

    for grace_s in (0, 60):
        with pytest.raises(FencedError):
            rotate_key(disk, root, fenced, grace_s=grace_s, now_ns=NOW_NS)
        assert read_keys(disk, root).accepted(NOW_NS) == (SECRET,)


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("", 0o600),
        (SECRET.hex(), 0o600),
        (f"{SECRET.hex()} until never\n", 0o600),
        (f"{SECRET.hex()} until 99999999999\n", 0o644),
    ],
)
def test_what_is_no_former_key_is_none(tmp_path: Path, text: str, mode: int) -> None:
    disk, root = open_store(tmp_path)
    ensure_key(disk, root, ours, secret=NEW)
    (tmp_path / f"{KEY_NAME}.old").write_text(text)
    (tmp_path / f"{KEY_NAME}.old").chmod(mode)
    assert read_keys(disk, root) == Keys(NEW)
    (tmp_path / KEY_NAME).unlink()
    assert read_keys(disk, root).accepted(NOW_NS) == ()


def test_a_fingerprint_tells_keys_apart_and_not_what_they_are() -> None:
    assert fingerprint(SECRET) != fingerprint(NEW)
    assert len(fingerprint(SECRET)) == 16
    assert fingerprint(SECRET) not in SECRET.hex()
