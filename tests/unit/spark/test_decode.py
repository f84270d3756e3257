"""From bytes of slices to Arrow columns: what the codec reads is what a column holds, whatever the
bytes are.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.spark.decode import TYPES, Builder, beginning, ending, gaps, select
from ftstan.wire import codec
from tests.slicefiles import CRC, Message, block_of, index_of, series

CHANNEL = b"orders"
ALL = tuple(TYPES)
_ENTRY = struct.Struct("<QQqII")

MESSAGES = st.lists(
    st.builds(
        Message,
        sequence=st.integers(1, 2**62),
        data=st.binary(max_size=40),
        timestamp=st.integers(-(2**62), 2**62),
        reply=st.binary(max_size=8),
    ),
    min_size=1,
    max_size=20,
    unique_by=lambda m: m.sequence,
).map(lambda found: sorted(found, key=lambda m: m.sequence))


def built(columns: tuple[str, ...] = ALL) -> Builder:
    builder = Builder(columns, CRC)
    builder.begin(CHANNEL, "orders", 7)
    return builder


def rows_of(builder: Builder) -> list[dict[str, Any]]:
    batch = builder.finish()
    batch.validate(full=True)
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


@given(MESSAGES)
def test_every_message_is_a_row_with_what_the_codec_reads(messages: list[Message]) -> None:
    block = block_of(CHANNEL, messages)
    builder = built(tuple(name for name in ALL if name != "timestamp"))
    assert builder.add(index_of(block), 0, len(block), memoryview(block), 4) == []
    for i, row in enumerate(rows_of(builder)):
        sequence, _, reply, data, timestamp, _, _ = codec.decode_msg_proto(block.payload(i))
        assert (row["sequence"], row["timestamp_ns"], row["data"]) == (sequence, timestamp, data)
        assert (row["channel"], row["slice"], row["file"]) == ("orders", 7, "orders/msgs.7.dat")
        assert (row["size"], row["crc_ok"], row["problem"]) == (len(data), True, None)
        assert row["reply"] == reply.decode("utf-8", "backslashreplace")


@pytest.mark.parametrize(
    "ns", [0, 1, 999, 1000, 1999, -1, -999, -1000, -1001, 1_700_000_000_123_456_789]
)
def test_a_microsecond_is_the_one_that_a_nanosecond_lies_in_before_1970_too(ns: int) -> None:
    block = block_of(CHANNEL, [Message(1, b"", ns)])
    builder = built(("timestamp",))
    builder.add(index_of(block), 0, 1)
    assert rows_of(builder) == [
        {"timestamp": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ns // 1000)}
    ]


def test_a_bad_record_is_a_row_that_says_so_and_has_no_content() -> None:
    block = block_of(CHANNEL, series(1, 3))
    index = index_of(block)
    data = bytearray(block)
    data[len(data) // 2] ^= 1
    builder = built()
    bad = builder.add(index, 0, 3, data, 4)
    rows = rows_of(builder)
    assert [row["crc_ok"] for row in rows] == [True, False, True]
    assert {name: rows[1][name] for name in ("sequence", "data", "size", "reply")} == {
        "sequence": 2,
        "data": None,
        "size": None,
        "reply": None,
    }
    assert rows[1]["timestamp_ns"] == series(2, 2)[0].at
    assert bad == [(2, rows[1]["offset"], rows[1]["problem"])]
    assert "expected crc to be 0x" in bad[0][2]


def test_a_whole_record_of_another_channel_or_sequence_is_bad() -> None:
    other = block_of(b"other", series(1, 1))
    builder = built()
    assert builder.add(index_of(other), 0, 1, memoryview(other), 4) == [
        (1, 4, "record of another channel")
    ]
    block = block_of(CHANNEL, series(5, 5))
    entry = bytearray(index_of(block))
    entry[0] = 6
    assert builder.add(entry, 0, 1, memoryview(block), 4) == [(6, 4, "the record holds sequence 5")]


def test_what_is_only_in_the_index_needs_no_data() -> None:
    block = block_of(CHANNEL, series(1, 4))
    builder = built(("channel", "sequence", "timestamp_ns", "slice"))
    assert builder.add(index_of(block), 1, 3) == []
    assert [(row["sequence"], row["timestamp_ns"]) for row in rows_of(builder)] == [
        (m.sequence, m.at) for m in series(2, 3)
    ]


def test_bytes_that_are_no_record_are_a_row_without_a_time() -> None:
    builder = built()
    builder.lost(9, 123, "padded with zeros")
    (row,) = rows_of(builder)
    assert (row["sequence"], row["timestamp"], row["timestamp_ns"], row["data"]) == (
        9,
        None,
        None,
        None,
    )
    assert (row["offset"], row["crc_ok"], row["problem"]) == (123, False, "padded with zeros")


def test_a_builder_starts_anew_after_each_batch_and_counts_rows_without_columns() -> None:
    block = block_of(CHANNEL, series(1, 5))
    builder = built(())
    builder.add(index_of(block), 0, 5)
    assert builder.finish().num_rows == 5
    assert builder.rows == 0
    builder.add(index_of(block), 0, 2)
    assert builder.finish().num_rows == 2


def test_a_slice_number_that_fits_no_column_is_left_out() -> None:
    block = block_of(CHANNEL, series(1, 1))
    builder = built(("slice", "file"))
    builder.begin(CHANNEL, "orders", 2**40)
    builder.add(index_of(block), 0, 1)
    assert rows_of(builder) == [{"slice": None, "file": f"orders/msgs.{2**40}.dat"}]


def test_payloads_of_the_shape_that_encryption_gives_them_are_counted() -> None:
    # An AES and a ChaCha record of the original, sequence 1, one of ours, and payloads that only
    # begin like one.
    aes = bytes.fromhex("015db4813b00000000000000017720e2eee679bdb60d7cb819a28e09cc189027e485")
    chacha = bytes.fromhex("025db4813b0000000000000001de8f8ffe3c26c1aeacb21b33751e15e0db0067addc")
    ours = b"\x01" + blake2b(b"random").digest()[:28]
    others = (
        b"\x02 some text of 28 bytes or more.",
        b"\x01" + bytes(40),
        b"\x01" + b"\xff" * 40,
        b"\x02short",
        b"\x03" + aes[1:],
    )
    block = block_of(
        CHANNEL, [Message(n, data) for n, data in enumerate((aes, chacha, ours, *others), 1)]
    )
    builder = built(("size",))
    builder.add(index_of(block), 0, len(block), memoryview(block), 4)
    assert builder.encrypted == 3


@given(st.binary(max_size=200), st.binary(max_size=400), st.integers(0, 2**64 - 1))
def test_hostile_bytes_give_a_row_an_entry_and_nothing_else(
    index: bytes, data: bytes, base: int
) -> None:
    builder = built()
    count = len(index) // 32
    builder.add(index, 0, count, data, base)
    assert builder.finish().num_rows == count


def test_a_thousand_damaged_slices_are_read_to_the_end() -> None:
    random = Random(5)
    block = block_of(CHANNEL, series(1, 30))
    for _ in range(1000):
        index = bytearray(index_of(block))
        data = bytearray(block)
        for buffer in (index, data):
            for _ in range(random.randrange(4)):
                buffer[random.randrange(len(buffer))] = random.randrange(256)
        builder = built()
        bad = builder.add(index, 0, 30, data[: random.randrange(len(data))], 4)
        batch = builder.finish()
        batch.validate()
        assert batch.num_rows == 30
        assert batch.column("crc_ok").to_pylist().count(False) == len(bad)


def test_entries_outside_the_index_are_refused() -> None:
    with pytest.raises(IndexError):
        built().add(b"\0" * 64, 0, 3)


@given(
    MESSAGES,
    st.integers(1, 2**62),
    st.integers(1, 2**62),
    st.integers(-(2**62), 2**62),
    st.integers(),
)
def test_runs_are_the_entries_within_all_bounds(
    messages: list[Message], first: int, last: int, since: int, span: int
) -> None:
    until = since + abs(span) % 2**61
    wanted = [
        k for k, m in enumerate(messages) if first <= m.sequence <= last and since <= m.at <= until
    ]
    runs = select(index_of(block_of(CHANNEL, messages)), first, last, since, until)
    assert [k for i, j in runs for k in range(i, j)] == wanted
    assert all(j < i for (_, j), (i, _) in pairwise(runs))


def test_places_in_a_chain_are_found_by_offset() -> None:
    block = block_of(CHANNEL, series(1, 50))
    index = index_of(block)
    entries = [_ENTRY.unpack_from(index, 32 * k) for k in range(50)]
    for offset in range(len(memoryview(block)) + 8):
        assert beginning(index, offset) == sum(at < offset for _, at, _, _, _ in entries)
        assert ending(index, offset) == sum(
            at + 8 + size <= offset for _, at, _, size, _ in entries
        )


def test_missing_sequences_are_named_by_their_ends() -> None:
    index = index_of(block_of(CHANNEL, [Message(n) for n in (3, 4, 8, 10)]))
    assert gaps(index, 0) == [(5, 7), (9, 9)]
    assert gaps(index, 1) == [(2, 2), (5, 7), (9, 9)]
