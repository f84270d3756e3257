"""Ending damage: what cannot be read goes to a directory beside the store, what can be read stays,
with its sequence.

First a *plan* is made by somebody who only reads; carried out, it copies every file that it is
going to change to the side directory, durable, and only then changes anything, each step after a
confirm. Interrupted, it is run again. A hole stays a hole, and the last sequence never goes back,
since ``confirmed.bin`` keeps it.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ftstan.base.reserved import REPAIRED
from ftstan.stores.file.log import records
from ftstan.stores.file.log.exact import put_file
from ftstan.stores.file.log.slices import dat_name, idx_name, show
from ftstan.stores.file.regular import open_file
from ftstan.stores.file.state import confirmed, repaired
from ftstan.stores.file.state.confirmed import Confirmed, ConfirmedFile, epoch_of
from ftstan.stores.file.state.statefile import replace_file
from ftstan.stores.file.stretch import is_blank
from ftstan.stores.file.tools.reading import ChannelFiles, SliceFile, channel_names
from ftstan.stores.file.tools.statereading import Typed, read_clients
from ftstan.stores.file.tools.verifying import (
    ChannelCheck,
    DefectKind,
    StoreFinding,
    check_channel,
    check_root,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ftstan.base.disk import Disk
    from ftstan.stores.file.env import FileEnv
    from ftstan.stores.file.tools.source import Source

_ENTRY = records.INDEX_SIZE
_COPY = 4 << 20
_MOVED = "moved to the side directory"


@dataclass(frozen=True, slots=True)
class Step:
    """One change, in words.

    ``channel`` is empty for the store's own files; ``file`` is relative to the root.
    """

    channel: bytes
    file: str
    text: str


@dataclass(slots=True)
class Plan:
    """What is damaged or left over in the root (channel ``b""``) and in the channels, and what
    would be done.
    """

    findings: dict[bytes, list[StoreFinding]] = field(default_factory=dict)

    @property
    def steps(self) -> list[Step]:
        """What would be done, in order."""
        return [
            Step(f.channel, f.file, _text(f)) for found in self.findings.values() for f in found
        ]

    @property
    def damaged(self) -> bool:
        """Whether there is damage among it."""
        return any(f.kind is DefectKind.DAMAGE for found in self.findings.values() for f in found)


@dataclass(frozen=True, slots=True)
class _Checked:
    """A slice, the offsets of its bad records, and whether its files have to be written again."""

    slice: SliceFile
    wrong: set[int]
    changes: bool


def make_plan(
    source: Source, only: bytes | None, progress: Callable[[int], None] = lambda _: None
) -> Plan:
    """Look for what must be repaired, in the channel ``only`` or everywhere. Raises ``OSError``."""
    plan = Plan()
    if only is None:
        found = [f for f in check_root(source) if f.kind is not DefectKind.NOTE]
        if found:
            plan.findings[b""] = found
    for name in [only] if only is not None else channel_names(source)[0]:
        found = [f for f in check_channel(source, name, progress) if f.kind is not DefectKind.NOTE]
        if found:
            plan.findings[name] = found
    return plan


def _text(finding: StoreFinding) -> str:
    if finding.by_hand:
        return f"left alone: {finding.text}"
    if finding.kind is DefectKind.LEFTOVER:
        return "move it to the side directory"
    if finding.file == "server.dat":
        return f"move it to the side directory, the next start writes a new one: {finding.text}"
    where = "" if finding.offset is None else f" at offset {finding.offset}"
    return f"keep what can be read: {finding.text}{where}"


class Repair:
    """Carries out a plan.

    ``aside``: an open handle of the side directory, which is empty at first.
    """

    def __init__(self, env: FileEnv, source: Source, aside: int) -> None:
        self._env = env
        self._source = source
        self._aside = aside
        self._disk = env.disk

    def run(self, plan: Plan) -> list[Step]:
        """Repair; returns what was done. Raises ``OSError``, ``StoreError`` and ``FencedError``."""
        done: list[Step] = []
        for name, findings in plan.findings.items():
            if not name:
                done += self._root(findings)
            else:
                done += self._channel(name, findings)
        return done

    # ---- the root
    # ----------------------------------------------------------------------------------------------

    def _root(self, findings: list[StoreFinding]) -> list[Step]:
        done = [Step(b"", f.file, _text(f)) for f in findings if f.by_hand]
        findings = [f for f in findings if not f.by_hand]
        for f in findings:
            self._copy(self._env.root, f.file, self._aside)
        for f in findings:
            if f.kind is DefectKind.LEFTOVER or f.file == "server.dat":
                self._remove(self._env.root, [f.file])
                done.append(Step(b"", f.file, _MOVED))
        if any(f.file == "clients.dat" for f in findings):
            typed, _ = read_clients(self._source)
            done.append(self._state(self._env.root, b"", "clients.dat", typed))
        return done

    def _state(self, dirfd: int, channel: bytes, name: str, typed: Typed) -> Step:
        """Replace a state file by its readable records."""
        rows = [
            records.typed_record(kind, payload, self._env.crc) for _, kind, payload in typed.rows
        ]
        self._disk.close(replace_file(self._env, dirfd, name, records.VERSION + b"".join(rows)))
        shown = f"{show(channel)}/{name}" if channel else name
        lost = sum(bad.end - bad.start for bad in typed.bad)
        return Step(
            channel, shown, f"kept {len(rows)} records, left out {lost} bytes that are none"
        )

    # ---- channels
    # ----------------------------------------------------------------------------------------------

    def _channel(self, name: bytes, findings: list[StoreFinding]) -> list[Step]:
        done = [Step(name, f.file, _text(f)) for f in findings if f.by_hand]
        if done:
            # What cannot be read may be more than what was found.
            return done
        damaged = {f.file.rpartition("/")[2] for f in findings if f.kind is DefectKind.DAMAGE}
        leftovers = [f.file.rpartition("/")[2] for f in findings if f.kind is DefectKind.LEFTOVER]
        with ChannelFiles(self._source, name) as files:
            checks = [self._check(files, s) for s in files.all] if damaged - {"subs.dat"} else []
            affected = {f.file.rpartition("/")[2] for f in findings}
            affected |= {file for c in checks if c.changes for file in (c.slice.dat, c.slice.idx)}
            affected |= {idx_name(seal.number) for seal in files.lost}
            if damaged - {"subs.dat"} or leftovers:
                affected |= {confirmed.NAME, REPAIRED}
            aside = self._side_channel(name)
            try:
                for file in sorted(affected & files.names):
                    self._copy(files.dirfd, file, aside)
            finally:
                self._disk.close(aside)
            if "subs.dat" in damaged:
                done.append(self._state(files.dirfd, name, "subs.dat", files.subs_file()))
                if files.confirmed is not None and files.confirmed.replayed:
                    # A node of a cluster sees by it that the channel was repaired.
                    said = replace(files.confirmed, epoch=epoch_of(self._env), replayed=False)
                    ConfirmedFile(self._env).replace(files.dirfd, said)
            if damaged - {"subs.dat"}:
                done += self._rename(files)
                done += self._log(files, checks)
                misnamed = [file for file in files.misnamed if file in damaged]
                self._remove(files.dirfd, misnamed)
                done += [
                    Step(name, f"{show(name)}/{file}", f"no slice's name: {_MOVED}")
                    for file in misnamed
                ]
            elif leftovers:
                self._keep_last(files)
            if leftovers:
                # Last: what they name is remembered elsewhere by now.
                self._remove(files.dirfd, leftovers)
                done += [Step(name, f"{show(name)}/{file}", _MOVED) for file in leftovers]
        return done

    def _rename(self, files: ChannelFiles) -> list[Step]:
        """Give slices the names that servers give them, as a start does."""
        done = []
        for s in files.all:
            if not s.odd:
                continue
            new = dat_name(s.number)
            self._env.owner.confirm()
            self._disk.rename(files.dirfd, s.odd, new)
            self._disk.fsync(files.dirfd)
            done.append(Step(files.name, f"{show(files.name)}/{s.odd}", f"named {new}"))
            files.renamed(s)
        return done

    def _keep_last(self, files: ChannelFiles) -> None:
        """Have ``confirmed.bin`` say the last sequence that an index names which is about to go."""
        said = files.confirmed or Confirmed(epoch_of(self._env), 0, 0, 0, 0)
        if not said.replayed and files.last_named > max(files.last, said.last):
            said = replace(said, last=files.last_named)
            ConfirmedFile(self._env).replace(files.dirfd, said)

    def _check(self, files: ChannelFiles, s: SliceFile) -> _Checked:
        if not s.entries:
            return _Checked(s, set(), changes=True)
        wrong = {
            bad.start for bad in ChannelCheck(self._source, files).bad_records(s, lambda _: None)
        }
        return _Checked(s, wrong, changes=bool(wrong) or not s.exact)

    def _log(self, files: ChannelFiles, checks: list[_Checked]) -> list[Step]:
        """Leave in every slice what can be read and counts.

        The last sequence is kept in ``confirmed.bin``.
        """
        done: list[Step] = []
        said = files.confirmed
        last = max(
            [
                files.last,
                files.last_named,
                *(s.claimed for s in files.all),
                *((said.sequence, said.last) if said else ()),
            ]
        )
        word = ConfirmedFile(self._env)
        # First of all, in case we are interrupted: the files that are about to change may be all
        # that remembers it.
        word.replace(files.dirfd, Confirmed(epoch_of(self._env), 0, 0, 0, last))
        held: list[tuple[int, int]] = []
        top = (0, 0, 0)
        for c in checks:
            where = f"{show(files.name)}/{c.slice.dat}"
            ranges, end = (
                self._rewrite(files, c) if c.changes else (_ranges_of(files, c.slice), c.slice.end)
            )
            if not ranges:
                done.append(Step(files.name, where, f"no message of it is left: {_MOVED}"))
                continue
            held += ranges
            top = max(top, (ranges[-1][1], c.slice.number, end))
            if c.changes:
                count = sum(b - a + 1 for a, b in ranges)
                done.append(
                    Step(
                        files.name,
                        where,
                        f"kept {count} messages, left out {_left_out(c)}",
                    )
                )
        done += self._remove_lost(files, {c.slice.number for c in checks})
        sequence, number, length = top
        word.replace(
            files.dirfd,
            Confirmed(epoch_of(self._env), number, sequence, length, max(last, sequence)),
        )
        missing = _holes(held, files.first, last)
        if (front := files.missing_front) is not None:
            lost = front[1] - front[0] + 1
            done.append(
                Step(
                    files.name,
                    show(files.name),
                    f"{lost} messages are lost: sequences {_shown([front])}",
                )
            )
        if missing:
            repaired.write(self._env, files.dirfd, missing)
            lost = sum(b - a + 1 for a, b in missing)
            done.append(
                Step(
                    files.name,
                    show(files.name),
                    f"{lost} messages are lost: sequences {_shown(missing)}",
                )
            )
        return done

    def _remove_lost(self, files: ChannelFiles, there: set[int]) -> list[Step]:
        """Remove the indexes of slices without data.

        Only now: until the slices below are written again nothing else ends them.
        """
        gone = [seal for seal in files.lost if seal.number not in there]
        self._remove(files.dirfd, [idx_name(seal.number) for seal in gone])
        return [
            Step(
                files.name,
                f"{show(files.name)}/{idx_name(seal.number)}",
                f"its messages are not there: {_MOVED}",
            )
            for seal in gone
        ]

    def _rewrite(self, files: ChannelFiles, c: _Checked) -> tuple[list[tuple[int, int]], int]:
        """Replace a slice by its readable messages.

        Returns the ranges of their sequences, and the new size.
        """
        index = bytearray(records.VERSION)
        kept: list[int] = []
        end = records.VERSION_SIZE

        def write(fd: int) -> None:
            nonlocal end
            self._disk.pwrite(fd, records.VERSION, 0)
            for batch, data in files.batches(c.slice):
                start = records.entry(batch, 0)[1]
                for k in range(len(batch) // _ENTRY):
                    sequence, offset, _, size = records.entry(batch, k)
                    if offset in c.wrong:
                        continue
                    record = data[offset - start : offset - start + 8 + size]
                    block, _, _ = records.scan_data(record, files.name, sequence - 1, self._env.crc)
                    self._disk.pwrite(fd, record, end)
                    index.extend(records.index_entries(block, 0, 1, end, self._env.crc))
                    end += len(record)
                    kept.append(sequence)

        s = c.slice
        if s.entries > len(c.wrong):
            put_file(self._env, files.dirfd, s.dat, write)
            put_file(self._env, files.dirfd, s.idx, lambda fd: self._disk.pwrite(fd, index, 0))
        else:
            self._remove(files.dirfd, [s.idx, s.dat])
        return _gather(kept), end

    # ---- files
    # ----------------------------------------------------------------------------------------------

    def _side_channel(self, name: bytes) -> int:
        dirname = os.fsdecode(name)
        with contextlib.suppress(FileExistsError):
            self._disk.mkdir(self._aside, dirname)
            self._disk.fsync(self._aside)
        return self._disk.open_dir_at(self._aside, dirname)

    def _copy(self, dirfd: int, name: str, aside: int) -> None:
        """Copy a file to the side directory, durable on return."""
        source = open_file(self._disk, dirfd, name)
        try:
            target = self._disk.open(aside, name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                offset = self._disk.next_data(source, 0)
                while data := self._disk.pread(source, _COPY, offset):
                    # A file that has grown by zeros has no room in full beside itself.
                    if not is_blank(data):
                        self._disk.pwrite(target, data, offset)
                    offset = self._disk.next_data(source, offset + len(data))
                self._disk.ftruncate(target, offset)
                self._disk.fsync(target)
            finally:
                self._disk.close(target)
        finally:
            self._disk.close(source)
        self._disk.fsync(aside)

    def _remove(self, dirfd: int, names: Iterable[str]) -> None:
        """Remove files that have been copied."""
        self._env.owner.confirm()
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(dirfd, name)
        self._disk.fsync(dirfd)


def open_aside(disk: Disk, path: str) -> int:
    """Create the side directory and open it. Raises ``OSError``; it must not exist yet."""
    os.mkdir(path, 0o700)
    return disk.open_dir(path)


def _left_out(c: _Checked) -> str:
    """What a slice is written again without."""
    others = c.slice.located - c.slice.entries
    more = f" and {others} that do not count" if others else ""
    return f"{len(c.wrong) + len(c.slice.bad)} bad records{more}"


def _ranges_of(files: ChannelFiles, s: SliceFile) -> list[tuple[int, int]]:
    if s.entries == s.last - s.first + 1:
        return [(s.first, s.last)]
    index = files.entries_of(s)
    return _gather([records.entry(index, k)[0] for k in range(s.entries)])


def _gather(sequences: list[int]) -> list[tuple[int, int]]:
    """Ascending sequences as ranges."""
    ranges: list[tuple[int, int]] = []
    for sequence in sequences:
        if ranges and ranges[-1][1] == sequence - 1:
            ranges[-1] = (ranges[-1][0], sequence)
        else:
            ranges.append((sequence, sequence))
    return ranges


def _holes(held: list[tuple[int, int]], first: int, last: int) -> list[tuple[int, int]]:
    """The sequences from ``first`` to ``last`` that no range of ``held`` has."""
    holes = []
    at = first or 1
    for a, b in sorted(held):
        if a > at:
            holes.append((at, a - 1))
        at = max(at, b + 1)
    if at <= last:
        holes.append((at, last))
    return holes


def _shown(ranges: list[tuple[int, int]]) -> str:
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in ranges)
