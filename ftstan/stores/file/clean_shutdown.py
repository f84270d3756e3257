"""Leaving a store on purpose: what a clean stop does to each channel, most of it while the store is
still served.

Each channel is written, synced, made exact for an original server (``tools/exact.py``) and
described for the checkpoint of the next start. None of that depends on the others, so ``prepare``
does it channel by channel beside serving; a channel that is touched again after that is done again.
What is left for the moment in which nobody serves is the channels that were touched last, the root,
and the checkpoint. A channel whose files are those that the last checkpoint speaks of needs a look
at its directory and nothing else.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING

from ftstan.base.errors import StoreError
from ftstan.base.log import stream as log
from ftstan.stores.file.log import purging
from ftstan.stores.file.recovery import opening
from ftstan.stores.file.state import checkpoint, confirmed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ftstan.stores.file.channel import FileChannel
    from ftstan.stores.file.env import FileEnv
    from ftstan.stores.file.state.checkpoint import Checkpoint, Entry

#: Rounds over the channels: under load some are always touched again.
_ROUNDS = 3
#: So few channels are left to the stop itself.
_FEW = 8


class Leaving:
    """Which channels are ready to be left, and the word for the next start about each."""

    def __init__(self, env: FileEnv, known: Checkpoint) -> None:
        """``known``: the checkpoint that this activation started with."""
        self._env = env
        self._known = known
        self._ready: dict[bytes, Entry | None] = {}
        self._damaged: list[bytes] = []
        """Channels that are left quarantined."""
        self._queue: deque[FileChannel] = deque()
        self._rounds = 0

    def touched(self, name: bytes) -> None:
        """Something of the channel was, or will be, written: it is not ready any more."""
        self._ready.pop(name, None)

    def forget(self, channel: FileChannel) -> None:
        """Forget a deleted channel; a new one may take its name."""
        self._ready.pop(channel.name, None)
        with contextlib.suppress(ValueError):
            self._queue.remove(channel)

    def prepare(self, channels: Iterable[FileChannel], until: Callable[[], bool]) -> bool:
        """Make channels ready until ``until`` says stop.

        Returns whether it is worth to go on before ``leave``.

        Raises ``FencedError``.
        """
        if not self._queue:
            self._queue.extend(channel for channel in channels if channel.name not in self._ready)
            if self._rounds == _ROUNDS or (self._rounds and len(self._queue) <= _FEW):
                return False
            self._rounds += 1
        while self._queue and not until():
            channel = self._queue.popleft()
            if channel.staged:
                # The next commit writes to it.
                continue
            with contextlib.suppress(OSError, StoreError):
                # What storage refuses now is tried again, and told, by the stop itself.
                self._make_ready(channel)
        return True

    def leave(self, channels: Iterable[FileChannel]) -> None:
        """Make every channel ready. Raises ``OSError``, ``StoreError`` and ``FencedError``."""
        for channel in channels:
            if channel.name not in self._ready:
                self._make_ready(channel)
            elif not channel.intact:
                # Damage was met since: the next start must look for itself.
                self._ready[channel.name] = None
            if channel.quarantined:
                self._damaged.append(channel.name)

    def leave_word(self) -> None:
        """Everything is durable and nothing is open: say so for the next start.

        Raises ``FencedError``.
        """
        try:
            checkpoint.save(
                self._env,
                {name: entry for name, entry in self._ready.items() if entry is not None},
                self._damaged,
            )
        except OSError as error:
            why = error.strerror or error
            log.warning(
                f"{checkpoint.NAME} cannot be written: {why}; the next start reads every file"
            )

    def _make_ready(self, channel: FileChannel) -> None:
        env = self._env
        env.files.trim(8)
        known = self._known.get(channel.name)
        # A purge that storage refused may have left its mark, which hides what is in files that
        # nobody touched since.
        is_left = (
            known is not None
            and channel.intact
            and channel.untouched
            and purging.is_tidy(channel.log)
        )
        if known is not None and is_left and self._unchanged(channel, known):
            self._ready[channel.name] = known
            channel.release()
            return
        is_exact = channel.close()
        self._ready[channel.name] = None
        if channel.intact:
            confirmed.write_all(env, opening.news(env, [(channel.confirmed, channel.log)]))
            with contextlib.suppress(OSError):
                # Without a word about it the next start reads the channel, and the next stop makes
                # it exact.
                self._ready[channel.name] = (
                    checkpoint.entry_of(env, channel.log) if is_exact else None
                )
            channel.release()

    def _unchanged(self, channel: FileChannel, known: Entry) -> bool:
        dirfd = channel.log.dirfd
        return checkpoint.is_as_left(self._env, dirfd, self._env.disk.listdir(dirfd), known)
