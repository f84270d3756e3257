"""The lock service of a simulated group: who holds the record lock on which file, and how it comes
into other hands.

One holder a file, as long as nothing is wrong. ``lose`` is a lease that expired, a server that
restarted or a client that was disconnected: the lock goes and its holder is not told. ``generous``
grants to everybody, as two file servers that both believe they are the one do.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from portalocker.exceptions import AlreadyLocked
from portalocker.portalocker import BaseLocker

if TYPE_CHECKING:
    from portalocker.constants import LockFlags
    from portalocker.types import FileArgument

    from tests.sim.disk import SimDisk
    from tests.sim.volume import Node


class LockService:
    """Locks by file, not by name: a lock file that was replaced is another lock."""

    def __init__(self) -> None:
        self.holders: dict[Node, list[SimDisk]] = {}
        self.generous = False

    def take(self, node: Node, process: SimDisk) -> bool:
        """Grant the lock of ``node`` to ``process`` unless another one holds it."""
        holders = self.holders.setdefault(node, [])
        if process in holders:
            return True
        if holders and not self.generous:
            return False
        process.met["two lock holders"] += bool(holders)
        holders.append(process)
        return True

    def give_back(self, node: Node, process: SimDisk) -> None:
        holders = self.holders.get(node, [])
        if process in holders:
            holders.remove(process)

    def lose(self, process: SimDisk) -> bool:
        """Take every lock from ``process``, which is not told; returns whether it had one."""
        had = False
        for holders in self.holders.values():
            if process in holders:
                holders.remove(process)
                had = True
        return had


class SimLocker(BaseLocker):
    """portalocker's seam, filled with the simulated service."""

    def __init__(self, service: LockService, disk: SimDisk) -> None:
        self._service = service
        self._disk = disk

    def lock(self, file_obj: FileArgument, flags: LockFlags) -> None:
        assert isinstance(file_obj, int)
        if not self._service.take(self._disk._handles[file_obj].node, self._disk):
            raise AlreadyLocked(OSError(errno.EAGAIN, "busy"), "busy", fh=file_obj)

    def unlock(self, file_obj: FileArgument) -> None:
        assert isinstance(file_obj, int)
        self._service.give_back(self._disk._handles[file_obj].node, self._disk)
