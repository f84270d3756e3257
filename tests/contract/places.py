"""Where the stores of the contract suite rest.

A new kind of store joins the suite with one line in ``KINDS``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk
from ftstan.stores.encryption.cipher import OVERHEAD, KeyRing
from ftstan.stores.encryption.store import EncryptedStore
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.store import FileStore
from ftstan.stores.memory import MemoryStore
from tests.sim.disk import SimDisk
from tests.sim.filestore import SimOwner
from tests.sim.history import STORE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ftstan.base.disk import Disk
    from ftstan.config.limits import Limits
    from ftstan.stores.contract import Place
    from ftstan.stores.interface import Store


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of store; ``make`` gives a new place of it, in an empty folder if it wants one."""

    name: str
    make: Callable[[Path], Place]
    durable: bool = True


_ODD_NAME = b"\xff\xfe name"


class MemoryPlace:
    overhead = 0
    odd_name = _ODD_NAME

    def __init__(self, _folder: Path) -> None:
        self.clock = ManualClock()

    def open(self, limits: Limits) -> Store:
        return MemoryStore()


class FilePlace:
    """A directory; slices are small so that every test crosses some."""

    overhead = 40
    odd_name = _ODD_NAME

    def __init__(self, new_disk: Callable[[], Disk], path: str) -> None:
        self.clock = ManualClock()
        self._new_disk = new_disk
        self._path = path

    def open(self, limits: Limits) -> Store:
        disk = self._new_disk()
        root = disk.open_dir(self._path)
        owner = SimOwner(disk, root, self.clock)
        return FileStore(
            disk, root, owner, self.clock, FileStoreOptions(slice_max_msgs=7), limits=limits
        )


class EncryptedPlace:
    """Another place, with every payload encrypted."""

    def __init__(self, inner: Place) -> None:
        self.clock = inner.clock
        self.overhead = inner.overhead + OVERHEAD
        self.odd_name = inner.odd_name
        self._inner = inner
        self._ring = KeyRing([b"key"])

    def open(self, limits: Limits) -> Store:
        return EncryptedStore(self._inner.open(limits), self._ring)


def _local(folder: Path) -> Place:
    return FilePlace(LocalDisk, str(folder))


def _simulated(_folder: Path) -> Place:
    disk = SimDisk()
    disk.make_dirs(STORE)
    return FilePlace(disk.sibling, STORE)


KINDS = [
    Kind("memory", MemoryPlace, durable=False),
    Kind("memory-encrypted", lambda folder: EncryptedPlace(MemoryPlace(folder)), durable=False),
    Kind("file-encrypted", lambda folder: EncryptedPlace(_local(folder))),
    Kind("file", _local),
    Kind("file-simulated", _simulated),
]
