"""A datastore made from messages that somebody kept: same sequences, timestamps and bytes, in an
empty directory.

Two halves. ``SliceWriter`` turns the messages of one channel, in their order, into slices under
temporary names; any process that sees the directory may do so, it needs no ownership. ``Restoring``
is the owner's half (lock, claim and record are held, as by a node): it gives finished slices their
names, keeps account of how far it came, and completes the store. It never touches a directory that
holds anything but its own unfinished work.

Until the end a ``server.dat`` that every server refuses stands in the root, so that nobody serves
half a store. What comes out is what the original writes: slices numbered from 1, dense inside, a
``subs.dat`` without records. Missing sequences end a slice, and are written down as accepted, as by
a repair.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ftstan.base.errors import DamageError, StoreError
from ftstan.base.reserved import RESERVED_HINT, is_reserved
from ftstan.stores import protos
from ftstan.stores.file.env import TEMPORARY
from ftstan.stores.file.log import records
from ftstan.stores.file.log.slices import dat_name, idx_name, show
from ftstan.stores.file.state import repaired
from ftstan.stores.file.state.statefile import read_whole, replace_file
from ftstan.stores.file.tools.changing import source_of, start_and_stop
from ftstan.stores.file.tools.verifying import DefectKind, check_channel
from ftstan.wire.block import MsgBlock
from ftstan.wire.subjects import valid_channel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ftstan.base.disk import Disk
    from ftstan.stores.encryption.cipher import ChannelKeys
    from ftstan.stores.file.env import FileEnv
    from ftstan.stores.file.log.records import Crc
    from ftstan.stores.interface import ServerInfo

#: In the root while a restore is not finished: its plan, and how far it came.
ACCOUNT: Final = "restore.json"

#: What stands in ``server.dat`` meanwhile; no server knows a file of this version.
GUARD: Final = b"this datastore is not complete: run the restore again, or remove the directory\n"

_FORMAT = 1
_FLUSH = 1 << 20
_TOKEN_BITS = 62
_SERVER = "server.dat"
_OWNED = re.compile(
    r"\.rootdir\.lck\Z|ft\.(epoch|watch|claim\.[0-9]+)\Z|tmp\.|\.nfs[0-9a-f]{8}|lost\+found\Z"
)
_SLICE = re.compile(r"msgs\.([1-9][0-9]*)\.(?:dat|idx)\Z")


@dataclass(frozen=True, slots=True)
class Written:
    """A slice under its temporary name: messages ``first`` to ``last``, all there.

    ``size`` bytes of ``.dat``.
    """

    channel: str
    first: int
    last: int
    size: int
    stem: str

    @property
    def count(self) -> int:
        """Messages in it."""
        return self.last - self.first + 1


def new_token() -> int:
    """What tells one attempt to write slices from every other."""
    return secrets.randbits(_TOKEN_BITS)


class SliceWriter:
    """The messages of one channel, written into slices of about ``max_bytes`` and at most
    ``max_msgs`` (0: any number).

    ``token`` must be new for every attempt (``new_token``): one that was given up may still be
    writing.
    """

    def __init__(
        self,
        disk: Disk,
        dirfd: int,
        channel: bytes,
        token: int,
        crc: Crc,
        *,
        max_bytes: int,
        max_msgs: int = 0,
        keys: ChannelKeys | None = None,
    ) -> None:
        """``dirfd``: an open handle of the channel's directory, which this object does not
        close. ``keys`` encrypt the payloads; without them they are written as they come.
        """
        self._keys = keys
        self._disk = disk
        self._dirfd = dirfd
        self._channel = channel
        self._token = token
        self._crc = crc
        self._max_bytes = max_bytes
        self._max_msgs = max_msgs
        self._block = MsgBlock()
        self._fds: tuple[int, int] | None = None
        self._stem = ""
        self._first = self._last = 0
        self._end = 0
        self._newest = (0, b"", b"")
        self._written: list[Written] = []
        self.duplicates = 0
        """Messages that came twice with the same content, and were written once."""

    def add(self, sequence: int, timestamp: int, data: bytes, reply: bytes = b"") -> None:
        """Write one message; ``timestamp`` in Unix nanoseconds.

        Raises ``DamageError``, ``StoreError``, ``OSError``.
        """
        content = (timestamp, data, reply)
        if self._last and sequence <= self._last:
            if sequence < self._last:
                raise StoreError(
                    f'channel "{show(self._channel)}": sequence {sequence} comes behind '
                    f"{self._last}"
                )
            if content != self._newest:
                raise DamageError(
                    f'channel "{show(self._channel)}": sequence {sequence} has two contents',
                    hint="nothing was chosen; find out where they come from, and restore from "
                    "one of the sources",
                )
            self.duplicates += 1
            return
        if sequence < 1:
            raise StoreError(
                f'channel "{show(self._channel)}": {sequence} is no sequence; they begin at 1'
            )
        if self._fds is not None and (sequence != self._last + 1 or self._is_full()):
            self.cut()
        if self._fds is None:
            self._open(sequence)
        stored = self._keys.record(data) if self._keys is not None else data
        self._block.append(sequence, self._channel, reply, stored, timestamp)
        self._last = sequence
        self._newest = content
        if self._block.nbytes >= _FLUSH:
            self._flush()

    def cut(self) -> None:
        """End the slice, durable on return; the next message begins another one."""
        if self._fds is None:
            return
        self._flush()
        fds = self._fds
        self._fds = None
        try:
            for fd in fds:
                self._disk.fsync(fd)
        finally:
            for fd in fds:
                self._disk.close(fd)
        self._written.append(
            Written(os.fsdecode(self._channel), self._first, self._last, self._end, self._stem)
        )

    def finish(self) -> list[Written]:
        """End the last slice; returns all of them, in their order."""
        self.cut()
        return self._written

    def abandon(self) -> None:
        """Close what is open; the next owner removes what was written."""
        fds = self._fds or ()
        self._fds = None
        for fd in fds:
            with contextlib.suppress(OSError):
                self._disk.close(fd)

    def _is_full(self) -> bool:
        return (
            self._end + self._block.nbytes >= self._max_bytes
            or 0 < self._max_msgs <= self._last - self._first + 1
        )

    def _open(self, sequence: int) -> None:
        # Digits alone: the next start of a server removes what an attempt that was given up wrote
        # after the end.
        self._stem = f"{TEMPORARY}{self._token}{sequence:019d}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        dat = self._disk.open(self._dirfd, f"{self._stem}.dat", flags)
        try:
            idx = self._disk.open(self._dirfd, f"{self._stem}.idx", flags)
        except OSError:
            self._disk.close(dat)
            raise
        self._fds = (dat, idx)
        for fd in self._fds:
            self._disk.pwrite(fd, records.VERSION, 0)
        self._first = sequence
        self._end = records.VERSION_SIZE

    def _flush(self) -> None:
        block = self._block
        self._block = MsgBlock()
        if not len(block):
            return
        assert self._fds is not None
        dat, idx = self._fds
        records.seal(block, self._crc)
        start, stop = records.span(block, 0, len(block))
        with memoryview(block) as view:
            self._disk.pwrite(dat, view[start:stop], self._end)
        entries = records.index_entries(block, 0, len(block), self._end, self._crc)
        self._disk.pwrite(
            idx, entries, records.VERSION_SIZE + records.INDEX_SIZE * (block.first - self._first)
        )
        self._end += stop - start


@dataclass(slots=True)
class ChannelAccount:
    """What a channel holds so far: ``slices`` have names, ``missing`` are ranges of sequences that
    nobody has.
    """

    slices: int = 0
    first: int = 0
    last: int = 0
    count: int = 0
    size: int = 0
    missing: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Account:
    """How far a restore came: ``done`` of the steps of ``plan``.

    ``identity`` says what is restored, and how.
    """

    identity: str
    plan: Any
    done: int = 0
    channels: dict[str, ChannelAccount] = field(default_factory=dict)


def find_account(disk: Disk, root: int, path: str) -> Account | None:
    """What an unfinished restore left in the root, ``None`` if the directory is empty.

    Raises ``StoreError`` if it holds anything else: nothing of it was touched.
    """
    data = read_whole(disk, root, ACCOUNT)
    if data is not None and read_whole(disk, root, _SERVER) != GUARD:
        # A server may have been started on it since, and what it stored is not ours to remove.
        raise StoreError(
            f"{path} holds a datastore that was restored to its end",
            hint=f"start a server on it; {ACCOUNT} can be removed",
        )
    if data is None:
        other = sorted(name for name, _ in disk.listdir(root) if not _OWNED.match(name))
        # Who died before the account was written left the guard alone.
        if other and not (other == [_SERVER] and read_whole(disk, root, _SERVER) == GUARD):
            raise StoreError(
                f"{path} is not empty: it holds {other[0]!r}",
                hint="restore into a directory that is new or empty",
            )
        return None
    try:
        said = json.loads(data)
        if said["format"] != _FORMAT:
            raise StoreError(
                f"{path}: {ACCOUNT} is of another release",
                hint="end the restore with that one, or start in a new directory",
            )
        channels = {
            name: ChannelAccount(**{**row, "missing": [(a, b) for a, b in row["missing"]]})
            for name, row in said["channels"].items()
        }
        return Account(said["identity"], said["plan"], said["done"], channels)
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(
            f"{path}: {ACCOUNT} cannot be read: {error}",
            hint="remove the directory, and restore into a new one",
        ) from error


class Restoring:
    """One restore into a store that we own.

    The caller carries out the steps of ``account.plan`` in their order.
    """

    def __init__(self, env: FileEnv, account: Account) -> None:
        self._env = env
        self.account = account

    def begin(self) -> None:
        """Put the guard and the account into the root, and remove what steps that did not end left
        behind.
        """
        env = self._env
        env.disk.close(replace_file(env, env.root, _SERVER, GUARD))
        self._save()
        for name, is_dir in env.disk.listdir(env.root):
            if is_dir and valid_channel(os.fsencode(name)):
                self._remove_unfinished(name)

    def open_channel(self, name: str) -> None:
        """Make a channel's directory, durable on return.

        Raises ``StoreError`` if the name cannot be one.
        """
        env = self._env
        if not valid_channel(os.fsencode(name)):
            raise StoreError(
                f"{name!r} cannot be the name of a channel", hint="choose the channels to restore"
            )
        if is_reserved(os.fsencode(name)):
            raise StoreError(f"{name!r} cannot be the name of a channel", hint=RESERVED_HINT)
        env.owner.confirm()
        with contextlib.suppress(FileExistsError):
            env.disk.mkdir(env.root, name)
        env.disk.fsync(env.root)

    def complete(self, slices: Iterable[Written], *, allow_gaps: bool = False) -> None:
        """Give the slices of one step their names, and count the step as done.

        Raises ``DamageError`` if two hold the same sequence, or one is missing between them and
        ``allow_gaps`` was not given; nothing has got a name then.
        """
        env = self._env
        rows = sorted(slices, key=lambda s: (s.channel, s.first))
        accounts = self._counted(rows, allow_gaps=allow_gaps)
        at = 0
        while at < len(rows):
            channel = rows[at].channel
            number = self._account_of(channel).slices
            dirfd = env.disk.open_dir_at(env.root, channel)
            try:
                while at < len(rows) and rows[at].channel == channel:
                    number += 1
                    self._name(dirfd, rows[at], number)
                    at += 1
                env.disk.fsync(dirfd)
            finally:
                env.disk.close(dirfd)
        self.account.channels.update(accounts)
        self.account.done += 1
        self._save()

    def finish(
        self,
        info: ServerInfo,
        *,
        verify: bool = True,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Complete the store: state files, a look at every byte unless ``verify`` is false, a start
        and a clean stop.

        ``progress`` is told how many bytes were read. Raises ``DamageError`` if what is on disk is
        not what was written, and ``StoreError``.
        """
        env = self._env
        for name, account in self.account.channels.items():
            self._remove_unfinished(name)
            dirfd = env.disk.open_dir_at(env.root, name)
            try:
                env.disk.close(replace_file(env, dirfd, "subs.dat", records.VERSION))
                if account.missing:
                    repaired.write(env, dirfd, account.missing)
            finally:
                env.disk.close(dirfd)
        if verify:
            self._verify(progress)
        env.disk.close(replace_file(env, env.root, "clients.dat", records.VERSION))
        data = records.VERSION + records.untyped_record(protos.encode_server(info), env.crc)
        env.disk.close(replace_file(env, env.root, _SERVER, data))
        env.owner.confirm()
        env.disk.unlink(env.root, ACCOUNT)
        env.disk.fsync(env.root)
        if quarantined := start_and_stop(env, inherited=False):
            raise DamageError(
                f"the restored datastore has damaged channels: {', '.join(quarantined)}",
                hint=f"run: ftstanctl store verify {env.path}",
            )

    def _verify(self, progress: Callable[[int], None]) -> None:
        for name in self.account.channels:
            for finding in check_channel(source_of(self._env), os.fsencode(name), progress):
                if finding.kind is DefectKind.DAMAGE:
                    raise DamageError(
                        f"{finding.file} reads back as something else: {finding.text}",
                        hint="check the storage and the kernel log of this host, then restore "
                        "into a new directory",
                    )

    def _account_of(self, channel: str) -> ChannelAccount:
        return self.account.channels.get(channel) or ChannelAccount()

    def _counted(self, rows: Sequence[Written], *, allow_gaps: bool) -> dict[str, ChannelAccount]:
        """The channels' accounts with these slices in them."""
        counted: dict[str, ChannelAccount] = {}
        for row in rows:
            if row.channel not in counted:
                old = self._account_of(row.channel)
                counted[row.channel] = ChannelAccount(
                    **{**asdict(old), "missing": list(old.missing)}
                )
            account = counted[row.channel]
            if account.count and row.first <= account.last:
                raise DamageError(
                    f'channel "{show(os.fsencode(row.channel))}": sequence {row.first} was '
                    "written twice",
                    hint="run the restore again in a new directory",
                )
            if account.count and row.first != account.last + 1:
                account.missing.append((account.last + 1, row.first - 1))
                if not allow_gaps:
                    raise DamageError(
                        f'channel "{show(os.fsencode(row.channel))}": sequences '
                        f"{account.last + 1} to {row.first - 1} "
                        "are missing",
                        hint="find them in another source, or allow gaps",
                    )
            account.first = account.first or row.first
            account.last = row.last
            account.slices += 1
            account.count += row.count
            account.size += row.size
        return counted

    def _name(self, dirfd: int, row: Written, number: int) -> None:
        disk = self._env.disk
        self._env.owner.confirm()
        try:
            # Data first: without its index a slice is read through its data, an index without data
            # is an orphan.
            disk.rename(dirfd, f"{row.stem}.dat", dat_name(number))
            disk.rename(dirfd, f"{row.stem}.idx", idx_name(number))
        except FileNotFoundError as error:
            raise StoreError(
                f"{row.channel}/{row.stem}.dat was written by an executor and is not to be seen "
                "here",
                hint="the directory must be on storage that the driver and every executor share",
            ) from error

    def _remove_unfinished(self, channel: str) -> None:
        env = self._env
        keep = self._account_of(channel).slices
        dirfd = env.disk.open_dir_at(env.root, channel)
        try:
            for name, is_dir in sorted(env.disk.listdir(dirfd)):
                found = _SLICE.match(name)
                if not is_dir and (name.startswith(TEMPORARY) or (found and int(found[1]) > keep)):
                    env.owner.confirm()
                    env.disk.unlink(dirfd, name)
            env.disk.fsync(dirfd)
        finally:
            env.disk.close(dirfd)

    def _save(self) -> None:
        env = self._env
        account = self.account
        said = {"format": _FORMAT, **asdict(account)}
        env.disk.close(replace_file(env, env.root, ACCOUNT, json.dumps(said).encode()))
