"""Long work on many messages, cut into steps: what there is by channel, and which part of it is
done in one go.

Replay and restore go through messages in the order of their channels and sequences. To sort
everything at once would need room for all of it; a step is a range of one large channel or a group
of small channels, and what was finished is known by its number or its last sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812  everybody's name for it

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from ftstan.spark.selection import Selection

_COUNTED: Final = "channel string, sequence bigint, timestamp timestamp, size int"
_CHANNELS_A_STEP: Final = 500
#: What a record and its index entry need beside the data.
_OVERHEAD: Final = 80

#: One channel's part of a step: its name, and the first and last sequence.
Part = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Extent:
    """The messages of one channel: sequences, how many there are, bytes of their data, and when
    they were stored.
    """

    first: int
    last: int
    messages: int
    size: int
    since: str
    until: str

    @property
    def stored(self) -> int:
        """About how many bytes they need in a datastore."""
        return self.size + _OVERHEAD * self.messages


@dataclass(slots=True)
class Step:
    """What is done in one go: about so many ``messages`` and bytes (``size``)."""

    messages: int
    size: int
    parts: list[Part]


def survey(spark: SparkSession, selection: Selection) -> dict[str, Extent]:
    """What there is, by channel, in the order of their names.

    Reads no data where indexes tell everything.
    """
    frame = selection.frame(spark, "" if selection.where else _COUNTED, once=True)
    times = [F.date_format(f("timestamp"), "yyyy-MM-dd HH:mm:ss") for f in (F.min, F.max)]
    rows = (
        frame.groupBy("channel")
        .agg(F.min("sequence"), F.max("sequence"), F.count("*"), F.sum("size"), *times)
        .orderBy("channel")
        .collect()
    )
    return {row[0]: Extent(*row[1:]) for row in rows}


def cut(found: Mapping[str, Extent], step_bytes: int) -> list[Step]:
    """Cut it into steps of about ``step_bytes``."""
    steps: list[Step] = []
    room = 0
    for name, extent in found.items():
        pieces = max(-(-extent.stored // step_bytes), 1)
        if pieces == 1:
            if extent.stored > room or len(steps[-1].parts) >= _CHANNELS_A_STEP:
                steps.append(Step(0, 0, []))
                room = step_bytes
            steps[-1].parts.append((name, extent.first, extent.last))
            steps[-1].messages += extent.messages
            steps[-1].size += extent.stored
            room -= extent.stored
            continue
        width = -(-(extent.last - extent.first + 1) // pieces)
        steps += [
            Step(
                -(-extent.messages // pieces),
                extent.stored // pieces,
                [(name, at, min(at + width - 1, extent.last))],
            )
            for at in range(extent.first, extent.last + 1, width)
        ]
        room = 0
    return steps


def messages_of(frame: DataFrame, step: Step) -> DataFrame:
    """The messages of a step.

    Of a channel that grew since the survey possibly more, if the step has several.
    """
    if len(step.parts) == 1:
        (name, first, last) = step.parts[0]
        return frame.where((F.col("channel") == name) & F.col("sequence").between(first, last))
    return frame.where(F.col("channel").isin([name for name, _, _ in step.parts]))
