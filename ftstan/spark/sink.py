"""Writing to ``stan``: each row is published through ``ftstan.client``, and counts when the server
has stored it.

A task publishes the rows of its partition in their order, at most ``maxInFlight`` of them without
an ack; it takes no more rows from Spark until there is room, and ends well only when every row was
acknowledged. What was acknowledged cannot be taken back: a write that fails leaves what it had
published. It is published under names that a retry gives to the same rows again (``guids``), so a
server with ``dedup_window`` stores them once.

A server does not tell its clients whether it remembers names. So nothing here can know it;
``docs/spark-streaming.md`` says what to configure.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StringType

from ftstan.base.errors import ConfigError
from ftstan.client import ClientError
from ftstan.spark.background import Background
from ftstan.spark.batch import told
from ftstan.spark.connecting import SERVER_OPTIONS, ServerOptions, leave
from ftstan.spark.guids import Names
from ftstan.spark.options import number, seconds, spelled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

    from ftstan.client import Connection

_MAX_IN_FLIGHT: Final = 2048
_ACK_WITHIN_S: Final = 120.0

#: What a write may be told; Spark passes on what it is told itself.
_OPTIONS: Final = (
    *SERVER_OPTIONS,
    "channel",
    "maxInFlight",
    "ackTimeout",
    "writeId",
    "checkpointLocation",
    "queryName",
)

#: Column -> types that it may have.
_COLUMNS: Final = {
    "channel": (StringType,),
    "data": (BinaryType, StringType),
    "guid": (StringType,),
    "reply": (StringType,),
}


class WriteError(ClientError):
    """A row that was not stored, or is not known to be."""


@dataclass(frozen=True, slots=True)
class Published(WriterCommitMessage):
    """What one task did: messages that were acknowledged, and bytes of their data."""

    messages: int
    size: int


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where to, and how many at once.

    ``channel``: of rows that name none; ``ack_timeout`` in seconds.
    """

    server: ServerOptions
    channel: str
    max_in_flight: int
    ack_timeout: float
    write_id: str

    @classmethod
    def of(cls, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SinkOptions:
        """What the options of a write say.

        Raises ``ConfigError``, also for rows that cannot be published.
        """
        options = spelled(given, _OPTIONS, "a write")
        if overwrite:
            raise ConfigError(
                "stan: a log is only appended to: it cannot be overwritten",
                hint='.mode("append") or, of a stream, .outputMode("append") or "update"',
            )
        channel = options.get("channel", "")
        _check_columns(schema, channel)
        return cls(
            server=ServerOptions.of(options),
            channel=channel,
            max_in_flight=number(options, "maxInFlight", _MAX_IN_FLIGHT),
            ack_timeout=seconds(options, "ackTimeout", _ACK_WITHIN_S),
            write_id=options.get("writeId", ""),
        )


class BatchWriter(DataSourceArrowWriter):
    """``df.write.format("stan").mode("append")``: names are made of the ``writeId``, or of one of
    its own.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._write_id = options.write_id or secrets.token_hex(16)

    @told
    def write(self, iterator: Iterator[RecordBatch]) -> Published:
        """Publish one partition."""
        context = _task()
        return _publish(
            iterator, self._options, Names(f"write {self._write_id}", 0, context.partitionId())
        )


class StreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("stan")``: names are made of the id that the query keeps in its
    checkpoint.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    @told
    def write(self, iterator: Iterator[RecordBatch]) -> Published:
        """Publish one partition of one batch."""
        context = _task()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise ConfigError(
                "this Spark does not tell a task which query and batch it belongs to",
                hint="write with foreachBatch and the option writeId",
            )
        return _publish(
            iterator, self._options, Names(f"query {query}", int(batch), context.partitionId())
        )


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark writes in tasks"
    return context


def _check_columns(schema: StructType, channel: str) -> None:
    columns = {column.name: column.dataType for column in schema.fields}
    extra = sorted(columns.keys() - _COLUMNS.keys())
    if extra:
        raise ConfigError(
            f"stan: a message has no place for {', '.join(extra)}",
            hint='.select("channel", "data"); the columns of a message are channel, data, reply '
            "and guid",
        )
    if "data" not in columns:
        raise ConfigError(
            "stan: the column data is missing",
            hint="it is what a message holds: binary, or a string",
        )
    if "channel" not in columns and not channel:
        raise ConfigError(
            "stan: the rows name no channel",
            hint='a column channel, or .option("channel", NAME) for all of them',
        )
    for name, kind in columns.items():
        if not isinstance(kind, _COLUMNS[name]):
            wanted = " or ".join(right.typeName() for right in _COLUMNS[name])
            raise ConfigError(
                f"stan: the column {name} is {kind.simpleString()} and must be {wanted}",
                hint=f"cast({name} as {wanted})",
            )


def _publish(batches: Iterator[RecordBatch], options: SinkOptions, names: Names) -> Published:
    with Background() as background:
        publisher = background.run(_Publisher.open(options, names))
        try:
            for batch in batches:
                background.run(publisher.publish(batch))
            background.run(publisher.settle())
        finally:
            background.run(publisher.close())
    return Published(publisher.messages, publisher.size)


class _Publisher:
    """Publishes the rows of one partition over one connection."""

    def __init__(self, options: SinkOptions, names: Names, connection: Connection) -> None:
        self.messages = 0
        self.size = 0
        self._options = options
        self._names = names
        self._connection = connection
        self._failure: BaseException | None = None
        # Channels and guids of rows that are on their way: only those of a column can be the same.
        self._named: dict[tuple[str, str], asyncio.Future[str]] = {}

    @classmethod
    async def open(cls, options: SinkOptions, names: Names) -> _Publisher:
        connection = await options.server.connect(
            "spark-sink",
            max_in_flight=options.max_in_flight,
            ack_timeout=options.ack_timeout,
            republish=True,
        )
        return cls(options, names, connection)

    async def publish(self, batch: RecordBatch) -> None:
        """Publish rows; returns when the last one has found room. Raises ``WriteError``."""
        columns = dict(
            zip(batch.schema.names, (column.to_pylist() for column in batch.columns), strict=True)
        )
        nothing = [None] * batch.num_rows
        for channel, data, reply, guid in zip(
            columns.get("channel", nothing),
            columns["data"],
            columns.get("reply", nothing),
            columns.get("guid", nothing),
            strict=True,
        ):
            if data is None or not (channel or self._options.channel):
                lacking = "data" if data is None else "a channel"
                raise WriteError(
                    f"row {self.messages + 1} of this partition has no {lacking}",
                    hint="filter out rows with nulls",
                )
            if "guid" in columns and not guid:
                raise WriteError(
                    f"row {self.messages + 1} of this partition has no guid",
                    hint="a column guid names every message, or leave it out",
                )
            await self._publish_row(
                channel or self._options.channel, data, (reply or "").encode(), guid
            )

    async def settle(self) -> None:
        """Wait until every row was acknowledged. Raises ``WriteError``."""
        await self._connection.flush()
        self._check()

    async def close(self) -> None:
        """Leave, whatever happened."""
        await leave(self._connection)

    async def _publish_row(
        self, channel: str, given: bytes | str, reply: bytes, guid: str | None
    ) -> None:
        self._check()
        data = given.encode() if isinstance(given, str) else given
        name = guid or self._names.of(channel.encode(), data, reply)
        if guid is not None:
            while (same := self._named.get((channel, guid))) is not None:
                await asyncio.wait({same})
        try:
            answer = await self._connection.publish_async(channel, data, reply=reply, name=name)
        except ClientError as error:
            raise self._error(f"row {self.messages + 1} of this partition", error) from error
        if guid is not None:
            self._named[channel, guid] = answer
            answer.add_done_callback(lambda _: self._named.pop((channel, guid)))
        answer.add_done_callback(self._answered)
        self.messages += 1
        self.size += len(data)

    def _answered(self, answer: asyncio.Future[str]) -> None:
        if not answer.cancelled() and answer.exception() is not None and self._failure is None:
            self._failure = answer.exception()

    def _check(self) -> None:
        if isinstance(self._failure, ClientError):
            raise self._error("a message", self._failure) from self._failure

    def _error(self, what: str, error: ClientError) -> WriteError:
        return WriteError(
            f"{what} was not stored by {self._options.server.cluster_id}: {error.text}",
            hint=error.hint,
        )
