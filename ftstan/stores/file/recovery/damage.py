"""Bad records: which may be cut because nobody can have been promised them, how they are cut, and
what the log says.

Cut is only what ends a file: a record that the end of the file tears, that nothing whole follows,
or that has a hole of zeros where a page never arrived. The caller has already made sure that
nothing of it is at or below what was confirmed. What is cut is saved in a file of its own first,
under a name that neither server reads. Nothing here judges a channel, and nothing here ever makes a
file longer.

A file that a former owner of ours may have open is never cut in place. It may finish its batch
while this start stands still before the cut, and a later owner believe that; or name in its index,
when it wakes up, what was cut. Such a slice is read around and then ended by another one, a state
file is replaced.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.base.log import stream as log
from ftstan.stores.file.env import is_full
from ftstan.stores.file.log import records
from ftstan.stores.file.regular import IrregularError, open_file
from ftstan.stores.file.state.confirmed import epoch_of
from ftstan.stores.file.stretch import is_blank

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.stores.file.env import FileEnv

#: Names of what was cut: ``cut.<epoch>.<file>.<offset>``.
SAVED = "cut."

#: Why a whole record of another channel ends the records of a slice.
FOREIGN = "bad: record of another channel"

_SECTOR = 512
_DUMPED = 400
_PER_LINE = 20
_WORDS = {"torn": "unexpected EOF", "zeros": "end of file padded with zeros"}


@dataclass(frozen=True, slots=True)
class Bad:
    """What ends the whole records of one file.

    ``shown``: the file as logs name it, relative to the datastore; ``offset`` in the file; ``why``
    as the scans of ``records`` say it; ``rest``: the file from ``offset`` on; ``following``: where
    in it the next whole record begins, -1 if none does. ``is_between``: that is right behind this
    one, and an index names this one, where files have an index.
    """

    shown: str
    offset: int
    why: str
    rest: bytes
    following: int = -1
    is_between: bool = False
    typed: bool = False

    @property
    def words(self) -> str:
        """What is wrong, in the original's words."""
        return _WORDS.get(self.why, self.why.removeprefix("bad: "))

    @property
    def size(self) -> int:
        """Bytes of the record with its header, as its header claims; 0 if there is no header."""
        if len(self.rest) < records.HEADER_SIZE:
            return 0
        size = int.from_bytes(self.rest[:4], "little")
        return records.HEADER_SIZE + (size & records.MAX_TYPED if self.typed else size)

    @property
    def unpromised(self) -> bool:
        """Whether these bytes cannot have been acknowledged, if nothing that was confirmed is among
        them.
        """
        if self.why == FOREIGN:
            # A whole record with a right checksum, of another channel: somebody put it there.
            return False
        if self.following < 0:
            return True
        # Zeros within a payload may be the message's own.
        return self._begins_with_hole() or (not self.is_between and self._has_hole())

    def _begins_with_hole(self) -> bool:
        """Whether zeros go from the start of the record to a 512-byte boundary.

        That, and the same from one boundary to the next, is what a page looks like that never
        reached the disk; its batch was never synced as a whole.
        """
        return not any(self.rest[: -self.offset % _SECTOR or _SECTOR])

    def _has_hole(self) -> bool:
        """Whether there are zeros from one 512-byte boundary to the next, before the next whole
        record.
        """
        at = -self.offset % _SECTOR or _SECTOR
        while at < min(self.size, self.following):
            if not any(self.rest[at : at + _SECTOR]):
                return True
            at += _SECTOR
        return False


def report(env: FileEnv, bad: Bad, *, cut: bool) -> None:
    """Write the block of lines that the original writes about a bad record.

    ``cut`` says what becomes of it.
    """
    path = env.shown(bad.shown)
    torn = bad.why == "torn"
    if torn:
        log.error(f'Unexpected EOF for file "{path}"')
        if not cut:
            log.error(f'Before anything else, copy the datastore "{env.shown("")}"')
            log.error(
                "A start with -file_truncate_bad_eof (ContinueOnUnexpectedEOF) cuts the file to "
                "this offset: "
                f"{bad.offset}"
            )
            log.error("What lies behind that offset is then lost")
    else:
        log.error(f'Corrupted record in file "{path}": {bad.words}')
    for line in _dump(bad):
        log.error(line)
    if torn and not cut:
        whole = len(bad.rest) >= records.HEADER_SIZE
        part, expected = (
            ("record payload", bad.size - 8) if whole else ("record header", records.HEADER_SIZE)
        )
        read = len(bad.rest) - (records.HEADER_SIZE if whole else 0)
        log.error(f"{part} expected to be {expected} bytes, only read {read}")


def _dump(bad: Bad) -> Iterator[str]:
    head = bad.rest[: records.HEADER_SIZE]
    yield "Record header:"
    yield " Bytes:"
    yield from _hex(head)
    if len(head) < records.HEADER_SIZE:
        return
    if bad.typed:
        yield f" Type: {head[3]}"
    yield f" Size: {bad.size - records.HEADER_SIZE}"
    yield f" CRC : 0x{int.from_bytes(head[4:], 'little'):08x}"
    yield "Record payload:"
    payload = bad.rest[records.HEADER_SIZE : max(bad.size, records.HEADER_SIZE)]
    yield from _hex(payload[:_DUMPED])
    if len(payload) > _DUMPED:
        yield f" ... {len(payload) - _DUMPED} more bytes"


def _hex(data: bytes) -> Iterator[str]:
    for at in range(0, len(data), _PER_LINE):
        line = data[at : at + _PER_LINE]
        text = "".join(chr(b) if 32 <= b < 127 else "." for b in line)
        yield f" {line.hex(' '):<{3 * _PER_LINE - 1}}  {text}"


def cut(env: FileEnv, dirfd: int, name: str, bad: Bad) -> None:
    """Save what begins at the bad record, and cut the file ``name`` there, which no owner of ours
    ever writes to.

    Without space for the copy the file is left as it is. Raises ``OSError`` and ``FencedError``.
    """
    saved = keep(env, dirfd, name, bad)
    if saved is None:
        return
    disk = env.disk
    fd = open_file(disk, dirfd, name, os.O_RDWR)
    try:
        # Opened first, confirmed after that: so the file that is cut was ours, not a successor's.
        env.owner.confirm()
        disk.ftruncate(fd, bad.offset)
        disk.fsync(fd)
    finally:
        disk.close(fd)
    say_cut(env, bad, saved)


def keep(env: FileEnv, dirfd: int, name: str, bad: Bad) -> str | None:
    """Save what begins at the bad record beside the file ``name``, unless it is zeros.

    Returns the copy's name.

    ``None``, which is said: there is no copy, and the file must stay as it is. Raises ``OSError``.
    """
    if is_blank(bad.rest):
        return ""
    saved = f"{SAVED}{epoch_of(env)}.{name}.{bad.offset}"
    try:
        save(env, dirfd, saved, bad.rest)
    except OSError as error:
        if not (is_full(error) or isinstance(error, IrregularError)):
            raise
        say_not_cut(
            env,
            bad,
            f"{saved}: {error.words}"
            if isinstance(error, IrregularError)
            else "no space for a copy of the rest",
        )
        return None
    return saved


def say_cut(env: FileEnv, bad: Bad, saved: str) -> None:
    """Say that nothing from the bad record on counts any more.

    ``saved``: where it was saved, if it was.
    """
    log.warning(f'File "{env.shown(bad.shown)}" has been truncated to offset: {bad.offset}')
    if saved:
        log.warning(
            f'The {len(bad.rest)} bytes behind it were saved as "{saved}" beside it; it may be '
            "removed"
        )
    log.warning("Recovery resumes...")


def say_not_cut(env: FileEnv, bad: Bad, why: str) -> None:
    """Say that what follows the whole records is only passed over, and that the next start will
    find it again.
    """
    log.error(f'File "{env.shown(bad.shown)}" is not cut at offset {bad.offset}: {why}')


def save(env: FileEnv, dirfd: int, name: str, data: bytes) -> None:
    """Write ``data`` to a new file and make it and its name durable. Raises ``OSError``."""
    disk = env.disk
    try:
        fd = disk.open(dirfd, name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        # Of an attempt that was cut short, or somebody's: what that is, is looked at before it is
        # written to.
        fd = open_file(disk, dirfd, name, os.O_WRONLY)
    try:
        disk.pwrite(fd, data, 0)
        disk.ftruncate(fd, len(data))
        disk.fsync(fd)
    finally:
        disk.close(fd)
    disk.fsync(dirfd)
