"""NUIDs: the 22-character identifiers of servers, inboxes and messages.

Twelve random characters, shared by everything one generator makes, and ten that count upwards in
random steps: unique among processes, cheap to make, and recognisably of one process in a trace.
They name things and keep no secrets: who sees one can guess the next.
"""

from __future__ import annotations

import threading
from random import SystemRandom
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
PREFIX_LENGTH: Final = 12
COUNTER_LENGTH: Final = 10
LENGTH: Final = PREFIX_LENGTH + COUNTER_LENGTH

_COUNTERS = len(ALPHABET) ** COUNTER_LENGTH
_STEP_MIN = 33
_STEP_RANGE = 300
_RANDOM = SystemRandom()


class Nuid:
    """A generator of identifiers, safe to share between threads.

    ``below(n)`` gives a random integer from 0 to ``n - 1``; the default is the operating system's
    randomness.
    """

    def __init__(self, below: Callable[[int], int] = _RANDOM.randrange) -> None:
        self._below = below
        self._lock = threading.Lock()
        self._restart()

    def next(self) -> str:
        """Make a new identifier: 22 ASCII letters and digits."""
        with self._lock:
            self._counter += self._step
            if self._counter >= _COUNTERS:
                self._restart()
            return self._prefix + _digits(self._counter)

    def _restart(self) -> None:
        # A fresh prefix when the counter is used up: wrapping it would repeat identifiers.
        self._prefix = "".join(ALPHABET[self._below(len(ALPHABET))] for _ in range(PREFIX_LENGTH))
        self._counter = self._below(_COUNTERS)
        self._step = _STEP_MIN + self._below(_STEP_RANGE)


def _digits(number: int) -> str:
    out = []
    for _ in range(COUNTER_LENGTH):
        number, digit = divmod(number, len(ALPHABET))
        out.append(ALPHABET[digit])
    return "".join(reversed(out))
