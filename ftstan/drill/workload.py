"""The clients of a drill: publishers, durable consumers, a queue group, readers of the log.

They write the ledger.

Each publish carries an id that no other has; one that gets no ack is followed by another attempt
under a new id, never repeated under the old one, since it may have been stored all the same.
Nothing here knows what is done to the servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import ftstan.client
from ftstan.client import ClientError, Start
from ftstan.drill.errors import DrillError
from ftstan.drill.ledger import Ack, Delivery, Failure, Publish, Read

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ftstan.client import Connection, Message, NatsLogin
    from ftstan.drill.ledger import Record
    from ftstan.drill.scenario import Workload

_ACK_TIMEOUT_S = 5.0
_RETRY_S = 0.2
_ACK_WAIT_S = 5
_CONNECT_S = 30.0
_READ_S = 60.0


@dataclass(frozen=True, slots=True)
class Access:
    """How clients get in.

    ``environment``: the same for ``ftstanctl``; ``key_words``: where it finds the key.
    """

    servers: Sequence[str]
    cluster: str
    group: str
    login: NatsLogin
    environment: Mapping[str, str] = field(default_factory=dict)
    key_words: Sequence[str] = ()


@dataclass
class Counts:
    """How far the workload is, for whoever waits or watches."""

    published: int = 0
    acked: int = 0
    delivered: int = 0
    highest: dict[str, int] = field(default_factory=dict)
    seen: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    acked_ids: dict[str, set[str]] = field(default_factory=dict)


class Clients:
    """All clients of one drill, in one event loop.

    ``write`` takes records, ``now_us`` is the ledger's clock.

    ``own_channels``: names of channels get the run's name behind them, on servers that others use,
    too.
    """

    def __init__(
        self,
        load: Workload,
        access: Access,
        run: str,
        write: Callable[[Record], None],
        now_us: Callable[[], int],
        *,
        own_channels: bool = False,
    ) -> None:
        self._load = load
        self._access = access
        self._run = run
        self._write = write
        self._now_us = now_us
        self.channels = (
            tuple(f"{channel}.{run}" for channel in load.channels)
            if own_channels
            else load.channels
        )
        self.counts = Counts()
        self._number = 0
        self._connections: list[Connection] = []
        self._publishers: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Connect everybody; consumers first, so that each sees every message.

        Raises ``ClientError``.
        """
        load = self._load
        for number in range(1, load.durables + 1):
            await self._consume(f"durable-{number}", f"durable-{number}", queue="")
        for number in range(1, load.queue + 1):
            await self._consume(f"worker-{number}", "queue", queue="queue")
        for number in range(load.publishers):
            channel = self.channels[number % len(self.channels)]
            connection = await self._connect(f"publisher-{number + 1}")
            self._publishers.append(asyncio.create_task(self._publish(connection, channel, number)))

    async def finish(self, within_s: float = 60.0) -> list[str]:
        """Stop publishing, wait for the last acks and for the consumers.

        Returns which consumer did not get what, in words. One that got nothing at all is in no
        ledger.

        Raises ``DrillError`` if an ack does not come.
        """
        self._stopping.set()
        loop = asyncio.get_running_loop()
        end = loop.time() + within_s
        _, late = await asyncio.wait(self._publishers, timeout=within_s)
        if late:
            raise DrillError(
                f"{self.counts.published - self.counts.acked} publishes were not acknowledged "
                f"within {within_s:g} s",
                hint="does a node serve? see the logs of the nodes",
            )
        while missed := self._missed():
            if loop.time() > end:
                break
            await asyncio.sleep(0.05)
        return missed

    async def end(self) -> None:
        """Close every client, whatever state the servers are in. Never fails."""
        self._stopping.set()
        for task in self._publishers:
            task.cancel()
        await asyncio.gather(*self._publishers, return_exceptions=True)
        await asyncio.gather(*(self._close(connection) for connection in self._connections))

    async def read(self, channel: str, reader: str, epoch: int, stop: int) -> int:
        """Read the log of a channel from its first message until sequence ``stop``.

        Returns the last one read.

        Raises ``DrillError`` if that takes more than a minute without a message.
        """
        connection = await self._connect(f"{reader}-{epoch}")
        at = 0
        try:
            subscription = await connection.subscribe(channel, start=Start.first())
            while at < stop:
                try:
                    async with asyncio.timeout(_READ_S):
                        message = await anext(aiter(subscription))
                except (TimeoutError, StopAsyncIteration) as error:
                    raise DrillError(
                        f"reading channel {channel} stopped at sequence {at}",
                        hint=f"sequence {stop} was seen before: look into the datastore "
                        "(ftstanctl store verify)",
                    ) from error
                at = max(at, message.sequence)
                self._saw(channel, message)
                self._write(
                    Read(
                        self._now_us(),
                        reader,
                        epoch,
                        message.sequence,
                        _id(message),
                        _sha1(message.data),
                        channel,
                    )
                )
        finally:
            await self._close(connection)
        return at

    # ---- publishing

    async def _publish(self, connection: Connection, channel: str, number: int) -> None:
        """Publish at this publisher's share of the rate.

        What was missed while nobody served is not made up for.
        """
        loop = asyncio.get_running_loop()
        interval = self._load.publishers / self._load.rate
        room = asyncio.Semaphore(self._load.in_flight)
        under_way: set[asyncio.Task[None]] = set()
        due = loop.time() + interval * number / self._load.publishers
        while not self._stopping.is_set():
            await room.acquire()
            self._number += 1
            task = asyncio.create_task(self._deliver_once(connection, channel, self._number))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            task.add_done_callback(lambda _: room.release())
            due = max(due + interval, loop.time() - interval)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due - loop.time())):
                    await self._stopping.wait()
        await asyncio.gather(*under_way)

    async def _deliver_once(self, connection: Connection, channel: str, number: int) -> None:
        """Attempt after attempt, until one of them is acknowledged."""
        attempt = 0
        while True:
            attempt += 1
            stored_id = f"{number}.{attempt}"
            data = f"{stored_id} ".encode().ljust(self._load.size, b".")
            began = self._now_us()
            self._write(
                Publish(began, stored_id, number, attempt, "", len(data), _sha1(data), channel)
            )
            self.counts.published += 1
            try:
                guid = await connection.publish(channel, data)
            except ClientError as error:
                self._write(Failure(self._now_us(), "publisher", stored_id, "", error.text))
                await asyncio.sleep(_RETRY_S)
                continue
            now = self._now_us()
            self._write(Ack(now, stored_id, guid, now - began))
            self.counts.acked += 1
            self.counts.acked_ids.setdefault(channel, set()).add(stored_id)
            return

    # ---- consuming

    async def _consume(self, client: str, subscription: str, *, queue: str) -> None:
        connection = await self._connect(client)
        for channel in self.channels:
            seen = self.counts.seen.setdefault((channel, subscription), set())

            async def handle(
                message: Message, channel: str = channel, seen: set[str] = seen
            ) -> None:
                self._saw(channel, message)
                seen.add(_id(message))
                self.counts.delivered += 1
                self._write(
                    Delivery(
                        self._now_us(),
                        subscription,
                        message.sequence,
                        _id(message),
                        _sha1(message.data),
                        message.redelivered,
                        channel,
                    )
                )

            await connection.subscribe(
                channel,
                handle,
                start=Start.first(),
                durable=subscription,
                queue=queue,
                ack_wait=_ACK_WAIT_S,
            )

    def _saw(self, channel: str, message: Message) -> None:
        self.counts.highest[channel] = max(self.counts.highest.get(channel, 0), message.sequence)

    def _missed(self) -> list[str]:
        acked = self.counts.acked_ids
        return [
            f"{subscription} did not get {len(left)} acknowledged messages of channel {channel}"
            for (channel, subscription), seen in self.counts.seen.items()
            if (left := acked.get(channel, set()) - seen)
        ]

    # ---- connections

    async def _connect(self, client: str) -> Connection:
        async def complain(error: ClientError) -> None:
            self._write(Failure(self._now_us(), client, "", "", error.text))

        access = self._access
        connection = await ftstan.client.connect(
            access.cluster,
            f"drill-{self._run}-{client}",
            servers=list(access.servers),
            login=access.login,
            timeout=_CONNECT_S,
            request_timeout=_CONNECT_S,
            ack_timeout=_ACK_TIMEOUT_S,
            on_error=complain,
        )
        self._connections.append(connection)
        return connection

    async def _close(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
        with contextlib.suppress(ClientError):
            await connection.close()


def _id(message: Message) -> str:
    """The id in a payload; empty for a payload that is none of ours."""
    return message.data.partition(b" ")[0].decode("ascii", "replace")[:40]


def _sha1(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()
