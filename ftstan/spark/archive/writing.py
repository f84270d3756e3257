"""Writing a table's files: one a day and channel, closed at a size, synced, and read back before
anybody hears of it.

What is written is summed up column by column as it comes, and again as it is read from the finished
file; a file whose sums differ is an error. Runs in Spark's workers, below the staging directory of
one run; makes nothing visible.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ftstan.spark.archive.rows import batches_of
from ftstan.spark.archive.spool import ArchiveError
from ftstan.spark.archive.table import ROWS, DataFile, directory_of, metadata_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.spark.archive.plan import Where

#: Bytes and rows that are gathered into one row group.
_GROUP_BYTES = 32 << 20
_GROUP_ROWS = 1 << 20
#: Days that are being written at the same time: timestamps can step back.
_OPEN = 4
_PACKED = ("sequence", "timestamp", "timestamp_ns", "size")


class Sums:
    """A digest of each column's values, whatever the batches they come in."""

    def __init__(self) -> None:
        self._values = [hashlib.sha256() for _ in ROWS.names]
        self._lengths = [hashlib.sha256() for _ in ROWS.names]
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a batch with the columns of a table's files."""
        self.rows += batch.num_rows
        for name, digest, lengths in zip(ROWS.names, self._values, self._lengths, strict=True):
            column = batch[name]
            if pa.types.is_primitive(column.type):
                digest.update(_numbers(column))
            else:
                lengths.update(_numbers(pc.binary_length(column)))
                offsets = memoryview(column.buffers()[1]).cast("i")
                start = offsets[column.offset]
                end = offsets[column.offset + len(column)]
                digest.update(memoryview(column.buffers()[2] or b"")[start:end])

    def __eq__(self, other: object) -> bool:
        """Whether both saw the same rows in the same order."""
        if not isinstance(other, Sums):
            return NotImplemented
        return self._digests() == other._digests()

    def _digests(self) -> list[bytes]:
        return [digest.digest() for digest in self._values + self._lengths]

    __hash__ = None  # type: ignore[assignment]


def _numbers(column: pa.Array) -> memoryview:
    """The values of a column of numbers; none is negative where one can be absent."""
    values = pc.fill_null(column, -1) if column.null_count else column
    width = values.type.bit_width // 8
    return memoryview(values.buffers()[1] or b"")[
        values.offset * width : (values.offset + len(values)) * width
    ]


class _Open:
    """A file that is being written."""

    def __init__(self, where: Where, channel: str, date: str, number: int) -> None:
        part = f"{where.batch:08d}-{where.unit:06d}-{number:04d}-{uuid.uuid4().hex[:12]}"
        name = f"part-{part}.zstd.parquet"
        self.target = os.path.join(directory_of(channel, date, where.format), name)
        self.path = os.path.join(where.staging, name)
        self.channel = channel
        self.date = date
        self._schema = ROWS.with_metadata(metadata_of(channel, where.payloads))
        self._sink = open(self.path, "xb")  # noqa: SIM115  # closed in ``close``
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression="zstd",
            compression_level=where.compression_level,
            use_dictionary=["reply", "slice"],
            write_statistics=[*_PACKED, "slice"],
            column_encoding=dict.fromkeys(_PACKED, "DELTA_BINARY_PACKED"),
        )
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._waiting_rows = 0
        self._sums = Sums()
        self.first = self.last = 0
        self.least_ns = (1 << 63) - 1
        self.most_ns = -(1 << 63)

    def write(self, batch: pa.RecordBatch) -> int:
        """Add rows; returns how large the file is so far."""
        if not self._sums.rows:
            self.first = batch["sequence"][0].as_py()
        self.last = batch["sequence"][-1].as_py()
        bounds = pc.min_max(batch["timestamp_ns"])
        self.least_ns = min(self.least_ns, bounds["min"].as_py())
        self.most_ns = max(self.most_ns, bounds["max"].as_py())
        self._sums.add(batch)
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        self._waiting_rows += batch.num_rows
        if self._waiting_bytes >= _GROUP_BYTES or self._waiting_rows >= _GROUP_ROWS:
            self._flush()
        return self._sink.tell()

    def _flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting).cast(self._schema)
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self._waiting = []
        self._waiting_bytes = 0
        self._waiting_rows = 0

    def abandon(self) -> None:
        """Let go of the file as it is."""
        with contextlib.suppress(OSError, pa.ArrowException):
            self._writer.close()
        self._sink.close()

    def close(self) -> tuple[str, DataFile]:
        """Finish, sync and read back: the path, and what the table shall know.

        Raises ``ArchiveError``.
        """
        self._flush()
        self._writer.close()
        self._sink.flush()
        os.fsync(self._sink.fileno())
        self._sink.close()
        read = Sums()
        for batch in read_batches(self.path):
            read.add(batch)
        if read != self._sums:
            raise ArchiveError(
                f"{self.path}: what was read back is not what was written",
                hint="check the storage of the archive",
            )
        made = DataFile(
            self.target,
            self.channel,
            self.date,
            read.rows,
            os.path.getsize(self.path),
            self.first,
            self.last,
            self.least_ns,
            self.most_ns,
        )
        return self.path, made


class Writer:
    """The files of one unit of work: rows of one channel, by sequence."""

    def __init__(self, where: Where, channel: str) -> None:
        self._where = where
        self._channel = channel
        self._open: dict[str, _Open] = {}
        self._number = 0
        self.done: list[tuple[str, DataFile]] = []
        """Finished files: where they lie now, and what the table shall know of them."""

    def write(self, table: pa.Table) -> None:
        """Add rows. Raises ``OSError`` and ``ArchiveError``."""
        for batch in table.to_batches():
            for date, rows in by_date(batch):
                self._write(date, rows)

    def _write(self, date: str, rows: pa.RecordBatch) -> None:
        file = self._open.pop(date, None)
        if file is None:
            if len(self._open) >= _OPEN:
                self._close(next(iter(self._open)))
            file = _Open(self._where, self._channel, date, self._number)
            self._number += 1
        # The one that was used last stands last.
        self._open[date] = file
        if file.write(rows) >= self._where.target_file_bytes:
            self._close(date)

    def _close(self, date: str) -> None:
        self.done.append(self._open.pop(date).close())

    def discard(self) -> None:
        """Remove every file: the rows of one slice in it are not to be believed."""
        for file in self._open.values():
            file.abandon()
        for path in [path for path, _ in self.done] + [file.path for file in self._open.values()]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def close(self) -> None:
        """Finish every file."""
        for date in list(self._open):
            self._close(date)


def by_date(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each day (UTC), in their order."""
    dates = batch["timestamp"].cast(pa.date32())
    bounds = pc.min_max(dates)
    if bounds["min"] == bounds["max"]:
        yield bounds["min"].as_py().isoformat(), batch
        return
    for day in pc.unique(dates):
        yield day.as_py().isoformat(), batch.filter(pc.equal(dates, day))


def read_batches(path: str) -> Iterator[pa.RecordBatch]:
    """The rows of a file."""
    with pq.ParquetFile(path) as file:
        yield from batches_of(file, ROWS.names)
