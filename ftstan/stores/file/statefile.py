"""State files: ``clients.dat``, a channel's ``subs.dat`` and ``server.dat``.

Before the first write of an activation a state file is replaced as a whole (temporary name, sync, confirm, rename,
directory sync), so that a former owner's descriptors and unwritten pages point at a dead inode. After that, records
are appended at explicit offsets. A state file whose write or sync failed is not used again.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from ftstan.errors import FencedError, RecoveryError, StoreError
from ftstan.stores.file import records
from ftstan.stores.file.env import TEMPORARY, FileEnv, is_full

if TYPE_CHECKING:
    from collections.abc import Callable


class StateFileError(StoreError):
    """A state file failed after its first write in this activation: only a start that reads it afresh can go on."""


def replace_file(env: FileEnv, dirfd: int, name: str, data: bytes) -> int:
    """Put a new file in the place of ``name``, durable before it is visible; returns its descriptor, open for writing.

    Owner and permissions of the file that was there are kept.
    """
    disk = env.disk
    temporary = f"{TEMPORARY}{env.owner.slice_base}.{name}"
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(dirfd, temporary)
    fd = disk.open(dirfd, temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        with contextlib.suppress(FileNotFoundError):
            old = disk.stat(dirfd, name)
            new = disk.fstat(fd)
            if new.mode != old.mode:
                disk.fchmod(fd, old.mode)
            if (new.uid, new.gid) != (old.uid, old.gid):
                with contextlib.suppress(PermissionError):
                    disk.fchown(fd, old.uid, old.gid)
        disk.pwrite(fd, data, 0)
        disk.fsync(fd)
        env.owner.confirm()
        disk.rename(dirfd, temporary, name)
        disk.fsync(dirfd)
    except FencedError:
        disk.close(fd)
        raise
    except BaseException:
        disk.close(fd)
        with contextlib.suppress(OSError):
            disk.unlink(dirfd, temporary)
        raise
    return fd


class StateFile:
    """An append-only file of typed records, replaced at its first use."""

    def __init__(self, env: FileEnv, dirfd: int, name: str, snapshot: Callable[[], bytes]) -> None:
        """``snapshot`` gives the records of the whole present state, without the version; called until it is stored."""
        self._env = env
        self._dirfd = dirfd
        self._name = name
        self._snapshot = snapshot
        self._fd = -1
        self._end = 0
        self.dirty = False

    @property
    def replaced(self) -> bool:
        """Whether the file has been replaced in this activation."""
        return self._fd >= 0

    def append(self, data: bytes) -> int | None:
        """Write records; returns the descriptor to sync, or ``None`` if they are durable already.

        After an ``OSError`` nothing was written and the call can be repeated; after a ``StateFileError`` it can not.
        """
        if self._fd < 0:
            whole = records.VERSION + self._snapshot() + data
            self._fd = replace_file(self._env, self._dirfd, self._name, whole)
            self._end = len(whole)
            return None
        try:
            self._env.disk.pwrite(self._fd, data, self._end)
        except OSError as error:
            if not is_full(error):
                raise StateFileError(f"{self._name}: {error.strerror or error}", hint="check the storage") from error
            # Half a record must not stay behind a shorter one that is written over it.
            self._env.disk.ftruncate(self._fd, self._end)
            raise
        self._end += len(data)
        self.dirty = True
        return self._fd

    def sync(self) -> None:
        """Make everything written durable."""
        if self.dirty:
            if self._env.options.sync:
                self._env.disk.fdatasync(self._fd)
            self.dirty = False

    def close(self) -> None:
        """Release the handle."""
        if self._fd >= 0:
            self._env.disk.close(self._fd)
            self._fd = -1


def read_file(env: FileEnv, dirfd: int, name: str) -> bytes | None:
    """The whole file, or ``None`` if it is absent."""
    disk = env.disk
    try:
        fd = disk.open(dirfd, name, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        parts = []
        offset = 0
        while chunk := disk.pread(fd, 8 << 20, offset):
            parts.append(chunk)
            offset += len(chunk)
        return b"".join(parts)
    finally:
        disk.close(fd)


def check_version(data: bytes) -> str:
    """What is wrong with the first four bytes of a file, in the original's words; empty if nothing."""
    if not data:
        return "unable to verify file version: EOF"
    if len(data) < records.VERSION_SIZE:
        return "unable to verify file version: unexpected EOF"
    version = int.from_bytes(data[:4], "little")
    if version != 1:
        return f"unsupported file version: {version} (supports [1..1])"
    return ""


def read_typed(env: FileEnv, dirfd: int, name: str, shown: str) -> tuple[list[tuple[int, bytes]], str]:
    """Records of a typed state file and what follows them (``""``, ``torn`` or ``zeros``).

    A file of up to three bytes counts as absent: its creation was cut short before anything was stored in it. Raises
    ``RecoveryError`` for damage before the end.
    """
    data = read_file(env, dirfd, name)
    if data is None or len(data) < records.VERSION_SIZE:
        return [], ""
    wrong = check_version(data)
    if wrong:
        raise RecoveryError(f'"{shown}": {wrong}', hint="run: ftstanctl store verify")
    rows, end, why = records.scan_typed(data[records.VERSION_SIZE :], env.crc, env.options.check_crc)
    if why.startswith("bad"):
        raise RecoveryError(
            f'"{shown}": {why.removeprefix("bad: ")} at offset {end + records.VERSION_SIZE} (record {len(rows) + 1})',
            hint="run: ftstanctl store verify",
        )
    return rows, why
