"""Hosts of a group: what each kernel remembers of the shared volume, and what it has not written back yet.

On one machine (or a coherent cluster file system) all processes see one page cache: that is ``SimDisk`` itself. On a
network file system each host has a client of its own, and this is what was measured there (``docs/compat/nfs-facts.md``):

- a write is dirty in the client until a sync, a close, or whenever the client likes, in any order, long after the
  process was paused or its host given up; it may carry the whole page with it, as this host remembers the page;
- a file reads, and has the size, as at its last open on this host; an open asks the server again, except while the host
  holds the file open for writing, or woke up from a freeze and trusts a delegation that was taken away;
- ``O_DIRECT`` asks the server for the bytes, though not for the size;
- names change at the server, at once.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from tests.sim.disk import SimDisk
from tests.sim.volume import FileNode

if TYPE_CHECKING:
    from random import Random

    from ftstan.disk import Disk, FileStat
    from tests.sim.disk import _Handle
    from tests.sim.volume import Node, Volume

PAGE = 4096


@dataclass(frozen=True, slots=True)
class Dirty:
    """A write that the server has not seen. ``epoch``: under which its process wrote, 0 if it owned nothing."""

    node: FileNode
    offset: int
    data: bytes
    epoch: int


class Client:
    """One host's memory of a network file system."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.views: dict[FileNode, bytearray] = {}
        self.dirty: list[Dirty] = []
        self.writers: Counter[FileNode] = Counter()
        self.believes_itself = False
        """Whether opens are answered from memory: delegations that were taken away during a freeze."""

    def view(self, node: FileNode) -> bytearray:
        return self.views.setdefault(node, bytearray(node.data))

    def revalidate(self, node: FileNode) -> None:
        """Ask the server, and keep what it does not know yet."""
        view = self.views[node] = bytearray(node.data)
        for write in self.dirty:
            if write.node is node:
                _put(view, write.data, write.offset)

    def write(self, write: Dirty) -> None:
        _put(self.view(write.node), write.data, write.offset)
        self.dirty.append(write)

    def flush(self, volume: Volume, node: FileNode) -> None:
        """Bring every dirty byte of one file to the server, in order."""
        left = []
        for write in self.dirty:
            if write.node is node:
                put(volume, node, write.data, write.offset)
            else:
                left.append(write)
        self.dirty = left

    def write_back(self, volume: Volume) -> Dirty | None:
        """Bring some dirty write to the server, perhaps with the rest of its page as this host remembers it."""
        if not self.dirty:
            return None
        write = self.dirty.pop(self.rng.randrange(len(self.dirty)))
        start, end = write.offset, write.offset + len(write.data)
        if self.rng.random() < 0.5:
            start -= start % PAGE
            end += -end % PAGE
        view = self.view(write.node)
        put(volume, write.node, bytes(view[start:end]), start)
        return write


def put(volume: Volume, node: FileNode, data: bytes, offset: int) -> None:
    """A write arrives at the server."""
    before = len(node.data)
    node.write(data, offset)
    volume.grow(len(node.data) - before)
    node.mtime_ns = volume.now_ns()


def _put(view: bytearray, data: bytes, offset: int) -> None:
    end = offset + len(data)
    if end > len(view):
        view.extend(bytes(end - len(view)))
    view[offset:end] = data


class ClientDisk(SimDisk):
    """A process on a host with a client of its own. ``epoch``: under which it writes, for ``Dirty``."""

    def __init__(self, volume: Volume, met: Counter[str], client: Client) -> None:
        super().__init__(volume, met)
        self.client = client
        self.epoch = 0

    def open(self, dirfd: int, name: str, flags: int, mode: int = 0o666) -> int:
        with self._lock:
            fd = super().open(dirfd, name, flags & ~os.O_DIRECT, mode)
            handle = self._handles[fd]
            handle.flags |= flags & os.O_DIRECT
            if isinstance(handle.node, FileNode) and not flags & os.O_DIRECT:
                self._opened(handle.node, flags)
            return fd

    def _opened(self, node: FileNode, flags: int) -> None:
        client = self.client
        if node in client.views and (client.writers[node] or client.believes_itself):
            if client.views[node] != node.data:
                self.met["opens answered from memory"] += 1
        else:
            client.revalidate(node)
        if flags & os.O_ACCMODE != os.O_RDONLY:
            client.writers[node] += 1

    def close(self, fd: int) -> None:
        with self._lock:
            handle = self._handles.get(fd)
            super().close(fd)
            if handle is not None:
                self._hand_over(handle.node)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        with self._lock:
            at_server = super().pread(fd, size, offset)
            node, flags = self._file(fd)
            if flags & os.O_DIRECT:
                return at_server
            remembered = bytes(self.client.view(node)[offset : offset + size])
            self.met["stale reads"] += remembered != at_server
            return remembered

    def fstat(self, fd: int) -> FileStat:
        with self._lock:
            stat = super().fstat(fd)
            view = self.client.views.get(cast("FileNode", self._get(fd).node))
            if view is None:
                return stat
            self.met["stale sizes"] += len(view) != stat.size
            return replace(stat, size=len(view))

    def ftruncate(self, fd: int, size: int) -> None:
        with self._lock:
            super().ftruncate(fd, size)
            self.client.revalidate(self._file(fd)[0])

    def direct(self) -> Disk:
        """The same process, each file opened with ``O_DIRECT``."""
        return cast("Disk", _Direct(self))

    def _hand_over(self, node: Node) -> None:
        if isinstance(node, FileNode):
            self.client.flush(self.volume, node)

    def _write(self, fd: int, data: bytes, offset: int) -> None:
        node, flags = self._file(fd)
        if flags & os.O_DIRECT:
            super()._write(fd, data, offset)
        else:
            self.client.write(Dirty(node, offset, data, self.epoch))

    def _release(self, handle: _Handle) -> None:
        node = handle.node
        if isinstance(node, FileNode) and handle.flags & os.O_ACCMODE != os.O_RDONLY and not handle.flags & os.O_DIRECT:
            self.client.writers[node] -= 1
        super()._release(handle)


class _Direct:
    def __init__(self, disk: ClientDisk) -> None:
        self._disk = disk

    def open(self, dirfd: int, name: str, flags: int, mode: int = 0o666) -> int:
        return self._disk.open(dirfd, name, flags | os.O_DIRECT, mode)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - every other call is the disk's
        return getattr(self._disk, name)
