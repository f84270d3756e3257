"""What the person at the terminal sees while the demo runs: lines that stay, and one progress line
that does not.

Where standard output is no terminal there is no progress line, only a plain line every few seconds.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ftstan.base.clock import Clock

REDRAW_EVERY = 0.2
PLAIN_EVERY = 5.0
_ERASE_LINE = "\r\x1b[2K"


class Screen:
    """Prints lines, each with the seconds since the start, above a progress line."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.mono()
        self._terminal = sys.stdout.isatty()
        self._drawn_at = self._began

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        print(f"{self._elapsed():6.1f} s  {text}", flush=True)

    def progress(self, text: str) -> None:
        """Show ``text`` as the state of things, if it is time to."""
        now = self._clock.mono()
        if now - self._drawn_at < (REDRAW_EVERY if self._terminal else PLAIN_EVERY):
            return
        self._drawn_at = now
        if self._terminal:
            print(f"{_ERASE_LINE}{self._elapsed():6.1f} s  {text}", end="", flush=True)
        else:
            print(f"{self._elapsed():6.1f} s  {text}", flush=True)

    def clear(self) -> None:
        """Take the progress line away."""
        if self._terminal:
            print(_ERASE_LINE, end="")

    def _elapsed(self) -> float:
        return self._clock.mono() - self._began
