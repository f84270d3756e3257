"""The SQL views over one or more places, and the queries that read them.

Every answer is a plan; nothing runs here.

A message that several places have is counted once; whether its copies are the same is for the audit
to say.
"""

from __future__ import annotations

import datetime as dt
import re
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from ftstan.base.errors import ConfigError
from ftstan.spark import FORMAT, register
from ftstan.spark.columns import SCHEMA
from ftstan.spark.options import ReadOptions
from ftstan.spark.places import kind_of, opened
from ftstan.spark.queries.forecasting import Usage
from ftstan.spark.queries.history import EventsSource
from ftstan.wire.origin import PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, SparkSession

_NARROW: Final = "channel string, sequence bigint, timestamp timestamp, size int"

#: Options of ``stan`` that subscriptions are read with as well.
_OF_EVENTS: Final = ("subscribe", "crcPolynomial")

#: Views that are made of other views.
DERIVED: Final = {
    "channels": """
        SELECT channel, count(*) AS messages, sum(size) AS bytes,
               min(sequence) AS first, max(sequence) AS last,
               min(timestamp) AS since, max(timestamp) AS until
        FROM message_sizes GROUP BY channel""",
    "rates_by_hour": """
        SELECT channel, date_trunc('HOUR', timestamp) AS since,
               count(*) AS messages, sum(size) AS bytes
        FROM message_sizes GROUP BY ALL""",
    "rates_by_day": """
        SELECT channel, date_trunc('DAY', timestamp) AS since,
               count(*) AS messages, sum(size) AS bytes
        FROM message_sizes GROUP BY ALL""",
    "talkers_by_hour": """
        SELECT since, rank() OVER (PARTITION BY since ORDER BY bytes DESC) AS place,
               channel, messages, bytes,
               round(100 * bytes / sum(bytes) OVER (PARTITION BY since), 1) AS percent
        FROM rates_by_hour""",
    # Anybody may have written such a reply: what is no number is null, and no error.
    "dead_letters": """
        SELECT channel, sequence, timestamp, size, data,
               ORIGIN(channel) AS origin_channel,
               try_cast(ORIGIN(seq) AS BIGINT) AS origin_sequence,
               ORIGIN(durable) AS durable, ORIGIN(queue) AS queue, ORIGIN(client) AS client,
               try_cast(ORIGIN(deliveries) AS BIGINT) AS deliveries,
               timestamp_micros(try_cast(ORIGIN(first) AS BIGINT) div 1000) AS first_delivery,
               place
        FROM messages WHERE startswith(reply, 'PREFIX')""",
}

#: A part of an origin (``ftstan.wire.origin``) in these views; null if it is not said.
_ORIGIN: Final = r"try_url_decode(nullif(regexp_extract(reply, '[?&]\1=([^&]*)', 1), ''))"

_UNITS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_BUCKET: Final = re.compile(r"([1-9][0-9]{0,6})\s*(second|minute|hour|day|week)s?")


def make_views(
    spark: SparkSession, places: Sequence[str], reading: Mapping[str, str]
) -> tuple[str, ...]:
    """Register the views of ``places``; returns their names. Raises ``ConfigError``."""
    if not places:
        raise ConfigError(
            "there is nothing to query", hint="name a datastore, a spool or an archive"
        )
    for place in places:
        # What is wrong with a place is found here, before Spark starts to work.
        opened(ReadOptions.of({**reading, "path": place}))
    register(spark)
    read(spark, places, SCHEMA, reading).createOrReplaceTempView("messages")
    read(spark, places, _NARROW, reading).createOrReplaceTempView("message_sizes")
    for name, text in DERIVED.items():
        spark.sql(_with_origins(text)).createOrReplaceTempView(name)
    names = ["messages", "message_sizes", *DERIVED]
    stores = [place for place in places if kind_of(place) == "store"]
    if stores:
        events(spark, stores, reading).createOrReplaceTempView("subscription_events")
        names.append("subscription_events")
    return tuple(names)


def _with_origins(text: str) -> str:
    """A view's text, the parts of origins that it names spelled out."""
    return re.sub(r"ORIGIN\((\w+)\)", _ORIGIN, text).replace("PREFIX", PREFIX.decode())


def read(
    spark: SparkSession, places: Sequence[str], schema: str, reading: Mapping[str, str]
) -> DataFrame:
    """Messages of all places, each sequence once, with the ``place`` that it was taken from."""
    tables = [
        spark.read.format(FORMAT)
        .schema(schema)
        .options(**reading)
        .option("path", place)
        .load()
        .withColumn("place", F.lit(place))
        for place in places
    ]
    whole = reduce(DataFrame.union, tables)
    return whole.dropDuplicates(["channel", "sequence"]) if len(tables) > 1 else whole


def events(spark: SparkSession, stores: Sequence[str], reading: Mapping[str, str]) -> DataFrame:
    """What ``subs.dat`` of all stores says, see ``positions.Event``."""
    spark.dataSource.register(EventsSource)
    options = {key: value for key, value in reading.items() if key in _OF_EVENTS}
    tables = [
        spark.read.format(EventsSource.name())
        .options(**options)
        .option("path", store)
        .load()
        .withColumn("place", F.lit(store))
        for store in stores
    ]
    return reduce(DataFrame.union, tables)


def seconds_of(bucket: str) -> int:
    """Seconds of a length of time such as "5 minutes". Raises ``ConfigError``."""
    found = _BUCKET.fullmatch(bucket.strip().lower())
    if found is None:
        raise ConfigError(
            f'"{bucket}" is no length of time', hint='write it as "5 minutes", "1 hour" or "1 day"'
        )
    return int(found[1]) * _UNITS[found[2]]


def since(timestamp: Column, bucket: str) -> Column:
    """The beginning of the piece of time that holds ``timestamp``.

    Null for none, so that its rows stay.
    """
    length = seconds_of(bucket) * 1_000_000
    micros = F.unix_micros(timestamp)
    return F.timestamp_micros(micros - F.pmod(micros, F.lit(length))).alias("since")


def rate(spark: SparkSession, bucket: str) -> DataFrame:
    """Messages and bytes per channel and piece of time.

    ``since`` is null for messages of an unknown time.
    """
    seconds = seconds_of(bucket)
    return (
        spark.table("message_sizes")
        .groupBy("channel", since(F.col("timestamp"), bucket))
        .agg(
            F.count("*").alias("messages"),
            F.sum("size").alias("bytes"),
            F.max("size").alias("largest"),
            F.round(F.count("*") / seconds, 3).alias("messages_per_second"),
            F.round(F.sum("size") / seconds, 1).alias("bytes_per_second"),
        )
        .orderBy("channel", "since")
    )


def talkers(spark: SparkSession, top: int) -> DataFrame:
    """The ``top`` channels of each hour by bytes."""
    return (
        spark.table("talkers_by_hour")
        .where(F.col("place") <= top)
        .orderBy("since", "place", "channel")
    )


def lag_history(spark: SparkSession, bucket: str) -> DataFrame:
    """How far each subscription was behind the furthest one of its channel, over time.

    ``since``: not before this time: the events themselves have none, so each counts from the newest
    message that was named so far. Null: no message that was named is there any more.
    """
    times = spark.table("message_sizes").select("channel", "sequence", "timestamp")
    so_far = (
        Window.partitionBy("place", "channel")
        .orderBy("offset")
        .rowsBetween(Window.unboundedPreceding, 0)
    )
    return (
        spark.table("subscription_events")
        .where("subscription != ''")
        .join(times, ["channel", "sequence"], "left")
        .withColumn("since", since(F.max("timestamp").over(so_far), bucket))
        .groupBy("place", "channel", "subscription", "since")
        .agg(
            F.max_by("last_sent", "offset").alias("last_sent"),
            F.max("behind").alias("behind"),
            F.max("in_flight").alias("in_flight"),
            F.count_if(F.col("event") == "sent").alias("sent"),
            F.count_if(F.col("event") == "acked").alias("acked"),
        )
        .orderBy("place", "channel", "subscription", F.col("since").asc_nulls_first())
    )


def usages(spark: SparkSession, recent: str) -> tuple[list[Usage], dt.datetime]:
    """What each channel holds and how it grew in the time ``recent`` before the newest message.

    And when that came.
    """
    seconds = seconds_of(recent)
    table = spark.table("message_sizes").withColumn("at", F.unix_micros("timestamp"))
    (end,) = table.agg(F.max("at").alias("at")).collect()
    if end["at"] is None:
        return [], dt.datetime.now(dt.UTC)
    lately = F.col("at") > end["at"] - seconds * 1_000_000
    rows = (
        table.groupBy("channel")
        .agg(
            F.count("*").alias("messages"),
            F.coalesce(F.sum("size"), F.lit(0)).alias("payload"),
            F.coalesce(F.min("at"), F.lit(end["at"])).alias("oldest"),
            F.count_if(lately).alias("recent_messages"),
            F.coalesce(F.sum(F.when(lately, F.col("size"))), F.lit(0)).alias("recent_payload"),
        )
        .orderBy("channel")
        .collect()
    )
    found = [
        Usage(
            row["channel"],
            row["messages"],
            row["payload"],
            _moment(row["oldest"]),
            row["recent_messages"],
            row["recent_payload"],
            min(float(seconds), max((end["at"] - row["oldest"]) / 1e6, 1.0)),
        )
        for row in rows
    ]
    return found, _moment(end["at"])


def _moment(micros: int) -> dt.datetime:
    """A time in UTC; the year 1 or 9999 for one that has no date."""
    try:
        return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)
    except OverflowError:
        return dt.datetime(9999 if micros > 0 else 1, 1, 1, tzinfo=dt.UTC)
