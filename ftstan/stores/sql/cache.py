"""The newest messages of all channels, and what was read last, up to a number of bytes."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ftstan.wire.block import MsgBlock

#: Bytes of the newest messages of all channels together.
_MOST_BYTES = 32 << 20
#: Small batches are gathered in blocks of about this many bytes.
_BLOCK_BYTES = 256 << 10
#: Ranges that were read from the database and may be asked for again, message by message.
_RANGES = 16


class Cache:
    """Blocks by channel number. What is in it is durable."""

    def __init__(self, most: int = _MOST_BYTES) -> None:
        self._most = most
        self._bytes = 0
        self._order: deque[int] = deque()
        """A channel number for each block, oldest block first."""
        self._blocks: dict[int, deque[MsgBlock]] = {}
        self._ranges: OrderedDict[int, MsgBlock] = OrderedDict()

    def add(self, channel: int, block: MsgBlock) -> None:
        """The newest messages of a channel."""
        blocks = self._blocks.get(channel)
        self._bytes += block.nbytes
        if blocks and blocks[-1].nbytes + block.nbytes <= _BLOCK_BYTES:
            blocks[-1].extend(block)
        else:
            if blocks is None:
                blocks = self._blocks[channel] = deque()
            blocks.append(block)
            self._order.append(channel)
        while self._bytes > self._most and len(self._order) > 1:
            oldest = self._order.popleft()
            held = self._blocks.get(oldest)
            if held:
                self._bytes -= held.popleft().nbytes
                if not held:
                    del self._blocks[oldest]

    def keep_range(self, channel: int, block: MsgBlock) -> None:
        """What was read from the database."""
        self._ranges[channel] = block
        self._ranges.move_to_end(channel)
        while len(self._ranges) > _RANGES:
            self._ranges.popitem(last=False)

    def find(self, channel: int, sequence: int) -> MsgBlock | None:
        """The block that has the message; ``None`` if none has."""
        for block in reversed(self._blocks.get(channel, ())):
            if block.first <= sequence:
                return block if sequence <= block.last else None
        found = self._ranges.get(channel)
        if found is not None and found.first <= sequence <= found.last:
            return found
        return None

    def first(self, channel: int) -> int:
        """The first sequence from which on everything is here; 0 if nothing is."""
        blocks = self._blocks.get(channel)
        return blocks[0].first if blocks else 0

    def forget(self, channel: int) -> None:
        """The channel is gone."""
        self._ranges.pop(channel, None)
        blocks = self._blocks.pop(channel, None)
        if blocks:
            self._bytes -= sum(block.nbytes for block in blocks)
            self._order = deque(c for c in self._order if c != channel)
