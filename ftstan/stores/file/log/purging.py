"""Purging: messages that an operator removes from the front of a channel, although the format
cannot say so.

First a mark (``purge_mark.py``) makes it true for every start of ours: durable before anybody is
told.
Then the files follow: slices that hold nothing else are removed in order, as for the limits; of the
newest slice, which remembers the last sequence, what is kept is copied to a new one, its newest
record at least; an older slice that begins with purged records is put into its place again without
them. What an original server then finds is what is left, and one message, the newest, where nothing
is. Nothing acknowledged after the mark depends on any of it, and each step can be repeated.

Must never lower the last sequence, and never touch a slice before the mark is durable
(``docs/store.md``, purging).
"""

from __future__ import annotations

import contextlib
from itertools import chain
from typing import TYPE_CHECKING

from ftstan.base.errors import DamageError, FtstanError, StoreError, StoreFullError
from ftstan.stores.file.env import is_full
from ftstan.stores.file.log import exact, purge_mark, records
from ftstan.stores.file.log.view import Slice, dat_name, idx_name, show
from ftstan.stores.file.recovery import opening
from ftstan.stores.file.state import confirmed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ftstan.stores.file.env import FileEnv
    from ftstan.stores.file.log.slices import SliceLog
    from ftstan.stores.file.state.confirmed import ConfirmedFile
    from ftstan.wire.block import MsgBlock


def purge(env: FileEnv, slog: SliceLog, file: ConfirmedFile, sequence: int) -> None:
    """Drop the messages up to ``sequence`` for good, durable on return; nothing may be staged.

    In a mixed group the files follow at once: an original server may take over at any moment. Else
    slices are removed by and by, and those that are only a part of what was purged are written
    again at a clean stop. Raises ``StoreError``: some of them may be gone, and all of them with the
    next start; and ``FencedError``.
    """
    channel = show(slog.name)
    if slog.staged:
        raise StoreError(
            f'channel "{channel}" is in use', hint="try again when its batch has been committed"
        )
    sequence = max(min(sequence, slog.last), slog.purged)
    if not sequence:
        return
    try:
        try:
            _mark(env, slog, sequence)
        except OSError as error:
            if not is_full(error) or not _free(env, slog, sequence):
                raise
            _mark(env, slog, sequence)
    except OSError as error:
        kind = StoreFullError if is_full(error) else StoreError
        hint = (
            "ftstanctl channel info shows what is left; free space or fix the storage, then "
            "purge again"
        )
        raise kind(
            f'channel "{channel}" cannot be purged: {error.strerror or error}', hint=hint
        ) from error
    if env.owner.mixed:
        tidy(env, slog, file)
    elif not slog.count:
        # One record is copied: what was purged is then gone from the disk within seconds.
        _try(slog, lambda: _shrink(env, slog, file))


def _mark(env: FileEnv, slog: SliceLog, sequence: int) -> None:
    newest = max([env.clock.wall_ns(), *(max(s.first_ts, s.last_ts) for s in slog.slices)])
    # Also if there is one that says so: its writer may have died before it was durable.
    purge_mark.write(env, slog.dirfd, purge_mark.Mark(sequence, newest))
    slog.purged = sequence
    slog.drop_through(sequence)


def _free(env: FileEnv, slog: SliceLog, sequence: int) -> bool:
    """Remove whole slices up to ``sequence``, for a disk that is too full for the mark.

    Whether there were any.

    The newest slice stays.
    """
    last = max((s.last for s in slog.slices[:-1] if s.last <= sequence), default=0)
    slog.drop_through(last)
    return _remove(env, slog, last)


def tidy(env: FileEnv, slog: SliceLog, file: ConfirmedFile) -> bool:
    """Leave in the files of what was purged only the newest record, and that only if nothing else
    is left.

    Everything is synced. What storage refuses is logged; what was purged stays hidden from our
    starts all the same. Returns whether nothing was refused. Raises ``FencedError``.
    """
    return not slog.purged or _try(slog, lambda: _tidy(env, slog, file))


def is_tidy(slog: SliceLog) -> bool:
    """Whether the files hold nothing of what was purged but the record that remembers the last
    sequence.
    """
    if not slog.purged or not slog.slices:
        return True
    s = slog.slices[0]
    return s.first > slog.purged or s.first == slog.last


def _tidy(env: FileEnv, slog: SliceLog, file: ConfirmedFile) -> None:
    # A reader beside us stops at the slice that this names: it must not be one that goes.
    confirmed.write_all(env, opening.news(env, [(file, slog)]))
    # Lower ones first: an original server that comes now finds no hole behind them.
    _remove(env, slog, slog.purged)
    _shrink(env, slog, file)
    _remove(env, slog, slog.purged)
    # The mark stays, whether or not it still hides something: a late removal of it could hit that
    # of a successor.


def _try(slog: SliceLog, work: Callable[[], None]) -> bool:
    try:
        work()
    except (OSError, DamageError, StoreError) as error:
        slog.give_up_slice()
        why = error.text if isinstance(error, FtstanError) else error.strerror or str(error)
        exact.report(f'channel "{show(slog.name)}": what was purged', why)
        return False
    return True


def _shrink(env: FileEnv, slog: SliceLog, file: ConfirmedFile) -> None:
    """Write the slice that holds the first kept record, or the newest one, again without what was
    purged before it.
    """
    if not slog.slices:
        return
    s = next((s for s in slog.slices if s.last > slog.purged), slog.slices[-1])
    start = min(slog.purged + 1, s.last)
    if s.first >= start:
        return
    if s is slog.slices[-1]:
        _carry_over(env, slog, file, s, start)
    else:
        _put_again(env, slog, s, start)


def _remove(env: FileEnv, slog: SliceLog, sequence: int) -> bool:
    """Remove the slices that end at or below ``sequence``, and dead ones between them.

    Whether there were any.
    """
    last = {s.number: s.last for s in slog.slices}
    numbers = []
    for number in slog.removable():
        if last.get(number, 0) > sequence:
            break
        numbers.append(number)
    if numbers:
        env.files.trim(4)
        slog.remove(numbers)
    return bool(numbers)


def _carry_over(env: FileEnv, slog: SliceLog, file: ConfirmedFile, s: Slice, start: int) -> None:
    """Copy the end of the newest slice, same bytes, to a new one, which ends the old one by its
    first record.
    """
    slog.end_slice()
    copy = _Copy(env, slog, s, start, slog.take_number())
    copy.put_data()
    copy.put_index()
    slog.dead.update(x.number for x in slog.slices)
    slog.unsure.difference_update(slog.dead)
    slog.slices = [copy.made]
    # Before a slice goes that it names: durable, since the removal is.
    file.replace(slog.dirfd, opening.truth(env, slog))


def _put_again(env: FileEnv, slog: SliceLog, s: Slice, start: int) -> None:
    """Put a slice into its place without the records before ``start``.

    Its index goes first: none is read around by everybody, one with the old offsets is not.
    """
    copy = _Copy(env, slog, s, start, s.number)
    if s.index is None:
        s.index = slog.entries(s)
    slog.let_go(s.number)
    env.owner.confirm()
    with contextlib.suppress(FileNotFoundError):
        env.disk.unlink(slog.dirfd, idx_name(s.number))
    env.disk.fsync(slog.dirfd)
    try:
        copy.put_data()
    except OSError:
        # It may have failed behind its rename: what is read from here on is what is there.
        if env.size_of(slog.dirfd, dat_name(s.number)) == copy.made.end:
            copy.take_place(s)
        raise
    copy.take_place(s)
    copy.put_index()
    s.index = None


class _Copy:
    """The records of a slice from one sequence on, in a slice of their own."""

    def __init__(self, env: FileEnv, slog: SliceLog, s: Slice, start: int, number: int) -> None:
        self._env = env
        self._slog = slog
        self._source = s
        self._start = start
        self._index = bytearray(records.VERSION)
        self.made = Slice(number, 0, s.last, 0, s.last_ts, 0, records.VERSION_SIZE, s.contiguous)

    def put_data(self) -> None:
        """Make the data visible, durable before."""
        made = self.made
        blocks = self._slog.blocks(self._source, self._start)
        # Read before the directory is asked for: what is read is open from here on, so nothing is
        # closed for it.
        block = next(blocks)
        made.first = block.first
        made.first_ts = block.timestamp(0)
        name = dat_name(made.number)
        exact.put_file(
            self._env, self._slog.dirfd, name, lambda fd: self._fill(fd, chain([block], blocks))
        )

    def _fill(self, fd: int, blocks: Iterable[MsgBlock]) -> None:
        env = self._env
        made = self.made
        env.disk.pwrite(fd, records.VERSION, 0)
        for block in blocks:
            made.entries += len(block)
            made.end = exact.append_block(env, fd, self._index, block, made.end)
        # Read to its end: nothing is open of what this may take the place of.
        self._slog.let_go(self._source.number)

    def put_index(self) -> None:
        """Make the index visible, after the data."""
        disk = self._env.disk
        index = self._index
        name = idx_name(self.made.number)
        exact.put_file(self._env, self._slog.dirfd, name, lambda fd: disk.pwrite(fd, index, 0))
        self._slog.unsure.discard(self.made.number)

    def take_place(self, s: Slice) -> None:
        """The data stand in the place of those of ``s``; its index is kept in memory."""
        made = self.made
        self._slog.let_go(s.number)
        s.first = made.first
        s.first_ts = made.first_ts
        s.entries = made.entries
        s.end = made.end
        s.index = bytes(self._index[records.VERSION_SIZE :])
