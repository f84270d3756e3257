"""A datastore as it lies on disk: what its files hold, read by somebody who does not own it.

Opens files for reading only and creates none, so it may look at the store of a running server;
there it stops where the owner has confirmed, because what lies behind may still be taken back. It
judges nothing (``checking`` does) and goes on behind damage: what can be read is shown, what cannot
is listed with its place.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from ftstan.stores.file.env import FOREIGN
from ftstan.stores.file.log import moved_mark, purge_mark, records
from ftstan.stores.file.log.behind import next_whole
from ftstan.stores.file.log.view import dat_name, idx_name, show
from ftstan.stores.file.recovery import lost
from ftstan.stores.file.recovery.measure import (
    holds_channel,
    index_numbers,
    number_of,
    slice_numbers,
    went_on,
)
from ftstan.stores.file.regular import irregular, open_file
from ftstan.stores.file.state import state_records
from ftstan.stores.file.state.checkpoint import is_bound
from ftstan.stores.file.state.confirmed import NAME as CONFIRMED
from ftstan.stores.file.state.confirmed import read_confirmed
from ftstan.stores.file.state.statefile import (
    HEAD_SIZE,
    check_version,
    is_unfilled,
    read_whole,
)
from ftstan.stores.file.stretch import read_stretch
from ftstan.stores.file.tools.statereading import (
    SUB_KINDS,
    Bad,
    Typed,
    plain,
    read_state,
    without_undecodable,
)
from ftstan.stores.interface import MAX_NUMBER
from ftstan.wire.subjects import valid_channel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.stores.file.state.confirmed import Confirmed
    from ftstan.stores.file.tools.source import Source
    from ftstan.stores.interface import StoredSub
    from ftstan.wire.block import MsgBlock

_ENTRY = records.INDEX_SIZE
_VERSION = records.VERSION_SIZE
INDEX = struct.Struct("<QqqII")
#: ``ours_from`` of a store in which no ftstan server ever wrote: every slice is the original's.
NEVER_OURS = 1 << 62

#: Bytes of messages that are in memory at a time.
CHUNK = 4 << 20
_BATCH = 16384
_CHUNK = 1 << 20


@dataclass(slots=True)
class SliceFile:
    """One slice: its files, and the messages of it that count.

    ``first`` .. ``last`` are the sequences that count, ``entries`` of them, the last one ending at
    offset ``end``; a slice whose messages are all hidden by higher ones has none. ``proven``
    entries of the index file are a chain that ends at a record of the data; ``index_clean`` says
    that nothing else is in it. ``claimed`` is the last sequence that the index names. ``refused``
    says that the file is none of a server's, whatever can be read of it. ``odd``: its name, where
    that writes the number in another way than servers do. ``differs``: (first, last sequence, file)
    of what it has with another content than a slice of the original that counts.
    """

    number: int
    dat_size: int
    idx_size: int
    proven: int = 0
    index_clean: bool = False
    claimed: int = 0
    located: int = 0
    all_first: int = 0
    all_last: int = 0
    bad: list[Bad] = field(default_factory=list)
    refused: str = ""
    first: int = 0
    last: int = 0
    first_ts: int = 0
    last_ts: int = 0
    entries: int = 0
    end: int = _VERSION
    odd: str = ""
    differs: tuple[int, int, str] | None = None

    @property
    def dat(self) -> str:
        """File name of the messages."""
        return self.odd or dat_name(self.number)

    @property
    def idx(self) -> str:
        """File name of the index."""
        return idx_name(self.number)

    @property
    def exact(self) -> bool:
        """Whether both files hold the messages that count and nothing else."""
        return (
            self.entries == self.proven == self.located
            and self.index_clean
            and not self.refused
            and self.idx_size == _VERSION + self.entries * _ENTRY
            and self.dat_size == self.end
        )


@dataclass(frozen=True, slots=True)
class Part:
    """Some of a channel's oldest messages: how many, their bytes as limits count them, and when the
    first and the last of them were stored (Unix ns, 0 without one).
    """

    count: int
    size: int
    first_ts: int
    last_ts: int


class ChannelFiles:
    """One channel's directory. Close it, or use it as a context."""

    def __init__(self, source: Source, name: bytes) -> None:
        """Measure the slices. Raises ``OSError``."""
        self._source = source
        self.name = name
        self.dirfd = source.disk.open_dir_at(source.root, os.fsdecode(name))
        self.irregular: dict[str, str] = {}
        """Names of the channel's files under which something else stands, and what: nothing of it
        is read.
        """
        self.names: set[str] = set()
        listed = source.disk.listdir(self.dirfd)
        indexes = {n for n, _ in listed if n.endswith(".idx")}
        for n, is_dir in listed:
            number = number_of(n)
            in_place = is_bound(n, is_dir=is_dir) or (
                number is not None and n == dat_name(number) and idx_name(number) in indexes
            )
            if in_place and (what := self._irregular(n)):
                self.irregular[n] = what
            elif not is_dir:
                self.names.add(n)
        self.confirmed: Confirmed | None = (
            None if CONFIRMED in self.irregular else read_confirmed(source.disk, self.dirfd)
        )
        self.purged = 0
        """Messages up to this sequence were purged: they may be in the slices, and nobody is shown
        them.
        """
        self.all: list[SliceFile] = []
        """Every slice in the directory, by number."""
        self.slices: list[SliceFile] = []
        """Those with messages that count, in the order of their messages."""
        self.lost: list[lost.Seal] = []
        """Slices of ours without a record that end lower ones, by number."""
        self.named: dict[int, bytes] = {}
        """Index entries of every slice without a record, by number."""
        self.hiding: set[int] = set()
        """Numbers of slices above the last confirm that have other contents for what was confirmed
        below them.
        """
        found, self.misnamed = slice_numbers([(n, False) for n in sorted(self.names)])
        """``msgs.*.dat`` files that name no slice of their own."""
        self._odd = {number: n for number, n in found.items() if n != dat_name(number)}
        for number in sorted(found):
            if not self._unconfirmed(number):
                self.all.append(self._measure(number)[0])
        self._find_named(found)
        self._settle()
        mark, self.purged_wrong = (
            (None, "")
            if purge_mark.NAME in self.irregular
            else purge_mark.read(source.disk, self.dirfd)
        )
        self.mover, self.moved_wrong = (
            (None, "")
            if moved_mark.NAME in self.irregular
            else moved_mark.read(source.disk, self.dirfd)
        )
        if mark is not None and self.slices and mark.speaks_of(self.slices[0].first_ts):
            self.purged = mark.sequence

    def _irregular(self, name: str) -> str:
        try:
            return irregular(self._source.disk.stat(self.dirfd, name))
        except FileNotFoundError:
            # A running server replaces and removes its files while a tool looks.
            return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the directory."""
        self._source.disk.close(self.dirfd)

    @property
    def missing_front(self) -> tuple[int, int] | None:
        """First and last sequence of messages that are missing in front of all others, and that
        neither limits nor a purge took away: a node of a cluster had said that its files begin
        there.
        """
        said = self.confirmed
        if said is None or not said.replayed or not said.floor or self._source.live:
            return None
        begins = self.slices[0].first if self.slices else said.last + 1
        first = max(said.floor, self.purged + 1)
        return (first, begins - 1) if first < begins else None

    @property
    def count(self) -> int:
        """Messages that are there and were not purged."""
        return sum(s.entries for s in self._shown) - len(self._half_hidden) // _ENTRY

    @property
    def size(self) -> int:
        """Their bytes as limits count them: payload plus 40 each."""
        hidden: int = sum(size + 40 for _, _, _, size, _ in INDEX.iter_unpack(self._half_hidden))
        return sum(s.end - _VERSION + 32 * s.entries for s in self._shown) - hidden

    @property
    def _shown(self) -> list[SliceFile]:
        """The slices with messages that were not purged.

        The others may be removed while somebody looks.
        """
        return [s for s in self.slices if s.last > self.purged]

    @property
    def _half_hidden(self) -> bytes:
        """Entries of the purged messages in the slice that has others, too."""
        shown = self._shown
        if not shown or shown[0].first > self.purged:
            return b""
        index = self.entries_of(shown[0])
        return index[: records.find_entry(index, self.purged + 1) * _ENTRY]

    @property
    def first(self) -> int:
        """Sequence of the first message, 0 if there is none; above ``last`` if all were purged."""
        return max(self.slices[0].first, self.purged + 1) if self.slices else 0

    @property
    def last(self) -> int:
        """Sequence of the last message, 0 if there is none."""
        return self.slices[-1].last if self.slices else 0

    def sequence_at(self, timestamp: int) -> int:
        """First sequence whose timestamp is at or after ``timestamp`` (Unix ns).

        ``last + 1`` if none is. Of what was not purged, as a server would answer.
        """
        for s in self._shown:
            if s.last_ts >= timestamp:
                index = self._shown_entries(s)
                at = records.first_younger(index, timestamp)
                if at * _ENTRY < len(index):
                    return records.entry(index, at)[0]
        return self.last + 1

    def part(self, sequence: int) -> Part:
        """What of the messages that were not purged lies at or below ``sequence``."""
        count = 0
        size = 0
        times: list[int] = []
        for s in self._shown:
            if s.first > sequence:
                break
            index = self._shown_entries(s)
            for _, _, timestamp, length, _ in INDEX.iter_unpack(
                index[: records.find_entry(index, sequence + 1) * _ENTRY]
            ):
                count += 1
                size += length + 40
                times[1:] = [timestamp]
        return Part(count, size, times[0] if times else 0, times[-1] if times else 0)

    def _shown_entries(self, s: SliceFile) -> bytes:
        index = self.entries_of(s)
        return index[records.find_entry(index, self.purged + 1) * _ENTRY :]

    def entries_of(self, s: SliceFile) -> bytes:
        """Index entries of the messages that count."""
        _, index = self._measure(s.number)
        if s.entries == s.located == len(index) // _ENTRY:
            return index
        return index[
            records.find_entry(index, s.first) * _ENTRY : records.find_entry(index, s.last + 1)
            * _ENTRY
        ]

    def batches(self, s: SliceFile, first: int = 0) -> Iterator[tuple[bytes, bytes]]:
        """The messages that count of a slice from sequence ``first`` on, some megabytes at a time.

        ``(entries, data)``: the data begin with the record of the first entry.
        """
        index = self.entries_of(s)
        at = records.find_entry(index, first) * _ENTRY
        disk = self._source.disk
        fd = open_file(disk, self.dirfd, s.dat)
        try:
            while at < len(index):
                batch = index[at : at + _BATCH * _ENTRY]
                batch = batch[: records.fitting_entries(batch, CHUNK) * _ENTRY]
                if s.bad:
                    batch = _without_holes(batch)
                at += len(batch)
                start = records.entry(batch, 0)[1]
                yield batch, disk.pread(fd, _end_of(batch) - start, start)
        finally:
            disk.close(fd)

    def blocks(self, s: SliceFile, first: int = 0) -> Iterator[tuple[MsgBlock, list[Bad]]]:
        """The readable messages of ``batches``, and the records that are bad."""
        for batch, data in self.batches(s, first):
            block, bad = records.read_readable(data, batch, self._source.crc)
            yield block, [bad_record(batch, *row) for row in bad]

    def raw_records(self, s: SliceFile) -> Iterator[tuple[int, int, bytes]]:
        """Every record that can be located, whether or not it counts: ``(sequence, offset,
        payload)``.
        """
        _, index = self._measure(s.number)
        disk = self._source.disk
        fd = open_file(disk, self.dirfd, s.dat)
        try:
            for sequence, offset, _, size, _ in INDEX.iter_unpack(index):
                yield sequence, offset, disk.pread(fd, size, offset + records.HEADER_SIZE)
        finally:
            disk.close(fd)

    def subs_file(self) -> Typed:
        """The records of ``subs.dat``."""
        return without_undecodable(read_state(self._source, self.dirfd, "subs.dat", SUB_KINDS))

    def subs(self, file: Typed | None = None) -> tuple[dict[int, StoredSub], int]:
        """The subscriptions after all readable records, by id, and the highest id seen.

        ``file``: ``subs_file``.
        """
        rows = [(kind, payload) for _, kind, payload in (file or self.subs_file()).rows]
        return state_records.replay_subs(rows, f"{show(self.name)}/subs.dat")

    # ---- measuring
    # ----------------------------------------------------------------------------------------------

    def _unconfirmed(self, number: int) -> bool:
        return (
            self._source.live
            and self.confirmed is not None
            and number > self.confirmed.slice_number
        )

    def _measure(self, number: int) -> tuple[SliceFile, bytes]:
        """What the files of a slice hold, and the index entries of every record that can be
        located.
        """
        source = self._source
        s = SliceFile(number, 0, -1, odd=self._odd.get(number, ""))
        data_fd = open_file(source.disk, self.dirfd, s.dat)
        try:
            s.dat_size = _size(source, data_fd)
            index = None if s.idx in self.irregular else read_whole(source.disk, self.dirfd, s.idx)
            s.idx_size = -1 if index is None else len(index)
            head = source.disk.pread(data_fd, HEAD_SIZE, 0)
            if is_unfilled(head):
                s.index_clean = not index
                return s, b""
            s.refused = check_version(head)
            # What it names may be of another file, too: the data are read as a start reads them.
            return s, self._locate(s, data_fd, b"" if s.refused else index or b"")
        finally:
            source.disk.close(data_fd)

    def _locate(self, s: SliceFile, fd: int, idx: bytes) -> bytes:
        source = self._source
        body = b"" if check_version(idx) else idx[_VERSION:]
        scan = records.scan_index(body, source.crc)
        named = body[: scan.count * _ENTRY]
        s.claimed = scan.last
        if scan.count and not self._ends_at_a_record(fd, body, scan.count):
            body = b""
            scan = records.scan_index(b"", source.crc)
        s.proven = scan.count
        s.index_clean = scan.clean and len(idx) == _VERSION + scan.count * _ENTRY
        index = body[: scan.count * _ENTRY]
        reach = s.dat_size
        if source.live and self.confirmed is None:
            # Nothing says how far this was confirmed: the index was written after the sync of its
            # data.
            reach = scan.end
        elif source.live and self.confirmed is not None and self.confirmed.slice_number == s.number:
            reach = min(reach, self.confirmed.valid_length)
            while index and _end_of(index) > reach:
                index = index[:-_ENTRY]
        at = _end_of(index) if index else _VERSION
        if reach > at:
            found = read_stretch(source.disk, fd, at, to=reach)
            index += self._salvage(s, found.data, at, scan.last, named)
            if s.bad and s.bad[-1].end == at + len(found.data) < reach:
                # The zeros behind that are not read, and are no records either.
                s.bad[-1] = replace(s.bad[-1], end=reach)
            s.refused = s.refused or (found.words if found.resumes else "")
        s.located = len(index) // _ENTRY
        if index:
            s.all_first = records.entry(index, 0)[0]
            s.all_last = records.entry(index, s.located - 1)[0]
            _count(s, index)
        return index

    def _ends_at_a_record(self, fd: int, body: bytes, count: int) -> bool:
        """Whether the record that the last entry names is there: an index of another file proves
        nothing.
        """
        sequence, offset, _, size = records.entry(body, count - 1)
        data = self._source.disk.pread(fd, 8 + size, offset)
        block, end, _ = records.scan_data(data, self.name, sequence - 1, self._source.crc)
        return len(block) == 1 and block.first == sequence and end == 8 + size

    def _salvage(self, s: SliceFile, data: bytes, base: int, after: int, named: bytes) -> bytes:
        """Entries of the records in ``data``, which starts at offset ``base``.

        What lies between goes to ``bad``. ``named``: what the index says, which may be another
        file's.
        """
        crc = self._source.crc
        sums = records.Sums(data, crc)
        index = bytearray()
        at = 0
        while at < len(data):
            block, end, why = records.scan_data(data, self.name, after, crc, start=at, sums=sums)
            if len(block):
                index += records.index_entries(block, 0, len(block), base + at, crc)
                after = block.last
            at = end
            if not why:
                break
            following = next_whole(
                data, at, self.name, after, crc, base=base, named=named, sums=sums
            )
            bad_end = len(data) if following < 0 else following
            s.bad.append(Bad(base + at, base + bad_end, plain(why)))
            at = bad_end
        return bytes(index)

    def _find_named(self, found: dict[int, str]) -> None:
        """Read the indexes of the slices without a record; ``found``: those that have data."""
        located = {s.number for s in self.all if s.located}
        for number in index_numbers([(n, False) for n in self.names]):
            if number in located or self._unconfirmed(number):
                continue
            if self._source.live and number in found:
                # What is there was not confirmed.
                continue
            if named := self._named(number):
                self.named[number] = named

    def _named(self, number: int) -> bytes:
        """The entries of an index that are a chain from the first record on."""
        idx = read_whole(self._source.disk, self.dirfd, idx_name(number)) or b""
        body = b"" if check_version(idx) else idx[_VERSION:]
        return body[: records.scan_index(body, self._source.crc).count * _ENTRY]

    def renamed(self, s: SliceFile) -> None:
        """The slice has the name by now that servers give it."""
        self._odd.pop(s.number, None)
        s.odd = ""

    @property
    def missing(self) -> list[lost.Seal]:
        """The slices of ours whose messages are gone, unless others have all of them."""
        return [
            seal
            for seal in self.lost
            if seal.is_damage and dat_name(seal.number) not in self.irregular
        ]

    @property
    def unused(self) -> set[str]:
        """Names of the indexes without data that end nothing and are nobody's."""
        there = {s.number for s in self.all} | {seal.number for seal in self.lost}
        numbers = index_numbers([(n, False) for n in self.names])
        return {idx_name(number) for number in numbers if number not in there}

    @property
    def last_named(self) -> int:
        """The last sequence that indexes above all slices that count name, 0 if there is none: it
        is not given out again.
        """
        top = max((s.number for s in self.slices), default=0)
        above = [named for number, named in self.named.items() if number > top]
        lasts = [records.entry(named, len(named) // _ENTRY - 1)[0] for named in above]
        return max([0, *lasts, *(seal.last for seal in self.lost)])

    def _settle(self) -> None:
        """Say which sequences of each slice count."""
        said = self.confirmed
        late = [s for s in self._ours if said is not None and _is_late(s, said)]
        if said is not None and late:
            # Only what counted when it was confirmed can be hidden.
            self._seal(said.slice_number)
            self.hiding = {s.number for s in late if self._hides(s, said)}
        self._seal()
        self.slices = sorted((s for s in self.all if s.entries), key=lambda s: s.first)

    @property
    def _ours(self) -> list[SliceFile]:
        return [s for s in self.all if s.located and s.number >= self._source.ours_from]

    def _seal(self, through: int = MAX_NUMBER) -> None:
        """Say which sequences count of each slice, if those up to the number ``through`` are all
        that there is.

        A slice of ours ends every lower-numbered one at its own first sequence, also one of which
        only the index is left. The original's are ordered by their first sequence; where two hold
        the same, the first one counts.
        """
        self.lost = []
        end: int | None = None
        ours = {s.number: s for s in self._ours if s.number <= through}
        missing = [number for number in self._find_lost() if number <= through]
        for number in sorted({*ours, *missing}, reverse=True):
            s = ours.get(number)
            if s is not None:
                first = s.all_first
                if self.confirmed is not None and number in self.hiding:
                    # It cannot hide what was confirmed below it: such a slice is damage, and counts
                    # from there on.
                    first = max(first, self.confirmed.sequence + 1)
                self._cut(s, first, s.all_last if end is None else min(s.all_last, end - 1))
                end = first if end is None else min(end, first)
            named = self.named[number] if s is None else self._named_before(s)
            below = self._entries_below(number) if named else b""
            seal = lost.find_seal(number, named, below, self.confirmed, end) if named else None
            if seal is not None:
                if s is None:
                    self.lost.insert(0, seal)
                end = seal.first
        self._merge(end, through)

    def _find_lost(self) -> list[int]:
        """Numbers of the slices of ours without a record that end lower ones."""
        source = self._source
        filled = [s.number for s in self.all if s.located or s.bad]
        live = [s.number for s in self.all if s.located]
        foreign = source.may_be_originals(self.name, self.confirmed)
        return [
            number
            for number in self.named
            if number >= source.ours_from
            and lost.may_end(number, filled)
            and lost.is_sure(number, live, self.confirmed, foreign=foreign)
        ]

    def _named_before(self, s: SliceFile) -> bytes:
        """The entries of a slice whose first records cannot be read; none of any other."""
        if not s.bad or s.bad[0].start > _VERSION:
            return b""
        named = self._named(s.number)
        return named if named and records.entry(named, 0)[0] < s.all_first else b""

    def _entries_below(self, number: int) -> bytes:
        """The entries of the next lower slice that has records."""
        below = max((s.number for s in self.all if s.located and s.number < number), default=None)
        return b"" if below is None else self._measure(below)[1]

    def _merge(self, end: int | None, through: int) -> None:
        """Say the same of the original's slices, of which nothing counts from ``end`` on."""
        before: SliceFile | None = None
        most = min(self._source.ours_from - 1, through)
        others = [s for s in self.all if s.located and s.number <= most]
        for s in sorted(others, key=lambda s: (s.all_first, -s.all_last, s.number)):
            s.differs = None
            last = s.all_last if end is None else min(s.all_last, end - 1)
            first = s.all_first
            if before is not None and first <= before.last:
                until = min(last, before.last)
                if self._payloads(s, first, until) != self._payloads(before, first, until):
                    if self._went_on(before, s):
                        self._cut(before, before.first, first - 1)
                    else:
                        s.differs = first, until, before.dat
                first = before.last + 1
            self._cut(s, first, last)
            if s.entries:
                before = s

    def _went_on(self, before: SliceFile, s: SliceFile) -> bool:
        idx = read_whole(self._source.disk, self.dirfd, before.idx) or b""
        scan = records.scan_index(idx[_VERSION:], self._source.crc)
        return (
            before.number < s.number
            and scan.count > 0
            and scan.contiguous
            and before.idx_size == _VERSION + scan.count * _ENTRY
            and went_on(before.all_first, before.last, scan.last, s.all_first)
        )

    def _hides(self, s: SliceFile, confirmed: Confirmed) -> bool:
        """Whether the slice, which begins at or below the last confirm before it, differs from what
        counted then.

        The same records are a copy: a clean stop moves the last one of a former owner's slice, and
        may be killed before it confirms that. A start judges in the same way
        (``recovery.judging``).
        """
        for low in self.all:
            last = min(confirmed.sequence, low.last)
            if low.entries and low.number <= confirmed.slice_number and s.all_first <= last:
                first = max(s.all_first, low.first)
                before = self._payloads(low, first, last)
                if before and before != self._payloads(s, first, last):
                    return True
        return False

    def contradicts(self, s: SliceFile, bad: Bad) -> bool:
        """Whether what stands at a bad place gives other contents to sequences that the slice has.

        Raises ``OSError``.
        """
        disk = self._source.disk
        fd = open_file(disk, self.dirfd, s.dat)
        try:
            data = disk.pread(fd, min(bad.end - bad.start, _CHUNK), bad.start)
        finally:
            disk.close(fd)
        block, _, _ = records.scan_data(data, self.name, 0, self._source.crc)
        if not len(block) or block.first > s.all_last:
            return False
        again = [(block.sequence(i), bytes(block.payload(i))) for i in range(len(block))]
        return again != self._payloads(s, block.first, block.last)

    def _payloads(self, s: SliceFile, first: int, last: int) -> list[tuple[int, bytes]]:
        """Sequence and payload of the records ``first`` to ``last`` that can be located."""
        _, index = self._measure(s.number)
        index = index[
            records.find_entry(index, first) * _ENTRY : records.find_entry(index, last + 1) * _ENTRY
        ]
        disk = self._source.disk
        fd = open_file(disk, self.dirfd, s.dat)
        try:
            return [
                (sequence, disk.pread(fd, size, offset + records.HEADER_SIZE))
                for sequence, offset, _, size, _ in INDEX.iter_unpack(index)
            ]
        finally:
            disk.close(fd)

    def _cut(self, s: SliceFile, first: int, last: int) -> None:
        """Of the slice only ``first`` to ``last`` count."""
        if (first, last) != (s.first, s.last):
            _, index = self._measure(s.number)
            _count(
                s,
                index[
                    records.find_entry(index, first) * _ENTRY : records.find_entry(index, last + 1)
                    * _ENTRY
                ],
            )


def _is_late(s: SliceFile, confirmed: Confirmed) -> bool:
    """Whether the slice is newer than the last confirm and begins at or below it."""
    return s.number > confirmed.slice_number and s.all_first <= confirmed.sequence


def channel_names(source: Source) -> tuple[list[bytes], list[str]]:
    """Names of the channels, sorted, and of the directories that are none."""
    channels = []
    others = []
    for name, is_dir in sorted(source.disk.listdir(source.root)):
        if not is_dir:
            continue
        encoded = os.fsencode(name)
        if valid_channel(encoded) and _may_be_channel(source, name):
            channels.append(encoded)
        else:
            others.append(name)
    return channels, others


def _may_be_channel(source: Source, name: str) -> bool:
    """Whether a directory holds a channel, or may: one that cannot be looked into is not passed
    over.
    """
    try:
        fd = source.disk.open_dir_at(source.root, name)
    except OSError:
        # The file system's own is for root alone.
        return name != FOREIGN
    try:
        return holds_channel(source.disk.listdir(fd))
    except OSError:
        return True
    finally:
        source.disk.close(fd)


def _end_of(index: bytes) -> int:
    _, offset, _, size = records.entry(index, len(index) // _ENTRY - 1)
    return offset + 8 + size


def bad_record(batch: bytes, sequence: int, offset: int, why: str) -> Bad:
    """The place of a record that is bad, by its entry in ``batch``."""
    k = records.find_entry(batch, sequence)
    return Bad(offset, offset + 8 + records.entry(batch, k)[3], f"sequence {sequence}: {why}")


def _without_holes(batch: bytes) -> bytes:
    """The entries up to the first that does not follow its predecessor in the data."""
    end = records.entry(batch, 0)[1]
    for k, (_, offset, _, size, _) in enumerate(INDEX.iter_unpack(batch)):
        if offset != end:
            return batch[: k * _ENTRY]
        end = offset + 8 + size
    return batch


def _count(s: SliceFile, index: bytes) -> None:
    """The entries ``index`` of the slice are those that count."""
    s.entries = len(index) // _ENTRY
    if not s.entries:
        s.first = s.last = s.first_ts = s.last_ts = 0
        s.end = _VERSION
        return
    s.first, _, s.first_ts, _ = records.entry(index, 0)
    s.last, _, s.last_ts, _ = records.entry(index, s.entries - 1)
    s.end = _end_of(index)


def _size(source: Source, fd: int) -> int:
    """Bytes of an open file; a network file system may have told this host of fewer."""
    size = source.disk.fstat(fd).size
    while not source.live and (more := source.disk.pread(fd, _CHUNK, size)):
        size += len(more)
    return size
