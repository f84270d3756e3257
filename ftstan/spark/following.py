"""What a server has, learned as its client: the last and first sequences of channels, and the
messages of a range.

**The last sequence** of a channel is that of the message which a subscription that starts at the
last one gets. It is acknowledged, and the server, which may have one message in flight, then sends
the next one as soon as there is one: so while nothing is published nothing is asked, and when
something was, the subscription is made anew at the last message.

**A range** is read by a subscription that starts at its first sequence. Messages come in order,
with three exceptions that look alike: what expired is not there, what NATS lost on its way comes
late, and so does what a former owner had sent. A gap is therefore never believed at once: the
subscription is made anew at the sequence that is missing, and only when two of them in a row begin
behind it, it is a hole in the log. In the same way the rest of a range is gone only if two
subscriptions that the server has confirmed stay silent.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ftstan.client import (
    ClientError,
    RequestError,
    RequestRefusedError,
    Start,
    SubscriptionClosedError,
)
from ftstan.spark.offsets import FIRST, Range

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from ftstan.client import Connection, Message, Subscription
    from ftstan.spark.offsets import Offsets

_T = TypeVar("_T")

#: Seconds in which the message comes that a new subscription starts at, if there is one.
SILENCE_S: Final = 2.0

#: The same where silence would mean that messages are lost.
_LONG_SILENCE_S: Final = 10.0

#: Whole seconds; nothing that is left unacknowledged here shall come again.
_NEVER_AGAIN: Final = 86_400

_AGAIN_S: Final = 0.5
_REFUSED_S: Final = 15.0
_PROOFS: Final = 2

#: What a batch of messages holds at most: a worker has a few of them in memory.
_ROWS: Final = 4096
_BYTES: Final = 8 << 20


class ServerSilentError(ClientError):
    """Nobody has served the channel for longer than ``serverTimeout``."""


class Tails:
    """The ends of channels, for the driver of a stream.

    ``patience``: seconds until a silent server is an error.
    """

    def __init__(self, connection: Connection, channels: Iterable[str], patience: float) -> None:
        self._patience = patience
        self._tails = {channel: _Tail(connection, channel) for channel in channels}

    async def latest(self) -> Offsets:
        """Channel -> sequence behind its last message, of all that have or had one."""
        ends = await asyncio.gather(
            *(patiently(tail.last, self._patience, c) for c, tail in self._tails.items())
        )
        return {channel: last + 1 for channel, last in zip(self._tails, ends, strict=True) if last}

    async def firsts(self, channels: Iterable[str], start: Start) -> Offsets:
        """Channel -> its first sequence from ``start`` on, of those that have one."""
        wanted = list(channels)
        asked = (patiently(partial(self._tails[c].first, start), self._patience, c) for c in wanted)
        found = await asyncio.gather(*asked)
        return {channel: first for channel, first in zip(wanted, found, strict=True) if first}


class _Tail:
    """The end of one channel."""

    def __init__(self, connection: Connection, channel: str) -> None:
        self._connection = connection
        self._channel = channel
        self._last = 0
        self._subscription: Subscription | None = None
        self._known = asyncio.Event()
        self._newer = False

    async def last(self) -> int:
        """The last sequence.

        What it was before if there is no message any more; 0 if there never was one.
        """
        if self._subscription is None or self._subscription.closed or self._newer:
            await self._look()
        return self._last

    async def _look(self) -> None:
        if self._subscription is not None:
            former = self._subscription
            self._subscription = None
            await former.close()
        self._known.clear()
        self._newer = False
        self._subscription = await self._connection.subscribe(
            self._channel,
            self._on_message,
            start=Start.last(),
            max_in_flight=1,
            ack_wait=_NEVER_AGAIN,
            manual_acks=True,
        )
        await self._unless_empty(self._known.wait)
        # If it is empty: the subscription stands, and gets the first message that comes.

    async def _on_message(self, message: Message) -> None:
        if self._known.is_set():
            self._newer = True
            return
        self._last = message.sequence
        self._known.set()
        await message.ack()

    async def first(self, start: Start) -> int:
        """The first sequence from ``start`` on; 0 without a message."""
        async with await self._connection.subscribe(
            self._channel, start=start, max_in_flight=1, ack_wait=_NEVER_AGAIN, manual_acks=True
        ) as subscription:
            message = await self._unless_empty(subscription.next)
            return 0 if message is None else message.sequence

    async def _unless_empty(self, wait: Callable[[], Coroutine[Any, Any, _T]]) -> _T | None:
        """What a new subscription is sent first; ``None`` if that is nothing."""
        for sure in (False, True):
            try:
                async with asyncio.timeout(SILENCE_S):
                    return await wait()
            except TimeoutError:
                if not sure:
                    # Whoever answers this has had its turn with the subscription, too: what it sent
                    # is on its way.
                    barrier = await self._connection.subscribe(self._channel, max_in_flight=1)
                    await barrier.close()
        return None


class RangeReader:
    """The messages of one range, for a task.

    ``lost`` is told of sequences that are gone; it may raise.
    """

    def __init__(
        self,
        connection: Connection,
        wanted: Range,
        *,
        max_in_flight: int,
        patience: float,
        lost: Callable[[Range], None],
    ) -> None:
        self._connection = connection
        self._channel = wanted.channel
        self._next = wanted.start
        self._end = wanted.end
        self._max_in_flight = max_in_flight
        self._patience = patience
        self._lost = lost
        self._subscription: Subscription | None = None
        self._fresh = False
        self._silences = 0
        # Where the range goes on behind a gap, as subscriptions in a row have said that began in
        # it.
        self._behind: list[int] = []

    async def batch(self) -> list[Message]:
        """The next messages, in order; empty when the range has been read.

        Raises ``ServerSilentError``.
        """
        found: list[Message] = []
        size = 0
        while self._next < self._end and len(found) < _ROWS and size < _BYTES:
            message = await patiently(self._one, self._patience, self._channel)
            if message is not None:
                found.append(message)
                size += len(message.data)
        if self._next >= self._end:
            await self._leave()
        return found

    async def _one(self) -> Message | None:
        """One step: the next message, or ``None`` when there is something to find out first."""
        subscription = await self._subscribed()
        try:
            message = await subscription.next(_LONG_SILENCE_S)
        except TimeoutError:
            self._silences += 1
            if self._silences == _PROOFS:
                self._skip(self._end)
            await self._leave()
            return None
        self._silences = 0
        fresh = self._fresh
        self._fresh = False
        sequence = message.sequence
        if fresh and sequence > self._next:
            self._behind.append(sequence)
            if self._behind[-_PROOFS:] == [sequence] * _PROOFS:
                self._skip(min(sequence, self._end))
        if sequence == self._next < self._end:
            self._behind.clear()
            self._next += 1
            return message
        if sequence > self._next:
            await self._leave()
        # One below has been read already and came again.
        return None

    async def _subscribed(self) -> Subscription:
        if self._subscription is None or self._subscription.closed:
            self._subscription = await self._connection.subscribe(
                self._channel,
                start=Start.sequence(self._next) if self._next != FIRST else Start.first(),
                # What lies behind the range is not sent for nothing.
                max_in_flight=min(self._max_in_flight, self._end - self._next),
            )
            self._fresh = True
        return self._subscription

    def _skip(self, to: int) -> None:
        gone = Range(self._channel, self._next, to)
        self._behind.clear()
        self._silences = 0
        self._next = to
        if gone.start != FIRST:
            self._lost(gone)

    async def _leave(self) -> None:
        if self._subscription is not None:
            former = self._subscription
            self._subscription = None
            with contextlib.suppress(RequestError):
                await former.close()


async def patiently(
    ask: Callable[[], Coroutine[Any, Any, _T]], patience: float, channel: str
) -> _T:
    """Ask until the server answers; ``patience`` in seconds.

    Raises ``ServerSilentError``, ``RequestRefusedError``.
    """
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while True:
        try:
            return await ask()
        except (RequestError, SubscriptionClosedError) as error:
            # A server that does not know our session yet refuses, too.
            if isinstance(error, RequestRefusedError) and loop.time() > begun + _REFUSED_S:
                raise
            if loop.time() > begun + patience:
                raise ServerSilentError(
                    f"{channel}: nobody has answered for {patience:g} s: {error.text}",
                    hint="look whether a server of the cluster is active: ftstanctl ft status",
                ) from error
        await asyncio.sleep(_AGAIN_S)
