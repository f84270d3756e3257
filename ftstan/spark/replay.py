"""Replay: messages of a datastore, a spool or an archive are published again, to channels of a
running server.

Channel after channel, in the order of their sequences, from the driver: that is the only way to
keep an order. The data and the reply stay; the server gives new sequences and timestamps. How far
it came stands in a checkpoint file, as one sequence a channel: up to it everything was
acknowledged. What had been sent and not acknowledged is sent again under the same guid, so a server
with ``dedup_window`` stores it once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from hashlib import blake2b, sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ftstan.base.errors import ConfigError, DamageError, FtstanError
from ftstan.client import ClientError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import SparkSession

    from ftstan.client import Connection
    from ftstan.spark.selection import Selection
    from ftstan.spark.steps import Extent

_STEP_BYTES: Final = 256 << 20
_ROWS_AT_ONCE: Final = 512
_SAVE_EVERY_S: Final = 1.0
_FORMAT: Final = 1
_NAME_SIZE: Final = 16
_COLUMNS: Final = (
    "channel string, sequence bigint, timestamp timestamp, size int, data binary, reply string, "
    "crc_ok boolean"
)


class ReplayError(FtstanError):
    """A message that was not stored, or is not known to be."""


class Row(NamedTuple):
    """A message to publish."""

    channel: str
    sequence: int
    data: bytes
    reply: str
    crc_ok: bool


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Where to, and how.

    ``channel``: one for all messages; ``prefix``: put before each name; neither: the same names.

    ``rate``: messages a second at most, 0: as fast as they are acknowledged. ``checkpoint``: the
    file that says how far it came, empty for none. ``skip_damaged``: leave out messages whose
    checksum does not hold. ``again``: set for a deliberate repetition, which a server with
    ``dedup_window`` shall store once more.
    """

    cluster_id: str
    channel: str = ""
    prefix: str = ""
    rate: float = 0.0
    checkpoint: str = ""
    skip_damaged: bool = False
    again: str = ""

    def target(self, channel: str) -> str:
        """The channel to which the messages of ``channel`` go."""
        return self.channel or self.prefix + channel


@dataclass(slots=True)
class ReplayReport:
    """What a replay did: messages acknowledged by channel they came from.

    ``left_out`` were done by a former run.
    """

    channels: dict[str, dict[str, Any]] = field(default_factory=dict)
    messages: int = 0
    size: int = 0
    left_out: int = 0
    duplicates: int = 0
    damaged: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Checkpoint:
    """How far a replay came. ``channels``: up to which sequence everything was acknowledged."""

    identity: str
    channels: dict[str, int] = field(default_factory=dict)
    messages: int = 0
    path: str = ""

    @classmethod
    def load(cls, path: str, identity: str) -> Checkpoint:
        """Read it; a file that is not there begins one.

        Raises ``ConfigError`` if it belongs to another replay.
        """
        if not path:
            return cls(identity)
        try:
            with open(path, encoding="utf-8") as file:
                said = json.load(file)
            if said["format"] != _FORMAT:
                raise ConfigError(
                    f"{path} is of another release", hint="end the replay with that one"
                )
            found = cls(
                said["identity"],
                {str(k): int(v) for k, v in said["channels"].items()},
                said["messages"],
                path,
            )
        except FileNotFoundError:
            return cls(identity, path=path)
        except OSError as error:
            raise ConfigError(
                f"{path}: {error.strerror}", hint="choose a --checkpoint that can be read"
            ) from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"{path} is no checkpoint of a replay", hint="choose another --checkpoint"
            ) from error
        if found.identity != identity:
            raise ConfigError(
                f"{path} belongs to another replay",
                hint="repeat its words to go on with it, or choose another file",
            )
        return found

    def save(self) -> None:
        """Replace the file, durable on return. Raises ``ReplayError``."""
        if not self.path:
            return
        said = {
            "format": _FORMAT,
            "identity": self.identity,
            "channels": self.channels,
            "messages": self.messages,
        }
        temporary = f"{self.path}.tmp"
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(said, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except OSError as error:
            raise ReplayError(
                f"{self.path} cannot be written: {error.strerror}",
                hint="choose a --checkpoint in a writable directory",
            ) from error


class Pace:
    """At most ``rate`` messages a second, evenly: says how long to wait. 0: never."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._begun = 0.0
        self._count = 0

    def wait(self, now: float) -> float:
        """Seconds until the next message may be sent, which counts as sent."""
        if not self._rate:
            return 0.0
        due = self._begun + self._count / self._rate
        if not self._count or now - due > 1.0:
            # What was held up for longer is not made up for in one burst.
            self._begun = now
            self._count = 0
            due = now
        self._count += 1
        return max(due - now, 0.0)


def identity_of(selection: Selection, options: ReplayOptions) -> str:
    """What must be the same for a checkpoint to be used again."""
    said = (
        sorted(os.path.abspath(path) for path in selection.paths),
        selection.channels,
        selection.pattern,
        selection.where,
        options.cluster_id,
        options.channel,
        options.prefix,
        options.again,
    )
    return sha256(repr(said).encode("utf-8", "surrogateescape")).hexdigest()


def rows_of(
    spark: SparkSession, selection: Selection, found: dict[str, Extent], done: dict[str, int]
) -> Iterator[Row]:
    """The messages in the order of their channels and sequences, without those that ``done`` says
    are stored.
    """
    from ftstan.spark.steps import cut, messages_of  # noqa: PLC0415  the rest of this file needs no pyspark

    for step in cut(found, _STEP_BYTES):
        step.parts = [
            (n, max(first, done.get(n, 0) + 1), last)
            for n, first, last in step.parts
            if last > done.get(n, 0)
        ]
        if not step.parts:
            continue
        frame = messages_of(
            selection.frame(spark, "" if selection.where else _COLUMNS, once=True), step
        )
        ranges = {name: (first, last) for name, first, last in step.parts}
        ordered = frame.select("channel", "sequence", "data", "reply", "crc_ok").orderBy(
            "channel", "sequence"
        )
        for row in ordered.toLocalIterator(prefetchPartitions=True):
            first, last = ranges[row[0]]
            if first <= row[1] <= last:
                yield Row(row[0], row[1], bytes(row[2] or b""), row[3] or "", bool(row[4]))


async def publish(
    rows: Iterable[Row],
    connection: Connection,
    options: ReplayOptions,
    checkpoint: Checkpoint,
    progress: Callable[[int], None] = lambda _: None,
) -> ReplayReport:
    """Publish ``rows``, which come in order, and wait for every ack.

    ``progress`` is told how many were acknowledged.

    Raises ``ReplayError``, and ``DamageError`` for what must not be published; the checkpoint is
    saved then, too.
    """
    work = _Publishing(connection, options, checkpoint, progress)
    begun = time.monotonic()
    iterator = iter(rows)
    try:
        # The rows come from Spark, which may take its time; heartbeats must be answered meanwhile.
        while block := await asyncio.to_thread(lambda: list(islice(iterator, _ROWS_AT_ONCE))):
            for row in block:
                await work.publish(row)
        await work.settle()
    except BaseException:
        with contextlib.suppress(ReplayError):
            work.take_acks()
        checkpoint.save()
        raise
    checkpoint.save()
    work.report.seconds = time.monotonic() - begun
    return work.report


class _Publishing:
    """What is on its way, in the order of the rows."""

    def __init__(
        self,
        connection: Connection,
        options: ReplayOptions,
        checkpoint: Checkpoint,
        progress: Callable[[int], None],
    ) -> None:
        self.report = ReplayReport()
        self._connection = connection
        self._options = options
        self._checkpoint = checkpoint
        self._progress = progress
        self._waiting: deque[tuple[Row, asyncio.Future[str]]] = deque()
        self._pace = Pace(options.rate)
        self._last: Row | None = None
        self._saved = 0.0

    async def publish(self, row: Row) -> None:
        if not self._is_new(row):
            return
        loop = asyncio.get_running_loop()
        if (wait := self._pace.wait(loop.time())) > 0:
            await asyncio.sleep(wait)
        target = self._options.target(row.channel)
        try:
            answer = await self._connection.publish_async(
                target,
                row.data,
                reply=row.reply.encode("utf-8", "surrogateescape"),
                name=self._name(target, row),
            )
        except ClientError as error:
            raise _refused(row, target, error) from error
        self._waiting.append((row, answer))
        self.take_acks()
        if self._checkpoint.path and loop.time() - self._saved >= _SAVE_EVERY_S:
            self._saved = loop.time()
            await asyncio.to_thread(self._checkpoint.save)

    async def settle(self) -> None:
        """Wait for every ack."""
        await self._connection.flush()
        self.take_acks()

    def take_acks(self) -> None:
        """Count what was acknowledged behind which nothing is missing. Raises ``ReplayError``."""
        before = self.report.messages
        while self._waiting and self._waiting[0][1].done():
            row, answer = self._waiting[0]
            error = None if answer.cancelled() else answer.exception()
            if isinstance(error, ClientError):
                raise _refused(row, self._options.target(row.channel), error) from error
            self._waiting.popleft()
            self._checkpoint.channels[row.channel] = row.sequence
            self._checkpoint.messages += 1
            counted = self.report.channels.setdefault(
                row.channel, {"target": self._options.target(row.channel), "messages": 0, "size": 0}
            )
            counted["messages"] += 1
            counted["size"] += len(row.data)
            self.report.messages += 1
            self.report.size += len(row.data)
        if self.report.messages > before:
            self._progress(self.report.messages - before)

    def _is_new(self, row: Row) -> bool:
        """Whether the row is to be published. Raises ``DamageError``."""
        last = self._last
        self._last = row
        if last is not None and (last.channel, last.sequence) == (row.channel, row.sequence):
            if last == row:
                self.report.duplicates += 1
                return False
            raise DamageError(
                f"channel {row.channel!r}: sequence {row.sequence} has two contents",
                hint="nothing was chosen; replay from one of the places, or run: ftstan-pipeline "
                "audit",
            )
        if not row.crc_ok:
            if not self._options.skip_damaged:
                raise DamageError(
                    f"channel {row.channel!r}: sequence {row.sequence} is damaged: its checksum "
                    "does not hold",
                    hint="give a further place that has it, or --skip-damaged to leave such "
                    "messages out",
                )
            self.report.damaged += 1
            return False
        return True

    def _name(self, target: str, row: Row) -> str:
        """What tells this message of this replay from every other, also in the next run."""
        said = f"replay {self._options.again}\n{target}\n{row.channel}\n{row.sequence}\n".encode(
            "utf-8", "surrogateescape"
        )
        return blake2b(said + row.data, digest_size=_NAME_SIZE).hexdigest()


def _refused(row: Row, target: str, error: ClientError) -> ReplayError:
    return ReplayError(
        f"sequence {row.sequence} of {row.channel!r} was not stored in {target!r}: {error.text}",
        hint=error.hint
        or "see the server's log; the same words go on where this run ended, if they name a "
        "--checkpoint",
    )


def as_json(report: ReplayReport) -> dict[str, Any]:
    """The report for scripts."""
    return asdict(report)
