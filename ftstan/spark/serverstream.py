"""A stream over a subscription: the driver asks a server for the ends of channels, tasks read
ranges as its clients.

Nothing of the server's files is needed, and its active is found by the cluster id, whoever that is
at the time. Every task has a session and a subscription of its own while it reads.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from ftstan.base.errors import ConfigError, FtstanError
from ftstan.client import Start
from ftstan.spark.background import Background
from ftstan.spark.batch import with_hint
from ftstan.spark.connecting import SERVER_OPTIONS, ServerOptions, leave
from ftstan.spark.following import RangeReader, Tails
from ftstan.spark.offsets import FIRST, Range
from ftstan.spark.options import number, seconds, spelled, subscribed
from ftstan.spark.stream import STREAM_OPTIONS, LogStream, Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ftstan.client import Message
    from ftstan.spark.offsets import Offsets

_NS_IN_US: Final = 1000
_MAX_IN_FLIGHT: Final = 1024
_PATIENCE_S: Final = 300.0
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OPTIONS: Final = (*STREAM_OPTIONS, *SERVER_OPTIONS, "maxInFlight", "serverTimeout")

#: Column -> its type and value. A server delivers only what it has checked, and does not say in
#: which slice it is.
_COLUMNS: Final[dict[str, tuple[pa.DataType, Callable[[Message], Any]]]] = {
    "channel": (pa.string(), lambda message: message.channel),
    "sequence": (pa.int64(), lambda message: message.sequence),
    "timestamp": (pa.timestamp("us", tz="UTC"), lambda message: message.timestamp // _NS_IN_US),
    "timestamp_ns": (pa.int64(), lambda message: message.timestamp),
    "data": (pa.binary(), lambda message: message.data),
    "size": (pa.int32(), lambda message: len(message.data)),
    "reply": (pa.string(), lambda message: message.reply.decode("utf-8", "replace")),
    "crc_ok": (pa.bool_(), lambda _: True),
    "slice": (pa.int32(), lambda _: None),
}


@dataclass(frozen=True, slots=True)
class ServerPart(InputPartition):
    """What one task reads."""

    wanted: Range


@dataclass(frozen=True, slots=True)
class Following:
    """How a stream reads from a server.

    ``patience``: seconds without an answer until that is an error.
    """

    server: ServerOptions
    channels: tuple[str, ...]
    max_in_flight: int
    patience: float

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Following:
        """What the options say, by their proper names. Raises ``ConfigError``."""
        channels = subscribed(options)
        if channels is None:
            raise ConfigError(
                "stan: which channels? A server does not tell its clients which it has",
                hint="name them in subscribe, with commas between them",
            )
        return cls(
            ServerOptions.of(options),
            channels,
            number(options, "maxInFlight", _MAX_IN_FLIGHT),
            seconds(options, "serverTimeout", _PATIENCE_S),
        )


class ServerStream(LogStream):
    """``spark.readStream.format("stan")`` with the options ``servers`` and ``clusterId``."""

    def __init__(self, reading: Reading, following: Following) -> None:
        super().__init__(reading)
        self._following = following
        self._asking: _Asking | None = None

    @classmethod
    def of(cls, given: Mapping[str, str], columns: tuple[str, ...]) -> ServerStream:
        """What the options of a stream say. Raises ``ConfigError``."""
        options = spelled(given, _OPTIONS, "a stream of a server")
        for name in columns:
            if name not in _COLUMNS:
                raise ConfigError(
                    f'stan: a server does not tell "{name}"', hint="read the datastore by its path"
                )
        return cls(Reading.of(options, columns), Following.of(options))

    def latest(self) -> Offsets:
        """As the server says."""
        return self._asked().latest()

    def firsts(self, channels: Iterable[str]) -> Offsets:
        """As the server says."""
        return self._asked().firsts(channels, Start.first())

    def since(self, when: int, channels: Iterable[str]) -> Offsets:
        """As the server says, by the clock of this machine."""
        return self._asked().firsts(
            channels, Start.time(_EPOCH + timedelta(microseconds=when // _NS_IN_US))
        )

    def planned(self, wanted: list[Range]) -> Sequence[InputPartition]:
        """One task a channel; more where ``minPartitions`` asks for them."""
        return [ServerPart(part) for part in cut(wanted, self._reading.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one range, in order."""
        assert isinstance(partition, ServerPart)
        try:
            yield from self._read(partition.wanted)
        except FtstanError as error:
            raise with_hint(error) from error

    def _read(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        following = self._following
        with Background() as background:
            connection = background.run(following.server.connect("spark-source"))
            reader = RangeReader(
                connection,
                wanted,
                max_in_flight=following.max_in_flight,
                patience=following.patience,
                lost=self._reading.losses.gone,
            )
            try:
                while messages := background.run(reader.batch()):
                    yield rows(messages, self._reading.columns)
            finally:
                background.run(leave(connection))

    def stop(self) -> None:
        """The query has ended."""
        if self._asking is not None:
            self._asking.close()
            self._asking = None

    def _asked(self) -> _Asking:
        if self._asking is None:
            self._asking = _Asking(self._following)
        return self._asking

    def __getstate__(self) -> dict[str, Any]:
        # A task needs what was asked for, not whoever the driver asked.
        return self.__dict__ | {"_asking": None}


class _Asking:
    """The driver's connection, for as long as the query lives."""

    def __init__(self, following: Following) -> None:
        with contextlib.ExitStack() as stack:
            self._background = stack.enter_context(Background())
            connection = self._background.run(following.server.connect("spark-driver"))
            stack.callback(lambda: self._background.run(leave(connection)))
            self._tails = Tails(connection, following.channels, following.patience)
            self._open = stack.pop_all()

    def latest(self) -> Offsets:
        return self._background.run(self._tails.latest())

    def firsts(self, channels: Iterable[str], start: Start) -> Offsets:
        return self._background.run(self._tails.firsts(channels, start))

    def close(self) -> None:
        self._open.close()


def rows(messages: Sequence[Message], columns: Sequence[str]) -> pa.RecordBatch:
    """Messages as rows."""
    schema = pa.schema([(name, _COLUMNS[name][0]) for name in columns])
    arrays = [
        pa.array(map(_COLUMNS[name][1], messages), type=_COLUMNS[name][0], size=len(messages))
        for name in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def cut(wanted: list[Range], least: int) -> list[Range]:
    """At least so many ranges, as far as there are sequences: the larger ones are cut into equal
    parts.
    """
    total = sum(part.end - part.start for part in wanted if part.start != FIRST)
    found = []
    for part in wanted:
        count = part.end - part.start
        # Where a range begins that begins with what there is, is not known here.
        pieces = (
            1
            if part.start == FIRST or len(wanted) >= least
            else min(count, -(-count * least // total))
        )
        edges = [part.start + count * piece // pieces for piece in range(pieces + 1)]
        found += [Range(part.channel, begin, end) for begin, end in itertools.pairwise(edges)]
    return found
