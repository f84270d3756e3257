"""Going back to what was synced, for a store whose owner brings everything behind that again.

Such an owner (a node of a cluster) syncs nothing with its batches: it keeps account of a position
in a log elsewhere, behind ``sync_all``, and after a crash reads the log from there. So what lies
behind the last ``sync_all`` is worth nothing at a start, and after a power cut it may be anything:
slices without those before them, pages of zeros, an index ahead of its messages. It is taken away
before anybody looks at it, and nothing of it counts as damage or holds a sequence.

The way back stands in ``confirmed.bin``, durable and marked as one of such an owner; without the
mark nothing is touched. Files are cut in place, as nowhere else: the datastore of a node is its
own, and a former owner that stands still holds the lock.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from ftstan.base.log import stream as log
from ftstan.stores.file.log import records
from ftstan.stores.file.log.view import dat_name, idx_name, show
from ftstan.stores.file.recovery.measure import index_numbers, read_entries, slice_numbers
from ftstan.stores.file.regular import IrregularError, open_file
from ftstan.stores.file.state.confirmed import NAME, Confirmed, read_confirmed

if TYPE_CHECKING:
    from ftstan.stores.file.env import FileEnv


def roll_back(env: FileEnv, channel: bytes, dirfd: int) -> None:
    """Take away what lies behind the last ``sync_all``. Raises ``OSError`` and ``FencedError``."""
    try:
        end = read_confirmed(env.fresh, dirfd)
    except IrregularError:
        # Damage, which is somebody else's to tell.
        return
    if end is None and env.options.replayed_before and not env.is_there(dirfd, NAME):
        # One that is there and says nothing was damaged since: it was durable before it was
        # visible, and the channel may have been synced.
        end = Confirmed(0, env.owner.ours_from - 1, 0, 0, 0, replayed=True)
    if end is None or not end.replayed:
        return
    try:
        _cut(env, channel, dirfd, end)
    except IrregularError:
        return


def _cut(env: FileEnv, channel: bytes, dirfd: int, end: Confirmed) -> None:
    names = env.disk.listdir(dirfd)
    numbers = {*slice_numbers(names)[0], *index_numbers(names)}
    behind = sorted(number for number in numbers if number > end.slice_number)
    size, index_size = _sizes(env, dirfd, end)
    is_long = size > end.valid_length > 0
    if not (behind or is_long or index_size):
        return
    # Listed and read, then confirmed: so none of it is a successor's.
    env.owner.confirm()
    # The newest first: a crash in between must leave no hole.
    for number in reversed(behind):
        for name in (idx_name(number), dat_name(number)):
            with contextlib.suppress(FileNotFoundError):
                env.disk.unlink(dirfd, name)
    if index_size:
        _truncate(env, dirfd, idx_name(end.slice_number), index_size)
    if is_long:
        _truncate(env, dirfd, dat_name(end.slice_number), end.valid_length)
    env.disk.fsync(dirfd)
    log.info(
        f'channel "{show(channel)}": goes on behind message {end.sequence}: what came later was '
        "not synced, and comes again"
    )


def _sizes(env: FileEnv, dirfd: int, end: Confirmed) -> tuple[int, int]:
    """Bytes of the last slice, and to how many its index is to be cut (0: not at all)."""
    try:
        size = env.size_of(dirfd, dat_name(end.slice_number))
        index = read_entries(env, dirfd, idx_name(end.slice_number))
    except FileNotFoundError:
        return 0, 0
    kept = last = 0
    while kept < len(index) // records.INDEX_SIZE:
        sequence = records.entry(index, kept)[0]
        if not last < sequence <= end.sequence:
            break
        last = sequence
        kept += 1
    size_of_kept = kept * records.INDEX_SIZE
    return size, records.VERSION_SIZE + size_of_kept if size_of_kept < len(index) else 0


def _truncate(env: FileEnv, dirfd: int, name: str, size: int) -> None:
    fd = open_file(env.disk, dirfd, name, os.O_RDWR)
    try:
        env.disk.ftruncate(fd, size)
        env.disk.fsync(fd)
    finally:
        env.disk.close(fd)
