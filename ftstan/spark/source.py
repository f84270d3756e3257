"""``stan``: the data source by which Spark reads datastores and archives of the message log.

This file only tells Spark who does what; options, planning and reading are elsewhere (``options``,
``batch``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from ftstan.spark.batch import StanReader, told
from ftstan.spark.columns import SCHEMA, columns_of
from ftstan.spark.filestream import FileStream
from ftstan.spark.format import FORMAT
from ftstan.spark.options import ReadOptions
from ftstan.spark.serverstream import ServerStream
from ftstan.spark.sink import BatchWriter, SinkOptions, StreamWriter

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class StanSource(DataSource):
    """``spark.read.format("stan").option("path", DIR)``."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> str:
        """The columns, unless ``.schema(...)`` names some of them."""
        return SCHEMA

    @told
    def reader(self, schema: StructType) -> StanReader:
        """The reader of a batch query. Raises ``ConfigError``."""
        return StanReader(ReadOptions.of(self.options), schema)

    @told
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """``df.write.format("stan").mode("append")``. Raises ``ConfigError``."""
        return BatchWriter(SinkOptions.of(self.options, schema, overwrite=overwrite))

    @told
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """``df.writeStream.format("stan")``. Raises ``ConfigError``."""
        return StreamWriter(SinkOptions.of(self.options, schema, overwrite=overwrite))

    @told
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """``spark.readStream.format("stan")``: of a server, or of a datastore's files.

        Raises ``ConfigError``.
        """
        stream = ServerStream if self.options.get("servers") else FileStream
        return stream.of(self.options, columns_of(schema))
