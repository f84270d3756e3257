"""Which sequences of which slice count: the rules of a start (``docs/store.md``), for somebody who
owns nothing.

A slice of ours ends every lower-numbered one at its own first sequence, but hides nothing that was
confirmed below it. Slices of the original are ordered by their sequences, and where two hold the
same, the first one counts. Looks at the beginning of each slice, and at the end of the original's;
writes nothing.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from typing import TYPE_CHECKING

from ftstan.spark.pieces import SliceReader
from ftstan.spark.report import ReadingReport
from ftstan.stores.file.log.records import Crc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.spark.scan import Listed, SliceFile

#: Sequences go no further: a column of Spark takes no higher one.
ENDLESS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Counted:
    """A slice of which sequences ``first`` to ``last`` count; it begins with ``begins``.

    ``following``: where the next slice goes on, 0 behind the last one. ``last`` may be far above
    the messages there.
    """

    file: SliceFile
    begins: int
    first: int
    last: int
    following: int = 0


@contextlib.contextmanager
def directory(path: str, listed: Listed) -> Iterator[int]:
    """The channel's directory, open for reading. Raises ``OSError``."""
    root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(os.fsdecode(listed.name), flags, dir_fd=root)
    finally:
        os.close(root)
    try:
        yield fd
    finally:
        os.close(fd)


@lru_cache(maxsize=4)
def checksum(polynomial: int) -> Crc:
    """The checksum of a polynomial; making its tables takes longer than using them."""
    return Crc(polynomial)


@lru_cache(maxsize=16)
def resolved(
    path: str, listed: Listed, ours_from: int, polynomial: int
) -> tuple[tuple[Counted, ...], int]:
    """The slices of a channel of which something counts, in the order of their sequences, and index
    bytes read for it.

    Slices that are gone by now are left out. Raises ``OSError``.
    """
    report = ReadingReport()
    crc = checksum(polynomial)
    with directory(path, listed) as dirfd:
        begins: dict[int, int] = {}
        times: dict[int, int] = {}
        lasts: dict[int, int] = {}
        old = [s for s in listed.slices if s.number < ours_from]
        for s in listed.slices:
            with (
                contextlib.suppress(FileNotFoundError),
                SliceReader(dirfd, listed.name, s, crc, report) as reader,
            ):
                begins[s.number], times[s.number] = reader.first()
                if s.number < ours_from and len(old) > 1:
                    lasts[s.number] = reader.last()
    there = [s for s in listed.slices if begins.get(s.number)]
    top = ENDLESS if listed.limit is None else listed.limit
    ours, end = _sealed([s for s in there if s.number >= ours_from], begins, listed, top)
    found = _merged([s for s in there if s.number < ours_from], begins, lasts, end) + ours
    found.sort(key=lambda c: c.first)
    if found and listed.mark is not None and listed.mark.speaks_of(times[found[0].file.number]):
        found = _unpurged(found, listed.mark.sequence)
    linked = [
        Counted(c.file, c.begins, c.first, c.last, after.first if after else 0)
        for c, after in zip_longest(found, found[1:])
    ]
    return tuple(linked), report.index_bytes


def _unpurged(slices: list[Counted], through: int) -> list[Counted]:
    """Slices in order, without what an operator has purged."""
    ends = [*(c.first - 1 for c in slices[1:]), ENDLESS]
    return [
        Counted(c.file, c.begins, max(c.first, through + 1), c.last)
        for c, end in zip(slices, ends, strict=True)
        if min(c.last, end) > through
    ]


def _sealed(
    slices: list[SliceFile], begins: dict[int, int], listed: Listed, top: int
) -> tuple[list[Counted], int]:
    """Our slices as they end each other, and the last sequence that anything below them may
    have.
    """
    found = []
    end = top
    for s in reversed(slices):
        first = begins[s.number]
        if listed.confirmed is not None and s.number > listed.confirmed.slice_number:
            # It cannot hide what was confirmed below it.
            first = max(first, listed.confirmed.sequence + 1)
        if first <= end:
            found.append(Counted(s, begins[s.number], first, end))
            end = first - 1
    return found, end


def _merged(
    slices: list[SliceFile], begins: dict[int, int], lasts: dict[int, int], end: int
) -> list[Counted]:
    """Slices of the original in the order of their sequences."""
    found = []
    reached = 0
    for s in sorted(slices, key=lambda s: (begins[s.number], -lasts.get(s.number, 0), s.number)):
        first = max(begins[s.number], reached + 1)
        last = min(lasts.get(s.number, ENDLESS), end)
        if first <= last:
            found.append(Counted(s, begins[s.number], first, last))
            reached = last
    return found
