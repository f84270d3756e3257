"""Spark reads the datastore of any node of a replicated cluster, beside its server and after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.ft.cluster import NODES, Cluster
from tests.ft.test_clustered import client_of
from tests.processes import until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.processes import Stage

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

_CHECKPOINT_S = 90.0


def rows(spark: SparkSession, store: Path) -> list[tuple[str, int, bytes, bool]]:
    frame = spark.read.format("stan").load(str(store))
    found = frame.select("channel", "sequence", "data", "crc_ok").collect()
    return sorted((row.channel, row.sequence, bytes(row.data), row.crc_ok) for row in found)


def test_the_store_of_any_node_of_a_cluster_is_read_up_to_its_last_checkpoint(
    stage: Stage, spark: SparkSession
) -> None:
    cluster = Cluster(stage)
    cluster.start()
    client = client_of(cluster, cluster.leader(), "one")
    wanted = []
    for channel in ("orders", "audit"):
        payloads = [b"%s %d" % (channel.encode(), n) for n in range(1, 301)]
        client.publish(channel.encode(), *payloads)
        wanted += [(channel, n, payload, True) for n, payload in enumerate(payloads, 1)]
    wanted.sort()
    for node in NODES:
        until(
            lambda node=node: rows(spark, cluster.store(node)) == wanted,  # type: ignore[misc]
            f"everything in the store of {node}",
            _CHECKPOINT_S,
        )
    # Killed, each of them has what its last checkpoint had.
    cluster.kill(*NODES)
    assert all(rows(spark, cluster.store(node)) == wanted for node in NODES)
