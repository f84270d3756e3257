"""The messages of one slice file, as index entries some thousands at a time, whatever state the
file is in.

An index is believed as far as its entries are a chain that ends at a record of the data; what lies
behind is read from the data, record by record, and on behind what is none. Memory does not grow
with the file. Opens files for reading only, and asks for no byte twice but to find where something
begins.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

from ftstan.base.disk import LocalDisk
from ftstan.spark.decode import beginning, ending
from ftstan.stores.file.log import records
from ftstan.stores.file.log.view import idx_name
from ftstan.stores.file.regular import IrregularError, open_file
from ftstan.stores.file.state.statefile import HEAD_SIZE, check_version, is_unfilled
from ftstan.stores.file.tools.statereading import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.spark.report import ReadingReport
    from ftstan.spark.scan import SliceFile
    from ftstan.stores.file.log.records import Crc

_ENTRY = records.INDEX_SIZE
_START = records.VERSION_SIZE
_HEAD = records.HEADER_SIZE

#: Entries that are in memory at a time.
_BATCH = 32768
#: Bytes of data that are looked through at a time where no index leads.
_WINDOW = 4 << 20
#: Bytes of a record that hold its sequence and its channel.
_PEEK = 512
#: No record is larger: a NATS server takes payloads of up to 64 MB.
_LARGEST = 65 << 20


class Stretch(NamedTuple):
    """Bytes ``start`` to ``end`` that are no record, why, and the last sequence before them."""

    start: int
    end: int
    why: str
    after: int


class Located(NamedTuple):
    """Entries of messages that follow each other, or a stretch between them."""

    entries: bytes
    stretch: Stretch | None = None


class _Links(NamedTuple):
    """Entries from number ``at`` on that continue a chain, up to offset ``end`` and sequence
    ``last``.
    """

    at: int
    entries: bytes
    end: int
    last: int


@dataclass(slots=True)
class Trust:
    """How much of an index is believed: ``entries`` of it, up to offset ``end`` of the data, the
    last one ``last``.

    ``named``: entries behind those whose record the data does not have.
    """

    entries: int = 0
    end: int = _START
    last: int = 0
    named: bytes = b""


class SliceReader:
    """One slice, open for reading. Close it, or use it as a context.

    Raises ``FileNotFoundError`` if the limits have removed it.
    """

    def __init__(
        self, dirfd: int, channel: bytes, file: SliceFile, crc: Crc, report: ReadingReport
    ) -> None:
        self.file = file
        self._channel = channel
        self._crc = crc
        self._report = report
        self._idx = -1
        self._dat = open_file(LocalDisk(), dirfd, file.dat)
        try:
            # Not longer than it was when somebody looked, and perhaps shorter by now.
            self.size = min(file.size, os.fstat(self._dat).st_size)
            #: What is wrong with the version of the file; it is read all the same, without its
            #: index.
            self.refused = self._check_version()
            self._idx = -1 if self.refused else self._open_index(dirfd)
        except BaseException:
            self.close()
            raise
        self._trust: Trust | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the files."""
        for fd in (self._dat, self._idx):
            if fd >= 0:
                os.close(fd)
        self._dat = self._idx = -1

    def _check_version(self) -> str:
        head = os.pread(self._dat, HEAD_SIZE, 0)
        return "" if is_unfilled(head) else check_version(head)

    def _open_index(self, dirfd: int) -> int:
        """The index; -1 if there is none that can be used."""
        try:
            fd = open_file(LocalDisk(), dirfd, idx_name(self.file.number))
        except (FileNotFoundError, IrregularError):
            return -1
        if check_version(os.pread(fd, _START, 0)):
            os.close(fd)
            return -1
        return fd

    # ---- bytes
    # ----------------------------------------------------------------------------------------------

    def data(self, start: int, size: int, into: bytearray | None = None) -> memoryview:
        """Bytes of the data; fewer at its end.

        ``into``: where to put them, valid until it is used again.
        """
        if into is None or len(into) < size:
            into = bytearray(size)
        view = memoryview(into)
        got = 0
        while got < size:
            n = os.preadv(self._dat, [view[got:size]], start + got)
            if not n:
                break
            got += n
        self._report.data_bytes += got
        return view[:got].toreadonly()

    def _bytes(self, start: int, size: int) -> bytes:
        return bytes(self.data(start, size))

    def _entries(self, at: int, count: int) -> bytes:
        """Entries from number ``at`` on; whole ones only."""
        if self._idx < 0:
            return b""
        data = os.pread(self._idx, count * _ENTRY, _START + at * _ENTRY)
        self._report.index_bytes += len(data)
        return data[: len(data) // _ENTRY * _ENTRY]

    # ---- how it begins and ends
    # ----------------------------------------------------------------------------------

    def first(self) -> tuple[int, int]:
        """Sequence and timestamp of the first message, zeros if there is none."""
        entry = self._entries(0, 1)
        scan = records.scan_index(entry, self._crc)
        if scan.count and scan.end <= self.size:
            peek = self._bytes(_START, min(_PEEK, scan.end - _START))
            if self._names(peek, scan.first, scan.end - _START - _HEAD):
                return scan.first, scan.first_ts
        for piece in self.located():
            if piece.entries:
                sequence, _, timestamp, _ = records.entry(piece.entries, 0)
                return sequence, timestamp
        return 0, 0

    def last(self) -> int:
        """Sequence of the last message, 0 if there is none."""
        if count := self._count:
            entry = self._entries(count - 1, 1)
            if entry and self._crc(entry[:-4]) == int.from_bytes(entry[-4:], "little"):
                sequence, offset, _, size = records.entry(entry, 0)
                if offset + _HEAD + size == self.size:
                    peek = self._bytes(offset, min(_PEEK, _HEAD + size))
                    if self._names(peek, sequence, size):
                        return sequence
        last = 0
        for piece in self.located():
            if piece.entries:
                last = records.entry(piece.entries, len(piece.entries) // _ENTRY - 1)[0]
        return last

    def _names(self, peek: bytes, sequence: int, size: int) -> bool:
        """Whether a record that begins so is of ``size`` bytes, of this channel, and has this
        sequence.
        """
        if int.from_bytes(peek[:4], "little") != size:
            return False
        head = b"\x08" + _varint(sequence) + b"\x12" + _varint(len(self._channel)) + self._channel
        return peek[_HEAD:].startswith(head)

    # ---- entries
    # ----------------------------------------------------------------------------------------------

    @property
    def _count(self) -> int:
        """Entries that the index may hold."""
        return 0 if self._idx < 0 else max(os.fstat(self._idx).st_size - _START, 0) // _ENTRY

    def trust(self) -> Trust:
        """How much of the index is believed.

        Reads all of it, unless its last entry names the very end of the data.
        """
        if self._trust is None:
            self._trust = Trust() if self._idx < 0 else self._anchored() or self._measured()
        return self._trust

    def _anchored(self) -> Trust | None:
        """All of an index whose last entry names the end of the data.

        The rest of it is seen as it is read.
        """
        count = self._count
        ends = self._entries(max(count - 2, 0), 2) if count else b""
        return self._ending(count, ends, b"") if ends and _end_of(ends) == self.size else None

    def _measured(self) -> Trust:
        """Of any other index what is a chain and within the data."""
        count = 0
        ends = b""
        named = b""
        for links in self._chain(self._count):
            fit = ending(links.entries, self.size)
            if fit:
                count = links.at + fit
                ends = (ends + links.entries[: fit * _ENTRY])[-2 * _ENTRY :]
            if fit * _ENTRY < len(links.entries):
                named = links.entries[fit * _ENTRY :]
                break
        return self._ending(count, ends, named) or Trust(named=b"" if ends else named)

    def _ending(self, count: int, ends: bytes, named: bytes) -> Trust | None:
        """Trust in ``count`` entries that end with ``ends``, if the last of them or the one before
        names a record.

        Else it is the index of another file, or its data has another end, and proves nothing.
        """
        while ends:
            last = ends[-_ENTRY:]
            sequence, offset, _, size = records.entry(last, 0)
            if self._is_record(sequence, offset, size):
                return Trust(count, _end_of(last), sequence, named)
            if len(ends) == _ENTRY or named[_ENTRY:]:
                break
            # The very last record may be bad itself: its entry names it in vain.
            count = count - 1
            ends = ends[:-_ENTRY]
            named = last + named
        return None

    def _chain(self, count: int) -> Iterator[_Links]:
        """The first ``count`` entries, as far as they are a chain."""
        at = 0
        end = _START
        last = 0
        while at < count:
            chunk = self._entries(at, min(_BATCH, count - at))
            if not chunk:
                return
            scan = records.scan_index(chunk, self._crc, True, end, last)
            good = chunk[: scan.count * _ENTRY]
            breaker = chunk[len(good) : len(good) + _ENTRY]
            end = scan.end
            last = scan.last or last
            there = self._elsewhere(breaker, last, end) if breaker else end
            yield _Links(at, good, end, last)
            if not there:
                return
            at = at + scan.count
            end = there

    def _elsewhere(self, entry: bytes, last: int, end: int) -> int:
        """Where an entry that ends a chain says that the next sequence begins, if a whole record of
        it is there.

        A killed server had left a record without an entry, and an original one appended behind it:
        the entry is right.
        """
        if not entry or self._crc(entry[:-4]) != int.from_bytes(entry[-4:], "little"):
            return 0
        sequence, offset, _, size = records.entry(entry, 0)
        there = sequence == last + 1 and offset > end and self._is_record(sequence, offset, size)
        return offset if there else 0

    def _is_record(self, sequence: int, offset: int, size: int) -> bool:
        if offset + _HEAD + size > self.size:
            return False
        data = self._bytes(offset, _HEAD + size)
        block, end, _ = records.scan_data(data, self._channel, sequence - 1, self._crc)
        return len(block) == 1 and block.first == sequence and end == _HEAD + size

    def located(self, start: int = _START) -> Iterator[Located]:
        """Everything from offset ``start`` on, in order."""
        trust = self.trust()
        at = _START
        last = 0
        # From the first entry on, wherever the wanted ones are: only a chain from the beginning is
        # one.
        for links in self._chain(trust.entries):
            at = links.end
            last = links.last
            yield from _clipped(Located(links.entries), start)
        if at < self.size:
            for piece in self._scanned(at, last):
                yield from _clipped(piece, start)

    def _scanned(self, start: int, after: int) -> Iterator[Located]:
        """Records and stretches from ``start`` on, of which no index says anything that is
        believed.
        """
        at = start
        window = _WINDOW
        while at < self.size:
            data = self._bytes(at, min(window, self.size - at))
            if not data:
                return
            block, used, why = records.scan_data(data, self._channel, after, self._crc)
            if len(block):
                yield Located(records.index_entries(block, 0, len(block), at, self._crc))
                after = block.last
            at += used
            if not why:
                continue
            window = _WINDOW
            if used and at - used + len(data) < self.size:
                # Perhaps only the window ends here; and what is bad is looked at from its
                # beginning.
                continue
            if not used:
                needed = _HEAD + int.from_bytes(data[:4], "little")
                if why == "torn" and len(data) < needed <= min(self.size - at, _LARGEST):
                    window = needed
                    continue
            following = self._next(at, after)
            yield Located(b"", Stretch(at, following, plain(why), after))
            at = following

    def _next(self, bad: int, after: int) -> int:
        """Where the next whole record begins behind ``bad``.

        The end of the file if there is none.
        """
        data = self._bytes(bad, min(2 * _LARGEST, self.size - bad))
        at = bad + records.search_from(data, 0, self._channel, after, self._crc)
        while at < self.size:
            data = self._bytes(at, min(2 * _LARGEST, self.size - at))
            found = records.next_record(data, 0, self._channel, after, self._crc)
            if found >= 0:
                return at + found
            if at + len(data) >= self.size or not data:
                break
            # A record may begin in one half and end in the other.
            at += len(data) // 2
        return self.size


def _clipped(piece: Located, start: int) -> Iterator[Located]:
    """What of a piece begins at or behind an offset."""
    if piece.stretch is None:
        low = beginning(piece.entries, start)
        if low * _ENTRY < len(piece.entries):
            yield Located(piece.entries[low * _ENTRY :])
    elif piece.stretch.start >= start:
        yield piece


def _end_of(entries: bytes) -> int:
    """The offset behind the record of the last entry."""
    _, offset, _, size = records.entry(entries, len(entries) // _ENTRY - 1)
    return offset + _HEAD + size


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
