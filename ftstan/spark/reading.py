"""Reading one part of a plan: slices in, Arrow batches out, and everything strange said with its
file and offset.

Memory holds one window of data and one batch, whatever the size of a slice. A message that cannot
be read is a row that says so; what no row can stand for is a finding of the report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ftstan.base.errors import DamageError, StoreError
from ftstan.spark.conflicts import conflicts
from ftstan.spark.decode import FROM_DATA, Builder, beginning, ending, gaps, select
from ftstan.spark.keys import undecryptable
from ftstan.spark.pieces import SliceReader, Stretch
from ftstan.spark.report import ReadingFinding, ReadingKind
from ftstan.spark.resolve import checksum, directory, resolved
from ftstan.stores.file.log import records
from ftstan.stores.file.log.view import dat_name, idx_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from ftstan.spark.keys import KeySource
    from ftstan.spark.parts import Range, Share, Work
    from ftstan.spark.report import ReadingReport
    from ftstan.spark.resolve import Counted

_ENTRY = records.INDEX_SIZE

#: A batch is handed over when it has so many rows or bytes of payloads.
_ROWS = 32768
_BYTES = 4 << 20
#: Bytes of data that are read at once; a larger record is read alone.
_WINDOW = 4 << 20


class _Open(NamedTuple):
    """A slice that is being read: what is read of it, and where the last message before was."""

    share: Share
    counted: Counted
    reader: SliceReader
    shown: str


class PartReader:
    """See ``log.read``, whose arguments these are."""

    def __init__(
        self,
        part: Work,
        columns: tuple[str, ...],
        report: ReadingReport,
        *,
        fail_on_data_loss: bool,
        refuse_encrypted: bool | None,
        keys: KeySource,
    ) -> None:
        self._part = part
        self._report = report
        self._fail_on_data_loss = fail_on_data_loss
        self._refuse_encrypted = refuse_encrypted
        self._crc = checksum(part.polynomial)
        self._builder = Builder(columns, self._crc)
        self._wants_payloads = "data" in columns
        self._with_data = bool(FROM_DATA & set(columns))
        self._window = bytearray(_WINDOW)
        self._encrypted = 0
        self._ring = keys.ring()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Everything of the part. Raises ``StoreError`` and ``OSError``."""
        if (
            self._part.encrypted
            and self._ring is None
            and self._refuse_encrypted is not False
            and self._wants_payloads
        ):
            raise StoreError(
                f"datastore {self._part.path} is encrypted",
                hint="name its keys with encryptionKeyFile; failOnEncrypted=false gives payloads "
                "as they are stored",
            )
        for finding in self._part.findings:
            self._report.add(finding)
        for share in self._part.shares:
            yield from self._share(share)
        if self._builder.rows:
            yield self._finished()

    def _finished(self) -> pa.RecordBatch:
        self._report.rows += self._builder.rows
        return self._builder.finish()

    def _full(self) -> Iterator[pa.RecordBatch]:
        if self._builder.rows >= _ROWS or self._builder.nbytes >= _BYTES:
            yield self._finished()

    def _share(self, share: Share) -> Iterator[pa.RecordBatch]:
        part = self._part
        listed = share.channel
        try:
            counted, read = resolved(part.path, listed, part.ours_from, part.polynomial)
        except FileNotFoundError:
            self._lose(share, "", "the channel's directory is gone")
            return
        self._report.index_bytes += read
        by_number = {c.file.number: c for c in counted}
        order = {number: place for place, number in enumerate(by_number)}
        files = {s.number: s for s in listed.slices}
        decrypt = None if self._ring is None else self._ring.channel(listed.name).decrypt
        with directory(part.path, listed) as dirfd:
            for r in sorted(share.ranges, key=lambda r: (order.get(r.number, -1), r.start)):
                try:
                    reader = SliceReader(
                        dirfd, listed.name, files[r.number], self._crc, self._report
                    )
                except FileNotFoundError:
                    self._lose(
                        share,
                        files[r.number].dat,
                        "the slice went away after the query had been planned",
                    )
                    continue
                with reader:
                    self._report.slices += 1
                    if reader.refused and r.start == 0:
                        shown = f"{listed.shown}/{reader.file.dat}"
                        self._report.add(
                            ReadingFinding(
                                ReadingKind.DAMAGE, listed.shown, shown, reader.refused, 0
                            )
                        )
                    found = by_number.get(r.number)
                    if found is None:
                        self._hidden(share, reader)
                        continue
                    self._builder.begin(listed.name, listed.shown, r.number, decrypt)
                    yield from self._range(
                        _Open(share, found, reader, f"{listed.shown}/{reader.file.dat}"), r
                    )
                    self._look_for_encryption(share, reader)
            if share.ending:
                self._ending(share, counted, dirfd)

    def _lose(self, share: Share, file: str, text: str) -> None:
        shown = f"{share.channel.shown}/{file}" if file else share.channel.shown
        if self._fail_on_data_loss:
            raise StoreError(
                f"datastore {self._part.path}: {shown}: {text}",
                hint="ask again, read less of the past, or set failOnDataLoss=false to go on "
                "without it",
            )
        self._report.add(ReadingFinding(ReadingKind.LOSS, share.channel.shown, shown, text))

    # ---- one range
    # ----------------------------------------------------------------------------------------------

    def _range(self, s: _Open, r: Range) -> Iterator[pa.RecordBatch]:
        if r.start == 0 and s.counted.first > max(s.counted.begins, s.share.channel.purged + 1):
            self._report_conflicts(s.share, s.reader)
        after = 0 if r.start else s.counted.first - 1
        pending: Stretch | None = None
        for piece in s.reader.located(r.start):
            if piece.stretch is not None:
                if piece.stretch.start < r.end:
                    pending = piece.stretch
                continue
            entries = piece.entries
            if pending is not None:
                begins = records.entry(entries, 0)[0]
                self._stretch(s, pending, begins)
                # What is missing there has been said.
                after = begins - 1
                pending = None
            whole = len(entries) // _ENTRY
            counting = records.find_entry(entries, s.counted.last + 1)
            count = min(beginning(entries, r.end), counting)
            begin = records.find_entry(entries, s.counted.first)
            # With the first message of the next range: what is missing between two of them is this
            # one's to tell.
            self._holes(s, entries[begin * _ENTRY : min(count + 1, counting) * _ENTRY], after)
            if begin < count:
                mine = entries[begin * _ENTRY : count * _ENTRY]
                after = records.entry(mine, len(mine) // _ENTRY - 1)[0]
                yield from self._rows(s, mine)
            if count < whole:
                return
        yield from self._tail(s, r, after, pending)

    def _rows(self, s: _Open, entries: bytes) -> Iterator[pa.RecordBatch]:
        for i, j in select(entries, *self._bounds(s)):
            if not self._with_data:
                self._builder.add(entries, i, j)
                yield from self._full()
                continue
            k = i
            while k < j:
                start = records.entry(entries, k)[1]
                stop = min(max(ending(entries, start + _WINDOW), k + 1), j)
                _, offset, _, size = records.entry(entries, stop - 1)
                need = offset + 8 + size - start
                data = s.reader.data(start, min(need, max(s.reader.size - start, 0)), self._window)
                try:
                    bad = self._builder.add(entries, k, stop, data, start)
                except StoreError as error:
                    raise undecryptable(
                        error,
                        f"datastore {self._part.path}",
                        s.share.channel.shown,
                        self._builder.undecryptable,
                    ) from error
                self._bad(s, bad)
                k = stop
                yield from self._full()

    def _bounds(self, s: _Open) -> tuple[int, int, int, int]:
        b = s.share.bounds
        return b.first, b.last, b.since, b.until

    def _bad(self, s: _Open, bad: list[tuple[int, int, str]]) -> None:
        self._report.bad_rows += len(bad)
        for sequence, offset, why in bad:
            self._report.add(
                ReadingFinding(
                    ReadingKind.DAMAGE, s.share.channel.shown, s.shown, why, offset, sequence
                )
            )

    def _holes(self, s: _Open, entries: bytes, after: int) -> None:
        for low, high in gaps(entries, after):
            text = f"sequences {low} to {high} are missing before this record"
            offset = records.entry(entries, records.find_entry(entries, low))[1]
            self._report.add(
                ReadingFinding(ReadingKind.LOSS, s.share.channel.shown, s.shown, text, offset, low)
            )

    # ---- what is no record
    # -----------------------------------------------------------------------------------------

    def _stretch(self, s: _Open, stretch: Stretch, following: int) -> None:
        """Bytes that are no record.

        ``following``: the sequence of the message behind them, 0 if there is none.
        """
        shown = s.share.channel.shown
        size = stretch.end - stretch.start
        if 0 < following <= stretch.after + 1 and s.reader.file.number >= self._part.ours_from:
            # Behind a seal lies what a former owner wrote too late: it is nobody's.
            return
        expected = stretch.after + 1 if stretch.after else max(following - 1, 1)
        confirmed = s.share.channel.confirmed
        promised = confirmed is not None and confirmed.sequence >= expected
        if 0 < following <= stretch.after + 1 or (not following and not promised):
            what = "nothing is missing" if following else "they were never acknowledged"
            text = f"{size} bytes are no record ({stretch.why}): {what}"
            self._report.add(ReadingFinding(ReadingKind.NOTE, shown, s.shown, text, stretch.start))
            return
        text = f"{size} bytes are no record ({stretch.why})"
        self._report.bad_rows += 1
        if self._wanted(s, expected):
            self._builder.lost(expected, stretch.start, stretch.why)
        self._report.add(
            ReadingFinding(ReadingKind.DAMAGE, shown, s.shown, text, stretch.start, expected)
        )

    def _wanted(self, s: _Open, sequence: int) -> bool:
        b = s.share.bounds
        return b.first <= sequence <= b.last

    def _tail(
        self, s: _Open, r: Range, after: int, pending: Stretch | None
    ) -> Iterator[pa.RecordBatch]:
        """The end of a slice: what is bad there, what its index names in vain, and what is missing
        before the next.
        """
        following = s.counted.following
        if pending is not None and not s.reader.trust().named:
            self._stretch(s, pending, following)
        if r.end < s.reader.file.size:
            return
        named = s.reader.trust().named if s.share.channel.limit is None else b""
        named = named[records.find_entry(named, after + 1) * _ENTRY :]
        if following:
            named = named[: records.find_entry(named, following) * _ENTRY]
        for k in range(len(named) // _ENTRY):
            after, offset, timestamp, _ = records.entry(named, k)
            why = (
                pending.why if pending is not None and pending.start == offset else "unexpected EOF"
            )
            if select(named[k * _ENTRY :][:_ENTRY], *self._bounds(s)):
                self._builder.lost(after, offset, why, timestamp)
            self._bad(s, [(after, offset, why)])
        yield from self._full()
        if pending is None and following > after + 1 and after:
            text = f"sequences {after + 1} to {following - 1} are missing behind its last message"
            self._report.add(
                ReadingFinding(
                    ReadingKind.LOSS, s.share.channel.shown, s.shown, text, s.reader.size, after + 1
                )
            )

    def _hidden(self, share: Share, reader: SliceReader) -> None:
        """A slice of which nothing counts: hidden by a higher one, empty, or damaged from its
        beginning to its end.
        """
        listed = share.channel
        shown = f"{listed.shown}/{reader.file.dat}"
        stretches = []
        for piece in reader.located():
            if piece.stretch is None:
                if reader.file.number < self._part.ours_from:
                    self._report_conflicts(share, reader)
                return
            stretches.append(piece.stretch)
        newest = reader.file.number == listed.slices[-1].number
        promised = (
            listed.confirmed is not None and listed.confirmed.slice_number == reader.file.number
        )
        for stretch in stretches:
            never = newest and not promised and stretch.why != "record of another channel"
            kind = ReadingKind.NOTE if never else ReadingKind.DAMAGE
            text = f"{stretch.end - stretch.start} bytes are no record ({stretch.why})"
            self._report.add(ReadingFinding(kind, listed.shown, shown, text, stretch.start))
        named = reader.trust().named
        if named:
            last = records.entry(named, len(named) // _ENTRY - 1)[0]
            text = (
                f"no message is in it, its index names sequences {records.entry(named, 0)[0]} to "
                f"{last}"
            )
            self._report.add(
                ReadingFinding(ReadingKind.LOSS, listed.shown, shown, text, reader.size)
            )
        elif 0 < reader.size < records.VERSION_SIZE:
            text = f"it has {reader.size} bytes: it was never filled"
            self._report.add(ReadingFinding(ReadingKind.NOTE, listed.shown, shown, text, 0))

    def _ending(self, share: Share, counted: tuple[Counted, ...], dirfd: int) -> None:
        """What the end of a channel shows: indexes without data, and less than was confirmed."""
        listed = share.channel
        for number in listed.orphans:
            text = f"there is no {dat_name(number)}: what this index names is not there"
            self._report.add(
                ReadingFinding(
                    ReadingKind.LOSS, listed.shown, f"{listed.shown}/{idx_name(number)}", text
                )
            )
        confirmed = listed.confirmed
        if confirmed is None:
            return
        last = listed.purged
        if counted:
            try:
                with SliceReader(
                    dirfd, listed.name, counted[-1].file, self._crc, self._report
                ) as reader:
                    last = min(reader.last(), counted[-1].last)
            except FileNotFoundError:
                return
        if last < confirmed.sequence:
            shown = f"{listed.shown}/{dat_name(confirmed.slice_number)}"
            text = f"was acknowledged up to sequence {confirmed.sequence}, and ends at {last}"
            self._report.add(ReadingFinding(ReadingKind.LOSS, listed.shown, shown, text))

    # ---- two contents
    # ----------------------------------------------------------------------------------------------

    def _report_conflicts(self, share: Share, reader: SliceReader) -> None:
        """Look whether messages that other slices hold, too, are the same ones there."""
        for finding in conflicts(self._part, share.channel, reader, self._crc, self._report):
            self._report.add(finding)

    # ---- payloads that nobody can read
    # -----------------------------------------------------------------------------

    def _look_for_encryption(self, share: Share, reader: SliceReader) -> None:
        more = self._builder.encrypted - self._encrypted
        if not more:
            return
        self._encrypted += more
        self._report.encrypted += more
        shown = f"{share.channel.shown}/{reader.file.dat}"
        if self._refuse_encrypted:
            raise DamageError(
                f"datastore {self._part.path}: {shown}: {more} payloads look encrypted",
                hint="name their keys with encryptionKeyFile; failOnEncrypted=false gives them as "
                "they are stored",
            )
        text = f"{more} payloads look encrypted: they are given as they are stored"
        self._report.add(ReadingFinding(ReadingKind.NOTE, share.channel.shown, shown, text))
