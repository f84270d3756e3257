"""The reader of a batch query: options and filters in, partitions out, Arrow batches from each of
them.

Planning happens in one process, reading in many; what one tells the other is in the partitions.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from ftstan.base.errors import ConfigError, FtstanError, StoreError
from ftstan.spark.columns import columns_of
from ftstan.spark.options import EARLIEST, LATEST, ReadOptions
from ftstan.spark.places import opened
from ftstan.spark.pushdown import Pushed, pushed
from ftstan.spark.report import ReadingReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from ftstan.spark.parts import Bounds
    from ftstan.spark.places import Piece, Snapshot


P = ParamSpec("P")
T = TypeVar("T")


def told(work: Callable[P, T]) -> Callable[P, T]:
    """Put the hint of an error into its text: Spark shows nothing else of it."""

    @functools.wraps(work)
    def telling(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return work(*args, **kwargs)
        except FtstanError as error:
            raise with_hint(error) from error

    return telling


def with_hint(error: FtstanError) -> FtstanError:
    """The same error, its hint part of its text."""
    return type(error)(f"{error.text}; {error.hint}" if error.hint else error.text)


class StanPartition(InputPartition):
    """One part of a plan."""

    def __init__(self, part: Piece) -> None:
        super().__init__(part)


@dataclass(slots=True)
class _Taking:
    """``pushFilters`` of a reader, as an object.

    Spark refuses a reader whose method is another than that of the base class while filters are not
    pushed down, and tells nobody whether they are. This one passes for the base's, so it works
    either way.
    """

    reader: StanReader
    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __call__(self, filters: Iterable[Filter]) -> Iterable[Filter]:
        """Take bounds from the filters; Spark applies all of them itself."""
        taken = list(filters)
        if self.reader.options.push_filters:
            self.reader.pushed = pushed(taken)
        return taken


class StanReader(DataSourceReader):
    """Reads a datastore or an archive as it is when a DataFrame's first query is planned.

    Filters make what is read smaller only with the option ``pushFilters``. Spark 4.3 keeps what the
    last filtered query of a DataFrame had planned, and uses it for every other query of it that has
    no filter, and for all places of one query that read it (a union, a self-join): rows would be
    missing there. Only who loads a DataFrame for one filtered query can promise that this is not
    so.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Raise ``ConfigError`` for columns that there are not."""
        self.options = options
        self.columns = columns_of(schema)
        self.pushed = Pushed()

    @property
    def pushFilters(self) -> Callable[[Iterable[Filter]], Iterable[Filter]]:  # noqa: N802  Spark's name
        """Where filters are pushed down to."""
        return _Taking(self)

    @told
    def partitions(self) -> Sequence[InputPartition]:
        """The parts of the plan, at least one."""
        o = self.options
        place = opened(o)
        wanted = self._wanted(place)
        parts = place.plan(wanted, max_bytes=o.max_partition_bytes, min_parts=o.min_partitions)
        # Spark reads a reader without partitions as one that has a partition of its own.
        return [StanPartition(part) for part in parts] or [InputPartition(None)]

    def _wanted(self, place: Snapshot) -> dict[str, Bounds]:
        o = self.options
        channels = [name for name in place.channels if o.wants(name)]
        for name in o.subscribe or ():
            if name not in place.channels:
                raise ConfigError(
                    f'stan: {o.path} has no channel "{name}"',
                    hint="leave it out of subscribe; ftstanctl store ls DIR shows the channels "
                    "of a datastore",
                )
        for option, side in (("startingOffsets", o.starting), ("endingOffsets", o.ending)):
            unknown = sorted(side.named.keys() - set(channels))
            if unknown:
                raise ConfigError(
                    f'stan: {option} names "{unknown[0]}", which is not subscribed to or not there',
                    hint="name channels that are read",
                )
        found = {}
        for name in channels:
            bounds = o.bounds(name)
            self._check(place, name)
            bounds = bounds.within(self.pushed.bounds)
            if self.pushed.wants(name) and not bounds.empty:
                found[name] = bounds
        return found

    def _check(self, place: Snapshot, channel: str) -> None:
        """Offsets that somebody named must be there, as in Kafka."""
        o = self.options
        first = o.starting.named.get(channel, EARLIEST)
        end = o.ending.named.get(channel, LATEST)
        if not o.fail_on_data_loss or (first == EARLIEST and end == LATEST):
            return
        there, behind = place.ends(channel)
        for option, at in (("startingOffsets", first), ("endingOffsets", end)):
            if at > 0 and not there <= at <= behind:
                raise StoreError(
                    f'stan: channel "{channel}" of {o.path} has sequences {there} to '
                    f"{behind - 1}, {option} names {at}",
                    hint="name a sequence that is there, or set failOnDataLoss=false to read "
                    "what there is",
                )

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Arrow batches of one partition."""
        return batches(self.options, self.columns, partition.value)


def batches(
    options: ReadOptions, columns: tuple[str, ...], part: Piece | None
) -> Iterator[pa.RecordBatch]:
    """What a task reads of one part; its report goes where the options say."""
    if part is None:
        return
    report = ReadingReport(strict=options.strict)
    try:
        yield from part.read(
            columns,
            report=report,
            fail_on_data_loss=options.fail_on_data_loss,
            refuse_encrypted=options.fail_on_encrypted,
            keys=options.keys,
        )
    except FtstanError as error:
        raise with_hint(error) from error
    finally:
        if options.read_stats:
            report.save(options.read_stats)
