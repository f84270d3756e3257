"""The warm standby: reads ahead what a takeover will read, so that it is in this host's memory by
then.

Fed by the owner's digest (``ft/digest.py``), in a thread of its own with the lowest priority, which
nobody waits for. It opens for reading only, creates and locks nothing, keeps no descriptor from one
round to the next, and what it read is never looked at: a takeover opens, lists and measures
everything afresh (``docs/ft.md``). So wrong, old or hostile digests cost reads, bounded in number
and memory, and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ftstan.base.clock import Clock
    from ftstan.base.disk import Disk
    from ftstan.ft.digest import Digest
    from ftstan.stores.interface import ChannelEnd

#: Channels that are kept in mind; what a digest says of more is ignored.
MOST_CHANNELS: Final = 100_000
_SLICE = re.compile(r"msgs\.([0-9]{1,18})\.(dat|idx)")
_ROOT_FILES: Final = ("server.dat", "clients.dat", "ckpt.bin")
_STATE_FILES: Final = ("subs.dat", "confirmed.bin")
# A pipe under the name of a file must not hold the thread.
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_CHUNK: Final = 1 << 20
#: Of a slice's data a takeover reads the last record, and what lies behind the index.
_TAIL: Final = 1 << 16
_LOWEST_PRIORITY: Final = 19
_BREATH_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class WarmLag:
    """How far a standby's reading is behind the digest: ``messages`` in all channels, since
    ``seconds``.
    """

    messages: int
    seconds: float


@dataclass(slots=True)
class _Channel:
    """What is known of a channel.

    ``warmed``: the sequence up to which was read. ``read_to``: the highest slice that needs no
    second look.
    """

    end: ChannelEnd
    warmed: int = 0
    read_to: int = 0


class NoWarm:
    """In the place of ``Warm`` where there are no files: a database has a cache of its own."""

    lag: WarmLag | None = None

    def start(self) -> None:
        """Nothing to read."""

    def stop(self) -> None:
        """Nothing to end."""

    def take(self, digest: Digest) -> None:
        """Nothing to read."""


class Warm:
    """The reader. ``take`` and ``lag`` may be called from any thread and never wait for storage."""

    def __init__(self, disk: Disk, path: str, clock: Clock) -> None:
        """``path``: the datastore's directory; it is opened anew in each round."""
        self._disk = disk
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._channels: dict[bytes, _Channel] = {}
        self._pending: dict[bytes, None] = {}
        self._behind_since: float | None = None
        self._heard = False
        self._stopped = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="warm", daemon=True)

    def start(self) -> None:
        """Begin to read what digests name."""
        self._thread.start()

    def stop(self) -> None:
        """End, and forget everything; does not wait for storage."""
        self._stopped = True
        self._wake.set()
        with self._lock:
            self._channels.clear()
            self._pending.clear()
            self._behind_since = None
            self._heard = False

    def take(self, digest: Digest) -> None:
        """Note where channels end; the thread reads up to there."""
        with self._lock:
            if self._stopped:
                return
            self._heard = True
            for end in digest.ends:
                known = self._channels.get(end.name)
                if known is None:
                    if len(self._channels) >= MOST_CHANNELS:
                        continue
                    self._channels[end.name] = _Channel(end)
                elif known.end == end:
                    continue
                else:
                    known.end = end
                self._pending[end.name] = None
            if self._pending and self._behind_since is None:
                self._behind_since = self._clock.mono()
        self._wake.set()

    @property
    def lag(self) -> WarmLag | None:
        """How far behind the owner; ``None`` before the first digest."""
        with self._lock:
            if not self._heard:
                return None
            behind = sum(
                max(c.end.last - c.warmed, 0)
                for name in self._pending
                if (c := self._channels.get(name))
            )
            since = self._behind_since
        return WarmLag(behind, self._clock.mono() - since if since is not None else 0.0)

    def read_ahead(self) -> None:
        """One round: read what has been named since the last one.

        Storage that refuses is left for the next round.
        """
        with contextlib.suppress(OSError):
            root = self._disk.open_dir(self._path)
            try:
                for name in _ROOT_FILES:
                    if not self._stopped:
                        self._read(root, name)
                while (channel := self._next()) is not None:
                    with contextlib.suppress(OSError):
                        self._read_channel(root, channel)
                    self._done(channel)
                    # The interpreter is shared with the thread that takes over.
                    time.sleep(_BREATH_S)
            finally:
                self._disk.close(root)

    def _next(self) -> _Channel | None:
        with self._lock:
            while self._pending and not self._stopped:
                name = next(iter(self._pending))
                channel = self._channels.get(name)
                if channel is not None:
                    return channel
                del self._pending[name]
        return None

    def _done(self, channel: _Channel) -> None:
        with self._lock:
            if channel.warmed >= channel.end.last:
                self._pending.pop(channel.end.name, None)
            if not self._pending:
                self._behind_since = None

    def _read_channel(self, root: int, channel: _Channel) -> None:
        end = channel.end
        # Even if it fails half way: what cannot be read now is not tried again until the owner
        # names it again.
        channel.warmed = end.last
        dirfd = self._disk.open_dir_at(root, os.fsdecode(end.name))
        try:
            for name, is_dir in self._disk.listdir(dirfd):
                found = None if is_dir else _SLICE.fullmatch(name)
                if found is not None and int(found[1]) > channel.read_to:
                    self._read(dirfd, name, _TAIL if found[2] == "dat" else 0)
            for name in _STATE_FILES:
                self._read(dirfd, name)
        finally:
            self._disk.close(dirfd)
        # The newest slice grows; those below it are sealed.
        channel.read_to = max(channel.read_to, end.slice_number - 1)

    def _read(self, dirfd: int, name: str, last: int = 0) -> None:
        """Read a file, or its ``last`` bytes, and forget them: they are in the page cache then."""
        with contextlib.suppress(OSError):
            fd = self._disk.open(dirfd, name, _FLAGS)
            try:
                size = self._disk.fstat(fd).size
                at = max(size - last, 0) if last else 0
                while (
                    at < size and not self._stopped and (data := self._disk.pread(fd, _CHUNK, at))
                ):
                    at += len(data)
            finally:
                self._disk.close(fd)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        while not self._stopped:
            self._wake.wait()
            self._wake.clear()
            if not self._stopped:
                self.read_ahead()
