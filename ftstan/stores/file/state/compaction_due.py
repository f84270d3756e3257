"""Compaction: when a state file holds so much that is dead that it is worth writing anew.

Counts as the original counts and asks for what it asks for (``docs/compat/filestore.md``), once a
second instead of after every record. Decides only: the file itself is replaced by ``StateFile``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ftstan.base.clock import Clock
    from ftstan.stores.file.env import FileStoreOptions

_NS = 1e9


class Compaction:
    """The counters of one state file since it was last written as a whole."""

    def __init__(self, options: FileStoreOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._last: float | None = None
        self._staged = (0, 0)
        self.records = 0
        """Records that made something: clients, subscriptions, their changes, sent sequences."""
        self.dead = 0
        """Records that ended something or replaced it."""

    def stage(self, made: int, ended: int) -> None:
        """Records were staged: ``made`` that make something, ``ended`` that end or replace
        something.
        """
        self._staged = (self._staged[0] + made, self._staged[1] + ended)

    def forget(self) -> None:
        """What was staged will not be written."""
        self._staged = (0, 0)

    def written(self) -> None:
        """What was staged is in the file."""
        self.records += self._staged[0]
        self.dead += self._staged[1]
        self._staged = (0, 0)

    def start(self, live: int) -> None:
        """The file was replaced and holds ``live`` records."""
        self.records = live
        self.dead = 0

    def done(self, live: int) -> None:
        """The file was compacted; not again before the interval is over."""
        self.start(live)
        self._last = self._clock.mono()

    def may(self, size: int) -> bool:
        """Whether a file of ``size`` bytes (its version not counted) may be compacted now, however
        little is dead.
        """
        o = self._options
        if not o.compact_enabled or not self.dead or size < o.compact_min_size:
            return False
        return self._last is None or self._clock.mono() - self._last >= o.compact_interval / _NS

    def worth(self) -> bool:
        """Whether enough is dead."""
        percent = self.dead * 100 // self.records if self.records else 100
        return percent >= self._options.compact_fragmentation
