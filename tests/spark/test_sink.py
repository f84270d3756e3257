"""Writing to a server from Spark: acknowledged, in order, stored once although it is sent twice,
and clear errors.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from ftstan.base.errors import ConfigError
from ftstan.spark.sink import SinkOptions
from tests.processes import CLUSTER, until
from tests.spark.streaming import address, last_sequence, payloads, serve, stored, url_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.processes import Stage

pytestmark = pytest.mark.processes

WINDOW = ("-dedup_window", "10000")


def append(frame: DataFrame, options: dict[str, str]) -> None:
    frame.write.format("stan").mode("append").options(**options).save()


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 2).selectExpr("cast(id as string) as data")


def test_rows_are_stored_in_the_order_of_their_partition_and_in_the_channel_that_they_name(
    spark: SparkSession, stage: Stage
) -> None:
    server = serve(stage)
    rows = spark.range(0, 1000, 1, 1).selectExpr(
        "if(id % 4 = 0, null, concat('kind.', id % 4)) as channel",
        "cast(concat('message ', id) as binary) as data",
        "if(id = 1, 'answers', null) as reply",
    )
    append(rows, {**address(server), "channel": "others", "maxInFlight": "16"})
    for rest, channel in enumerate(["others", "kind.1", "kind.2", "kind.3"]):
        messages = stored(url_of(server), channel)
        assert payloads(messages) == [b"message %d" % number for number in range(rest, 1000, 4)]
        assert messages[0].reply == (b"answers" if rest == 1 else b"")


def test_a_write_with_a_name_is_stored_once_however_often_it_is_tried(
    spark: SparkSession, stage: Stage
) -> None:
    server = serve(stage, *WINDOW)
    options = {**address(server), "channel": "once"}
    broken = numbers(spark, 500).selectExpr("if(data = '480', null, data) as data")
    with pytest.raises(Exception, match="no data"):
        append(broken, {**options, "writeId": "monday"})
    append(numbers(spark, 500), {**options, "writeId": "monday"})
    append(numbers(spark, 500), {**options, "writeId": "monday"})
    assert sorted(payloads(stored(url_of(server), "once")), key=int) == [
        b"%d" % number for number in range(500)
    ]
    # Without a name every write is another one.
    append(numbers(spark, 5), options)
    append(numbers(spark, 5), options)
    assert len(stored(url_of(server), "once")) == 500 + 10


def test_a_column_guid_names_messages_wherever_their_rows_are(
    spark: SparkSession, stage: Stage
) -> None:
    server = serve(stage, *WINDOW)
    options = {**address(server), "channel": "orders"}
    rows = numbers(spark, 100).selectExpr("data", "concat('order ', data) as guid")
    append(rows, options)
    append(rows.repartition(3).union(rows.limit(1)), options)
    assert sorted(payloads(stored(url_of(server), "orders")), key=int) == [
        b"%d" % number for number in range(100)
    ]


def test_equal_rows_are_messages_of_their_own(spark: SparkSession, stage: Stage) -> None:
    server = serve(stage, *WINDOW)
    append(
        spark.range(0, 60, 1, 3).selectExpr("'same' as data"),
        {**address(server), "channel": "same"},
    )
    assert payloads(stored(url_of(server), "same")) == [b"same"] * 60


def test_a_batch_of_a_stream_that_was_not_committed_is_stored_once(
    spark: SparkSession, stage: Stage, tmp_path: Path
) -> None:
    server = serve(stage, *WINDOW)
    source = tmp_path / "in"
    numbers(spark, 200).write.text(str(source))

    def run() -> None:
        query = (
            spark.readStream.text(str(source))
            .selectExpr("value as data")
            .writeStream.format("stan")
            .options(
                **address(server), channel="stream", checkpointLocation=str(tmp_path / "checkpoint")
            )
            .queryName("sink")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    # As if the driver had died when the rows were published and the batch was not committed yet.
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("*0*"))
    assert commits
    for file in commits:
        file.unlink()
    run()
    assert sorted(payloads(stored(url_of(server), "stream")), key=int) == [
        b"%d" % number for number in range(200)
    ]


def test_a_write_outlives_the_death_of_the_active(spark: SparkSession, stage: Stage) -> None:
    nats = stage.nats()
    a, b = stage.pair_on(nats, *WINDOW)
    rows = spark.range(0, 3000, 1, 1).selectExpr("cast(id as string) as data")
    options = {"servers": nats.url, "clusterId": CLUSTER, "channel": "held", "maxInFlight": "1"}
    with ThreadPoolExecutor(1) as pool:

        def kill() -> None:
            until(lambda: last_sequence(a, "held") > 100, "a write under way")
            a.kill()

        killing = pool.submit(kill)
        append(rows, options)
        killing.result()
    found = payloads(stored(nats.url, "held"))
    assert found == [b"%d" % number for number in range(3000)]
    assert last_sequence(b, "held") == len(found) + 1


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ("data string, sequence int, size int", {}, "a message has no place for sequence, size"),
        ("channel string", {}, "the column data is missing"),
        ("data int", {}, "the column data is int and must be binary or string"),
        ("data string", {"channel": ""}, "the rows name no channel"),
        ("data string", {"maxInFlight": "0"}, "maxInFlight is '0'"),
        ("data string", {"ackTimeout": "soon"}, "ackTimeout is 'soon'"),
        ("data string", {"tlsInsecure": "maybe"}, "tlsInsecure is 'maybe'"),
        ("data string", {"clusterId": ""}, "the option clusterId is missing"),
        ("data string", {"ackTimout": "5"}, 'a write has no option "ackTimout"'),
        ("data string", {"servers": " , "}, "where are the servers"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is_published(
    columns: str, options: dict[str, str], says: str
) -> None:
    usual = {"servers": "nats://127.0.0.1:1", "clusterId": CLUSTER, "channel": "orders"}
    kinds = {"string": StringType(), "int": IntegerType()}
    schema = StructType(
        [StructField(name, kinds[kind]) for name, kind in map(str.split, columns.split(", "))]
    )
    with pytest.raises(ConfigError, match=says) as caught:
        SinkOptions.of(usual | options, schema, overwrite=False)
    assert caught.value.hint


def test_a_log_is_not_overwritten(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="a log is only appended to"):
        numbers(spark, 1).write.format("stan").mode("overwrite").options(
            servers="x", clusterId="y", channel="z"
        ).save()


def test_a_server_that_is_not_there_is_named(spark: SparkSession) -> None:
    options = {
        "servers": "nats://127.0.0.1:1",
        "clusterId": "test-cluster",
        "channel": "c",
        "connectTimeout": "0.5",
    }
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
        append(numbers(spark, 1), options)
