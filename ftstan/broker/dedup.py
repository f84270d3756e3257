"""Publishes of our own client that were stored already: a repeat is acknowledged and not stored twice.

Only guids that begin with ``ft1.`` are looked at: that client promises to use one guid for one message. A window holds
the newest of them, as digests; the store makes it durable with the batch (``docs/store.md`` section 5).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from ftstan.stores.interface import REMEMBERED_SIZE

if TYPE_CHECKING:
    from collections.abc import Container


class Window:
    """The newest ``size`` publishes: digest of channel and guid -> sequence, oldest first."""

    def __init__(self, size: int, known: dict[bytes, int]) -> None:
        self.known = known
        self._size = size
        self._fresh: list[tuple[bytes, bytes]] = []
        self._shrink()

    def look(self, channel: bytes, guid: bytes) -> int:
        """The sequence that the publish was stored with; 0 if it is not known."""
        return self.known.get(_digest(channel, guid), 0)

    def add(self, channel: bytes, guid: bytes, sequence: int) -> None:
        """The publish was applied."""
        digest = _digest(channel, guid)
        # A digest that is known and was not taken for a repeat names something that is gone: it moves to the end.
        self.known.pop(digest, None)
        self.known[digest] = sequence
        self._fresh.append((channel, digest))
        self._shrink()

    def committed(self, failed: Container[bytes]) -> list[bytes]:
        """What was added since the last call and is durable now; what went to ``failed`` channels is forgotten."""
        fresh, self._fresh = self._fresh, []
        for channel, digest in fresh:
            if channel in failed:
                self.known.pop(digest, None)
        return [digest for channel, digest in fresh if channel not in failed and digest in self.known]

    def _shrink(self) -> None:
        while len(self.known) > self._size:
            del self.known[next(iter(self.known))]


def _digest(channel: bytes, guid: bytes) -> bytes:
    # A channel name holds no zero byte (``docs/compat/protocol.md``, channel names).
    return blake2b(channel + b"\0" + guid, digest_size=REMEMBERED_SIZE).digest()
