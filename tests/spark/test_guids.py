"""Names of rows: the same rows get the same names again, and two messages never get one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftstan.spark.guids import Names

Row = tuple[bytes, bytes, bytes]

# Few different ones, so that equal rows are common.
rows = st.lists(st.tuples(*(st.sampled_from([b"", b"a", b"b", b"ab", b"1 "]) for _ in range(3))))


def names_of(
    rows: list[Row], writing: str = "query", batch: int = 0, partition: int = 0
) -> list[tuple[Row, str]]:
    names = Names(writing, batch, partition)
    return [(row, names.of(*row)) for row in rows]


@given(rows, st.randoms(use_true_random=False))
def test_the_rows_of_a_partition_get_the_same_names_in_whatever_order_they_come(
    rows: list[Row], random: object
) -> None:
    again = sorted(rows, key=lambda _: random.random())  # type: ignore[attr-defined]
    assert sorted(names_of(rows)) == sorted(names_of(again))


@given(rows)
def test_every_row_has_a_name_of_its_own_and_equal_rows_too(rows: list[Row]) -> None:
    assert len({name for _, name in names_of(rows)}) == len(rows)


@given(rows.filter(bool))
def test_other_writes_batches_and_partitions_have_other_names(rows: list[Row]) -> None:
    seen = {name for _, name in names_of(rows)}
    for other in (
        names_of(rows, writing="query2"),
        names_of(rows, batch=1),
        names_of(rows, partition=1),
        names_of(rows, writing="1 query"),
    ):
        assert not seen & {name for _, name in other}
