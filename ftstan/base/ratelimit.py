"""The rate limit of repeated log lines. Pure: time comes in as seconds."""

from __future__ import annotations

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
_FORGET_AFTER = 120.0


class RateLimit:
    """Lets a repeated line through at a falling rate: at once, then at most one per 1 s, 2 s, 4 s
    ... 60 s.

    Once it is down to one a minute and nothing was asked for two minutes past the due time, it
    starts over (``docs/compat/ft.md``).
    """

    __slots__ = ("_due", "_pause")

    def __init__(self) -> None:
        self._due: float | None = None
        self._pause = _FIRST_PAUSE

    def allow(self, now: float) -> bool:
        """Whether the line may be written at ``now`` seconds."""
        if (
            self._due is not None
            and self._pause >= _LONGEST_PAUSE
            and now > self._due + _FORGET_AFTER
        ):
            self._due = None
            self._pause = _FIRST_PAUSE
        if self._due is not None:
            if now < self._due:
                return False
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._due = now + self._pause
        return True
