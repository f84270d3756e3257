"""Tallies: how many messages of each channel there are, and a checksum of their data that does not
depend on an order.

Computed message by message from acks and deliveries, and by Spark from rows; equal tallies mean
equal messages.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DIGITS = 12

#: The same in SQL, over the column ``data``.
CHECKSUM_SQL = f"sum(CAST(conv(substr(sha2(data, 256), 1, {_DIGITS}), 16, 10) AS BIGINT))"


def checksum(data: bytes) -> int:
    """What one message adds to the checksum: 48 bits of its digest."""
    return int(hashlib.sha256(data).hexdigest()[:_DIGITS], 16)


@dataclass(slots=True)
class Tally:
    """Messages and checksum by channel."""

    channels: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, channel: str, data: bytes) -> None:
        """Count one message."""
        count, total = self.channels.get(channel, (0, 0))
        self.channels[channel] = (count + 1, total + checksum(data))

    @property
    def messages(self) -> int:
        """Messages of all channels."""
        return sum(count for count, _ in self.channels.values())

    def without(self, prefix: str) -> Tally:
        """The same under names without the prefix."""
        return Tally({name.removeprefix(prefix): row for name, row in self.channels.items()})

    @classmethod
    def of(cls, frame: DataFrame) -> Tally:
        """Count the rows of a DataFrame with ``channel`` and ``data``."""
        return cls({row[0]: (row[1], row[2]) for row in counted(frame).collect()})


def counted(frame: DataFrame) -> DataFrame:
    """One row a channel: its name, how many messages, their checksum."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  everybody's name for it; a tally needs no Spark

    return frame.groupBy("channel").agg(
        F.count("*").alias("messages"), F.expr(CHECKSUM_SQL).alias("checksum")
    )
