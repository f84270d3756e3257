"""``dedup.bin`` in the root: publishes of our own client that were stored (``docs/store.md``
section 5).

Written and synced **before** the data of its batch: whatever a crash leaves in a log is remembered,
and an entry by itself proves nothing. Whoever acts on one of a former activation looks into the log
first (``broker/dedup.py``), since the batch can have failed, have been cut, or lie behind a seal.
Replaced as a whole at an activation's first write, and when half of it is dead.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import StoreFullError
from ftstan.base.log import stream as log
from ftstan.stores.file.env import is_full
from ftstan.stores.file.log import records
from ftstan.stores.file.log.view import store_error
from ftstan.stores.file.regular import open_file
from ftstan.stores.file.state.statefile import StateFile, StateFileError
from ftstan.stores.interface import REMEMBERED_SIZE, StoredAt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ftstan.stores.file.env import FileEnv

NAME: Final = "dedup.bin"
_ENTRY = struct.Struct(f"<IIQ{REMEMBERED_SIZE}s")
_CRC_SIZE = 4
_UNIT = b"", NAME


def _encode(digest: bytes, at: StoredAt) -> bytes:
    body = _ENTRY.pack(0, at.mark, at.sequence, digest)[_CRC_SIZE:]
    return zlib.crc32(body).to_bytes(_CRC_SIZE, "little") + body


class Remembered:
    """The file. Entries are digest -> message, oldest first."""

    def __init__(self, env: FileEnv) -> None:
        self._env = env
        self._window: Mapping[bytes, StoredAt] = {}
        self._told = False
        self._file = StateFile(env, lambda: env.root, NAME, self._snapshot)
        self._former = -1
        """A former owner's file, which that one may go on with even when ours has taken its
        place.
        """
        self._former_ino = 0
        self._read = 0
        """How far it was read."""

    def load(self, *, once: bool = True) -> dict[bytes, StoredAt]:
        """Read what there is; a torn end is left out. ``once``: nobody will ``look_again``.

        Raises ``OSError``.
        """
        self._open_former()
        found = self._read_former()
        if once:
            self.let_go()
        return found

    def look_again(self) -> dict[bytes, StoredAt]:
        """What former owners have put there since: called behind the reading of a log.

        Raises ``OSError``.
        """
        found = self._read_former()
        if self._is_anothers():
            if self._file.replaced:
                # A rename that came late, into the place of ours, which is written again with what
                # is found here.
                self._file.distrust()
                self._env.places.suspects.append(_UNIT)
            self._open_former()
            found |= self._read_former()
        return found

    def let_go(self) -> None:
        """Close the file of a former owner: whatever it may still put there is for no log that is
        read later.
        """
        if self._former >= 0:
            self._env.fresh.close(self._former)
        self._former = -1
        self._former_ino = 0
        self._read = 0

    def _is_anothers(self) -> bool:
        """Whether the name leads to a file that is neither ours nor open here."""
        if NAME in self._env.occupied:
            return False
        try:
            ino = self._env.disk.stat(self._env.root, NAME).ino
        except FileNotFoundError:
            return False
        return ino not in (self._former_ino, self._env.places.inode(_UNIT))

    def _open_former(self) -> None:
        self.let_go()
        if NAME not in self._env.occupied:
            with contextlib.suppress(FileNotFoundError):
                self._former = open_file(self._env.fresh, self._env.root, NAME)
                self._former_ino = self._env.fresh.fstat(self._former).ino

    def _read_former(self) -> dict[bytes, StoredAt]:
        """The whole entries behind those that were read."""
        found: dict[bytes, StoredAt] = {}
        data = self._env.read_on(self._former, self._read) if self._former >= 0 else b""
        at = 0 if self._read else len(records.VERSION)
        if not (self._read or data.startswith(records.VERSION)):
            return found
        while at + _ENTRY.size <= len(data):
            crc, mark, sequence, digest = _ENTRY.unpack_from(data, at)
            if crc != zlib.crc32(data[at + _CRC_SIZE : at + _ENTRY.size]):
                break
            found.pop(digest, None)
            found[digest] = StoredAt(sequence, mark)
            at += _ENTRY.size
        self._read += at
        return found

    def _snapshot(self) -> bytes:
        return b"".join(_encode(digest, at) for digest, at in self._window.items())

    def write(self, fresh: Sequence[bytes], window: Mapping[bytes, StoredAt]) -> None:
        """Make ``fresh`` durable; ``window`` is all that is to be known. Raises ``StateFileError``.

        Without space for it nothing is written and the whole window is tried again with the next
        batch: a repeat across a crash may then be stored twice.
        """
        self._window = window
        if NAME in self._env.occupied:
            self._refused(f"{NAME} is no file")
            return
        try:
            if not self._file.replaced or self._file.size > 2 * _ENTRY.size * max(len(window), 64):
                self._file.replace()
            else:
                self._file.append(b"".join(_encode(digest, window[digest]) for digest in fresh))
                if self._env.options.sync:
                    self._file.sync()
        except OSError as error:
            if not is_full(error):
                raise StateFileError(
                    f"{NAME}: {error.strerror or error}", hint="check the storage"
                ) from error
            self._refused(store_error(error, NAME).text)
        except StoreFullError as error:
            self._refused(error.text)
        else:
            self._told = False

    def sync(self) -> None:
        """Make durable what was written without a sync. Raises ``OSError``."""
        self._file.sync()

    def restore(self) -> None:
        """If ``dedup.bin`` is not the file that we write to any more, write it again.

        Raises ``StateFileError``.
        """
        if self._file.is_displaced():
            log.warning(f"{NAME} was replaced by somebody: written again from memory")
            self._file.distrust()
        if not self._file.replaced:
            self.write([], self._window)

    def _refused(self, why: str) -> None:
        self._file.distrust()
        if not self._told:
            self._told = True
            log.error(f"{why}: publishes that are repeated after a takeover may be stored twice")

    def close(self) -> None:
        """Let go of the files."""
        self.let_go()
        self._file.park()
