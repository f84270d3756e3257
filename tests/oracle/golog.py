"""How the original logs and how it ends when it panics (``docs/compat/logging.md``)."""

from __future__ import annotations

import os
import sys
import time
from typing import NoReturn

_FIRST_S = 1.0
_LAST_S = 60.0
_FRESH_S = 120.0


def log(level: str, text: str) -> None:
    """One line of the server on standard error."""
    now = time.time()
    stamp = (
        time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1_000_000):06d}"
    )
    os.write(
        2, f"[{os.getpid()}] {stamp} [{level}] STREAM: {text}\n".encode("utf-8", "surrogateescape")
    )


def panic(text: str) -> NoReturn:
    """Die as the original does: nothing is closed, the stack goes to standard error, the status is
    2.
    """
    sys.stderr.write(f"panic: {text}\n\ngoroutine 1 [running]:\n")
    sys.stderr.flush()
    os._exit(2)


class Rarely:
    """A line that repeats: at first, then after 1 s, 2 s, 4 s and so on up to once a minute."""

    def __init__(self) -> None:
        self._due = 0.0
        self._pause = 0.0

    def log(self, level: str, text: str) -> None:
        now = time.monotonic()
        if self._pause >= _LAST_S and now - self._due >= _FRESH_S:
            self._pause = 0.0
        if self._pause and now < self._due:
            return
        log(level, text)
        self._pause = min(self._pause * 2, _LAST_S) if self._pause else _FIRST_S
        self._due = now + self._pause
