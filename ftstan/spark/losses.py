"""What a stream does about messages that it should read and that are gone: it fails, or says so and
reads on.

Gone are messages that a limit of the server or somebody removed before they were read, and those of
a channel that has begun anew. The words are complete in themselves, for Spark shows an error
without its hint.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.base.errors import FtstanError

if TYPE_CHECKING:
    from ftstan.spark.offsets import Range

_HINT = "the option failOnDataLoss=false reads on behind them"


class DataLossError(FtstanError):
    """Messages that a stream should read are gone."""


@dataclass(frozen=True, slots=True)
class Losses:
    """``fail``: the option ``failOnDataLoss``."""

    fail: bool

    def gone(self, part: Range) -> None:
        """The messages of ``part`` are not there. Raises ``DataLossError``."""
        last = part.end - 1
        which = (
            f"message {last} is" if last == part.start else f"messages {part.start} to {last} are"
        )
        self._say(f"{part.channel}: {which} gone: expired, or removed, before they were read")

    def begun_anew(self, channel: str, at: int, end: int) -> None:
        """A channel that was read up to ``at`` ends before it, at ``end``.

        Raises ``DataLossError``.
        """
        self._say(
            f"{channel}: it was read up to message {at - 1} and ends at {end - 1} now: deleted "
            "and made again, or its "
            "server lost its store"
        )

    def _say(self, text: str) -> None:
        if self.fail:
            raise DataLossError(text, hint=_HINT)
        print(f"stan: loss: {text}", file=sys.stderr)
