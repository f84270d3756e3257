"""Several sources of a channel's messages become one: ordered, each sequence once, nothing chosen
in silence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from ftstan.spark.archive.merge import RowKind, merge
from ftstan.spark.archive.table import ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator

Rows = list[tuple[int, bytes]]


@dataclass
class Given:
    """A source with rows of a test, in batches of ``size``."""

    rows: Rows
    kind: RowKind = RowKind.NEW
    size: int = 3
    label: str = "here"

    @property
    def first(self) -> int:
        return self.rows[0][0] if self.rows else 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        for at in range(0, len(self.rows), self.size):
            piece = self.rows[at : at + self.size]
            columns = {
                "sequence": [n for n, _ in piece],
                "timestamp": [0] * len(piece),
                "timestamp_ns": [0] * len(piece),
                "data": [data for _, data in piece],
                "size": [len(data) for _, data in piece],
                "reply": [""] * len(piece),
                "slice": [1] * len(piece),
            }
            yield pa.RecordBatch.from_pydict(columns, schema=ROWS)


@dataclass
class Outcome:
    """Everything that came out. ``conflicts``: sequence, content and whether it is in the table."""

    rows: Rows
    duplicates: int
    conflicts: list[tuple[int, bytes, bool]]


def merged(*sources: Given) -> Outcome:
    out = Outcome([], 0, [])
    for piece in merge(sources):
        out.rows += zip(
            piece.rows["sequence"].to_pylist(), piece.rows["data"].to_pylist(), strict=True
        )
        out.duplicates += piece.duplicates
        if piece.conflicts is not None:
            columns = (
                piece.conflicts[name].to_pylist() for name in ("sequence", "data", "archived")
            )
            out.conflicts += zip(*columns, strict=True)
    return out


def plain(first: int, last: int, tag: bytes = b"") -> Rows:
    return [(n, b"%d" % n + tag) for n in range(first, last + 1)]


def test_sources_that_do_not_overlap_follow_each_other_whatever_their_order() -> None:
    assert merged(Given(plain(8, 11)), Given(plain(1, 5))) == Outcome(
        plain(1, 5) + plain(8, 11), 0, []
    )


def test_what_two_sources_have_comes_once() -> None:
    assert merged(Given(plain(1, 8)), Given(plain(5, 12), size=2)) == Outcome(plain(1, 12), 4, [])


def test_a_late_source_fills_the_hole_of_another() -> None:
    holed = plain(1, 4) + plain(9, 12)
    assert merged(Given(holed), Given(plain(3, 10))) == Outcome(plain(1, 12), 4, [])


def test_what_is_in_the_table_does_not_come_again() -> None:
    old = Given(plain(1, 6), RowKind.ARCHIVED)
    assert merged(old, Given(plain(4, 9))) == Outcome(plain(7, 9), 3, [])


def test_a_sequence_with_two_contents_goes_to_nobody() -> None:
    outcome = merged(Given(plain(1, 5)), Given(plain(3, 3, b"x") + plain(4, 7)))
    assert outcome == Outcome(plain(1, 2) + plain(4, 7), 2, [(3, b"3", False), (3, b"3x", False)])


def test_the_content_in_the_table_stays_and_is_told_beside_the_other() -> None:
    outcome = merged(Given(plain(1, 3), RowKind.ARCHIVED), Given(plain(2, 2, b"x")))
    assert outcome == Outcome([], 0, [(2, b"2", True), (2, b"2x", False)])


def test_what_is_known_to_be_disputed_is_not_settled_by_coming_alone() -> None:
    known = Given([(2, b"2"), (2, b"2x")], RowKind.DISPUTED)
    assert merged(known, Given(plain(1, 3))) == Outcome([(1, b"1"), (3, b"3")], 1, [])


def test_one_known_variant_is_enough_to_keep_a_sequence_out() -> None:
    assert merged(Given([(2, b"2")], RowKind.DISPUTED), Given(plain(1, 3))).rows == [
        (1, b"1"),
        (3, b"3"),
    ]


def test_a_third_content_of_a_disputed_sequence_is_told() -> None:
    known = Given([(2, b"2"), (2, b"2x")], RowKind.DISPUTED)
    assert merged(known, Given([(2, b"2y")])) == Outcome([], 0, [(2, b"2y", False)])


def test_the_time_belongs_to_the_content() -> None:
    class Later(Given):
        def batches(self) -> Iterator[pa.RecordBatch]:
            for batch in super().batches():
                yield batch.set_column(
                    2, "timestamp_ns", pa.array([1] * batch.num_rows, pa.int64())
                )

    assert len(merged(Given(plain(1, 1)), Later(plain(1, 1))).conflicts) == 2


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(1, 40), unique=True, min_size=1, max_size=20),
            st.sampled_from([RowKind.NEW, RowKind.NEW, RowKind.ARCHIVED]),
            st.sampled_from([b"", b"", b"x"]),
            st.integers(1, 7),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_any_sources_give_each_sequence_once_or_name_it(
    drawn: list[tuple[list[int], RowKind, bytes, int]],
) -> None:
    sources = []
    contents: dict[int, set[bytes]] = {}
    archived: set[int] = set()
    arrived = 0
    for numbers, kind, tag, size in drawn:
        # The table has a sequence once.
        rows = [
            (n, b"%d" % n + tag)
            for n in sorted(numbers)
            if kind is RowKind.NEW or n not in archived
        ]
        if kind is RowKind.ARCHIVED:
            archived |= {n for n, _ in rows}
        else:
            arrived += len(rows)
        for n, data in rows:
            contents.setdefault(n, set()).add(data)
        sources.append(Given(rows, kind, size))
    outcome = merged(*sources)
    single = {n for n, variants in contents.items() if len(variants) == 1}
    assert [n for n, _ in outcome.rows] == sorted(single - archived)
    disputed = {
        (n, data) for n, variants in contents.items() if len(variants) > 1 for data in variants
    }
    assert sorted((n, data) for n, data, _ in outcome.conflicts) == sorted(disputed)
    told = sum(not old for _, _, old in outcome.conflicts)
    assert arrived == len(outcome.rows) + outcome.duplicates + told
