"""Exact files: what an original server must find after a clean stop (``docs/compat/filestore.md``,
invariants).

Our own start reads around a former owner's bytes behind a seal, a short index, a torn end; the
original's does not. So before a store is left on purpose, every slice is cut behind its last
message that counts, every index names exactly the messages of its slice, slices none of whose
messages counts are removed, and state files end with a whole record.

Each change comes after a confirm, and a crash between any two leaves a store that our start reads
as before: the data is synced, then its index is replaced, and only then are the bytes behind both
cut. Damage is never touched here: a file that does not show what the store knows of it is left
alone and reported.
"""

from __future__ import annotations

import contextlib
import os
import re
from bisect import bisect_left
from typing import TYPE_CHECKING

from ftstan.base.errors import DamageError, FencedError, StoreError
from ftstan.base.log import stream as log
from ftstan.stores.file.env import FOREIGN
from ftstan.stores.file.log import records
from ftstan.stores.file.log.slices import Slice, SliceLog, dat_name, idx_name, show
from ftstan.stores.file.regular import open_file, sync_file
from ftstan.stores.file.state import subreplay
from ftstan.stores.file.state.statefile import (
    check_version,
    is_unfilled,
    read_file,
    replace_file,
)
from ftstan.wire.subjects import valid_channel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ftstan.stores.file.env import FileEnv
    from ftstan.wire.block import MsgBlock

_IDX = re.compile(r"msgs\.([1-9][0-9]{0,17})\.idx\Z")
_ENTRY = records.INDEX_SIZE


def make_channel_exact(env: FileEnv, slog: SliceLog, *, state_durable: bool = False) -> bool:
    """Make the files of one channel exact.

    The channel's directory is open and everything of it is synced.

    ``state_durable``: so is what a former owner left in ``subs.dat``.

    What storage refuses is logged, and left as it was: nothing that was acknowledged depends on it.
    Returns whether nothing was refused. Raises ``FencedError``.
    """
    done = make_slices_exact(env, slog)
    try:
        make_state_exact(env, slog.dirfd, "subs.dat", durable=state_durable)
    except OSError as error:
        report(f'channel "{show(slog.name)}"', error.strerror or str(error))
        return False
    return done


def make_slices_exact(env: FileEnv, slog: SliceLog) -> bool:
    """The same for the slices alone. Raises ``FencedError``."""
    return all(slice_steps(env, slog))


def slice_steps(env: FileEnv, slog: SliceLog) -> Iterator[bool]:
    """The same one file at a time, between which the channel may be served.

    False, at last, if storage refuses.

    Raises ``FencedError``.
    """
    try:
        slog.end_inherited()
        for s in list(slog.slices):
            # It may have gone since the step before.
            if _is_among(slog.slices, s):
                _cut(env, slog, s)
                yield True
        live = {s.number for s in slog.slices}
        names = {name for name, is_dir in env.disk.listdir(slog.dirfd) if not is_dir}
        orphans = {int(m[1]) for name in names if (m := _IDX.match(name))} - live
        for number in sorted((slog.dead - live) | {n for n in orphans if dat_name(n) not in names}):
            slog.let_go(number)
            _remove(env, slog.dirfd, number)
            slog.dead.discard(number)
            yield True
    except OSError as error:
        report(f'channel "{show(slog.name)}"', error.strerror or str(error))
        yield False
    except StoreError as error:
        report(f'channel "{show(slog.name)}"', error.text)
        yield False


def end_refused(env: FileEnv, slog: SliceLog) -> None:
    """See that no later start takes for messages what refused batches left behind the last one.

    Everything is durable on return. Raises ``OSError``, ``StoreError`` and ``FencedError``.
    """
    if slog.slices:
        slog.end_refused()
    elif slog.is_open_ended:
        for number in sorted(slog.dead):
            # There is no message that could end them. The index first: what it names and is not
            # there would be damage.
            put_file(env, slog.dirfd, idx_name(number), empty)
            put_file(
                env,
                slog.dirfd,
                dat_name(number),
                lambda fd: env.disk.pwrite(fd, records.VERSION, 0),
            )
        slog.is_open_ended = False


def mend(env: FileEnv, slog: SliceLog) -> None:
    """Take away what refused batches have left in a channel, where an original server would believe
    it.

    Of a slice that counts that is the index alone: nobody believes the bytes behind it, and a disk
    that refuses to sync them must not end the channel. Raises ``OSError``, ``DamageError`` and
    ``FencedError``; what is left is still in ``slog.refused``.
    """
    live = {s.number: s for s in slog.slices}
    for number in sorted(slog.refused):
        if number in live:
            _put_index(env, slog, live[number])
        else:
            slog.let_go(number)
            _remove(env, slog.dirfd, number)
            slog.dead.discard(number)
            slog.unsure.discard(number)
        slog.mended(number)


def _put_index(env: FileEnv, slog: SliceLog, s: Slice) -> None:
    """Put an index that names exactly the messages that count in the place of one that may name
    more.
    """
    index = _index_of(env, slog, s)
    if index is None:
        return
    if len(index) != s.entries * _ENTRY:
        raise DamageError(
            f'channel "{show(slog.name)}" slice {dat_name(s.number)}: it does not hold the '
            "messages that it had",
            hint=f"run: ftstanctl store verify --channel {show(slog.name)}",
        )
    if not env.options.sync:
        sync_file(env.disk, slog.dirfd, dat_name(s.number))
    slog.let_go(s.number)
    whole = records.VERSION + index
    put_file(env, slog.dirfd, idx_name(s.number), lambda fd: env.disk.pwrite(fd, whole, 0))


def _is_among(slices: list[Slice], s: Slice) -> bool:
    at = bisect_left(slices, s.number, key=_number)
    if at < len(slices) and slices[at] is s:
        return True
    # An original's may be numbered in another order than their messages.
    return any(other is s for other in slices)


def _number(s: Slice) -> int:
    return s.number


def make_root_exact(env: FileEnv, known: Iterable[bytes]) -> None:
    """Make ``clients.dat`` exact, and remove the empty directories of channels that were never
    finished.

    ``known`` are the channels of the store. The original takes every directory for a channel.
    Raises ``FencedError``.
    """
    disk = env.disk
    try:
        make_state_exact(env, env.root, "clients.dat")
        channels = set(known)
        removed = False
        for name, is_dir in disk.listdir(env.root):
            encoded = os.fsencode(name)
            if not is_dir or name == FOREIGN or encoded in channels or not valid_channel(encoded):
                continue
            env.owner.confirm()
            with contextlib.suppress(OSError):
                # Refused unless empty, and for a mount point.
                disk.rmdir(env.root, name)
                removed = True
        if removed:
            disk.fsync(env.root)
    except OSError as error:
        report("the datastore's root", error.strerror or str(error))


def make_state_exact(env: FileEnv, dirfd: int, name: str, *, durable: bool = False) -> None:
    """Replace a state file that is missing, or does not end with a whole record, by its whole
    records.

    ``durable``: there is no need to sync it where it is whole.
    """
    data = read_file(env, dirfd, name)
    if data is None or is_unfilled(data):
        whole = records.VERSION
    elif check_version(data):
        return
    else:
        end, why = _last_whole(env, name, data)
        if not why or why.startswith("bad"):
            if durable:
                return
            if not env.is_remembered:
                # Whole, but perhaps in the page cache only: a killed owner's last records, not
                # written since.
                sync_file(env.disk, dirfd, name)
                return
            # Or in the file server's memory, and a sync commits only what this host sent: so it
            # sends all of it.
            end = len(data)
        whole = data[:end]
    env.disk.close(replace_file(env, dirfd, name, whole))


def _last_whole(env: FileEnv, name: str, data: bytes) -> tuple[int, str]:
    """Where the whole records of a state file end, and what follows them."""
    if name == "subs.dat":
        # Without an object for each of what may be millions of records.
        return subreplay.SubReplay(env.crc, env.options.check_crc).feed(data, records.VERSION_SIZE)
    _, end, why = records.scan_typed(data[records.VERSION_SIZE :], env.crc, env.options.check_crc)
    return records.VERSION_SIZE + end, why


def empty(_fd: int) -> None:
    """Leave a file empty: for ``put_file``."""


def put_file(env: FileEnv, dirfd: int, name: str, fill: Callable[[int], None]) -> None:
    """Put a new file, filled by ``fill(descriptor)`` and durable, in the place of a slice's file
    ``name``.

    Owner and permissions of the file that was there are kept. Raises ``OSError`` and
    ``FencedError``.
    """
    disk = env.disk
    temporary = env.temporary(name)
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(dirfd, temporary)
    fd = disk.open(dirfd, temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        with contextlib.suppress(FileNotFoundError):
            old = disk.stat(dirfd, name)
            if disk.fstat(fd).mode != old.mode:
                disk.fchmod(fd, old.mode)
            with contextlib.suppress(PermissionError):
                disk.fchown(fd, old.uid, old.gid)
        fill(fd)
        disk.fsync(fd)
        env.owner.confirm()
        disk.rename(dirfd, temporary, name)
        disk.fsync(dirfd)
    except BaseException as error:
        with contextlib.suppress(OSError):
            disk.close(fd)
        if not isinstance(error, FencedError):
            # Else the store is not ours, and not even this temporary may be removed.
            with contextlib.suppress(OSError):
                disk.unlink(dirfd, temporary)
        raise
    with contextlib.suppress(OSError):
        disk.close(fd)


def append_block(env: FileEnv, fd: int, index: bytearray, block: MsgBlock, end: int) -> int:
    """Write the records of a block at offset ``end`` and their entries to ``index``.

    Returns the new end.
    """
    start, stop = records.span(block, 0, len(block))
    with memoryview(block) as view:
        env.disk.pwrite(fd, view[start:stop], end)
    index += records.index_entries(block, 0, len(block), end, env.crc)
    return end + stop - start


def _cut(env: FileEnv, slog: SliceLog, s: Slice) -> None:
    """Leave in the files of a slice the messages that count, and nothing else."""
    disk = env.disk
    dirfd = slog.dirfd
    size = env.size_of(dirfd, dat_name(s.number))
    index = _index_of(env, slog, s)
    if index is None and size == s.end:
        return
    if size < s.end:
        log.error(
            f'channel "{show(slog.name)}" slice {dat_name(s.number)}: {s.end - size} bytes are '
            "missing at its end; "
            "left as it is, run: ftstanctl store verify"
        )
        return
    if index is None:
        # Bytes are cut, so the index is replaced, too: a former owner's entry that names them may
        # still be on its way, and would make damage of what nobody was told.
        wanted = records.VERSION_SIZE + s.entries * _ENTRY
        index = (read_file(env, dirfd, idx_name(s.number)) or b"")[records.VERSION_SIZE : wanted]
    fd = open_file(disk, dirfd, dat_name(s.number), os.O_RDWR)
    try:
        # Opened by path and confirmed after that: so this is our file, not a successor's.
        env.owner.confirm()
        # Until all of it is done: what fails half-way may look finished at the next attempt, and
        # not be durable.
        slog.unsure.add(s.number)
        disk.fsync(fd)
        whole = records.VERSION + index
        slog.let_go(s.number)
        put_file(env, dirfd, idx_name(s.number), lambda new: disk.pwrite(new, whole, 0))
        if size > s.end:
            env.owner.confirm()
            disk.ftruncate(fd, s.end)
            disk.fsync(fd)
        slog.unsure.discard(s.number)
    finally:
        disk.close(fd)


def _index_of(env: FileEnv, slog: SliceLog, s: Slice) -> bytes | None:
    """The entries that the index file must hold, ``None`` if it holds exactly those."""
    wanted = records.VERSION_SIZE + s.entries * _ENTRY
    unsure = s.number in slog.unsure
    if s.index is not None:
        index = s.index[: s.entries * _ENTRY]
        same = (
            not unsure and read_file(env, slog.dirfd, idx_name(s.number)) == records.VERSION + index
        )
        return None if same else index
    try:
        size = env.size_of(slog.dirfd, idx_name(s.number))
    except FileNotFoundError:
        size = 0
    if size == wanted and not unsure:
        return None
    if size > wanted and not unsure:
        data = read_file(env, slog.dirfd, idx_name(s.number)) or b""
        return data[records.VERSION_SIZE : wanted]
    if size >= wanted:
        data = (read_file(env, slog.dirfd, idx_name(s.number)) or b"")[
            records.VERSION_SIZE : wanted
        ]
        scan = records.scan_index(data, env.crc)
        if (scan.first, scan.last, scan.count, scan.end) == (s.first, s.last, s.entries, s.end):
            return data
    # Its own was lost after the slice had been measured: the data has everything.
    data = read_file(env, slog.dirfd, dat_name(s.number)) or b""
    block, _, _ = records.scan_data(
        data[records.VERSION_SIZE : s.end], slog.name, s.first - 1, env.crc, env.options.check_crc
    )
    return records.index_entries(block, 0, len(block), records.VERSION_SIZE, env.crc)


def _remove(env: FileEnv, dirfd: int, number: int) -> None:
    # A successor believes data with an index, and copies what has none: so the data go behind a
    # confirm of their own.
    for name in (idx_name(number), dat_name(number)):
        env.owner.confirm()
        with contextlib.suppress(FileNotFoundError):
            env.disk.unlink(dirfd, name)
        env.disk.fsync(dirfd)


def report(what: str, why: str) -> None:
    """Say that storage refused, and what to do before an original server follows."""
    log.warning(
        f"{what}: could not be made ready for an original server: {why}; "
        "before one follows, run: ftstanctl store handover"
    )
