"""Partitioning: which channels this server serves, of those that its cluster id has
(``docs/compat/partitioning.md``).

A partition is silent about what is another one's: publishes do not even arrive, because it
subscribes to the subjects of its own channels only; requests about other channels are ignored. What
arrives too early, from a client whose connect is still on its way here, waits in
``pending_registrations``.

A channel that moves (``docs/partitioning.md``) leaves the list of one server and enters that of
another while both serve: such an entry is the name of one channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ftstan.base.errors import RefusedError
from ftstan.broker.publishing import FIRST_ACK_SID
from ftstan.wire.patterns import PatternSet, covering, intersect, matches

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Channels that may come here in the life of one process: each takes a sid for good.
MOST_ADDED: Final = 1024


class Partition:
    """The channels of one server: ``names`` as configured, wildcards included."""

    def __init__(self, names: Iterable[bytes]) -> None:
        self.names = tuple(dict.fromkeys(names))
        self.entries = covering(self.names)
        """What is subscribed to: the fewest of the names that together match all of their
        channels.
        """
        self._set = PatternSet(self.entries)
        self._sids = {entry: FIRST_ACK_SID + i for i, entry in enumerate(self.entries)}
        self.end_sid = FIRST_ACK_SID + len(self.entries) + MOST_ADDED
        """The first sid behind those of the publish subjects."""
        self.second_copies = self._overlaps()

    def owns(self, channel: bytes) -> bool:
        """Whether the channel is served here."""
        return self._set.match(channel)

    def names_alone(self, channel: bytes) -> bool:
        """Whether an entry is the name of this channel, and no other one covers it."""
        return channel in self.entries

    def rows(self, prefix: bytes) -> list[tuple[bytes, int]]:
        """The publish subjects with their sids.

        ``prefix`` stands before the channel, behind a dot.
        """
        return [(prefix + b"." + entry, self._sids[entry]) for entry in self.entries]

    def sid_of(self, channel: bytes) -> int:
        """The sid of a channel that is an entry, or may become one: always the same.

        Raises ``RefusedError``.
        """
        sid = self._sids.get(channel)
        if sid is None:
            sid = FIRST_ACK_SID + len(self._sids)
            if sid >= self.end_sid:
                raise RefusedError(
                    f"{MOST_ADDED} channels have come to this server since its start",
                    hint="restart it, and move the channel then",
                )
            self._sids[channel] = sid
        return sid

    def add(self, channel: bytes) -> None:
        """Serve this channel from now on, which no entry covers. Raises ``RefusedError``."""
        self.sid_of(channel)
        self._change((*self.names, channel), (*self.entries, channel))

    def remove(self, channel: bytes) -> None:
        """Serve this channel no more, for which ``names_alone`` holds."""
        self._change(
            tuple(name for name in self.names if name != channel),
            tuple(entry for entry in self.entries if entry != channel),
        )

    def _change(self, names: tuple[bytes, ...], entries: tuple[bytes, ...]) -> None:
        self.names = names
        self.entries = entries
        self._set = PatternSet(entries)

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
