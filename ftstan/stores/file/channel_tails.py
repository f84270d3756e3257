"""Ends: whose end the next digest for standbys tells, when not all of them fit."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ftstan.stores.file.channel import FileChannel
    from ftstan.stores.interface import ChannelEnd

#: Channels without news in one digest.
_IN_TURN = 256


class Ends:
    """Channels with news first, then the others in turn.

    ``fresh``: names with news, taken out when they are told.
    """

    def __init__(self, fresh: dict[bytes, None]) -> None:
        self._fresh = fresh
        self._turn: deque[bytes] = deque()

    def next(self, channels: Mapping[bytes, FileChannel], most: int) -> list[ChannelEnd]:
        """The ends of at most ``most`` channels."""
        names: list[bytes] = []
        while self._fresh and len(names) < most:
            name = next(iter(self._fresh))
            del self._fresh[name]
            names.append(name)
        if not self._turn:
            self._turn.extend(channels)
        names += [
            self._turn.popleft() for _ in range(min(most - len(names), _IN_TURN, len(self._turn)))
        ]
        return [channels[name].end for name in dict.fromkeys(names) if name in channels]
