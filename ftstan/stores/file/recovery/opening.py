"""Opening the channels of a datastore after it has become ours: read in several threads, settled in
one.

Reading a channel unlinks the temporaries of former owners, takes back what is replayed, and changes
nothing else. Settling cuts,
copies and writes ``confirmed.bin``; it happens in the order of the names, on the thread that owns
the store.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ftstan.base.errors import RecoveryError
from ftstan.base.log import stream as log
from ftstan.base.reserved import ROOT_FILES
from ftstan.stores.file.env import FOREIGN
from ftstan.stores.file.log import moved_mark, purge_mark, records
from ftstan.stores.file.log.view import show
from ftstan.stores.file.recovery import damage, judging, quarantine
from ftstan.stores.file.recovery.measure import Measured, holds_channel, measure
from ftstan.stores.file.regular import IrregularError
from ftstan.stores.file.state import checkpoint, state_recovery
from ftstan.stores.file.state.confirmed import Confirmed, ConfirmedFile, epoch_of, read_confirmed
from ftstan.wire.subjects import valid_channel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ftstan.stores.file.env import FileEnv
    from ftstan.stores.file.log.slices import SliceLog
    from ftstan.stores.file.state.checkpoint import Checkpoint, Entry
    from ftstan.stores.file.state.state_recovery import Subs
    from ftstan.stores.file.state.statefile import Seen

T = TypeVar("T")
R = TypeVar("R")

#: Channels read at the same time, whatever the machine has; more only fill the memory.
_MOST_THREADS = 8
_CHUNK = 64
#: Seconds for each channel read so far, above which the others are read side by side.
_LONG_S = 0.002


@dataclass(frozen=True, slots=True)
class Reading:
    """What lies in one channel's directory.

    ``entry``: the checkpoint says it all, and nothing else was read.

    ``mark``: what of it was purged. ``mover``: who may still publish to a channel that has moved,
    ``None`` for one that has not.
    """

    measured: Measured
    subs: Subs
    mark: purge_mark.Mark | None = None
    entry: Entry | None = None
    mover: bytes | None = None


def channel_names(env: FileEnv) -> list[bytes]:
    """Directories of the root that may be channels, in the order of their names.

    Says which are not.
    """
    names = []
    for name, is_dir in sorted(env.disk.listdir(env.root)):
        encoded = os.fsencode(name)
        if not is_dir:
            continue
        if valid_channel(encoded):
            names.append(encoded)
        else:
            log.warning(f'directory "{name}" in the datastore is not a channel name: skipped')
    return names


def read_channel(
    env: FileEnv, slog: SliceLog, known: Checkpoint, seen: Seen | None = None
) -> Reading | None:
    """Read one channel; ``None`` if the directory holds no channel. ``OSError`` passes through.

    ``known``: what the last clean stop left. ``seen``: how far its ``subs.dat`` had come, if it is
    opened later.
    """
    disk = env.disk
    try:
        dirfd = slog.dirfd
    except PermissionError:
        if os.fsdecode(slog.name) != FOREIGN:
            raise
        log.warning(
            f'directory "{show(slog.name)}" in the datastore is the file system\'s own: skipped'
        )
        return None
    except FileNotFoundError:
        # It was listed. A former owner's late rmdir takes an empty one, which holds no channel; but
        # a name alone may be answered from this host's memory, so the root is listed once more.
        if env.is_there(env.root, os.fsdecode(slog.name)):
            raise
        return None
    # Unlink, then list: a former owner's late link finds no source, so what is not listed now never
    # will be.
    judging.remove_temporaries(env, dirfd)
    if env.options.replayed and env.options.rolls_back:
        # Late: nodes of clusters alone need it.
        from ftstan.stores.file.recovery.rolling_back import roll_back  # noqa: PLC0415

        roll_back(env, slog.name, dirfd)
    names = disk.listdir(dirfd)
    while True:
        try:
            return _read_listed(env, slog, dirfd, names, known, seen=seen)
        except FileNotFoundError:
            # What is listed can still go: a former owner, paused behind a confirm, removes what its
            # limits retired.
            before = names
            names = disk.listdir(dirfd)
            if sorted(names) == sorted(before):
                raise


def _read_listed(
    env: FileEnv,
    slog: SliceLog,
    dirfd: int,
    names: list[tuple[str, bool]],
    known: Checkpoint,
    *,
    seen: Seen | None,
) -> Reading | None:
    entry = known.get(slog.name)
    if not holds_channel(names):
        log.warning(f'directory "{show(slog.name)}" in the datastore holds no channel: skipped')
        return None
    mark, no_file = _read_mark(env, slog, dirfd, names)
    mover, no_mover = _read_moved(env, slog, dirfd, names)
    no_file += no_mover
    if entry is not None and checkpoint.is_as_left(env, dirfd, names, entry):
        subs = state_recovery.Subs()
        state_recovery.replay(env, show(slog.name), records.VERSION + entry.subs, subs)
        return Reading(Measured(), subs, mark, entry, mover)
    # Files that are not as a clean stop of ours left them have another writer, and it claimed no
    # epoch. The same may have made a channel that the stop did not know.
    measured = measure(
        env,
        slog.name,
        dirfd,
        names,
        foreign=entry is not None,
        is_new=known.leaves_out(slog.name),
    )
    if os.fsdecode(slog.name) in ROOT_FILES:
        # What is written there would be lost with the cure: the directory has to go elsewhere.
        measured.problems.append(
            (".", "it has the name of a file of the server: move it out of the datastore")
        )
    measured.problems += no_file
    subs = state_recovery.read_subs(env, slog.name, dirfd, seen)
    return Reading(measured, subs, mark, mover=mover)


def _read_mark(
    env: FileEnv, slog: SliceLog, dirfd: int, names: list[tuple[str, bool]]
) -> tuple[purge_mark.Mark | None, list[tuple[str, str]]]:
    """The mark of a purge, and what quarantines the channel for it."""
    if not any(name == purge_mark.NAME for name, _ in names):
        return None, []
    try:
        mark, wrong = purge_mark.read(env.fresh, dirfd)
    except IrregularError as error:
        return None, [(purge_mark.NAME, error.words)]
    if wrong:
        log.error(f'channel "{show(slog.name)}": {purge_mark.NAME}: {wrong}')
    return mark, []


def _read_moved(
    env: FileEnv, slog: SliceLog, dirfd: int, names: list[tuple[str, bool]]
) -> tuple[bytes | None, list[tuple[str, str]]]:
    """Who may still publish to a channel that has moved, and what quarantines it."""
    if not any(name == moved_mark.NAME for name, _ in names):
        return None, []
    try:
        mover, wrong = moved_mark.read(env.fresh, dirfd)
    except IrregularError as error:
        return None, [(moved_mark.NAME, error.words)]
    if wrong:
        log.error(f'channel "{show(slog.name)}": {moved_mark.NAME}: {wrong}')
    return mover, []


def read_all(
    env: FileEnv, logs: Sequence[SliceLog], known: Checkpoint, *, parallel: bool
) -> Iterator[Reading | None]:
    """Read channels, ``parallel_recovery`` at a time.

    Raises ``RecoveryError`` that names the channel.

    With 1, the default, it is one for each core, as soon as channels take long: threads that never
    wait for storage only get into each other's way.
    """

    def read(slog: SliceLog) -> Reading | None:
        try:
            return read_channel(env, slog, known)
        except OSError as error:
            raise _unreadable(slog.name, error) from error

    return _each(env, read, logs, parallel=parallel)


def look_at_subs(
    env: FileEnv, names: Sequence[bytes], known: Checkpoint, *, parallel: bool
) -> Iterator[tuple[bytes, Seen | None]]:
    """How far each ``subs.dat`` has come of channels that are opened later, as many at a time as
    ``read_all`` reads.

    Not where a clean stop has left word of it: nobody goes on there.
    """

    def look(name: bytes) -> tuple[bytes, Seen | None]:
        return name, state_recovery.look_at_subs(env, name)

    return _each(env, look, [name for name in names if name not in known], parallel=parallel)


def _each(
    env: FileEnv, read: Callable[[T], R], items: Sequence[T], *, parallel: bool
) -> Iterator[R]:
    threads = env.options.parallel_recovery
    done = 0
    if threads == 1 or not parallel:
        began = env.clock.mono()
        while done < len(items):
            yield read(items[done])
            done += 1
            if parallel and env.clock.mono() - began > _LONG_S * done:
                # To ask for it takes longer than to read a small channel.
                threads = min(os.cpu_count() or 1, _MOST_THREADS)
                if threads > 1:
                    break
    if done < len(items):
        with ThreadPoolExecutor(threads, "recovery") as pool:
            for start in range(done, len(items), _CHUNK):
                yield from pool.map(read, items[start : start + _CHUNK])


def _unreadable(channel: bytes, error: OSError) -> RecoveryError:
    file = f": {error.filename!r}" if error.filename else ""
    hint = "check the storage"
    if isinstance(error, PermissionError):
        hint = (
            f'give "{show(channel)}" with all its files to the user that the servers run as '
            "(chown -R, chmod -R u+rwX)"
        )
    return RecoveryError(
        f'unable to recover channel "{show(channel)}": {error.strerror or error}{file}', hint=hint
    )


def settle(env: FileEnv, slog: SliceLog, file: ConfirmedFile, reading: Reading) -> bool:
    """Give the slices to ``slog`` and make the files fit to go on from.

    Returns whether the channel is quarantined.

    Raises ``OSError`` and ``FencedError``.
    """
    m = reading.measured
    subs = reading.subs
    if reading.entry is not None:
        reading.entry.adopt(slog)
        _hide(slog, reading.mark)
        subs.clamp(slog.last)
        file.written = truth(env, slog)
        if not env.options.sync or env.is_nodes:
            # A former owner that synced, or a node of a cluster, may have written it, and nothing
            # says so but the file.
            file.written = read_confirmed(env.fresh, slog.dirfd)
            _agree(env, slog, file)
        return False
    wrong = [("subs.dat", f"{bad.words} at offset {bad.offset}") for bad in subs.damage]
    if subs.wrong:
        wrong.append(("subs.dat", subs.wrong))
    judging.rename_odd(env, slog, m)
    verdict = judging.judge(env, slog, m)
    verdict.damage += wrong
    if verdict.damage:
        for bad in subs.damage:
            damage.report(env, bad, cut=False)
        judging.report_damage(env, slog, m, verdict)
        quarantine.adopt_readable(env, slog, m, verdict)
        _hide(slog, reading.mark)
        subs.clamp(slog.last)
        for name, words in verdict.damage:
            quarantine.announce(slog.name, name, words)
        return True
    judging.settle(env, slog, m, verdict)
    _hide(slog, reading.mark)
    if subs.cut is not None:
        state_recovery.cut_subs(env, slog.dirfd, subs.cut)
    subs.clamp(slog.last)
    file.written = m.confirmed
    if verdict.ends:
        if slog.last > truth(env, slog).sequence:
            # Only the index of the slice that is about to be ended knows of the sequences that are
            # left out.
            _agree(env, slog, file)
        if slog.last <= max(
            truth(env, slog).sequence, file.written.last if file.written is not None else 0
        ):
            judging.end_what_was_torn(env, slog, verdict)
    _look_at_front(env, slog, m.confirmed)
    _agree(env, slog, file)
    if verdict.left_out and file.written is not None and file.written.last >= slog.last:
        judging.forget_left_out(env, slog, verdict)
    return False


def _look_at_front(env: FileEnv, slog: SliceLog, said: Confirmed | None) -> None:
    """Note where the log must have begun, if its files begin behind that: neither limits nor a
    purge took away what was before.
    """
    if said is None or not (said.replayed and env.options.replayed and env.options.rolls_back):
        return
    begins = slog.slices[0].first if slog.slices else slog.last + 1
    if 0 < said.floor < begins and begins > slog.purged + 1:
        slog.missing_from = said.floor
        log.error(
            f'channel "{show(slog.name)}": messages {max(said.floor, slog.purged + 1)} to '
            f"{begins - 1} are missing in front of the others"
        )


def _hide(slog: SliceLog, mark: purge_mark.Mark | None) -> None:
    """Drop what was purged from the log that was found, in memory."""
    if mark is None:
        return
    # Where what was purged has gone from the files, too, the oldest record is a later one.
    oldest = slog.slices[0] if slog.slices else None
    if oldest and oldest.first <= mark.sequence and not mark.speaks_of(oldest.first_ts):
        log.warning(
            f'channel "{show(slog.name)}": {purge_mark.NAME} speaks of older messages than there '
            "are, whose sequences "
            "began anew: nothing is hidden"
        )
        return
    slog.purged = mark.sequence
    if mark.sequence > slog.last:
        slog.last = mark.sequence
        if not slog.count:
            slog.first = slog.last + 1
    slog.drop_through(mark.sequence)


def truth(env: FileEnv, slog: SliceLog) -> Confirmed:
    """What ``confirmed.bin`` may say after the next confirm: everything in the log is durable."""
    top = slog.slices[-1] if slog.slices else None
    return Confirmed(
        epoch=epoch_of(env),
        slice_number=top.number if top else 0,
        sequence=top.last if top else 0,
        valid_length=top.end if top else 0,
        last=slog.last,
        synced=env.options.sync or env.options.replayed,
        replayed=env.options.replayed,
        floor=slog.floor if env.options.replayed else 0,
    )


def news(
    env: FileEnv, items: Iterable[tuple[ConfirmedFile, SliceLog]]
) -> list[tuple[ConfirmedFile, SliceLog, Confirmed]]:
    """What ``confirmed.write_all`` is to write: where the file is not as far as the log."""
    found = []
    for file, slog in items:
        if slog.ends_ahead and not (env.owner.mixed or env.options.replayed):
            # A successor believes an index that is confirmed under an epoch of no mixed group.
            continue
        now = truth(env, slog)
        if _wanted(env, now, file.written) or _is_owed(env, now, file.written):
            found.append((file, slog, now))
    return found


def _wanted(env: FileEnv, now: Confirmed, written: Confirmed | None) -> bool:
    if written is not None:
        if written.synced and not now.synced:
            # Before the first write without a sync: a power cut may take back what it would prove.
            return True
        return not written.says(now) or written.replayed != now.replayed
    if now.replayed:
        return now.last > 0
    # A store of the original has no such file, and needs none before we write to the channel.
    return now.last > now.sequence or (now.sequence > 0 and now.slice_number >= env.owner.ours_from)


def _is_owed(env: FileEnv, now: Confirmed, written: Confirmed | None) -> bool:
    """Whether an original server may have written since what stands there, so that the next start
    would look again.
    """
    if written is not None and not written.epoch:
        # A deletion was cut short, and an original server used the channel (``deletion.py``).
        return True
    through = env.owner.originals_through
    return (
        written.epoch if written is not None else 0
    ) <= through < now.epoch and now.last > 0 < through


def _agree(env: FileEnv, slog: SliceLog, file: ConfirmedFile) -> None:
    """Replace a ``confirmed.bin`` that says something else than the log: its late writer must not
    reach the new one.
    """
    now = truth(env, slog)
    if env.options.replayed or not _wanted(env, now, file.written):
        # What is replayed is not true before the next ``sync_all``.
        return
    with file.told_once(slog):
        file.replace(slog.dirfd, now)
