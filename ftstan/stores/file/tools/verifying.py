"""Is a datastore what its owners left?

Reads every byte that counts and says where one is not what was written.

Three kinds of findings. *Damage*: something that was acknowledged, or may have been, cannot be
read. *Leftover*: files that nobody needs. *Note*: what the next start deals with by itself: nobody
was promised it. Bytes behind a seal are none of these: a former owner's late or failed writes are
normal. Changes nothing (``repairing`` does).
"""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from ftstan.base.clock import SystemClock
from ftstan.base.errors import FtstanError
from ftstan.base.reserved import is_reserved
from ftstan.stores.file.log import moved_mark, purge_mark, records
from ftstan.stores.file.log.slices import dat_name, show
from ftstan.stores.file.recovery.damage import FOREIGN
from ftstan.stores.file.rootfiles import find_occupied
from ftstan.stores.file.state import repaired
from ftstan.stores.file.tools.reading import (
    INDEX,
    ChannelFiles,
    SliceFile,
    bad_record,
    channel_names,
)
from ftstan.stores.file.tools.statereading import Bad, Typed, plain, read_clients, read_server
from ftstan.stores.interface import AHEAD_NS, MAX_NUMBER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ftstan.stores.file.tools.source import Source

_ENTRY = records.INDEX_SIZE
_SECOND = 1_000_000_000

#: Bytes of the largest message that a NATS server carries, if nobody configured it.
MAX_PAYLOAD = 1 << 20

_ROOT_LEFTOVER = re.compile(r"(clients\.dat|subs)[0-9]+\Z|tmp\.")
_CHANNEL_LEFTOVER = re.compile(r"msgs\.[0-9]+\.(dat|idx)\.bak\Z|tmp\.")


class DefectKind(StrEnum):
    """What a finding means."""

    DAMAGE = "damage"
    LEFTOVER = "leftover"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class StoreFinding:
    """One thing found.

    ``file`` is relative to the root; ``channel`` is empty for the store's own files.

    ``by_hand``: nothing that a tool may change; ``text`` says what to do.
    """

    kind: DefectKind
    channel: bytes
    file: str
    text: str
    offset: int | None = None
    by_hand: bool = False


def check_root(source: Source) -> Iterator[StoreFinding]:
    """Look at the files of the root."""
    occupied = find_occupied(source.disk, source.root)
    for name, what in occupied.items():
        text = (
            f"{what}, where a server keeps a file: stop every server and move it out of the "
            "datastore"
        )
        yield StoreFinding(DefectKind.DAMAGE, b"", show(os.fsencode(name)), text, by_hand=True)
    if "server.dat" not in occupied:
        _, wrong = read_server(source)
        if wrong:
            yield StoreFinding(DefectKind.DAMAGE, b"", "server.dat", wrong)
    if "clients.dat" not in occupied:
        typed, _ = read_clients(source)
        yield from _check_typed(b"", "clients.dat", typed)
    for name, is_dir in sorted(source.disk.listdir(source.root)):
        if not is_dir and name not in occupied and _ROOT_LEFTOVER.match(name):
            yield StoreFinding(
                DefectKind.LEFTOVER, b"", name, "left by a server that was interrupted"
            )
    channels, others = channel_names(source)
    for name in others:
        yield StoreFinding(
            DefectKind.NOTE,
            b"",
            name,
            "a directory that is no channel; an original server would make one of it",
        )
    for channel in channels:
        if is_reserved(channel) and os.fsdecode(channel) not in occupied:
            yield StoreFinding(
                DefectKind.NOTE,
                b"",
                show(channel),
                "a channel of a name that is reserved for files of servers",
            )


def check_channel(
    source: Source,
    name: bytes,
    progress: Callable[[int], None] = lambda _: None,
    max_payload: int = MAX_PAYLOAD,
) -> Iterator[StoreFinding]:
    """Look at everything in a channel's directory; ``progress`` is told how many bytes were read.

    ``max_payload``: bytes of the largest message that the NATS servers carry. What storage, or the
    rights of whoever asks, keep from being read is a finding like any other.
    """
    try:
        yield from _check_files(source, name, progress, max_payload)
    except OSError as error:
        yield StoreFinding(DefectKind.DAMAGE, name, show(name), unreadable(error), by_hand=True)


def unreadable(error: OSError | FtstanError) -> str:
    """What keeps a channel from being read, and what to do."""
    if isinstance(error, FtstanError):
        return f"cannot be read: {error.text}"
    file = f"{os.fsdecode(error.filename)}: " if error.filename else ""
    cure = "give it to this user" if isinstance(error, PermissionError) else "check the storage"
    return f"cannot be read: {file}{error.strerror or error}: {cure}"


def _check_files(
    source: Source, name: bytes, progress: Callable[[int], None], max_payload: int
) -> Iterator[StoreFinding]:
    with ChannelFiles(source, name) as files:
        checker = ChannelCheck(source, files)
        yield from checker.check_names()
        for s in files.all:
            yield from checker.check_slice(s, progress)
        yield from checker.check_lost()
        yield from checker.check_order()
        yield from checker.check_sizes(max_payload)
        yield from checker.check_times()
        typed = files.subs_file()
        if "subs.dat" not in files.irregular:
            yield from _check_typed(name, f"{show(name)}/subs.dat", typed)
        yield from checker.check_numbers(files.subs(typed)[1])


class ChannelCheck:
    """The parts of a channel's check."""

    def __init__(self, source: Source, files: ChannelFiles) -> None:
        self._source = source
        self._files = files
        self._show = show(files.name)
        self.accepted = repaired.read(source.disk, files.dirfd)

    def _found(
        self, kind: DefectKind, file: str, text: str, offset: int | None = None
    ) -> StoreFinding:
        return StoreFinding(kind, self._files.name, f"{self._show}/{file}", text, offset)

    def check_names(self) -> Iterator[StoreFinding]:
        """Files that are no part of the log, and what stands in the place of one that is."""
        names = self._files.names
        for name, what in sorted(self._files.irregular.items()):
            text = (
                f"{what}, where a server keeps a file: stop every server and move it out of the "
                "datastore"
            )
            yield StoreFinding(
                DefectKind.DAMAGE, self._files.name, f"{self._show}/{name}", text, by_hand=True
            )
        if self._files.purged_wrong:
            yield self._found(DefectKind.NOTE, purge_mark.NAME, self._files.purged_wrong)
        if self._files.moved_wrong:
            yield self._found(DefectKind.NOTE, moved_mark.NAME, self._files.moved_wrong)
        for name in self._files.misnamed:
            yield self._found(DefectKind.DAMAGE, name, f"message log has an invalid name: {name}")
        for s in self._files.all:
            if s.odd:
                text = f"the next start names it {dat_name(s.number)}"
                yield self._found(DefectKind.NOTE, s.odd, text)
        unused = set() if self._source.live else self._files.unused
        for name in sorted(names):
            if _CHANNEL_LEFTOVER.match(name) or name in unused:
                why = (
                    "handed to an archive script, which has not removed it"
                    if name.endswith(".bak")
                    else "not in use"
                )
                yield self._found(DefectKind.LEFTOVER, name, why)

    def check_slice(self, s: SliceFile, progress: Callable[[int], None]) -> Iterator[StoreFinding]:
        """One slice: every record that counts, and its entry."""
        above = [seal for seal in self._files.lost if seal.number > s.number]
        top = not above and (not self._files.slices or s is self._files.slices[-1])
        if s.refused:
            yield self._found(DefectKind.DAMAGE, s.dat, s.refused, 0)
            return
        for bad in s.bad:
            yield from self._judge(s, bad, top=top)
        if s.differs is not None:
            first, last, other = s.differs
            text = f"sequences {first} to {last} have another content than in {other}"
            yield self._found(DefectKind.DAMAGE, s.dat, text)
        if self._names_more(s, top=top):
            text = f"the index names sequence {s.claimed}, the data end at sequence {s.all_last}"
            yield self._found(DefectKind.DAMAGE, s.dat, text, s.dat_size)
        if not s.entries:
            return
        if not s.index_clean or s.proven < s.entries:
            text = (
                "missing" if s.idx_size < 0 else "does not name exactly the messages of its slice"
            )
            yield self._found(DefectKind.NOTE, s.idx, f"{text}; the data are read instead")
        for bad in self.bad_records(s, progress):
            yield self._found(DefectKind.DAMAGE, s.dat, bad.why, bad.start)

    def check_lost(self) -> Iterator[StoreFinding]:
        """Slices of ours that have an index and no message."""
        for seal in self._files.missing:
            yield self._found(DefectKind.DAMAGE, dat_name(seal.number), seal.words)

    def _judge(self, s: SliceFile, bad: Bad, *, top: bool) -> Iterator[StoreFinding]:
        is_foreign = bad.why == plain(FOREIGN)
        if (
            bad.start < s.end
            or not s.located
            or (top and (is_foreign or self._files.contradicts(s, bad)))
        ):
            yield self._found(
                DefectKind.DAMAGE,
                s.dat,
                f"{bad.end - bad.start} bytes are no record: {bad.why}",
                bad.start,
            )
        elif top and s.entries:
            what = f"{bad.end - bad.start} bytes behind sequence {s.last}"
            text = (
                f"{what} are no record: {bad.why}"
                if self._names_more(s, top=top)
                else f"{what} were never acknowledged ({bad.why})"
            )
            yield self._found(DefectKind.NOTE, s.dat, text, bad.start)

    def _names_more(self, s: SliceFile, *, top: bool) -> bool:
        """Whether an index of ours, whose entries are written after the sync of their data, names
        what is not there.
        """
        return (
            top
            and s.located > 0
            and s.claimed > s.all_last
            and s.number >= self._source.ours_from
            and not self._source.live
        )

    def bad_records(self, s: SliceFile, progress: Callable[[int], None]) -> Iterator[Bad]:
        """Records that count and are not what their entries, their checksums and their channel
        say.
        """
        after = s.first - 1
        for batch, data in self._files.batches(s):
            block, _, why = records.scan_data(data, self._files.name, after, self._source.crc)
            start = records.entry(batch, 0)[1]
            count = len(batch) // _ENTRY
            if why or records.index_entries(block, 0, len(block), start, self._source.crc) != batch:
                yield from self._each(batch, data, start)
            after = records.entry(batch, count - 1)[0]
            progress(len(data))

    def _each(self, batch: bytes, data: bytes, start: int) -> Iterator[Bad]:
        known = set()
        for row in records.read_readable(data, batch, self._source.crc)[1]:
            known.add(row[0])
            yield bad_record(batch, *row)
        for k in range(len(batch) // _ENTRY):
            sequence, offset, _, size = records.entry(batch, k)
            record = data[offset - start : offset - start + 8 + size]
            block, _, why = records.scan_data(
                record, self._files.name, sequence - 1, self._source.crc
            )
            if sequence in known:
                continue
            if why:
                yield Bad(
                    offset, offset + 8 + size, f"sequence {sequence}: {why.removeprefix('bad: ')}"
                )
            elif (
                records.index_entries(block, 0, 1, offset, self._source.crc)
                != batch[k * _ENTRY : (k + 1) * _ENTRY]
            ):
                yield Bad(
                    offset,
                    offset + 8 + size,
                    f"sequence {sequence}: its index entry has another timestamp",
                )

    def check_order(self) -> Iterator[StoreFinding]:
        """What the slices make together: holes, the end, and seals that hide what was confirmed."""
        files = self._files
        if (front := files.missing_front) is not None:
            text = f"sequences {front[0]} to {front[1]} are missing in front of the others"
            yield self._found(DefectKind.DAMAGE, files.slices[0].dat if files.slices else "", text)
        for low, high in itertools.pairwise(files.slices):
            if high.first != low.last + 1:
                yield self._hole(low.last + 1, high.first - 1, high.dat)
        for s in files.slices:
            if s.last - s.first + 1 != s.entries:
                for a, b in self._holes_inside(s):
                    yield self._hole(a, b, s.dat)
        confirmed = files.confirmed
        if confirmed is None:
            return
        if confirmed.sequence > files.last and not self._is_accepted(
            files.last + 1, confirmed.sequence
        ):
            text = f"was acknowledged up to sequence {confirmed.sequence}, and ends at {files.last}"
            yield self._found(DefectKind.DAMAGE, files.slices[-1].dat if files.slices else "", text)
        for s in files.all:
            if confirmed.sequence <= files.purged:
                # A purge ends in a copy of the newest record, and may have been interrupted before
                # it said so.
                break
            if s.number in files.hiding:
                text = (
                    f"begins at sequence {s.all_first}, and would hide what was acknowledged up "
                    f"to {confirmed.sequence}"
                )
                yield self._found(DefectKind.DAMAGE, s.dat, text)

    def check_sizes(self, max_payload: int) -> Iterator[StoreFinding]:
        """Messages that are too large to be delivered."""
        for s in self._files.slices:
            large = [
                (sequence, size)
                for sequence, _, _, size, _ in INDEX.iter_unpack(self._files.entries_of(s))
                if size > max_payload and sequence >= self._files.first
            ]
            if large:
                sequence, size = large[0]
                text = (
                    f"{len(large)} messages are larger than {max_payload} bytes, the first one "
                    f"is sequence {sequence} "
                    f"with {size}: no NATS server with this max_payload carries them, and "
                    "deliveries leave them out"
                )
                yield self._found(DefectKind.NOTE, s.dat, text)

    def check_times(self) -> Iterator[StoreFinding]:
        """Messages whose times are still to come: everything behind them gets those times, too."""
        files = self._files
        latest = SystemClock().wall_ns() + AHEAD_NS
        for s in files.slices:
            if max(s.first_ts, s.last_ts) <= latest or s.last < files.first:
                continue
            rows = [
                (sequence, time)
                for sequence, _, time, _, _ in INDEX.iter_unpack(files.entries_of(s))
            ]
            ahead = [
                (sequence, time)
                for sequence, time in rows
                if time > latest and sequence >= files.first
            ]
            if not ahead:
                continue
            sequence, time = ahead[0]
            when = datetime.fromtimestamp(time // _SECOND, UTC)
            text = (
                f"{len(ahead)} messages have times that are still to come, the first one is "
                f"sequence {sequence} with "
                f"{when:%Y-%m-%d %H:%M:%SZ}: until then new messages get that time, and max_age "
                "removes none of them"
            )
            yield self._found(DefectKind.NOTE, s.dat, text)

    def check_numbers(self, highest_sub: int) -> Iterator[StoreFinding]:
        """Numbers that nothing can follow: the channel takes nothing new."""
        files = self._files
        for file, what, number in (
            (files.slices[-1].dat if files.slices else "", "sequence", files.last),
            ("subs.dat", "subscription id", highest_sub),
        ):
            if number > MAX_NUMBER:
                text = (
                    f"names {what} {number}: behind 2^63 - 1 there is no other, and the channel "
                    "takes nothing new: "
                    "move its directory out of the datastore while no server runs"
                )
                yield StoreFinding(
                    DefectKind.DAMAGE, files.name, f"{self._show}/{file}", text, by_hand=True
                )

    def _holes_inside(self, s: SliceFile) -> Iterator[tuple[int, int]]:
        expected = s.first
        for batch, _ in self._files.batches(s):
            for k in range(len(batch) // _ENTRY):
                sequence = records.entry(batch, k)[0]
                if sequence != expected:
                    yield expected, sequence - 1
                expected = sequence + 1

    def _hole(self, first: int, last: int, file: str) -> StoreFinding:
        kind = DefectKind.NOTE if self._is_accepted(first, last) else DefectKind.DAMAGE
        return self._found(kind, file, f"sequences {first} to {last} are missing before it")

    def _is_accepted(self, first: int, last: int) -> bool:
        return any(a <= first and last <= b for a, b in self.accepted)


def _check_typed(channel: bytes, file: str, typed: Typed) -> Iterator[StoreFinding]:
    if typed.refused:
        yield StoreFinding(DefectKind.DAMAGE, channel, file, typed.refused, 0)
    for bad in typed.bad:
        yield StoreFinding(
            DefectKind.DAMAGE,
            channel,
            file,
            f"{bad.end - bad.start} bytes are no record: {bad.why}",
            bad.start,
        )
    if typed.tail is not None:
        text = (
            f"{typed.tail.end - typed.tail.start} bytes at the end were never acknowledged "
            f"({typed.tail.why})"
        )
        yield StoreFinding(DefectKind.NOTE, channel, file, text, typed.tail.start)
