"""What the tests of streams and writes share: a server, what it holds, and a table to send."""

from __future__ import annotations

import asyncio
import http
import json
import secrets
from typing import TYPE_CHECKING, Any

import ftstan.client
from ftstan.client import Start
from ftstan.spark.log import Store
from tests.processes import CLUSTER, HOST, PATIENCE_S, READY, until

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pyspark.sql import Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ftstan.client import Message
    from tests.processes import Server, Stage

_END = b"the end"


def serve(stage: Stage, *words: str) -> Server:
    """A server on the file store, ready."""
    server = stage.file_server("server", *words)
    server.wait_for(READY)
    return server


def url_of(*servers: Server) -> str:
    """The option ``servers``."""
    return ",".join(f"nats://{HOST}:{server.port}" for server in servers)


def address(*servers: Server) -> dict[str, str]:
    """The options that say where the servers are."""
    return {"servers": url_of(*servers), "clusterId": CLUSTER}


def publish(
    url: str,
    channel: str,
    payloads: Iterable[bytes],
    pause: float = 0.0,
    *,
    cluster: str = CLUSTER,
    name: str = "publisher",
) -> None:
    """Publish in this order, with so many seconds between two, and wait for the acks.

    ``name``: the client id.
    """

    async def work() -> None:
        async with await ftstan.client.connect(
            cluster, name, servers=url.split(","), republish=True
        ) as client:
            for payload in payloads:
                await client.publish_async(channel, payload)
                await asyncio.sleep(pause)

    asyncio.run(work())


def stored(url: str, channel: str, *, cluster: str = CLUSTER) -> list[Message]:
    """Every message of a channel. Publishes one more to know the end; such are left out."""

    async def work() -> list[Message]:
        found = []
        async with await ftstan.client.connect(cluster, "reader", servers=url.split(",")) as client:
            end = _END + secrets.token_bytes(8)
            await client.publish(channel, end)
            async with await client.subscribe(channel, start=Start.first()) as subscription:
                while (message := await subscription.next(PATIENCE_S)).data != end:
                    found.append(message)
        return [message for message in found if not message.data.startswith(_END)]

    return asyncio.run(work())


def last_sequence(server: Server, channel: str) -> int:
    """What the monitoring of a server says.

    0 of a channel that is not there or a server that does not answer.
    """
    status, body = server.get(f"/streaming/channelsz?channel={channel}")
    return json.loads(body)["last_seq"] if status == http.HTTPStatus.OK else 0


def payloads(messages: Sequence[Message]) -> list[bytes]:
    return [message.data for message in messages]


def confirmed(store: Path, **ends: int) -> None:
    """Wait until the files say that channels are confirmed up to their ends: that comes within a
    second.
    """

    def there() -> bool:
        return {channel: end for channel, (_, end) in Store(str(store)).ends(ends).items()} == ends

    until(there, f"the confirmation of {ends}")


class Collected:
    """A stream of ``stan`` whose batches are kept as Parquet, with the checkpoint that goes with
    them.
    """

    def __init__(self, spark: SparkSession, directory: Path, options: dict[str, str]) -> None:
        self._spark = spark
        self._rows = directory / "rows"
        self._checkpoint = directory / "checkpoint"
        self._options = options

    def start(self, **trigger: Any) -> StreamingQuery:
        """Begin, or go on where the checkpoint is."""
        stream = self._spark.readStream.format("stan").options(**self._options).load()
        writer = stream.writeStream.format("parquet").option(
            "checkpointLocation", str(self._checkpoint)
        )
        return writer.trigger(**trigger or {"processingTime": "100 milliseconds"}).start(
            str(self._rows)
        )

    def run_available(self) -> None:
        """Read what is there now."""
        self.start(availableNow=True).awaitTermination()

    def rows(self) -> list[Row]:
        """Every row of the batches that were committed."""
        return self._spark.read.parquet(str(self._rows)).collect()

    def of(self, channel: str) -> list[bytes]:
        """Payloads of a channel in the order of their sequences; each sequence once."""
        found = sorted(
            (row.sequence, bytes(row.data)) for row in self.rows() if row.channel == channel
        )
        assert len({sequence for sequence, _ in found}) == len(found), "a message is there twice"
        return [data for _, data in found]

    @property
    def batches(self) -> int:
        """How many batches were committed."""
        return len(
            [file for file in (self._checkpoint / "commits").iterdir() if file.name.isdigit()]
        )
