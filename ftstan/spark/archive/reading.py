"""Archives and spools as places that ``stan`` reads: what they hold, in parts, with the columns of
a datastore.

A table's own log says which files are read, and their bounds which are not; rows of a table passed
every check when they were archived, so ``crc_ok`` is true of all of them. A spool's slices are
checked and merged as the archive job does it: each message once, damage and sequences with two
contents as findings. Opens files for reading only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ftstan.base.errors import StoreError
from ftstan.spark.archive import spool
from ftstan.spark.archive.merge import merge
from ftstan.spark.archive.payloads import Opening
from ftstan.spark.archive.plan import Stretch, packed, stretches
from ftstan.spark.archive.rows import batches_of, range_of
from ftstan.spark.archive.slices import PayloadError, SliceError, SliceRows, shown
from ftstan.spark.archive.table import (
    ROWS,
    DataFile,
    described,
    identity_of,
    kind_of,
    open_log,
)
from ftstan.spark.decode import TYPES
from ftstan.spark.report import ReadingFinding, ReadingKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from ftstan.spark.archive.spool import Spooled
    from ftstan.spark.keys import KeySource
    from ftstan.spark.options import ReadOptions
    from ftstan.spark.parts import Bounds
    from ftstan.spark.report import ReadingReport

_CONFLICTS_SAID = 20


def table(options: ReadOptions) -> TableSnapshot:
    """A look at a Delta table or at Parquet files. Raises ``FtstanError``."""
    return TableSnapshot(options.path)


def spooled(options: ReadOptions) -> SpoolSnapshot:
    """A look at a spool. Raises ``FtstanError``."""
    return SpoolSnapshot(options.path)


# ---- tables
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileShare:
    """The ``part``-th of ``parts`` pieces of a file, and what is wanted of it."""

    file: DataFile
    bounds: Bounds
    part: int = 0
    parts: int = 1

    @property
    def size(self) -> int:
        """About how many bytes it is."""
        return self.file.size // self.parts


@dataclass(frozen=True, slots=True)
class TablePiece:
    """A part of a plan (``places.Piece``)."""

    path: str
    shares: tuple[FileShare, ...]
    payloads: str = ""

    def read(
        self,
        columns: tuple[str, ...],
        *,
        report: ReadingReport,
        fail_on_data_loss: bool,
        refuse_encrypted: bool | None,
        keys: KeySource,
    ) -> Iterator[pa.RecordBatch]:
        """The messages of every share. Raises ``StoreError``."""
        opening = Opening(self.path, self.payloads, keys, refuse_encrypted)
        for share in self.shares:
            where = os.path.join(self.path, share.file.path)
            try:
                with pq.ParquetFile(where) as file:
                    report.slices += 1
                    report.index_bytes += file.metadata.serialized_size
                    yield from _share(file, share, columns, report, opening)
            except FileNotFoundError as error:
                text = "the file went away after the query had been planned"
                if fail_on_data_loss:
                    raise StoreError(
                        f"archive {self.path}: {share.file.path}: {text}",
                        hint="restore it from a copy, or set failOnDataLoss=false to go on "
                        "without it",
                    ) from error
                report.add(
                    ReadingFinding(ReadingKind.LOSS, share.file.channel, share.file.path, text)
                )
            except (OSError, pa.ArrowException) as error:
                raise StoreError(
                    f"archive {self.path}: {share.file.path}: {str(error).splitlines()[0]}",
                    hint="restore the file from a copy of the archive",
                ) from error


def _share(
    file: pq.ParquetFile,
    share: FileShare,
    columns: tuple[str, ...],
    report: ReadingReport,
    opening: Opening,
) -> Iterator[pa.RecordBatch]:
    """What is wanted of one file."""
    groups = range(
        share.part * file.num_row_groups // share.parts,
        (share.part + 1) * file.num_row_groups // share.parts,
    )
    there = set(file.schema_arrow.names)
    opened = opening.of(file, share.file, columns)
    needs = {*columns, *opened.columns}
    wanted = [name for name in ROWS.names if name in needs and name in there]
    b = share.bounds
    for k in groups:
        cuts = []
        for name, low, high in (("sequence", b.first, b.last), ("timestamp_ns", b.since, b.until)):
            found = range_of(file, k, name)
            if found is not None and (found[0] > high or found[1] < low):
                break
            if found is None or found[0] < low or found[1] > high:
                cuts.append((name, low, high))
        else:
            needed = list(dict.fromkeys([*wanted, *(name for name, _, _ in cuts)]))
            report.data_bytes += _size(file, k, set(needed))
            # Rows without a column have no number: the smallest column stands for them.
            for batch in batches_of(file, needed or ["slice"], [k]):
                rows = _cut(batch, cuts)
                if rows.num_rows:
                    report.rows += rows.num_rows
                    yield with_columns(
                        opened.rows(rows), columns, share.file.channel, share.file.path
                    )


def _size(file: pq.ParquetFile, k: int, columns: set[str]) -> int:
    group = file.metadata.row_group(k)
    chunks = (group.column(i) for i in range(group.num_columns))
    return sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema in columns)


def _cut(batch: pa.RecordBatch, cuts: list[tuple[str, int, int]]) -> pa.RecordBatch:
    for name, low, high in cuts:
        column = batch[name]
        batch = batch.filter(pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high)))
    return batch


def with_columns(
    rows: pa.RecordBatch, columns: tuple[str, ...], channel: str, file: str
) -> pa.RecordBatch:
    """Rows with exactly these columns, as a reader of ``stan`` gives them."""
    n = rows.num_rows
    constant = {"channel": channel, "crc_ok": True, "file": file, "offset": None, "problem": None}
    arrays = []
    for name in columns:
        if name in constant:
            arrays.append(pa.repeat(pa.scalar(constant[name], TYPES[name]), n))
        else:
            arrays.append(rows[name].cast(TYPES[name]))
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * n, type=pa.struct([])))
    return pa.RecordBatch.from_arrays(
        arrays, schema=pa.schema([(name, TYPES[name]) for name in columns])
    )


class TableSnapshot:
    """The files of a table when it was opened (``places.Snapshot``)."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._files: dict[str, list[DataFile]] = {}
        known = identity_of(path)
        self._payloads = known.payloads if known else ""
        for file in open_log(path, kind_of(path)).files():
            self._files.setdefault(file.channel, []).append(file)

    @property
    def channels(self) -> Collection[str]:
        """Names of the channels that have messages here."""
        return sorted(self._files)

    def ends(self, channel: str) -> tuple[int, int]:
        """The first sequence that is there, and the one behind the last."""
        known = [f if f.rows >= 0 else described(self._path, f.path) for f in self._files[channel]]
        return min(f.first for f in known), max(f.last for f in known) + 1

    def plan(
        self, wanted: Mapping[str, Bounds], *, max_bytes: int, min_parts: int
    ) -> Sequence[TablePiece]:
        """Parts of about ``max_bytes`` of files.

        A large file is cut at its row groups, when it is read.
        """
        chosen = [
            (file, bounds)
            for channel, bounds in wanted.items()
            for file in sorted(self._files.get(channel, ()), key=lambda f: (f.first, f.path))
            if file.first <= bounds.last
            and file.last >= bounds.first
            and file.least_ns <= bounds.until
            and file.most_ns >= bounds.since
        ]
        size = max(min(max_bytes, sum(file.size for file, _ in chosen) // max(min_parts, 1) + 1), 1)
        shares = []
        for file, bounds in chosen:
            parts = max(-(-file.size // size), 1)
            shares += [FileShare(file, bounds, k, parts) for k in range(parts)]
        return [
            TablePiece(self._path, tuple(group), self._payloads) for group in packed(shares, size)
        ]


# ---- spools
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpoolShare:
    """Slices of one channel whose ranges overlap, and what is wanted of them."""

    channel: str
    stretch: Stretch
    bounds: Bounds

    @property
    def size(self) -> int:
        """Bytes of the slices."""
        return self.stretch.size


@dataclass(frozen=True, slots=True)
class SpoolPiece:
    """A part of a plan (``places.Piece``). ``findings``: what was wrong with the spool itself."""

    path: str
    shares: tuple[SpoolShare, ...]
    findings: tuple[ReadingFinding, ...] = field(default=())

    def read(
        self,
        columns: tuple[str, ...],
        *,
        report: ReadingReport,
        fail_on_data_loss: bool,
        refuse_encrypted: bool | None,
        keys: KeySource,
    ) -> Iterator[pa.RecordBatch]:
        """The messages of every share, each sequence once.

        Raises ``StoreError`` and ``DamageError``.
        """
        for finding in self.findings:
            report.add(finding)
        for share in self.shares:
            sources = [
                _Told(s, report, keys, fail=fail_on_data_loss, refuse_encrypted=refuse_encrypted)
                for s in share.stretch.slices
            ]
            for piece in merge(sources):
                if piece.conflicts is not None:
                    _tell_conflicts(share.channel, piece.conflicts, report)
                b = share.bounds
                for batch in piece.rows.to_batches():
                    rows = _cut(
                        batch, [("sequence", b.first, b.last), ("timestamp_ns", b.since, b.until)]
                    )
                    if rows.num_rows:
                        report.rows += rows.num_rows
                        yield with_columns(
                            rows, columns, share.channel, share.stretch.slices[0].path
                        )


class _Told(SliceRows):
    """A slice whose damage ends it and is told."""

    def __init__(
        self,
        slice_: Spooled,
        report: ReadingReport,
        keys: KeySource,
        *,
        fail: bool,
        refuse_encrypted: bool | None,
    ) -> None:
        super().__init__(slice_, keys)
        self._strict = bool(refuse_encrypted)
        self._spooled = slice_
        self._report = report
        self._fail = fail

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Batches up to the first thing that is wrong."""
        m = self._spooled.manifest
        self._report.slices += 1
        self._report.data_bytes += m.size
        self._report.index_bytes += m.index_size
        try:
            for batch in super().batches():
                if self.encrypted and self._strict:
                    raise StoreError(
                        f"spool {self._spooled.spool}: {self._spooled.path}: payloads look "
                        "encrypted",
                        hint="name their keys with encryptionKeyFile; failOnEncrypted=false gives "
                        "them as they are stored",
                    )
                yield batch
        except PayloadError as error:
            raise StoreError(
                f"spool {self._spooled.spool}: {error.text}", hint=error.hint
            ) from error
        except SliceError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                if self._fail:
                    raise StoreError(
                        f"spool {self._spooled.spool}: {self._spooled.path} went away after the "
                        "query had been planned",
                        hint="the archive job took it: read the archive, or set "
                        "failOnDataLoss=false",
                    ) from error
                self._report.add(
                    ReadingFinding(
                        ReadingKind.LOSS,
                        shown(m.channel),
                        self._spooled.path,
                        "the slice went away",
                    )
                )
                return
            self._report.add(
                ReadingFinding(ReadingKind.DAMAGE, shown(m.channel), self._spooled.path, error.text)
            )
            return
        if self.encrypted:
            self._report.encrypted += self.encrypted
            text = f"{self.encrypted} payloads look encrypted: they are given as they are stored"
            self._report.add(
                ReadingFinding(ReadingKind.NOTE, shown(m.channel), self._spooled.path, text)
            )


def _tell_conflicts(channel: str, rows: pa.Table, report: ReadingReport) -> None:
    """One finding for each sequence, with the slices that hold its contents.

    Of very many, one for the rest.
    """
    by_sequence: dict[int, list[str]] = {}
    for sequence, source in zip(
        rows["sequence"].to_pylist(), rows["source"].to_pylist(), strict=True
    ):
        by_sequence.setdefault(sequence, []).append(source)
    for k, (sequence, sources) in enumerate(by_sequence.items()):
        if k == _CONFLICTS_SAID:
            text = (
                f"{len(by_sequence) - k} more sequences up to {max(by_sequence)} have several "
                "contents: none is given"
            )
            report.add(
                ReadingFinding(ReadingKind.CONFLICT, channel, sources[0], text, sequence=sequence)
            )
            return
        text = f"has another content than in {', '.join(sources[1:])}: none is given"
        report.add(
            ReadingFinding(ReadingKind.CONFLICT, channel, sources[0], text, sequence=sequence)
        )


class SpoolSnapshot:
    """The slices of a spool when it was opened (``places.Snapshot``)."""

    def __init__(self, path: str) -> None:
        self._path = path
        listing = spool.slices(path)
        self._slices: dict[str, list[Spooled]] = {}
        for s in listing.slices:
            self._slices.setdefault(shown(s.manifest.channel), []).append(s)
        self._findings = tuple(
            ReadingFinding(ReadingKind.DAMAGE, "", where, why) for where, why in listing.broken
        )

    @property
    def channels(self) -> Collection[str]:
        """Names of the channels that have slices here."""
        return sorted(self._slices)

    def ends(self, channel: str) -> tuple[int, int]:
        """The first sequence that is there, and the one behind the last."""
        manifests = [s.manifest for s in self._slices[channel]]
        return min(m.first for m in manifests), max(m.last for m in manifests) + 1

    def plan(
        self, wanted: Mapping[str, Bounds], *, max_bytes: int, min_parts: int
    ) -> Sequence[SpoolPiece]:
        """Parts of about ``max_bytes`` of slices; slices that overlap are never apart."""
        shares = [
            SpoolShare(channel, stretch, bounds)
            for channel, bounds in wanted.items()
            for stretch in stretches(self._slices.get(channel, ()))
            if stretch.first <= bounds.last and stretch.last >= bounds.first
        ]
        size = max(min(max_bytes, sum(share.size for share in shares) // max(min_parts, 1) + 1), 1)
        made = [SpoolPiece(self._path, tuple(group)) for group in packed(shares, size)]
        if self._findings:
            made.append(SpoolPiece(self._path, (), self._findings))
        return made
