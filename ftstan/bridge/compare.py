"""Channels and their streams side by side: how far one is behind the other, and whether they hold
the same.

Only reads. What is compared of a message is its sequence and its data.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import NatsError
from ftstan.bridge import names
from ftstan.bridge.errors import BridgeError
from ftstan.bridge.target import ASK_S
from ftstan.client import Start

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.bridge.backlog import LogFiles
    from ftstan.bridge.channelend import Looking
    from ftstan.bridge.feed import Feed
    from ftstan.bridge.marks import Item
    from ftstan.bridge.target import Target

_AT_ONCE: Final = 1000
_BYTES_AT_ONCE: Final = 4 << 20
_SEQUENCE: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a stream is; ``channel_last`` is 0 for a channel without messages."""

    channel: str
    stream: str
    channel_last: int
    stream_last: int
    messages: int
    waiting: int
    """Messages of new publishers that the channel does not have yet."""
    state: str

    @property
    def is_foreign(self) -> bool:
        """Whether the stream goes on behind the channel's end: by somebody else than the bridge,
        as long as publishers have not moved.
        """
        return self.state == "one-way" and 0 < self.channel_last < self.stream_last

    @property
    def lag(self) -> int:
        """How many sequences of the channel the stream does not have yet."""
        return max(self.channel_last - self.stream_last, 0)


@dataclass(slots=True)
class Side:
    """What one side holds: sequences, messages, and a CRC-32 over sequences and data."""

    first: int = 0
    last: int = 0
    messages: int = 0
    crc: int = 0

    def add(self, sequence: int, data: bytes) -> None:
        """The next message."""
        self.first = self.first or sequence
        self.last = sequence
        self.messages += 1
        self.crc = zlib.crc32(data, zlib.crc32(_SEQUENCE.pack(sequence), self.crc))


@dataclass(frozen=True, slots=True)
class Comparison:
    """A channel and its stream. ``differs_at``: the first sequence at which they differ, or 0.

    ``older``: messages of the stream that the channel's limits have removed; they are not compared.
    """

    channel: str
    stream: str
    log: Side
    copy: Side
    older: int
    differs_at: int

    @property
    def is_equal(self) -> bool:
        """Whether both hold the same messages."""
        return not self.differs_at


def lags(target: Target, feed: Feed, streams: dict[str, str]) -> list[Lag]:
    """How far the streams are, by channel; of ``streams`` alone unless that is empty.

    Raises ``NatsError``, ``ClientError``, and ``BridgeError`` for a stream that is not there.
    """
    wanted = streams or {state.channel: name for name, state in target.ours()}
    found = []
    for channel, stream in sorted(wanted.items()):
        state = target.look(stream)
        if state is None:
            raise _missing(channel, stream)
        newest = feed.read_one(channel, Start.last())
        last = newest.sequence if newest is not None else 0
        inlet = target.look(names.inlet_name(stream))
        waiting = inlet.messages if inlet is not None and inlet.is_inlet else 0
        kind = "moved" if state.moved is not None else "two-way" if state.is_two_way else "one-way"
        found.append(Lag(channel, stream, last, state.last, state.messages, waiting, kind))
    return found


def compare(
    target: Target, feed: Feed, files: LogFiles | None, channel: str, stream: str, *, look: Looking
) -> Comparison:
    """Read both sides to where the channel ends now. ``look``: asked about a silent channel.

    Raises ``BridgeError``, ``ClientError``, ``StoreError``, and ``NatsError`` also where the
    channel's messages do not come.
    """
    state = target.look(stream)
    if state is None:
        raise _missing(channel, stream)
    newest = feed.read_one(channel, Start.last())
    if newest is None and look(channel)[0]:
        # Not empty: the server is slow.
        raise _silent(channel, 0)
    last = newest.sequence if newest is not None else state.last
    ours = _ordered(_of_channel(feed, files, channel, last), last)
    theirs = _of_stream(target, stream, last)
    log = Side()
    copy = Side()
    differs_at = 0
    mine = next(ours, None)
    other = next(theirs, None)
    older = 0
    while other is not None and (mine is None or other[0] < mine[0]):
        older += 1
        other = next(theirs, None)
    while mine is not None or other is not None:
        at = min(pair[0] for pair in (mine, other) if pair is not None)
        if mine != other and not differs_at:
            differs_at = at
        if mine is not None and mine[0] == at:
            log.add(*mine)
            mine = next(ours, None)
        if other is not None and other[0] == at:
            copy.add(*other)
            other = next(theirs, None)
    if newest is not None and log.last < last:
        raise _silent(channel, log.last)
    return Comparison(channel, stream, log, copy, older, differs_at)


def _of_channel(
    feed: Feed, files: LogFiles | None, channel: str, last: int
) -> Iterator[list[Item]]:
    """The channel's messages: from the files where those are confirmed, then from the server."""
    done = 0
    if files is not None:
        for items in files.items(channel, 1):
            done = items[-1].sequence
            yield items
    if done < last:
        yield from feed.items(channel, done + 1, last)


def _ordered(batches: Iterator[list[Item]], last: int) -> Iterator[tuple[int, bytes]]:
    """Each message once; what the server sends again or beyond ``last`` is passed over."""
    before = 0
    for items in batches:
        for item in items:
            if before < item.sequence <= last:
                before = item.sequence
                yield item.sequence, item.data


def _of_stream(target: Target, stream: str, last: int) -> Iterator[tuple[int, bytes]]:
    at = 1
    while at <= last:
        batch = target.js.get(stream, at, _AT_ONCE, _BYTES_AT_ONCE, ASK_S)
        if not batch.rows:
            return
        for sequence, _, data in batch.rows:
            if sequence <= last:
                yield sequence, data
        at = batch.rows[-1][0] + 1


def _silent(channel: str, last: int) -> NatsError:
    return NatsError(
        f'of the channel "{channel}" the messages behind {last} have not come in time',
        hint="compare both sides again: ftstanctl bridge verify",
    )


def _missing(channel: str, stream: str) -> BridgeError:
    return BridgeError(
        f'there is no stream "{stream}" for the channel "{channel}"',
        hint="make it with: ftstanctl bridge run",
    )
