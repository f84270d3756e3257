"""Rows of Parquet files, some megabytes at a time, whatever the size of a message."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    import pyarrow.parquet as pq

_BYTES = 8 << 20
_ROWS = 1 << 16


def batches_of(
    file: pq.ParquetFile, columns: list[str], groups: Iterable[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Batches of the row groups named, or of all; none is empty, and none is of two groups."""
    for k in range(file.num_row_groups) if groups is None else groups:
        group = file.metadata.row_group(k)
        # As rows, from the mean: Parquet knows no other measure.
        rows = min(max(_BYTES * group.num_rows // max(group.total_byte_size, 1), 1), _ROWS)
        for batch in file.iter_batches(rows, row_groups=[k], columns=columns, use_threads=False):
            if batch.num_rows:
                yield batch


def range_of(file: pq.ParquetFile, k: int, column: str) -> tuple[int, int] | None:
    """The least and the greatest value of a column in a row group.

    ``None`` where the file does not say.
    """
    index = file.schema_arrow.get_field_index(column)
    if index < 0:
        return None
    found = file.metadata.row_group(k).column(index).statistics
    return (found.min, found.max) if found is not None and found.has_min_max else None
