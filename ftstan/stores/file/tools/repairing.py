"""Ending damage: what cannot be read goes to a directory beside the store, what can be read stays, nothing is renumbered.

First a *plan* is made by somebody who only reads; carried out, it copies every file that it is going to change to the
side directory, durable, and only then changes anything, each step after a confirm. Interrupted, it is run again. Messages
keep their sequences; a hole stays a hole; the last sequence never goes back, since ``confirmed.bin`` keeps it.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftstan.stores.file import confirmed, records
from ftstan.stores.file.confirmed import Confirmed, ConfirmedFile, epoch_of
from ftstan.stores.file.slices import show
from ftstan.stores.file.statefile import replace_file
from ftstan.stores.file.tools.checking import ACCEPTED, ChannelCheck, Finding, Kind, check_channel, check_root
from ftstan.stores.file.tools.exact import put_file
from ftstan.stores.file.tools.reading import ChannelFiles, SliceFile, Source, Typed, channel_names, read_clients

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ftstan.disk import Disk
    from ftstan.stores.file.env import FileEnv

_ENTRY = records.INDEX_SIZE
_COPY = 4 << 20


@dataclass(frozen=True, slots=True)
class Step:
    """One change, in words. ``channel`` is empty for the store's own files; ``file`` is relative to the root."""

    channel: bytes
    file: str
    text: str


@dataclass(slots=True)
class Plan:
    """What is damaged or left over in the root (channel ``b""``) and in the channels, and what would be done."""

    findings: dict[bytes, list[Finding]] = field(default_factory=dict)

    @property
    def steps(self) -> list[Step]:
        """What would be done, in order."""
        return [Step(f.channel, f.file, _text(f)) for found in self.findings.values() for f in found]

    @property
    def damaged(self) -> bool:
        """Whether there is damage among it."""
        return any(f.kind is Kind.DAMAGE for found in self.findings.values() for f in found)


def make_plan(source: Source, only: bytes | None, progress: Callable[[int], None] = lambda _: None) -> Plan:
    """Look for what must be repaired, in the channel ``only`` or everywhere. Raises ``OSError``."""
    plan = Plan()
    if only is None:
        plan.findings[b""] = [f for f in check_root(source) if f.kind is not Kind.NOTE]
    for name in [only] if only is not None else channel_names(source)[0]:
        found = [f for f in check_channel(source, name, progress) if f.kind is not Kind.NOTE]
        if found:
            plan.findings[name] = found
    return plan


def _text(finding: Finding) -> str:
    if finding.kind is Kind.LEFTOVER:
        return "move it to the side directory"
    if finding.file == "server.dat":
        return f"move it to the side directory, the next start writes a new one: {finding.text}"
    where = "" if finding.offset is None else f" at offset {finding.offset}"
    return f"keep what can be read: {finding.text}{where}"


class Repair:
    """Carries out a plan. ``aside``: an open handle of the side directory, which is empty at first."""

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

    # ---- the root ------------------------------------------------------------------------------------------------

    def _root(self, findings: list[Finding]) -> list[Step]:
        done = []
        for f in findings:
            self._copy(self._env.root, f.file, self._aside)
        for f in findings:
            if f.kind is Kind.LEFTOVER or f.file == "server.dat":
                self._remove(self._env.root, [f.file])
                done.append(Step(b"", f.file, "moved to the side directory"))
        if any(f.file == "clients.dat" for f in findings):
            typed, _ = read_clients(self._source)
            done.append(self._state(self._env.root, b"", "clients.dat", typed))
        return done

    def _state(self, dirfd: int, channel: bytes, name: str, typed: Typed) -> Step:
        """Replace a state file by its readable records."""
        rows = [records.typed_record(kind, payload, self._env.crc) for _, kind, payload in typed.rows]
        self._disk.close(replace_file(self._env, dirfd, name, records.VERSION + b"".join(rows)))
        shown = f"{show(channel)}/{name}" if channel else name
        lost = sum(bad.end - bad.start for bad in typed.bad)
        return Step(channel, shown, f"kept {len(rows)} records, left out {lost} bytes that are none")

    # ---- channels ------------------------------------------------------------------------------------------------

    def _channel(self, name: bytes, findings: list[Finding]) -> list[Step]:
        done: list[Step] = []
        with ChannelFiles(self._source, name) as files:
            aside = self._side_channel(name)
            try:
                for file in sorted(self._affected(files, findings)):
                    self._copy(files.dirfd, file, aside)
                self._disk.fsync(aside)
            finally:
                self._disk.close(aside)
            leftovers = [f.file.rpartition("/")[2] for f in findings if f.kind is Kind.LEFTOVER]
            if leftovers:
                self._remove(files.dirfd, leftovers)
                done += [Step(name, f"{show(name)}/{file}", "moved to the side directory") for file in leftovers]
            damaged = {f.file.rpartition("/")[2] for f in findings if f.kind is Kind.DAMAGE}
            if "subs.dat" in damaged:
                done.append(self._state(files.dirfd, name, "subs.dat", files.subs_file()))
            if damaged - {"subs.dat"}:
                done += self._log(files)
        return done

    def _affected(self, files: ChannelFiles, findings: list[Finding]) -> set[str]:
        """Files that may change: those that were found, and if the log is damaged all of it that is not exact."""
        affected = {f.file.rpartition("/")[2] for f in findings}
        if any(f.kind is Kind.DAMAGE and not f.file.endswith("/subs.dat") for f in findings):
            affected |= {name for s in files.all if self._must_change(files, s) for name in (s.dat, s.idx)}
            affected |= {confirmed.NAME, ACCEPTED}
        return {name for name in affected if name in files.names}

    def _must_change(self, files: ChannelFiles, s: SliceFile) -> bool:
        return not s.exact or not s.entries or any(ChannelCheck(self._source, files).bad_records(s, lambda _: None))

    def _log(self, files: ChannelFiles) -> list[Step]:
        """Leave in every slice what can be read and counts; the last sequence is kept in ``confirmed.bin``."""
        done: list[Step] = []
        self._remove(
            files.dirfd,
            [n for n in files.names if n.startswith("msgs.") and n.endswith(".dat") and not _known(files, n)],
        )
        said = files.confirmed
        last = max([files.last, *(s.claimed for s in files.all), *((said.sequence, said.last) if said else ())])
        # While slices change, what it says of them may be wrong; its last sequence is written again at the end.
        held: list[tuple[int, int]] = []
        top: tuple[int, int, int] | None = None
        for s in files.all:
            if not s.entries:
                self._remove(files.dirfd, [s.idx, s.dat])
                done.append(Step(files.name, f"{show(files.name)}/{s.dat}", "no message of it counts: moved aside"))
                continue
            kept = self._slice(files, s) if self._must_change(files, s) else _all_of(s)
            if kept is None:
                done.append(Step(files.name, f"{show(files.name)}/{s.dat}", "nothing of it can be read: moved aside"))
                continue
            ranges, end = kept
            held += ranges
            if top is None or ranges[-1][1] > top[1]:
                top = (s.number, ranges[-1][1], end)
            if self._must_change(files, s):
                count = sum(b - a + 1 for a, b in ranges)
                done.append(Step(files.name, f"{show(files.name)}/{s.dat}", f"kept {count} messages"))
        number, sequence, length = top or (0, 0, 0)
        ConfirmedFile(self._env).replace(
            files.dirfd, Confirmed(epoch_of(self._env), number, sequence, length, max(last, sequence))
        )
        missing = _holes(held, files.first, last)
        if missing:
            self._disk.close(
                replace_file(self._env, files.dirfd, ACCEPTED, json.dumps({"missing": missing}).encode() + b"\n")
            )
            lost = sum(b - a + 1 for a, b in missing)
            done.append(Step(files.name, show(files.name), f"{lost} messages are lost: sequences {_ranges(missing)}"))
        return done

    def _slice(self, files: ChannelFiles, s: SliceFile) -> tuple[list[tuple[int, int]], int] | None:
        """Rewrite a slice with its readable messages; returns the ranges of sequences, and its new size."""
        index = bytearray(records.VERSION)
        ranges: list[tuple[int, int]] = []
        end = records.VERSION_SIZE

        def write(fd: int) -> None:
            nonlocal end
            self._disk.pwrite(fd, records.VERSION, 0)
            checker = ChannelCheck(self._source, files)
            wrong = {bad.start for bad in checker.bad_records(s, lambda _: None)}
            for batch, data in files.batches(s):
                start = records.entry(batch, 0)[1]
                for k in range(len(batch) // _ENTRY):
                    sequence, offset, _, size = records.entry(batch, k)
                    if offset in wrong:
                        continue
                    record = data[offset - start : offset - start + 8 + size]
                    block, _, _ = records.scan_data(record, files.name, sequence - 1, self._env.crc)
                    self._disk.pwrite(fd, record, end)
                    index.extend(records.index_entries(block, 0, 1, end, self._env.crc))
                    end += len(record)
                    if ranges and ranges[-1][1] == sequence - 1:
                        ranges[-1] = (ranges[-1][0], sequence)
                    else:
                        ranges.append((sequence, sequence))

        put_file(self._env, files.dirfd, s.dat, s.number, write)
        if not ranges:
            self._remove(files.dirfd, [s.idx, s.dat])
            return None
        put_file(self._env, files.dirfd, s.idx, s.number, lambda fd: self._disk.pwrite(fd, index, 0))
        return ranges, end

    # ---- files ---------------------------------------------------------------------------------------------------

    def _side_channel(self, name: bytes) -> int:
        dirname = os.fsdecode(name)
        with contextlib.suppress(FileExistsError):
            self._disk.mkdir(self._aside, dirname)
            self._disk.fsync(self._aside)
        return self._disk.open_dir_at(self._aside, dirname)

    def _copy(self, dirfd: int, name: str, aside: int) -> None:
        """Copy a file to the side directory, durable on return."""
        source = self._disk.open(dirfd, name, os.O_RDONLY)
        try:
            target = self._disk.open(aside, name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                offset = 0
                while data := self._disk.pread(source, _COPY, offset):
                    self._disk.pwrite(target, data, offset)
                    offset += len(data)
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


def _known(files: ChannelFiles, name: str) -> bool:
    return any(name == s.dat for s in files.all)


def _all_of(s: SliceFile) -> tuple[list[tuple[int, int]], int]:
    return [(s.first, s.last)], s.end


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


def _ranges(ranges: list[tuple[int, int]]) -> str:
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in ranges)
