"""Slices: the ``msgs.N.dat`` and ``msgs.N.idx`` files of one channel.

Only this module makes, fills and shows them.

Rules (``docs/store.md``): slices of former activations are never written again; the first write of
an activation opens a new slice, which becomes visible with its first batch in it; an index entry is
written only after the data that it names is durable, so an entry that can be read proves its
record; a slice of ours ends every lower one at its first sequence. A file whose write or sync
failed is never written or synced again: the next batch opens a new slice, and that ends the failed
one.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.base.errors import DamageError, FencedError, StoreError
from ftstan.base.log import stream as log
from ftstan.stores.file.env import NUMBERS_PER_EPOCH, TEMPORARY, FileEnv
from ftstan.stores.file.log import records
from ftstan.stores.file.log.retention import RetainedSlices
from ftstan.stores.file.log.view import Slice, SliceView, dat_name, idx_name, show, store_error
from ftstan.stores.file.regular import open_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.stores.interface import ChannelLimits
    from ftstan.wire.block import MsgBlock

__all__ = ["Slice", "SliceLog", "SliceView", "dat_name", "idx_name", "show", "store_error"]

_ENTRY = records.INDEX_SIZE
_NO_LINK = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@dataclass(slots=True)
class _Active:
    """The slice being written. ``opened_ns``: when its first message was stamped.

    ``dat`` and ``idx`` are descriptors, -1 while closed; ``has_index``: the index file exists.
    """

    slice: Slice
    dat: int
    opened_ns: int
    idx: int = -1
    has_index: bool = False
    data_dirty: bool = False
    index_dirty: bool = False


class SliceLog(RetainedSlices):
    """The messages of one channel on disk, and how more of them get there."""

    def __init__(self, env: FileEnv, name: bytes, limits: ChannelLimits) -> None:
        super().__init__(env, name, limits)
        self._active: _Active | None = None
        self._staged: MsgBlock | None = None
        self._parts: list[tuple[_Active, int, int, int]] = []
        self._seen = 0
        """The highest slice number that was found, also of a file that no number must be above."""
        self._highest = 0
        self._loose: dict[int, bool] = {}
        """Closed slices whose index may not be durable.

        True: nor their data, in a store without syncs.
        """
        self._names_loose = False
        self._found_loose = False
        """Whether what a former owner did to names may not be durable."""
        self._refused: set[int] = set()
        self._gap_behind = 0
        """A slice of ours with such an index: the number behind it is not used, which tells a
        successor so.
        """
        self._inherited = 0
        """The newest slice if a former owner that stood still may have it open to write.

        0: none.
        """
        self.is_open_ended = False
        """Whether a batch was refused since the last good one: whole records of it may lie behind
        the last message, and nothing ends them.
        """
        self._max_msgs, self._max_bytes, self._max_age = _slice_limits(env, limits)

    def set_limits(self, limits: ChannelLimits) -> None:
        """The limits from now on, those of a slice that follow from them too."""
        super().set_limits(limits)
        self._max_msgs, self._max_bytes, self._max_age = _slice_limits(self._env, limits)

    # ---- opening
    # ----------------------------------------------------------------------------------------------

    def adopt(
        self,
        slices: list[Slice],
        dead: set[int],
        highest: int,
        *,
        taken: int | None = None,
        durable: bool = False,
        synced: bool = True,
    ) -> None:
        """Take over what recovery found: ``slices`` ascend in number and sequence, ``highest``
        number seen.

        ``taken``: the number that new slices must be above, where that is another one. ``durable``:
        so are their indexes; what a killed owner left of one may be in the page cache only.
        ``synced``: whoever wrote here last ran with syncs.
        """
        self.slices = slices
        self._loose = {} if durable else dict.fromkeys((s.number for s in slices), not synced)
        self._names_loose = self._found_loose = not durable
        ours = range(self._env.owner.ours_from, self._env.highest_number)
        if slices and not durable and self._env.inherited and slices[-1].number in ours:
            self._inherited = slices[-1].number
        if not durable:
            self.unsure.update(self._doubtful(slices, synced=synced))
        self.dead = dead
        self._seen = highest
        self._highest = highest if taken is None else taken
        if slices:
            self.first = slices[0].first
            self.last = slices[-1].last
            self.last_timestamp = slices[-1].last_ts
            self.count = sum(s.entries for s in slices)
            self.size = sum(s.size for s in slices)

    def _doubtful(self, slices: list[Slice], *, synced: bool) -> set[int]:
        """Slices whose index may never have been synced by who wrote it, or not with success.

        A sync of another host, or one that follows a failed one, does not make up for that. An
        owner syncs an index before it opens the next number, and where that failed it leaves the
        next number out. So where the next number is there, the index is durable; the last one of an
        activation never is for sure.
        """
        ours = [s.number for s in slices if s.number >= self._env.owner.ours_from]
        there = set(ours)
        return {n for n in ours if not synced or n + 1 not in there or not n % NUMBERS_PER_EPOCH}

    def copy_tail(self, tail: MsgBlock) -> None:
        """Store records that a former owner may not have synced, same bytes, as the first ones of
        our first slice.
        """
        self._open_slice(tail, 0, len(tail))
        self._finish_parts(tail)
        # Nothing marks the channel as one that has something to sync: without this the next start
        # would copy it again.
        self.sync()
        self.park()

    def end_inherited(self) -> None:
        """Have the log end in a slice of ours if a former owner may have the newest one open: the
        last record moves.

        An original server goes on behind the last record of the newest slice, in the same file. A
        former owner that was paused within a write there would write over that when it wakes up.
        The record is left to the lower slice until that is made exact. Everything is synced. Raises
        ``OSError``, ``StoreError`` and ``FencedError``.
        """
        s = self.slices[-1] if self.slices else None
        if s is not None and s.number == self._inherited and self._active is None:
            self._move_last(s)

    def end_refused(self) -> None:
        """Do the same if a batch was refused since the last good one: a successor would take for
        messages what of it lies behind the last one.

        There is a message. Raises as ``end_inherited`` does.
        """
        if self.is_open_ended:
            self._move_last(self.slices[-1])

    def _move_last(self, s: Slice) -> None:
        """Move the last record of ``s``, the newest slice, into a slice of ours."""
        known = self.first, self.last, self.last_timestamp, self.count, self.size, self.look_again
        record = next(self.blocks(s, s.last))
        before = self._entry_before(s)
        try:
            self._open_slice(record, 0, 1)
            self._finish_parts(record)
            self._sync_all()
        except (OSError, StoreError):
            self.give_up_slice()
            if self.slices[-1] is not s:
                # The record counts once, where it was: counted twice, limits that pass it would
                # take a later message for gone.
                self.dead.add(self.slices.pop().number)
            raise
        finally:
            # A message has moved, and none has come: it may even be one that was purged.
            self.first, self.last, self.last_timestamp, self.count, self.size, self.look_again = (
                known
            )
        self._inherited = 0
        if before is None:
            self.slices.remove(s)
            self.dead.add(s.number)
            self.unsure.discard(s.number)
        else:
            if s.index is not None:
                s.index = s.index[: (s.entries - 1) * _ENTRY]
            s.entries -= 1
            s.last, offset, s.last_ts, size = before
            s.end = offset + 8 + size

    def _entry_before(self, s: Slice) -> tuple[int, int, int, int] | None:
        """The index entry before the last one of a slice; ``None`` if it has one only."""
        if s.entries == 1:
            return None
        if s.contiguous:
            return records.entry(self._entries_from(s, s.last - 1, 1)[0], 0)
        return records.entry(self.entries(s), s.entries - 2)

    # ---- writing
    # ----------------------------------------------------------------------------------------------

    @property
    def is_blank(self) -> bool:
        """Whether no slice counts, none is being filled and nothing ever was in the log."""
        return not self.slices and self._active is None and not self.last

    @property
    def highest(self) -> int:
        """The highest slice number that was ever seen here."""
        return max(self._seen, self._highest)

    @property
    def taken(self) -> int:
        """The slice number that new ones are above."""
        return self._highest

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
                pending = self._dat(active)
                self._env.disk.pwrite(pending, memoryview(block)[start:end], s.end)
                active.data_dirty = True
                self._parts.append((active, i, j, s.end))
                if self._env.owner.mixed and active.has_index:
                    # In the original's order: it takes records behind a short index for nothing,
                    # and would write its own behind them.
                    self._write_entries(active, block, i, j)
            if j == total:
                return pending
            # The rest goes to the next slice; this one must be durable and indexed before it is
            # left.
            if pending is not None:
                self._sync(pending)
            self._finish_parts(block)
            self._roll()
            i = j

    def finish(self) -> int | None:
        """The data is durable: write index entries, count the messages, apply the limits.

        Returns the index's descriptor if the options say that it must be synced before the ack.
        """
        block = self._staged
        if block is None:
            return None
        self._finish_parts(block)
        self._staged = None
        self.enforce(warn=True)
        return self.unsynced_index() if self._env.sync_index else None

    def fail(self) -> None:
        """A write or sync failed: forget what was staged and never touch that slice again."""
        self._staged = None
        self.is_open_ended = True
        self.give_up_slice()

    def give_up_slice(self) -> None:
        """Never touch the newest slice again; what is staged goes to another one.

        Raises ``FencedError``.
        """
        ahead = bool(self._parts) and self._env.owner.mixed
        self._parts = []
        if self._highest not in {s.number for s in self.slices}:
            # Whatever became visible under the newest number holds nothing that was acknowledged.
            self.dead.add(self._highest)
            self._note_refused(self._highest)
        if self._active is not None:
            # What failed is never synced again.
            self._active.data_dirty = False
            if self._active.index_dirty:
                self._leave_index(self._active, ahead=ahead)
            self._close_active()

    def _leave_index(self, active: _Active, *, ahead: bool) -> None:
        """See that what the index of a slice says is durable before the next number is opened, or
        is doubted.

        ``ahead``: it names data whose sync failed.
        """
        if not ahead and self._env.options.sync:
            with contextlib.suppress(OSError):
                self._env.disk.fdatasync(self._idx(active))
                active.index_dirty = False
                return
        self._doubt(active)

    def _doubt(self, active: _Active) -> None:
        """The index of a slice may never become durable as it is, and nothing is written to it any
        more.
        """
        self.unsure.add(active.slice.number)
        self._note_refused(active.slice.number)
        self._gap_behind = active.slice.number
        active.index_dirty = False

    def _note_refused(self, number: int) -> None:
        if number and self._env.owner.mixed:
            self._refused.add(number)

    @property
    def refused(self) -> set[int]:
        """Slices in which a batch that was refused in a mixed group may have left what an original
        server believes.
        """
        if self._refused:
            self._refused &= self.dead | self.unsure
        return self._refused

    def mended(self, number: int) -> None:
        """Nothing is left in that slice of what was refused."""
        self._refused.discard(number)

    @property
    def ends_ahead(self) -> bool:
        """Whether the index of the newest slice may name messages whose sync failed, and nothing
        seals them.
        """
        return bool(self.slices) and self.slices[-1].number in self.refused

    def lose_index(self) -> None:
        """The index of the present slice could not be synced: neither is used again, and its
        entries stay in memory.
        """
        active = self._active
        if active is None:
            return
        # It may read well, and a later sync succeed, with nothing on the disk: a clean stop must
        # not believe it.
        self._doubt(active)
        self._close_active()
        active.slice.index = self.index_from_data(active.slice)

    def _entries_from(self, s: Slice, sequence: int, most: int) -> tuple[bytes, int]:
        try:
            return super()._entries_from(s, sequence, most)
        except (DamageError, FileNotFoundError):
            if not self._made_anew(s):
                raise
        return super()._entries_from(s, sequence, most)

    def _read_slice(self, s: Slice, sequence: int, max_msgs: int, max_bytes: int) -> MsgBlock:
        try:
            return super()._read_slice(s, sequence, max_msgs, max_bytes)
        except DamageError:
            # An entry that is half lost may name a record that is none.
            if not self._made_anew(s):
                raise
        return super()._read_slice(s, sequence, max_msgs, max_bytes)

    def _made_anew(self, s: Slice) -> bool:
        """Have the entries of a slice in memory, made from its data: whether these hold all that it
        had.

        What a host that died had not synced of an index goes with a restart of its file server,
        below us who have read it; what it writes later then lies behind zeros. The records that the
        entries named were synced before them. And a former owner that stood still may remove the
        index of a batch that it had refused.
        """
        index = self.index_from_data(s) if s.index is None else b""
        if len(index) != s.entries * _ENTRY:
            return False
        log.warning(
            f'channel "{show(self.name)}": {idx_name(s.number)} has lost entries that it had; '
            "made anew from the data"
        )
        s.index = index
        self.unsure.add(s.number)
        active = self._active
        if active is not None and active.slice is s:
            # What is stored from now on would be missing in what is in memory, and the file lies.
            is_unsynced = active.data_dirty and not self._env.options.sync
            self._doubt(active)
            self._close_active()
            if is_unsynced:
                self._loose[s.number] = True
        return True

    def _is_full(self, active: _Active, timestamp: int) -> bool:
        s = active.slice
        return (
            (self._max_msgs > 0 and s.entries >= self._max_msgs)
            or (self._max_bytes > 0 and s.size >= self._max_bytes)
            or (self._max_age > 0 and timestamp - active.opened_ns >= self._max_age)
        )

    def _next_number(self) -> int:
        owner = self._env.owner
        gap = self._highest == self._gap_behind > 0
        floor = max(self._highest + gap, self._env.number_floor.get(self.name, 0))
        if floor >= self._env.highest_number:
            # Before an epoch is used for it: it is asked for again and again.
            raise StoreError(
                f'channel "{show(self.name)}": slice number {floor} leaves no room for epoch '
                "numbers",
                hint="run: ftstanctl store repair",
            )
        while floor >= owner.slice_base + NUMBERS_PER_EPOCH:
            # Our numbers are used up, or an original server wrote numbers above our range: only a
            # higher epoch ends it.
            owner.raise_epoch()
        return max(owner.slice_base, floor) + 1

    def _open_slice(self, block: MsgBlock, i: int, j: int) -> None:
        """Make a new slice visible with messages ``i`` to ``j - 1`` in it, durable, and index
        them.
        """
        disk = self._env.disk
        number = self._next_number()
        start, end = records.span(block, i, j)
        fd = self._publish_file(
            f"{TEMPORARY}{number}.dat",
            dat_name(number),
            records.VERSION + bytes(memoryview(block)[start:end]),
            durable=True,
        )
        s = Slice(number, block.sequence(i), 0, block.timestamp(i), 0, 0, records.VERSION_SIZE)
        # The name is durable from here on; a failure below leaves a slice that recovery reads
        # through its data.
        self._active = active = _Active(s, fd, block.timestamp(i))
        self._parts.append((active, i, j, records.VERSION_SIZE))
        disk.fsync(self.dirfd)
        self._names_loose = self._found_loose = False

    def take_number(self) -> int:
        """A number for a slice that is written elsewhere; it is not given out again.

        Raises ``StoreError``.
        """
        self._highest = self._next_number()
        return self._highest

    def end_slice(self) -> None:
        """Let go of the slice being written: the next batch opens a new one. Raises ``OSError``."""
        self._roll()

    def _publish_file(self, temporary: str, name: str, data: bytes, *, durable: bool) -> int:
        """Make a file with ``data`` visible.

        Returns its descriptor, -1 on a network file system: opened when needed.

        Raises ``OSError``, after which it may be visible all the same, and ``FencedError``.
        """
        disk = self._env.disk
        files = self._env.files
        try:
            fd = disk.open(self.dirfd, temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            # Ours, from an attempt after which not even this could be removed.
            disk.unlink(self.dirfd, temporary)
            fd = disk.open(self.dirfd, temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        files.opened(fd)
        try:
            disk.pwrite(fd, data, 0)
            if durable:
                # All that follows can fail without a loss: also a close, which on a network file
                # system may write.
                disk.fsync(fd)
            self._env.owner.confirm()
            # Taken from here on, even if what follows fails: the file may be visible all the same.
            self._highest = max(self._highest, int(name.split(".")[1]))
            try:
                disk.link(self.dirfd, temporary, name)
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                disk.rename(self.dirfd, temporary, name)
            else:
                if self._env.is_remembered:
                    # NFS gives a file that loses the name by which it is open another one,
                    # ".nfs...", until it is closed: for ever if this host dies before that. A local
                    # file system does not care, and there a descriptor that stays open saves an
                    # open and a confirm.
                    fd = self._close_one(fd)
                disk.unlink(self.dirfd, temporary)
        except FencedError:
            # The store is not ours: not even this temporary may be removed.
            self._close_one(fd)
            raise
        except BaseException:
            self._close_one(fd)
            # What cannot be removed now is a second link of a slice that counts for nothing; the
            # next start removes it.
            with contextlib.suppress(OSError):
                disk.unlink(self.dirfd, temporary)
            raise
        return fd

    def _close_one(self, fd: int) -> int:
        """Close a counted descriptor, if it is one; returns what stands for none."""
        if fd >= 0:
            self._env.files.close(fd)
        return -1

    def _dat(self, active: _Active) -> int:
        if active.dat < 0:
            active.dat = self._reopen(dat_name(active.slice.number))
        self._env.files.used((self.name, ""), self.park)
        return active.dat

    def _idx(self, active: _Active) -> int:
        if active.idx < 0:
            active.idx = self._reopen(idx_name(active.slice.number))
        return active.idx

    def _reopen(self, name: str) -> int:
        """Open a file of the active slice, which is closed: by ``park``, or since it got its
        name.
        """
        fd = self._env.files.opened(open_file(self._env.disk, self.dirfd, name, os.O_RDWR))
        try:
            # Opened by its path: only now is it known that it was ours.
            self._env.owner.confirm()
        except BaseException:
            self._env.files.close(fd)
            raise
        return fd

    def _sync(self, fd: int) -> None:
        if self._env.options.sync:
            self._env.disk.fdatasync(fd)

    def _finish_parts(self, block: MsgBlock) -> None:
        """Index and count what is durable."""
        for active, i, j, offset in self._parts:
            s = active.slice
            if active.has_index:
                self._write_entries(active, block, i, j)
            else:
                entries = records.index_entries(block, i, j, offset, self._env.crc)
                # On a network file system it is closed at once, which writes it, and what fails
                # there is not heard of.
                durable = self._env.sync_index or self._env.is_remembered
                active.idx = self._publish_file(
                    f"{TEMPORARY}{s.number}.idx",
                    idx_name(s.number),
                    records.VERSION + entries,
                    durable=durable,
                )
                active.has_index = True
                active.index_dirty = not durable
                if self._env.sync_index:
                    self._env.disk.fsync(self.dirfd)
                else:
                    self._names_loose = True
            start, end = records.span(block, i, j)
            if s.entries and block.sequence(i) != s.last + 1:
                s.contiguous = False
            if block.sequence(j - 1) - block.sequence(i) != j - 1 - i:
                s.contiguous = False
            s.last = block.sequence(j - 1)
            s.last_ts = block.timestamp(j - 1)
            if not self.slices or self.slices[-1] is not s:
                self.slices.append(s)
                # It ends all that lies behind the others.
                self.is_open_ended = False
            if self.count == 0:
                self.first = block.sequence(i)
                self.look_again = 0
            s.entries += j - i
            s.end = offset + end - start
            self.count += j - i
            self.size += end - start + 32 * (j - i)
            self.last = s.last
            self.last_timestamp = s.last_ts
        self._parts = []

    def _write_entries(self, active: _Active, block: MsgBlock, i: int, j: int) -> None:
        s = active.slice
        entries = records.index_entries(block, i, j, s.end, self._env.crc)
        try:
            self._env.disk.pwrite(
                self._idx(active), entries, records.VERSION_SIZE + _ENTRY * s.entries
            )
        except OSError:
            self._doubt(active)
            raise
        active.index_dirty = True

    def _roll(self) -> None:
        active = self._active
        if active is None:
            return
        if self._env.options.sync:
            try:
                self._sync_active(active)
            except OSError:
                self.lose_index()
                raise
        self._close_active()

    def _sync_active(self, active: _Active) -> None:
        """Data before its index, else an entry could outlive its record."""
        if active.data_dirty and not self._env.options.sync:
            self._env.disk.fdatasync(self._dat(active))
        active.data_dirty = False
        if active.index_dirty:
            self._env.disk.fdatasync(self._idx(active))
            active.index_dirty = False

    def _close_active(self) -> None:
        active = self._active
        self._active = None
        assert active is not None
        if active.index_dirty:
            self._loose[active.slice.number] = active.data_dirty and not self._env.options.sync
        self._close_files(active)

    def _close_files(self, active: _Active) -> None:
        fds = (active.dat, active.idx)
        active.dat = active.idx = -1
        for fd in fds:
            self._close_one(fd)

    def remove(
        self, numbers: list[int], archive: Callable[[bytes, int], None] | None = None
    ) -> None:
        """As ``RetainedSlices`` does.

        Lower slices that a former owner has removed, and died before it synced that, come first.
        """
        if self._found_loose:
            self._sync_names()
        super().remove(numbers, archive)

    def let_go(self, number: int) -> None:
        """Close the files of a slice whose names are about to go."""
        super().let_go(number)
        if self._active is not None and self._active.slice.number == number:
            self._close_files(self._active)

    def park(self) -> None:
        """Close everything; it is opened again when it is needed."""
        if self._active is not None:
            self._close_files(self._active)
        super().park()

    def unsynced_index(self) -> int | None:
        """The descriptor of the index if it has entries that may not be durable.

        ``index_synced`` comes next.
        """
        active = self._active
        return self._idx(active) if active is not None and active.index_dirty else None

    def index_synced(self) -> None:
        """The descriptor that ``unsynced_index`` named has been synced."""
        if self._active is not None:
            self._active.index_dirty = False

    def sync(self) -> None:
        """Make everything that was written durable, data first: at a clean stop, and where batches
        are not synced.
        """
        try:
            self._sync_all()
        except OSError:
            # What is tried again may succeed because the kernel has forgotten what it could not
            # write.
            self.unsure.update(self._loose)
            if self._active is not None and self._active.index_dirty:
                self.unsure.add(self._active.slice.number)
                self._gap_behind = self._active.slice.number
            raise

    def sync_one(self) -> bool:
        """Do a part of ``sync``: one of the closed slices; returns whether there was any.

        Raises ``OSError``.
        """
        number = next(iter(self._loose), None)
        if number is None:
            return False
        try:
            self._sync_loose(number)
        except OSError:
            self.unsure.add(number)
            raise
        return True

    def _sync_loose(self, number: int) -> None:
        for name in (
            (dat_name(number), idx_name(number)) if self._loose[number] else (idx_name(number),)
        ):
            self._sync_closed(name)
        del self._loose[number]

    def _sync_all(self) -> None:
        for number in sorted(self._loose):
            self._sync_loose(number)
        if self._active is not None:
            self._sync_active(self._active)
        self._sync_names()

    def _sync_names(self) -> None:
        if self._names_loose:
            self._env.disk.fsync(self.dirfd)
            self._names_loose = self._found_loose = False

    def _sync_closed(self, name: str) -> None:
        try:
            fd = open_file(self._env.disk, self.dirfd, name)
        except FileNotFoundError:
            # The limits have removed it since.
            return
        try:
            self._env.disk.fdatasync(fd)
        finally:
            self._env.disk.close(fd)

    def _readable(self, s: Slice, name: str) -> int:
        active = self._active
        if active is None or active.slice is not s:
            return super()._readable(s, name)
        return self._dat(active) if name.endswith(".dat") else self._idx(active)


def _slice_limits(env: FileEnv, limits: ChannelLimits) -> tuple[int, int, int]:
    """Effective (messages, bytes, age) of a slice: as configured, else a quarter of the channel's
    limits.
    """
    o = env.options
    if o.slice_max_msgs or o.slice_max_bytes or o.slice_max_age:
        return o.slice_max_msgs, o.slice_max_bytes, o.slice_max_age
    return (
        max(limits.max_msgs // 4, 1) if limits.max_msgs else 0,
        max(limits.max_bytes // 4, 1) if limits.max_bytes else 0,
        max(limits.max_age // 4, 1_000_000_000) if limits.max_age else 0,
    )
