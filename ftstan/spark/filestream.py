"""A stream that tails the files of a datastore: no load on its server but the reading of the disk,
and none without it.

While a server holds the store it is read up to what each channel's ``confirmed.bin`` says, so never
a message that could still be taken back: a stream does not see what a failover may undo. Where
nobody holds it, it is read as the next server would find it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import ConfigError
from ftstan.spark.batch import StanPartition, batches
from ftstan.spark.log import Store, read
from ftstan.spark.offsets import FIRST, Range
from ftstan.spark.options import ReadOptions, spelled
from ftstan.spark.parts import Bounds
from ftstan.spark.places import kind_of
from ftstan.spark.stream import BACK_WITHIN_S, LOOK_EVERY_S, STREAM_OPTIONS, LogStream, Reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from ftstan.spark.offsets import Offsets
    from ftstan.spark.scan import Listed, Listing

#: What means the same in a batch query, but for where it begins and ends.
_AS_A_BATCH: Final = (
    "path",
    "subscribe",
    "subscribePattern",
    "maxPartitionBytes",
    "failOnDataLoss",
    "allowUnconfirmed",
    "failOnEncrypted",
    "encryptionKeyFile",
    "mode",
    "readStats",
    "crcPolynomial",
)
_OPTIONS: Final = (*STREAM_OPTIONS, *_AS_A_BATCH)

#: Slices that go away while they are looked at are looked for again so often.
_TRIES: Final = 5

Ends = tuple[int, int]
"""The first sequence of a channel and the one behind its last."""


class FileStream(LogStream):
    """``spark.readStream.format("stan").option("path", DIR)``."""

    def __init__(self, reading: Reading, options: ReadOptions) -> None:
        super().__init__(reading)
        self._options = options
        self._store = Store(
            options.path, polynomial=options.polynomial, allow_unconfirmed=options.allow_unconfirmed
        )
        self._looked = -LOOK_EVERY_S
        self._latest: Offsets = {}
        # What is known of a channel as long as its directory does not change.
        self._known: dict[str, tuple[Listed, Ends]] = {}

    @classmethod
    def of(cls, given: Mapping[str, str], columns: tuple[str, ...]) -> FileStream:
        """What the options of a stream say. Raises ``ConfigError``."""
        options = spelled(given, _OPTIONS, "a stream of a datastore")
        reading = Reading.of(options, columns)
        read = ReadOptions.of({name: text for name, text in options.items() if name in _AS_A_BATCH})
        if (kind := kind_of(read.path)) != "store":
            raise ConfigError(
                f"stan: a stream reads a datastore, and {read.path} is a {kind}",
                hint="give the directory that the server has as -dir, or read the archive as a "
                "batch",
            )
        return cls(reading, read)

    def latest(self) -> Offsets:
        """As the files say; asked again and again, it looks at them a few times a second."""
        if time.monotonic() - self._looked >= LOOK_EVERY_S:
            self._latest = {channel: end for channel, (_, end) in self._ends(None).items()}
            self._looked = time.monotonic()
        return self._latest

    def firsts(self, channels: Iterable[str]) -> Offsets:
        """As the files say."""
        wanted = list(channels)
        return (
            {channel: first for channel, (first, _) in self._ends(wanted).items()} if wanted else {}
        )

    def since(self, when: int, channels: Iterable[str]) -> Offsets:
        """As the index says."""
        found = {}
        for channel in channels:
            for part in self._store.plan({channel: Bounds(since=when)}):
                sequences = next(
                    (b.column(0) for b in read(part, ("sequence",)) if b.num_rows), None
                )
                if sequences is not None:
                    found[channel] = sequences[0].as_py()
                    break
        return found

    def planned(self, wanted: list[Range]) -> Sequence[InputPartition]:
        """Byte ranges of slices, as for a batch read."""
        if not wanted:
            return []
        ends = self._reached(wanted)
        bounds = {}
        for part in wanted:
            first, end = ends.get(part.channel, (part.end, part.end))
            if part.start != FIRST and first > part.start:
                self._reading.losses.gone(Range(part.channel, part.start, min(first, part.end)))
            if end < part.end:
                self._reading.losses.gone(Range(part.channel, max(end, part.start), part.end))
            if part.channel in ends:
                bounds[part.channel] = Bounds(first=max(part.start, 1), last=part.end - 1)
        o = self._options
        parts = self._store.plan(
            bounds, max_bytes=o.max_partition_bytes, min_parts=self._reading.min_partitions
        )
        return [StanPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one part, in order."""
        return batches(self._options, self._reading.columns, partition.value)

    def _reached(self, wanted: list[Range]) -> dict[str, Ends]:
        """What there is of the channels, when it reaches to the ends of the ranges, or it is sure
        that it does not.

        A batch that is run again was planned by somebody who saw them; right behind a takeover we
        may not.
        """
        until = time.monotonic() + BACK_WITHIN_S
        while True:
            ends = self._ends([part.channel for part in wanted])
            if all(part.channel in ends and ends[part.channel][1] >= part.end for part in wanted):
                return ends
            if time.monotonic() > until:
                return ends
            time.sleep(LOOK_EVERY_S)

    def _ends(self, wanted: list[str] | None) -> dict[str, Ends]:
        """Of these channels, or of all that are chosen."""
        for again in range(_TRIES):
            listing = self._store.look(wanted)
            try:
                return {
                    channel: self._ends_of(listing, channel)
                    for channel in (wanted or filter(self._options.wants, listing.channels))
                    if channel in listing.channels
                }
            except FileNotFoundError:
                # The limits removed a slice between the look and now.
                if again == _TRIES - 1:
                    raise
        raise AssertionError

    def _ends_of(self, listing: Listing, channel: str) -> Ends:
        listed = listing.channels[channel]
        known = self._known.get(channel)
        if known is None or known[0] != listed:
            known = self._known[channel] = (listed, self._store.ends_of(listed, listing.ours_from))
        return known[1]
