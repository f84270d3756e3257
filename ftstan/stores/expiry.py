"""When each channel of a store is next looked at for messages that its limits no longer allow.

A heap by time, so that a second in which nothing expires costs nothing however many channels there
are. Only names and times: what a look does, and when the next one is due, is the channel's to say.
"""

from __future__ import annotations

import heapq


class Expiry:
    """Channels by the time (Unix ns) of their next look.

    A channel is looked at once for each time it was noted.
    """

    def __init__(self) -> None:
        self._at: dict[bytes, int] = {}
        self._heap: list[tuple[int, bytes]] = []
        """May hold times that no longer count: those of ``_at`` do."""

    def look(self, name: bytes, at: int) -> None:
        """Look at the channel at that time, or earlier if that was said before."""
        known = self._at.get(name)
        if known is None or at < known:
            self._at[name] = at
            heapq.heappush(self._heap, (at, name))

    def wake(self, name: bytes) -> None:
        """The channel has new messages: if no look is due at any time, look soon."""
        if name not in self._at:
            self.look(name, 0)

    def forget(self, name: bytes) -> None:
        """The channel is gone."""
        self._at.pop(name, None)

    def take(self, now_ns: int, most: int) -> list[bytes]:
        """At most so many names whose time has come; they are not noted any more."""
        due: list[bytes] = []
        while len(due) < most and self.is_due(now_ns):
            _, name = heapq.heappop(self._heap)
            del self._at[name]
            due.append(name)
        return due

    def is_due(self, now_ns: int) -> bool:
        """Whether ``take`` would give any."""
        while self._heap and self._heap[0][0] <= now_ns:
            at, name = self._heap[0]
            if self._at.get(name) == at:
                return True
            heapq.heappop(self._heap)
        return False

    def __len__(self) -> int:
        return len(self._at)
