"""The memory store: channels as lists of blocks.

Nothing survives the process, and nothing has to be confirmed.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from ftstan.base.errors import StoreError
from ftstan.base.log import stream as log
from ftstan.stores.expiry import Expiry
from ftstan.stores.interface import (
    ChannelEnd,
    ChannelLimits,
    ClientInfo,
    Recovered,
    ServerInfo,
    StoredSub,
    SubState,
)
from ftstan.stores.limits import reached_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ftstan.config.limits import Limits
    from ftstan.stores.interface import StoreContext, StoredAt
    from ftstan.wire.block import MsgBlock, SubEvents

#: Small batches are gathered in blocks of about this many bytes.
_BLOCK_BYTES = 256 << 10
#: Channels that one tick looks at for messages that have reached their age.
_LOOKS_A_TICK = 256


class MemoryChannel:
    """One channel's messages. Implements ``ChannelStore``."""

    def __init__(
        self, name: bytes, limits: ChannelLimits, touched: list[MemoryChannel], expiry: Expiry
    ) -> None:
        self.name = name
        self.limits = limits
        self.first = 0
        self.last = 0
        self.count = 0
        self.size = 0
        self.last_timestamp = 0
        self.next_sub_id = 1
        self.mover: bytes | None = None
        self.snapshot: Callable[[], Iterable[StoredSub]] | None = None
        self._limits_hit = False
        self._blocks: list[MsgBlock] = []
        self._firsts: list[int] = []
        self._staged: MsgBlock | None = None
        self._touched = touched
        self._expiry = expiry

    def keep(self) -> None:
        """It is there as long as this process."""

    def append(self, block: MsgBlock) -> None:
        """Stage messages."""
        if self._staged is None:
            self._staged = block
            self._touched.append(self)
            if self.limits.max_age:
                self._expiry.wake(self.name)
        else:
            self._staged.extend(block)

    def commit(self) -> None:
        """Take over what is staged and apply the limits."""
        block = self._staged
        self._staged = None
        if block is None:
            return
        n = len(block)
        if self.count == 0:
            self.first = block.first
        self.last = block.last
        self.last_timestamp = block.timestamp(n - 1)
        self.count += n
        self.size += block.sizes(0, n)
        if self._blocks and self._blocks[-1].nbytes + block.nbytes <= _BLOCK_BYTES:
            self._blocks[-1].extend(block)
        else:
            self._blocks.append(block)
            self._firsts.append(block.first)
        self._enforce()

    def read(self, sequence: int, max_msgs: int, max_bytes: int) -> MsgBlock | None:
        """The block that holds the message, or the next one, whole: it costs nothing."""
        del max_msgs, max_bytes
        sequence = max(sequence, self.first)
        if not self.count or sequence > self.last:
            return None
        return self._blocks[bisect_right(self._firsts, sequence) - 1]

    def sequence_at(self, timestamp: int) -> int:
        """First sequence at or after a time; ``last + 1`` if none is."""
        for block in self._blocks:
            n = len(block)
            if block.timestamp(n - 1) < timestamp:
                continue
            for i in range(block.position(self.first), n):
                if block.timestamp(i) >= timestamp:
                    return block.sequence(i)
        return self.last + 1

    def _enforce(self, *, warn: bool = True) -> None:
        limits = self.limits
        drop = max(self.count - limits.max_msgs, 0) if limits.max_msgs else 0
        size = self.size
        sequence = self.first
        if drop:
            sequence, size = self._after(drop)
        while limits.max_bytes and size > limits.max_bytes and sequence < self.last:
            block = self._blocks[bisect_right(self._firsts, sequence) - 1]
            i = block.position(sequence)
            size -= block.sizes(i, i + 1)
            sequence += 1
        if sequence != self.first:
            if warn and not self._limits_hit:
                self._limits_hit = True
                shown = self.name.decode("utf-8", "backslashreplace")
                log.warning(reached_limits(shown, self.count, self.size, limits), channel=shown)
            self._drop_before(sequence, size)

    def _after(self, drop: int) -> tuple[int, int]:
        """First sequence and bytes that are left when the ``drop`` oldest messages go."""
        size = self.size
        sequence = self.first
        for block in self._blocks:
            i = block.position(sequence)
            k = min(len(block) - i, drop)
            size -= block.sizes(i, i + k)
            sequence += k
            drop -= k
            if not drop:
                break
        return sequence, size

    def _drop_before(self, sequence: int, size: int) -> None:
        self.count -= sequence - self.first
        self.first = sequence
        self.size = size
        k = bisect_right(self._firsts, sequence) - 1
        if not self.count:
            k = len(self._blocks)
        if k > 0:
            del self._blocks[:k]
            del self._firsts[:k]

    def set_limits(self, limits: ChannelLimits) -> None:
        """The limits from now on; nothing is dropped yet."""
        if limits != self.limits:
            self.limits = limits
            self._limits_hit = False
            self._expiry.look(self.name, 0)

    def expire(self, now_ns: int) -> None:
        """Drop what the limits no longer allow and what is older than the age limit, from the
        front.
        """
        self._enforce(warn=False)
        age = self.limits.max_age
        if not age or not self.count:
            return
        sequence = self.first
        size = self.size
        for block in self._blocks:
            for i in range(block.position(sequence), len(block)):
                if block.timestamp(i) > now_ns - age:
                    if sequence != self.first:
                        self._drop_before(sequence, size)
                    self._expiry.look(self.name, block.timestamp(i) + age)
                    return
                size -= block.sizes(i, i + 1)
                sequence += 1
        self._drop_before(sequence, 0)

    def purge(self, sequence: int) -> None:
        """Drop every message up to ``sequence``."""
        if self.count and sequence >= self.last:
            self._drop_before(self.last + 1, 0)
        elif self.count and sequence >= self.first:
            self._drop_before(*self._after(sequence + 1 - self.first))

    def set_moved(self, mover: bytes | None) -> None:
        """Remember it as long as this process."""
        self.mover = mover

    def add_sub(self, state: SubState) -> None:
        """Remember the id only: subscriptions live in the broker."""
        self.next_sub_id = max(self.next_sub_id, state.sub_id + 1)

    def update_sub(self, state: SubState) -> None:
        """Nothing to keep."""

    def delete_sub(self, sub_id: int) -> None:
        """Nothing to keep."""

    def add_events(self, events: SubEvents) -> None:
        """Nothing to keep."""
        events.clear()

    def recovered_subs(self) -> Sequence[StoredSub]:
        """Always empty."""
        return ()


class MemoryStore:
    """Implements ``Store`` without storage."""

    kind = "MEMORY"

    def __init__(self) -> None:
        self._channels: dict[bytes, MemoryChannel] = {}
        self._touched: list[MemoryChannel] = []
        self._expiry = Expiry()

    def recover(self) -> Recovered:
        """There is never anything."""
        return Recovered(None, [], [])

    def set_server_info(self, info: ServerInfo) -> None:
        """Nothing to keep."""

    def add_client(self, info: ClientInfo) -> None:
        """Nothing to keep."""

    def delete_client(self, client_id: bytes) -> None:
        """Nothing to keep."""

    def create_channel(self, name: bytes, limits: ChannelLimits) -> MemoryChannel:
        """A new channel."""
        channel = self._channels[name] = MemoryChannel(name, limits, self._touched, self._expiry)
        return channel

    def open_channel(self, name: bytes) -> Recovered:
        """Nothing was there before this process."""
        del name
        return Recovered(None, [], [])

    def set_limits(self, limits: Limits) -> None:
        """Other limits; what they no longer allow goes with the next tick."""
        for channel in self._channels.values():
            channel.set_limits(limits.of(channel.name))

    def delete_channel(self, name: bytes) -> None:
        """Forget a channel.

        Raises ``StoreError`` if there is none of this name, or it has something staged.
        """
        channel = self._channels.get(name)
        shown = name.decode("utf-8", "backslashreplace")
        if channel is None:
            raise StoreError(f'channel "{shown}" not found')
        if channel in self._touched:
            raise StoreError(
                f'channel "{shown}" is in use', hint="try again when its batch has been committed"
            )
        del self._channels[name]
        self._expiry.forget(name)

    def commit(self) -> dict[bytes, StoreError]:
        """Everything staged is there at once."""
        for channel in self._touched:
            channel.commit()
        self._touched.clear()
        return {}

    def remember(self, fresh: Sequence[bytes], window: Mapping[bytes, StoredAt]) -> None:
        """Nothing outlives this process."""

    def confirm(self) -> None:
        """Nobody else can own this memory."""

    events_first = False

    def write_events(self) -> None:
        """Nothing to write."""

    acks_wait = False

    def catch_up(self) -> bool:
        """Nothing waits."""
        return False

    def tick(self, now_ns: int) -> bool:
        """Look at the channels whose messages may have reached their age.

        Returns whether more of them wait.
        """
        for name in self._expiry.take(now_ns, _LOOKS_A_TICK):
            self._channels[name].expire(now_ns)
        return self._expiry.is_due(now_ns)

    def ends(self, most: int) -> list[ChannelEnd]:
        """There are no files."""
        del most
        return []

    def prepare_close(self, seconds: float) -> bool:
        """Nothing is left behind."""
        del seconds
        return False

    def close(self) -> None:
        """Forget everything."""
        self._channels.clear()

    def abandon(self) -> None:
        """Forget everything."""
        self._channels.clear()


class NoLock:
    """Memory is nobody else's. Implements ``Lock``."""

    def acquire(self) -> None:
        """Always granted."""

    def verify(self) -> None:
        """Always held."""

    def release(self) -> None:
        """Nothing to give back."""


class MemoryAccess:
    """The MEMORY kind of store. Implements ``StoreAccess``."""

    place = "memory"

    def __init__(self, context: StoreContext) -> None:
        del context
        self._lock = NoLock()

    def lock(self) -> NoLock:
        """A lock that is always granted."""
        return self._lock

    def holder(self) -> str:
        """Nobody."""
        return ""

    def activate(self) -> None:
        """Nothing to take."""

    def open(self) -> MemoryStore:
        """An empty store."""
        return MemoryStore()

    def close(self) -> None:
        """Nothing to release."""
