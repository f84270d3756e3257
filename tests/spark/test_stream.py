"""Streams over the files of a datastore and over a subscription: every message once, whatever
happens meanwhile.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.processes import until
from tests.spark.streaming import (
    Collected,
    address,
    confirmed,
    last_sequence,
    publish,
    serve,
    stored,
    url_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.processes import Stage

pytestmark = pytest.mark.processes

#: Seconds for something that a stream does within a few.
STREAM_S = 240.0

MODES = ("files", "server")


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def source(mode: str, stage: Stage, servers: dict[str, str], channels: str) -> dict[str, str]:
    """The options that say where the log is."""
    if mode == "files":
        return {"path": str(stage.store), "subscribe": channels, "startingOffsets": "earliest"}
    return {**servers, "subscribe": channels, "startingOffsets": "earliest"}


def reached(query: StreamingQuery) -> int:
    """The sequence that a running query reads next; raises what ended it."""
    error = query.exception()
    if error is not None:
        raise error
    progress = query.lastProgress
    end = None if progress is None else progress.sources[0].endOffset
    offsets: dict[str, int] = json.loads(end) if end else {}
    return offsets.get("orders", 0)


@pytest.mark.parametrize("mode", MODES)
def test_what_is_there_is_read_in_limited_batches_and_the_next_run_goes_on_behind_it(
    mode: str, spark: SparkSession, stage: Stage, tmp_path: Path
) -> None:
    server = serve(stage)
    publish(url_of(server), "orders", numbered(1, 501))
    publish(url_of(server), "audit.log", numbered(1, 11))
    confirmed(stage.store, **{"orders": 501, "audit.log": 11})
    options = source(mode, stage, address(server), "orders, audit.log, empty")
    collected = Collected(spark, tmp_path, {**options, "maxOffsetsPerTrigger": "200"})
    collected.run_available()
    assert collected.batches == 3
    assert collected.of("orders") == numbered(1, 501)
    assert collected.of("audit.log") == numbered(1, 11)

    publish(url_of(server), "orders", numbered(501, 601))
    publish(url_of(server), "empty", numbered(1, 3))
    confirmed(stage.store, orders=601, empty=3)
    collected.run_available()
    assert collected.of("orders") == numbered(1, 601)
    assert collected.of("empty") == numbered(1, 3)


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_that_is_stopped_and_resumed_has_every_message_once_over_the_death_of_the_active(
    mode: str, spark: SparkSession, stage: Stage, tmp_path: Path
) -> None:
    nats = stage.nats()
    a, b = stage.pair_on(nats)
    servers = {"servers": nats.url, "clusterId": "test-cluster"}
    collected = Collected(spark, tmp_path, source(mode, stage, servers, "orders"))
    publish(nats.url, "orders", numbered(0, 300))
    query = collected.start()
    stop = False

    def payloads() -> Iterator[bytes]:
        number = 300
        while not stop:
            yield b"%d" % number
            number += 1

    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(publish, nats.url, "orders", payloads(), pause=0.002)
        try:
            until(lambda: reached(query) > 301, "messages of the first active", STREAM_S)
            a.kill()
            b.wait_until_active()
            before = last_sequence(b, "orders")
            until(lambda: reached(query) > before + 1, "messages of the second", STREAM_S)
            query.stop()
        finally:
            stop = True
        publishing.result()
    confirmed(stage.store, orders=last_sequence(b, "orders") + 1)
    collected.run_available()
    truth = [(message.sequence, message.data) for message in stored(nats.url, "orders")]
    assert sorted((row.sequence, bytes(row.data)) for row in collected.rows()) == truth


@pytest.mark.parametrize("mode", MODES)
def test_messages_that_expired_before_they_were_read_end_a_stream_or_are_read_over(
    mode: str, spark: SparkSession, stage: Stage, tmp_path: Path
) -> None:
    server = serve(stage, "-mm", "100", "-file_slice_max_msgs", "20")
    options = source(mode, stage, address(server), "orders")
    collected = Collected(spark, tmp_path, options)
    publish(url_of(server), "orders", numbered(1, 51))
    confirmed(stage.store, orders=51)
    collected.run_available()
    publish(url_of(server), "orders", numbered(51, 501))
    confirmed(stage.store, orders=501)
    with pytest.raises(
        Exception, match=r"orders: messages 51 to 400 are gone.*failOnDataLoss=false"
    ):
        collected.run_available()
    Collected(spark, tmp_path, {**options, "failOnDataLoss": "false"}).run_available()
    assert collected.of("orders") == [*numbered(1, 51), *numbered(401, 501)]
