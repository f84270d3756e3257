"""Views and named queries over real datastores."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import ConfigError
from ftstan.spark import queries
from ftstan.spark.queries import QueryOptions, views
from ftstan.wire.origin import PREFIX, Origin, encode_origin
from tests.datastores import serving

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("quick")

HOURS = 3


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three hours: 20 messages of 100 bytes an hour in "orders", 2 of 5000 in "invoices".

    Two durables of "orders".
    """
    path = tmp_path_factory.mktemp("store")
    clock = ManualClock()
    with serving(path, clock) as node:
        for sub_id in (1, 2):
            node.subscribe(b"orders", sub_id)
        for hour in range(HOURS):
            sequences = node.publish(b"orders", *[b"x" * 100] * 20)
            node.publish(b"invoices", *[b"y" * 5000] * 2)
            node.deliver(b"orders", 1, sent=tuple(sequences), acked=tuple(sequences[:-1]))
            if hour == 0:
                node.deliver(b"orders", 2, sent=tuple(sequences[:5]))
            clock.advance(3600)
        node.stop()
    return path


def test_rate_and_talkers(spark: SparkSession, store: Path) -> None:
    rows = queries.run(spark, "rate", [str(store)]).collect()
    assert [(r["channel"], r["messages"], r["bytes"], r["largest"]) for r in rows] == [
        *[("invoices", 2, 10_000, 5000)] * HOURS,
        *[("orders", 20, 2000, 100)] * HOURS,
    ]
    assert {r["messages_per_second"] for r in rows if r["channel"] == "orders"} == {
        round(20 / 3600, 3)
    }
    starts = [r["since"] for r in rows if r["channel"] == "orders"]
    assert starts == [starts[0] + dt.timedelta(hours=n) for n in range(HOURS)]
    assert queries.run(spark, "rate", [str(store)], QueryOptions(bucket="1 week")).count() == 2
    rows = queries.run(spark, "talkers", [str(store)], QueryOptions(top=1)).collect()
    assert [(r["channel"], r["place"], r["percent"]) for r in rows] == [
        ("invoices", 1, 83.3)
    ] * HOURS


def test_a_message_that_two_places_have_counts_once(spark: SparkSession, store: Path) -> None:
    link = store.parent / "the-same-store"
    link.symlink_to(store)
    names = queries.register(spark, [str(store), str(link)])
    assert {"messages", "message_sizes", "channels", "subscription_events"} <= set(names)
    rows = queries.sql(
        spark, "SELECT channel, messages, bytes, first, last FROM channels ORDER BY channel"
    ).collect()
    assert [tuple(row) for row in rows] == [
        ("invoices", 6, 30_000, 1, 6),
        ("orders", 60, 6000, 1, 60),
    ]


def test_dead_letters_have_their_origins_as_columns_and_a_forged_one_breaks_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    with serving(tmp_path / "store", ManualClock()) as node:
        origin = Origin(b"orders", 42, b"a b", b"", b"me", 5, 1_764_253_563_123_456_789)
        node.publish(b"dead", b"poison", reply=encode_origin(origin))
        node.publish(b"dead", b"forged", reply=PREFIX + b"channel=%zz&seq=x&first=" + b"9" * 30)
        node.publish(b"dead", b"other")
        node.stop()
    queries.register(spark, [str(tmp_path / "store")])
    columns = "origin_channel, origin_sequence, durable, queue, client, deliveries"
    rows = queries.sql(
        spark,
        f"SELECT CAST(data AS STRING), {columns}, unix_micros(first_delivery) "
        "FROM dead_letters ORDER BY sequence",
    ).collect()
    assert [tuple(row) for row in rows] == [
        ("poison", "orders", 42, "a b", None, "me", 5, 1_764_253_563_123_456),
        ("forged", None, None, None, None, None, None, None),
    ]


def test_lag_says_where_each_subscription_stands(spark: SparkSession, store: Path) -> None:
    quick, slow = queries.run(spark, "lag", [str(store)]).orderBy("subscription").collect()
    assert (quick["subscription"], quick["kind"], quick["channel"]) == (
        "me/dur.1",
        "durable",
        "orders",
    )
    assert (quick["last_sent"], quick["behind"], quick["in_flight"], quick["oldest_unacked"]) == (
        60,
        0,
        3,
        20,
    )
    assert (slow["last_sent"], slow["behind"], slow["in_flight"], slow["oldest_unacked"]) == (
        5,
        55,
        5,
        1,
    )
    queries.register(spark, [str(store)])
    first = queries.sql(
        spark, "SELECT timestamp FROM messages WHERE channel = 'orders' AND sequence = 1"
    ).first()
    assert first is not None
    assert slow["oldest_unacked_time"] == first["timestamp"]
    assert (slow["members"], slow["online"], slow["unreadable"]) == (1, True, 0)


def test_the_history_of_lag_is_told_from_the_order_of_events_and_the_times_of_messages(
    spark: SparkSession, store: Path
) -> None:
    rows = queries.run(spark, "lag-history", [str(store)]).where("since IS NOT NULL").collect()
    quick = [
        (r["last_sent"], r["behind"], r["in_flight"], r["sent"], r["acked"])
        for r in rows
        if r["subscription"] == "me/dur.1"
    ]
    assert [(last, behind, sent, acked) for last, behind, _, sent, acked in quick] == [
        (20, 0, 20, 19), (40, 0, 20, 19), (60, 0, 20, 19),
    ]  # fmt: skip
    (slow,) = [r for r in rows if r["subscription"] == "me/dur.2"]
    assert (slow["last_sent"], slow["behind"], slow["in_flight"], slow["sent"]) == (5, 19, 5, 5)


def test_the_forecast_says_when_a_limit_is_reached(spark: SparkSession, store: Path) -> None:
    options = QueryOptions(
        limits={"": {"max_msgs": 0, "max_bytes": 0}, "orders": {"max_msgs": 1000}}
    )
    (row,) = queries.run(spark, "forecast", [str(store)], options).collect()
    assert (row["channel"], row["limit"], row["used"], row["allowed"]) == (
        "orders",
        "max_msgs",
        60.0,
        1000,
    )
    assert row["says"].startswith("orders fills its limit of 1,000 messages on ")
    (again,) = queries.forecast(spark, options)
    assert again.says == row["says"]


def test_what_is_asked_wrongly_is_told_in_one_line(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match='no query "rates"') as caught:
        queries.run(spark, "rates", [str(store)])
    assert caught.value.hint == "did you mean rate?"
    with pytest.raises(ConfigError, match='"soon" is no length of time'):
        queries.run(spark, "rate", [str(store)], QueryOptions(bucket="soon"))
    with pytest.raises(ConfigError, match="nothing to query"):
        queries.run(spark, "rate", [])
    with pytest.raises(ConfigError, match="SQL: "):
        queries.sql(spark, "SELECT nothing FROM nowhere")
    with pytest.raises(ConfigError, match="nowhere"):
        queries.run(spark, "rate", [str(tmp_path / "nowhere")])
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    with pytest.raises(ConfigError, match="only a datastore knows of subscriptions"):
        queries.run(spark, "lag", [str(tmp_path / "table")])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1 second", 1), ("5 minutes", 300), ("2hours", 7200), (" 1 Week ", 604800)],
)
def test_lengths_of_time(text: str, seconds: int) -> None:
    assert views.seconds_of(text) == seconds
