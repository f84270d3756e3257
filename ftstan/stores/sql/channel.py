"""One channel of the SQL store: rows of ``Channels`` and ``Messages``.

``first``, ``count`` and ``size`` are what clients see. Rows that the limits no longer allow go out
of sight when the batch behind which they are too many is durable, and are deleted later, in steps
(``_floor`` is where those rows begin). So a failed batch never takes a message that is within the
limits, and a crash in between leaves rows that the next recovery drops again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ftstan.base.log import stream as log
from ftstan.stores.limits import reached_limits
from ftstan.stores.moves import no_moves
from ftstan.stores.sql import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ftstan.config.options import ChannelLimits
    from ftstan.stores.expiry import Expiry
    from ftstan.stores.interface import StoredSub, SubState
    from ftstan.stores.sql.cache import Cache
    from ftstan.stores.sql.fence import Fence
    from ftstan.stores.sql.session import Session
    from ftstan.stores.sql.subs import SubBook
    from ftstan.wire.block import MsgBlock, SubEvents

#: Rows that one statement deletes at most.
STEP_ROWS = 20_000
#: Rows of which sizes are read at a time.
_LEAST_HEADS = 256
_MOST_HEADS = 4096

#: ``Channels.maxmsgs`` is an INTEGER.
_MOST_MSGS = (1 << 31) - 1

_ROW = "INSERT INTO Channels (id, name, maxmsgs, maxbytes, maxage) VALUES (%s, %s, %s, %s, %s)"
_LIMITS = "UPDATE Channels SET maxmsgs = %s, maxbytes = %s, maxage = %s WHERE id = %s"
_MAX_SEQ = "UPDATE Channels SET maxseq = %s WHERE id = %s"
_HEADS = "SELECT seq, size FROM Messages WHERE id = %s AND seq >= %s ORDER BY seq LIMIT %s"
_SUM = (
    "SELECT COUNT(*), COALESCE(SUM(size), 0) FROM Messages WHERE id = %s AND seq >= %s AND seq < %s"
)
_DELETE = "DELETE FROM Messages WHERE id = %s AND seq >= %s AND seq < %s"
_NEXT = "SELECT MIN(seq) FROM Messages WHERE id = %s AND seq >= %s"
_YOUNG = (
    "SELECT seq, timestamp FROM Messages WHERE id = %s AND seq >= %s AND timestamp > %s"
    " ORDER BY seq LIMIT 1"
)
_AT = "SELECT MIN(seq) FROM Messages WHERE id = %s AND seq >= %s AND timestamp >= %s"
# NULL, which no server writes, is read as the original reads it: nothing.
_READ = (
    "SELECT seq, COALESCE(timestamp, 0), COALESCE(data, '') FROM Messages"
    " WHERE id = %s AND seq >= %s AND seq <= %s ORDER BY seq"
)


def limits_as_stored(limits: ChannelLimits) -> tuple[int, int, int]:
    """Messages, bytes and nanoseconds, as far as their columns hold them."""
    return min(limits.max_msgs, _MOST_MSGS), limits.max_bytes, limits.max_age


class SqlChannel:
    """Implements ``ChannelStore``."""

    def __init__(
        self,
        number: int,
        name: bytes,
        text: str,
        limits: ChannelLimits,
        parts: Parts,
        *,
        is_stored: bool = False,
    ) -> None:
        self.number = number
        self.name = name
        self.text = text
        self.limits = limits
        self.first = 0
        self.last = 0
        self.count = 0
        self.size = 0
        self.last_timestamp = 0
        self.snapshot: Callable[[], Iterable[StoredSub]] | None = None
        self.is_stored = is_stored
        self.limits_stored = is_stored
        """Whether the row has the limits in force."""
        self._parts = parts
        self._staged: MsgBlock | None = None
        self._changes: list[tuple[SubState | int, bool]] = []
        self._subs: list[StoredSub] = []
        self._heads: deque[tuple[int, int]] = deque()
        """Sequence and size of the oldest rows, as far as they were read."""
        self._floor = 1
        self._limits_hit = False

    # ---- staging

    @property
    def next_sub_id(self) -> int:
        """Subscription ids are unique in the whole database."""
        return self._parts.subs.next_id

    def keep(self) -> None:
        """Stage the channel itself."""
        self._parts.touch(self)

    def append(self, block: MsgBlock) -> None:
        """Stage messages."""
        if self._staged is None:
            self._staged = block
            self._parts.touch(self)
        else:
            self._staged.extend(block)

    def add_sub(self, state: SubState) -> None:
        """Stage a new subscription."""
        self._parts.subs.open(self.number, state)
        self._change(state, new=True)

    def update_sub(self, state: SubState) -> None:
        """Stage its new state."""
        self._change(state, new=False)

    def delete_sub(self, sub_id: int) -> None:
        """Stage its end."""
        self._change(sub_id, new=False)

    def _change(self, change: SubState | int, *, new: bool) -> None:
        self._changes.append((change, new))
        self._parts.touch(self)

    def add_events(self, events: SubEvents) -> None:
        """Stage sent and acknowledged sequences."""
        self._parts.subs.add_events(events)

    def recovered_subs(self) -> Sequence[StoredSub]:
        """The subscriptions found at recovery."""
        return self._subs

    @property
    def has_staged(self) -> bool:
        """Whether something waits for the next commit."""
        return self._staged is not None or bool(self._changes)

    # ---- a commit, driven by the store

    @property
    def staged(self) -> MsgBlock | None:
        """The messages that are staged."""
        return self._staged

    @property
    def only_messages(self) -> MsgBlock | None:
        """The messages that are staged, if nothing else of the channel is to be written."""
        is_written = self.is_stored and self.limits_stored and not self._changes
        return self._staged if is_written else None

    def write(self, session: Session) -> None:
        """Everything that is staged but the messages, inside a transaction."""
        numbers = limits_as_stored(self.limits)
        if not self.is_stored:
            session.execute(_ROW, (self.number, self.text, *numbers))
        elif not self.limits_stored:
            session.execute(_LIMITS, (*numbers, self.number))
        for change, new in self._changes:
            self._parts.subs.write(session, self.number, change, new=new)

    def landed(self) -> None:
        """What is staged is durable."""
        self.is_stored = self.limits_stored = True
        for change, new in self._changes:
            self._parts.subs.wrote(self.number, change, new=new)
        self._changes.clear()
        block = self._staged
        self._staged = None
        if block is None:
            return
        n = len(block)
        if not self.count:
            self.first = block.first
            self._heads.clear()
        self.last = block.last
        self.last_timestamp = block.timestamp(n - 1)
        self.count += n
        self.size += block.sizes(0, n)
        self._parts.cache.add(self.number, block)
        if self.limits.max_age:
            self._parts.expiry.wake(self.name)

    def drop_staged(self) -> None:
        """The commit has failed, or will not come."""
        for change, new in self._changes:
            self._parts.subs.failed(change, new=new)
        self._changes.clear()
        self._staged = None

    # ---- reading

    def read(self, sequence: int, max_msgs: int, max_bytes: int) -> MsgBlock | None:
        """Messages from the first existing one at or after ``sequence``."""
        sequence = max(sequence, self.first)
        if not self.count or sequence > self.last:
            return None
        cache = self._parts.cache
        block = cache.find(self.number, sequence)
        if block is not None:
            return block
        heads = self._parts.fence.read(
            lambda s: s.query(_HEADS, (self.number, sequence, max(max_msgs, 1)))
        )
        if not heads:
            return None
        total = 0
        end = int(heads[0][0])
        for found, size in heads:
            total += size or 0
            if total > max_bytes and found != heads[0][0]:
                break
            end = int(found)
        found_rows = self._parts.fence.read(
            lambda s: s.query(_READ, (self.number, sequence, min(end, self.last)))
        )
        if not found_rows:
            return None
        block = rows.block_of(found_rows)
        cache.keep_range(self.number, block)
        return block

    def sequence_at(self, timestamp: int) -> int:
        """First sequence at or after a time; ``last + 1`` if none is."""
        if not self.count:
            return self.last + 1
        found = self._parts.fence.read(
            lambda s: s.query(_AT, (self.number, self.first, timestamp))
        )[0][0]
        return self.last + 1 if found is None else int(found)

    # ---- limits

    def set_limits(self, limits: ChannelLimits) -> None:
        """The limits from now on; nothing is dropped yet."""
        if limits != self.limits:
            self.limits = limits
            self.limits_stored = False
            self._limits_hit = False
            self._parts.expiry.look(self.name, 0)

    def enforce(self, *, warn: bool = True) -> None:
        """Drop the oldest that are too many or too large. Raises ``StoreError``."""
        limits = self.limits
        before = self.first
        count = self.count
        size = self.size
        while self.count > 1 and (
            (limits.max_msgs and self.count > limits.max_msgs)
            or (limits.max_bytes and self.size > limits.max_bytes)
        ):
            if not self._heads and not self._read_heads():
                break
            sequence, taken = self._heads.popleft()
            if sequence < self.first:
                continue
            if sequence >= self.last:
                break
            self.count -= 1
            self.size -= taken
            self.first = self._heads[0][0] if self._heads else sequence + 1
        if self.first != before:
            if warn and not self._limits_hit:
                self._limits_hit = True
                log.warning(reached_limits(self.text, count, size, limits), channel=self.text)
            self._parts.dead.add(self.number)

    def _read_heads(self) -> bool:
        excess = self.count - self.limits.max_msgs if self.limits.max_msgs else 0
        most = min(max(2 * excess, _LEAST_HEADS), _MOST_HEADS)
        found = self._parts.fence.read(lambda s: s.query(_HEADS, (self.number, self.first, most)))
        self._heads.extend((int(sequence), int(size or 0)) for sequence, size in found)
        return bool(found)

    def expire(self, now_ns: int) -> None:
        """Drop what the limits no longer allow, and from the front what is too old."""
        self.enforce(warn=False)
        age = self.limits.max_age
        if not age or not self.count:
            return
        young = self._parts.fence.read(
            lambda s: s.query(_YOUNG, (self.number, self.first, now_ns - age))
        )
        if not young:
            self._all_gone()
            return
        sequence, timestamp = young[0]
        if sequence > self.first:
            self._drop_before(int(sequence))
        self._parts.expiry.look(self.name, int(timestamp) + age)

    def _drop_before(self, sequence: int) -> None:
        count, size = self._parts.fence.read(
            lambda s: s.query(_SUM, (self.number, self.first, sequence))
        )[0]
        self.count -= int(count)
        self.size -= int(size)
        self.first = sequence
        self._parts.dead.add(self.number)

    def _all_gone(self) -> None:
        self.first = self.last + 1
        self.count = self.size = 0
        self._heads.clear()
        self._parts.dead.add(self.number)

    @property
    def dead_rows(self) -> int:
        """About how many rows are out of sight and not deleted yet."""
        return max(self.first - self._floor, 0)

    def delete_step(self, session: Session, most: int) -> int:
        """Delete at most so many of them, inside a transaction; returns from where on there are
        more.
        """
        low = session.query(_NEXT, (self.number, self._floor))[0][0]
        if low is None or low >= self.first:
            return self.first
        high = min(int(low) + most, self.first)
        if not self.count:
            # Before the last row goes: numbers go on behind it after a restart, too.
            session.execute(_MAX_SEQ, (self.last, self.number))
        session.execute(_DELETE, (self.number, int(low), high))
        return high

    def deleted_before(self, sequence: int) -> None:
        """The step is durable."""
        self._floor = max(self._floor, sequence)

    @property
    def mover(self) -> bytes | None:
        """No channel can be marked as moved here."""
        return None

    def set_moved(self, mover: bytes | None) -> None:
        """Refuse it. Raises ``RefusedError``."""
        if mover is not None:
            raise no_moves("a store in a database")

    def purge(self, sequence: int) -> None:
        """Drop every message up to ``sequence`` for good, durable on return."""
        if not self.count or sequence < self.first:
            return
        fence = self._parts.fence
        if sequence >= self.last:
            self._all_gone()
        else:
            found = fence.read(lambda s: s.query(_NEXT, (self.number, sequence + 1)))[0][0]
            self._drop_before(int(found))
            while self._heads and self._heads[0][0] < self.first:
                self._heads.popleft()
        while self.dead_rows:
            self.deleted_before(fence.transaction(lambda s: self.delete_step(s, STEP_ROWS)))
        self._parts.dead.discard(self.number)

    # ---- recovery

    def found(self, count: int, first: int, last: int, size: int, timestamp: int) -> None:
        """What the rows say."""
        self.count = count
        self.first = first
        self.last = last
        self.size = size
        self.last_timestamp = timestamp
        self._floor = first if count else last + 1

    def last_is_at_least(self, sequence: int) -> None:
        """A sequence up to which numbers were given: what is stored below it is out of reach."""
        if sequence > self.last:
            floor = self._floor if self.count else sequence + 1
            self.last = sequence
            self.first = sequence + 1
            self.count = self.size = 0
            self._floor = floor

    def has_subs(self, subs: list[StoredSub]) -> None:
        """The subscriptions that were found."""
        self._subs = subs


class Parts:
    """What the channels of one store share. ``touch`` notes a channel with something staged."""

    def __init__(
        self,
        fence: Fence,
        subs: SubBook,
        cache: Cache,
        expiry: Expiry,
        touch: Callable[[SqlChannel], None],
    ) -> None:
        self.fence = fence
        self.subs = subs
        self.cache = cache
        self.expiry = expiry
        self.touch = touch
        self.dead: set[int] = set()
        """Numbers of channels with rows that are out of sight."""
