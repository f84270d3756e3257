"""Hosts of a group: what each kernel remembers of the shared volume, and what it has not written
back yet.

On one machine (or a coherent cluster file system) all processes see one page cache: that is
``SimDisk`` itself. On a network file system each host has a client of its own; of what was measured
there (``docs/compat/nfs-facts.md``) this is simulated:

- a write is dirty in the client until a sync, a close, or whenever the client likes, in any order,
  long after the process was paused or its host given up; it may carry the whole page with it, as
  this host remembers the page;
- a file reads, and has the size, as at its last open on this host; an open asks the server again,
  except while the host holds the file open for writing, or woke up from a freeze, trusts a
  delegation that was taken away, and has not met the server about this file since;
- ``O_DIRECT`` asks the server for the bytes, though not for the size, and sends what is dirty of
  the file before;
- a sync sends page by page, and the host may freeze between two of them (the call ``page``);
- a sync makes durable what this host sent; nothing is committed of a file to which it sent nothing;
- names change at the server, at once; but a name that is only asked about (``stat``) may be
  answered with the size and the time that this host last got for the file, for up to a minute or
  until it opens the file; a name that led to a file may go on doing so for a ``stat``, and one that
  was not there may go on not being there, for an open that creates nothing as well, until this host
  opens the directory (to list it, too) or changes something in it. A listing is never stale: it
  opens the directory, which asks the server. ``Client.trusts_names`` says how often a name is
  answered so.
- a name that goes while this host has its file open by it becomes ``.nfs*`` instead (a *silly
  rename*), and goes at the last close; for ever if the host dies before. Meanwhile this host
  answers EBUSY to an unlink of it, others unlink it.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections import Counter, defaultdict
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, cast

from tests.sim.disk import SimDisk, _stat
from tests.sim.volume import DirNode, FileNode

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.base.disk import Disk, FileStat
    from tests.sim.disk import _Handle
    from tests.sim.volume import DirNode, Node, Volume

PAGE = 4096

#: For so long a name may be answered from memory: ``acregmax`` and ``acdirmax``.
_REMEMBERED_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class Late:
    """Bytes on their way to the server.

    ``epoch``: under which they were written, 0 if by nobody who owned it.
    """

    node: FileNode
    offset: int
    data: bytes
    epoch: int


@dataclass(slots=True)
class _Dirty:
    """What of one page the server has not seen: the file from ``start`` to ``end``, as it is when
    it is sent.
    """

    start: int
    end: int
    epoch: int


@dataclass(eq=False, slots=True)
class _Held:
    """A name by which this host has a file open; it follows renames.

    ``silly``: the name is one of the client's own.
    """

    folder: DirNode
    name: str
    node: FileNode
    opens: int = 0
    silly: bool = False


class Client:
    """One host's memory of a network file system."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.dead = False
        self.views: dict[FileNode, bytearray] = {}
        self.dirty: dict[tuple[FileNode, int], _Dirty] = {}
        self.sent: set[FileNode] = set()
        """Files with bytes that this host sent and did not ask to be made durable."""
        self.writers: Counter[FileNode] = Counter()
        self.held: dict[tuple[DirNode, str], _Held] = {}
        self.believed: set[FileNode] = set()
        """Files whose opens are answered from memory: delegations that were taken away during a
        freeze.
        """
        self.bare: DirNode | None = None
        """What every path names on this host while its share is not mounted: a local directory."""
        self.trusts_names = 0.3
        self.stops_between_pages = False
        self.attributes: dict[FileNode, tuple[int, int, int]] = {}
        """Size and time of change of files as this host last got them, and when."""
        self.absent: defaultdict[DirNode, dict[str, int]] = defaultdict(dict)
        """Names that were not in a directory when this host asked, and when."""
        self.named: defaultdict[DirNode, dict[str, FileNode]] = defaultdict(dict)
        """Files to which the names of a directory led when this host asked."""
        # Draws of its own: a host that asks no names runs the same history.
        self._names = Random()
        self._names.setstate(rng.getstate())

    def asked(self, node: FileNode, now: int) -> None:
        """The server has told this host about a file."""
        self.attributes[node] = (len(node.data), node.mtime_ns, now)

    def trusts(self, since: int, now: int) -> bool:
        """Whether what this host was told then is its answer now."""
        return now - since < _REMEMBERED_NS and self._names.random() < self.trusts_names

    def looked_into(self, folder: DirNode) -> None:
        """This host opened or changed a directory: it knows again which names it has."""
        self.absent[folder].clear()
        named = self.named[folder]
        entries = folder.entries
        for name in [name for name, node in named.items() if entries.get(name) is not node]:
            del named[name]

    def hold(self, folder: DirNode, name: str, node: FileNode) -> _Held:
        """A file was opened by a name."""
        held = self.held.get((folder, name))
        if held is None or held.node is not node:
            held = self.held[folder, name] = _Held(folder, name, node)
        held.opens += 1
        return held

    def moved(self, folder: DirNode, src: str, dst: str) -> None:
        """A name has become another."""
        self.held.pop((folder, dst), None)
        held = self.held.pop((folder, src), None)
        if held is not None:
            held.name = dst
            self.held[folder, dst] = held

    def view(self, node: FileNode) -> bytearray:
        return self.views.setdefault(node, bytearray(node.data))

    def freeze(self) -> None:
        """The host stands still: the server takes its delegations away, and it does not know when
        it wakes up.
        """
        self.believed = {node for node, view in self.views.items() if view == node.data}

    def meet_server(self, node: FileNode) -> None:
        """A request that cannot be answered from memory: with its answer this host learns what it
        has lost.
        """
        self.believed.discard(node)

    def revalidate(self, node: FileNode) -> None:
        """Ask the server, and keep what it does not know yet."""
        old = self.view(node)
        new = bytearray(node.data)
        for (owner, _), dirty in self.dirty.items():
            if owner is node:
                _put(new, bytes(old[dirty.start : dirty.end]), dirty.start)
        self.views[node] = new

    def write(self, node: FileNode, data: bytes, offset: int, epoch: int) -> None:
        _put(self.view(node), data, offset)
        end = offset + len(data)
        for page in range(offset // PAGE, -(-end // PAGE)):
            start = max(offset, page * PAGE)
            stop = min(end, (page + 1) * PAGE)
            dirty = self.dirty.setdefault((node, page), _Dirty(start, stop, epoch))
            dirty.start, dirty.end, dirty.epoch = (
                min(dirty.start, start),
                max(dirty.end, stop),
                epoch,
            )

    def flush(
        self, volume: Volume, node: FileNode, between: Callable[[int], object] = lambda _page: None
    ) -> None:
        """Bring every dirty page of one file to the server.

        ``between`` comes before each but the first.
        """
        if not self.dirty:
            return
        for i, key in enumerate(
            sorted((k for k in self.dirty if k[0] is node), key=lambda k: k[1])
        ):
            if i:
                between(key[1])
            # It may have been written back while this host stood still.
            if key in self.dirty:
                self._send(volume, key)

    def write_back(self, volume: Volume) -> Late:
        """Bring some dirty page to the server, perhaps the whole of it as this host remembers
        it.
        """
        key = self.rng.choice(list(self.dirty))
        if self.rng.random() < 0.5:
            dirty = self.dirty[key]
            dirty.start = key[1] * PAGE
            dirty.end = min((key[1] + 1) * PAGE, len(self.view(key[0])))
        return self._send(volume, key)

    def _send(self, volume: Volume, key: tuple[FileNode, int]) -> Late:
        late = self._late(key)
        del self.dirty[key]
        self.sent.add(key[0])
        put(volume, late, self)
        if key[0] in self.attributes:
            # The answer to a write tells the time that it made.
            self.asked(key[0], volume.now_ns())
        return late

    def _late(self, key: tuple[FileNode, int]) -> Late:
        dirty = self.dirty[key]
        return Late(
            key[0], dirty.start, bytes(self.view(key[0])[dirty.start : dirty.end]), dirty.epoch
        )

    def abandoned(self) -> list[Late]:
        """The host is dead: what of its dirty pages is on its way all the same."""
        return [self._late(key) for key in self.dirty if self.rng.random() < 0.6]


def put(volume: Volume, late: Late, machine: object = None) -> None:
    """A write arrives at the server.

    ``machine`` is the one that sends it again if the server forgets it.
    """
    node = late.node
    if machine is not None:
        node.by.add(machine)
    before = len(node.data)
    node.write(late.data, late.offset)
    volume.grow(len(node.data) - before)
    node.mtime_ns = volume.now_ns()


def _put(view: bytearray, data: bytes, offset: int) -> None:
    end = offset + len(data)
    if end > len(view):
        view.extend(bytes(end - len(view)))
    view[offset:end] = data


class ClientDisk(SimDisk):
    """A process on a host with a client of its own.

    ``epoch``: under which it writes, for ``Late``.
    """

    def __init__(self, volume: Volume, met: Counter[str], client: Client) -> None:
        super().__init__(volume, met)
        self.client = self.machine = client
        self.epoch = 0

    def open(self, dirfd: int, name: str, flags: int, mode: int = 0o666) -> int:
        with self._lock:
            if flags & os.O_CREAT:
                self.client.looked_into(self._folder(dirfd))
            else:
                self._may_be_absent(dirfd, name)
            try:
                fd = super().open(dirfd, name, flags & ~os.O_DIRECT, mode)
            except FileNotFoundError:
                self._was_absent(dirfd, name)
                raise
            handle = self._handles[fd]
            handle.flags |= flags & os.O_DIRECT
            if isinstance(handle.node, FileNode):
                self.client.named[self._folder(dirfd)][name] = handle.node
                if handle.node not in self.client.believed:
                    self.client.asked(handle.node, self.volume.now_ns())
                handle.held = self.client.hold(self._folder(dirfd), name, handle.node)
                if not flags & os.O_DIRECT:
                    self._opened(handle.node, flags)
            return fd

    def _may_be_absent(self, dirfd: int, name: str) -> None:
        """Raise ``FileNotFoundError`` if this host remembers that there is no such name, and does
        not ask.
        """
        folder = self._folder(dirfd)
        since = self.client.absent[folder].get(name)
        if since is not None and self.client.trusts(since, self.volume.now_ns()):
            self.met["stale absences"] += name in folder.entries
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)

    def _was_absent(self, dirfd: int, name: str) -> None:
        if not self.dead:
            folder = self._folder(dirfd)
            self.client.absent[folder][name] = self.volume.now_ns()
            self.client.named[folder].pop(name, None)

    def open_dir(self, path: str) -> int:
        bare = self.client.bare
        if bare is None:
            return super().open_dir(path)
        with self._lock:
            self._enter("open_dir", path)
            return self._handle(bare, os.O_RDONLY)

    def open_dir_at(self, dirfd: int, name: str) -> int:
        with self._lock:
            fd = super().open_dir_at(dirfd, name)
            self.client.looked_into(self._folder(fd))
            return fd

    def listdir(self, dirfd: int) -> list[tuple[str, bool]]:
        with self._lock:
            self.client.looked_into(self._folder(dirfd))
            return super().listdir(dirfd)

    def link(self, dirfd: int, src: str, dst: str) -> None:
        with self._lock:
            super().link(dirfd, src, dst)
            self.client.looked_into(self._folder(dirfd))

    def rename(self, dirfd: int, src: str, dst: str) -> None:
        with self._lock:
            super().rename(dirfd, src, dst)
            self.client.looked_into(self._folder(dirfd))

    def unlink(self, dirfd: int, name: str) -> None:
        with self._lock:
            super().unlink(dirfd, name)
            self.client.looked_into(self._folder(dirfd))

    def stat(self, dirfd: int, name: str) -> FileStat:
        with self._lock:
            self._may_be_absent(dirfd, name)
            client = self.client
            now = self.volume.now_ns()
            folder = self._folder(dirfd)
            node = client.named[folder].get(name)
            size, mtime_ns, since = (
                client.attributes.get(node, (0, 0, 0)) if node is not None else (0, 0, 0)
            )
            if (
                node is not None
                and since
                and (node in client.believed or client.trusts(since, now))
            ):
                self._enter("stat", dirfd, name)
                self.met["stale names"] += node is not folder.entries.get(name) or size != len(
                    node.data
                )
                return _stat(node)._replace(size=size, mtime_ns=mtime_ns)
            try:
                stat = super().stat(dirfd, name)
            except FileNotFoundError:
                self._was_absent(dirfd, name)
                raise
            there = folder.entries[name]
            if isinstance(there, FileNode):
                client.named[folder][name] = there
                client.asked(there, now)
            return stat

    def _opened(self, node: FileNode, flags: int) -> None:
        client = self.client
        if node in client.views and (client.writers[node] or node in client.believed):
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
            if handle is not None and isinstance(handle.node, FileNode):
                self.client.flush(self.volume, handle.node)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        with self._lock:
            node, flags = self._file(fd)
            if flags & os.O_DIRECT:
                self.client.flush(self.volume, node)
                self.met["reads past a stale memory"] += (
                    node in self.client.believed and self.client.view(node) != node.data
                )
                self.client.meet_server(node)
                return super().pread(fd, size, offset)
            at_server = super().pread(fd, size, offset)
            remembered = bytes(self.client.view(node)[offset : offset + size])
            self.met["stale reads"] += remembered != at_server
            return remembered

    def fstat(self, fd: int) -> FileStat:
        with self._lock:
            stat = super().fstat(fd)
            node = cast("FileNode", self._get(fd).node)
            told = self.client.attributes.get(node)
            # As it was told at the last open, also of what another host has written since.
            mtime_ns = told[1] if told is not None else stat.mtime_ns
            view = self.client.views.get(node)
            size = len(view) if view is not None else stat.size
            if (size, mtime_ns) == (stat.size, stat.mtime_ns):
                return stat
            self.met["stale sizes"] += size != stat.size
            return stat._replace(size=size, mtime_ns=mtime_ns)

    def ftruncate(self, fd: int, size: int) -> None:
        with self._lock:
            super().ftruncate(fd, size)
            self.client.sent.add(self._file(fd)[0])
            self.client.revalidate(self._file(fd)[0])
            self.client.asked(self._file(fd)[0], self.volume.now_ns())

    def direct(self) -> Disk:
        """The same process, each file opened with ``O_DIRECT``."""
        return cast("Disk", _Direct(self))

    def _hand_over(self, node: Node) -> bool:
        if not isinstance(node, FileNode):
            return True
        client = self.client
        if client.stops_between_pages:
            client.flush(self.volume, node, lambda page: self._enter("page", page))
        client.flush(self.volume, node)
        mine = node in client.sent
        client.sent.discard(node)
        self.met["syncs that commit nothing"] += not mine and bool(node.changes)
        return mine

    def _write(self, fd: int, data: bytes, offset: int) -> None:
        node, flags = self._file(fd)
        if flags & os.O_DIRECT:
            super()._write(fd, data, offset)
            self.client.sent.add(node)
        else:
            self.client.write(node, data, offset, self.epoch)

    def _release(self, handle: _Handle) -> None:
        node = handle.node
        if (
            isinstance(node, FileNode)
            and handle.flags & os.O_ACCMODE != os.O_RDONLY
            and not handle.flags & os.O_DIRECT
        ):
            self.client.writers[node] -= 1
        super()._release(handle)
        if handle.held is not None:
            self._let_go(handle.held)

    def _let_go(self, held: _Held) -> None:
        held.opens -= 1
        if held.opens:
            return
        key = (held.folder, held.name)
        if self.client.held.get(key) is held:
            del self.client.held[key]
        if held.silly and not self.client.dead and held.folder.entries.get(held.name) is held.node:
            held.folder.change(removes=held.name)
            self._touch(held.folder)
            self._unname(held.node)

    def _put_aside(self, folder: DirNode, name: str, node: Node) -> bool:
        held = self.client.held.get((folder, name))
        if held is None or held.node is not node:
            return False
        if held.silly:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), name)
        # A former owner's, which is read until the last channel is open (docs/store.md).
        self.met["silly renames of dedup.bin" if name == "dedup.bin" else "silly renames"] += 1
        aside = next(a for n in itertools.count(1) if (a := f".nfs{n:08x}") not in folder.entries)
        folder.change(removes=name, adds=aside, node=held.node)
        self.client.moved(folder, name, aside)
        held.silly = True
        return True

    def _moved(self, folder: DirNode, src: str, dst: str) -> None:
        self.client.moved(folder, src, dst)


class _Direct:
    def __init__(self, disk: ClientDisk) -> None:
        self._disk = disk

    def open(self, dirfd: int, name: str, flags: int, mode: int = 0o666) -> int:
        return self._disk.open(dirfd, name, flags | os.O_DIRECT, mode)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)
