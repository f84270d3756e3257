"""Clients: who is registered, and ``clients.dat``.

The whole state is small and always in memory, so a file that cannot be trusted any more is simply
written again. Never syncs by itself what a request waits for: that is the commit's part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.base.errors import StoreFullError
from ftstan.base.log import stream as log
from ftstan.stores.file.env import FileEnv, is_full
from ftstan.stores.file.log.view import store_error
from ftstan.stores.file.state import state_records
from ftstan.stores.file.state.compaction_due import Compaction
from ftstan.stores.file.state.statefile import StateFile

if TYPE_CHECKING:
    from ftstan.stores.interface import ClientInfo

NAME = "clients.dat"


class Clients:
    """The registered clients of one store."""

    def __init__(self, env: FileEnv) -> None:
        self._env = env
        self.known: dict[bytes, ClientInfo] = {}
        self.file = StateFile(env, lambda: env.root, NAME, self._records)
        self._rows: list[bytes] = []
        self._has_ends = False
        self._rewrite = False
        self._compaction = Compaction(env.options, env.clock)

    def add(self, info: ClientInfo) -> None:
        """Stage a registration."""
        self._rows.append(state_records.client_record(info, self._env.crc))
        self.known[info.client_id] = info

    def delete(self, client_id: bytes) -> None:
        """Stage the end of a registration."""
        self._rows.append(state_records.client_delete_record(client_id, self._env.crc))
        self._has_ends = True
        self._compaction.stage(0, 1)
        self.known.pop(client_id, None)

    def _records(self) -> bytes:
        return b"".join(state_records.client_record(c, self._env.crc) for c in self.known.values())

    @property
    def staged(self) -> bool:
        """Whether the next commit has something to write."""
        return bool(self._rows)

    @property
    def has_ends(self) -> bool:
        """Whether a registration ends with what is staged."""
        return self._has_ends

    @property
    def is_inherited(self) -> bool:
        """Whether the file is a former owner's, whose records may still arrive there."""
        return bool(self.known) and not self.file.replaced

    def write(self) -> int | None:
        """Write what is staged; returns the descriptor to sync, if any.

        Raises ``StoreFullError`` when there is no space: what was staged is forgotten, and the file
        is written again from memory later. Any other ``StoreError`` ends the process.
        """
        rows = b"".join(self._rows)
        self._rows = []
        self._has_ends = False
        first = not self.file.replaced
        try:
            # A file that is made anew from memory has all of it already.
            fd = self.file.append(b"" if first else rows)
        except StoreFullError:
            self._rewrite = True
            raise
        except OSError as error:
            self._rewrite = True
            raise store_error(error, "clients.dat cannot be written") from error
        self._rewrite = False
        if first:
            self._compaction.start(len(self.known))
            self._compaction.forget()
        self._compaction.written()
        return fd

    def distrust(self) -> None:
        """What was written may be lost, and only space was missing: the file is written again from
        memory.
        """
        self.file.distrust()
        self._rewrite = True

    def restore_state(self) -> None:
        """If ``clients.dat`` is not the file that we write to any more, see that it is written
        again from memory.

        Raises ``OSError``.
        """
        if self.file.is_displaced():
            log.warning("clients.dat was replaced by somebody: written again from memory")
            self.distrust()

    def settle(self) -> None:
        """Once a second: write the file again if it must be, or is worth compacting.

        Raises ``StoreError``.
        """
        try:
            if (
                self._rewrite
                or self.is_inherited
                or (self._env.owner.mixed and not self.file.replaced)
            ):
                self.write()
            elif (
                not self._rows
                and self._compaction.may(self.file.size)
                and self.file.replaced
                and self._worth()
            ):
                self._compact()
        except StoreFullError:
            # The next request, or the next second, tries again.
            return

    def _worth(self) -> bool:
        # The original counts deletions against the clients that are left, and not the records in
        # the file.
        self._compaction.records = self._compaction.dead + len(self.known)
        return self._compaction.worth()

    def _compact(self) -> None:
        try:
            self.file.replace(keep=True)
        except OSError as error:
            if not is_full(error):
                log.warning(f"clients.dat cannot be compacted: {error.strerror or error}")
            return
        self._compaction.done(len(self.known))

    def close(self) -> None:
        """Write and sync what is left. Raises ``StoreError`` and ``OSError``."""
        # An original server that follows goes on in this file: not in one that a former owner may
        # have open.
        self._rewrite = self._rewrite or not self.file.replaced
        self.settle()
        self.file.sync()
