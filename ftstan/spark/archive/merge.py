"""Merging: several sources of one channel's messages become one, ordered by sequence, each sequence
once.

A source yields batches whose sequences ascend. Where only one source has a range its batches pass
as they are; where several have it, rows with equal content count once, and a sequence with two
contents goes to nobody: its variants come out as conflicts, each once, whatever run brought them.
Memory holds one batch of every source that is being read. Pure computation on Arrow.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: What makes two rows of one sequence the same message.
_CONTENT = ("timestamp_ns", "data", "reply")


class RowKind(IntEnum):
    """Where rows come from; of equal ones the lowest kind's is looked at first."""

    DISPUTED = 0
    """A variant of a sequence that is known to have several.

    Such a sequence has no row of its own any more.
    """
    ARCHIVED = 1
    """In the table already: compared, and never given out again."""
    NEW = 2


class Source(Protocol):
    """Rows of one channel, by sequence."""

    @property
    def first(self) -> int:
        """A sequence at or below the first row's."""

    @property
    def kind(self) -> RowKind:
        """What the rows are."""

    @property
    def label(self) -> str:
        """Where the rows come from, for people."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Batches with the columns of a table's files; no batch is empty."""


@dataclass(frozen=True, slots=True)
class Merged:
    """One piece of the result: ``rows`` that are new, in order.

    ``duplicates`` rows were left out because an equal one is known. ``conflicts`` are variants, not
    known before, of sequences that have several contents, with the columns ``archived`` and
    ``source`` behind the others; ``None`` if there are none.
    """

    rows: pa.Table
    duplicates: int = 0
    conflicts: pa.Table | None = None


class _Reading:
    """A source that is being read: its present batch, never empty."""

    def __init__(
        self, source: Source, batches: Iterator[pa.RecordBatch], batch: pa.RecordBatch
    ) -> None:
        self.source = source
        self._batches = batches
        self.batch = batch

    @property
    def last(self) -> int:
        """Sequence of the batch's last row."""
        value: int = self.batch["sequence"][-1].as_py()
        return value

    def take(self, horizon: int) -> pa.RecordBatch:
        """The rows up to sequence ``horizon``; the rest stays."""
        sequences = self.batch["sequence"]
        n = bisect.bisect_right(sequences, horizon, key=lambda value: value.as_py())
        taken = self.batch.slice(0, n)
        self.batch = self.batch.slice(n)
        return taken

    def advance(self) -> bool:
        """Have rows again; False at the end of the source."""
        while not self.batch.num_rows:
            batch = next(self._batches, None)
            if batch is None:
                return False
            self.batch = batch
        return True


def merge(sources: Sequence[Source]) -> Iterator[Merged]:
    """The rows of all sources; see the head of this module."""
    waiting = sorted(sources, key=lambda s: (s.first, s.kind))
    reading: list[_Reading] = []
    while waiting or reading:
        if not reading:
            _begin(reading, waiting.pop(0))
            continue
        horizon = min(r.last for r in reading)
        if waiting and waiting[0].first <= horizon:
            _begin(reading, waiting.pop(0))
            continue
        if len(reading) == 1:
            (only,) = reading
            if only.source.kind is RowKind.NEW:
                yield Merged(pa.Table.from_batches([only.batch]))
            only.batch = only.batch.slice(only.batch.num_rows)
        else:
            yield _resolve([(r.source, r.take(horizon)) for r in reading])
        reading = [r for r in reading if r.advance()]


def _begin(reading: list[_Reading], source: Source) -> None:
    batches = source.batches()
    batch = next(batches, None)
    if batch is not None:
        reading.append(_Reading(source, batches, batch))


def _resolve(pieces: list[tuple[Source, pa.RecordBatch]]) -> Merged:
    """Rows of several sources, of the same range of sequences."""
    pieces = sorted(
        (piece for piece in pieces if piece[1].num_rows), key=lambda piece: piece[0].kind
    )
    kinds = pa.array([source.kind for source, _ in pieces], pa.int32())
    origin = pa.array(
        [k for k, (_, batch) in enumerate(pieces) for _ in range(batch.num_rows)], pa.int32()
    )
    table = pa.Table.from_batches([batch for _, batch in pieces]).append_column("origin", origin)
    table = table.sort_by([("sequence", "ascending"), ("origin", "ascending")]).combine_chunks()
    kind = kinds.take(table["origin"].combine_chunks())
    repeated = _like_previous(table, ("sequence",))
    differs = pc.and_not(repeated, _like_previous(table, _CONTENT))
    odd = pc.unique(
        table["sequence"].filter(pc.or_(differs, pc.equal(kind, int(RowKind.DISPUTED))))
    )
    disputed = pc.is_in(table["sequence"], value_set=odd)
    new = pc.and_not(pc.and_not(pc.equal(kind, int(RowKind.NEW)), repeated), disputed)
    again = pc.and_(pc.and_not(repeated, disputed), pc.equal(kind, int(RowKind.NEW)))
    duplicates = pc.sum(again).as_py() or 0
    conflicts = None
    if len(odd):
        rows = table.append_column("kind", kind).filter(disputed)
        unknown, more = _variants(rows)
        duplicates += more
        if unknown:
            conflicts = rows.take(pa.array(unknown, pa.int64()))
            labels = pa.array([source.label for source, _ in pieces], pa.string()).take(
                conflicts["origin"]
            )
            archived = pc.equal(conflicts["kind"], int(RowKind.ARCHIVED))
            conflicts = conflicts.drop_columns(["origin", "kind"]).append_column(
                "archived", archived
            )
            conflicts = conflicts.append_column("source", labels)
    return Merged(table.drop_columns(["origin"]).filter(new), duplicates, conflicts)


def _variants(rows: pa.Table) -> tuple[list[int], int]:
    """Of rows of disputed sequences: which are variants that nobody knew, and how many are new and
    known.
    """
    unknown: list[int] = []
    known_again = 0
    seen: set[tuple[object, ...]] = set()
    columns = [rows[name].to_pylist() for name in ("sequence", "kind", *_CONTENT)]
    for k, (sequence, kind, *content) in enumerate(zip(*columns, strict=True)):
        variant = (sequence, *content)
        if variant not in seen:
            seen.add(variant)
            if kind != RowKind.DISPUTED:
                unknown.append(k)
        elif kind == RowKind.NEW:
            known_again += 1
    return unknown, known_again


def _like_previous(table: pa.Table, columns: Sequence[str]) -> pa.Array:
    """For each row whether these columns are the previous row's; false for the first."""
    same = None
    for name in columns:
        column = (
            table[name].combine_chunks()
            if isinstance(table[name], pa.ChunkedArray)
            else table[name]
        )
        a = column.slice(1)
        b = column.slice(0, len(column) - 1)
        # Two absent values are the same.
        both = pc.and_(pc.is_null(a), pc.is_null(b))
        one = pc.or_(pc.fill_null(pc.equal(a, b), False), both)
        same = one if same is None else pc.and_(same, one)
    return pa.concat_arrays([pa.array([False]), same])
