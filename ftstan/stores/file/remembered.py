"""``dedup.bin`` in the root: publishes of our own client that were stored (``docs/store.md`` section 5).

Written and synced **before** the data of its batch: whatever a crash leaves in a log is remembered, and an entry by
itself proves nothing. Whoever acts on one of a former activation looks into the log first (``broker/dedup.py``), since
the batch can have failed, have been cut, or lie behind a seal. Replaced as a whole at an activation's first write, and
when half of it is dead.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final

from ftstan.errors import StoreFullError
from ftstan.log import stream as log
from ftstan.stores.file import records
from ftstan.stores.file.env import is_full
from ftstan.stores.file.statefile import StateFile, StateFileError, read_file
from ftstan.stores.file.view import store_error
from ftstan.stores.interface import REMEMBERED_SIZE, StoredAt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ftstan.stores.file.env import FileEnv

NAME: Final = "dedup.bin"
_ENTRY = struct.Struct(f"<IIQ{REMEMBERED_SIZE}s")
_CRC_SIZE = 4


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

    def load(self) -> dict[bytes, StoredAt]:
        """Read what there is; a torn end is left out. Raises ``OSError``."""
        data = b"" if NAME in self._env.occupied else read_file(self._env, self._env.root, NAME) or b""
        found: dict[bytes, StoredAt] = {}
        if not data.startswith(records.VERSION):
            return found
        for at in range(len(records.VERSION), len(data) - _ENTRY.size + 1, _ENTRY.size):
            crc, mark, sequence, digest = _ENTRY.unpack_from(data, at)
            if crc != zlib.crc32(data[at + _CRC_SIZE : at + _ENTRY.size]):
                break
            found.pop(digest, None)
            found[digest] = StoredAt(sequence, mark)
        return found

    def _snapshot(self) -> bytes:
        return b"".join(_encode(digest, at) for digest, at in self._window.items())

    def write(self, fresh: Sequence[bytes], window: Mapping[bytes, StoredAt]) -> None:
        """Make ``fresh`` durable; ``window`` is all that is to be known. Raises ``StateFileError``.

        Without space for it nothing is written and the whole window is tried again with the next batch: a repeat across
        a crash may then be stored twice.
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
                raise StateFileError(f"{NAME}: {error.strerror or error}", hint="check the storage") from error
            self._refused(store_error(error, NAME).text)
        except StoreFullError as error:
            self._refused(error.text)
        else:
            self._told = False

    def _refused(self, why: str) -> None:
        self._file.distrust()
        if not self._told:
            self._told = True
            log.error(f"{why}: publishes that are repeated after a takeover may be stored twice")

    def close(self) -> None:
        """Let go of the file."""
        self._file.park()
