"""Deletion: how a channel goes as a whole, although no file system removes a directory with its files at once.

First an intent is made visible in the root, durable, under a name that the original server ignores; then, after another
confirm, the files go, lowest slice first, each index before its data, then the directory, then the intent. Whoever
starts on what a crash left finishes that before it serves the channel, unless the channel was used after the intent was
written: then the intent is dropped. Every step can be repeated.

An intent becomes visible by a rename, and a successor removes the temporaries of the root before it looks: so an intent
that it finds was there before it came, and nobody but its writer can have used the channel since.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.log import stream as log
from ftstan.stores.file import records
from ftstan.stores.file.env import NUMBERS_PER_EPOCH, FileEnv
from ftstan.stores.file.leftovers import is_leftover, remove_leftover
from ftstan.stores.file.regular import IrregularError, open_file
from ftstan.stores.file.view import idx_name, show

if TYPE_CHECKING:
    from collections.abc import Iterable

_PREFIX = "ft.deleting."
_NAME = re.compile(re.escape(_PREFIX) + r"[0-9a-f]{32}\.[1-9][0-9]{0,17}\Z")
_MAGIC = b"ftstan deletion 1\n"
_SLICE = re.compile(r"msgs\.([1-9][0-9]{0,17})\.(?:dat|idx)(?:\.bak)?\Z")
_DAT = re.compile(r"msgs\.([1-9][0-9]{0,17})\.dat\Z")


@dataclass(frozen=True, slots=True)
class Intent:
    """What its writer knew: its epoch, the channel's last sequence and its highest slice number."""

    channel: bytes
    epoch: int
    last: int
    highest: int

    @property
    def file_name(self) -> str:
        """Name in the root: channel names can be too long and too odd for one.

        The epoch is part of it: a late unlink of a former owner does not hit the intent of its successor.
        """
        return f"{_PREFIX}{hashlib.sha256(self.channel).hexdigest()[:32]}.{self.epoch}"

    def encode(self, env: FileEnv) -> bytes:
        """The file's bytes."""
        body = _MAGIC + b"%d %d %d\n" % (self.epoch, self.last, self.highest) + self.channel
        return body + b"\n%08x\n" % env.crc(body)


def decode(env: FileEnv, data: bytes) -> Intent | None:
    """The intent in a file, ``None`` if its bytes are not what was written."""
    body, _, checksum = data.removesuffix(b"\n").rpartition(b"\n")
    if not body.startswith(_MAGIC) or checksum != b"%08x" % env.crc(body):
        return None
    numbers, _, channel = body.removeprefix(_MAGIC).partition(b"\n")
    epoch, last, highest = (int(n) for n in numbers.split(b" "))
    return Intent(channel, epoch, last, highest)


def declare(env: FileEnv, channel: bytes, last: int, highest: int) -> Intent:
    """Make the intent visible and durable.

    Raises ``FencedError``, and ``OSError``: then it may be visible all the same, and must be taken back (``retract``).
    """
    disk = env.disk
    intent = Intent(channel, _epoch(env), last, highest)
    temporary = env.temporary("deleting")
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(env.root, temporary)
    fd = disk.open(env.root, temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        disk.pwrite(fd, intent.encode(env), 0)
        disk.fsync(fd)
        env.owner.confirm()
        disk.rename(env.root, temporary, intent.file_name)
        disk.fsync(env.root)
    finally:
        disk.close(fd)
    return intent


def _epoch(env: FileEnv) -> int:
    return env.owner.slice_base // NUMBERS_PER_EPOCH + 1


@dataclass(frozen=True, slots=True)
class Retraction:
    """Names under which an intent may have become visible, as its writer gave them: its epoch may be higher by now."""

    channel: bytes
    names: tuple[str, str]


def retraction_of(env: FileEnv, channel: bytes) -> Retraction:
    """What must go if a ``declare`` that begins now fails."""
    return Retraction(channel, (env.temporary("deleting"), Intent(channel, _epoch(env), 0, 0).file_name))


def retract(env: FileEnv, what: Retraction) -> None:
    """Take back an intent that could not be made durable. Raises ``OSError``; call again."""
    disk = env.disk
    for name in what.names:
        env.owner.confirm()
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(env.root, name)
    disk.fsync(env.root)


def carry_out(env: FileEnv, intent: Intent) -> None:
    """Remove the channel's files, its directory and the intent, durable on return. Raises ``OSError``; call again."""
    disk, dirname = env.disk, os.fsdecode(intent.channel)
    try:
        dirfd = disk.open_dir_at(env.root, dirname)
    except FileNotFoundError:
        pass
    else:
        try:
            _empty(env, dirfd)
            disk.fsync(dirfd)
        finally:
            disk.close(dirfd)
        env.owner.confirm()
        # A former owner that was paused between its confirm and this call may have come first.
        with contextlib.suppress(FileNotFoundError):
            disk.rmdir(env.root, dirname)
        disk.fsync(env.root)
    # Only now may the intent go: without it a directory that came back with a crash would be a channel again.
    env.owner.confirm()
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(env.root, intent.file_name)
    disk.fsync(env.root)


def _empty(env: FileEnv, dirfd: int) -> None:
    disk = env.disk
    for name, is_dir in _in_order(disk.listdir(dirfd)):
        if not is_dir:
            env.owner.confirm()
            if is_leftover(name):
                # One that stays makes the directory stay, and that is what is told.
                remove_leftover(disk, dirfd, name)
                continue
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(dirfd, name)
            continue
        below = disk.open_dir_at(dirfd, name)
        try:
            _empty(env, below)
        finally:
            disk.close(below)
        env.owner.confirm()
        disk.rmdir(dirfd, name)


def _in_order(names: Iterable[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Lowest slice first, an index before its data; then the rest, ``subs.dat`` with it."""

    def key(item: tuple[str, bool]) -> tuple[bool, int, bool, str]:
        name, is_dir = item
        found = None if is_dir else _SLICE.match(name)
        return found is None, int(found[1]) if found else 0, ".dat" in name, name

    return sorted(names, key=key)


def finish_pending(env: FileEnv) -> list[tuple[Intent, OSError]]:
    """At a start, before channels are listed: finish what was begun, drop what no longer holds.

    Returns what storage refuses to remove, and why: no channel of that name may be served before ``carry_out`` has
    succeeded. Raises ``OSError`` if it cannot be found out what was begun.
    """
    disk = env.disk
    refused = []
    for name, is_dir in sorted(disk.listdir(env.root)):
        if is_dir or name in env.occupied or not _NAME.match(name):
            continue
        fd = env.fresh.open(env.root, name, os.O_RDONLY)
        try:
            intent = decode(env, env.fresh.pread(fd, 1 << 16, 0))
        finally:
            env.fresh.close(fd)
        if intent is None or intent.file_name != name:
            log.warning(f'"{name}" in the datastore does not name a channel to delete: ignored')
        elif _used_since(env, intent):
            log.warning(f'channel "{show(intent.channel)}" was used after its deletion had been decided: it stays')
        else:
            try:
                carry_out(env, intent)
            except OSError as error:
                refused.append((intent, error))
            else:
                log.info(f'Channel "{show(intent.channel)}" has been deleted: a former server had begun to')
            continue
        env.owner.confirm()
        disk.unlink(env.root, name)
        disk.fsync(env.root)
    return refused


def _used_since(env: FileEnv, intent: Intent) -> bool:
    """Whether anything in the channel is newer than the intent: a higher slice, or a sequence that an index proves."""
    try:
        dirfd = env.disk.open_dir_at(env.root, os.fsdecode(intent.channel))
    except FileNotFoundError:
        return False
    try:
        try:
            number, end = _newest(env, dirfd)
        except IrregularError:
            # What it names cannot be known: the channel stays, and is quarantined.
            return True
        return number > intent.highest or end > intent.last
    finally:
        env.disk.close(dirfd)


def last_named(env: FileEnv, dirfd: int, last: int) -> int:
    """What to declare as the last sequence of a channel that ends at ``last``. Raises ``OSError``.

    The index of a batch that was refused may name more, which is no use that somebody made of the channel.
    """
    return max(last, _newest(env, dirfd)[1])


def _newest(env: FileEnv, dirfd: int) -> tuple[int, int]:
    """The highest slice number in a channel's directory, and the last sequence that its index proves."""
    numbers = [int(m[1]) for name, is_dir in env.disk.listdir(dirfd) if not is_dir and (m := _DAT.match(name))]
    number = max(numbers, default=0)
    return number, _proven_end(env, dirfd, number) if number else 0


def _proven_end(env: FileEnv, dirfd: int, number: int) -> int:
    try:
        fd = open_file(env.fresh, dirfd, idx_name(number))
    except FileNotFoundError:
        # Its index went first: the deletion had begun.
        return 0
    try:
        data = env.read_on(fd, records.VERSION_SIZE)
    finally:
        env.fresh.close(fd)
    return records.scan_index(data, env.crc).last
