"""The events of all ``subs.dat`` of a datastore as a Spark table, one task a channel.

It computes no times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from ftstan.spark.log import Store
from ftstan.spark.parts import POLYNOMIAL
from ftstan.spark.queries.positions import Event, Replay, read

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

#: ``positions.Event``, and the channel.
SCHEMA = (
    "channel string, offset bigint, event string, subscription string, sequence bigint, "
    "last_sent bigint, "
    "in_flight bigint, behind bigint"
)

_BATCH = 20_000
_NUMBERS = ("sequence", "last_sent", "in_flight", "behind")


class EventsSource(DataSource):
    """Options: ``path`` of a datastore.

    ``subscribe``, channels by name; ``crcPolynomial``, the server's.
    """

    @classmethod
    def name(cls) -> str:
        """Its name in Spark."""
        return "stan-subscriptions"

    def schema(self) -> str:
        """The columns."""
        return SCHEMA

    def reader(self, schema: StructType) -> EventsReader:
        """The reader of a datastore; Spark passes the schema by name."""
        del schema
        wanted = self.options.get("subscribe", "")
        return EventsReader(
            self.options["path"],
            int(self.options.get("crcPolynomial", POLYNOMIAL)),
            [name.strip() for name in wanted.split(",") if name.strip()],
        )


class EventsReader(DataSourceReader):
    """Reads one ``subs.dat`` in each task."""

    def __init__(self, path: str, polynomial: int, channels: list[str]) -> None:
        self._path = path
        self._polynomial = polynomial
        self._channels = channels

    def partitions(self) -> Sequence[InputPartition]:
        """The channels."""
        names = (
            self._channels
            or Store(self._path, polynomial=self._polynomial, allow_unconfirmed=True).channels()
        )
        return [InputPartition(name) for name in names]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of a channel."""
        channel = str(partition.value)
        some: list[Event] = []
        for event in Replay().events(read(self._path, channel, self._polynomial)):
            some.append(event)
            if len(some) == _BATCH:
                yield _batch(channel, some)
                some = []
        yield _batch(channel, some)


def _batch(channel: str, events: list[Event]) -> pa.RecordBatch:
    columns = {
        "channel": pa.array([channel] * len(events), pa.string()),
        "offset": pa.array([event.offset for event in events], pa.int64()),
        "event": pa.array([event.event for event in events], pa.string()),
        "subscription": pa.array([event.subscription for event in events], pa.string()),
    }
    numbers = {
        name: pa.array([getattr(event, name) for event in events], pa.int64()) for name in _NUMBERS
    }
    return pa.RecordBatch.from_pydict(columns | numbers)
