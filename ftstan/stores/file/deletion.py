"""Deletion: how a channel goes as a whole, although no file system removes a directory with its
files at once.

First an intent is made visible in the root, durable, under a name that the original server ignores;
then, after another confirm, the files go, ``subs.dat`` first, then the slices, lowest first, each
index before its data, then the rest, the directory, and the intent. Whoever starts on what a crash
left finishes that before it serves the channel, unless the channel was used after the intent was
written: then the intent is dropped. Every step can be repeated.

An intent becomes visible by a rename, and a successor removes the temporaries of the root before it
looks: so an intent that it finds was there before it came, and none of ours but its writer can have
used the channel since. An original server can: it knows no intents, and finds the channel, a part
of it, an empty directory or none. What it acknowledges then is in the newest slice that it finds or
in a higher one; where it finds none, in new ones from 1; and in ``subs.dat``, which it appends to
or makes. So the intent names the newest slice and ``subs.dat`` by their content, durable as it is,
and that slice goes when all others have durably gone. While it is as it was named, nothing was
stored; where it is not there, every slice is somebody's who came after. Times and inodes are not
asked, they can be the same again.

What came after stays where it is, and what is left of ours beside it must not speak of it
(``_keep``). That is put in its place by renames, and nothing is removed: a late removal could hit
the file of a successor, a late rename finds no source.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ftstan.base.log import stream as log
from ftstan.stores.file.env import NUMBERS_PER_EPOCH, FileEnv
from ftstan.stores.file.log import purge_mark, records
from ftstan.stores.file.log.view import dat_name, idx_name, show
from ftstan.stores.file.recovery.leftovers import is_leftover, remove_leftover
from ftstan.stores.file.recovery.measure import read_entries
from ftstan.stores.file.regular import IrregularError, open_file, sync_file
from ftstan.stores.file.state.confirmed import Confirmed, ConfirmedFile, read_confirmed
from ftstan.stores.file.state.statefile import read_file

if TYPE_CHECKING:
    from collections.abc import Iterable

_PREFIX = "ft.deleting."
_NAME = re.compile(re.escape(_PREFIX) + r"[0-9a-f]{32}\.[1-9][0-9]{0,17}\Z")
_MAGIC = b"ftstan deletion 2\n"
_SLICE = re.compile(r"msgs\.([1-9][0-9]{0,17})\.(?:dat|idx)(?:\.bak)?\Z")
_DAT = re.compile(r"msgs\.([1-9][0-9]{0,17})\.dat\Z")

_SUBS = "subs.dat"
#: Bytes of a slice that tell it from every other one: in its first record are sequence, time and a
#: checksum.
_HEAD = 4096
#: A mark with this time speaks of every log.
_LATEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Content:
    """A file as it was named: its size, and a checksum of its beginning.

    Without bytes: there was none.
    """

    size: int = 0
    crc: int = 0


@dataclass(frozen=True, slots=True)
class Intent:
    """What its writer knew: its epoch, the channel's last sequence, its newest slice (0: none) and
    what was in it.

    ``subs``: what was in ``subs.dat``.
    """

    channel: bytes
    epoch: int
    last: int
    number: int
    slice: Content = Content()
    subs: Content = Content()

    @property
    def file_name(self) -> str:
        """Name in the root: channel names can be too long and too odd for one.

        The epoch is part of it: a late unlink of a former owner does not hit the intent of its
        successor.
        """
        return f"{_PREFIX}{hashlib.sha256(self.channel).hexdigest()[:32]}.{self.epoch}"

    def encode(self, env: FileEnv) -> bytes:
        """The file's bytes."""
        numbers = (
            self.epoch,
            self.last,
            self.number,
            self.slice.size,
            self.slice.crc,
            self.subs.size,
            self.subs.crc,
        )
        body = _MAGIC + b" ".join(b"%d" % n for n in numbers) + b"\n" + self.channel
        return body + b"\n%08x\n" % env.crc(body)


def decode(env: FileEnv, data: bytes) -> Intent | None:
    """The intent in a file, ``None`` if its bytes are not what was written."""
    body, _, checksum = data.removesuffix(b"\n").rpartition(b"\n")
    if not body.startswith(_MAGIC) or checksum != b"%08x" % env.crc(body):
        return None
    numbers, _, channel = body.removeprefix(_MAGIC).partition(b"\n")
    epoch, last, number, *contents = (int(n) for n in numbers.split(b" "))
    return Intent(channel, epoch, last, number, Content(*contents[:2]), Content(*contents[2:]))


def declare(env: FileEnv, channel: bytes, last: int) -> Intent:
    """Make the intent visible and durable. ``last``: the channel's last sequence.

    From here on nobody may write to the channel. Raises ``FencedError``, and ``OSError``: then it
    may be visible all the same, and must be taken back (``retract``).
    """
    disk = env.disk
    intent = _intent(env, channel, last)
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


def _intent(env: FileEnv, channel: bytes, last: int) -> Intent:
    """What is to be deleted, as it is; what is named by its content is durable."""
    try:
        dirfd = env.disk.open_dir_at(env.root, os.fsdecode(channel))
    except FileNotFoundError:
        # A former owner's late rmdir took it, empty (``directory.py``).
        return Intent(channel, _epoch(env), last, 0)
    try:
        number = max(_numbers(env, dirfd), default=0)
        names = {name for name, is_dir in env.disk.listdir(dirfd) if not is_dir}
        for name in sorted({dat_name(number), _SUBS} & names):
            # What a power cut takes back of them would look like somebody's work.
            sync_file(env.disk, dirfd, name)
        # The index of a batch that was refused may name more, which is no use that somebody made of
        # the channel.
        last = max(last, _proven_end(env, dirfd, number))
        return Intent(
            channel, _epoch(env), last, number, _slice(env, dirfd, number), _subs(env, dirfd)
        )
    finally:
        env.disk.close(dirfd)


def _epoch(env: FileEnv) -> int:
    return env.owner.slice_base // NUMBERS_PER_EPOCH + 1


@dataclass(frozen=True, slots=True)
class Retraction:
    """Names under which an intent may have become visible, as its writer gave them: its epoch may
    be higher by now.
    """

    channel: bytes
    names: tuple[str, str]


def retraction_of(env: FileEnv, channel: bytes) -> Retraction:
    """What to remove if a ``declare`` that begins now fails."""
    return Retraction(
        channel, (env.temporary("deleting"), Intent(channel, _epoch(env), 0, 0).file_name)
    )


def retract(env: FileEnv, what: Retraction) -> None:
    """Take back an intent that could not be made durable. Raises ``OSError``; call again."""
    disk = env.disk
    for name in what.names:
        env.owner.confirm()
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(env.root, name)
    disk.fsync(env.root)


def carry_out(env: FileEnv, intent: Intent) -> None:
    """Remove the channel's files, its directory and the intent, durable on return.

    Raises ``OSError``; call again.
    """
    disk = env.disk
    dirname = os.fsdecode(intent.channel)
    try:
        dirfd = disk.open_dir_at(env.root, dirname)
    except FileNotFoundError:
        pass
    else:
        try:
            empty_directory(env, dirfd, intent.number)
            disk.fsync(dirfd)
        finally:
            disk.close(dirfd)
        env.owner.confirm()
        # A former owner that was paused between its confirm and this call may have come first.
        with contextlib.suppress(FileNotFoundError):
            disk.rmdir(env.root, dirname)
        disk.fsync(env.root)
    # Only now may the intent go: without it a directory that came back with a crash would be a
    # channel again.
    env.owner.confirm()
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(env.root, intent.file_name)
    disk.fsync(env.root)


def empty_directory(env: FileEnv, dirfd: int, newest: int = 0) -> None:
    """Remove what is in a directory.

    The data of the slice ``newest`` go when those before it have durably gone.
    """
    disk = env.disk
    for name, is_dir in _in_order(disk.listdir(dirfd)):
        if not is_dir:
            if newest and name == dat_name(newest):
                disk.fsync(dirfd)
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
            empty_directory(env, below)
        finally:
            disk.close(below)
        env.owner.confirm()
        disk.rmdir(dirfd, name)


def _in_order(names: Iterable[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """``subs.dat``, then the slices, lowest first and an index before its data, then the rest."""

    def key(item: tuple[str, bool]) -> tuple[int, int, bool, str]:
        name, is_dir = item
        found = None if is_dir else _SLICE.match(name)
        rank = 1 if found else 2 * (name != _SUBS or is_dir)
        return rank, int(found[1]) if found else 0, ".dat" in name, name

    return sorted(names, key=key)


def finish_pending(env: FileEnv) -> list[tuple[Intent, OSError]]:
    """At a start, before channels are listed: finish what was begun, drop what no longer holds.

    Returns what storage refuses to remove, and why: no channel of that name may be served before
    ``carry_out`` has succeeded. Raises ``OSError`` if it cannot be found out what was begun.
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
            _keep(env, intent)
            log.warning(
                f'channel "{show(intent.channel)}" was used after its deletion had been decided: '
                "it stays"
            )
        else:
            try:
                # Its writer may have died before its name was durable: a power cut that took the
                # name back, and not what was removed, would leave a part of the channel.
                disk.fsync(env.root)
                carry_out(env, intent)
            except OSError as error:
                refused.append((intent, error))
            else:
                log.info(
                    f'Channel "{show(intent.channel)}" has been deleted: a former server had '
                    "begun to"
                )
            continue
        env.owner.confirm()
        disk.unlink(env.root, name)
        disk.fsync(env.root)
    return refused


def _used_since(env: FileEnv, intent: Intent) -> bool:
    """Whether somebody has stored messages in the channel, or subscriptions, since the intent was
    written.
    """
    try:
        dirfd = env.disk.open_dir_at(env.root, os.fsdecode(intent.channel))
    except FileNotFoundError:
        return False
    try:
        numbers = _numbers(env, dirfd)
        while True:
            try:
                return _has_new_messages(env, dirfd, numbers, intent) or _has_new_subs(
                    env, dirfd, intent
                )
            except FileNotFoundError:
                # A former owner that was paused behind a confirm of this deletion removes what was
                # listed.
                before = numbers
                numbers = _numbers(env, dirfd)
                if numbers == before:
                    raise
            except IrregularError:
                # What it names cannot be known: the channel stays, and is quarantined.
                return True
    finally:
        env.disk.close(dirfd)


def _has_new_messages(env: FileEnv, dirfd: int, numbers: set[int], intent: Intent) -> bool:
    if intent.number not in numbers:
        # All that was named has gone, lower ones before it.
        return bool(numbers)
    if max(numbers) > intent.number or _slice(env, dirfd, intent.number) != intent.slice:
        return True
    return _proven_end(env, dirfd, intent.number) > intent.last


def _has_new_subs(env: FileEnv, dirfd: int, intent: Intent) -> bool:
    # A start of an original alone makes the file, with nothing in it.
    found = _subs(env, dirfd)
    return found.size > records.VERSION_SIZE and found != intent.subs


def _keep(env: FileEnv, intent: Intent) -> None:
    """Leave the channel to whoever used it, such that what is left of ours there does not speak of
    what is theirs.

    ``confirmed.bin`` is then of no epoch, so that starts read the channel with the care that an
    original server's work needs, until one of ours has. Where no slice of ours is left neither it
    nor a mark of a purge says anything.
    """
    dirfd = env.disk.open_dir_at(env.root, os.fsdecode(intent.channel))
    try:
        known = Confirmed(0, 0, 0, 0, 0)
        if _is_left(env, dirfd, intent):
            known = read_confirmed(env.fresh, dirfd) or known
        elif env.is_there(dirfd, purge_mark.NAME):
            purge_mark.write(env, dirfd, purge_mark.Mark(0, _LATEST))
        ConfirmedFile(env).replace(dirfd, replace(known, epoch=0))
    finally:
        env.disk.close(dirfd)


def _numbers(env: FileEnv, dirfd: int) -> set[int]:
    """The numbers of the slices in a channel's directory."""
    return {
        int(m[1])
        for name, is_dir in env.disk.listdir(dirfd)
        if not is_dir and (m := _DAT.match(name))
    }


def _is_left(env: FileEnv, dirfd: int, intent: Intent) -> bool:
    """Whether the newest slice is the one that was named, whatever was written behind it: others
    may be left, too.
    """
    named = intent.slice
    try:
        found = _slice(env, dirfd, intent.number, min(named.size, _HEAD))
    except FileNotFoundError:
        return False
    return found.size >= named.size > records.VERSION_SIZE and found.crc == named.crc


def _slice(env: FileEnv, dirfd: int, number: int, head: int = _HEAD) -> Content:
    if not number:
        return Content()
    fd = open_file(env.fresh, dirfd, dat_name(number))
    try:
        return Content(env.size(fd), zlib.crc32(env.fresh.pread(fd, head, 0)))
    finally:
        env.fresh.close(fd)


def _subs(env: FileEnv, dirfd: int) -> Content:
    data = read_file(env, dirfd, _SUBS) or b""
    return Content(len(data), zlib.crc32(data))


def _proven_end(env: FileEnv, dirfd: int, number: int) -> int:
    """The last sequence that the index of a slice proves; 0 if there is none: it goes first."""
    return records.scan_index(read_entries(env, dirfd, idx_name(number)), env.crc).last
