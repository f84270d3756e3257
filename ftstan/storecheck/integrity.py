"""Three phases while the operator pulls plugs: ``format`` once, ``attack`` on every host,
``verify`` once at the end.

An attack behaves like a group: who has the lock writes numbered, checksummed records into a log of
its own number, syncs each and then notes in a journal *outside* the storage that it is durable; the
others wait for the lock. ``verify`` reads all logs and says whether every record that a journal
calls durable is there with its bytes. It needs no clock and believes nobody but the journals.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError, FtstanError, LockBusyError, LockFaultError, StoreError
from ftstan.ft.lock import StoreLock
from ftstan.storecheck.findings import Outcome, StorageFinding
from ftstan.storecheck.place import SCRATCH_PREFIX, cannot_write, empty, open_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ftstan.base.clock import Clock
    from ftstan.base.disk import Disk

INTEGRITY_NAME = f"{SCRATCH_PREFIX}integrity"
RECORD_SIZE = 4096

_MAGIC = b"FTSCHK01"
_HEAD_SIZE = len(_MAGIC) + 4 + 16
_FORMAT = "format"
_JOURNAL_LINE = "{log} {number}\n"
_NOT_FORMATTED = "run ftstanctl check-store --phase format there first"
_CHUNK = 1024 * RECORD_SIZE


def record(log: int, number: int) -> bytes:
    """The bytes of a record: magic, CRC-32 of the rest, number of the log, number of the record,
    and filling.
    """
    filling = bytes((log + number + i) & 0xFF for i in range(256)) * (RECORD_SIZE // 256 + 1)
    body = struct.pack("<QQ", log, number) + filling[: RECORD_SIZE - _HEAD_SIZE]
    return _MAGIC + struct.pack("<I", zlib.crc32(body)) + body


def format_place(disk: Disk, path: str) -> None:
    """Make the place of an attack. Raises ``StoreError`` if there is one already."""
    root = open_directory(disk, path)
    try:
        disk.mkdir(root, INTEGRITY_NAME)
        handle = disk.open_dir_at(root, INTEGRITY_NAME)
        try:
            fd = disk.open(handle, _FORMAT, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                disk.pwrite(fd, _MAGIC, 0)
                disk.fsync(fd)
            finally:
                disk.close(fd)
            disk.fsync(handle)
        finally:
            disk.close(handle)
        disk.fsync(root)
    except FileExistsError as error:
        raise StoreError(
            f"{path}: an attack is prepared there already",
            hint="go on with --phase attack, or end it with --phase verify --remove",
        ) from error
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        disk.close(root)


@contextlib.contextmanager
def opened(disk: Disk, path: str) -> Iterator[int]:
    """The place of an attack. Raises ``StoreError`` if there is none."""
    root = open_directory(disk, path)
    try:
        handle = disk.open_dir_at(root, INTEGRITY_NAME)
    except OSError as error:
        raise StoreError(f"{path}: no attack is prepared there", hint=_NOT_FORMATTED) from error
    finally:
        disk.close(root)
    try:
        yield handle
    finally:
        disk.close(handle)


@dataclass
class Attack:
    """One host's attack.

    ``told`` hears how far it is; ``done`` says when to stop; ``sleep`` waits seconds.
    """

    disk: Disk
    clock: Clock
    sleep: Callable[[float], None]
    path: str
    journal: str
    told: Callable[[str], None]
    done: Callable[[], bool]
    pause_s: float = 0.01

    def run(self) -> int:
        """Attack until ``done``; returns how many records were made durable.

        Raises ``StoreError``, ``OSError``.
        """
        durable = 0
        with opened(self.disk, self.path) as handle, self._open_journal() as journal:
            lock = StoreLock(self.disk, handle, self.path)
            try:
                while not self.done():
                    if not self._take(lock):
                        self.told("waiting for the lock")
                        self.sleep(0.2)
                        continue
                    durable += self._write_log(handle, lock, journal)
            finally:
                lock.release()
        return durable

    def _take(self, lock: StoreLock) -> bool:
        try:
            lock.acquire()
        except (LockBusyError, LockFaultError):
            return False
        return True

    def _write_log(self, handle: int, lock: StoreLock, journal: int) -> int:
        """Write one log until storage fails us, the lock is gone, or the end.

        Returns its durable records.
        """
        number, fd = self._new_log(handle)
        written = 0
        try:
            while not self.done():
                lock.verify()
                self.disk.pwrite(fd, record(number, written), written * RECORD_SIZE)
                self.disk.fdatasync(fd)
                os.write(journal, _JOURNAL_LINE.format(log=number, number=written).encode())
                os.fdatasync(journal)
                written += 1
                if written % 50 == 0:
                    self.told(f"log {number}: {written} records durable; pull a plug when you like")
                self.sleep(self.pause_s)
        except (OSError, FtstanError) as error:
            # What was pulled. The first error of a sync is final: nothing more goes into this log.
            self.told(f"log {number} ended after {written} records: {error}")
            self.sleep(1.0)
        finally:
            lock.release()
            with contextlib.suppress(OSError):
                self.disk.close(fd)
        return written

    def _new_log(self, handle: int) -> tuple[int, int]:
        """The next number that nobody has: created exclusively, and its name durable."""
        number = 1 + max((log for log, _ in _logs(self.disk, handle)), default=0)
        while True:
            try:
                fd = self.disk.open(handle, f"log.{number}", os.O_RDWR | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                number += 1
                continue
            self.disk.fsync(handle)
            return number, fd

    @contextlib.contextmanager
    def _open_journal(self) -> Iterator[int]:
        try:
            journal = os.open(
                self.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise ConfigError(
                f"journal {self.journal}: {error.strerror}",
                hint="give --journal a file on a disk of this host",
            ) from error
        try:
            yield journal
        finally:
            os.close(journal)


def verify(disk: Disk, asking: Disk, path: str, journals: Sequence[str]) -> list[StorageFinding]:
    """Hold the logs to the journals.

    Raises ``StoreError``, ``ConfigError`` for a journal that cannot be read.
    """
    noted = [entry for journal in journals for entry in read_journal(journal)]
    with opened(disk, path) as handle:
        logs = {log: _read_log(asking, handle, name) for log, name in _logs(disk, handle)}
    findings = []
    damaged = [
        f"log {log}, record {at}"
        for log, rows in sorted(logs.items())
        for at, ok in enumerate(rows)
        if not ok
    ]
    lost = sorted(
        {(log, at) for log, at in noted if at >= len(logs.get(log, [])) or not logs[log][at]}
    )
    if lost:
        text = (
            f"{len(lost)} records that were durable are gone or changed, first log {lost[0][0]}, "
            f"record {lost[0][1]}"
        )
        hint = (
            "this storage forgets what it has synced: check write caches, the export (sync), "
            "battery-backed caches"
        )
        findings.append(
            StorageFinding(
                "integrity", Outcome.BAD, text, hint, {"lost": len(lost), "durable": len(noted)}
            )
        )
    elif not noted:
        text = "the journals name no durable record: nothing was proved"
        findings.append(
            StorageFinding(
                "integrity", Outcome.BAD, text, "give the --journal of every host that attacked"
            )
        )
    else:
        text = f"all {len(noted)} records that were durable are there, in {len(logs)} logs"
        findings.append(
            StorageFinding(
                "integrity", Outcome.GOOD, text, figures={"durable": len(noted), "logs": len(logs)}
            )
        )
    unsynced = [
        place for place in damaged if place not in {f"log {log}, record {at}" for log, at in lost}
    ]
    if unsynced:
        text = (
            f"{len(unsynced)} records that nobody called durable are torn, which is allowed: "
            f"{unsynced[0]}"
        )
        findings.append(StorageFinding("integrity", Outcome.NOTE, text))
    return findings


def remove_place(disk: Disk, path: str) -> None:
    """Remove an attack's files. Raises ``StoreError`` if there is none."""
    with opened(disk, path) as handle:
        empty(disk, handle)
    root = open_directory(disk, path)
    try:
        disk.rmdir(root, INTEGRITY_NAME)
    finally:
        disk.close(root)


def read_journal(path: str) -> list[tuple[int, int]]:
    """``(log, record)`` of each line; a last line that was cut is left out.

    Raises ``ConfigError``.
    """
    try:
        with open(path, encoding="ascii") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"journal {path}: {error}", hint="give the file that --phase attack had"
        ) from error
    entries = []
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), 1):
        words = line.split()
        if len(words) != 2 or not all(word.isdigit() for word in words):
            raise ConfigError(
                f"{path}, line {number}: not a line of a journal", hint="lines are: log record"
            )
        entries.append((int(words[0]), int(words[1])))
    return entries


def _logs(disk: Disk, handle: int) -> list[tuple[int, str]]:
    names = [
        name for name, _ in disk.listdir(handle) if name.startswith("log.") and name[4:].isdigit()
    ]
    return sorted((int(name[4:]), name) for name in names)


def _read_log(asking: Disk, handle: int, name: str) -> list[bool]:
    """Of each record whether it is what was written; the last one may be cut."""
    number = int(name[4:])
    fd = asking.open(handle, name, os.O_RDONLY)
    try:
        size = asking.fstat(fd).size
        rows: list[bool] = []
        while len(rows) * RECORD_SIZE < size:
            data = asking.pread(fd, _CHUNK, len(rows) * RECORD_SIZE)
            pieces = [data[at : at + RECORD_SIZE] for at in range(0, len(data), RECORD_SIZE)]
            if not pieces:
                break
            rows += [piece == record(number, len(rows) + at) for at, piece in enumerate(pieces)]
    finally:
        asking.close(fd)
    return rows
