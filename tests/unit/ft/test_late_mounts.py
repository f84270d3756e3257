"""A member whose share is mounted after its start, or by its start: what is judged, and asked, is
the directory that is open.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import ConfigError, StoreError
from ftstan.config.options import ServerOptions
from ftstan.ft import mounts
from ftstan.ft.access import FileAccess
from ftstan.ft.direct import DirectDisk
from ftstan.ft.epoch import EPOCH_NAME
from ftstan.ft.events import TryLock, TryResult
from ftstan.ft.lock import LOCK_NAME
from ftstan.ft.lock_attempt import attempt, see_store
from ftstan.stores.interface import StoreContext
from tests.mounted import EXT4, HARD, ROOT, SOFT, MountTable, number_of_mount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

AUTOMOUNT = "autofs systemd-1 rw,fd=52,pgrp=1,timeout=0,minproto=5,maxproto=5,direct"
NOLOCK = HARD.replace("hard", "hard,nolock").replace("local_lock=none", "local_lock=all")


class Host:
    """A member whose path names a bare directory at first."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = directory / "store"
        self._share = directory / "share"
        self.path.mkdir()
        self._share.mkdir()
        self.table = MountTable(directory, EXT4, monkeypatch)
        options = ServerOptions(store="FILE", dir=str(self.path), ft_group="group")
        self.access = FileAccess(StoreContext(options, "ME", ManualClock()))
        self.owner = self.access.owner

    def mount(self, kind: str) -> None:
        """The path names another directory, on a file system of that kind."""
        self.path.rename(self.path.with_name("under"))
        self._share.rename(self.path)
        self.table.kind = kind

    def unmount(self) -> None:
        self.path.rename(self._share)
        self.path.with_name("under").rename(self.path)
        self.table.kind = EXT4

    def on_share(self) -> bool:
        """Whether the owner takes its directory for one of a share."""
        return self.owner.is_network

    def flags_of(self, name: str, work: Callable[[], object]) -> list[bool]:
        """Whether each opening of that file in ``work`` was past the caches."""
        real: Callable[..., int] = os.open
        seen = []

        def opened(path: str, flags: int, *more: object, **named: object) -> int:
            if path == name:
                seen.append(bool(flags & os.O_DIRECT))
            return real(path, flags, *more, **named)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "open", opened)
            work()
        return seen


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    host = Host(tmp_path, monkeypatch)
    yield host
    host.access.close()


def test_whoever_follows_the_path_to_a_share_asks_the_file_server_from_then_on(host: Host) -> None:
    assert not host.on_share()
    host.mount(HARD)
    host.owner.look()
    assert host.on_share()
    host.owner.try_lock()
    seen = host.flags_of(EPOCH_NAME, host.owner.activate)
    assert seen
    assert all(seen)
    # What confirms each batch, what the watch asks, and what recovery reads.
    assert isinstance(host.owner._confirmer._disk, DirectDisk)  # type: ignore[union-attr]
    assert host.flags_of(EPOCH_NAME, host.owner.confirm_beside) == [True]
    store = host.access.open()
    assert isinstance(store._env.asking, DirectDisk)
    store.abandon()


def test_whoever_follows_the_path_away_from_a_share_reads_as_locally(host: Host) -> None:
    host.mount(HARD)
    host.owner.look()
    host.unmount()
    host.owner.look()
    assert not host.on_share()
    assert not isinstance(host.owner.asking, DirectDisk)


@pytest.mark.parametrize(("kind", "name"), [(SOFT, "soft"), (NOLOCK, "nolock")])
def test_a_refused_share_is_not_followed(host: Host, kind: str, name: str) -> None:
    host.mount(kind)
    for _ in range(2):
        done = attempt(host.owner, TryLock(suspicious=True))
        assert done.result is TryResult.FAULT
        assert f"{host.path} names another directory by now" in done.error
        assert f"[{name}]" in done.error
        assert f"-ft_allow {name}" in done.hint
        seen = see_store(host.owner)
        assert seen.store_id is None
        assert f"[{name}]" in seen.error
    assert attempt(host.owner, TryLock()).result is not TryResult.GRANTED
    assert not host.on_share()
    assert not host.owner.lock.held
    assert list(host.path.iterdir()) == []
    assert list(host.path.with_name("under").iterdir()) == []
    host.table.kind = HARD
    assert attempt(host.owner, TryLock(suspicious=True)).result is TryResult.GRANTED
    assert host.on_share()
    assert (host.path / LOCK_NAME).exists()


def test_a_lock_of_the_bare_directory_is_given_back_while_the_share_is_refused(host: Host) -> None:
    (host.path / LOCK_NAME).touch()
    host.mount(SOFT)
    assert attempt(host.owner, TryLock()).result is TryResult.NOT_ASKED
    assert not host.owner.lock.held


def test_a_share_whose_files_are_another_users_is_not_followed(
    host: Host, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    host.mount("fuse.sshfs host:/stan rw")
    (host.path / LOCK_NAME).touch()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 12345)
        for _ in range(3):
            with pytest.raises(StoreError, match="belongs to"):
                host.owner.look()
    # What would be warned of is told when this server goes on there, and not at each look.
    assert "FUSE" not in capfd.readouterr().err
    host.owner.look()
    assert capfd.readouterr().err.count("FUSE") == 1


def test_a_mount_table_that_cannot_be_read_is_an_error_of_storage(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> str:
        raise OSError(24, os.strerror(24))

    host.mount(HARD)
    monkeypatch.setattr(mounts, "read_mountinfo", refuse)
    with pytest.raises(StoreError, match="too many open files"):
        host.owner.look()


class Automount(LocalDisk):
    """Whose share is mounted when somebody opens a directory of it, and not before."""

    def __init__(self, table: MountTable) -> None:
        self.table = table

    def open_dir(self, path: str) -> int:
        self.table.kind = NOLOCK
        return super().open_dir(path)


@pytest.mark.parametrize("made", [True, False])
def test_an_automount_is_judged_by_what_is_mounted_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, made: bool
) -> None:
    if made:
        (tmp_path / "store").mkdir()
    before = sorted(tmp_path.rglob("*"))
    disk = Automount(MountTable(tmp_path, AUTOMOUNT, monkeypatch))
    options = ServerOptions(store="FILE", dir=str(tmp_path / "store"), ft_group="group")
    handles = os.listdir("/proc/self/fd")
    with pytest.raises(ConfigError, match=r"\[nolock\]"):
        FileAccess(StoreContext(options, "ME", ManualClock(), disk=disk))
    assert sorted(tmp_path.rglob("*")) == before
    assert os.listdir("/proc/self/fd") == handles


def test_a_mount_that_is_not_listed_counts_as_a_share(tmp_path: Path) -> None:
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mounts, "read_mountinfo", lambda: f"{ROOT}\n")
            assert mounts.mount_of(handle, str(tmp_path)).is_network
        found = mounts.mount_of(handle, str(tmp_path))
    finally:
        os.close(handle)
    text = mounts.read_mountinfo()
    assert found == mounts.find_mount(text, os.path.realpath(tmp_path))
    assert found == mounts.mount_by_id(text, number_of_mount(tmp_path))


def test_a_kernel_that_numbers_no_mounts_is_asked_for_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = tmp_path / "7"
    handle.write_text("pos:\t0\nflags:\t02100000\n")
    monkeypatch.setattr(mounts, "_HANDLE", f"{tmp_path}/{{}}")
    monkeypatch.setattr(mounts, "read_mountinfo", lambda: f"{ROOT}\n30 25 0:52 / /data rw - {HARD}")
    assert mounts.mount_of(7, "/data/stan").fstype == "nfs4"
    assert mounts.mount_of(7, "/").fstype == "ext4"
