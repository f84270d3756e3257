"""Slices: the ``msgs.N.dat`` and ``msgs.N.idx`` files of one channel. Only this module opens, links or removes them.

Rules (``docs/store.md``): slices of former activations are never written again; the first write of an activation opens
a new slice, which becomes visible with its first batch in it; an index entry is written only after the data that it
names is durable, so an entry that can be read proves its record; a slice of ours ends every lower one at its first
sequence; a slice is removed only when every lower number is gone. A file whose write or sync failed is never written
or synced again: the next batch opens a new slice, and that ends the failed one.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.errors import DamageError, FencedError, StoreError, StoreFullError
from ftstan.stores.file import records
from ftstan.stores.file.env import NUMBERS_PER_EPOCH, TEMPORARY, FileEnv, is_full

if TYPE_CHECKING:
    from ftstan.stores.interface import ChannelLimits
    from ftstan.wire.block import MsgBlock

_ENTRY = records.INDEX_SIZE
_NO_LINK = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def dat_name(number: int) -> str:
    """File name of a slice's messages."""
    return f"msgs.{number}.dat"


def idx_name(number: int) -> str:
    """File name of a slice's index."""
    return f"msgs.{number}.idx"


@dataclass(slots=True)
class Slice:
    """What is known of one slice without reading it.

    ``first`` .. ``last``: sequences that count (a sealed slice may hold more bytes); ``entries`` of them, whose records
    end at offset ``end``. ``index`` holds all entries when the file of that name cannot be trusted for them.
    """

    number: int
    first: int
    last: int
    first_ts: int
    last_ts: int
    entries: int
    end: int
    contiguous: bool = True
    index: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes as limits count them: payload + 40 a message."""
        return self.end - records.VERSION_SIZE + 32 * self.entries


@dataclass(slots=True)
class _Active:
    """The slice being written. ``opened_ns``: when its first message was stamped."""

    slice: Slice
    dat: int
    idx: int
    opened_ns: int
    index_dirty: bool = True


class SliceLog:
    """The messages of one channel on disk. Everything it reports is durable."""

    def __init__(self, env: FileEnv, name: bytes, limits: ChannelLimits) -> None:
        self._env = env
        self.name = name
        self.limits = limits
        self.dirfd = -1
        self.slices: list[Slice] = []
        self.dead: set[int] = set()
        """Numbers of slices none of whose records counts."""
        self.first = 0
        self.last = 0
        self.count = 0
        self.size = 0
        self.last_timestamp = 0
        self._active: _Active | None = None
        self._staged: MsgBlock | None = None
        self._parts: list[tuple[_Active, int, int, int]] = []
        self._highest = 0
        self._max_msgs, self._max_bytes, self._max_age = _slice_limits(env, limits)
        self.limits_hit = False

    # ---- opening -------------------------------------------------------------------------------------------------

    def adopt(self, slices: list[Slice], dead: set[int], highest: int) -> None:
        """Take over what recovery found: ``slices`` ascend in number and sequence, ``highest`` number seen."""
        self.slices = slices
        self.dead = dead
        self._highest = highest
        if slices:
            self.first = slices[0].first
            self.last = slices[-1].last
            self.last_timestamp = slices[-1].last_ts
            self.count = sum(s.entries for s in slices)
            self.size = sum(s.size for s in slices)

    def copy_tail(self, tail: MsgBlock) -> None:
        """Store records that a former owner may not have synced, same bytes, as the first ones of our first slice."""
        self._open_slice(tail, 0, len(tail))
        self._finish_parts(tail)

    # ---- writing -------------------------------------------------------------------------------------------------

    def append(self, block: MsgBlock) -> None:
        """Stage a block; ``write`` takes it."""
        if self._staged is None:
            self._staged = block
        else:
            self._staged.extend(block)

    @property
    def staged(self) -> bool:
        """Whether there is something to write."""
        return self._staged is not None

    def write(self) -> int | None:
        """Write the staged block; returns the descriptor to sync before ``finish``, if any.

        Raises ``OSError`` or ``FencedError``; the caller then calls ``fail``.
        """
        block = self._staged
        if block is None:
            return None
        records.seal(block, self._env.crc)
        total = len(block)
        i = 0
        while True:
            pending: int | None = None
            if self._active is not None and self._is_full(self._active, block.timestamp(i)):
                self._roll()
            active = self._active
            if active is None:
                j = i + records.fitting(block, i, self._max_msgs, self._max_bytes)
                self._open_slice(block, i, j)
            else:
                s = active.slice
                j = i + records.fitting(
                    block,
                    i,
                    self._max_msgs - s.entries if self._max_msgs else 0,
                    self._max_bytes - s.size if self._max_bytes else 0,
                )
                start, end = records.span(block, i, j)
                self._env.disk.pwrite(active.dat, memoryview(block)[start:end], s.end)
                self._parts.append((active, i, j, s.end))
                pending = active.dat
            if j == total:
                return pending
            # The rest goes to the next slice; this one must be durable and indexed before it is left.
            if pending is not None:
                self._sync(pending)
            self._finish_parts(block)
            self._roll()
            i = j

    def finish(self) -> None:
        """The data is durable: write index entries, count the messages, apply the limits."""
        block = self._staged
        if block is None:
            return
        self._finish_parts(block)
        self._staged = None
        self.enforce()

    def fail(self) -> None:
        """A write or sync failed: forget what was staged and never touch that slice again."""
        self._staged = None
        self._parts = []
        if self._highest not in {s.number for s in self.slices[-1:]}:
            # Whatever became visible under the newest number holds nothing that was acknowledged.
            self.dead.add(self._highest)
        if self._active is not None:
            self._close_active()

    def _is_full(self, active: _Active, timestamp: int) -> bool:
        s = active.slice
        return (
            (self._max_msgs > 0 and s.entries >= self._max_msgs)
            or (self._max_bytes > 0 and s.size >= self._max_bytes)
            or (self._max_age > 0 and timestamp - active.opened_ns >= self._max_age)
        )

    def _next_number(self) -> int:
        owner = self._env.owner
        floor = max(self._highest, self._env.number_floor.get(self.name, 0))
        number = max(owner.slice_base, floor) + 1
        if number > owner.slice_base + NUMBERS_PER_EPOCH:
            # Our numbers are used up, or somebody wrote a number above our range: only a higher epoch ends it.
            owner.raise_epoch()
            number = max(owner.slice_base, floor) + 1
        if number > owner.slice_base + NUMBERS_PER_EPOCH:
            raise StoreError(
                f'channel "{show(self.name)}": slice number {floor} leaves no room for epoch numbers',
                hint="run: ftstanctl store repair",
            )
        return number

    def _open_slice(self, block: MsgBlock, i: int, j: int) -> None:
        """Make a new slice visible with messages ``i`` to ``j - 1`` in it, durable, and index them."""
        disk = self._env.disk
        number = self._next_number()
        start, end = records.span(block, i, j)
        # Taken even if what follows fails: the file may be visible all the same.
        self._highest = number
        fd = self._publish_file(
            f"{TEMPORARY}{number}.dat",
            dat_name(number),
            records.VERSION + bytes(memoryview(block)[start:end]),
            durable=True,
        )
        s = Slice(number, block.sequence(i), 0, block.timestamp(i), 0, 0, records.VERSION_SIZE)
        # The name is durable from here on; a failure below leaves a slice that recovery reads through its data.
        self._active = active = _Active(s, fd, -1, block.timestamp(i))
        self._parts.append((active, i, j, records.VERSION_SIZE))
        disk.fsync(self.dirfd)

    def _publish_file(self, temporary: str, name: str, data: bytes, *, durable: bool) -> int:
        disk = self._env.disk
        fd = disk.open(self.dirfd, temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            disk.pwrite(fd, data, 0)
            if durable:
                disk.fsync(fd)
            self._env.owner.confirm()
            try:
                disk.link(self.dirfd, temporary, name)
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                disk.rename(self.dirfd, temporary, name)
            else:
                disk.unlink(self.dirfd, temporary)
        except FencedError:
            # The store is not ours: not even this temporary may be removed.
            disk.close(fd)
            raise
        except BaseException:
            disk.close(fd)
            with contextlib.suppress(OSError):
                disk.unlink(self.dirfd, temporary)
            raise
        return fd

    def _sync(self, fd: int) -> None:
        if self._env.options.sync:
            self._env.disk.fdatasync(fd)

    def _finish_parts(self, block: MsgBlock) -> None:
        """Index and count what is durable."""
        for active, i, j, offset in self._parts:
            s = active.slice
            entries = records.index_entries(block, i, j, offset, self._env.crc)
            if active.idx < 0:
                active.idx = self._publish_file(
                    f"{TEMPORARY}{s.number}.idx", idx_name(s.number), records.VERSION + entries, durable=False
                )
            else:
                self._env.disk.pwrite(active.idx, entries, records.VERSION_SIZE + _ENTRY * s.entries)
            active.index_dirty = True
            start, end = records.span(block, i, j)
            if s.entries and block.sequence(i) != s.last + 1:
                s.contiguous = False
            if block.sequence(j - 1) - block.sequence(i) != j - 1 - i:
                s.contiguous = False
            s.last = block.sequence(j - 1)
            s.last_ts = block.timestamp(j - 1)
            if not self.slices or self.slices[-1] is not s:
                self.slices.append(s)
            if self.count == 0:
                self.first = block.sequence(i)
            s.entries += j - i
            s.end = offset + end - start
            self.count += j - i
            self.size += end - start + 32 * (j - i)
            self.last = s.last
            self.last_timestamp = s.last_ts
        self._parts = []

    def _roll(self) -> None:
        active = self._active
        if active is None:
            return
        if active.index_dirty and self._env.options.sync and active.idx >= 0:
            self._env.disk.fdatasync(active.idx)
        self._close_active()

    def _close_active(self) -> None:
        active, self._active = self._active, None
        assert active is not None
        for fd in (active.dat, active.idx):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    self._env.disk.close(fd)

    def sync_index(self) -> None:
        """Once a second: make the index entries durable, so that a start after a power loss need not read the data."""
        active = self._active
        if active is not None and active.index_dirty and active.idx >= 0 and self._env.options.sync:
            self._env.disk.fdatasync(active.idx)
            active.index_dirty = False

    # ---- reading -------------------------------------------------------------------------------------------------

    def read(self, sequence: int, max_msgs: int, max_bytes: int) -> MsgBlock | None:
        """Messages from the first existing one at or after ``sequence``; ``None`` behind the last."""
        sequence = max(sequence, self.first)
        if not self.count or sequence > self.last:
            return None
        for s in self.slices:
            if sequence <= s.last:
                break
        else:
            return None
        sequence = max(sequence, s.first)
        index, _ = self._entries_from(s, sequence, max_msgs)
        index = index[: records.fitting_entries(index, max_bytes) * _ENTRY]
        first_offset = records.entry(index, 0)[1]
        _, last_offset, _, last_size = records.entry(index, len(index) // _ENTRY - 1)
        data = self._pread(s, dat_name(s.number), last_offset + 8 + last_size - first_offset, first_offset)
        block, why = records.read_block(data, index, self._env.crc, self._env.options.check_crc)
        if why and not len(block):
            raise self._damage(s, why)
        return block

    def _entries_from(self, s: Slice, sequence: int, most: int) -> tuple[bytes, int]:
        """Up to ``most`` index entries from the first at or after ``sequence``, and the number of that one."""
        if s.contiguous:
            k = sequence - s.first
            n = min(most, s.entries - k)
            if s.index is not None:
                return s.index[k * _ENTRY : (k + n) * _ENTRY], k
            index = self._pread(s, idx_name(s.number), n * _ENTRY, records.VERSION_SIZE + k * _ENTRY)
        else:
            whole = s.index
            if whole is None:
                whole = self._pread(s, idx_name(s.number), s.entries * _ENTRY, records.VERSION_SIZE)
            k = records.find_entry(whole, sequence)
            index = whole[k * _ENTRY : min(k + most, s.entries) * _ENTRY]
        if len(index) < _ENTRY or (s.contiguous and records.entry(index, 0)[0] != sequence):
            raise self._damage(s, f"the index has no entry for sequence {sequence}")
        return index, k

    def _pread(self, s: Slice, name: str, size: int, offset: int) -> bytes:
        disk = self._env.disk
        active = self._active
        if active is not None and active.slice is s:
            return disk.pread(active.dat if name.endswith(".dat") else active.idx, size, offset)
        fd = disk.open(self.dirfd, name, os.O_RDONLY)
        try:
            return disk.pread(fd, size, offset)
        finally:
            disk.close(fd)

    def _damage(self, s: Slice, why: str) -> DamageError:
        return DamageError(
            f'channel "{show(self.name)}" slice {dat_name(s.number)}: {why}',
            hint=f"run: ftstanctl store verify --channel {show(self.name)}",
        )

    def sequence_at(self, timestamp: int) -> int:
        """First sequence whose timestamp is at or after ``timestamp``; ``last + 1`` if none is."""
        for s in self.slices:
            if s.last_ts < timestamp:
                continue
            sequence = max(s.first, self.first)
            if sequence > s.last:
                continue
            while sequence <= s.last:
                index, _ = self._entries_from(s, sequence, 4096)
                k = records.first_younger(index, timestamp)
                if k * _ENTRY < len(index):
                    return records.entry(index, k)[0]
                sequence = records.entry(index, len(index) // _ENTRY - 1)[0] + 1
        return self.last + 1

    # ---- limits --------------------------------------------------------------------------------------------------

    def enforce(self) -> None:
        """Drop the oldest messages until count and bytes fit; the newest always stays."""
        limits = self.limits
        while self.count > 1 and (
            (limits.max_msgs and self.count > limits.max_msgs) or (limits.max_bytes and self.size > limits.max_bytes)
        ):
            self.limits_hit = True
            s = self._head()
            excess = self.count - limits.max_msgs if limits.max_msgs else 0
            self._drop_from_head(s, max(excess, 0), max(self.size - limits.max_bytes, 0) if limits.max_bytes else 0)

    def expire(self, now_ns: int) -> None:
        """Drop messages that are older than the age limit, from the front, up to the first that is not."""
        age = self.limits.max_age
        while age and self.count:
            s = self._head()
            index, _ = self._entries_from(s, self.first, 4096)
            k = records.first_younger(index, now_ns - age + 1)
            if k == 0:
                return
            self._advance(index, k, s)

    def _head(self) -> Slice:
        """The slice that holds the first live message."""
        for s in self.slices:
            if s.last >= self.first:
                return s
        raise StoreError(f'channel "{show(self.name)}": no slice holds sequence {self.first}')

    def _drop_from_head(self, s: Slice, excess_msgs: int, excess_bytes: int) -> None:
        index, _ = self._entries_from(s, self.first, 4096)
        most = min(len(index) // _ENTRY, self.count - 1)
        freed = 0
        k = 0
        while k < most and (k < excess_msgs or freed < excess_bytes):
            freed += records.entry(index, k)[3] + 40
            k += 1
        self._advance(index, k, s)

    def _advance(self, index: bytes, k: int, s: Slice) -> None:
        """The first ``k`` messages of ``index``, which starts at the first live one, in slice ``s``, are gone."""
        _, start, _, _ = records.entry(index, 0)
        sequence, offset, _, size = records.entry(index, k - 1)
        self.count -= k
        self.size -= offset + 8 + size - start + 32 * k
        if sequence < s.last:
            self.first = records.entry(index, k)[0] if k * _ENTRY < len(index) else sequence + 1
        else:
            later = self.slices[self.slices.index(s) + 1 :]
            self.first = later[0].first if later else self.last + 1

    def removable(self) -> list[int]:
        """Numbers of the slices that may be unlinked now, in the order in which they must go."""
        live = {s.number: s for s in self.slices}
        keep = self.slices[-1].number if self.slices else 0
        out = []
        for number in sorted(self.dead | set(live)):
            if number not in self.dead and (number == keep or live[number].last >= self.first):
                break
            out.append(number)
        return out

    def remove(self, numbers: list[int]) -> None:
        """Unlink slices that ``removable`` named; each only after the lower ones are durably gone."""
        disk = self._env.disk
        for number in numbers:
            self._env.owner.confirm()
            for name in (idx_name(number), dat_name(number)):
                with contextlib.suppress(FileNotFoundError):
                    disk.unlink(self.dirfd, name)
            disk.fsync(self.dirfd)
            self.dead.discard(number)
            self.slices = [s for s in self.slices if s.number != number]

    def close(self, *, abandon: bool = False) -> None:
        """Sync the index unless abandoned, and release the handles."""
        if self._active is not None:
            if not abandon:
                self.sync_index()
            self._close_active()
        if self.dirfd >= 0:
            self._env.disk.close(self.dirfd)
            self.dirfd = -1


def store_error(error: OSError, what: str) -> StoreError:
    """The error that a publisher gets when storage refused a write."""
    kind = StoreFullError if is_full(error) else StoreError
    return kind(f"{what}: {error.strerror or error}", hint="free space or fix the storage, then publish again")


def show(name: bytes) -> str:
    """A channel name as text for messages."""
    return name.decode("utf-8", "backslashreplace")


def _slice_limits(env: FileEnv, limits: ChannelLimits) -> tuple[int, int, int]:
    """Effective (messages, bytes, age) of a slice: as configured, else a quarter of the channel's limits."""
    o = env.options
    if o.slice_max_msgs or o.slice_max_bytes or o.slice_max_age:
        return o.slice_max_msgs, o.slice_max_bytes, o.slice_max_age
    return (
        max(limits.max_msgs // 4, 1) if limits.max_msgs else 0,
        max(limits.max_bytes // 4, 1) if limits.max_bytes else 0,
        max(limits.max_age // 4, 1_000_000_000) if limits.max_age else 0,
    )
