"""Python's cyclic collector beside publishers: what it looks at in one pause has a bound.

By itself Python looks at every object there is whenever a quarter as many have come: with 90,000
subscriptions that is a pause of a quarter of a second. Almost nothing here is garbage by cycles;
what is (errors with their tracebacks, deleted channels) is small. So what recovery has made is set
aside, collections by themselves look at young objects only, and once an hour everything is looked
at.
"""

from __future__ import annotations

import gc
from typing import Final

#: Objects that come before the youngest are looked at, and how many of these looks before those
#: that survived them are.
YOUNG: Final = 10_000
_MIDDLE: Final = 4
#: Never reached: old objects are looked at by ``look``.
_OLD: Final = 1 << 30
#: Seconds between two looks at everything.
EVERYTHING_S: Final = 3600.0


class Collecting:
    """The collector of this process.

    A program that a server is embedded in has its own rules: use none there.
    """

    def __init__(self) -> None:
        self._next = float("inf")

    def begin(self, now: float) -> None:
        """Recovery is over, and nobody is served yet: collect, and set aside what is left."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG, _MIDDLE, _OLD)
        self._next = now + EVERYTHING_S

    def look(self, now: float) -> None:
        """Once in a while, between two turns: everything, also what was set aside, if it is time
        for that.
        """
        if now < self._next:
            return
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._next = now + EVERYTHING_S
