"""State files: ``clients.dat``, a channel's ``subs.dat`` and ``server.dat``.

Before the first write of an activation a state file is replaced as a whole (temporary name, sync,
confirm, rename, directory sync), so that a former owner's descriptors and unwritten pages point at
a dead inode. After that, records are appended at explicit offsets. A state file whose write or sync
failed is not used again: it is replaced, too, when storage only had no space, and any other error
ends the process.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ftstan.base.errors import FencedError, StoreError
from ftstan.stores.file.env import FileEnv, is_full
from ftstan.stores.file.log import records
from ftstan.stores.file.log.view import store_error
from ftstan.stores.file.regular import open_file
from ftstan.stores.file.retry_backoff import RetryBackoff
from ftstan.stores.file.stretch import GrownError, read_stretch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ftstan.base.disk import Disk

    #: Does some work with each of many files, perhaps with several at once; returns after the last
    #: one.
    Each = Callable[[Callable[["Replacement"], None], Sequence["Replacement"]], None]


class StateFileError(StoreError):
    """A state file failed after its first write in this activation: only a start that reads it
    afresh can go on.
    """


#: So many bytes tell whether a file has more than a version.
HEAD_SIZE = records.VERSION_SIZE + 1


@dataclass(slots=True)
class Replacement:
    """A new file to put in the place of ``name``.

    In the end ``fd`` is open for writing, or ``error`` says why not.
    """

    dirfd: int
    name: str
    data: bytes
    temporary: str = ""
    fd: int = -1
    error: OSError | None = None


def one_by_one(work: Callable[[Replacement], None], items: Sequence[Replacement]) -> None:
    """Do ``work`` with each of them."""
    for item in items:
        work(item)


def replace_file(env: FileEnv, dirfd: int, name: str, data: bytes) -> int:
    """Put a new file in the place of ``name``, durable before it is visible.

    Returns its descriptor, open for writing.

    Owner and permissions of the file that was there are kept.
    """
    item = Replacement(dirfd, name, data)
    replace_all(env, [item])
    if item.error is not None:
        raise item.error
    return item.fd


def replace_all(env: FileEnv, items: Sequence[Replacement], each: Each = one_by_one) -> None:
    """Replace many files as ``replace_file`` does; one confirm is for all of them.

    ``each`` may work at several files at once, and returns after the last one. What storage refuses
    concerns that file only. Raises ``FencedError``: no name has changed then, and nothing of ours
    was removed.
    """
    each(partial(_prepare, env), items)
    ready = [item for item in items if item.error is None]
    if not ready:
        return
    try:
        # Begins after the last sync, and every rename comes after it.
        env.owner.confirm()
    except FencedError:
        for item in ready:
            env.disk.close(item.fd)
        raise
    except OSError as error:
        for item in ready:
            _refuse(env, item, error)
        return
    each(partial(_publish, env), ready)


def _prepare(env: FileEnv, item: Replacement) -> None:
    """Write the whole file under a temporary name, and make it durable."""
    disk = env.disk
    item.temporary = env.temporary(item.name)
    try:
        item.fd = _create(disk, item.dirfd, item.temporary)
        with contextlib.suppress(FileNotFoundError):
            old = disk.stat(item.dirfd, item.name)
            new = disk.fstat(item.fd)
            if new.mode != old.mode:
                disk.fchmod(item.fd, old.mode)
            if (new.uid, new.gid) != (old.uid, old.gid):
                with contextlib.suppress(PermissionError):
                    disk.fchown(item.fd, old.uid, old.gid)
        disk.pwrite(item.fd, item.data, 0)
        disk.fsync(item.fd)
    except OSError as error:
        _refuse(env, item, error)


def _create(disk: Disk, dirfd: int, temporary: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    try:
        return disk.open(dirfd, temporary, flags)
    except FileExistsError:
        # Of an earlier attempt of ours, which storage let nobody remove.
        disk.unlink(dirfd, temporary)
        return disk.open(dirfd, temporary, flags)


def _publish(env: FileEnv, item: Replacement) -> None:
    """Give the confirmed file its name."""
    try:
        env.disk.rename(item.dirfd, item.temporary, item.name)
        env.disk.fsync(item.dirfd)
    except OSError as error:
        _refuse(env, item, error)


def _refuse(env: FileEnv, item: Replacement, error: OSError) -> None:
    item.error = error
    if item.fd >= 0:
        env.disk.close(item.fd)
        with contextlib.suppress(OSError):
            env.disk.unlink(item.dirfd, item.temporary)


class StateFile:
    """An append-only file of typed records, replaced at its first use and whenever its content can
    not be trusted.
    """

    def __init__(
        self,
        env: FileEnv,
        directory: Callable[[], int],
        name: str,
        snapshot: Callable[[], bytes],
        channel: bytes = b"",
    ) -> None:
        """``snapshot`` gives the records of the whole present state, without the version."""
        self._env = env
        self._directory = directory
        self._name = name
        self._snapshot = snapshot
        self._unit = (channel, name)
        self._fd = -1
        self._end = 0
        self._patience = RetryBackoff(env.clock)
        self.replaced = False
        """Whether the file is one of this activation that holds what it should."""
        self.dirty = False

    @property
    def size(self) -> int:
        """Bytes of records."""
        return max(self._end - records.VERSION_SIZE, 0)

    def append(self, data: bytes) -> int | None:
        """Write records; returns the descriptor to sync, or ``None`` if they are durable already.

        After an ``OSError`` or a ``StoreError`` the file is replaced before anything else is
        written, from the state as it is then. Raises ``StateFileError`` when the process cannot go
        on.
        """
        if not self.replaced:
            self.replace(data)
            return None
        try:
            fd = self._open()
            self._env.disk.pwrite(fd, data, self._end)
        except OSError as error:
            self.distrust()
            if is_full(error):
                raise
            raise StateFileError(
                f"{self._name}: {error.strerror or error}", hint="check the storage"
            ) from error
        self._end += len(data)
        self.dirty = True
        return fd

    def replace(self, data: bytes = b"", *, keep: bool = False) -> None:
        """Put the present state and ``data`` behind it in the place of the file, durable on return.

        ``keep``: if that cannot be done, go on with the old file where possible. Raises
        ``OSError``, or ``StoreError`` when it is too early to try again.
        """
        made = self.prepare(data)
        replace_all(self._env, [made])
        self.adopt(made, keep=keep)

    def prepare(self, data: bytes = b"") -> Replacement:
        """What ``replace_all`` is to put in the place of the file; ``adopt`` comes next.

        Raises as ``replace`` does.
        """
        self._patience.check()
        whole = records.VERSION + self._snapshot() + data
        if self._env.is_remembered:
            # NFS gives a file that is open while another takes its place a name of its own, for
            # ever if we die.
            self._park_durable()
        try:
            return Replacement(self._directory(), self._name, whole)
        except OSError as error:
            self._refused(error)
            raise

    def adopt(self, made: Replacement, *, keep: bool = False) -> None:
        """Go on with the file that was made. Raises the ``OSError`` of one that was not."""
        if made.error is not None:
            self._refused(made.error, keep=keep)
            raise made.error
        self.park()
        self._patience.granted()
        self._fd = self._env.files.opened(made.fd)
        self._env.files.used(self._unit, self.park)
        self._end = len(made.data)
        self.replaced = True
        self.dirty = False
        self._env.places.put(self._unit, lambda: self._env.disk.fstat(made.fd))

    def _refused(self, error: OSError, *, keep: bool = False) -> None:
        self._patience.refused(store_error(error, self._name))
        if not (keep and self._is_in_place()):
            self.distrust()

    def _park_durable(self) -> None:
        """Close the file such that one may go on with it: nobody hears of what a close cannot
        write.
        """
        if self.dirty:
            with contextlib.suppress(OSError):
                # What it fails for is in the snapshot, too, and the file is not trusted any more.
                self.sync()
        self.park()

    def _is_in_place(self) -> bool:
        """Whether the file that we write to is the one of that name: only the sync of a new name
        may have failed.
        """
        try:
            return (
                self.replaced
                and self._env.places.inode(self._unit) is not None
                and not self.is_displaced()
            )
        except OSError:
            return False

    def is_displaced(self) -> bool:
        """Whether another file, or none, stands under the name of ours. Raises ``OSError``."""
        ino = self._env.places.inode(self._unit)
        if ino is None:
            return False
        try:
            return self._env.disk.stat(self._directory(), self._name).ino != ino
        except FileNotFoundError:
            return True

    def distrust(self) -> None:
        """What the file holds is not known, or not wanted: it is never written or synced again."""
        self._env.places.drop(self._unit)
        self.park()
        self.replaced = False
        self.dirty = False

    def _open(self) -> int:
        if self._fd < 0:
            self._fd = self._env.files.opened(
                open_file(self._env.disk, self._directory(), self._name, os.O_RDWR)
            )
            # Opened by its path: only now is it known that it was ours.
            self._env.owner.confirm()
        self._env.files.used(self._unit, self.park)
        return self._fd

    def unsynced(self) -> int | None:
        """The descriptor, if what was written may not be durable; ``synced`` comes next."""
        return self._open() if self.dirty else None

    def synced(self) -> None:
        """The descriptor that ``unsynced`` or ``append`` named has been synced."""
        self.dirty = False

    def sync(self) -> None:
        """Make everything written durable.

        Raises ``OSError``; the file is not to be trusted then.
        """
        fd = self.unsynced()
        if fd is not None:
            try:
                self._env.disk.fdatasync(fd)
            except OSError:
                self.distrust()
                raise
            self.dirty = False

    def park(self) -> None:
        """Close the file; it is opened again when it is needed."""
        self._env.files.unused(self._unit)
        if self._fd >= 0:
            fd = self._fd
            self._fd = -1
            self._env.files.close(fd)


class Seen(NamedTuple):
    """How far a file had come when it was looked at."""

    ino: int
    size: int


def look_at(env: FileEnv, dirfd: int, name: str) -> Seen:
    """How far the file has come, as storage has it. ``OSError`` passes through."""
    fd = open_file(env.fresh, dirfd, name)
    try:
        return Seen(env.fresh.fstat(fd).ino, env.size(fd))
    finally:
        env.fresh.close(fd)


def read_file(env: FileEnv, dirfd: int, name: str, seen: Seen | None = None) -> bytes | None:
    """The whole file, or ``None`` if it is absent.

    Of the one that was ``seen`` what it held then.
    """
    return read_whole(env.fresh, dirfd, name, seen)


def read_whole(disk: Disk, dirfd: int, name: str, seen: Seen | None = None) -> bytes | None:
    """The whole file, or ``None`` if it is absent.

    Of the one that was ``seen`` what it held then. Raises ``GrownError`` for one with data behind
    more zeros than any record holds; at its end they are left out. ``OSError`` passes through.
    """
    try:
        fd = open_file(disk, dirfd, name)
    except FileNotFoundError:
        return None
    try:
        found = read_stretch(disk, fd, 0)
        if found.resumes:
            raise GrownError(found.words, name)
        data = found.data
        return data if seen is None or disk.fstat(fd).ino != seen.ino else data[: seen.size]
    finally:
        disk.close(fd)


def is_unfilled(data: bytes) -> bool:
    """Whether these bytes are all of a file in which nothing was ever stored: its creation was cut
    short, or an original server had not synced it and only its size has arrived.
    """
    return len(data) < records.VERSION_SIZE or data == bytes(records.VERSION_SIZE)


def check_version(data: bytes) -> str:
    """What is wrong with the first four bytes of a file, in the original's words.

    Empty if nothing.
    """
    if not data:
        return "unable to verify file version: EOF"
    if len(data) < records.VERSION_SIZE:
        return "unable to verify file version: unexpected EOF"
    version = int.from_bytes(data[:4], "little")
    if version != 1:
        return f"unsupported file version: {version} (supports [1..1])"
    return ""
