"""Files: how many descriptors a store holds open, and which of them are closed first.

Every descriptor that outlives the call that opened it is counted here. What is open belongs to a
*unit* (a channel's directory with its slice, a state file, a slice that is being read), and a unit
that is closed opens its files again when it is asked for them. Units are closed in ``trim`` only,
the least recently used first, so a caller may hold on to a descriptor until it calls ``trim`` or
``reader`` again. Never syncs and never writes.
"""

from __future__ import annotations

import contextlib
import resource
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from ftstan.stores.file.regular import open_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.base.disk import Disk

    #: Channel and file name; the file name is empty for what a channel writes.
    Unit = tuple[bytes, str]

_LEAST = 16
_MANY = 1 << 20


def default_limit() -> int:
    """Three quarters of what this process may open: the rest is for connections and whoever embeds
    the server.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft > _MANY:
        return _MANY
    return max(soft - max(soft // 4, 64), _LEAST)


class Files:
    """The open files of one store.

    Channels may be recovered in several threads; the rest is one thread's.
    """

    def __init__(self, disk: Disk, limit: int = 0) -> None:
        """``limit``: descriptors to stay below where possible, 0: sized from what the process may
        open.
        """
        self._disk = disk
        self.limit = limit or default_limit()
        self.count = 0
        self._units: OrderedDict[Unit, Callable[[], None]] = OrderedDict()
        self._readers: dict[bytes, dict[str, int]] = {}
        self._lock = threading.RLock()
        self._trimming = False

    def opened(self, fd: int) -> int:
        """Count a descriptor; returns it."""
        with self._lock:
            self.count += 1
        return fd

    def close(self, fd: int) -> None:
        """Close a counted descriptor.

        What it held is durable or lost already: an error here changes nothing.
        """
        with self._lock:
            self.count -= 1
        with contextlib.suppress(OSError):
            self._disk.close(fd)

    def used(self, unit: Unit, park: Callable[[], None]) -> None:
        """``unit`` was used just now; ``park`` closes its descriptors."""
        with self._lock:
            self._units[unit] = park
            self._units.move_to_end(unit)

    def unused(self, unit: Unit) -> None:
        """``unit`` has nothing open any more."""
        with self._lock:
            self._units.pop(unit, None)

    def reader(self, channel: bytes, directory: Callable[[], int], name: str) -> int:
        """A descriptor of the channel's file ``name`` for reading.

        It stays open for the next reader.
        """
        with self._lock:
            fd = self._readers.get(channel, {}).get(name, -1)
            if fd < 0:
                if self._trimming:
                    self.trim(2)
                fd = self.opened(open_file(self._disk, directory(), name))
                self._readers.setdefault(channel, {})[name] = fd
            self.used((channel, name), lambda: self._close_reader(channel, name))
            return fd

    def forget(self, channel: bytes, name: str = "") -> None:
        """Close what is open for reading: the file ``name``, or every file of the channel."""
        with self._lock:
            for known in [name] if name else list(self._readers.get(channel, ())):
                self._close_reader(channel, known)

    def _close_reader(self, channel: bytes, name: str) -> None:
        names = self._readers.get(channel, {})
        fd = names.pop(name, -1)
        if not names:
            self._readers.pop(channel, None)
        self.unused((channel, name))
        if fd >= 0:
            self.close(fd)

    def trim(self, room: int = 0) -> None:
        """Close units until ``room`` more descriptors fit below the limit, or nothing is left to
        close.

        Readers do so by themselves from the first call on: until then other threads recover
        channels, and hold on to their directories.
        """
        with self._lock:
            self._trimming = True
            while self._units and self.count + room > self.limit:
                _, park = self._units.popitem(last=False)
                park()
