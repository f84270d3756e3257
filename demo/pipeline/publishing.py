"""Publishing in the background: every message is acknowledged once and counted then, over failovers
too.
"""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING

import ftstan.client
from demo.pipeline.tally import Tally
from demo.processes import CLUSTER, DemoError
from ftstan.client import ClientError

if TYPE_CHECKING:
    from collections.abc import Sequence

_CONNECT_WITHIN_S = 60.0
_ACK_WITHIN_S = 120.0
_POLL_S = 0.02


class Publisher:
    """Publishes ``total`` messages to channels in turn, in a thread, never more than ``allow``
    says.

    ``acked`` counts what the server has stored; ``failure`` is set when it could not go on.
    """

    def __init__(
        self,
        urls: Sequence[str],
        channels: Sequence[str],
        total: int,
        *,
        connect_within: float = _CONNECT_WITHIN_S,
    ) -> None:
        self.acked = Tally()
        self.failure: ClientError | None = None
        self._urls = list(urls)
        self._channels = list(channels)
        self._total = total
        self._connect_within = connect_within
        self._allowed = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def allow(self, messages: int) -> None:
        """How many messages may have been published in all by now."""
        self._allowed = messages

    @property
    def done(self) -> bool:
        """Whether everything is acknowledged. Raises ``DemoError`` if it never will be."""
        if self.failure is not None:
            raise DemoError(f"a publish failed: {self.failure.text}", hint=self.failure.hint)
        return not self._thread.is_alive()

    def end(self) -> None:
        """Stop, whether or not everything was published."""
        self._stopping = True
        if self._thread.is_alive():
            self._thread.join(_ACK_WITHIN_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._publish())
        except ClientError as error:
            self.failure = error

    async def _publish(self) -> None:
        async with await ftstan.client.connect(
            CLUSTER,
            "demo-publisher",
            servers=self._urls,
            timeout=self._connect_within,
            republish=True,
            ack_timeout=_ACK_WITHIN_S,
        ) as client:
            waiting: set[asyncio.Task[None]] = set()
            for number in range(self._total):
                while number >= self._allowed and not self._stopping:  # noqa: ASYNC110  another thread says it
                    await asyncio.sleep(_POLL_S)
                if self._stopping or self.failure is not None:
                    return
                channel = self._channels[number % len(self._channels)]
                data = json.dumps(
                    {"number": number, "amount": number * 37 % 1000, "of": channel}
                ).encode()
                answer = await client.publish_async(channel, data)
                task = asyncio.create_task(self._count(answer, channel, data))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
            await client.flush()
            if waiting:
                await asyncio.wait(waiting)

    async def _count(self, answer: asyncio.Future[str], channel: str, data: bytes) -> None:
        try:
            await answer
        except ClientError as error:
            self.failure = error
        else:
            self.acked.add(channel, data)


def read_all(url: str, cluster: str, wanted: Tally, within_s: float) -> Tally:
    """What a client is given of the channels of ``wanted``, from their first message on, until it
    has as many.

    Gives up after ``within_s`` seconds without a message.
    """

    async def read() -> Tally:
        found = Tally()
        async with await ftstan.client.connect(cluster, "demo-reader", servers=url) as client:
            for channel, (count, _) in wanted.channels.items():
                subscription = await client.subscribe(channel, start=ftstan.client.Start.first())
                messages = aiter(subscription)
                for _ in range(count):
                    try:
                        message = await asyncio.wait_for(anext(messages), within_s)
                    except TimeoutError:
                        return found
                    found.add(channel, message.data)
        return found

    return asyncio.run(read())
