"""Places: which inode each state file of this activation is, and whether its name still leads
there.

A rename of a former owner that arrives late, or an operator's copy, puts another file under the
name; ours then lives on without one, and everything written to it is lost at the next start. A
watcher on another thread looks at a few names at a time and only voices a suspicion: the thread
that owns the files looks again, and writes them from memory.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ftstan.base.disk import Disk, FileStat

    #: Channel (empty: the root) and file name.
    Unit = tuple[bytes, str]

#: Names in one look: with many channels one costs two calls each, and the look must stay short.
_AT_ONCE = 64


class Restorable(Protocol):
    """A channel, as far as its state file has a place."""

    def restore_state(self) -> None:
        """Write the state file again from memory if another file is in its place.

        Raises ``OSError``.
        """


class Places:
    """The state files of one open store.

    ``put`` and ``drop`` are the owner's; another thread may ``look``.
    """

    def __init__(self) -> None:
        self._inodes: dict[Unit, int] = {}
        self._next = 0
        self.suspects: deque[Unit] = deque()
        """Files that ``look`` did not find in their place; whoever owns them takes them out."""

    def put(self, unit: Unit, state: Callable[[], FileStat]) -> None:
        """The file of ``unit`` is the one whose state this is now.

        Never fails: what cannot be asked is not watched.
        """
        try:
            self._inodes[unit] = state().ino
        except OSError:
            self.drop(unit)

    def drop(self, unit: Unit) -> None:
        """The file of ``unit`` is not ours any more, or not wanted."""
        self._inodes.pop(unit, None)

    def inode(self, unit: Unit) -> int | None:
        """The inode of ``unit``, if it is known."""
        return self._inodes.get(unit)

    def restore(
        self, channels: Mapping[bytes, Restorable], root: Mapping[str, Callable[[], None]]
    ) -> None:
        """Write again what somebody put another file in the place of.

        Whether it is so is looked at once more.

        ``root``: what does that for the files of the root, by name. Raises ``OSError``.
        """
        while self.suspects:
            channel, name = self.suspects.popleft()
            if not channel:
                root[name]()
            elif channel in channels:
                channels[channel].restore_state()

    def look(self, disk: Disk, root: int) -> None:
        """Look at the next few names below the directory ``root``.

        ``OSError`` passes through; what is gone is none.
        """
        known = list(self._inodes.items())
        if not known:
            return
        start = self._next % len(known)
        some = known[start : start + _AT_ONCE]
        self._next = start + len(some)
        for unit, ino in some:
            found = _inode_of(disk, root, unit)
            if found != ino and self._inodes.get(unit) == ino and unit not in self.suspects:
                self.suspects.append(unit)


def _inode_of(disk: Disk, root: int, unit: Unit) -> int | None:
    channel, name = unit
    try:
        if not channel:
            return disk.stat(root, name).ino
        dirfd = disk.open_dir_at(root, os.fsdecode(channel))
        try:
            return disk.stat(dirfd, name).ino
        finally:
            disk.close(dirfd)
    except FileNotFoundError:
        return None
