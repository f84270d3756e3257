"""Partitioning: which channels this server serves, of those that its cluster id has
(``docs/compat/partitioning.md``).

A partition is silent about what is another one's: publishes do not even arrive, because it
subscribes to the subjects of its own channels only; requests about other channels are ignored. What
arrives too early, from a client whose connect is still on its way here, waits in
``pending_registrations``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.broker.publishing import FIRST_ACK_SID
from ftstan.wire.patterns import PatternSet, covering, intersect, matches

if TYPE_CHECKING:
    from collections.abc import Iterable


class Partition:
    """The channels of one server: ``names`` as configured, wildcards included."""

    def __init__(self, names: Iterable[bytes]) -> None:
        self.names = tuple(dict.fromkeys(names))
        self.entries = covering(self.names)
        """What is subscribed to: the fewest of the names that together match all of their
        channels.
        """
        self._set = PatternSet(self.entries)
        self.end_sid = FIRST_ACK_SID + len(self.entries)
        """The first sid behind those of the publish subjects."""
        self.second_copies = self._overlaps()

    def owns(self, channel: bytes) -> bool:
        """Whether the channel is served here."""
        return self._set.match(channel)

    def rows(self, prefix: bytes) -> list[tuple[bytes, int]]:
        """The publish subjects with their sids.

        ``prefix`` stands before the channel, behind a dot.
        """
        return [(prefix + b"." + entry, FIRST_ACK_SID + i) for i, entry in enumerate(self.entries)]

    def _overlaps(self) -> dict[int, tuple[bytes, ...]]:
        # ``foo.*`` and ``*.zed``: neither contains the other, and NATS gives us what is published
        # on foo.zed for each. The copy of the earlier entry counts.
        wild = [(i, entry) for i, entry in enumerate(self.entries)]
        found = {}
        for i, entry in wild:
            earlier = tuple(other for other in self.entries[:i] if intersect(other, entry))
            if earlier:
                found[FIRST_ACK_SID + i] = earlier
        return found

    def is_second_copy(self, sid: int, channel: bytes) -> bool:
        """Whether the publish came for an earlier entry too."""
        return any(matches(entry, channel) for entry in self.second_copies.get(sid, ()))
