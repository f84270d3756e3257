"""Measuring a channel's slices after the store has become ours: which records count, and what must be copied.

Nothing from before the activation is believed: temporaries of former owners are unlinked, then the directory is
listed, then every file is read afresh. An index entry proves its record; what lies behind the last provable entry of
the highest slice may never have been synced, and is copied into a slice of ours before anybody sees it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.errors import RecoveryError
from ftstan.log import stream as log
from ftstan.stores.file import records
from ftstan.stores.file.env import TEMPORARY, FileEnv
from ftstan.stores.file.slices import Slice, SliceLog, dat_name, idx_name, show
from ftstan.stores.file.statefile import check_version, read_file
from ftstan.wire.block import MsgBlock

if TYPE_CHECKING:
    from ftstan.disk import Disk

_DAT = re.compile(r"msgs\.([1-9][0-9]{0,17})\.dat\Z")
_ODD_DAT = re.compile(r"msgs\..*\.dat\Z|msgs\.dat\Z")
_TEMPORARY = re.compile(re.escape(TEMPORARY) + r"[0-9]+\.(dat|idx|subs\.dat|clients\.dat|server\.dat)\Z")
_ENTRY = records.INDEX_SIZE


@dataclass(slots=True)
class _Found:
    """One slice as it lies on disk: what its index proves, and the records behind that."""

    number: int
    proven: records.IndexScan
    index: bytes
    tail: MsgBlock
    why: str
    """What ended the records (``""``: the end of the file)."""
    bad_at: int
    size: int
    claimed: int = 0
    """The last sequence that the index names, whether or not the data has it."""

    @property
    def empty(self) -> bool:
        return not self.proven.count and not len(self.tail)

    @property
    def first(self) -> int:
        return self.proven.first if self.proven.count else self.tail.first

    @property
    def last(self) -> int:
        return self.tail.last if len(self.tail) else self.proven.last


def slice_numbers(disk: Disk, dirfd: int) -> list[int]:
    """Numbers of the slices in a channel's directory, ascending."""
    return sorted(int(m[1]) for name, is_dir in disk.listdir(dirfd) if not is_dir and (m := _DAT.match(name)))


def highest_slice_number(disk: Disk, root: int) -> int:
    """The highest slice number in any channel of the store: an epoch's range must lie above it."""
    highest = 0
    for name, is_dir in disk.listdir(root):
        if not is_dir:
            continue
        fd = disk.open_dir_at(root, name)
        try:
            highest = max([highest, *slice_numbers(disk, fd)])
        finally:
            disk.close(fd)
    return highest


def remove_temporaries(disk: Disk, dirfd: int) -> None:
    """Unlink what former owners had not made visible: a late link or rename of theirs then finds no source."""
    for name, is_dir in disk.listdir(dirfd):
        if _TEMPORARY.match(name) and not is_dir:
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(dirfd, name)


def recover_log(env: FileEnv, slog: SliceLog) -> None:
    """Measure the slices below ``slog.dirfd`` and hand them to ``slog``; copies the unproven tail if there is one."""
    names = env.disk.listdir(slog.dirfd)
    for name, is_dir in names:
        if not is_dir and _ODD_DAT.match(name) and not _DAT.match(name):
            raise RecoveryError(
                f"unable to recover message store for [{show(slog.name)}]"
                f'(file: "{show(slog.name)}/{name}"): message log has an invalid name: {name}'
            )
    numbers = sorted(int(m[1]) for name, is_dir in names if not is_dir and (m := _DAT.match(name)))
    found = [_measure(env, slog, number) for number in numbers]
    for f in found:
        if f.empty and f.why.startswith("bad"):
            # Nothing shows where its sequences end: to serve without it could give them out a second time.
            raise _refusal(slog, f)
    dead = {f.number for f in found if f.empty}
    live = _seal(env, slog, [f for f in found if not f.empty], dead)
    tail: MsgBlock | None = None
    slices: list[Slice] = []
    for f, last in live:
        top = f is live[-1][0]
        if f.why.startswith("bad") and f.number < env.owner.ours_from:
            raise _refusal(slog, f)
        if top and f.number >= env.owner.ours_from and len(f.tail):
            tail = f.tail
            if not f.proven.count:
                dead.add(f.number)
                continue
            slices.append(_slice(env, f, f.proven.last))
            continue
        if top and len(f.tail):
            _sync(env, slog, f.number)
        slices.append(_slice(env, f, last))
        if top and f.why:
            log.warning(
                f'channel "{show(slog.name)}" slice {dat_name(f.number)}: {f.size - f.bad_at} bytes behind sequence '
                f"{f.last} were never acknowledged and are ignored ({f.why})"
            )
    for low, high in itertools.pairwise(slices):
        if high.first != low.last + 1:
            log.error(
                f'channel "{show(slog.name)}": sequences {low.last + 1} to {high.first - 1} are missing between '
                f"{dat_name(low.number)} and {dat_name(high.number)}; serving around them"
            )
    slog.adopt(slices, dead, numbers[-1] if numbers else 0)
    if tail is not None:
        slog.copy_tail(tail)


def _measure(env: FileEnv, slog: SliceLog, number: int) -> _Found:
    disk = env.disk
    index = read_file(env, slog.dirfd, idx_name(number)) or b""
    if len(index) >= records.VERSION_SIZE and check_version(index):
        index = b""
    fd = disk.open(slog.dirfd, dat_name(number), os.O_RDONLY)
    try:
        size = disk.fstat(fd).size
        version = disk.pread(fd, records.VERSION_SIZE, 0)
        if len(version) < records.VERSION_SIZE:
            # Created and never filled: there is nothing in it that anybody was promised.
            return _Found(number, records.scan_index(b"", env.crc), b"", MsgBlock(), "", 0, 0)
        if wrong := check_version(version):
            raise RecoveryError(
                f"unable to recover message store for [{show(slog.name)}]"
                f'(file: "{show(slog.name)}/{dat_name(number)}"): {wrong}',
                hint="run: ftstanctl store verify",
            )
        proven = records.scan_index(index[records.VERSION_SIZE :], env.crc, env.options.check_crc)
        claimed = proven.last
        if proven.count and not _last_entry_holds(env, slog.name, fd, index, proven):
            proven = records.scan_index(b"", env.crc)
        data = disk.pread(fd, max(size - proven.end, 0), proven.end)
        tail, used, why = records.scan_data(data, slog.name, proven.last, env.crc, env.options.check_crc)
    finally:
        disk.close(fd)
    body = index[records.VERSION_SIZE : records.VERSION_SIZE + proven.count * _ENTRY]
    return _Found(number, proven, body, tail, why, proven.end + used, size, claimed)


def _last_entry_holds(env: FileEnv, channel: bytes, fd: int, index: bytes, proven: records.IndexScan) -> bool:
    """Whether the record that the last provable entry names is there: an index of another file proves nothing."""
    sequence, offset, _, size = records.entry(index[records.VERSION_SIZE :], proven.count - 1)
    data = env.disk.pread(fd, 8 + size, offset)
    block, end, _ = records.scan_data(data, channel, sequence - 1, env.crc)
    return len(block) == 1 and block.first == sequence and end == 8 + size


def _seal(env: FileEnv, slog: SliceLog, found: list[_Found], dead: set[int]) -> list[tuple[_Found, int]]:
    """The slices that count, ascending, each with its last sequence that does.

    A slice of ours ends every lower-numbered one at its own first sequence; one that has nothing left is dead.
    """
    out: list[tuple[_Found, int]] = []
    end: int | None = None
    for f in reversed(found):
        if end is not None and f.first >= end:
            dead.add(f.number)
            continue
        last = f.last if end is None else min(f.last, end - 1)
        if f.why and f.number >= env.owner.ours_from and f.claimed > f.last and (end is None or last < end - 1):
            # Our entries are written after the sync of their data: these messages were durable, perhaps acknowledged.
            raise _refusal(slog, f)
        if (
            f.number < env.owner.ours_from
            and out
            and out[-1][0].number < env.owner.ours_from
            and last >= out[-1][0].first
        ):
            raise RecoveryError(
                f'channel "{show(slog.name)}": {dat_name(f.number)} holds sequences {f.first} to {f.last} and '
                f"{dat_name(out[-1][0].number)} starts at {out[-1][0].first}",
                hint="run: ftstanctl store verify",
            )
        out.append((f, last))
        if f.number >= env.owner.ours_from:
            end = f.first
    out.reverse()
    return out


def _slice(env: FileEnv, f: _Found, last: int) -> Slice:
    """The summary of one slice up to sequence ``last``."""
    if last <= f.proven.last:
        if last == f.proven.last:
            return Slice(
                f.number,
                f.proven.first,
                last,
                f.proven.first_ts,
                f.proven.last_ts,
                f.proven.count,
                f.proven.end,
                f.proven.contiguous,
            )
        entries = records.find_entry(f.index, last + 1)
        sequence, offset, timestamp, size = records.entry(f.index, entries - 1)
        return Slice(
            f.number,
            f.proven.first,
            sequence,
            f.proven.first_ts,
            timestamp,
            entries,
            offset + 8 + size,
            f.proven.contiguous,
        )
    # Records that the index does not name: their entries are kept in memory, the file is not ours to write.
    tail = records.cut(f.tail, last)
    n = len(tail)
    index = f.index + records.index_entries(tail, 0, n, f.proven.end, env.crc)
    scan = records.scan_index(index, env.crc)
    return Slice(
        f.number, scan.first, scan.last, scan.first_ts, scan.last_ts, scan.count, scan.end, scan.contiguous, index
    )


def _sync(env: FileEnv, slog: SliceLog, number: int) -> None:
    """Make a slice of the original server durable: what it holds behind its index is about to be delivered."""
    fd = env.disk.open(slog.dirfd, dat_name(number), os.O_RDWR)
    try:
        env.disk.fsync(fd)
    finally:
        env.disk.close(fd)


def _refusal(slog: SliceLog, f: _Found) -> RecoveryError:
    why = {"torn": "unexpected EOF", "zeros": "end of file padded with zeros"}.get(f.why, f.why.removeprefix("bad: "))
    return RecoveryError(
        f"unable to recover message store for [{show(slog.name)}]"
        f'(file: "{show(slog.name)}/{dat_name(f.number)}"): {why} at offset {f.bad_at}',
        hint="run: ftstanctl store verify",
    )
