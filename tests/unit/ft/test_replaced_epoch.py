"""An epoch file that somebody else put in the place of the owner's, or removed, and losses that are
found late.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import FencedError, ReleasedError
from ftstan.ft.epoch import EPOCH_NAME
from ftstan.ft.lock import StoreLock
from ftstan.ft.ownership import StoreOwner
from ftstan.ft.watch import Probe
from tests.sim.disk import SimDisk
from tests.sim.ft.hosts import Client, ClientDisk
from tests.sim.ft.locks import LockService, SimLocker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

EXT4 = "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
NFS = "21 1 0:40 / / rw,relatime - nfs4 server:/ rw,vers=4.2,hard\n"


class Hosts:
    """Members on hosts with memories of their own, on one file server."""

    def __init__(self) -> None:
        self.server = SimDisk()
        self.locks = LockService()
        self._serial = 0

    def member(self, name: str) -> StoreOwner:
        self._serial += 1
        disk = ClientDisk(self.server.volume, Counter(), Client(Random(self._serial)))
        owner = StoreOwner(
            disk, "/", server_id=name, clock=ManualClock(), in_group=True, mountinfo=NFS
        )
        owner._asking_disk = disk.direct()
        owner._lock = StoreLock(disk, owner.root, "/", SimLocker(self.locks, disk))
        return owner

    def owner(self, name: str) -> StoreOwner:
        owner = self.member(name)
        owner.try_lock()
        owner.activate()
        return owner

    def probe(self, owner: StoreOwner) -> Probe:
        disk = owner._disk
        assert isinstance(disk, ClientDisk)
        locker = SimLocker(self.locks, disk)
        return Probe(disk, owner.root, owner, server_id="A", look=lambda: None, locker=locker)

    def lose(self, owner: StoreOwner) -> None:
        assert isinstance(owner._disk, ClientDisk)
        self.locks.lose(owner._disk)

    @property
    def epochs(self) -> bytes:
        data = self.server.tree("/")[EPOCH_NAME]
        assert data is not None
        return data

    def put(self, data: bytes) -> None:
        """As rsync does: another host renames a copy into place."""
        server = self.server
        root = server.open_dir("/")
        file = server.open(root, "copy", os.O_RDWR | os.O_CREAT)
        server.pwrite(file, data, 0)
        server.fsync(file)
        server.rename(root, "copy", EPOCH_NAME)
        server.close(file)

    def remove(self) -> None:
        self.server.unlink(self.server.open_dir("/"), EPOCH_NAME)


def test_a_copy_in_the_place_of_the_epoch_file_ends_its_owner_at_the_next_probe() -> None:
    hosts = Hosts()
    a = hosts.owner("A")
    probe = hosts.probe(a)
    assert probe()
    hosts.put(hosts.epochs)
    # It shows what the owner recorded, so nothing but its being another file speaks against it.
    a.confirm()
    with pytest.raises(FencedError, match="removed or replaced"):
        probe()
    # So the owner is gone before a successor can have the next number, which only the copy shows.


def test_yesterdays_epoch_file_in_its_place_ends_the_owner_at_the_next_probe() -> None:
    hosts = Hosts()
    hosts.owner("Z").release()
    yesterday = hosts.epochs
    a = hosts.owner("A")
    probe = hosts.probe(a)
    assert probe()
    hosts.put(yesterday)
    with pytest.raises(FencedError, match="our record is gone"):
        probe()


def test_a_successor_that_reads_the_copy_ends_the_former_owner_at_its_next_probe() -> None:
    hosts = Hosts()
    a = hosts.owner("A")
    probe = hosts.probe(a)
    assert probe()
    hosts.put(hosts.epochs)
    hosts.lose(a)
    b = hosts.owner("B")
    with pytest.raises(FencedError, match="superseded by epoch 2 of server B"):
        probe()
    b.confirm()


def test_an_epoch_file_that_was_removed_on_a_share_ends_the_owner_at_the_next_probe() -> None:
    hosts = Hosts()
    probe = hosts.probe(hosts.owner("A"))
    assert probe()
    hosts.remove()
    with pytest.raises(FencedError, match="removed or replaced"):
        probe()


@pytest.mark.parametrize("taken", [False, True])
def test_who_asks_for_a_heartbeat_with_a_higher_epoch_finds_the_copy_at_once(
    *, taken: bool
) -> None:
    hosts = Hosts()
    a = hosts.owner("A")
    a.confirm_anew()
    hosts.put(hosts.epochs)
    hosts.lose(a)
    if taken:
        hosts.owner("B")
    a.confirm()
    with pytest.raises(FencedError):
        a.confirm_anew()
    # For good: the descriptor of the old file would go on confirming.
    with pytest.raises(FencedError):
        a.confirm()


def test_a_probe_opens_the_epoch_file_once_and_leaves_nothing_open() -> None:
    hosts = Hosts()
    a = hosts.owner("A")
    probe = hosts.probe(a)
    assert probe()
    disk = a._disk
    assert isinstance(disk, ClientDisk)
    before = disk.open_handles
    opened = []
    disk.on_call = lambda _number, call, args: opened.append(args[1]) if call == "open" else None
    assert probe()
    assert opened == [EPOCH_NAME]
    assert disk.open_handles == before


def test_an_owner_that_goes_on_to_a_higher_epoch_passes_its_probes() -> None:
    hosts = Hosts()
    a = hosts.owner("A")
    probe = hosts.probe(a)
    assert probe()
    a.raise_epoch()
    assert probe()
    a.confirm_anew()


# ---- on a local file system
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Callable[[str], StoreOwner]]:
    owners: list[StoreOwner] = []

    def make(name: str) -> StoreOwner:
        owner = StoreOwner(
            LocalDisk(),
            str(tmp_path),
            server_id=name,
            clock=ManualClock(),
            in_group=True,
            mountinfo=EXT4,
        )
        owners.append(owner)
        return owner

    yield make
    for owner in owners:
        owner.close()


def test_a_replaced_file_that_keeps_a_name_elsewhere_is_noticed_on_a_local_file_system(
    tmp_path: Path, local: Callable[[str], StoreOwner]
) -> None:
    a = local("A")
    a.try_lock()
    a.activate()
    probe = Probe(LocalDisk(), a.root, a, server_id="A", look=lambda: None)
    try:
        assert probe()
        # A backup of hard links: the link count of the open file stays 1.
        os.link(tmp_path / EPOCH_NAME, tmp_path.with_name(f"{tmp_path.name}-backup"))
        shutil.copy(tmp_path / EPOCH_NAME, tmp_path / "copy")
        (tmp_path / "copy").rename(tmp_path / EPOCH_NAME)
        a.confirm()
        with pytest.raises(FencedError, match="removed or replaced"):
            probe()
    finally:
        probe.close()


# ---- a loss belongs to the activation that was asked about
# --------------------------------------------------------------------------------------------------


def test_a_probe_that_comes_back_late_does_not_end_the_next_activation(
    local: Callable[[str], StoreOwner],
) -> None:
    a = local("A")
    a.try_lock()
    a.activate()
    # Storage refused the recovery: the store is given back, while a probe hangs in its look at the
    # lock.
    a.release()
    with pytest.raises(FencedError):
        a.verify_lock()
    a.try_lock()
    a.activate()
    a.confirm()
    assert a.activation.epoch == 2


def test_a_look_that_hangs_over_the_next_activation_ends_the_one_that_it_looked_for(
    local: Callable[[str], StoreOwner], monkeypatch: pytest.MonkeyPatch
) -> None:
    a = local("A")
    a.try_lock()
    a.activate()
    real = StoreLock.verify

    def hang(lock: StoreLock) -> None:
        monkeypatch.setattr(StoreLock, "verify", real)
        a.release()
        a.try_lock()
        a.activate()
        raise FencedError("the lock file was removed")

    monkeypatch.setattr(StoreLock, "verify", hang)
    with pytest.raises(FencedError, match="the lock file was removed"):
        a.verify_lock()
    a.confirm()
    assert a.activation.epoch == 2


def test_a_loss_that_is_found_while_the_owner_raises_its_epoch_stays(
    tmp_path: Path, local: Callable[[str], StoreOwner]
) -> None:
    a = local("A")
    a.try_lock()
    a.activate()
    (tmp_path / ".rootdir.lck").unlink()
    with pytest.raises(FencedError):
        a.verify_lock()
    for work in (a.raise_epoch, a.confirm, a.confirm_beside):
        with pytest.raises(FencedError, match="removed"):
            work()
    a.release()
    with pytest.raises(ReleasedError):
        a.confirm()
