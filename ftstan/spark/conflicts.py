"""One sequence, two contents: the messages of a slice compared with those that other slices hold
under their numbers.

Equal records in two slices are normal: an original server leaves them, and a copied tail is one.
Different ones are what two stores that were merged by mistake look like; a reader gives one of
them, and this says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.spark.pieces import SliceReader
from ftstan.spark.report import ReadingFinding, ReadingKind
from ftstan.spark.resolve import directory, resolved
from ftstan.stores.file.log import records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.spark.parts import Work
    from ftstan.spark.report import ReadingReport
    from ftstan.spark.scan import Listed
    from ftstan.stores.file.log.records import Crc

_ENTRY = records.INDEX_SIZE
_HEAD = records.HEADER_SIZE

#: Sequence, offset of the record, its header (size and checksum).
_Record = tuple[int, int, bytes]


def conflicts(
    work: Work, listed: Listed, reader: SliceReader, crc: Crc, report: ReadingReport
) -> Iterator[ReadingFinding]:
    """A finding for each run of sequences that ``reader`` and another slice of the channel hold
    with other contents.
    """
    counted, _ = resolved(work.path, listed, work.ours_from, work.polynomial)
    shown = f"{listed.shown}/{reader.file.dat}"
    with directory(work.path, listed) as dirfd:
        for other in counted:
            if other.file.number == reader.file.number:
                continue
            try:
                with SliceReader(dirfd, listed.name, other.file, crc, report) as there:
                    run: list[_Record] = []
                    for record, theirs in _common(_records(reader), _records(there)):
                        if not other.first <= record[0] <= other.last or record[2] == theirs[2]:
                            continue
                        if run and record[0] != run[-1][0] + 1:
                            yield _finding(listed, shown, run, other.file.dat)
                            run = []
                        run.append(record)
                    if run:
                        yield _finding(listed, shown, run, other.file.dat)
            except FileNotFoundError:
                continue


def _finding(listed: Listed, shown: str, run: list[_Record], other: str) -> ReadingFinding:
    first, offset, _ = run[0]
    text = f"sequences {first} to {run[-1][0]} have another content than in {other}, which counts"
    return ReadingFinding(ReadingKind.CONFLICT, listed.shown, shown, text, offset, first)


def _records(reader: SliceReader) -> Iterator[_Record]:
    """Every record of a slice, by its header."""
    for piece in reader.located():
        for k in range(len(piece.entries) // _ENTRY):
            sequence, offset, _, _ = records.entry(piece.entries, k)
            yield sequence, offset, bytes(reader.data(offset, _HEAD))


def _common(left: Iterator[_Record], right: Iterator[_Record]) -> Iterator[tuple[_Record, _Record]]:
    """Records of both with the same sequence; both ascend."""
    a = next(left, None)
    b = next(right, None)
    while a is not None and b is not None:
        if a[0] == b[0]:
            yield a, b
            a = next(left, None)
            b = next(right, None)
        elif a[0] < b[0]:
            a = next(left, None)
        else:
            b = next(right, None)
