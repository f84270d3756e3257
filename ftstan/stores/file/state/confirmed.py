"""``confirmed.bin``: how far a channel was confirmed, for a start that meets damage and for readers
of a live store.

One file in each channel's directory, which the original ignores: two slots of 512 bytes, written in
turn, each with a checksum; the valid one with the higher (epoch, count) counts. It says nothing
that is not true at the moment of a confirm: every message up to ``sequence`` is durable in the log
and ends at ``valid_length`` of slice ``slice_number``. It may be a second late, never early:
nothing but ``ConfirmedFile.replace`` and ``write_all`` writes it, and both confirm by themselves,
after what is said became durable and after the file that is written was opened. Never a proof of
ownership, and never needed to read a channel.

Layout: ``docs/compat/filestore.md`` (side files).
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.base.log import stream as log
from ftstan.stores.file.env import NUMBERS_PER_EPOCH, FileEnv
from ftstan.stores.file.log.view import show
from ftstan.stores.file.regular import open_file
from ftstan.stores.file.state.statefile import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ftstan.base.disk import Disk
    from ftstan.stores.file.log.slices import SliceLog

NAME = "confirmed.bin"

_SLOT_SIZE = 512
_MAGIC = b"FTSTCNF1"
# epoch, count, slice, sequence, valid length, last sequence, flags
_BODY = struct.Struct("<QQqQQQI")
_CRC = struct.Struct("<I")
#: Behind the body, with a checksum of its own: earlier releases do not read it.
_FLOOR = struct.Struct("<QI")
_UNSYNCED = 1
_REPLAYED = 2

#: Channels whose file is open at the same time while a second's worth of them is written.
_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What one activation knows of a channel.

    ``last`` is the channel's last sequence: at or above ``sequence``, higher where messages were
    found missing at the end, whose numbers are not given out again. ``synced`` is false if the
    server ran without syncs: then a power cut may have taken back what is said here. ``replayed``:
    what lies behind it comes again from elsewhere. ``floor``: the files begin with this sequence or
    a lower one; 0 if nobody says.
    """

    epoch: int
    slice_number: int
    sequence: int
    valid_length: int
    last: int
    synced: bool = True
    replayed: bool = False
    floor: int = 0

    def says(self, other: Confirmed) -> bool:
        """Whether both say the same of the log, whoever wrote them."""
        return (self.slice_number, self.sequence, self.valid_length, self.last, self.floor) == (
            other.slice_number,
            other.sequence,
            other.valid_length,
            other.last,
            other.floor,
        )


def encode(confirmed: Confirmed, count: int) -> bytes:
    """One slot; ``count`` rises with every write of an activation."""
    body = _BODY.pack(
        confirmed.epoch,
        count,
        confirmed.slice_number,
        confirmed.sequence,
        confirmed.valid_length,
        confirmed.last,
        (0 if confirmed.synced else _UNSYNCED) | (_REPLAYED if confirmed.replayed else 0),
    )
    slot = _MAGIC + _CRC.pack(zlib.crc32(body)) + body
    if confirmed.floor:
        slot += _FLOOR.pack(confirmed.floor, zlib.crc32(b"%d" % confirmed.floor, zlib.crc32(body)))
    return slot.ljust(_SLOT_SIZE, b"\0")


def decode(data: bytes) -> Confirmed | None:
    """What a file of these bytes says; ``None`` if no slot is valid."""
    found: list[tuple[int, int, Confirmed]] = []
    for slot in (data[:_SLOT_SIZE], data[_SLOT_SIZE : 2 * _SLOT_SIZE]):
        start = len(_MAGIC) + _CRC.size
        body = slot[start : start + _BODY.size]
        if len(body) < _BODY.size or not slot.startswith(_MAGIC):
            continue
        if _CRC.unpack_from(slot, len(_MAGIC))[0] != zlib.crc32(body):
            continue
        epoch, count, number, sequence, length, last, flags = _BODY.unpack(body)
        confirmed = Confirmed(
            *(epoch, number, sequence, length, last),
            synced=not flags & _UNSYNCED,
            replayed=bool(flags & _REPLAYED),
            floor=_floor(slot[start + _BODY.size :], body),
        )
        found.append((epoch, count, confirmed))
    return max(found, key=lambda item: item[:2])[2] if found else None


def _floor(rest: bytes, body: bytes) -> int:
    if len(rest) < _FLOOR.size:
        return 0
    floor: int
    floor, check = _FLOOR.unpack_from(rest)
    return floor if check == zlib.crc32(b"%d" % floor, zlib.crc32(body)) else 0


def read_confirmed(disk: Disk, dirfd: int) -> Confirmed | None:
    """What stands in the channel directory ``dirfd``.

    ``None`` if there is no such file, or nothing valid in it.

    Safe beside a writer: one of the two slots is always whole. ``OSError`` passes through.
    """
    try:
        fd = open_file(disk, dirfd, NAME)
    except FileNotFoundError:
        return None
    try:
        return decode(disk.pread(fd, 2 * _SLOT_SIZE, 0))
    finally:
        disk.close(fd)


def epoch_of(env: FileEnv) -> int:
    """The number of the activation that ``env`` belongs to."""
    return env.owner.slice_base // NUMBERS_PER_EPOCH + 1


class ConfirmedFile:
    """One channel's file, as its owner keeps it."""

    def __init__(self, env: FileEnv) -> None:
        self._env = env
        self._replaced = False
        self._count = 0
        self._complaint = ""
        self.written: Confirmed | None = None
        """What was written last in this activation, or found and agreed with."""

    def replace(self, dirfd: int, confirmed: Confirmed) -> None:
        """Put a new file in place of whatever is there: a former owner's late write then goes to a
        dead inode.

        Raises ``OSError`` and ``FencedError``.
        """
        self._count += 1
        slot = encode(confirmed, self._count)
        self._env.disk.close(replace_file(self._env, dirfd, NAME, slot + slot))
        self._replaced = True
        self.written = confirmed

    def write(self, fd: int, confirmed: Confirmed) -> None:
        """Write the older slot of the file ``fd``, which was opened before the last confirm, and
        close it.

        For ``write_all`` alone. Raises ``OSError``; a slot may be torn then, and a new file comes
        next.
        """
        count = self._count + 1
        self._replaced = False
        try:
            self._env.disk.pwrite(fd, encode(confirmed, count), count % 2 * _SLOT_SIZE)
            if confirmed.replayed:
                # The next start goes back to it, and what was before comes from nowhere again.
                self._env.disk.fdatasync(fd)
        finally:
            # A network file system may refuse only now what was written.
            self._env.disk.close(fd)
        self._replaced = True
        self._count = count
        self.written = confirmed

    @contextlib.contextmanager
    def told_once(self, slog: SliceLog) -> Iterator[None]:
        """Turn what storage refuses into one line, until it is something else."""
        try:
            yield
        except OSError as error:
            if self._env.options.replayed:
                raise
            text = (
                f'channel "{show(slog.name)}": {NAME} cannot be written: {error.strerror or error}'
            )
            if text != self._complaint:
                self._complaint = text
                log.warning(f"{text}; readers of the live store stop where it says")
        else:
            self._complaint = ""

    @property
    def replaced(self) -> bool:
        """Whether the file at the path is one that this activation made."""
        return self._replaced


def write_all(env: FileEnv, items: Iterable[tuple[ConfirmedFile, SliceLog, Confirmed]]) -> None:
    """Write ``(file, log, what is true)`` of many channels: a few confirms for all of them.

    What each says must have been durable before this call. A file that storage refuses is passed
    over, told once, and is due again next time: nothing that was acknowledged depends on it; but
    where the store is replayed, ``OSError`` passes, since the next start goes back to what stands
    there. Raises ``FencedError``.
    """
    pending = list(items)
    for start in range(0, len(pending), _AT_ONCE):
        opened: list[tuple[int, ConfirmedFile, SliceLog, Confirmed]] = []
        try:
            for file, slog, confirmed in pending[start : start + _AT_ONCE]:
                with file.told_once(slog):
                    fd = _open(env.disk, slog.dirfd) if file.replaced else -1
                    if fd >= 0:
                        opened.append((fd, file, slog, confirmed))
                    else:
                        file.replace(slog.dirfd, confirmed)
            if opened:
                # After the opens: so these inodes were ours, and what is written to them was true.
                env.owner.confirm()
            while opened:
                fd, file, slog, confirmed = opened.pop(0)
                with file.told_once(slog):
                    file.write(fd, confirmed)
        finally:
            for fd, _, _, _ in opened:
                with contextlib.suppress(OSError):
                    env.disk.close(fd)


def _open(disk: Disk, dirfd: int) -> int:
    """The file, open for writing; -1 if somebody has removed it."""
    try:
        return open_file(disk, dirfd, NAME, os.O_WRONLY)
    except FileNotFoundError:
        return -1
