"""Upkeep: what a store does outside batches to keep its directories small.

Removes slices that hold nothing any more or gives them to the archive script, and deletes channels.
Every step comes after a confirm of its own, and one that storage refuses is tried again later;
nothing acknowledged depends on it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ftstan.base.disk import Gate, ShuttableDisk
from ftstan.base.errors import FencedError, StoreError
from ftstan.base.log import stream as log
from ftstan.stores.file import deletion
from ftstan.stores.file.archive import Archivist
from ftstan.stores.file.log.retention import ARCHIVED
from ftstan.stores.file.log.slices import show, store_error
from ftstan.stores.file.log.view import dat_name, idx_name
from ftstan.stores.interface import BEING_DELETED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ftstan.stores.file.channel import FileChannel
    from ftstan.stores.file.env import FileEnv

#: Slices removed in one go, over all channels: each costs two syncs of a directory, and publishers
#: wait meanwhile. Where more are due, the next batch is served in between.
_REMOVALS = 8
_SCRIPT_PATIENCE_S = 20.0


class Upkeep:
    """The background work of one open store.

    All methods belong to the thread that uses the store.
    """

    def __init__(self, env: FileEnv, path: str) -> None:
        """``path``: the store's directory as the operator wrote it."""
        self._env = env
        self._path = path
        script = env.options.slice_archive_script
        self._archivist = Archivist(script, env.clock, self._may_start) if script else None
        self._gate = env.disk.gate if isinstance(env.disk, ShuttableDisk) else Gate()
        self._doomed: dict[bytes, deletion.Intent] = {}
        self._retracting: dict[bytes, deletion.Retraction] = {}
        self._complaints: dict[bytes, str] = {}

    # ---- once a second
    # -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Finish deletions, start scripts. Raises ``FencedError``."""
        for name in sorted(self._retracting):
            self._retract(name)
        for intent in list(self._doomed.values()):
            self._carry_out(intent)
        if self._archivist is not None:
            self._archivist.run_due(self._env.owner.confirm)

    def remove_some(self, channels: Iterable[FileChannel]) -> bool:
        """Remove some of the slices that hold nothing any more; returns whether more are due.

        Raises ``FencedError``.
        """
        left = _REMOVALS
        for channel in channels:
            if not channel.log.retired:
                continue
            due = channel.log.removable()
            # One that storage refuses has time until the next second.
            if self._remove(channel, due[:left]):
                left -= min(len(due), left)
                if not left:
                    return True
        return False

    def _remove(self, channel: FileChannel, numbers: list[int]) -> bool:
        if not numbers:
            return False
        self._env.files.trim(4)
        try:
            channel.log.remove(numbers, self._archive if self._archivist is not None else None)
        except OSError as error:
            self._complain(
                channel.name,
                f'channel "{show(channel.name)}": {dat_name(numbers[0])} cannot be removed: '
                f"{error.strerror}",
            )
            return False
        self._complaints.pop(channel.name, None)
        return True

    def _complain(self, name: bytes, text: str) -> None:
        """What comes back every second is told once."""
        if self._complaints.get(name) != text:
            self._complaints[name] = text
            log.error(text)

    # ---- archive
    # ----------------------------------------------------------------------------------------------

    def _may_start(self) -> bool:
        """Whether a script may be started at this moment. Asked by the thread that starts them."""
        try:
            self._env.owner.confirm_beside()
        except FencedError:
            # Tried again later; if the store is lost, the thread that owns it finds that out by
            # itself.
            return False
        # After the confirm, which may have waited for storage while the server was ended.
        return not self._gate.is_shut

    def _archive(self, channel: bytes, number: int) -> None:
        if self._archivist is not None:
            name = os.fsdecode(channel)
            dat, idx = (f"{f(number)}{ARCHIVED}" for f in (dat_name, idx_name))
            self._archivist.add(
                name, os.path.join(self._path, name, dat), os.path.join(self._path, name, idx)
            )

    def find_leftovers(self, channel: FileChannel) -> None:
        """Slices that a former server set aside and no script has taken.

        Raises ``OSError`` and ``FencedError``.
        """
        if self._archivist is None:
            return
        names = {name for name, is_dir in self._env.disk.listdir(channel.log.dirfd) if not is_dir}
        numbers = sorted(int(n[5:-8]) for n in names if _is_archived_dat(n))
        for number in numbers:
            idx = idx_name(number)
            if f"{idx}{ARCHIVED}" not in names:
                if idx not in names or dat_name(number) in names:
                    log.warning(
                        f'channel "{show(channel.name)}": {dat_name(number)}{ARCHIVED} has no '
                        "index beside it: "
                        "not given to the archive script"
                    )
                    continue
                # The original renames the data first: it died before it came to the index.
                dirfd = channel.log.dirfd
                self._env.owner.confirm()
                self._env.disk.rename(dirfd, idx, f"{idx}{ARCHIVED}")
                self._env.disk.fsync(dirfd)
            self._archive(channel.name, number)

    # ---- deletion
    # ----------------------------------------------------------------------------------------------

    def delete(self, channel: FileChannel) -> None:
        """Delete a channel. Raises ``StoreError`` if nothing has changed, ``FencedError``."""
        name = channel.name
        slog = channel.log
        if channel.staged:
            raise StoreError(
                f'channel "{show(name)}" is in use',
                hint="try again when its batch has been committed",
            )
        intent = None
        if channel.created:
            last = slog.last
            taking_back = deletion.retraction_of(self._env, name)
            try:
                intent = deletion.declare(self._env, name, last)
            except OSError as error:
                self._retracting[name] = taking_back
                self._retract(name)
                raise store_error(error, f'channel "{show(name)}" cannot be deleted') from error
            # The second look: whoever may have come between the two phases keeps the channel.
            self._env.owner.confirm()
            if channel.staged or slog.last != last:
                self._retracting[name] = taking_back
                self._retract(name)
                raise StoreError(
                    f'channel "{show(name)}" is in use', hint="try again when it is not"
                )
            self._env.number_floor[name] = slog.taken
        channel.release()
        if self._archivist is not None:
            self._archivist.forget(os.fsdecode(name))
        if intent is not None:
            self._doomed[name] = intent
            self._carry_out(intent)

    def finish_pending(self) -> None:
        """At a start: finish the deletions that a former server began.

        What storage refuses is tried again by ``run``.

        Raises ``OSError`` if it cannot be found out which they are, and ``FencedError``.
        """
        for intent, error in deletion.finish_pending(self._env):
            self._doomed[intent.channel] = intent
            self._refused(intent, error)

    def is_doomed(self, name: bytes) -> bool:
        """Whether what is left under this name is no channel any more."""
        return name in self._doomed

    def check_gone(self, name: bytes) -> None:
        """Raise ``StoreError`` while a deleted channel of this name is still being removed."""
        if name in self._doomed:
            self._carry_out(self._doomed[name])
        if name in self._doomed:
            # In the original's words: it is the publisher who reads them. The log has told the
            # operator.
            raise StoreError(BEING_DELETED, hint="storage refuses the removal; see the log")

    def check_kept(self, name: bytes) -> None:
        """Raise ``StoreError`` while an intent to delete the channel may come back with a crash of
        the storage.

        What is stored meanwhile would go with the channel.
        """
        if name in self._retracting:
            self._retract(name)
        if name in self._retracting:
            raise StoreError(
                f'channel "{show(name)}": its deletion was refused by storage and cannot be '
                "taken back yet",
                hint="check the storage; see the log",
            )

    def _carry_out(self, intent: deletion.Intent) -> None:
        try:
            deletion.carry_out(self._env, intent)
        except OSError as error:
            self._refused(intent, error)
        else:
            self._complaints.pop(intent.channel, None)
            del self._doomed[intent.channel]

    def _refused(self, intent: deletion.Intent, error: OSError) -> None:
        self._complain(
            intent.channel, f'channel "{show(intent.channel)}" cannot be removed: {error.strerror}'
        )

    def _retract(self, name: bytes) -> None:
        try:
            deletion.retract(self._env, self._retracting[name])
        except OSError as error:
            self._complain(
                name,
                f'the deletion of channel "{show(name)}" cannot be taken back: {error.strerror}',
            )
        else:
            self._complaints.pop(name, None)
            del self._retracting[name]

    # ---- the end
    # ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Start what is due and wait for it, for a while."""
        if self._archivist is not None:
            self._archivist.run_due(self._env.owner.confirm)
            self._archivist.close(_SCRIPT_PATIENCE_S)

    def abandon(self) -> None:
        """Start nothing more."""
        if self._archivist is not None:
            self._archivist.abandon()


def _is_archived_dat(name: str) -> bool:
    return name.startswith("msgs.") and name.endswith(f".dat{ARCHIVED}") and name[5:-8].isdigit()
