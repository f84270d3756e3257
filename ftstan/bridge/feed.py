"""The bridge's client of the streaming server, on a thread and an event loop of its own.

Messages of the tails wait in queues that the thread of the bridge takes them from; heartbeats are
answered whatever that one does.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ftstan.bridge.errors import BridgeError
from ftstan.bridge.marks import Item
from ftstan.client import ClientError, Start, SubscriptionClosedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence

    from ftstan.client import Connection, Message, Subscription

    Telling = Callable[[ClientError], Awaitable[None]]

    #: Makes the connection, given what is to be told of failures that belong to no call, and of a
    #: session that was lost.
    Connecting = Callable[[Telling, Telling], Awaitable[Connection]]

DURABLE: Final = "ftstan-bridge"
MAX_IN_FLIGHT: Final = 4096
#: Seconds in which the message comes that a new subscription starts at, if there is one.
_SILENCE_S: Final = 2.0
_ACK_WAIT_S: Final = 30
_AGAIN_S: Final = 1.0
#: The same where a message must come.
_LONG_SILENCE_S: Final = 5.0
_ROWS: Final = 1000

T = TypeVar("T")


class Tail:
    """What comes of one channel. ``problem``: why nothing does at this moment."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self.arrived: deque[Message] = deque()
        self.problem: ClientError | None = None


class Feed:
    """Open it, use it from one thread, close it.

    ``wake()`` is called, on the feed's own thread, when something has arrived; ``on_problem(text)``
    is told in words what goes wrong and is tried again.
    """

    def __init__(
        self, connecting: Connecting, wake: Callable[[], None], on_problem: Callable[[str], None]
    ) -> None:
        self._connecting = connecting
        self._wake = wake
        self._on_problem = on_problem
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._connection: Connection | None = None
        self.lost = 0
        """How often the session was lost: the channel may be another one in the next."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._followed: dict[Tail, asyncio.Task[None]] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}

    def open(self) -> None:
        """Connect. Raises ``ClientError``."""
        self._thread.start()
        self._connection = self._call(self._connect())

    def close(self) -> None:
        """End the session; durables keep their positions."""
        if self._connection is not None:
            with contextlib.suppress(ClientError):
                self._call(self._close())
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    @property
    def closed(self) -> bool:
        """Whether the session was lost for good: another process has our client id."""
        return self._connection is not None and self._connection.closed

    @property
    def connected(self) -> bool:
        """Whether a server has our session and answers."""
        return self._connection is not None and self._connection.connected

    def read_one(self, channel: str, start: Start) -> Item | None:
        """The first message from ``start`` on; ``None`` if none came in two seconds.

        Raises ``ClientError``.
        """
        return self._call(self._read_one(channel, start))

    def publish(self, channel: str, data: bytes, reply: bytes) -> None:
        """Publish, and wait until it is stored. Raises ``ClientError``: it may be stored or not."""
        assert self._connection is not None
        self._call(self._connection.publish(channel, data, reply=reply))

    def renew(self) -> None:
        """End the session and begin another one, to which nothing belongs that the former one may
        still have on its way: the server refuses that from then on. No tail may be followed.

        Raises ``ClientError``, ``BridgeError``; call it again then.
        """
        former = self._connection
        if former is not None and not former.closed:
            with contextlib.suppress(ClientError):
                self._call(former.close())
        self._connection = self._call(self._connect())

    def items(self, channel: str, first: int, last: int) -> Iterator[list[Item]]:
        """The messages from ``first`` to ``last``, as the server sends them: repeats are possible.

        Ends also where nothing more comes for five seconds. Raises ``ClientError``.
        """
        subscription = self._call(self._begin_reading(channel, first))
        try:
            while items := self._call(self._some(subscription)):
                yield items
                if items[-1].sequence >= last:
                    return
        finally:
            self._call(subscription.close())

    def follow(self, channel: str, sequence: int) -> Tail:
        """Begin the tail of a channel at ``sequence``.

        A durable of ours that is there is forgotten first: the stream knows better where we are.
        """
        tail = Tail(channel)
        self._loop.call_soon_threadsafe(self._begin, tail, sequence)
        return tail

    def leave(self, tail: Tail) -> None:
        """End a tail; its durable is forgotten when it is followed again."""
        self._loop.call_soon_threadsafe(self._end, tail)

    def ack(self, messages: Sequence[Message]) -> None:
        """Acknowledge messages of tails, soon."""
        self._loop.call_soon_threadsafe(self._spawn, self._ack(messages))

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _begin(self, tail: Tail, sequence: int) -> None:
        self._followed[tail] = self._loop.create_task(self._follow(tail, sequence))

    def _end(self, tail: Tail) -> None:
        task = self._followed.pop(tail)
        task.cancel()
        self._ending[tail.channel] = task

    async def _connect(self) -> Connection:
        return await self._connecting(self._report, self._on_lost)

    async def _on_lost(self, error: ClientError) -> None:
        self.lost += 1
        await self._report(error)

    async def _report(self, error: ClientError) -> None:
        self._on_problem(error.text)
        self._wake()

    async def _close(self) -> None:
        for task in self._followed.values():
            task.cancel()
        await asyncio.gather(*self._tasks, *self._followed.values(), return_exceptions=True)
        assert self._connection is not None
        await self._connection.close()

    async def _read_one(self, channel: str, start: Start) -> Item | None:
        assert self._connection is not None
        async with await self._connection.subscribe(
            channel, start=start, max_in_flight=1, manual_acks=True
        ) as subscription:
            try:
                found = await subscription.next(_SILENCE_S)
            except TimeoutError:
                return None
            return item_of(found)

    async def _begin_reading(self, channel: str, first: int) -> Subscription:
        assert self._connection is not None
        return await self._connection.subscribe(
            channel,
            start=Start.sequence(first),
            max_in_flight=MAX_IN_FLIGHT,
            ack_wait=_ACK_WAIT_S,
            manual_acks=True,
        )

    async def _some(self, subscription: Subscription) -> list[Item]:
        found: list[Item] = []
        try:
            while not found or (subscription.pending and len(found) < _ROWS):
                message = await subscription.next(_LONG_SILENCE_S)
                found.append(item_of(message))
                await message.ack()
        except TimeoutError:
            pass
        return found

    async def _follow(self, tail: Tail, sequence: int) -> None:
        connection = self._connection
        assert connection is not None
        former = self._ending.pop(tail.channel, None)
        if former is not None:
            # The server refuses a second subscription of one durable.
            await asyncio.wait([former])
        is_new = False
        while not connection.closed:
            try:
                # Of one that is forgotten at once as little as possible is sent.
                subscription = await self._subscribe(
                    connection, tail.channel, sequence, MAX_IN_FLIGHT if is_new else 1
                )
                if not is_new:
                    await subscription.unsubscribe()
                    is_new = True
                    continue
                tail.problem = None
                async with subscription:
                    async for message in subscription:
                        tail.arrived.append(message)
                        self._wake()
            except ClientError as error:
                tail.problem = error
                self._on_problem(f'channel "{tail.channel}": {error.text}')
            self._wake()
            await asyncio.sleep(_AGAIN_S)
        self._wake()

    async def _subscribe(
        self, connection: Connection, channel: str, sequence: int, in_flight: int
    ) -> Subscription:
        return await connection.subscribe(
            channel,
            start=Start.sequence(sequence),
            durable=DURABLE,
            max_in_flight=in_flight,
            ack_wait=_ACK_WAIT_S,
            manual_acks=True,
        )

    async def _ack(self, messages: Sequence[Message]) -> None:
        for message in messages:
            # What is not acknowledged comes again, and is known by its sequence.
            with contextlib.suppress(SubscriptionClosedError):
                await message.ack()


def item_of(message: Message) -> Item:
    """A delivery as an item."""
    return Item(message.sequence, message.timestamp, message.reply, message.data)


def replaced() -> BridgeError:
    """The session was lost for good."""
    return BridgeError(
        "another process has taken the client id of this bridge",
        hint="stop the other bridge, or give this one another --client-id",
    )
