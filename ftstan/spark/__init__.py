"""The message log as data for Spark: the data source ``stan`` and what is built on it.

Beside the server, which imports nothing of it. Reads datastores without their server and without a
lock, and never writes into one. Importing this package needs neither Spark nor a JVM; ``pip install
'ftstan[spark]'`` and Java 17 bring what its functions need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.spark.format import FORMAT
from ftstan.spark.installed import missing
from ftstan.spark.workers import require_found

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FORMAT", "register"]


def register(spark: SparkSession) -> None:
    """Make ``format("stan")`` known to a session, from a laptop's to a cluster's.

    Filters are pushed down where the session allows it: with
    ``spark.sql.python.filterPushdown.enabled``, which ``ftstan.spark.session`` switches on. Raises
    ``ConfigError`` where pyspark is missing, and where the session's Python workers do not find
    this package.
    """
    try:
        from ftstan.spark.source import StanSource  # noqa: PLC0415  the package is importable without pyspark
    except ModuleNotFoundError as error:
        raise missing(error.name or "a module") from error
    spark.dataSource.register(StanSource)
    require_found(spark)
