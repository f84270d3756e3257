"""Patience: after storage has refused something twice, it is not asked again at once.

Without it a full disk would be tried with every batch, a new slice each time. No sleep and no
thread: whoever comes too early gets the error of the last attempt again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ftstan.base.clock import Clock
    from ftstan.base.errors import StoreError

_FIRST_S = 0.25
#: A store that has space again serves again after this time at the latest.
_LONGEST_S = 1.0


class RetryBackoff:
    """One thing that storage may refuse.

    The first refusal is forgiven: the next attempt may come at once.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wait = 0.0
        self._until = 0.0
        self._error: StoreError | None = None
        self._echo: StoreError | None = None

    def check(self) -> None:
        """Raise the last refusal again if it is too early for another attempt."""
        if self._error is not None and self._clock.mono() < self._until:
            self._echo = type(self._error)(self._error.text, hint=self._error.hint)
            raise self._echo

    def refused(self, error: StoreError) -> None:
        """Storage refused.

        What ``check`` raised may come back here: nobody was asked then, and nothing is longer.
        """
        if error is self._echo:
            return
        if self._error is not None:
            self._wait = min(max(self._wait * 2, _FIRST_S), _LONGEST_S)
            self._until = self._clock.mono() + self._wait
        self._error = error

    def granted(self) -> None:
        """Storage did what it was asked to."""
        self._error = None
        self._wait = 0.0
