"""Channels that publishes make: so many a batch, and what comes for others that are not there yet
waits here while publishes to channels that are there pass it.

All clients share one link, and a new channel costs as much storage as hundreds of publishes: its
directory and files are synced before the first ack. Whoever publishes to thousands of new channels
at once must not keep those waiting who publish to one.

What waits was looked at when it came, and is taken in its order when its channel is made, by
whomever. So nothing waits for a channel that is there.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    #: Reply and payload.
    _Publish = tuple[bytes, bytes]

#: Channels that one batch makes for publishes.
CHANNELS: Final = 4
#: Bytes of publishes that may wait; those beyond are refused.
MOST_BYTES: Final = 32 << 20
#: What one that waits takes besides its bytes, its channel's name included.
_EACH: Final = 600


class NewChannels:
    """What waits. ``make`` makes a channel, and takes what waits for it (``take``), or refuses
    that.
    """

    def __init__(self, make: Callable[[bytes], None]) -> None:
        self._make = make
        self._waiting: dict[bytes, list[_Publish]] = {}
        self._left = CHANNELS
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, name: bytes) -> bool:
        return name in self._waiting

    def may_make(self) -> bool:
        """Whether a channel may be made now, for which nothing waits; it counts as made."""
        if not self._left or self._waiting:
            return False
        self._left -= 1
        return True

    def keep(self, name: bytes, reply: bytes, payload: bytes) -> bool:
        """Keep a publish for a channel that is not there; false: too much waits."""
        size = _size(reply, payload)
        if self._bytes + size > MOST_BYTES:
            return False
        self._waiting.setdefault(name, []).append((reply, payload))
        self._bytes += size
        return True

    def take(self, name: bytes) -> list[_Publish]:
        """What waits for a channel, in its order: it waits no more."""
        taken = self._waiting.pop(name, [])
        self._bytes -= sum(_size(*publish) for publish in taken)
        return taken

    def take_all(self) -> list[_Publish]:
        """All that waits: it waits no more."""
        return [publish for name in list(self._waiting) for publish in self.take(name)]

    def go_on(self) -> bool:
        """The end of a batch: make some channels, as many as it may still make.

        Returns whether any were to be made.
        """
        some = list(islice(self._waiting, self._left))
        for name in some:
            self._make(name)
        self._left = CHANNELS
        return bool(some)


def _size(reply: bytes, payload: bytes) -> int:
    return _EACH + len(reply) + len(payload)
