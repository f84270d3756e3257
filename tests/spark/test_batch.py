"""``spark.read.format("stan")`` on real Spark: rows, options, filters, partitions, and errors that
a person can use.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as fn

from ftstan.spark.columns import SCHEMA
from ftstan.spark.report import ReadingKind, collected
from tests.datastores import serving
from tests.oracle.damage import damaged_tree, extract, recipes, write_tree
from tests.oracle.test_gostore import STORES, expected_view
from tests.slicefiles import SECOND, START, Message, put_slice, series

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two channels of one message a second: ``orders`` 1 to 2000 in four slices, ``audit`` 1 to
    50.
    """
    root = tmp_path_factory.mktemp("store")
    for number in range(4):
        put_slice(root, "orders", number + 1, series(number * 500 + 1, number * 500 + 500, 100))
    put_slice(root, "audit", 1, series(1, 50))
    return root


def loaded(spark: SparkSession, path: Path, schema: str = "", **options: Any) -> DataFrame:
    reader = spark.read.format("stan")
    if schema:
        reader = reader.schema(schema)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load(str(path))


def sequences(frame: DataFrame, channel: str = "orders") -> list[int]:
    return sorted(
        row.sequence
        for row in frame.where(fn.col("channel") == channel).select("sequence").collect()
    )


def complaint(frame: DataFrame) -> str:
    with pytest.raises(PySparkException) as caught:
        frame.count()
    return str(caught.value)


@pytest.mark.parametrize(("version", "name"), STORES)
def test_a_recorded_store_is_read_as_its_server_showed_it(
    spark: SparkSession, tmp_path: Path, version: str, name: str
) -> None:
    frame = loaded(spark, extract(f"{version}/{name}.tar.gz", tmp_path))
    assert frame.schema == spark.createDataFrame([], SCHEMA).schema
    rows: dict[str, list[dict[str, Any]]] = {}
    for r in sorted(frame.collect(), key=lambda r: r.sequence):
        assert r.crc_ok
        assert r.timestamp.replace(tzinfo=UTC) == datetime.fromtimestamp(
            r.timestamp_ns // 1000 / 1e6, UTC
        )
        rows.setdefault(r.channel, []).append(
            {
                "seq": r.sequence,
                "timestamp": r.timestamp_ns,
                "subject": r.channel,
                "reply": r.reply,
                "len": r.size,
                "sha1": hashlib.sha1(r.data).hexdigest(),
            }
        )
    view = expected_view(version, name)["channels"]
    assert rows == {channel: row["messages"] for channel, row in view.items() if row["messages"]}


def test_a_damaged_store_has_a_row_that_says_so_and_a_report_that_says_where(
    spark: SparkSession, tmp_path: Path
) -> None:
    recipe = next(r for r in recipes() if r["name"] == "dat-flip-payload-middle")
    write_tree(damaged_tree(recipe), tmp_path / "store")
    stats = str(tmp_path / "stats")
    schema = f"{SCHEMA}, file string, offset bigint, problem string"
    frame = loaded(spark, tmp_path / "store", schema, subscribe="orders.eu.1", readStats=stats)
    rows = frame.where("not crc_ok").collect()
    assert [(r.sequence, r.data, r.file, r.offset) for r in rows] == [
        (33, None, "orders.eu.1/msgs.4.dat", 139)
    ]
    assert "expected crc to be" in rows[0].problem
    (found,) = collected(stats).findings
    assert (found.kind, found.file, found.offset) == (
        ReadingKind.DAMAGE,
        "orders.eu.1/msgs.4.dat",
        139,
    )
    text = complaint(loaded(spark, tmp_path / "store", subscribe="orders.eu.1", mode="FAILFAST"))
    assert "damage: orders.eu.1/msgs.4.dat at offset 139 (sequence 33)" in text


def test_channels_are_chosen_by_name_and_by_pattern(spark: SparkSession, store: Path) -> None:
    def channels(**options: str) -> list[str]:
        return sorted(
            r.channel
            for r in loaded(spark, store, **options).select("channel").distinct().collect()
        )

    assert channels() == ["audit", "orders"]
    assert channels(subscribe="audit") == ["audit"]
    assert channels(subscribe=" audit, orders ,audit") == ["audit", "orders"]
    assert channels(subscribePattern="a.*") == ["audit"]
    assert channels(subscribePattern="rder") == []


def test_offsets_and_times_choose_what_is_read(spark: SparkSession, store: Path) -> None:
    offsets = {
        "startingOffsets": json.dumps({"orders": 499}),
        "endingOffsets": json.dumps({"orders": 502}),
    }
    assert sequences(loaded(spark, store, **offsets)) == [499, 500, 501]
    since = (START + 1990 * SECOND) // 1_000_000
    assert sequences(loaded(spark, store, startingTimestamp=str(since))) == list(range(1990, 2001))
    until = datetime.fromtimestamp(START // SECOND + 4, UTC).isoformat()
    assert sequences(loaded(spark, store, endingTimestamp=until)) == [1, 2, 3]


def test_one_percent_of_the_time_of_one_channel_reads_two_percent_of_its_data_at_most(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    size = sum(path.stat().st_size for path in (store / "orders").glob("*.dat"))
    stats = str(tmp_path / "options")
    since = START + 1000 * SECOND
    until = START + 1020 * SECOND
    wanted = {
        "startingTimestamp": str(since // 1_000_000),
        "endingTimestamp": str(until // 1_000_000),
    }
    frame = loaded(spark, store, subscribe="orders", readStats=stats, **wanted)
    assert len(frame.collect()) == 20
    assert collected(stats).data_bytes <= size * 0.02
    assert collected(stats).index_bytes <= 2000 * 32 * 1.1

    stats = str(tmp_path / "filters")
    frame = loaded(spark, store, readStats=stats, pushFilters=True)
    lower, upper = (datetime.fromtimestamp(ns // SECOND, UTC) for ns in (since, until))
    kept = frame.where(
        (fn.col("channel") == "orders")
        & (fn.col("timestamp") >= lower)
        & (fn.col("timestamp") < upper)
    )
    assert len(kept.collect()) == 20
    assert collected(stats).data_bytes <= size * 0.02


@pytest.fixture
def switch(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, with its setting of pushdown put back at the end."""
    yield spark
    spark.conf.set(PUSHDOWN, "true")


@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_a_query_is_right_whether_or_not_filters_are_pushed_down(
    switch: SparkSession, store: Path, pushdown: str
) -> None:
    switch.conf.set(PUSHDOWN, pushdown)
    for push in (True, False):
        frame = loaded(switch, store, pushFilters=push)
        condition = (
            "sequence in (3, 7, 700) and channel like 'ord%' and timestamp_ns is not null and "
            "not sequence = 7"
        )
        assert sequences(frame.where(condition)) == [3, 700]
        frame = loaded(switch, store, pushFilters=push)
        assert sequences(frame.where("sequence <= 2 or sequence > 1999")) == [1, 2, 2000]


def test_a_dataframe_that_is_used_again_never_misses_rows(spark: SparkSession, store: Path) -> None:
    # Spark uses the plan of a DataFrame's last filtered query again where there is no filter.
    frame = loaded(spark, store)
    assert frame.where("sequence > 1990").count() == 10
    assert frame.count() == 2050
    few = frame.where("sequence <= 5 and channel = 'audit'")
    assert few.union(frame.where("channel = 'orders' and sequence > 1995")).count() == 10
    assert few.union(frame).count() == 2055


def test_partitions_are_packed_up_to_a_size_and_cut_down_to_one(
    spark: SparkSession, store: Path
) -> None:
    def partitions(**options: Any) -> int:
        frame = loaded(spark, store, **options)
        assert sequences(frame) == list(range(1, 2001))
        return frame.rdd.getNumPartitions()

    assert partitions() == 1
    assert partitions(minPartitions=4) >= 4
    assert partitions(maxPartitionBytes="20k") >= 10


def test_a_schema_prunes_columns_and_the_index_answers_alone_where_it_can(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    stats = str(tmp_path / "stats")
    frame = loaded(spark, store, "slice int, sequence bigint", subscribe="orders", readStats=stats)
    assert [
        tuple(r) for r in frame.groupBy("slice").agg(fn.max("sequence")).orderBy("slice").collect()
    ] == [
        (1, 500),
        (2, 1000),
        (3, 1500),
        (4, 2000),
    ]
    total = collected(stats)
    assert (total.rows, total.bad_rows) == (2000, 0)
    assert total.data_bytes < 2000


def test_a_live_store_is_read_beside_its_server(spark: SparkSession, tmp_path: Path) -> None:
    with serving(tmp_path) as node:
        node.publish(b"orders", *(b"%d" % n for n in range(20)))
        node.tick()
        node.publish(b"orders", b"not yet")
        assert sequences(loaded(spark, tmp_path)) == list(range(1, 21))
        node.publish(b"orders", b"goes on")
        node.tick()
        assert sequences(loaded(spark, tmp_path)) == list(range(1, 23))


def test_a_slice_that_vanishes_between_planning_and_reading_obeys_the_option(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number in range(3):
        put_slice(tmp_path / "s", "orders", number + 1, series(number * 10 + 1, number * 10 + 10))
    strict = loaded(spark, tmp_path / "s")
    lenient = loaded(spark, tmp_path / "s", failOnDataLoss=False)
    assert (strict.rdd.getNumPartitions(), lenient.rdd.getNumPartitions()) == (1, 1)
    (tmp_path / "s" / "orders" / "msgs.1.dat").unlink()
    text = complaint(strict)
    assert "orders/msgs.1.dat: the slice went away after the query had been planned" in text
    assert "failOnDataLoss=false" in text
    assert sequences(lenient) == list(range(11, 31))


def test_payloads_of_64_megabytes_are_read(spark: SparkSession, tmp_path: Path) -> None:
    put_slice(tmp_path, "orders", 1, [Message(1, b"a"), Message(2, b"b" * (64 << 20))])
    rows = loaded(spark, tmp_path, "sequence bigint, size int, data binary").selectExpr(
        "sequence", "size", "length(data) n", "crc32(data) c"
    )
    assert [(r.size, r.n) for r in rows.orderBy("sequence").collect()] == [
        (1, 1),
        (64 << 20, 64 << 20),
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscrib": "orders"}, ['has no option "subscrib"', "did you mean subscribe?"]),
        ({"subscribe": "orders,odrers"}, ['has no channel "odrers"']),
        ({"subscribe": "orders", "subscribePattern": "o"}, ["exclude each other"]),
        ({"startingOffsets": "latest"}, ["cannot start at latest"]),
        (
            {"endingOffsets": '{"orders": 5000}'},
            ["has sequences 1 to 2000, endingOffsets names 5000", "failOnDataLoss"],
        ),
        ({"startingOffsets": '{"order": 5}'}, ['startingOffsets names "order"']),
        ({"maxPartitionBytes": "much"}, ["maxPartitionBytes is 'much'", "such as 64m"]),
    ],
)
def test_an_option_that_cannot_be_used_is_one_clear_sentence(
    spark: SparkSession, store: Path, options: dict[str, str], words: list[str]
) -> None:
    text = complaint(loaded(spark, store, **options))
    assert [word for word in words if word not in text] == []


def test_a_column_that_there_is_not_is_named_with_the_nearest_one(
    spark: SparkSession, store: Path
) -> None:
    assert "did you mean sequence?" in complaint(loaded(spark, store, "sequenc bigint"))
    assert 'column "size" is int, not string' in complaint(loaded(spark, store, "size string"))
