"""A ledger beside what lies in stores and archives: whether every acked payload is there, once,
where clients saw it.

The ids of a ledger are part of the payloads, so a payload is known by its SHA-1. What lies below
the first sequence that the places still have may have been removed by limits: it is counted and not
judged.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from ftstan.drill.rules import Breach, Rule
from ftstan.spark.audit.judging import Cases, by_id, contents_of, places, tell, told_of
from ftstan.spark.audit.verdict import StoreMatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftstan.spark.audit.ledger import Ledger


def match(
    ledger: Ledger, places: Sequence[tuple[str, DataFrame]], channel: str
) -> tuple[StoreMatch, tuple[Breach, ...]]:
    """Look for what was acked in ``channel`` of the places together.

    A record with a wrong checksum does not count.
    """
    whole = reduce(
        DataFrame.union,
        (table.select("channel", "sequence", "data", "crc_ok") for _, table in places),
    )
    rows = whole.where((F.col("channel") == channel) & F.col("crc_ok"))
    stored = (
        rows.select("sequence", F.sha1("data").alias("sha1"))
        .distinct()
        .persist(StorageLevel.MEMORY_AND_DISK)
    )
    try:
        return _match(
            ledger, stored, StoreMatch(", ".join(place for place, _ in places), channel, 0, 0)
        )
    finally:
        stored.unpersist()


def _match(
    ledger: Ledger, stored: DataFrame, empty: StoreMatch
) -> tuple[StoreMatch, tuple[Breach, ...]]:
    (ends,) = stored.agg(F.min("sequence").alias("first")).collect()
    # A ledger of one channel need not name it.
    mine = F.col("channel").isin("", empty.channel)
    seen = ledger.table.where(F.col("kind").isin("read", "deliver") & mine)
    shown = seen.groupBy("id").agg(F.min("sha1").alias("shown"))
    spots = stored.groupBy("sha1").agg(F.collect_set("sequence").alias("stored"))
    acked = (
        by_id(ledger.table, contents_of(seen, ledger.parts, F.lit(False)), ledger.parts)
        .where(F.col("t").isNotNull() & mine)
        .join(shown, "id", "left")
        .withColumn("sha1", F.coalesce("published", "shown"))
        .join(spots, "sha1", "left")
    )
    first = F.lit(ends["first"] or 0)
    gone = (F.size("at") > 0) & (F.array_max("at") < first)
    missing = F.col("stored").isNull() & ~gone
    twice = F.size("stored") > 1
    (row,) = acked.agg(
        F.count("stored").alias("found"),
        F.count_if(F.col("stored").isNull() & gone).alias("expired"),
        F.count_if(missing).alias("missing"),
        F.count_if(twice).alias("twice"),
    ).collect()
    contents = stored.groupBy("sequence").agg(F.collect_set("sha1").alias("stored"))
    other = (
        seen.select("sequence", "id", "sha1")
        .distinct()
        .join(contents, "sequence")
        .where(~F.array_contains("stored", F.col("sha1")))
    )
    order = ("place",)
    lost = told_of(Rule.IN_STORE, "id")
    again = told_of(Rule.ONCE_IN_STORE, "id", places("stored"))
    another = told_of(Rule.SAME_IN_STORE, "sequence", "id", "sha1", F.array_join("stored", ", "))
    counted = (
        (row["missing"], Cases(Rule.IN_STORE, acked.where(missing), order, lost)),
        (row["twice"], Cases(Rule.ONCE_IN_STORE, acked.where(twice), order, again)),
        (other.count(), Cases(Rule.SAME_IN_STORE, other, ("sequence", "id"), another)),
    )
    found = StoreMatch(empty.place, empty.channel, row["found"], row["expired"])
    return found, tuple(tell(cases, count) for count, cases in counted if count)
