"""``SimDisk``: the storage calls of ``base/disk.py`` on a volume in memory, with honest crashes and
faults on demand.

One ``SimDisk`` is one process on one machine: its handles, its count of calls, its faults.
``sibling`` is another process on the same volume, ``crash`` a copy of the volume as found after a
``kill -9`` or a power cut, so that one moment can be crashed in many ways. A process that was
killed does nothing more: every later call raises ``Killed`` again, so cleaning up in the code under
test cannot reach the disk. Locks, symbolic links and direct I/O are not simulated.
"""

from __future__ import annotations

import errno
import heapq
import os
import random
import threading
import zlib
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from ftstan.base.disk import FileStat, Space
from tests.sim.volume import CrashMode, DirNode, FileNode, Meta, Node, Volume

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CrashMode", "Killed", "SimDisk"]

# Names of this module, and not of ``os``: histories make millions of calls.
_RDONLY = os.O_RDONLY
_WRONLY = os.O_WRONLY
_ACCMODE = os.O_ACCMODE
_CREAT = os.O_CREAT
_EXCL = os.O_EXCL
_TRUNC = os.O_TRUNC
_DIRECT = os.O_DIRECT
_DIRECTORY = os.O_DIRECTORY

DEVICE = 77
ENDLESS = Space(1 << 40, 1 << 41, 0, 0)
UMASK = 0o022


class Killed(BaseException):
    """The process died in this call; raised by ``on_call`` hooks.

    Not an ``Exception``: no handler of the code under test may survive it. ``written``: bytes of an
    interrupted ``pwrite`` that still reached the page cache.
    """

    def __init__(self, written: int = 0) -> None:
        super().__init__("killed")
        self.written = written


@dataclass(slots=True)
class _Handle:
    """An open file or directory.

    ``held``: what a subclass keeps of the name by which it was opened.
    """

    node: Node
    flags: int
    held: Any = None


class SimDisk:
    """A process's view of a simulated volume; implements ``ftstan.base.disk.Disk``.

    ``on_call(number, name, arguments)`` runs before every call and may raise; ``calls`` is the
    number of calls so far, ``log`` names them while ``keeps_log`` holds, ``met`` counts the faults
    and losses that really happened (shared with siblings and crashes).
    """

    def __init__(self, volume: Volume | None = None, met: Counter[str] | None = None) -> None:
        self.volume = Volume.empty() if volume is None else volume
        self.met: Counter[str] = Counter() if met is None else met
        self.on_call: Callable[[int, str, tuple[object, ...]], None] | None = None
        self.calls = 0
        self.log: list[str] = []
        self.keeps_log = True
        self.dead = False
        self.machine: Any = self
        """Whose memory holds what this process has written; it has ``dead``."""
        self._handles: dict[int, _Handle] = {}
        self._closed: list[int] = []
        """Numbers of handles that are free again: as on Linux, the lowest one is the next."""
        self._faults: dict[int, int] = {}
        self._next_faults: dict[str, int] = {}
        self._lost_reply = ""
        self._lock = threading.RLock()

    # Faults, processes, crashes

    def fail_at(self, number: int, code: int) -> None:
        """Let call ``number`` (the first is 1) raise ``OSError(code)``.

        A file's sync also loses its dirty pages.
        """
        self._faults[number] = code

    def fail_next(self, name: str, code: int) -> None:
        """Let the next call of that name raise ``OSError(code)``, as ``fail_at`` does."""
        self._next_faults[name] = code

    def fail_no_more(self) -> None:
        """Forget what was to fail."""
        self._faults.clear()
        self._next_faults.clear()
        self._lost_reply = ""

    def lose_reply(self, name: str) -> None:
        """Let the next exclusive create (``open``) or ``link`` be done, and then tried again as if
        it had not been.

        What a network file system does when the server's answer is lost: the second try finds the
        name taken.
        """
        self._lost_reply = name

    def _reply_is_lost(self, name: str) -> bool:
        if self._lost_reply != name:
            return False
        self._lost_reply = ""
        self.met[f"lost reply of {name}"] += 1
        return True

    def sibling(self) -> SimDisk:
        """Another process on the same volume."""
        return self._heir(self.volume)

    def kill(self) -> None:
        """End this process: its handles are closed, what it wrote stays visible to its siblings."""
        with self._lock:
            self.dead = True
            for handle in self._handles.values():
                self._release(handle)
            self._handles.clear()

    def crash(
        self,
        rng: random.Random | None = None,
        mode: CrashMode = CrashMode.UNORDERED,
        *,
        process_only: bool = False,
    ) -> SimDisk:
        """The disk as the next process finds it; this one is not changed.

        ``process_only``: every process was killed, the machine went on. Otherwise the power failed:
        what was synced is there, and of the rest what ``mode`` and ``rng`` say.
        """
        with self._lock:
            if process_only:
                self.met["processes-killed"] += 1
                return self._heir(self.volume.after_kill())
            self.met["power-cuts"] += 1
            chance = random.Random(0) if rng is None else rng
            return self._heir(self.volume.after_power_cut(chance, mode, self.met))

    def _heir(self, volume: Volume) -> SimDisk:
        made = SimDisk(volume, self.met)
        made.keeps_log = self.keeps_log
        return made

    # Set-up and inspection: no storage calls, everything durable at once

    def make_dirs(self, path: str) -> None:
        """Create ``path`` and what is missing above it."""
        folder = self.volume.root
        for name in _parts(path):
            child = folder.entries.get(name)
            if child is None:
                meta = Meta(0o755)
                child = DirNode(self.volume.new_ino(), meta, meta, self.volume.now_ns())
                folder.change(adds=name, node=child)
                folder.sync()
            assert isinstance(child, DirNode), f"{path} is a file"
            folder = child

    def add_tree(self, path: str, tree: dict[str, bytes | None]) -> None:
        """Create the files of ``tree`` (relative path -> bytes, ``None`` for a directory) under
        ``path``.
        """
        self.make_dirs(path)
        for name, data in tree.items():
            if data is None:
                self.make_dirs(f"{path}/{name}")
                continue
            parent, _, last = f"{path}/{name}".rpartition("/")
            self.make_dirs(parent)
            folder = self._walk(parent)
            meta = Meta(0o644)
            node = FileNode(self.volume.new_ino(), meta, meta, self.volume.now_ns(), links=1)
            node.data[:] = node.durable[:] = data
            folder.change(adds=last, node=node)
            folder.sync()

    def tree(self, path: str = "/") -> dict[str, bytes | None]:
        """What processes see under ``path``: relative path -> bytes, ``None`` for a directory."""
        found: dict[str, bytes | None] = {}

        def visit(folder: DirNode, prefix: str) -> None:
            for name, node in sorted(folder.entries.items()):
                if isinstance(node, DirNode):
                    found[prefix + name] = None
                    visit(node, f"{prefix}{name}/")
                else:
                    found[prefix + name] = bytes(node.data)

        visit(self._walk(path), "")
        return found

    @property
    def open_handles(self) -> int:
        """Handles that this process has not closed."""
        return len(self._handles)

    # The calls of ftstan.base.disk.Disk

    def open_dir(self, path: str) -> int:
        with self._lock:
            self._enter("open_dir", path)
            return self._handle(self._walk(path), _RDONLY)

    def open_dir_at(self, dirfd: int, name: str) -> int:
        with self._lock:
            self._enter("open_dir_at", dirfd, name)
            node = self._child(self._folder(dirfd), name)
            if not isinstance(node, DirNode):
                _fail(errno.ENOTDIR, name)
            return self._handle(node, _RDONLY)

    def mkdir(self, dirfd: int, name: str) -> None:
        with self._lock:
            self._enter("mkdir", dirfd, name)
            folder = self._live_folder(dirfd, name)
            if name in folder.entries:
                _fail(errno.EEXIST, name)
            meta = Meta(0o750 & ~UMASK)
            folder.change(
                adds=name, node=DirNode(self.volume.new_ino(), meta, meta, self._touch(folder))
            )

    def rmdir(self, dirfd: int, name: str) -> None:
        with self._lock:
            self._enter("rmdir", dirfd, name)
            folder = self._folder(dirfd)
            node = self._child(folder, name)
            if not isinstance(node, DirNode):
                _fail(errno.ENOTDIR, name)
            if node.entries:
                _fail(errno.ENOTEMPTY, name)
            folder.change(removes=name)
            self._touch(folder)
            self._unname(node)

    def listdir(self, dirfd: int) -> list[tuple[str, bool]]:
        with self._lock:
            self._enter("listdir", dirfd)
            entries = self._folder(dirfd).entries
            # In no useful order, like the real one, but the same in every run.
            return [
                (name, isinstance(entries[name], DirNode)) for name in sorted(entries, key=_mixed)
            ]

    def open(self, dirfd: int, name: str, flags: int, mode: int = 0o640) -> int:
        with self._lock:
            self._enter("open", dirfd, name, flags)
            if flags & _DIRECT:
                _fail(errno.EINVAL, name)
            folder = self._folder(dirfd)
            node = folder.entries.get(name) or folder.entries.get(_component(name))
            if node is None:
                if not flags & _CREAT:
                    _fail(errno.ENOENT, name)
                self._live_folder(dirfd, name)
                meta = Meta(mode & 0o777 & ~UMASK)
                node = FileNode(self.volume.new_ino(), meta, meta, self._touch(folder), links=1)
                folder.change(adds=name, node=node)
                if flags & _EXCL and self._reply_is_lost("open"):
                    _fail(errno.EEXIST, name)
                return self._handle(node, flags)
            if flags & _CREAT and flags & _EXCL:
                _fail(errno.EEXIST, name)
            writes = flags & _ACCMODE != _RDONLY
            if isinstance(node, FileNode):
                if flags & _DIRECTORY:
                    _fail(errno.ENOTDIR, name)
                if flags & _TRUNC and writes:
                    self._resize(node, 0)
            elif writes or flags & _CREAT:
                _fail(errno.EISDIR, name)
            return self._handle(node, flags)

    def close(self, fd: int) -> None:
        with self._lock:
            handle = self._handles.get(fd)
            try:
                self._enter("close", fd)
            finally:
                # Released even if the call reports an error, as on Linux.
                if handle is not None and not self.dead:
                    del self._handles[fd]
                    heapq.heappush(self._closed, fd)
                    self._release(handle)
            if handle is None:
                _fail(errno.EBADF)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        with self._lock:
            self._enter("pread", fd, size, offset)
            node, flags = self._file(fd)
            if flags & _ACCMODE == _WRONLY:
                _fail(errno.EBADF)
            if offset < 0:
                _fail(errno.EINVAL)
            return bytes(node.data[offset : offset + size])

    def next_data(self, fd: int, offset: int) -> int:
        # It cannot say.
        del fd
        return offset

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        with self._lock:
            content = bytes(data)
            try:
                self._enter("pwrite", fd, len(content), offset)
            except Killed as kill:
                if kill.written and fd in self._handles:
                    self.met["writes-interrupted"] += 1
                    self._write(fd, content[: kill.written], offset)
                raise
            self._write(fd, content, offset)

    def fdatasync(self, fd: int) -> None:
        self._sync("fdatasync", fd)

    def fsync(self, fd: int) -> None:
        self._sync("fsync", fd)

    def ftruncate(self, fd: int, size: int) -> None:
        with self._lock:
            self._enter("ftruncate", fd, size)
            node, flags = self._file(fd)
            if flags & _ACCMODE == _RDONLY or size < 0:
                _fail(errno.EINVAL)
            self._resize(node, size)

    def fchmod(self, fd: int, mode: int) -> None:
        with self._lock:
            self._enter("fchmod", fd, mode)
            node = self._get(fd).node
            node.meta = Meta(mode & 0o7777, node.meta.uid, node.meta.gid)

    def fchown(self, fd: int, uid: int, gid: int) -> None:
        with self._lock:
            self._enter("fchown", fd, uid, gid)
            node = self._get(fd).node
            node.meta = Meta(node.meta.mode, uid, gid)

    def fstat(self, fd: int) -> FileStat:
        with self._lock:
            self._enter("fstat", fd)
            return _stat(self._get(fd).node)

    def nlink(self, fd: int) -> int:
        with self._lock:
            self._enter("fstat", fd)
            return self._get(fd).node.links

    def stat(self, dirfd: int, name: str) -> FileStat:
        with self._lock:
            self._enter("stat", dirfd, name)
            return _stat(self._child(self._folder(dirfd), name))

    def space(self, fd: int) -> Space:
        self._get(fd)
        return ENDLESS

    def link(self, dirfd: int, src: str, dst: str) -> None:
        with self._lock:
            self._enter("link", dirfd, src, dst)
            folder = self._folder(dirfd)
            node = self._child(folder, src)
            if isinstance(node, DirNode):
                _fail(errno.EPERM, src)
            if _component(dst) in folder.entries:
                _fail(errno.EEXIST, dst)
            if not self.volume.hard_links:
                self.met["links-refused"] += 1
                _fail(errno.EOPNOTSUPP, dst)
            node.links += 1
            folder.change(adds=dst, node=node)
            self._touch(folder)
            if self._reply_is_lost("link"):
                _fail(errno.EEXIST, dst)

    def rename(self, dirfd: int, src: str, dst: str) -> None:
        with self._lock:
            self._enter("rename", dirfd, src, dst)
            folder = self._folder(dirfd)
            node = self._child(folder, src)
            old = folder.entries.get(_component(dst))
            if old is node:
                # Two names of one file: POSIX does nothing, and both stay.
                return
            if isinstance(old, DirNode):
                if not isinstance(node, DirNode):
                    _fail(errno.EISDIR, dst)
                if old.entries:
                    _fail(errno.ENOTEMPTY, dst)
            elif old is not None and isinstance(node, DirNode):
                _fail(errno.ENOTDIR, dst)
            aside = old is not None and self._put_aside(folder, dst, old)
            folder.change(removes=src, adds=dst, node=node)
            self._moved(folder, src, dst)
            self._touch(folder)
            if old is not None and not aside:
                self._unname(old)

    def unlink(self, dirfd: int, name: str) -> None:
        with self._lock:
            self._enter("unlink", dirfd, name)
            folder = self._folder(dirfd)
            node = self._child(folder, name)
            if isinstance(node, DirNode):
                _fail(errno.EISDIR, name)
            if not self._put_aside(folder, name, node):
                folder.change(removes=name)
                self._unname(node)
            self._touch(folder)

    def stop_here(self, name: str, *args: object) -> None:
        """A step of the process that is no storage call, before which it may die or stand still as
        well.
        """
        with self._lock:
            self._enter(name, *args)

    # Within a call

    def _enter(self, name: str, *args: object) -> None:
        if self.dead:
            raise Killed
        number = self.calls = self.calls + 1
        if self.keeps_log:
            self.log.append(" ".join((name, *map(str, args))))
        hook = self.on_call
        if hook is not None:
            try:
                hook(number, name, args)
            except Killed:
                self.dead = True
                raise
        if not self._faults and not self._next_faults:
            return
        code = self._faults.pop(self.calls, None) or self._next_faults.pop(name, None)
        if code is not None:
            self.met[f"{errno.errorcode[code]} {name}"] += 1
            _fail(code, name)

    def _sync(self, name: str, fd: int) -> None:
        with self._lock:
            try:
                self._enter(name, fd)
            except OSError:
                node = self._get(fd).node
                if isinstance(node, FileNode) and node.changes:
                    self.met["sync-dropped"] += 1
                    node.forget()
                raise
            node = self._get(fd).node
            if not self._hand_over(node):
                return
            node.sync()
            if name == "fsync":
                node.durable_meta = node.meta

    def _hand_over(self, node: Node) -> bool:
        """Bring to the volume what this machine alone holds of ``node``.

        Returns whether a sync makes it all durable.

        One machine has one page cache: nothing to bring, and everything goes. Subclasses differ.
        """
        del node
        return True

    def _put_aside(self, folder: DirNode, name: str, node: Node) -> bool:
        """Rename what is about to lose its name instead, if this machine has to.

        Returns whether it was done.

        A file that is open needs no name. Subclasses differ.
        """
        del folder, name, node
        return False

    def _moved(self, folder: DirNode, src: str, dst: str) -> None:
        """What was called ``src`` is now called ``dst``."""

    def _write(self, fd: int, data: bytes, offset: int) -> None:
        node, flags = self._file(fd)
        if flags & _ACCMODE == _RDONLY:
            _fail(errno.EBADF)
        if offset < 0:
            _fail(errno.EINVAL)
        # Linux appends whatever the offset says; code that counts on its offset finds out here.
        at = len(node.data) if flags & os.O_APPEND else offset
        growth = max(0, at + len(data) - len(node.data))
        room = growth if self.volume.space is None else min(growth, max(0, self.volume.space))
        fits = data[: len(data) - (growth - room)] if growth > room else data
        if fits:
            before = len(node.data)
            node.write(fits, at)
            node.by.add(self.machine)
            self.volume.grow(len(node.data) - before)
            node.mtime_ns = self.volume.now_ns()
        if len(fits) < len(data):
            self.met["no-space"] += 1
            _fail(errno.ENOSPC)

    def _resize(self, node: FileNode, size: int) -> None:
        self.volume.grow(size - len(node.data))
        node.truncate(size)
        node.by.add(self.machine)
        node.mtime_ns = self.volume.now_ns()

    def _touch(self, folder: DirNode) -> int:
        folder.mtime_ns = self.volume.now_ns()
        return folder.mtime_ns

    def _unname(self, node: Node) -> None:
        node.links -= 1
        self.volume.release(node)

    def _release(self, handle: _Handle) -> None:
        handle.node.opens -= 1
        self.volume.release(handle.node)

    def _handle(self, node: Node, flags: int) -> int:
        fd = heapq.heappop(self._closed) if self._closed else len(self._handles) + 3
        node.opens += 1
        self._handles[fd] = _Handle(node, flags)
        return fd

    def _get(self, fd: int) -> _Handle:
        handle = self._handles.get(fd)
        if handle is None:
            _fail(errno.EBADF)
        return handle

    def _file(self, fd: int) -> tuple[FileNode, int]:
        handle = self._handles.get(fd) or self._get(fd)
        node = handle.node
        if not isinstance(node, FileNode):
            _fail(errno.EISDIR)
        return node, handle.flags

    def _folder(self, dirfd: int) -> DirNode:
        node = (self._handles.get(dirfd) or self._get(dirfd)).node
        if not isinstance(node, DirNode):
            _fail(errno.ENOTDIR)
        return node

    def _live_folder(self, dirfd: int, name: str) -> DirNode:
        """The directory in which ``name`` is to be made; a removed one takes no new names."""
        folder = self._folder(dirfd)
        _component(name)
        if folder.links == 0:
            _fail(errno.ENOENT, name)
        return folder

    def _child(self, folder: DirNode, name: str) -> Node:
        # A name that is there is one.
        node = folder.entries.get(name) or folder.entries.get(_component(name))
        if node is None:
            _fail(errno.ENOENT, name)
        return node

    def _walk(self, path: str) -> DirNode:
        folder = self.volume.root
        for name in _parts(path):
            node = self._child(folder, name)
            if not isinstance(node, DirNode):
                _fail(errno.ENOTDIR, path)
            folder = node
        return folder


def _fail(code: int, name: str | None = None) -> NoReturn:
    raise OSError(code, os.strerror(code), name)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


@lru_cache(maxsize=65536)
def _mixed(name: str) -> int:
    return zlib.crc32(os.fsencode(name))


@lru_cache(maxsize=65536)
def _component(name: str) -> str:
    """A name for a handle-relative call.

    Anything else is a mistake of the caller that a real disk would let pass.
    """
    if not name or "/" in name or name in {".", ".."}:
        raise ValueError(f"not a single path component: {name!r}")
    if len(os.fsencode(name)) > 255:
        _fail(errno.ENAMETOOLONG, name)
    return name


def _stat(node: Node) -> FileStat:
    meta = node.meta
    if isinstance(node, FileNode):
        size = len(node.data)
        is_dir = False
    else:
        size = 4096
        is_dir = True
    # As the tuple that it is: by name it takes five times as long, and histories ask for nothing
    # as often.
    fields = (
        size,
        meta.mode,
        node.links,
        DEVICE,
        node.ino,
        node.mtime_ns,
        is_dir,
        meta.uid,
        meta.gid,
        not is_dir,
    )
    return tuple.__new__(FileStat, fields)
