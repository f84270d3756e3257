"""Measuring a channel's directory after the store has become ours: what lies there, without any
judgement.

Nothing from before the activation is believed: the directory is listed and every file is read
afresh, after the temporaries of former owners are gone (``recovery.remove_temporaries``). Nothing
is written here, so that channels can be measured in several threads.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftstan.stores.file.log import moved_mark, purge_mark, records
from ftstan.stores.file.log.behind import next_whole
from ftstan.stores.file.log.view import dat_name, idx_name, show
from ftstan.stores.file.recovery import foreign_writes
from ftstan.stores.file.recovery.damage import Bad
from ftstan.stores.file.regular import DIRECTORY, IrregularError, open_file
from ftstan.stores.file.state.confirmed import NAME as CONFIRMED
from ftstan.stores.file.state.confirmed import Confirmed, read_confirmed
from ftstan.stores.file.state.statefile import HEAD_SIZE, check_version, is_unfilled
from ftstan.stores.file.stretch import GrownError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ftstan.stores.file.env import FileEnv
    from ftstan.wire.block import MsgBlock

_DAT = re.compile(r"msgs\.([+-]?[0-9]+)\.dat\Z", re.ASCII)
_IDX = re.compile(r"msgs\.(0|-?[1-9][0-9]*)\.idx\Z", re.ASCII)
_CHANNEL_FILES = ("subs.dat", CONFIRMED, purge_mark.NAME, moved_mark.NAME)
_ENTRY = records.INDEX_SIZE
_MAX_NUMBER = 1 << 63
_ZEROS = 4096
#: Messages that an original stores before it writes their entries, and entries that it writes at
#: once when it makes an index anew (``docs/compat/filestore.md``).
_ORIGINALS_BATCH = 1024
_ORIGINALS_BUFFER = 1000


@dataclass(slots=True)
class Found:
    """One slice as it lies on disk: what its index proves, and the records behind that.

    ``claimed``: the last sequence that the index names, whether or not the data has it. ``why``:
    what ends the records (``""``: the end of the file), at offset ``bad_at``; ``rest``: the bytes
    from there on.
    """

    number: int
    proven: records.IndexScan
    claimed: int
    tail: MsgBlock
    why: str
    bad_at: int
    rest: bytes
    size: int
    #: Between the records of ``tail`` or before them lie bytes that the index passes over: they are
    #: not in one piece.
    scattered: bool = False
    #: The index names the sequences from the first to ``claimed`` in turn, and nothing else.
    is_index_whole: bool = False
    #: Nothing was ever stored in it.
    unfilled: bool = False
    #: Where something bad ends the records: the entries of the index that are a chain, whether or
    #: not they are of this file.
    named: bytes = b""

    @property
    def empty(self) -> bool:
        """Whether no whole record was found."""
        return not self.proven.count and not len(self.tail)

    @property
    def first(self) -> int:
        """Sequence of the first record."""
        return self.proven.first if self.proven.count else self.tail.first

    @property
    def last(self) -> int:
        """Sequence of the last record before anything bad, 0 if there is none."""
        return self.tail.last if len(self.tail) else self.proven.last


@dataclass(slots=True)
class Measured:
    """What one channel's directory holds.

    ``orphans``: (number, last sequence named) of indexes without data.

    ``odd``: numbers of slices whose name writes the number in another way than we do, with that
    name. ``problems``: what is wrong already now, as (file, words). ``foreign``: an original server
    may have written here since our last activation, also to slices that are numbered like ours.
    """

    found: list[Found] = field(default_factory=list)
    odd: dict[int, str] = field(default_factory=dict)
    orphans: list[tuple[int, int]] = field(default_factory=list)
    confirmed: Confirmed | None = None
    problems: list[tuple[str, str]] = field(default_factory=list)
    foreign: bool = False
    #: Slices without a whole record whose index names messages, by number: its entries.
    lost: dict[int, bytes] = field(default_factory=dict)

    @property
    def synced(self) -> bool:
        """Whether whoever wrote here last synced data before its index: then an entry proves that
        it was durable.
        """
        return not self.foreign and (self.confirmed is None or self.confirmed.synced)

    def may_be_foreign(self, number: int) -> bool:
        """Whether an original server may have written to this slice after our last confirm."""
        return self.foreign and (self.confirmed is None or number >= self.confirmed.slice_number)

    @property
    def highest(self) -> int:
        """The highest slice number seen."""
        return max([0, *(f.number for f in self.found), *(number for number, _ in self.orphans)])

    def highest_taken(self, limit: int) -> int:
        """The highest slice number that new ones must be above: from ``limit`` on only where a
        message is.

        No server got so far in turn, and a file without messages must not end a channel.
        """
        numbers = [f.number for f in self.found if f.number < limit or not f.empty]
        return max([0, *numbers, *(number for number, _ in self.orphans if number < limit)])


def holds_channel(names: Iterable[tuple[str, bool]]) -> bool:
    """Whether a directory of these names is a channel: it has one of the original's files, or one
    of ours that may say what sequences were given out, whatever became of the others.
    """
    return any(
        name in _CHANNEL_FILES or name.startswith("msgs.") for name, is_dir in names if not is_dir
    )


def slice_numbers(names: list[tuple[str, bool]]) -> tuple[dict[int, str], list[str]]:
    """File names of slices by number, out of a listing, and those ``msgs.*.dat`` that name no slice
    of their own.
    """
    numbers: dict[int, str] = {}
    wrong = []
    named = [
        (number_of(name), name) for name, is_dir in sorted(names) if not is_dir and _is_dat(name)
    ]
    # Where two names say one number, the usual one is it.
    for number, name in sorted(named, key=lambda row: row[0] is None or row[1] != dat_name(row[0])):
        if number is None or number in numbers:
            wrong.append(name)
        else:
            numbers[number] = name
    return numbers, wrong


def index_numbers(names: list[tuple[str, bool]]) -> list[int]:
    """Numbers of the slices that have an index, out of a listing."""
    return [int(i[1]) for name, is_dir in names if not is_dir and (i := _IDX.match(name))]


def _is_dat(name: str) -> bool:
    return name.startswith("msgs.") and name.endswith(".dat")


def number_of(name: str) -> int | None:
    """The number of the slice whose data a file of this name would be, ``None`` if there is
    none.
    """
    number = int(m[1]) if (m := _DAT.match(name)) else _MAX_NUMBER
    return number if -_MAX_NUMBER <= number < _MAX_NUMBER else None


def measure(
    env: FileEnv,
    name: bytes,
    dirfd: int,
    names: list[tuple[str, bool]],
    *,
    foreign: bool = False,
    is_new: bool = False,
) -> Measured:
    """Read the slices of a channel whose directory was listed as ``names``.

    ``OSError`` passes through.

    ``foreign``: an original server has been here since our last clean stop. It may have been if it
    may have served behind the last of our epochs that confirmed anything of this channel.
    ``is_new``: our last clean stop did not know the channel, so that it was made since, unless we
    have confirmed anything of it.
    """
    numbers, wrong = slice_numbers(names)
    problems = [(file, f"message log has an invalid name: {file}") for file in wrong]
    confirmed = None
    try:
        confirmed = read_confirmed(env.fresh, dirfd)
    except IrregularError as error:
        problems.append((CONFIRMED, error.words))
    ours_since = confirmed.epoch if confirmed is not None else 1
    m = Measured(
        confirmed=confirmed,
        foreign=foreign
        or (is_new and confirmed is None)
        or env.owner.originals_through >= ours_since,
        problems=problems,
    )
    m.odd = {number: file for number, file in numbers.items() if file != dat_name(number)}
    top = max(numbers, default=0)
    for number in sorted(numbers):
        try:
            if m.may_be_foreign(number) or (number == top and number < env.owner.ours_from):
                # Before its index is read: an original server writes entries of what it has not
                # synced yet.
                _sync(env, dirfd, numbers[number])
            m.found.append(_slice(env, name, dirfd, number, m))
        except IrregularError as error:
            _without_data(env, dirfd, number, m, error.words)
    there = {file for file, _ in names}
    for file, is_dir in names:
        # Without an index it takes no slice's place: to the original it is nothing, either.
        if (
            is_dir
            and (d := _DAT.match(file))
            and file == dat_name(int(d[1]))
            and idx_name(int(d[1])) in there
        ):
            _without_data(env, dirfd, int(d[1]), m, DIRECTORY)
    known = {*numbers, *(number for number, _ in m.orphans)}
    for file, _ in names:
        if (i := _IDX.match(file)) and int(i[1]) not in known:
            _without_records(env, dirfd, int(i[1]), m)
    return m


def _without_data(env: FileEnv, dirfd: int, number: int, m: Measured, words: str) -> None:
    """Note a slice whose data are no file: what its index says of it still counts."""
    m.odd.pop(number, None)
    m.problems.append((dat_name(number), words))
    _without_records(env, dirfd, number, m)


def _without_records(env: FileEnv, dirfd: int, number: int, m: Measured) -> None:
    """Note an index without data."""
    index = _entries(env, dirfd, idx_name(number), m)
    scan = records.scan_index(index, env.crc, env.options.check_crc)
    m.orphans.append((number, scan.last))
    if scan.count:
        m.lost[number] = index[: scan.count * _ENTRY]


def read_entries(env: FileEnv, dirfd: int, name: str) -> bytes:
    """The entries of an index file; nothing if it is absent or its version is not ours.

    Raises ``IrregularError`` and ``OSError``.
    """
    try:
        fd = open_file(env.fresh, dirfd, name)
    except FileNotFoundError:
        return b""
    try:
        found = env.stretch(fd, 0)
    finally:
        env.fresh.close(fd)
    if found.resumes:
        raise GrownError(found.words, name)
    data = found.data
    return b"" if check_version(data[: records.VERSION_SIZE]) else data[records.VERSION_SIZE :]


def _entries(env: FileEnv, dirfd: int, name: str, m: Measured) -> bytes:
    """``read_entries``; nothing, and a problem, if it is no file."""
    try:
        return read_entries(env, dirfd, name)
    except IrregularError as error:
        if (name, error.words) not in m.problems:
            m.problems.append((name, error.words))
        return b""


def _sync(env: FileEnv, dirfd: int, name: str) -> None:
    fd = open_file(env.disk, dirfd, name, os.O_RDWR)
    try:
        env.disk.fdatasync(fd)
    finally:
        env.disk.close(fd)


def _slice(env: FileEnv, channel: bytes, dirfd: int, number: int, m: Measured) -> Found:
    disk = env.fresh
    file = m.odd.get(number, dat_name(number))
    index = _entries(env, dirfd, idx_name(number), m)
    proven = records.scan_index(index, env.crc, env.options.check_crc)
    # An index with gaps in it, or that begins elsewhere, may be another file's: it names nothing of
    # this one.
    named_first = proven.first
    named = index[: proven.count * _ENTRY]
    claimed = proven.last if proven.contiguous else 0
    is_index_whole = claimed > 0 and len(index) == proven.count * _ENTRY
    foreign = m.may_be_foreign(number)
    # An entry that does not continue the one before: an original was killed between a record and
    # its entry, took the record for nothing and went on behind it.
    goes_on = number < env.owner.ours_from and len(index) >= (proven.count + 1) * _ENTRY
    if foreign:
        sure = foreign_writes.confirmed_entries(index, proven, number, m.confirmed)
        proven = records.scan_index(sure, env.crc, env.options.check_crc)
    fd = open_file(disk, dirfd, file)
    try:
        head = disk.pread(fd, HEAD_SIZE, 0)
        trusted = (
            proven.count
            and proven.contiguous
            and _last_entry_holds(env, channel, fd, index, proven)
        )
        if not is_unfilled(head) and (wrong := check_version(head)):
            m.problems.append((file, wrong))
            trusted = False
        if not trusted:
            proven = records.scan_index(b"", env.crc)
        found = env.stretch(fd, proven.end)
    finally:
        disk.close(fd)
    data = found.data
    if found.resumes:
        m.problems.append((file, found.words))
    size = found.end if trusted or data else len(head)
    scattered = False
    if foreign or goes_on:
        behind = index[proven.count * _ENTRY :]
        tail, used, why, scattered = foreign_writes.follow(
            env, channel, data, start=proven.end, last=proven.last, index=behind
        )
    else:
        tail, used, why = records.scan_data(
            data, channel, proven.last, env.crc, env.options.check_crc
        )
    if not trusted and len(tail) and claimed and tail.first != named_first:
        claimed = 0
    if named and not proven.count and not len(tail):
        m.lost[number] = named
    # Of zeros alone a page says as much as all of them.
    rest = data[used : used + _ZEROS if why == "zeros" else None] if why else b""
    return Found(
        *(number, proven, claimed, tail, why, proven.end + used, rest, size, scattered),
        is_index_whole=is_index_whole,
        unfilled=is_unfilled(head),
        named=named if why else b"",
    )


def _last_entry_holds(
    env: FileEnv, channel: bytes, fd: int, index: bytes, proven: records.IndexScan
) -> bool:
    """Whether the record that the last provable entry names is there: an index of another file
    proves nothing.
    """
    sequence, offset, _, size = records.entry(index, proven.count - 1)
    data = env.fresh.pread(fd, 8 + size, offset)
    block, end, _ = records.scan_data(data, channel, sequence - 1, env.crc)
    return len(block) == 1 and block.first == sequence and end == 8 + size


def bad_of(env: FileEnv, channel: bytes, f: Found) -> Bad:
    """What ends the records of a slice, ready to be judged."""
    following = next_whole(f.rest, 0, channel, f.last, env.crc, base=f.bad_at, named=f.named)
    k = records.find_entry(f.named, f.last + 1)
    is_named = f.claimed > f.last and k < len(f.named) // _ENTRY
    ends = {records.search_from(f.rest, 0, channel, f.last, env.crc)}
    if is_named:
        _, offset, _, size = records.entry(f.named, k)
        ends.add(offset + records.HEADER_SIZE + size - f.bad_at)
    return Bad(
        f"{show(channel)}/{dat_name(f.number)}",
        f.bad_at,
        f.why,
        f.rest,
        following,
        is_between=is_named and following in ends,
    )


def entries_of(env: FileEnv, dirfd: int, f: Found) -> bytes:
    """Index entries of every record of a slice up to anything bad."""
    index = b""
    if f.proven.count:
        index = read_entries(env, dirfd, idx_name(f.number))[: f.proven.count * _ENTRY]
    return index + records.index_entries(f.tail, 0, len(f.tail), f.proven.end, env.crc)


def bytes_of(env: FileEnv, dirfd: int, f: Found, first: int, last: int) -> bytes:
    """The records ``first`` to ``last`` of a slice, headers included.

    Empty if it has none of them.
    """
    index = entries_of(env, dirfd, f)
    if f.scattered:
        i = records.find_entry(index, first)
        j = records.find_entry(index, last + 1)
        spans = [records.entry(index, k) for k in range(i, j)]
        whole = dense(env, dirfd, f)
        return b"".join(whole[offset : offset + 8 + size] for _, offset, _, size in spans)
    i = records.find_entry(index, first)
    j = records.find_entry(index, last + 1)
    if i >= j:
        return b""
    start = records.entry(index, i)[1]
    _, offset, _, size = records.entry(index, j - 1)
    fd = open_file(env.fresh, dirfd, dat_name(f.number))
    try:
        return env.fresh.pread(fd, offset + 8 + size - start, start)
    finally:
        env.fresh.close(fd)


def dense(env: FileEnv, dirfd: int, f: Found) -> bytes:
    """The file of a scattered slice as it would be with its records in one piece."""
    fd = open_file(env.fresh, dirfd, dat_name(f.number))
    try:
        return env.fresh.pread(fd, f.proven.end, 0) + _records(f.tail)
    finally:
        env.fresh.close(fd)


def _records(block: MsgBlock) -> bytes:
    start, end = records.span(block, 0, len(block))
    return bytes(memoryview(block)[start:end])


def went_on(first: int, last: int, claimed: int, following: int) -> bool:
    """Whether an original was killed between records up to ``last`` and their entries, took them
    for nothing when it came again, and went on in a later slice, which begins with ``following``.

    The index names ``first`` to ``claimed`` and nothing else. An original stores no more than one
    batch without entries, and acknowledges none of it before; without ``file_sync`` a power cut can
    take entries of what it has acknowledged. An index of which exactly a whole number of its
    buffers was written may be one that it was killed over while it made it anew: then the records
    behind it were acknowledged.
    """
    return (
        following == claimed + 1
        and last - claimed <= _ORIGINALS_BATCH
        and (claimed - first + 1) % _ORIGINALS_BUFFER != 0
    )
