"""One unit of the archive job, as a worker does it: read, check, merge, write, read back.

A slice that fails a check is left out, and its unit begins again without it: nothing of it is in
any file. What comes back is plain data. Writes only below the run's staging directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ftstan.spark.archive.merge import RowKind, merge
from ftstan.spark.archive.report import Conflict, Failed
from ftstan.spark.archive.rows import range_of
from ftstan.spark.archive.slices import SliceError, SliceRows
from ftstan.spark.archive.spool import ArchiveError
from ftstan.spark.archive.stores import StoredRows
from ftstan.spark.archive.table import CONFLICTS, ROWS, DataFile, metadata_of
from ftstan.spark.archive.writing import Writer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.spark.archive.merge import Source
    from ftstan.spark.archive.plan import Stretch, Unit, Where

#: Sequences with several contents that are in memory at a time, as bytes; more than that are
#: several files.
_CONFLICT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a unit. ``files`` and ``conflict_files`` are ``(path now, path in the table)``.

    ``slices`` are paths in the spool that are archived whole. ``error``: why nothing came of it.
    """

    unit: int
    files: list[tuple[str, DataFile]] = field(default_factory=list)
    conflict_files: list[tuple[str, str]] = field(default_factory=list)
    slices: list[str] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    duplicates: int = 0
    error: str = ""
    hint: str = ""


def to_json(rows: list[Done]) -> str:
    """For the way back to the driver."""
    return json.dumps([asdict(row) for row in rows])


def from_json(text: str) -> list[Done]:
    """What ``to_json`` was given."""
    return [
        Done(
            **{
                **row,
                "files": [(path, DataFile(**file)) for path, file in row["files"]],
                "conflict_files": [(path, target) for path, target in row["conflict_files"]],
                "failed": [Failed(**failed) for failed in row["failed"]],
                "conflicts": [Conflict(**conflict) for conflict in row["conflicts"]],
            }
        )
        for row in json.loads(text)
    ]


class FileRows:
    """The rows of a file of the table between two sequences (a ``merge.Source``)."""

    def __init__(self, table: str, file: DataFile, first: int, last: int, kind: RowKind) -> None:
        self.kind = kind
        self._path = os.path.join(table, file.path)
        self.label = file.path
        self.first = max(first, file.first)
        self._last = min(last, file.last)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Batches whose sequences ascend, whoever wrote the file. Raises ``ArchiveError``."""
        try:
            with pq.ParquetFile(self._path) as file:
                for groups in _ordered_groups(file, self.first, self._last):
                    table = file.read_row_groups(
                        groups, columns=ROWS.names, use_threads=False
                    ).cast(ROWS)
                    sequences = table["sequence"]
                    inside = pc.and_(
                        pc.greater_equal(sequences, self.first),
                        pc.less_equal(sequences, self._last),
                    )
                    yield from (
                        table.filter(inside).sort_by("sequence").combine_chunks().to_batches()
                    )
        except (OSError, pa.ArrowException) as error:
            raise ArchiveError(
                f"{self._path}: {str(error).splitlines()[0]}",
                hint="restore the file from a copy of the archive",
            ) from error


def _ordered_groups(file: pq.ParquetFile, first: int, last: int) -> list[list[int]]:
    """Row groups that have sequences between the two, one by one if their ranges ascend, else all
    at once.
    """
    ranges = []
    for k in range(file.num_row_groups):
        found = range_of(file, k, "sequence")
        if found is None:
            return [list(range(file.num_row_groups))]
        ranges.append((*found, k))
    ranges = sorted(row for row in ranges if row[0] <= last and row[1] >= first)
    if any(a[1] >= b[0] for a, b in pairwise(ranges)):
        return [[k for _, _, k in ranges]]
    return [[k] for _, _, k in ranges]


class _Disputes:
    """Sequences with several contents: written aside as they come."""

    def __init__(self, where: Where, channel: str) -> None:
        self._where = where
        self._channel = channel
        self._waiting: list[pa.Table] = []
        self.files: list[tuple[str, str]] = []
        self.found: Conflict | None = None

    def add(self, table: pa.Table) -> None:
        """Variants of some sequences."""
        bounds = pc.min_max(table["sequence"])
        old = pc.sum(table["archived"]).as_py()
        new = Conflict(
            self._channel,
            bounds["min"].as_py(),
            bounds["max"].as_py(),
            pc.count_distinct(table["sequence"]).as_py(),
            old,
        )
        self.found = new if self.found is None else _together(self.found, new)
        self._waiting.append(table)
        if sum(t.nbytes for t in self._waiting) > _CONFLICT_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits. Raises ``OSError``."""
        if not self._waiting:
            return
        table = pa.concat_tables(self._waiting)
        rows = table.num_rows
        table = table.add_column(0, "channel", pa.array([self._channel] * rows, pa.string()))
        table = table.append_column("batch", pa.array([self._where.batch] * rows, pa.int64()))
        table = table.replace_schema_metadata(metadata_of(self._channel, self._where.payloads))
        part = f"{self._where.batch:08d}-{self._where.unit:06d}-{uuid.uuid4().hex[:12]}"
        name = f"part-{part}.zstd.parquet"
        path = os.path.join(self._where.staging, f"conflicts-{name}")
        with open(path, "xb") as file:
            pq.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        self.files.append((path, os.path.join(CONFLICTS, name)))
        self._waiting = []


def _together(a: Conflict, b: Conflict) -> Conflict:
    return replace(
        a,
        first=min(a.first, b.first),
        last=max(a.last, b.last),
        sequences=a.sequences + b.sequences,
        archived=a.archived + b.archived,
    )


def carry_out(unit: Unit, where: Where) -> Done:
    """Do a unit; what is wrong with a slice, or with the storage, is in the answer."""
    failed: list[Failed] = []
    while True:
        writer = Writer(where, unit.channel)
        disputes = _Disputes(where, unit.channel)
        left_out = {f.path for f in failed}
        try:
            duplicates, notes = _write(unit, where, writer, disputes, left_out)
        except SliceError as error:
            writer.discard()
            failed.append(Failed(error.path, unit.channel, error.text))
            continue
        except ArchiveError as error:
            return Done(where.unit, error=error.text, hint=error.hint)
        except OSError as error:
            text = f"{error.filename or where.staging}: {error.strerror or error}"
            return Done(
                where.unit,
                error=text,
                hint="nothing is lost: run the job again when the storage works",
            )
        done = [s for s in unit.slices if s.path not in left_out]
        return Done(
            where.unit,
            writer.done,
            disputes.files,
            [s.path for s in done],
            failed,
            [disputes.found] if disputes.found else [],
            [*notes, *(note for s in done for note in _notes(s))],
            duplicates,
        )


def _write(
    unit: Unit, where: Where, writer: Writer, disputes: _Disputes, left_out: set[str]
) -> tuple[int, list[str]]:
    """Every stretch of the unit into files.

    Returns how many rows were there already, and what sources noted.
    """
    duplicates = 0
    notes = []
    for stretch in unit.stretches:
        sources = _sources(stretch, where, left_out)
        for piece in merge(sources):
            duplicates += piece.duplicates
            if piece.conflicts is not None:
                disputes.add(piece.conflicts)
            if piece.rows.num_rows:
                writer.write(piece.rows)
        notes += [
            note for source in sources if isinstance(source, StoredRows) for note in source.notes
        ]
    writer.close()
    disputes.flush()
    return duplicates, notes


def _sources(stretch: Stretch, where: Where, left_out: set[str]) -> list[Source]:
    keys = where.opening
    refused = where.refuses_encrypted
    new: list[SliceRows | StoredRows] = [
        *(SliceRows(s, keys, refuse_encrypted=refused) for s in stretch.slices),
        *(StoredRows(s, keys, refuse_encrypted=refused) for s in stretch.stored),
    ]
    new = [source for source in new if source.label not in left_out]
    if not new:
        return []
    known = [(file, RowKind.ARCHIVED) for file in stretch.files] + [
        (file, RowKind.DISPUTED) for file in stretch.disputed
    ]
    return [
        *new,
        *(FileRows(where.table, file, stretch.first, stretch.last, kind) for file, kind in known),
    ]


def _notes(s: Any) -> Iterator[str]:
    """What an operator may want to know of a slice that was archived."""
    m = s.manifest
    if m.problem:
        yield f"{s.path}: {m.problem}; it was read from its data"
    if m.size > m.end:
        yield f"{s.path}: {m.size - m.end} bytes behind the last message were left out"
    if m.count and m.count != m.last - m.first + 1:
        yield (
            f"{s.path}: {m.last - m.first + 1 - m.count} sequences between {m.first} and "
            f"{m.last} were missing"
        )


def mark(staging: str, unit: int, size: int) -> None:
    """Let the driver see that a unit has been done.

    A mark that cannot be written is missed by nobody but the bar.
    """
    with (
        contextlib.suppress(OSError),
        open(os.path.join(staging, f"done-{unit}-{size}"), "x", encoding="utf-8"),
    ):
        pass
