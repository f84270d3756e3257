"""Who owns a datastore, seen in its directory alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import StoreError
from ftstan.ft.epoch import claim
from ftstan.ft.health import Health
from ftstan.ft.lock import StoreLock
from ftstan.ft.pause import keep_pause
from ftstan.ft.storage_look import StorageLook, judge_storage, look_at
from ftstan.ft.survey import Survey
from ftstan.ft.watch import WATCH_NAME, WatchRecord

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Datastore:
    """A datastore with an owner that writes ``ft.watch`` before the looks of ``writes``."""

    def __init__(self, path: Path, *, mixed: bool = False) -> None:
        self.disk = LocalDisk()
        self.path = path
        self.root = self.disk.open_dir(str(path))
        self.lock = StoreLock(self.disk, self.root, str(path))
        claim(
            self.disk,
            self.root,
            server_id="OWNER",
            clock=ManualClock(1_700_000_000_000_000_000),
            survey=lambda: Survey(highest_slice=0, has_server=False, confirmed=()),
            ft_mixed=mixed,
            host="host",
            pid=7,
        )
        self.slept: list[float] = []
        self.writes: set[int] = set()

    def probe(self, counter: int) -> None:
        record = WatchRecord(1, "OWNER", counter)
        (self.path / WATCH_NAME).write_bytes(record.encode())

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) in self.writes:
            self.probe(100 + len(self.slept))

    def look(self, within_s: float = 0.5) -> StorageLook:
        return look_at(self.disk, str(self.path), self._sleep, within_s)


@pytest.fixture
def datastore(tmp_path: Path) -> Iterator[Datastore]:
    found = Datastore(tmp_path)
    yield found
    found.lock.release()


def test_an_owner_that_writes_lives_and_nobody_looks_longer(datastore: Datastore) -> None:
    datastore.lock.acquire()
    datastore.probe(1)
    datastore.writes = {2}
    look = datastore.look()
    assert (look.lives, look.lock_held, look.watch) == (True, True, WatchRecord(1, "OWNER", 102))
    assert datastore.slept == [0.1, 0.1]
    assert judge_storage(look).health is Health.HEALTHY
    assert judge_storage(look).problems == ()


def test_the_first_probe_of_an_owner_is_a_sign_of_life(datastore: Datastore) -> None:
    datastore.lock.acquire()
    datastore.writes = {1}
    assert datastore.look().lives


def test_an_owner_that_does_not_write_is_looked_at_for_so_long(datastore: Datastore) -> None:
    datastore.lock.acquire()
    datastore.probe(1)
    look = datastore.look(within_s=0.35)
    assert (look.lives, look.lock_held, look.watch) == (False, True, WatchRecord(1, "OWNER", 1))
    assert datastore.slept == [0.1] * 4
    verdict = judge_storage(look)
    assert verdict.health is Health.UNSERVED
    assert verdict.problems == (
        f"{look.owner.describe()} holds the lock, does not answer: ft.watch stays as it is",
    )


def test_where_nobody_holds_the_lock_nobody_is_waited_for(datastore: Datastore) -> None:
    datastore.probe(1)
    look = datastore.look()
    assert (look.lives, look.lock_held) == (False, False)
    assert datastore.slept == []
    verdict = judge_storage(look)
    assert verdict.health is Health.UNSERVED
    assert verdict.problems == (f"nobody holds the lock; last: {look.owner.describe()}",)


def test_in_a_mixed_group_the_lock_may_be_an_originals(tmp_path: Path) -> None:
    datastore = Datastore(tmp_path, mixed=True)
    datastore.lock.acquire()
    look = datastore.look()
    datastore.lock.release()
    assert look.watch is None
    owner = look.owner.describe()
    assert judge_storage(look).problems == (
        (
            "the lock is held, perhaps by an original server, and no ftstan server answers; "
            f"last: {owner}"
        ),
    )


def test_claims_without_a_record_and_pauses_are_shown(datastore: Datastore) -> None:
    for number in (1, 2, 4):
        (datastore.path / f"ft.claim.{number}").touch()
    keep_pause(datastore.disk, datastore.root, "node-b", "paused")
    look = datastore.look()
    assert (look.owner.server_id, look.owner.epoch) == ("OWNER", 1)
    assert look.claims == (2, 4)
    assert look.paused == ("node-b",)


def test_a_directory_that_nobody_owned_or_that_is_not_there_is_told(tmp_path: Path) -> None:
    disk = LocalDisk()
    with pytest.raises(StoreError, match="holds no datastore that an ftstan server has owned"):
        look_at(disk, str(tmp_path), lambda _: None)
    with pytest.raises(StoreError, match="No such file or directory"):
        look_at(disk, str(tmp_path / "none"), lambda _: None)


def test_what_cannot_be_read_is_told(datastore: Datastore) -> None:
    (datastore.path / WATCH_NAME).mkdir()
    with pytest.raises(StoreError) as caught:
        datastore.look()
    assert caught.value.text == f"datastore {datastore.path}: Is a directory"


def test_a_link_in_place_of_the_watch_is_not_followed(datastore: Datastore) -> None:
    other = datastore.path / "other"
    other.write_bytes(WatchRecord(1, "OWNER", 9).encode())
    (datastore.path / WATCH_NAME).symlink_to(other)
    with pytest.raises(StoreError):
        datastore.look()


def test_every_handle_is_closed(datastore: Datastore) -> None:
    opened: list[int] = []
    closed: list[int] = []

    class Counting(LocalDisk):
        def open(self, dirfd: int, name: str, flags: int, mode: int = 0o640) -> int:
            opened.append(super().open(dirfd, name, flags, mode))
            return opened[-1]

        def open_dir(self, path: str) -> int:
            opened.append(super().open_dir(path))
            return opened[-1]

        def close(self, fd: int) -> None:
            closed.append(fd)
            super().close(fd)

    datastore.probe(1)
    look_at(Counting(), str(datastore.path), lambda _: None)
    assert len(opened) > 2
    assert sorted(opened) == sorted(closed)
