"""Work that uses every road of ``stan``, some of it for a session on one machine, too.

As a program: connects to a cluster, does the work, and prints what came out as one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.functions import udf

from ftstan.spark.session import session
from tests.processes import CLUSTER
from tests.spark.streaming import Collected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Set for each worker of a cluster, and inherited by its executors and their Python workers.
PLACE = "FTSTAN_TEST_PLACE"


def totals(spark: SparkSession, store: Path) -> list[list[Any]]:
    """For each of two channels: its name, how many messages, the sum of their sizes, the last
    sequence.
    """
    rows = (
        _log(spark, store).groupBy("channel").agg({"*": "count", "size": "sum", "sequence": "max"})
    )
    return [list(row) for row in rows.orderBy("channel").collect()]


def survey(spark: SparkSession, store: Path, servers: str, directory: Path) -> dict[str, Any]:
    """Read the store as a batch, write to the server with a task that fails once, and read that
    back as a stream.
    """
    places = _log(spark, store).select(
        udf(_place, "string", useArrow=False)("channel").alias("place")
    )
    options = {"servers": servers, "clusterId": CLUSTER}
    written = spark.range(0, 400, 1, 4).selectExpr("cast(id as string) as data")
    written = written.select(udf(_missing_once, "string", useArrow=False)("data").alias("data"))
    written.write.format("stan").mode("append").options(
        **options, channel="written", writeId="survey"
    ).save()
    collected = Collected(
        spark, directory, {**options, "subscribe": "written", "startingOffsets": "earliest"}
    )
    collected.run_available()
    return {
        "rows": totals(spark, store),
        "places": sorted(row.place for row in places.distinct().collect()),
        "stream": sorted(int(data) for data in collected.of("written")),
    }


def _log(spark: SparkSession, store: Path) -> DataFrame:
    options = {"path": str(store), "subscribe": "orders,audit.log", "minPartitions": "4"}
    return spark.read.format("stan").options(**options).load()


def _place(_: str) -> str:
    return os.environ[PLACE]


def _missing_once(data: str) -> str | None:
    """The last row of a partition has nothing at the first attempt: its task fails when all others
    are published.
    """
    context = TaskContext.get()
    assert context is not None
    return None if data == "199" and context.attemptNumber() == 0 else data


def main(master: str, store: str, servers: str, directory: str) -> None:
    config = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": f"{directory}/local",
        # Nothing begins before both workers have given what they have.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        "spark.cores.max": "2",
    }
    spark = session("survey", master=master, config=config)
    try:
        print(json.dumps(survey(spark, Path(store), servers, Path(directory))))
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
