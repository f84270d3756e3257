"""A stream of ``stan``: what Spark asks between batches, the same for files and for servers.

Spark calls a reader in a process of the driver that lives as long as the query; the tasks get
pickled copies and only ``read``. Where the log is and how it is read is said by ``FileStream`` and
``ServerStream``. The offsets of a batch are written into the checkpoint before the batch is
planned, so a batch that is run again has the same ranges; what it reads from them is the same, too,
because a sequence of a channel has one content.

A channel may only seem to end before the place that a stream has got to: right behind a takeover
some readers still see what was there before. It is waited for, for a while. If it stays so, the
channel has begun anew, and that is a loss.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ftstan.spark.batch import told
from ftstan.spark.losses import Losses
from ftstan.spark.offsets import advance, capped, ranges
from ftstan.spark.options import number, truth
from ftstan.spark.starting import Starting

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql.streaming.datasource import ReadLimit

    from ftstan.spark.offsets import Offsets, Range

#: Seconds for which a channel may seem shorter than it was.
BACK_WITHIN_S: Final = 30.0

#: Seconds between two looks at what does not say by itself that it has changed.
LOOK_EVERY_S: Final = 0.5


#: Options of every stream, as people write them.
STREAM_OPTIONS: Final = (
    "subscribe",
    "startingOffsets",
    "startingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What every stream is told. ``most``: sequences in a batch, ``None`` without a limit."""

    columns: tuple[str, ...]
    starting: Starting
    most: int | None
    min_partitions: int
    losses: Losses

    @classmethod
    def of(cls, options: Mapping[str, str], columns: tuple[str, ...]) -> Reading:
        """What the options say, by their proper names. Raises ``ConfigError``."""
        return cls(
            columns,
            Starting.of(options),
            number(options, "maxOffsetsPerTrigger", 0) or None,
            number(options, "minPartitions", 1),
            Losses(truth(options, "failOnDataLoss", default=True)),
        )


class LogStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one stream."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        # Of a query with Trigger.AvailableNow: what was there when it began.
        self._target: Offsets | None = None
        self._seen: Offsets = {}

    # What is different

    @abstractmethod
    def latest(self) -> Offsets:
        """Channel -> the sequence behind its last message, of every channel that has or had one."""

    @abstractmethod
    def firsts(self, channels: Iterable[str]) -> Offsets:
        """Channel -> its first sequence, of those that have a message."""

    @abstractmethod
    def since(self, when: int, channels: Iterable[str]) -> Offsets:
        """Channel -> its first sequence at that time (nanoseconds) or later, of those that have
        one.
        """

    @abstractmethod
    def planned(self, wanted: list[Range]) -> Sequence[InputPartition]:
        """The tasks that read these ranges."""

    # What Spark asks

    @told
    def initialOffset(self) -> Offsets:  # noqa: N802
        """Where a query begins that has no checkpoint."""
        return dict(
            sorted(self._reading.starting.offsets(self.latest(), self.firsts, self.since).items())
        )

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """``maxOffsetsPerTrigger``."""
        most = self._reading.most
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @told
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember what is there now: the query ends there."""
        self._target = self.latest()

    @told
    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """The end of the next batch; ``start`` if there is nothing to read."""
        latest = self._settled(start)
        if self._target is not None:
            latest = capped(latest, self._target, start)
        firsts = self.firsts([channel for channel in latest if channel not in start])
        return advance(
            start, latest, firsts, limit.max_rows if isinstance(limit, ReadMaxRows) else None
        )

    def reportLatestOffset(self) -> Offsets:  # noqa: N802
        """What is there, for the progress of the query."""
        return dict(sorted(self._seen.items()))

    @told
    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """The tasks of a batch."""
        return self.planned(ranges(start, end))

    def _settled(self, start: Offsets) -> Offsets:
        """The latest offsets, when no channel seems to end before ``start`` any more, or it is sure
        that it does.
        """
        until = time.monotonic() + BACK_WITHIN_S
        while True:
            latest = self._seen = self.latest()
            back = [channel for channel, end in latest.items() if end < start.get(channel, 0)]
            if not back:
                return latest
            if time.monotonic() > until:
                for channel in back:
                    self._reading.losses.begun_anew(channel, start[channel], latest[channel])
                return latest
            time.sleep(LOOK_EVERY_S)
