"""What is wanted of a datastore and what a part of a plan has of it: shared by planning, options
and readers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ftstan.spark.resolve import ENDLESS

if TYPE_CHECKING:
    from ftstan.spark.report import ReadingFinding
    from ftstan.spark.scan import Listed

#: The checksum of a server without ``-file_crc_poly``.
POLYNOMIAL = 0xEDB88320

#: Bytes of data in a part, unless somebody says otherwise: what Spark's own file sources take.
MAX_BYTES = 128 << 20

MIN_TIME = -(1 << 63)
MAX_TIME = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Bounds:
    """Messages that are wanted: sequences ``first`` to ``last``, timestamps (ns) ``since`` to
    ``until``; ends count.
    """

    first: int = 1
    last: int = ENDLESS
    since: int = MIN_TIME
    until: int = MAX_TIME

    def within(self, other: Bounds) -> Bounds:
        """What both want."""
        return Bounds(
            max(self.first, other.first),
            min(self.last, other.last),
            max(self.since, other.since),
            min(self.until, other.until),
        )

    @property
    def empty(self) -> bool:
        """Whether nothing can be in them."""
        return self.first > self.last or self.since > self.until


EVERYTHING = Bounds()


class Range(NamedTuple):
    """Bytes ``start`` to ``end`` of slice ``number``: the messages whose records begin there."""

    number: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Share:
    """What a part has of one channel. ``ending``: the channel's last range is among them."""

    channel: Listed
    bounds: Bounds
    ranges: tuple[Range, ...]
    ending: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be read: byte ranges of slices, with everything that is needed to read them
    elsewhere.

    ``findings``: what planning came across; one part of a plan has them. ``encrypted``: the store
    says that its payloads are.
    """

    path: str
    ours_from: int
    polynomial: int
    shares: tuple[Share, ...]
    findings: tuple[ReadingFinding, ...] = ()
    encrypted: bool = False

    @property
    def size(self) -> int:
        """Bytes of data in it, without any pruning."""
        return sum(r.end - r.start for share in self.shares for r in share.ranges)
