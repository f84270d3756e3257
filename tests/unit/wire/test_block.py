"""Blocks of messages and lists of subscription events: what goes in comes out, in order and encoded
once.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.wire.block import MsgBlock, SubEvents
from ftstan.wire.messages import MsgProto, encode
from tests.oracle import wiregen
from tests.oracle.wiregen import few

messages = st.lists(
    st.tuples(wiregen.strings, wiregen.strings, wiregen.strings, st.integers(-(2**63), 2**63 - 1)),
    max_size=40,
)


@few
@given(messages, st.integers(1, 2**63), st.integers(1, 5))
def test_a_block_gives_back_every_message_as_the_protobuf_runtime_would_encode_it(
    rows: list[tuple[bytes, bytes, bytes, int]], start: int, step: int
) -> None:
    block = MsgBlock()
    sequences = range(start, start + step * len(rows), step)
    for sequence, row in zip(sequences, rows, strict=True):
        block.append(sequence, *row)
    assert len(block) == len(rows)
    for i, (sequence, (subject, reply, data, timestamp)) in enumerate(
        zip(sequences, rows, strict=True)
    ):
        assert block.sequence(i) == sequence
        assert block.timestamp(i) == timestamp
        assert block.payload(i) == encode(
            MsgProto(
                sequence=sequence, subject=subject, reply=reply, data=data, timestamp=timestamp
            )
        )
    assert (block.first, block.last) == ((sequences[0], sequences[-1]) if rows else (0, 0))


def test_a_block_grows_beyond_any_first_guess() -> None:
    block = MsgBlock()
    for sequence in range(1, 3001):
        block.append(sequence, b"foo", b"", b"x" * (sequence % 700), sequence)
    assert (len(block), block.first, block.last) == (3000, 1, 3000)
    assert block.payload(2999) == encode(
        MsgProto(sequence=3000, subject=b"foo", data=b"x" * (3000 % 700), timestamp=3000)
    )


def test_the_position_of_a_sequence_is_that_of_the_first_message_not_before_it() -> None:
    block = MsgBlock()
    for sequence in (4, 5, 9):
        block.append(sequence, b"foo", b"", b"", 1)
    assert [block.position(sequence) for sequence in (0, 4, 5, 6, 9, 10)] == [0, 0, 1, 2, 2, 3]


def test_sequences_of_a_block_must_ascend() -> None:
    block = MsgBlock()
    block.append(4, b"foo", b"", b"", 1)
    for sequence in (3, 4):
        with pytest.raises(ValueError, match="ascend"):
            block.append(sequence, b"foo", b"", b"", 1)
    assert len(block) == 1


@pytest.mark.parametrize("index", [-1, 1])
def test_a_message_that_is_not_there_is_an_index_error(index: int) -> None:
    block = MsgBlock()
    block.append(1, b"foo", b"", b"", 1)
    for read in (block.sequence, block.timestamp, block.payload):
        with pytest.raises(IndexError):
            read(index)


@few
@given(
    st.lists(
        st.tuples(st.sampled_from(["sent", "acked"]), wiregen.numbers, wiregen.numbers),
        max_size=200,
    )
)
def test_events_come_back_in_the_order_in_which_they_happened(
    happened: list[tuple[str, int, int]],
) -> None:
    events = SubEvents()
    for kind, sub_id, sequence in happened:
        (events.sent if kind == "sent" else events.acked)(sub_id, sequence)
    assert len(events) == len(happened)
    assert events.items() == happened
    events.clear()
    assert (len(events), events.items()) == (0, [])
