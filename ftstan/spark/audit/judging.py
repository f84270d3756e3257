"""The judge of ledgers of any size: the verdict of ``docs/ledger.md`` as Spark plans over
``ledger.read``.

The rules and their words are those of ``ftstan.drill.rules``; counts, and the order of the cases
that are told, are those of the judge of drills: tests hold the two to each other. Two tables answer
nearly everything, one row an id and one row a sequence. Few things come to the driver: faults,
takeovers, readings, counts, and five cases of each broken rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark import StorageLevel
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from ftstan.drill.ledger import Fault, Takeover
from ftstan.drill.rules import MAX_EXAMPLES, Breach, History, Rule, at_sequences
from ftstan.spark.audit.verdict import AuditVerdict, Latency, Quiet, Tick

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Column, DataFrame, Row

    from ftstan.spark.audit.ledger import Ledger, Reading

T = TypeVar("T", Fault, Takeover)

#: A time without acks is told from this length on, in microseconds.
QUIET_US = 1_000_000

_TICKS = 200
_PERCENTILES = (0.5, 0.9, 0.99, 0.999, 1.0)


def settings_for(ledger: Ledger) -> dict[str, str]:
    """What a session should be set to while it judges: ids stay in hash tables, and plans are not
    made again.
    """
    return {
        # Above so many keys a task begins to sort; a part of a ledger has some ten thousand ids.
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": str(1 << 17),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": str(ledger.parts),
    }


def judge(ledger: Ledger, *, quiet_us: int = QUIET_US) -> AuditVerdict:
    """Judge a ledger. Times without acks are told from ``quiet_us`` microseconds on."""
    evidence = Evidence(ledger)
    try:
        return AuditVerdict(
            directory=ledger.directory,
            nodes=evidence.history.nodes(),
            switches=tuple(evidence.history.switches()),
            **evidence.counts(),
            rate=evidence.rate(),
            readings=len(ledger.readings),
            latency=evidence.latency(),
            quiet=tuple(evidence.quiet(quiet_us)),
            timeline=evidence.timeline(),
            tick_us=evidence.tick_us,
            breaches=tuple(evidence.breaches()),
        )
    finally:
        evidence.forget()


@dataclass(frozen=True, slots=True)
class Cases:
    """Breaches of one rule as rows: what orders them, and how each is told."""

    rule: Rule
    rows: DataFrame
    order: tuple[str, ...]
    text: Column


class Evidence:
    """What a ledger has of each id and of each sequence. ``forget`` it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        table = ledger.table
        marks = table.where(F.col("kind").isin("fault", "takeover")).orderBy("place").collect()
        self.history = History(
            [_record(Fault, row) for row in marks if row["kind"] == Fault.kind],
            [_record(Takeover, row) for row in marks if row["kind"] == Takeover.kind],
        )
        # As many tasks as the ledger is worth: Spark's usual 200 cost more than a small one takes.
        parts = ledger.parts
        # A name that no channel has stands between the two.
        last = [f"{channel}\0{reader}" for channel, reader in ledger.final.items()]
        final = F.concat("channel", F.lit("\0"), "reader").isin(last)
        self._contents = contents_of(table, parts, final).persist(StorageLevel.MEMORY_AND_DISK)
        self.ids = by_id(table, self._contents, parts).persist(StorageLevel.MEMORY_AND_DISK)
        names = self.ids.select(F.col("id").alias("first_id"), "published", "t")
        self.sequences = (
            self._contents.groupBy("channel", "sequence")
            .agg(
                F.min_by(F.struct("id", "sha1"), "place").alias("first"),
                F.collect_set("sha1").alias("sha1s"),
                F.max("kept").alias("kept"),
            )
            .select("channel", "sequence", "sha1s", "kept", "first.id", "first.sha1")
            .withColumnRenamed("id", "first_id")
            .repartition(parts, "first_id")
            .join(names, "first_id", "left")
            .persist(StorageLevel.MEMORY_AND_DISK)
        )

    def forget(self) -> None:
        """Give back what Spark keeps of it."""
        for table in (self._contents, self.ids, self.sequences):
            table.unpersist()

    # ---- numbers
    # ----------------------------------------------------------------------------------------------

    @cached_property
    def _of_ids(self) -> Row:
        acked = F.col("t").isNotNull()
        (row,) = self.ids.agg(
            F.count("published").alias("published"),
            F.count("t").alias("acked"),
            F.count_if(F.col("acks") > 1).alias("acked_again"),
            F.min("t").alias("begin"),
            F.max("t").alias("end"),
            F.percentile("latency_us", list(_PERCENTILES)).alias("latency"),
            F.count_if(acked & ~F.col("kept")).alias(Rule.STORED.name),
            F.count_if(acked & (F.size("at") > 1)).alias(Rule.ONCE.name),
            F.sum(F.when(acked, F.size(self._missed()))).alias(Rule.DELIVERED.name),
            F.collect_set(F.when(acked, F.col("channel"))).alias("channels"),
        ).collect()
        return row

    @cached_property
    def _of_sequences(self) -> Row:
        kept = F.col("kept")
        (row,) = self.sequences.agg(
            F.count_if(kept).alias("stored"),
            F.count_if(kept & F.col("t").isNull()).alias("stored_without_ack"),
            F.count_if(~kept).alias(Rule.KEPT.name),
            F.count_if(F.size("sha1s") > 1).alias(Rule.ONE_PAYLOAD.name),
            F.count_if(F.col("published") != F.col("sha1")).alias(Rule.AS_PUBLISHED.name),
        ).collect()
        return row

    def counts(self) -> dict[str, Any]:
        """The counts of the verdict, by their names there."""
        ids = self._of_ids
        sequences = self._of_sequences
        return {
            **{name: ids[name] for name in ("published", "acked", "acked_again")},
            **{name: sequences[name] for name in ("stored", "stored_without_ack")},
            "retried": self._ledger.retried,
            "failed": self._ledger.failed,
            "delivered": sum(self._ledger.deliveries.values()),
            "redelivered": self._ledger.redelivered,
        }

    @property
    def tick_us(self) -> int:
        """Microseconds of one piece of the time line."""
        row = self._of_ids
        return max(1000, -(-(row["end"] - row["begin"] + 1) // _TICKS)) if row["acked"] else 0

    def _windows(self) -> list[tuple[int, int]]:
        """When a node served, in microseconds."""
        return self.history.served(self._of_ids["end"])

    @cached_property
    def _ticks(self) -> list[Row]:
        if not self._of_ids["acked"]:
            return []
        served = F.lit(False)
        for begin, end in self._windows():
            served |= F.col("t").between(begin, end)
        return (
            self.ids.where("t is not null")
            .withColumn("tick", F.expr(f"(t - {self._of_ids['begin']}) div {self.tick_us}"))
            .groupBy("tick")
            .agg(
                F.count("*").alias("acks"),
                F.percentile_approx("latency_us", 0.99).alias("p99"),
                F.count_if(served).alias("served"),
            )
            .orderBy("tick")
            .collect()
        )

    def rate(self) -> float:
        """Acks a second between each takeover's first ack and the fault (in the end: the last ack)
        that followed.
        """
        served_us = sum(end - begin for begin, end in self._windows()) if self._ticks else 0
        return sum(row["served"] for row in self._ticks) / served_us * 1e6 if served_us else 0.0

    def latency(self) -> Latency | None:
        """Percentiles of the time from publish to ack; ``None`` without acks."""
        found = self._of_ids["latency"]
        return None if found is None else Latency(*(value / 1e3 for value in found))

    def timeline(self) -> tuple[Tick, ...]:
        """Acks and their latency over time, in some 200 pieces; pieces without acks have no row."""
        begin = self._of_ids["begin"]
        return tuple(
            Tick(begin + row["tick"] * self.tick_us, row["acks"], row["p99"] / 1e3)
            for row in self._ticks
        )

    def quiet(self, least_us: int) -> Iterator[Quiet]:
        """Times of ``least_us`` microseconds and more between two acks."""
        # A piece of time that is that long has at least one whole bucket without an ack in it.
        bucket = F.expr(f"t div {max(least_us // 2, 1)}")
        acks = self.ids.where("t is not null").groupBy(bucket.alias("bucket"))
        edges = acks.agg(F.min("t").alias("first"), F.max("t").alias("last"))
        behind = edges.withColumn("next", F.lead("first").over(Window.orderBy("first")))
        for row in (
            behind.where(F.col("next") - F.col("last") >= least_us).orderBy("last").collect()
        ):
            yield Quiet(
                row["last"], row["next"], tuple(self._faults_between(row["last"], row["next"]))
            )

    def _faults_between(self, begin: int, end: int) -> Iterator[str]:
        for fault in self.history.faults:
            # Its time is taken just before the signal is sent: the last ack may be a little later.
            if begin - QUIET_US <= fault.t <= end:
                yield f"{fault.fault} of {fault.node}"

    # ---- rules
    # ----------------------------------------------------------------------------------------------

    def breaches(self) -> Iterator[Breach]:
        """The broken rules, in the order of :class:`Rule`."""
        counted = self._of_ids.asDict() | self._of_sequences.asDict()
        found = {breach.rule: breach for breach in self._of_the_driver()}
        for cases in self._cases():
            if counted[cases.rule.name]:
                found[cases.rule] = tell(cases, counted[cases.rule.name])
        yield from (found[rule] for rule in Rule if rule in found)

    def _missed(self) -> Column:
        """The durables that never saw an id.

        Of the whole ledger: one that got nothing of a channel is nowhere in it.
        """
        durables = F.array(*map(F.lit, self._ledger.durables)).cast("array<string>")
        return F.array_except(durables, "durables")

    @cached_property
    def _channels(self) -> list[str]:
        """Channels that anything is known of, sorted.

        A ledger of nothing is judged like one of an empty channel.
        """
        read = {reading.channel for reading in self._ledger.readings}
        delivered = {channel for channel, _ in self._ledger.deliveries}
        return sorted(read | delivered | set(self._of_ids["channels"])) or [""]

    def _cases(self) -> Iterator[Cases]:
        acked = self.ids.where("t is not null")
        where = places("at")
        order = ("channel", "place")
        yield self._told(Rule.STORED, acked.where("not kept"), order, "id", where)
        yield self._told(Rule.ONCE, acked.where("size(at) > 1"), order, "id", where)
        missed = acked.select("channel", "id", F.explode(self._missed()).alias("subscription"))
        by_durable = ("channel", "subscription", "id")
        yield self._told(Rule.DELIVERED, missed, by_durable, "subscription", "id")
        by_sequence = ("channel", "sequence")
        gone = self.sequences.where("not kept")
        yield self._told(Rule.KEPT, gone, by_sequence, "sequence", "first_id")
        first = F.array("sha1")
        sha1s = F.array_join(F.concat(first, F.array_sort(F.array_except("sha1s", first))), " and ")
        changed = self.sequences.where("size(sha1s) > 1")
        yield self._told(Rule.ONE_PAYLOAD, changed, by_sequence, "sequence", sha1s)
        altered = self.sequences.where("published != sha1")
        words = ("sequence", "first_id", "sha1", "published")
        yield self._told(Rule.AS_PUBLISHED, altered, by_sequence, *words)

    def _told(
        self,
        rule: Rule,
        rows: DataFrame,
        order: tuple[str, ...],
        *values: Column | str,
    ) -> Cases:
        """Cases whose words begin with the channel where there are several."""
        text = told_of(rule, *values)
        return Cases(
            rule,
            rows,
            order,
            F.concat("channel", F.lit(": "), text) if len(self._channels) > 1 else text,
        )

    def _named(self, channel: str) -> str:
        return f"{channel}: " if len(self._channels) > 1 else ""

    def _of_the_driver(self) -> Iterator[Breach]:
        if not self._of_ids["acked"]:
            yield Breach.of(Rule.ACKED, [Rule.ACKED.case()])
        unread = [
            f"{self._named(channel)}{case}"
            for channel in self._channels
            for case in self._unread(channel)
        ]
        if unread:
            yield Breach.of(Rule.READ, unread)
        if not self._ledger.deliveries:
            yield Breach.of(Rule.DELIVERED, [Rule.DELIVERED.case(form=1)])
        cases = 0
        examples: list[str] = []
        for reading in self._ledger.readings:
            name = f"{self._named(reading.channel)}{reading.reader}"
            missing = max(reading.last, 0) - reading.many
            cases += missing + reading.below
            if missing and (wanted := MAX_EXAMPLES - len(examples)):
                examples += [Rule.CONTIGUOUS.case(name, n) for n in self._missing(reading, wanted)]
            if reading.below and (wanted := MAX_EXAMPLES - len(examples)):
                below = self._log(reading).where("sequence < 1")
                examples += [Rule.CONTIGUOUS.case(name, n, form=1) for n in _lowest(below, wanted)]
        if cases:
            yield Breach(Rule.CONTIGUOUS, cases, tuple(examples))

    def _unread(self, channel: str) -> list[str]:
        mine = (reading for reading in self._ledger.readings if reading.channel == channel)
        return self.history.unread({reading.epoch for reading in mine})

    def _log(self, reading: Reading) -> DataFrame:
        mine = (F.col("channel") == reading.channel) & (F.col("reader") == reading.reader)
        return self._ledger.table.where(mine).select("sequence").distinct()

    def _missing(self, reading: Reading, most: int) -> list[int]:
        """The lowest sequences, up to ``most``, that a reading should have shown and did not."""
        log = self._log(reading)
        whole = log.sparkSession.range(1, reading.last + 1).withColumnRenamed("id", "sequence")
        return _lowest(whole.join(log, "sequence", "left_anti"), most)


def _record(cls: type[T], row: Row) -> T:
    """The record of a row."""
    return cls(**{name: row[name] for name in cls.__slots__})


def told_of(rule: Rule, *values: Column | str) -> Column:
    """The words of a case."""
    return F.format_string(rule.forms[0], *values)


def places(sequences: str) -> Column:
    """``at_sequences`` of the rules, of a column."""
    named = F.array_join(F.array_sort(sequences).cast("array<string>"), " and ")
    at = F.concat(F.lit("sequence "), named)
    return F.when(F.size(sequences) == 0, at_sequences(())).otherwise(at)


def _lowest(table: DataFrame, most: int) -> list[int]:
    return [row["sequence"] for row in table.orderBy("sequence").limit(most).collect()]


def contents_of(table: DataFrame, parts: int, final: Column) -> DataFrame:
    """One row a channel, sequence, id and payload that a reading or a durable has shown.

    ``place`` of its first record; ``kept``: the log at the end, of which records are ``final``, has
    the sequence. Most of a ledger says what was said before, so that this is a small part of it.
    ``parts``: in so many tasks.
    """
    of = ("channel", "sequence")
    return (
        table.where(F.col("kind").isin("read", "deliver"))
        .repartition(parts, *of)
        .groupBy(*of, "id", "sha1")
        .agg(F.min("place").alias("place"), F.coalesce(F.max(final), F.lit(False)).alias("final"))
        .withColumn("kept", F.max("final").over(Window.partitionBy(*of)))
        .drop("final")
    )


def by_id(table: DataFrame, contents: DataFrame, parts: int) -> DataFrame:
    """One row an id: its channel, what was published and acked, where it was seen, and whether the
    last log has it.

    ``contents``: of the ledger, see there; ``parts``: in so many tasks.
    """
    publish = F.col("kind") == "publish"
    ack = F.col("kind") == "ack"
    published = F.when(publish, F.col("place"))
    first_ack = F.when(ack, F.col("place"))
    known = F.when(F.col("channel").isNotNull(), F.col("place"))
    spot = F.when(F.col("sequence").isNotNull(), F.struct("channel", "sequence", "kept"))
    receipt = F.when(F.col("subscription").isNotNull(), F.struct("channel", "subscription"))
    columns = ("id", "channel", "place")
    said = table.where(F.col("kind").isin("publish", "ack")).select(
        *columns, "kind", "sha1", "t", "latency_us"
    )
    received = (
        table.where(F.col("kind") == "deliver").select("id", "channel", "subscription").distinct()
    )
    rows = (
        said.unionByName(contents.select(*columns, "sequence", "kept"), allowMissingColumns=True)
        .unionByName(received, allowMissingColumns=True)
        .repartition(parts, "id")
        .groupBy("id")
        .agg(
            F.max_by(F.when(publish, F.col("sha1")), published).alias("published"),
            F.coalesce(
                F.max_by(F.when(publish, F.col("channel")), published),
                F.min_by("channel", known),
                F.lit(""),
            ).alias("channel"),
            F.min_by(F.when(ack, F.col("t")), first_ack).alias("t"),
            F.min_by(F.when(ack, F.col("latency_us")), first_ack).alias("latency_us"),
            F.min(first_ack).alias("place"),
            F.count_if(ack).alias("acks"),
            F.collect_set(spot).alias("spots"),
            F.collect_set(receipt).alias("receipts"),
        )
    )
    return (
        rows.withColumn("spots", F.expr("filter(spots, x -> x.channel = channel)"))
        .withColumn("at", F.expr("transform(spots, x -> x.sequence)"))
        .withColumn("kept", F.expr("exists(spots, x -> coalesce(x.kept, false))"))
        .withColumn(
            "durables",
            F.expr("transform(filter(receipts, x -> x.channel = channel), x -> x.subscription)"),
        )
        .drop("spots", "receipts")
    )


def tell(cases: Cases, count: int) -> Breach:
    """Put the first cases of a rule into words."""
    rows = (
        cases.rows.orderBy(*cases.order)
        .limit(MAX_EXAMPLES)
        .select(cases.text.alias("text"))
        .collect()
    )
    return Breach(cases.rule, count, tuple(row["text"] for row in rows))
