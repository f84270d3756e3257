"""Where a stream without a checkpoint begins: the options ``startingOffsets`` and
``startingTimestamp``.

Pure: no clock, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.spark.options import EARLIEST, LATEST, Positions, moment, positions
from ftstan.spark.parts import MIN_TIME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ftstan.spark.offsets import Offsets


@dataclass(frozen=True, slots=True)
class Starting:
    """``since``: nanoseconds, which win over ``places``."""

    places: Positions
    since: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Starting:
        """What the options say; without them a stream begins at what comes next.

        Raises ``ConfigError``.
        """
        places = positions(options, "startingOffsets", LATEST)
        since = moment(options, "startingTimestamp", MIN_TIME)
        # What is not named is read whole, as a channel that appears later is.
        return cls(
            Positions(EARLIEST, places.named) if places.named else places,
            since if since > MIN_TIME else None,
        )

    def offsets(
        self,
        latest: Offsets,
        firsts: Callable[[Iterable[str]], Offsets],
        since: Callable[[int, Iterable[str]], Offsets],
    ) -> Offsets:
        """Channel -> the sequence to begin at.

        ``firsts`` and ``since`` are asked where they are needed.
        """
        if self.since is not None:
            return latest | since(self.since, latest)
        places = {channel: self.places.of(channel) for channel in latest}
        earliest = firsts([channel for channel, place in places.items() if place == EARLIEST])
        begun = {
            c: earliest.get(c, latest[c]) if place == EARLIEST else place
            for c, place in places.items()
        }
        found = {
            channel: latest[channel] if place == LATEST else place
            for channel, place in begun.items()
        }
        # A channel that is named and not there yet: its messages count from what was said.
        missing = self.places.named.keys() - latest.keys()
        return found | {
            channel: place for channel in missing if (place := self.places.of(channel)) > 0
        }
