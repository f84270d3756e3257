"""Restore: messages of a datastore, a spool or an archive become an offline datastore, as they
were.

Sequences, timestamps, data and replies stay. The driver owns the datastore meanwhile, and gives
every slice its name (``ftstan.stores.file.tools.restoring``); tasks write slices under temporary
names, each the messages of a range of one channel. The work is cut into steps, in sequence ranges
of large channels and groups of small ones; a restore that was interrupted goes on behind its last
finished step.

Nothing is chosen in silence: one sequence with two contents ends the restore, and so do messages
that are missing or damaged, unless gaps are allowed.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from dataclasses import asdict, astuple, dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812  everybody's name for it
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from ftstan.base.disk import LocalDisk
from ftstan.base.errors import ConfigError, DamageError, FtstanError, StoreError
from ftstan.spark.keys import NO_KEYS, KeySource
from ftstan.spark.session import set_for
from ftstan.spark.steps import Extent, Step, cut, messages_of, survey
from ftstan.stores.file.log import records
from ftstan.stores.file.tools.restoring import Account, Restoring, SliceWriter, Written, new_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from ftstan.spark.selection import Selection
    from ftstan.spark.steps import Part
    from ftstan.stores.interface import ServerInfo

_SLICE_BYTES: Final = 64 << 20
_STEP_BYTES: Final = 4 << 30
_MOST_PARTITIONS: Final = 512
#: Bytes of messages that a task has in memory at a time.
_BATCH_BYTES: Final = 16 << 20
_SHOWN_GAPS: Final = 3

_COLUMNS: Final = (
    "channel string, sequence bigint, timestamp timestamp, timestamp_ns bigint, data binary, "
    "size int, reply string, "
    "crc_ok boolean"
)

_FORMAT: Final = "stan-restore"
_RESULT: Final = "restore.step.json"


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """How to write.

    ``directory``: the datastore, on storage that the driver and every executor see at this path.

    A slice ends at about ``slice_bytes``, and at ``slice_msgs`` messages (0: any number).
    ``allow_gaps``: leave out what is missing or damaged, and write down that it is. ``verify``:
    read everything back before the end. ``keys`` encrypt what is written, which the selection's
    options have decrypted; without any, payloads are written as they are read.
    """

    directory: str
    slice_bytes: int = _SLICE_BYTES
    slice_msgs: int = 0
    step_bytes: int = _STEP_BYTES
    allow_gaps: bool = False
    verify: bool = True
    keys: KeySource = NO_KEYS


@dataclass(frozen=True, slots=True)
class Plan:
    """What there is to restore, by channel, and the ``steps`` in their order."""

    identity: str
    channels: dict[str, Extent]
    steps: list[Step]


@dataclass(slots=True)
class RestoreReport:
    """What a restore did.

    ``missing``: ranges of sequences by channel; ``damaged`` messages are among them.
    """

    directory: str
    channels: dict[str, dict[str, int]] = field(default_factory=dict)
    messages: int = 0
    size: int = 0
    slices: int = 0
    duplicates: int = 0
    damaged: int = 0
    missing: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    resumed: bool = False


def make_plan(spark: SparkSession, selection: Selection, options: RestoreOptions) -> Plan:
    """Look at what there is.

    Raises ``ConfigError`` if it is nothing, ``DamageError`` if some of it is missing.
    """
    found = survey(spark, selection)
    if not found:
        raise ConfigError(
            "there are no messages to restore", hint="look at the places with: ftstan-pipeline read"
        )
    if not options.allow_gaps:
        for name, extent in found.items():
            if extent.messages < extent.last - extent.first + 1:
                raise _gaps(
                    selection.frame(spark, "" if selection.where else _COLUMNS, once=True), name
                )
    return Plan(_identity(selection, options), found, cut(found, options.step_bytes))


def run(
    spark: SparkSession,
    selection: Selection,
    options: RestoreOptions,
    work: Restoring,
    *,
    info: ServerInfo,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> RestoreReport:
    """Carry out the steps that are left, and complete the store with the identity ``info``.

    ``progress`` is told bytes done and all of them, those that are read back too. Raises
    ``DamageError``, ``StoreError``; run it again to go on.
    """
    account = work.account
    steps = [
        Step(n, size, [(name, first, last) for name, first, last in parts])
        for n, size, parts in account.plan
    ]
    report = RestoreReport(options.directory, resumed=account.done > 0)
    meter = _Meter(progress, sum(step.size for step in steps) * (2 if options.verify else 1))
    work.begin()
    meter.add(sum(step.size for step in steps[: account.done]))
    for step in steps[account.done :]:
        for name, _, _ in step.parts:
            work.open_channel(name)
        written = _write(spark, selection, options, step, report)
        work.complete(written, allow_gaps=options.allow_gaps)
        meter.add(step.size)
    work.finish(info, verify=options.verify, progress=meter.add)
    for name, channel in account.channels.items():
        report.channels[name] = {
            "first": channel.first,
            "last": channel.last,
            "messages": channel.count,
        }
        report.messages += channel.count
        report.size += channel.size
        report.slices += channel.slices
        if channel.missing:
            report.missing[name] = channel.missing
    return report


@dataclass(slots=True)
class _Meter:
    """Adds up what was done; what was estimated too low does not go beyond the whole."""

    tell: Callable[[int, int], None]
    total: int
    done: int = 0

    def add(self, size: int) -> None:
        self.done = min(self.done + size, self.total)
        self.tell(self.done, self.total)


def account_of(plan: Plan, found: Account | None, path: str) -> Account:
    """The account to work on: that of an interrupted restore of the same messages, or a new one.

    Raises ``StoreError`` if another restore was interrupted here.
    """
    if found is None:
        return Account(plan.identity, [astuple(step) for step in plan.steps])
    if found.identity != plan.identity:
        raise StoreError(
            f"{path} holds the beginning of another restore",
            hint="repeat the words of that one to go on with it, or restore into a new directory",
        )
    return found


def _identity(selection: Selection, options: RestoreOptions) -> str:
    """What must be the same for a restore to go on."""
    said = (
        sorted(os.path.abspath(path) for path in selection.paths),
        selection.channels,
        selection.pattern,
        selection.since,
        selection.until,
        selection.where,
        sorted(selection.options.items()),
        options.allow_gaps,
        *astuple(options.keys),
    )
    return hashlib.sha256(repr(said).encode("utf-8", "surrogateescape")).hexdigest()


def _write(
    spark: SparkSession,
    selection: Selection,
    options: RestoreOptions,
    step: Step,
    report: RestoreReport,
) -> list[Written]:
    """Have tasks write the slices of one step."""
    frame = messages_of(
        selection.frame(spark, "" if selection.where else _COLUMNS, once=True), step
    )
    per_slice = max(options.slice_bytes * step.messages // step.size, 1)
    partitions = min(max(-(-step.size // options.slice_bytes), 2), _MOST_PARTITIONS)
    ordered = (
        frame.select("channel", "sequence", "timestamp_ns", "data", "reply", "crc_ok")
        .repartition(partitions, "channel", F.floor(F.col("sequence") / F.lit(per_slice)))
        .sortWithinPartitions("channel", "sequence")
    )
    spark.dataSource.register(RestoreSink)
    result = os.path.join(options.directory, _RESULT)
    said = _Words(
        options.directory,
        options.slice_bytes,
        options.slice_msgs,
        step.parts,
        result,
        options.keys.file,
        options.keys.environment,
    )
    with set_for(spark, {"spark.sql.execution.arrow.maxBytesPerBatch": str(_BATCH_BYTES)}):
        ordered.write.format(_FORMAT).mode("append").option(
            "words", json.dumps(asdict(said))
        ).save()
    with open(result, encoding="utf-8") as file:
        outcomes = [_Outcome(**row) for row in json.load(file)]
    os.unlink(result)
    for outcome in outcomes:
        if outcome.problem:
            raise DamageError(outcome.problem, hint=outcome.hint)
        report.duplicates += outcome.duplicates
        report.damaged += outcome.damaged
    return [Written(*row) for outcome in outcomes for row in outcome.written]


@dataclass(frozen=True, slots=True)
class _Words:
    """What tasks must know; ``result``: the file in which the driver finds what they did.

    ``key_file`` and ``environment``: where the keys are (``keys.KeySource``).
    """

    directory: str
    slice_bytes: int
    slice_msgs: int
    parts: list[Part]
    result: str
    key_file: str = ""
    environment: bool = False


@dataclass(frozen=True, slots=True)
class _Outcome(WriterCommitMessage):
    """What one task did.

    A failure is told, too, and not raised: to repeat the task would not help.
    """

    written: list[tuple[str, int, int, int, str]] = field(default_factory=list)
    duplicates: int = 0
    damaged: int = 0
    problem: str = ""
    hint: str = ""


class RestoreSink(DataSource):
    """Where the messages of one step are written to: slices of a datastore that the driver owns."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return _FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> _Writer:
        """What tasks and the end of the job do."""
        del schema, overwrite
        return _Writer(_Words(**json.loads(self.options["words"])))


class _Writer(DataSourceArrowWriter):
    def __init__(self, words: _Words) -> None:
        self._words = words

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Outcome:
        """Write slices of messages, which come in the order of their channels and sequences."""
        task = None
        try:
            task = _Task(self._words)
            for batch in iterator:
                task.take(batch)
            task.cut()
        except FtstanError as error:
            return _Outcome(problem=error.text, hint=error.hint)
        except OSError as error:
            name = f" {error.filename!r}" if error.filename else ""
            return _Outcome(
                problem=f"{socket.gethostname()} cannot write below {self._words.directory}:{name} "
                f"{error.strerror or error}",
                hint="it must be on storage that every executor sees at this path, with room and "
                "permission to write",
            )
        finally:
            if task is not None:
                task.close()
        return _Outcome([astuple(w) for w in task.written], task.duplicates, task.damaged)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Tell the driver, which is another process than the one that runs this."""
        temporary = f"{self._words.result}.tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump([asdict(m) for m in messages if isinstance(m, _Outcome)], file)
        os.replace(temporary, self._words.result)


class _Task:
    """The slices of one task. Raises ``FtstanError`` and ``OSError``."""

    def __init__(self, words: _Words) -> None:
        self.written: list[Written] = []
        self.duplicates = 0
        self.damaged = 0
        self._words = words
        self._ranges = {name: (first, last) for name, first, last in words.parts}
        self._disk = LocalDisk()
        self._root = self._disk.open_dir(words.directory)
        self._crc = records.Crc()
        self._ring = KeySource(words.key_file, words.environment).ring()
        self._channel = ""
        self._dirfd = -1
        self._writer: SliceWriter | None = None

    def take(self, batch: pa.RecordBatch) -> None:
        columns = [batch.column(name).to_pylist() for name in batch.schema.names]
        for channel, sequence, timestamp, data, reply, crc_ok in zip(*columns, strict=True):
            first, last = self._ranges[channel]
            if not first <= sequence <= last:
                # A live store has grown since the plan was made.
                continue
            if not crc_ok:
                self.damaged += 1
                continue
            if channel != self._channel:
                self._open(channel)
            assert self._writer is not None
            self._writer.add(
                sequence, timestamp, data, (reply or "").encode("utf-8", "surrogateescape")
            )

    def cut(self) -> None:
        """End the slice of the present channel."""
        if self._writer is not None:
            self.written += self._writer.finish()
            self.duplicates += self._writer.duplicates
            self._writer = None

    def close(self) -> None:
        if self._writer is not None:
            self._writer.abandon()
        for fd in (self._dirfd, self._root):
            if fd >= 0:
                self._disk.close(fd)

    def _open(self, channel: str) -> None:
        self.cut()
        if self._dirfd >= 0:
            self._disk.close(self._dirfd)
            self._dirfd = -1
        self._channel = channel
        self._dirfd = self._disk.open_dir_at(self._root, channel)
        name = os.fsencode(channel)
        self._writer = SliceWriter(
            self._disk,
            self._dirfd,
            name,
            new_token(),
            self._crc,
            max_bytes=self._words.slice_bytes,
            max_msgs=self._words.slice_msgs,
            keys=None if self._ring is None else self._ring.channel(name),
        )


def _gaps(frame: DataFrame, channel: str) -> DamageError:
    """What says which sequences of a channel are missing."""
    rows = (
        frame.where(F.col("channel") == channel)
        .selectExpr("sequence", "lead(sequence) OVER (ORDER BY sequence) AS next")
        .where("next > sequence + 1")
        .orderBy("sequence")
        .limit(_SHOWN_GAPS + 1)
        .collect()
    )
    shown = [f"{row.sequence + 1} to {row.next - 1}" for row in rows[:_SHOWN_GAPS]]
    more = ", and more" if len(rows) > _SHOWN_GAPS else ""
    return DamageError(
        f"channel {channel!r}: sequences {', '.join(shown)}{more} are missing",
        hint="give a further place that has them, or --allow-gaps to restore without them",
    )
