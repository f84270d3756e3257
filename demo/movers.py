"""The applications of the demo of a migration: each publishes to, or reads from, the streaming
server or JetStream, and can be told to change sides.

Each keeps what it was told is stored, and what it has read; nothing here judges.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Final

import ftstan.client
from demo.processes import CHANNEL, CLUSTER
from ftstan.base.clock import SystemClock
from ftstan.base.errors import FtstanError
from ftstan.client import Start
from ftstan.nats.jetstream import JetStream
from ftstan.nats.link import Link

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STREAM: Final = CHANNEL
OLD: Final = "the streaming server"
NEW: Final = "JetStream"
#: Where a publisher is on its way back: what it sent has to come through first.
NOWHERE: Final = "nowhere"
_PAUSE_S: Final = 0.05
_ASK_S: Final = 2.0
_AGAIN_S: Final = 0.1
_CONNECT_S: Final = 20.0
_AT_ONCE: Final = 500
_BYTES_AT_ONCE: Final = 1 << 20


def to_jetstream(urls: Sequence[str], name: str) -> JetStream:
    """A client of JetStream, not connected yet."""
    return JetStream(Link(list(urls), name=name, clock=SystemClock()), SystemClock())


class _Application:
    """A thread that is on one side at a time."""

    def __init__(self, name: str, stan: Sequence[str], jetstream: Sequence[str]) -> None:
        self.name = name
        self.side = OLD
        self._stan = list(stan)
        self._jetstream = list(jetstream)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Begin at the streaming server."""
        self._thread.start()

    def stop(self) -> None:
        """End after what is under way."""
        self._stopping = True
        self._thread.join()

    def move(self, side: str) -> None:
        """Change sides after what is under way."""
        self.side = side

    def _stays(self, side: str) -> bool:
        return self.side == side and not self._stopping

    def _run(self) -> None:
        try:
            while not self._stopping:
                if self.side == OLD:
                    asyncio.run(self._old())
                elif self.side == NEW:
                    self._new()
                else:
                    time.sleep(_AGAIN_S)
        except BaseException as error:  # noqa: BLE001  # told by whoever plays the story
            self.failure = error

    async def _old(self) -> None:
        raise NotImplementedError

    def _new(self) -> None:
        raise NotImplementedError


class Publisher(_Application):
    """Publishes its name and a number, one after the other, each until it is stored.

    ``stored``: the numbers that were acknowledged.
    """

    def __init__(self, name: str, stan: Sequence[str], jetstream: Sequence[str]) -> None:
        super().__init__(name, stan, jetstream)
        self.stored = 0

    @property
    def newest(self) -> bytes:
        """The last message that it was told is stored."""
        return b"%b %d" % (self.name.encode(), self.stored)

    def _next(self) -> bytes:
        return b"%b %d" % (self.name.encode(), self.stored + 1)

    async def _old(self) -> None:
        async with await ftstan.client.connect(
            CLUSTER, self.name, servers=self._stan, timeout=_CONNECT_S, republish=True
        ) as client:
            while self._stays(OLD):
                await client.publish(CHANNEL, self._next())
                self.stored += 1
                await asyncio.sleep(_PAUSE_S)

    def _new(self) -> None:
        js = to_jetstream(self._jetstream, self.name)
        while self._stays(NEW):
            if self._is_taken(js):
                self.stored += 1
                time.sleep(_PAUSE_S)
            else:
                time.sleep(_AGAIN_S)
        js.close()

    def _is_taken(self, js: JetStream) -> bool:
        data = self._next()
        # The same message again has the same id: JetStream takes it once.
        headers = b"NATS/1.0\r\nNats-Msg-Id: " + data.replace(b" ", b"-") + b"\r\n\r\n"
        with contextlib.suppress(FtstanError):
            if not js.connected:
                js.connect(_ASK_S)
            answers = js.ask(CHANNEL, data, _ASK_S, headers=headers)
            return bool(answers) and not answers[0].status and b'"seq"' in answers[0].payload
        return False


class Subscriber(_Application):
    """Reads everything from the beginning on; ``read``: by sequence, which both sides share.

    It goes on where it was, wherever it goes on.
    """

    def __init__(self, name: str, stan: Sequence[str], jetstream: Sequence[str]) -> None:
        super().__init__(name, stan, jetstream)
        self.read: dict[int, bytes] = {}
        self.other: list[int] = []
        """Sequences that came with different contents."""
        self.last = 0
        """Up to here everything was read. Behind it there may be more: what a server that was
        killed had sent comes again later than what its successor sends.
        """

    def has_read(self, data: bytes) -> bool:
        """Whether a message was read."""
        return data in set(self.read.copy().values())

    def _take(self, sequence: int, data: bytes) -> None:
        if self.read.setdefault(sequence, data) != data:
            self.other.append(sequence)
        while self.last + 1 in self.read:
            self.last += 1

    async def _old(self) -> None:
        async with await ftstan.client.connect(
            CLUSTER, self.name, servers=self._stan, timeout=_CONNECT_S
        ) as client:
            start = Start.sequence(self.last + 1) if self.last else Start.first()
            subscription = await client.subscribe(CHANNEL, start=start)
            while self._stays(OLD):
                with contextlib.suppress(TimeoutError):
                    message = await subscription.next(_ASK_S)
                    self._take(message.sequence, message.data)

    def _new(self) -> None:
        js = to_jetstream(self._jetstream, self.name)
        while self._stays(NEW):
            rows: Sequence[tuple[int, str, bytes]] = ()
            with contextlib.suppress(FtstanError):
                if not js.connected:
                    js.connect(_ASK_S)
                rows = js.get(STREAM, self.last + 1, _AT_ONCE, _BYTES_AT_ONCE, _ASK_S).rows
            for sequence, _, data in rows:
                self._take(sequence, data)
            if not rows:
                time.sleep(_AGAIN_S)
        js.close()


def failures(applications: Sequence[_Application]) -> list[str]:
    """What ended an application, in words."""
    return [f"{one.name}: {one.failure}" for one in applications if one.failure is not None]


def problems(
    rows: Sequence[tuple[int, bytes]],
    publishers: Sequence[Publisher],
    subscribers: Sequence[Subscriber],
    say: Callable[[str], None],
) -> int:
    """Hold what the stream has against what publishers and subscribers know; says each difference,
    and how many there are.
    """
    found = 0

    def wrong(text: str) -> None:
        nonlocal found
        found += 1
        say(f"WRONG: {text}")

    sequences = [sequence for sequence, _ in rows]
    if sequences != list(range(1, len(rows) + 1)):
        wrong("the stream has holes")
    by_publisher: dict[str, list[int]] = {one.name: [] for one in publishers}
    for _, data in rows:
        name, _, number = data.decode().partition(" ")
        by_publisher[name].append(int(number))
    for one in publishers:
        got = by_publisher[one.name]
        # One more may be stored that it was not told of: it was stopped on the way.
        if got not in (list(range(1, one.stored + 1)), list(range(1, one.stored + 2))):
            wrong(
                f"{one.name} was told of {one.stored}, the stream has {len(got)} or another order"
            )
    whole = dict(rows)
    for reader in subscribers:
        if reader.other or reader.read != whole:
            wrong(f"{reader.name} has read {len(reader.read)} of {len(whole)}")
    return found
