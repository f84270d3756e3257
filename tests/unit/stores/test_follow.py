"""Reading records where the index says that they are, when they do not follow each other: an
original took what had no entry for nothing, and appended behind it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from ftstan.stores.file.log import records
from ftstan.stores.file.recovery.foreign_writes import confirmed_entries, follow
from ftstan.stores.file.state.confirmed import Confirmed
from ftstan.wire.block import MsgBlock
from ftstan.wire.codec import decode_msg_proto

if TYPE_CHECKING:
    from ftstan.stores.file.env import FileEnv

CRC = records.Crc()
ENV = cast("FileEnv", SimpleNamespace(crc=CRC, options=SimpleNamespace(check_crc=True)))
START = records.VERSION_SIZE

#: A record: its sequence, and what it holds.
Row = tuple[int, bytes]


class Written:
    """Bytes of a slice from ``START`` on, and entries of the records that count."""

    def __init__(self) -> None:
        self.data = b""
        self.index = b""

    def add(self, *rows: Row, named: bool = True) -> Written:
        block = MsgBlock()
        for sequence, data in rows:
            block.append(sequence, b"foo", b"", data, 1_000_000_000 + sequence)
        records.seal(block, CRC)
        if named:
            at = START + len(self.data)
            self.index += records.index_entries(block, 0, len(block), at, CRC)
        self.data += bytes(memoryview(block))
        return self

    def read(self, last: int = 0) -> tuple[list[Row], int, str, bool]:
        block, used, why, scattered = follow(
            ENV, b"foo", self.data, start=START, last=last, index=self.index
        )
        rows = [(block.sequence(i), data_of(block, i)) for i in range(len(block))]
        return rows, used, why, scattered


def data_of(block: MsgBlock, i: int) -> bytes:
    data: Any = decode_msg_proto(block.payload(i))[3]
    return bytes(data)


def test_records_that_follow_each_other_are_read_to_their_end() -> None:
    made = Written().add((1, b"a"), (2, b"b")).add((3, b"c"), named=False)
    assert made.read() == ([(1, b"a"), (2, b"b"), (3, b"c")], len(made.data), "", False)


def test_records_without_entries_are_passed_over_as_often_as_the_index_says_so() -> None:
    made = Written().add((1, b"a"), (2, b"b")).add((3, b"old"), named=False)
    made.add((3, b"new"), (4, b"d")).add((5, b"old"), (6, b"old"), named=False)
    made.add((5, b"new"), (6, b"f")).add((7, b"behind"), named=False)
    expected = [(1, b"a"), (2, b"b"), (3, b"new"), (4, b"d"), (5, b"new"), (6, b"f")]
    assert made.read() == ([*expected, (7, b"behind")], len(made.data), "", True)


def test_the_first_record_may_be_passed_over() -> None:
    made = Written().add((4, b"old"), named=False).add((4, b"new"), (5, b"e"))
    assert made.read(last=3) == ([(4, b"new"), (5, b"e")], len(made.data), "", True)


def test_what_ends_the_records_behind_a_jump_is_told() -> None:
    made = Written().add((1, b"a")).add((2, b"old"), named=False).add((2, b"new"))
    whole = len(made.data)
    made.data += b"\x18\0\0\0\1\2\3\4torn"
    assert made.read() == ([(1, b"a"), (2, b"new")], whole, "torn", True)


@pytest.mark.parametrize("spoilt", ["entry", "record", "sequence", "behind"])
def test_an_entry_that_leads_nowhere_is_not_followed(spoilt: str) -> None:
    made = Written().add((1, b"a")).add((2, b"old"), named=False)
    old = len(made.data)
    made.add((3 if spoilt == "sequence" else 2, b"new"))
    index, data = bytearray(made.index), bytearray(made.data)
    if spoilt == "entry":
        index[-1] ^= 1
    if spoilt == "record":
        data[-1] ^= 1
    if spoilt == "behind":
        # It names the place of a record that has been passed already.
        index[32:] = index[:32]
    made.index, made.data = bytes(index), bytes(data)
    rows, used, _, scattered = made.read()
    assert (rows[:2], scattered) == ([(1, b"a"), (2, b"old")], False)
    assert used >= old


def test_of_a_slice_only_what_was_confirmed_in_it_is_sure() -> None:
    made = Written().add((1, b"a"), (2, b"b"), (3, b"c"))
    proven = records.scan_index(made.index, CRC)

    def sure(number: int, confirmed: Confirmed | None) -> int:
        return len(confirmed_entries(made.index, proven, number, confirmed)) // 32

    assert sure(7, None) == 0
    assert sure(7, Confirmed(1, 6, 2, 0, 2)) == 0
    assert sure(7, Confirmed(1, 7, 2, 0, 2)) == 2
    assert sure(7, Confirmed(1, 7, 9, 0, 9)) == 3
