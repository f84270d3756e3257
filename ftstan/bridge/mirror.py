"""One channel on its way into its stream: what was sent, what is acknowledged, what waits.

Pure: no clock, no I/O. ``acked`` is the stream's last sequence as far as is known, and everything
up to it is in the stream: an append that was taken proves all before it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.base.errors import FtstanError
    from ftstan.bridge.backlog import Extent
    from ftstan.bridge.feed import Tail
    from ftstan.bridge.marks import Framer, Item
    from ftstan.client import Message

#: Appends without an answer. JetStream drops what exceeds 10,000 a stream.
WINDOW: Final = 4096
WINDOW_BYTES: Final = 16 << 20
#: Timestamps of mirrored messages that are remembered, to know repeats by.
_REMEMBERED: Final = 4 * WINDOW


class Stage(Enum):
    """Where the messages come from."""

    BACKLOG = "backlog"
    TAIL = "tail"
    STOPPED = "stopped"


class Gap(Exception):  # noqa: N818  # not an error before somebody has looked at it
    """The channel goes on at a later sequence than the one that is next."""

    def __init__(self, first: int, found: int) -> None:
        super().__init__(first, found)
        self.first = first
        self.found = found


class Mirror:
    """A channel and its stream. ``index`` and ``attempt`` tell answers apart."""

    def __init__(self, index: int, channel: str, stream: str, *, two_way: bool = False) -> None:
        self.index = index
        self.two_way = two_way
        """Whether the bridge appends to a subject of its own, and new publishers have the channel's
        name.
        """
        self.channel = channel
        self.stream = stream
        self.is_ready = not two_way
        """Whether the streams are set up for that."""
        self.answer = b'{"stream":"%b","seq":%%d}' % stream.encode()
        """How JetStream acknowledges a sequence, in short."""
        self.stage = Stage.BACKLOG
        self.error: FtstanError | None = None
        self.exists = False
        self.is_empty = True
        """Whether nothing is in the stream: it may still begin anywhere."""
        self.has_written = False
        """Whether this run has appended something."""
        self.foreign = 0
        """How often another run has appended before us."""
        self.extent: Extent | None = None
        self.reading: Iterator[list[Item]] | None = None
        self.read = 0
        self.read_before = 0
        self.tail: Tail | None = None
        self.waited = 0
        self.session = 0
        """The session in which the channel was last seen to be the one that is mirrored."""
        self.goal = 0
        self.attempt = 0
        self.resyncs = 0
        self.framer: Framer | None = None
        self.acked = 0
        self.mirrored = 0
        """How many messages this run has put into the stream."""
        self.sent = 0
        self.next = 1
        self.ahead: deque[Item] = deque()
        self.window: deque[Item] = deque()
        self.window_bytes = 0
        self.held: dict[int, Item] = {}
        self.held_since = 0.0
        self.deliveries: dict[int, list[Message]] = {}
        self.proved = 0
        """The highest sequence of which an answer says that it is in the stream."""
        self.times: OrderedDict[int, int] = OrderedDict()
        """Of the tail's last messages: the server may send them again."""
        self.again_at = 0.0
        self.look_at = 0.0
        """When the stream is looked at whether the channel has moved into it."""
        self.progress_at = 0.0
        self.trouble = ""

    @property
    def known(self) -> int:
        """The channel's last sequence as far as is known here."""
        last = self.extent.last if self.extent is not None else 0
        return max(last, self.next - 1, self.acked, *self.held)

    @property
    def is_live(self) -> bool:
        """Whether it goes on."""
        return self.stage is not Stage.STOPPED

    @property
    def has_room(self) -> bool:
        """Whether another append may be sent before one is answered."""
        return len(self.window) < WINDOW and self.window_bytes < WINDOW_BYTES

    def begin_at(self, last: int) -> None:
        """The stream's last sequence is ``last``, and everything is still to be done."""
        self.acked = last
        self.sent = last
        self.next = last + 1
        self.ahead.clear()
        self.window.clear()
        self.window_bytes = 0
        self.held.clear()

    def take(self, items: list[Item]) -> None:
        """The next messages, in order.

        Raises ``Gap``, and has not taken what is behind it then.
        """
        if items[0].sequence == self.next and items[-1].sequence == self.next + len(items) - 1:
            self.ahead.extend(items)
            self.next += len(items)
            return
        for item in items:
            if item.sequence > self.next:
                raise Gap(self.next, item.sequence)
            if item.sequence == self.next:
                self.ahead.append(item)
                self.next += 1

    def take_delivery(self, item: Item, now: float) -> bool:
        """A message of the tail, in any order; tells whether it is news.

        What comes early is held until what is missing has come.
        """
        if item.sequence < self.next:
            return False
        if item.sequence == self.next:
            self.ahead.append(item)
            self.next += 1
            while (found := self.held.pop(self.next, None)) is not None:
                self.ahead.append(found)
                self.next += 1
            self.held_since = now
        else:
            if not self.held:
                self.held_since = now
            self.held[item.sequence] = item
        return True

    def to_send(self, most: int) -> list[Item]:
        """The next messages to send; they count as sent."""
        count = min(most, len(self.ahead), WINDOW - len(self.window))
        items = [self.ahead.popleft() for _ in range(count)]
        if items:
            self.window.extend(items)
            self.window_bytes += sum([len(item[3]) for item in items])
            self.sent = items[-1].sequence
        return items

    def confirm(self, last: int) -> list[Message]:
        """Everything up to ``last`` is in the stream; gives the deliveries to acknowledge."""
        if last <= self.acked:
            return []
        self.acked = last
        self.is_empty = False
        before = len(self.window)
        done: list[Message] = []
        while self.window and self.window[0].sequence <= last:
            item = self.window.popleft()
            self.window_bytes -= len(item.data)
            if self.stage is Stage.TAIL:
                self.times[item.sequence] = item.timestamp
                done += self.deliveries.pop(item.sequence, ())
        self.mirrored += before - len(self.window)
        while len(self.times) > _REMEMBERED:
            self.times.popitem(last=False)
        return done

    def rewind(self, last: int) -> list[Message]:
        """The stream ends at ``last``, at or above ``acked``: what lies behind is sent again.

        Gives the deliveries to acknowledge. What waited and is in the stream is dropped.
        """
        done = self.confirm(last)
        self.ahead.extendleft(reversed(self.window))
        self.window.clear()
        self.window_bytes = 0
        while self.ahead and self.ahead[0].sequence <= last:
            item = self.ahead.popleft()
            done += self.deliveries.pop(item.sequence, ())
        self.sent = last
        self.next = max(self.next, last + 1)
        for sequence in [s for s in self.held if s <= last]:
            del self.held[sequence]
            done += self.deliveries.pop(sequence, ())
        while (found := self.held.pop(self.next, None)) is not None:
            self.ahead.append(found)
            self.next += 1
        return done

    def skip_to(self, sequence: int) -> None:
        """The channel goes on at ``sequence``, and so does the stream; nothing is on its way."""
        held = self.held
        self.acked = sequence - 1
        self.sent = sequence - 1
        self.next = sequence
        self.held = {}
        for key in sorted(held):
            self.take_delivery(held[key], self.held_since)
