"""SliceView: the read-only half of a channel's log, and what a slice is.

Reads messages through the index entries of the slices that somebody measured (``recovery``). Opens
files for reading only, and never believes a directory listing or a file's size: what is not in
``slices`` does not exist.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ftstan.base.errors import DamageError, StoreError, StoreFullError
from ftstan.stores.file.env import FileEnv, is_full
from ftstan.stores.file.log import records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ftstan.wire.block import MsgBlock

_ENTRY = records.INDEX_SIZE
#: What a file server says of an open file that a former owner on another host has removed, and what
#: a client says that could not open it again when the server had restarted.
_OPEN_IN_VAIN = (errno.ESTALE, errno.EIO)
#: What is in memory at a time while a slice is copied.
_COPIED_MSGS = 16384
_COPIED_BYTES = 4 << 20


def dat_name(number: int) -> str:
    """File name of a slice's messages."""
    return f"msgs.{number}.dat"


def idx_name(number: int) -> str:
    """File name of a slice's index."""
    return f"msgs.{number}.idx"


@dataclass(slots=True)
class Slice:
    """What is known of one slice without reading it.

    ``first`` .. ``last``: sequences that count (a sealed slice may hold more bytes); ``entries`` of
    them, whose records end at offset ``end``. ``index`` holds all entries when the file of that
    name cannot be trusted for them.
    """

    number: int
    first: int
    last: int
    first_ts: int
    last_ts: int
    entries: int
    end: int
    contiguous: bool = True
    index: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes as limits count them: payload + 40 a message."""
        return self.end - records.VERSION_SIZE + 32 * self.entries


class Unreadable(NamedTuple):
    """A message that cannot be read: the file and the offset in it, its sequence, what is wrong."""

    file: str
    offset: int
    sequence: int
    why: str


class SliceView:
    """The messages of one channel: which slices hold them, and how to read one.

    Everything it reports is durable.
    """

    def __init__(self, env: FileEnv, name: bytes) -> None:
        self._env = env
        self.name = name
        self._dirfd = -1
        self.slices: list[Slice] = []
        self.first = 0
        self.last = 0
        self.count = 0
        self.size = 0
        self.last_timestamp = 0

    @property
    def dirfd(self) -> int:
        """The channel's directory.

        Good until other files are opened: ask again instead of keeping it.
        """
        files = self._env.files
        if self._dirfd < 0:
            self._dirfd = files.opened(
                self._env.disk.open_dir_at(self._env.root, os.fsdecode(self.name))
            )
        files.used((self.name, ""), self.park)
        return self._dirfd

    def park(self) -> None:
        """Close everything; it is opened again when it is needed."""
        files = self._env.files
        files.unused((self.name, ""))
        if self._dirfd >= 0:
            fd = self._dirfd
            self._dirfd = -1
            files.close(fd)

    def let_go(self, number: int) -> None:
        """Close the files of a slice whose names are about to go: NFS gives what is open then
        another name.
        """
        for name in (idx_name(number), dat_name(number)):
            self._env.files.forget(self.name, name)

    def read(self, sequence: int, max_msgs: int, max_bytes: int) -> MsgBlock | None:
        """Messages from the first existing one at or after ``sequence``.

        ``None`` behind the last.
        """
        sequence = max(sequence, self.first)
        if not self.count or sequence > self.last:
            return None
        for s in self.slices:
            if sequence <= s.last:
                break
        else:
            return None
        ahead = self._env.options.read_buffer_size
        return self._read_slice(
            s, max(sequence, s.first), min(max_msgs, ahead // _ENTRY), min(max_bytes, ahead)
        )

    def entries(self, s: Slice) -> bytes:
        """All index entries of a slice. Raises ``DamageError`` and ``OSError``."""
        return self._entries_from(s, s.first, s.entries)[0]

    def blocks(self, s: Slice, sequence: int) -> Iterator[MsgBlock]:
        """All records of a slice from ``sequence`` on, some megabytes at a time, also those that
        are dropped.

        Raises ``DamageError`` at the first that is not what was written, and ``OSError``.
        """
        while sequence <= s.last:
            block = self._read_slice(s, sequence, _COPIED_MSGS, _COPIED_BYTES)
            yield block
            sequence = block.last + 1

    def _read_slice(self, s: Slice, sequence: int, max_msgs: int, max_bytes: int) -> MsgBlock:
        index, _ = self._entries_from(s, sequence, max(max_msgs, 1))
        index = index[: records.fitting_entries(index, max_bytes) * _ENTRY]
        first_offset = records.entry(index, 0)[1]
        _, last_offset, _, last_size = records.entry(index, len(index) // _ENTRY - 1)
        data = self._pread(
            s, dat_name(s.number), last_offset + 8 + last_size - first_offset, first_offset
        )
        block, why = records.read_block(data, index, self._env.crc, self._env.options.check_crc)
        if why and not len(block):
            raise self._damage(s, why)
        return block

    def read_around(
        self, sequence: int, max_msgs: int, max_bytes: int, rebuild: Callable[[Slice], bytes]
    ) -> tuple[MsgBlock | None, list[Unreadable]]:
        """``read`` for damaged slices: passes over what cannot be read, and returns what that was.

        ``rebuild`` gives the entries of a slice whose index has none for its messages. Raises
        ``OSError``.
        """
        passed: list[Unreadable] = []
        while self.count and sequence <= self.last:
            sequence = max(sequence, self.first)
            s = next((s for s in self.slices if sequence <= s.last), None)
            if s is None:
                break
            sequence = max(sequence, s.first)
            try:
                index, _ = self._entries_from(s, sequence, max_msgs)
            except DamageError as error:
                passed.append(
                    Unreadable(idx_name(s.number), records.VERSION_SIZE, sequence, error.text)
                )
                s.index = rebuild(s)
                s.contiguous = False
                s.entries = len(s.index) // _ENTRY
                if records.find_entry(s.index, sequence) == s.entries:
                    sequence = s.last + 1
                continue
            index = index[: records.fitting_entries(index, max_bytes) * _ENTRY]
            n = len(index) // _ENTRY
            first_offset = records.entry(index, 0)[1]
            last, last_offset, _, last_size = records.entry(index, n - 1)
            data = self._pread(
                s, dat_name(s.number), last_offset + 8 + last_size - first_offset, first_offset
            )
            block, bad = records.read_readable(data, index, self._env.crc)
            passed += [
                Unreadable(dat_name(s.number), offset, lost, why) for lost, offset, why in bad
            ]
            if len(block):
                return block, passed
            sequence = last + 1
        return None, passed

    def _entries_from(self, s: Slice, sequence: int, most: int) -> tuple[bytes, int]:
        """Up to ``most`` index entries from the first at or after ``sequence``, and the number of
        that one.
        """
        if s.contiguous:
            k = sequence - s.first
            n = min(most, s.entries - k)
            if s.index is not None:
                index = s.index[k * _ENTRY : (k + n) * _ENTRY]
            else:
                index = self._pread(
                    s, idx_name(s.number), n * _ENTRY, records.VERSION_SIZE + k * _ENTRY
                )
        else:
            whole = s.index
            if whole is None:
                whole = self._pread(s, idx_name(s.number), s.entries * _ENTRY, records.VERSION_SIZE)
            k = records.find_entry(whole, sequence)
            n = min(most, s.entries - k)
            index = whole[k * _ENTRY : (k + n) * _ENTRY]
        # Also what was proven when it was measured may be lost since, at the end too, and zeros lie
        # before what came later.
        if len(index) < max(n, 1) * _ENTRY or (
            s.index is None and not records.sound_entries(index, sequence, s.contiguous)
        ):
            raise self._damage(s, f"the index has no entry for sequence {sequence}")
        return index, k

    def _pread(self, s: Slice, name: str, size: int, offset: int) -> bytes:
        try:
            return self._env.disk.pread(self._readable(s, name), size, offset)
        except OSError as error:
            if error.errno not in _OPEN_IN_VAIN:
                raise
        # Else every later read would fail, too: opened by its name it is there, or it is gone,
        # which whoever reads the log knows what to do about.
        self._env.files.forget(self.name, name)
        return self._env.disk.pread(self._readable(s, name), size, offset)

    def _readable(self, s: Slice, name: str) -> int:
        """A descriptor of one of the slice's files."""
        del s
        return self._env.files.reader(self.name, lambda: self.dirfd, name)

    def _damage(self, s: Slice, why: str) -> DamageError:
        return DamageError(
            f'channel "{show(self.name)}" slice {dat_name(s.number)}: {why}',
            hint=f"run: ftstanctl store verify --channel {show(self.name)}",
        )

    def sequence_at(self, timestamp: int) -> int:
        """First sequence whose timestamp is at or after ``timestamp``; ``last + 1`` if none is."""
        for s in self.slices:
            if s.last_ts < timestamp:
                continue
            sequence = max(s.first, self.first)
            if sequence > s.last:
                continue
            while sequence <= s.last:
                index, _ = self._entries_from(s, sequence, 4096)
                k = records.first_younger(index, timestamp)
                if k * _ENTRY < len(index):
                    return records.entry(index, k)[0]
                sequence = records.entry(index, len(index) // _ENTRY - 1)[0] + 1
        return self.last + 1


def store_error(error: OSError, what: str) -> StoreError:
    """The error that a publisher gets when storage refused a write."""
    kind = StoreFullError if is_full(error) else StoreError
    return kind(
        f"{what}: {error.strerror or error}",
        hint="free space or fix the storage, then publish again",
    )


def show(name: bytes) -> str:
    """A channel name as text for messages."""
    return name.decode("utf-8", "backslashreplace")
