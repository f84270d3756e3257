"""Slices merged and renumbered by copying: for ``compact`` and ``handover``, on a store that we own
and that is exact.

A group of neighbouring slices becomes one. A removal can be late: whoever pauses before it may wake
up when a successor has cut, or removed, what did not count. So no slice is removed while it counts,
and a copy goes under no name that a former owner may be about to remove. Each step is durable
before the next, and comes after a confirm.

- ``compact`` puts the group into the place of its highest slice. The limits remove that one last,
  and from the moment it is there it ends the others at their first message. They count no more, and
  are removed.
- ``handover`` numbers from 1, or behind the slices that wait for the archive script, and so below
  slices that end the copy. While an old slice counts, the copy of its messages does not. So it is
  *retired* first, lowest number first: empty files take the place of its index and then of its
  data, and from there on the copy counts. A late rename finds no source, because a successor
  removes the temporaries of a directory before it reads it. Then it is removed. Numbers are used
  again here: so every process that ever had the store must have ended (``docs/handover.md``). Of
  the original's slices, whose numbers may be in another order than their messages, none is written
  over before it is copied.

Copying is the point: a slice that a crashed owner may still hold open gets a new inode, which no
late write can reach.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.base.errors import DamageError, StoreError
from ftstan.stores.file.log import records
from ftstan.stores.file.log.exact import append_block, empty, put_file
from ftstan.stores.file.log.retention import ARCHIVED
from ftstan.stores.file.log.slices import dat_name, idx_name, show
from ftstan.stores.file.state import confirmed
from ftstan.stores.file.state.confirmed import Confirmed, ConfirmedFile, epoch_of
from ftstan.wire.block import MsgBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ftstan.stores.file.env import FileEnv
    from ftstan.stores.file.tools.reading import ChannelFiles, SliceFile

_ENTRY = records.INDEX_SIZE
_WAITING = re.compile(rf"msgs\.([1-9][0-9]{{0,17}})\.dat{re.escape(ARCHIVED)}\Z")


@dataclass(frozen=True, slots=True)
class Group:
    """``parts``, neighbours in the order of their messages, become one slice with the number
    ``target``.
    """

    target: int
    parts: tuple[SliceFile, ...]

    @property
    def others(self) -> list[SliceFile]:
        """The slices that go."""
        return [s for s in self.parts if s.number != self.target]

    @property
    def size(self) -> int:
        """Bytes to copy."""
        return sum(s.dat_size for s in self.parts)


def plan_compaction(slices: Sequence[SliceFile], max_bytes: int) -> list[Group]:
    """Merge neighbours while they fit into ``max_bytes``, each group into its highest.

    The newest slice stays as it is.

    ``confirmed.bin`` names the newest slice, and so remains true all the while.
    """
    groups = _gather(slices[:-1], max_bytes)
    return [Group(max(s.number for s in parts), parts) for parts in groups if len(parts) > 1]


def plan_handover(
    slices: Sequence[SliceFile], max_bytes: int, first: int = 1, ours_from: int = 1
) -> list[Group]:
    """Merge as for a compaction, the newest slice too, and number the results from ``first`` on.

    An original's slices may be numbered in another order than their messages. So no result takes
    the number of a slice that is copied later, and none that ends lower slices, from ``ours_from``
    on, lies above one: rather the two are merged.
    """
    waiting = _gather(slices, max_bytes)
    groups: list[Group] = []
    parts: tuple[SliceFile, ...] = ()
    while waiting:
        parts += waiting.pop(0)
        later = {s.number for group in waiting for s in group}
        number = groups[-1].target + 1 if groups else first
        while number in later:
            number += 1
        if number < ours_from or number < min(later, default=number + 1):
            groups.append(Group(number, parts))
            parts = ()
    return groups


def first_number(files: ChannelFiles) -> int:
    """The first slice number that a handover gives out: behind all slices that wait for the archive
    script.

    A slice that is archived under the same number would take the place of one that waits. Raises
    ``StoreError`` where one that waits has a number as high as one that counts: to number from
    there on would hide what counts.
    """
    waiting = [int(m[1]) for name in files.names if (m := _WAITING.match(name))]
    highest = max(waiting, default=0)
    if waiting and any(s.number <= highest for s in files.all):
        raise StoreError(
            f'channel "{show(files.name)}": {dat_name(highest)}{ARCHIVED} waits for the archive '
            "script under a number "
            "that is about to be used again",
            hint="run the script on all .bak files of the channel, or start ftstan with "
            "-file_slice_archive_script; "
            "then run this again",
        )
    return highest + 1


def _gather(slices: Sequence[SliceFile], max_bytes: int) -> list[tuple[SliceFile, ...]]:
    groups: list[list[SliceFile]] = []
    for s in slices:
        if groups and sum(p.dat_size for p in groups[-1]) + s.dat_size <= max_bytes:
            groups[-1].append(s)
        else:
            groups.append([s])
    return [tuple(g) for g in groups]


def check_exact(files: ChannelFiles) -> None:
    """Raise ``DamageError`` unless every file of the log holds what counts and nothing else."""
    for s in files.all:
        if not s.exact or not s.entries:
            raise DamageError(
                f'channel "{show(files.name)}" slice {s.dat} holds more or less than the '
                "messages that count",
                hint=f"run: ftstanctl store verify --channel {show(files.name)}, then ftstanctl "
                "store repair",
            )


def compact_channel(
    env: FileEnv,
    files: ChannelFiles,
    max_bytes: int,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Merge the small slices of a channel; returns how many slices are gone.

    Raises ``OSError`` and ``StoreError``.
    """
    check_exact(files)
    groups = plan_compaction(files.slices, max_bytes)
    for group in groups:
        _rewrite(env, files, group, None, progress)
        remove_parts(env, files, group.others)
    return sum(len(g.parts) - 1 for g in groups)


def hand_over_channel(
    env: FileEnv,
    files: ChannelFiles,
    max_bytes: int,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Leave dense slices, each a fresh copy, and none of our side files but
    ``purged.bin`` and ``moved.bin``.

    Returns the number of slices.

    An original server takes the last sequence from the last message. Where later messages were
    lost, and a repair recorded that their numbers must not be given out again, an empty message
    with the last number is added, as the original itself fills gaps. Raises ``OSError`` and
    ``StoreError``.
    """
    if files.mover is not None:
        raise StoreError(
            f'channel "{show(files.name)}" has moved: an original server would serve it all the '
            "same",
            hint="take that back first: ftstanctl bridge undo, or ftstanctl channel moved",
        )
    check_exact(files)
    first = first_number(files)
    groups = plan_handover(files.slices, max_bytes, first, env.owner.ours_from)
    known = files.confirmed
    filler: MsgBlock | None = None
    if known is not None and known.last > files.last:
        filler = MsgBlock()
        filler.append(
            known.last,
            files.name,
            b"",
            b"",
            files.slices[-1].last_ts if files.slices else env.clock.wall_ns(),
        )
        records.seal(filler, env.crc)
        groups = groups or [Group(first, ())]
    targets = {group.target for group in groups}
    for group in groups:
        last = group is groups[-1]
        if last and known is not None:
            # From here on its slice number is wrong. Until the filler counts nothing else remembers
            # the last sequence.
            ConfirmedFile(env).replace(
                files.dirfd, Confirmed(epoch_of(env), 0, 0, 0, max(known.last, files.last))
            )
        _rewrite(env, files, group, filler if last else None, progress)
        retire_parts(env, files, group.others)
        # A name that is about to be used again, here or by who runs this once more behind us,
        # stays: a late removal would hit what stands there then.
        remove_parts(env, files, [s for s in group.others if s.number not in targets])
    if known is not None:
        env.owner.confirm()
        # Should that be a successor's by now: it writes another one, and nothing that was
        # acknowledged depends on it.
        with contextlib.suppress(FileNotFoundError):
            env.disk.unlink(files.dirfd, confirmed.NAME)
        env.disk.fsync(files.dirfd)
    return len(groups)


def _rewrite(
    env: FileEnv,
    files: ChannelFiles,
    group: Group,
    extra: MsgBlock | None,
    progress: Callable[[int], None],
) -> None:
    """Put the messages of a group, and ``extra``, under its number."""
    index = bytearray(records.VERSION)

    def write_data(fd: int) -> None:
        end = records.VERSION_SIZE
        env.disk.pwrite(fd, records.VERSION, 0)
        for s in group.parts:
            for block, bad in files.blocks(s):
                if bad:
                    raise DamageError(
                        f'channel "{show(files.name)}" slice {s.dat}: {bad[0].why} at offset '
                        f"{bad[0].start}",
                        hint="nothing was removed; run: ftstanctl store repair --channel "
                        f"{show(files.name)}",
                    )
                end = append_block(env, fd, index, block, end)
                progress(block.nbytes)
        if extra is not None:
            append_block(env, fd, index, extra, end)

    if any(s.number == group.target for s in group.parts[1:]):
        # An index with the old offsets would be read; the one of the first part names a valid
        # beginning.
        put_file(env, files.dirfd, idx_name(group.target), empty)
    put_file(env, files.dirfd, dat_name(group.target), write_data)
    put_file(env, files.dirfd, idx_name(group.target), lambda fd: env.disk.pwrite(fd, index, 0))


def retire_parts(env: FileEnv, files: ChannelFiles, parts: Sequence[SliceFile]) -> None:
    """See that slices which have been copied count no more, lowest first, each durably before the
    next one.
    """
    for s in parts:
        # The index first: data without one is read, and an index without data names messages that
        # are missing.
        for name in (s.idx, s.dat):
            put_file(env, files.dirfd, name, empty)


def remove_parts(env: FileEnv, files: ChannelFiles, parts: Sequence[SliceFile]) -> None:
    """Remove slices that count no more."""
    for s in parts:
        env.owner.confirm()
        for name in (s.idx, s.dat):
            with contextlib.suppress(FileNotFoundError):
                env.disk.unlink(files.dirfd, name)
        env.disk.fsync(files.dirfd)
