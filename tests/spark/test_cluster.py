"""A real cluster of several processes: a standalone master, two workers, and a driver that is none
of them.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from tests.processes import HOST, free_ports
from tests.spark.programs import PROGRAM_S, SPARK_HOME, START_S, environment
from tests.spark.streaming import confirmed, publish, serve, url_of
from tests.spark.survey import PLACE, totals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.processes import Stage

pytestmark = pytest.mark.processes

#: The master's other port is a fixed one.
SETTINGS = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false"}


def cluster(stage: Stage) -> str:
    """A master and two workers of one core each; gives the master's address."""
    spark_class = str(SPARK_HOME / "bin" / "spark-class")
    port = str(free_ports(1)[0])
    words = [
        spark_class,
        "org.apache.spark.deploy.master.Master",
        "--host",
        HOST,
        "--port",
        port,
        "--webui-port",
        "0",
    ]
    master = stage.run("master", words, environment(**SETTINGS))
    master.wait_for("I have been elected leader", within=START_S)
    url = f"spark://{HOST}:{port}"
    for place in ("left", "right"):
        directory = stage.directory / place
        directory.mkdir()
        words = [
            spark_class,
            "org.apache.spark.deploy.worker.Worker",
            "--host",
            HOST,
            "--webui-port",
            "0",
        ]
        words += ["-c", "1", "-m", "768m", "-d", str(directory), url]
        worker = stage.run(f"worker-{place}", words, environment(**SETTINGS, **{PLACE: place}))
        worker.wait_for("Successfully registered with master", within=START_S)
    return url


def test_a_cluster_gives_what_one_machine_gives_and_both_workers_read(
    spark: SparkSession, stage: Stage
) -> None:
    server = serve(stage, "-dedup_window", "10000", "-file_slice_max_msgs", "100")
    for channel in ("orders", "audit.log"):
        publish(
            url_of(server),
            channel,
            (b"%s %d" % (channel.encode(), number) for number in range(500)),
        )

    confirmed(stage.store, **{"orders": 501, "audit.log": 501})
    there = stage.directory / "there"
    there.mkdir()
    words = [
        sys.executable,
        "-m",
        "tests.spark.survey",
        cluster(stage),
        str(stage.store),
        url_of(server),
        str(there),
    ]
    driver = stage.run("driver", words, environment(**{PLACE: ""}))
    assert driver.status(PROGRAM_S) == 0, driver.tail()
    found = json.loads(next(line for line in driver.text().splitlines() if line.startswith("{")))

    assert found["rows"] == totals(spark, stage.store)
    assert [row[1] for row in found["rows"]] == [500, 500]
    assert found["places"] == ["left", "right"]
    assert found["stream"] == list(range(400))
