"""The ceiling: a Spark data source whose readers do nothing but yield a batch that is there
already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from ftstan.spark.columns import SCHEMA, columns_of
from ftstan.spark.decode import Builder
from ftstan.stores.file.log import records
from ftstan.wire.block import MsgBlock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

_ROWS = 32768


class Zero(DataSource):
    """Options ``count`` and ``partitions``; rows like those of the benchmark's store."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "zero"

    def schema(self) -> str:
        """The columns of ``stan``."""
        return SCHEMA

    def reader(self, schema: StructType) -> _Reader:
        """The reader."""
        return _Reader(
            int(self.options["count"]), int(self.options["partitions"]), columns_of(schema)
        )


class _Reader(DataSourceReader):
    def __init__(self, count: int, partitions: int, columns: tuple[str, ...]) -> None:
        self._each = count // partitions // _ROWS
        self._partitions = partitions
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(n) for n in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        del partition
        crc = records.Crc()
        block = MsgBlock()
        for n in range(1, _ROWS + 1):
            block.append(n, b"channel.0", b"", b"x" * 128, 1_700_000_000_000_000_000 + n)
        records.seal(block, crc)
        builder = Builder(self._columns, crc)
        builder.begin(b"channel.0", "channel.0", 1)
        builder.add(records.index_entries(block, 0, _ROWS, 4, crc), 0, _ROWS, memoryview(block), 4)
        batch = builder.finish()
        for _ in range(self._each):
            yield batch
