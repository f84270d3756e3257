"""``ckpt.bin``: what the channels held at a clean stop, so that the next start need not read them.

One checksummed file in the datastore's root, which the original ignores. It counts for the
activation directly after the one that wrote it and for no other, and in it for a channel whose
files are all the ones that were there: same names, sizes, times of change and inodes. Everything
else is read as if there were no checkpoint. It is written last, after everything that it speaks of
is durable, and never changed.

Layout: ``docs/compat/filestore.md`` (side files).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ftstan.stores.file.log import moved_mark, purge_mark, records
from ftstan.stores.file.log.view import Slice, dat_name, idx_name
from ftstan.stores.file.regular import IrregularError, open_file
from ftstan.stores.file.state import state_records
from ftstan.stores.file.state.confirmed import NAME as CONFIRMED
from ftstan.stores.file.state.state_recovery import read_subs
from ftstan.stores.file.state.statefile import read_file, read_whole, replace_file
from ftstan.stores.file.stretch import GrownError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ftstan.base.disk import Disk
    from ftstan.stores.file.env import FileEnv
    from ftstan.stores.file.log.slices import SliceLog

NAME = "ckpt.bin"

_MAGIC = b"FTSTCKP2"
# CRC-32 of all that follows it, epoch, nonce
_HEAD = struct.Struct("<IQ16s")
_CRC_SIZE = 4
_INDEX = re.compile(r"msgs\.(0|-?[1-9][0-9]*)\.idx\Z")

#: Size, time of change in nanoseconds, inode.
FileId = tuple[int, int, int]
Files = dict[str, FileId]


@dataclass(frozen=True, slots=True)
class Entry:
    """One channel. ``subs``: records that replay to its subscriptions.

    ``highest``: the highest slice number seen.
    """

    files: Files
    slices: tuple[tuple[int, int, int, int, int, int, int, bool], ...]
    highest: int
    last: int
    subs: bytes

    def encoded(self) -> bytes:
        """One line of JSON."""
        row = {
            "files": self.files,
            "slices": self.slices,
            "highest": self.highest,
            "last": self.last,
            "subs": base64.b64encode(self.subs).decode(),
        }
        return json.dumps(row, separators=(",", ":")).encode()

    @classmethod
    def decoded(cls, line: bytes) -> Entry:
        """What ``encoded`` made."""
        row: dict[str, Any] = json.loads(line)
        return cls(
            files={file: (size, mtime, ino) for file, (size, mtime, ino) in row["files"].items()},
            slices=tuple(tuple(s) for s in row["slices"]),
            highest=row["highest"],
            last=row["last"],
            subs=base64.b64decode(row["subs"]),
        )

    def adopt(self, slog: SliceLog) -> None:
        """Give the slices to a log."""
        slog.adopt([Slice(*row) for row in self.slices], set(), self.highest, durable=True)
        if self.last > slog.last:
            slog.last = self.last
            if not slog.count:
                slog.first = self.last + 1


def is_bound(name: str, *, is_dir: bool = False) -> bool:
    """Whether a file of a channel's directory is one that a checkpoint speaks of.

    ``is_dir``: whether a directory of that name is in the way of such a file. One with the name of
    a slice's data is not, as long as there is no index.
    """
    if is_dir and name.startswith("msgs."):
        return _INDEX.match(name) is not None
    return name in ("subs.dat", CONFIRMED, purge_mark.NAME, moved_mark.NAME) or (
        name.startswith("msgs.") and name.endswith((".dat", ".idx"))
    )


def files_of(env: FileEnv, dirfd: int, names: Iterable[tuple[str, bool]]) -> Files:
    """The files among ``names`` that a checkpoint speaks of.

    ``IrregularError`` and ``OSError`` pass through.
    """
    found: Files = {}
    for name, is_dir in names:
        if is_bound(name, is_dir=is_dir):
            found[name] = _id_of(env, dirfd, name)
    return found


def _id_of(env: FileEnv, dirfd: int, name: str) -> FileId:
    """Size, time of change and inode of a file as storage has them: opened, not asked by name."""
    if env.is_remembered:
        # Even an open may be answered by a host that does not know yet what it has lost. A read is
        # not; the open that follows it asks storage.
        fd = open_file(env.fresh, dirfd, name)
        try:
            env.fresh.pread(fd, 1, 0)
        finally:
            env.fresh.close(fd)
    fd = open_file(env.fresh, dirfd, name)
    try:
        s = env.fresh.fstat(fd)
        return env.size(fd), s.mtime_ns, s.ino
    finally:
        env.fresh.close(fd)


def is_as_left(env: FileEnv, dirfd: int, names: Iterable[tuple[str, bool]], known: Entry) -> bool:
    """Whether a channel's files are those that a checkpoint speaks of, and nothing else has their
    names.

    ``OSError`` passes through.
    """
    try:
        return files_of(env, dirfd, names) == known.files
    except IrregularError:
        return False


def entry_of(env: FileEnv, slog: SliceLog) -> Entry | None:
    """What to write for a channel that is closed and durable.

    ``None``: its files do not say all of it.

    ``OSError`` passes through.
    """
    files = files_of(env, slog.dirfd, env.disk.listdir(slog.dirfd))
    listed = {dat_name(s.number) for s in slog.slices} | {idx_name(s.number) for s in slog.slices}
    if slog.unsure or listed != {name for name in files if name.startswith("msgs.")}:
        return None
    for s in slog.slices:
        index_size = records.VERSION_SIZE + s.entries * records.INDEX_SIZE
        if (files[dat_name(s.number)][0], files[idx_name(s.number)][0]) != (s.end, index_size):
            return None
    found = read_subs(env, slog.name, slog.dirfd)
    if found.cut or found.damage or found.wrong:
        return None
    rows = tuple(
        (s.number, s.first, s.last, s.first_ts, s.last_ts, s.entries, s.end, s.contiguous)
        for s in slog.slices
    )
    highest = max([0, *(s.number for s in slog.slices)])
    subs = state_records.snapshot_subs(found.subs, found.highest, env.crc)
    return Entry(files, rows, highest, slog.last, subs)


def save(env: FileEnv, entries: dict[bytes, Entry], damaged: Iterable[bytes] = ()) -> None:
    """Write the checkpoint of this activation. Raises ``OSError`` and ``FencedError``.

    ``damaged``: channels that it knows, and must be read.
    """
    if NAME in env.occupied:
        return
    epoch, nonce = env.owner.identity
    body = b"".join(_key(name) + b"\t" + entry.encoded() + b"\n" for name, entry in entries.items())
    # Before the tab is no name: earlier releases pass over the line.
    body += b"".join(_damaged_key(name) + b"\t\n" for name in damaged)
    head = _HEAD.pack(0, epoch, nonce)[_CRC_SIZE:]
    crc = zlib.crc32(body, zlib.crc32(head))
    env.disk.close(
        replace_file(env, env.root, NAME, _MAGIC + crc.to_bytes(_CRC_SIZE, "little") + head + body)
    )


class Checkpoint:
    """The entries of a checkpoint.

    Each is decoded when it is asked for, so that a start need not wait for all.
    """

    def __init__(self, lines: dict[bytes, bytes] | None = None) -> None:
        """``lines``: ``None`` where there is no checkpoint that counts."""
        self._lines = lines or {}
        self._counts = lines is not None

    def __contains__(self, name: bytes) -> bool:
        return _key(name) in self._lines

    def leaves_out(self, name: bytes) -> bool:
        """Whether it counts and does not know a channel: that may have been made since."""
        return self._counts and name not in self and _damaged_key(name) not in self._lines

    def get(self, name: bytes) -> Entry | None:
        """What it says about a channel."""
        line = self._lines.get(_key(name))
        return Entry.decoded(line) if line is not None else None


def load(env: FileEnv) -> Checkpoint:
    """What the activation directly before this one left; empty if it left nothing.

    ``OSError`` passes through.
    """
    data = None
    if NAME not in env.occupied:
        # One that has grown has another checksum, whatever stands in it.
        with contextlib.suppress(GrownError):
            data = read_file(env, env.root, NAME)
    return _written_by(env.owner.predecessor, data)


def read_left(disk: Disk, root: int, activation: tuple[int, bytes]) -> Checkpoint:
    """What the activation of this epoch and nonce left, for somebody who owns nothing; empty if it
    left nothing.

    ``OSError`` passes through.
    """
    try:
        return _written_by(activation, read_whole(disk, root, NAME))
    except (GrownError, IrregularError):
        return Checkpoint()


def _written_by(activation: tuple[int, bytes], data: bytes | None) -> Checkpoint:
    start = len(_MAGIC) + _HEAD.size
    if data is None or len(data) < start or not data.startswith(_MAGIC):
        return Checkpoint()
    crc, epoch, nonce = _HEAD.unpack_from(data, len(_MAGIC))
    before, its_nonce = activation
    if (epoch, nonce) != (before, its_nonce.ljust(16, b"\0")) or not epoch:
        return Checkpoint()
    if zlib.crc32(memoryview(data)[len(_MAGIC) + _CRC_SIZE :]) != crc:
        return Checkpoint()
    rows = (line.partition(b"\t") for line in data[start:].splitlines())
    return Checkpoint({key: line for key, _, line in rows})


def _key(name: bytes) -> bytes:
    """A channel's name as the file has it: without tabs and line ends, whatever the name is."""
    return json.dumps(os.fsdecode(name)).encode()


def _damaged_key(name: bytes) -> bytes:
    """What the file has in the place of the name of a channel that was left quarantined."""
    return b"damaged " + _key(name)
