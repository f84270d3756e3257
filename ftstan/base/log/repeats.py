"""Lines that say the same again and again: each text, or kind, at a falling rate, with the number
of those left out.

Pure: time comes in as seconds.
"""

from __future__ import annotations

from collections import OrderedDict

from ftstan.base.ratelimit import RateLimit

#: Texts that are remembered; whoever says more different things than that does not repeat himself.
_TEXTS = 256

#: Level, half, and the text or the kind of the line.
Key = tuple[str, str, str]


class Repeats:
    """What was said lately. Two lines with the same key are the same."""

    def __init__(self) -> None:
        self._limits: OrderedDict[Key, RateLimit] = OrderedDict()
        self._left_out: dict[Key, tuple[int, str]] = {}

    def ask(self, key: Key, text: str, now: float, times: int = 1) -> int | None:
        """Whether a line, which stands for ``times``, may be written: how many like it were left
        out since the last one, ``None`` if it may not.
        """
        limit = self._limits.get(key)
        if limit is None:
            limit = self._limits[key] = RateLimit()
            if len(self._limits) > _TEXTS:
                self._left_out.pop(self._limits.popitem(last=False)[0], None)
        self._limits.move_to_end(key)
        if not limit.allow(now):
            self._left_out[key] = (self._left_out.get(key, (0, ""))[0] + times, text)
            return None
        return self._left_out.pop(key, (0, ""))[0] + times - 1

    def owed(self, now: float, besides: Key) -> list[tuple[Key, str, int]]:
        """Keys of which some were left out, and whose time has come again, the last text, and how
        many those were.

        Not ``besides``, which is about to be asked for.
        """
        if not self._left_out:
            return []
        due = [key for key in self._left_out if key != besides and self._limits[key].allow(now)]
        left_out = [(key, self._left_out.pop(key)) for key in due]
        return [(key, text, count) for key, (count, text) in left_out]
