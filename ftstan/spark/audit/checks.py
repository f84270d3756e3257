"""What is looked for in messages from several places, as one Spark plan.

Rows of one channel meet in blocks of sequences, one task a block whatever the channel's length; the
driver joins the blocks' ends. Payloads never leave the task that read them: contents are compared
by two checksums (96 bits together) of payload, reply and timestamp. It decides nothing about what
is an error (``report.Kind`` does).
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from ftstan.spark.audit.result import AuditError, AuditFinding, AuditKind, Channel, Day

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column, DataFrame, Row

#: What is read of each message.
COLUMNS = (
    "channel string, sequence bigint, timestamp_ns bigint, data binary, size int, reply string, "
    "crc_ok boolean, "
    "slice int, offset bigint"
)

#: Sequences that one task compares.
BLOCK = 1 << 20

MOST_PLACES = 63

_DAY_NS = 86_400_000_000_000
_KEYS = ("channel", "block")


@dataclass(frozen=True, slots=True)
class Found:
    """What the checks found; see ``report.Report`` for the fields."""

    channels: tuple[Channel, ...]
    days: tuple[Day, ...]
    counts: dict[AuditKind, int]
    findings: tuple[AuditFinding, ...]


def check(places: Sequence[tuple[str, DataFrame]], most: int) -> Found:
    """Check messages of several places together; ``most`` findings are told one by one.

    The tables have ``COLUMNS``. Raises ``AuditError`` for more places than can be told apart.
    """
    if len(places) > MOST_PLACES:
        raise AuditError(
            f"{len(places)} places are too many: {MOST_PLACES} at most", hint="audit them in parts"
        )
    steps = _steps(_grouped(places))
    rows = _summed(steps).collect()
    names = tuple(name for name, _ in places)
    edges = list(_edges(rows, names))
    counts = {kind: sum(row[kind.name] for row in rows) for kind in _MARKS}
    for finding in edges:
        counts[finding.kind] += 1
    details = _details(steps, names, most) if sum(counts.values()) > len(edges) else []
    findings = sorted([*edges, *details], key=lambda f: (f.channel, f.first, f.kind.name))
    return Found(
        channels=tuple(_channels(rows, edges)),
        days=tuple(_days(rows, names)),
        counts={kind: counts.get(kind, 0) for kind in AuditKind},
        findings=tuple(findings[:most]),
    )


# ---- the plan
# --------------------------------------------------------------------------------------------------


def _grouped(places: Sequence[tuple[str, DataFrame]]) -> DataFrame:
    """One row a channel and sequence, with what its copies say."""
    # Nothing and an empty payload are the same, however a place keeps it.
    data = F.coalesce("data", F.lit(b""))
    tables = [
        table.select(
            "channel",
            "sequence",
            F.expr(f"sequence div {BLOCK}").alias("block"),
            "timestamp_ns",
            F.coalesce("size", F.lit(0)).alias("size"),
            "slice",
            "offset",
            (~F.col("crc_ok")).alias("bad"),
            F.lit(1 << number).cast("bigint").alias("place"),
            F.xxhash64(data, F.coalesce("reply", F.lit("")), "timestamp_ns").alias("mark"),
            F.crc32(data).alias("mark2"),
        )
        for number, (_, table) in enumerate(places)
    ]
    rows = tables[0]
    for table in tables[1:]:
        rows = rows.union(table)
    good = ~F.col("bad")
    differ = [
        F.min(F.when(good, F.col(mark))) != F.max(F.when(good, F.col(mark)))
        for mark in ("mark", "mark2")
    ]
    return (
        rows.repartition(*_KEYS)
        .groupBy(*_KEYS, "sequence")
        .agg(
            F.coalesce(F.min(F.when(good, F.col("timestamp_ns"))), F.min("timestamp_ns")).alias(
                "timestamp_ns"
            ),
            F.max("size").alias("size"),
            F.count("*").alias("copies"),
            F.bit_or("place").alias("places"),
            F.count_if("bad").alias("bad"),
            F.bit_or(F.when(F.col("bad"), F.col("place"))).alias("bad_places"),
            F.min(F.when(F.col("bad"), F.col("slice"))).alias("bad_slice"),
            F.min(F.when(F.col("bad"), F.col("offset"))).alias("bad_offset"),
            F.coalesce(differ[0] | differ[1], F.lit(False)).alias("differ"),
        )
    )


def _steps(grouped: DataFrame) -> DataFrame:
    """The same rows, each with what comes before it in its block."""
    order = Window.partitionBy(*_KEYS).orderBy("sequence")
    before = {
        f"former_{name}": F.lag(name).over(order) for name in ("sequence", "timestamp_ns", "places")
    }
    return grouped.withColumns(before)


#: What is wrong with a row, by kind.
_MARKS: dict[AuditKind, str] = {
    AuditKind.GAP: "sequence - former_sequence > 1",
    AuditKind.CRC: "bad > 0",
    AuditKind.CONFLICT: "differ",
    AuditKind.DUPLICATE: "copies > bit_count(places)",
    AuditKind.BACKWARD: "timestamp_ns < former_timestamp_ns",
}


def _summed(steps: DataFrame) -> DataFrame:
    """One row a channel, block, day and set of places: sums, ends, and how often each kind was
    found.
    """
    return steps.groupBy(
        *_KEYS,
        F.expr(f"(timestamp_ns - pmod(timestamp_ns, {_DAY_NS})) div {_DAY_NS}").alias("day"),
        "places",
    ).agg(
        F.count("*").alias("messages"),
        F.sum("size").alias("size"),
        F.sum(F.greatest(F.bit_count("places") - 1, F.lit(0))).alias("copies"),
        F.min("sequence").alias("first"),
        F.max("sequence").alias("last"),
        F.coalesce(F.min_by("timestamp_ns", "sequence"), F.lit(0)).alias("first_ns"),
        F.coalesce(F.max_by("timestamp_ns", "sequence"), F.lit(0)).alias("last_ns"),
        F.coalesce(F.sum(F.expr("sequence - former_sequence - 1")), F.lit(0)).alias("missing"),
        *(F.count_if(F.expr(wrong)).alias(kind.name) for kind, wrong in _MARKS.items()),
    )


def _details(steps: DataFrame, places: Sequence[str], most: int) -> Iterator[AuditFinding]:
    wrong = F.array_compact(
        F.array(*(F.when(F.expr(sql), _detail(kind)) for kind, sql in _MARKS.items()))
    )
    rows = (
        steps.select("channel", "timestamp_ns", F.explode(wrong).alias("found"))
        .select("channel", "timestamp_ns", "found.*")
        .orderBy("channel", "first", "kind")
        .limit(most)
    )
    for row in rows.toLocalIterator():
        yield AuditFinding(
            AuditKind[row["kind"]],
            row["channel"],
            row["first"],
            row["last"],
            row["timestamp_ns"] or 0,
            _names(places, row["places"]),
            row["text"],
        )


def _detail(kind: AuditKind) -> Column:
    sequence = F.col("sequence")
    first = sequence
    last = sequence
    places = F.col("places")
    text = F.lit("")
    match kind:
        case AuditKind.GAP:
            first = F.col("former_sequence") + 1
            last = sequence - 1
            places = places.bitwiseOR(F.col("former_places"))
            text = F.format_string("%d missing", last - first + 1)
        case AuditKind.CRC:
            places = F.col("bad_places")
            text = F.concat_ws(
                ", ",
                F.concat(F.lit("slice "), "bad_slice"),
                F.concat(F.lit("offset "), "bad_offset"),
                F.format_string("%d of %d copies", "bad", "copies"),
            )
        case AuditKind.CONFLICT | AuditKind.DUPLICATE:
            text = F.format_string("%d copies", "copies")
        case _:
            text = F.format_string(
                "%d ns before sequence %d",
                F.expr("former_timestamp_ns - timestamp_ns"),
                "former_sequence",
            )
    return F.struct(
        F.lit(kind.name).alias("kind"),
        first.alias("first"),
        last.alias("last"),
        places.alias("places"),
        text.alias("text"),
    )


# ---- on the driver
# --------------------------------------------------------------------------------------------------


def _names(places: Sequence[str], mask: int) -> tuple[str, ...]:
    return tuple(name for number, name in enumerate(places) if mask >> number & 1)


def _by_channel(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    ordered = sorted(rows, key=lambda row: (row["channel"], row["first"]))
    for name, some in groupby(ordered, key=lambda row: row["channel"]):
        yield str(name), list(some)


def _edges(rows: Sequence[Row], places: Sequence[str]) -> Iterator[AuditFinding]:
    """What is wrong between the last sequence of a block and the first of the next."""
    for name, mine in _by_channel(rows):
        blocks = [list(some) for _, some in groupby(mine, key=lambda row: row["block"])]
        for former, block in pairwise(blocks):
            before = max(former, key=lambda row: int(row["last"]))
            behind = block[0]
            both = _names(places, before["places"] | behind["places"])
            gap = behind["first"] - before["last"] - 1
            finding = AuditFinding(
                AuditKind.GAP,
                name,
                before["last"] + 1,
                behind["first"] - 1,
                behind["first_ns"],
                both,
                f"{gap} missing",
            )
            if gap:
                yield finding
            back = before["last_ns"] - behind["first_ns"] if behind["first_ns"] else 0
            if back > 0:
                at = behind["first"]
                text = f"{back} ns before sequence {before['last']}"
                yield replace(finding, kind=AuditKind.BACKWARD, first=at, last=at, text=text)


def _channels(rows: Sequence[Row], edges: Sequence[AuditFinding]) -> Iterator[Channel]:
    between: dict[str, int] = defaultdict(int)
    for finding in edges:
        between[finding.channel] += finding.count if finding.kind is AuditKind.GAP else 0
    for name, mine in _by_channel(rows):
        last = max(mine, key=lambda row: int(row["last"]))
        yield Channel(
            name,
            messages=sum(row["messages"] for row in mine),
            size=sum(row["size"] for row in mine),
            copies=sum(row["copies"] for row in mine),
            first=mine[0]["first"],
            last=last["last"],
            first_ns=mine[0]["first_ns"],
            last_ns=last["last_ns"],
            missing=sum(row["missing"] for row in mine) + between[name],
        )


def _days(rows: Sequence[Row], places: Sequence[str]) -> Iterator[Day]:
    found: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        for place in _names(places, row["places"]):
            found[row["channel"], day_text(row["day"]), place].append(row)
    for (name, day, place), mine in sorted(found.items(), key=lambda item: item[0]):
        yield Day(
            name,
            day,
            place,
            sum(row["messages"] for row in mine),
            sum(row["size"] for row in mine),
            min(row["first"] for row in mine),
            max(row["last"] for row in mine),
        )


def day_text(day: int | None) -> str:
    """Days since 1970-01-01 as a date.

    Years past 9999, which dates do not have, as the number of days.
    """
    if day is None:
        return "unknown"
    try:
        return (dt.date(1970, 1, 1) + dt.timedelta(days=day)).isoformat()
    except OverflowError:
        return f"day {day}"
