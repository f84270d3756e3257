"""The bytes of a slot: what was written is read, and nothing else is."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.ft.epoch_records import (
    BLANK,
    SLOT_SIZE,
    Cause,
    Ending,
    EpochRecord,
    decode_slot,
    encode_slot,
    is_blank,
    why_taken,
)

RECORD = EpochRecord(
    slot=3,
    epoch=3,
    server_id="S" * 22,
    nonce=bytes(range(16)),
    store_id=bytes(16),
    host="node-a",
    pid=4711,
    since_ns=1_700_000_000_000_000_000,
    ours_from=1,
    ft_mixed=True,
)
numbers = st.integers(1, 2**62)


@given(numbers, st.integers(0, 2**60), st.text(max_size=30), st.text(max_size=60), st.booleans())
def test_a_record_survives_its_slot(
    slot: int, above: int, server_id: str, host: str, mixed: bool
) -> None:
    record = EpochRecord(slot, slot + above, server_id, b"n" * 16, b"s" * 16, host, 1, 2, 3, mixed)
    data = encode_slot(record)
    assert len(data) == SLOT_SIZE
    assert decode_slot(data, slot) == record
    assert record.is_filler == (above > 0)
    assert not is_blank(data)


@given(st.integers(0, SLOT_SIZE - 1), st.integers(1, 255))
def test_one_changed_byte_anywhere_makes_it_unreadable_but_used(at: int, flip: int) -> None:
    data = bytearray(encode_slot(RECORD))
    data[at] ^= flip
    assert decode_slot(bytes(data), 3) is None
    assert not is_blank(bytes(data))


def test_a_record_in_anothers_slot_is_not_believed() -> None:
    assert decode_slot(encode_slot(RECORD), 2) is None
    assert decode_slot(encode_slot(RECORD), 4) is None


def test_a_record_of_a_lower_epoch_is_not_believed() -> None:
    assert decode_slot(encode_slot(RECORD.filling(4)), 4) is None


def test_only_zeros_are_blank_even_in_a_slot_cut_short() -> None:
    assert is_blank(BLANK)
    assert is_blank(b"")
    assert is_blank(bytes(100))
    assert not is_blank(bytes(99) + b"x")


def test_names_too_long_for_the_slot_are_cut() -> None:
    record = EpochRecord(1, 1, "s" * 500, b"n" * 16, b"s" * 16, "h" * 500, 1, 2, 3, ft_mixed=False)
    decoded = decode_slot(encode_slot(record), 1)
    assert decoded is not None
    assert (decoded.server_id, decoded.host) == ("s" * 128, "h" * 256)


@pytest.mark.parametrize("field", ["server_id", "host", "name"])
def test_a_name_that_is_cut_within_a_letter_is_read_as_far_as_it_goes(field: str) -> None:
    whole = "\N{EURO SIGN}" * 200
    record = {
        "server_id": replace(RECORD, server_id=whole),
        "host": replace(RECORD, host=whole),
        "name": replace(RECORD, name=whole),
    }[field]
    read = decode_slot(encode_slot(record), 3)
    assert read is not None
    found = getattr(read, field)
    assert found.endswith("\N{REPLACEMENT CHARACTER}")
    assert whole.startswith(found[:-1])
    assert len(found) > 20


def test_a_record_is_described_in_one_line_for_people() -> None:
    assert RECORD.describe() == (
        f"epoch 3 of server {'S' * 22} on host node-a pid 4711 since 2023-11-14T22:13:20Z"
    )


CAUSE_AT = 476
"""Behind the host's 256 bytes: where records of the first format have zeros."""


@pytest.mark.parametrize("cause", list(Cause))
def test_why_an_epoch_was_taken_is_read_as_it_was_written(cause: Cause) -> None:
    record = replace(RECORD, cause=cause, after=2**63)
    assert decode_slot(encode_slot(record), 3) == record
    assert record.filling(2).cause is cause


def test_a_record_from_before_there_were_causes_is_the_same_bytes_and_has_none() -> None:
    data = encode_slot(RECORD)
    assert not any(data[CAUSE_AT:])
    read = decode_slot(data, 3)
    assert read == RECORD
    assert (read.cause, read.after) == (Cause.UNKNOWN, 0)


def test_a_cause_that_only_a_later_release_knows_is_unknown_and_the_record_stands() -> None:
    data = bytearray(encode_slot(replace(RECORD, cause=Cause.TOOL, after=7)))
    assert data[CAUSE_AT] == Cause.TOOL
    data[CAUSE_AT] = 200
    data[8:12] = zlib.crc32(data[12:]).to_bytes(4, "little")
    read = decode_slot(bytes(data), 3)
    assert read is not None
    assert (read.cause, read.after, read.server_id) == (Cause.UNKNOWN, 7, RECORD.server_id)


def test_every_cause_has_words_for_people() -> None:
    assert len({cause.describe() for cause in Cause}) == len(Cause)
    assert Cause.RELEASED.describe(4) == "released by its owner (epoch 4)"


def test_a_members_name_and_its_predecessors_end_lie_where_older_releases_have_zeros() -> None:
    record = replace(RECORD, name="node-\u00e4", left_ns=-7, left=Ending.DRAIN)
    data = encode_slot(record)
    assert not any(encode_slot(RECORD)[493:])
    assert data[12:493] == encode_slot(RECORD)[12:493]
    assert decode_slot(data, 3) == record
    assert "of server node-\u00e4 on host" in record.describe()
    long = decode_slot(encode_slot(replace(RECORD, name="n" * 500)), 3)
    assert long is not None
    assert long.name == "n" * 64


@pytest.mark.parametrize(
    ("cause", "left", "text"),
    [
        (Cause.RELEASED, Ending.SIGTERM, "stopped (SIGTERM) (epoch 6)"),
        (Cause.LOCK_FREE, Ending.SIGINT, "stopped (SIGINT) (epoch 6)"),
        (Cause.LOCK_FREE, Ending.UNSAID, "ended without notice (epoch 6)"),
        (Cause.SWITCHOVER, Ending.SWITCHOVER, "switchover (epoch 6)"),
        (Cause.STOLEN, Ending.BY_ITSELF, "stolen from an owner that hung (epoch 6)"),
    ],
)
def test_what_an_owner_said_of_its_end_is_why_its_successor_took_over(
    cause: Cause, left: Ending, text: str
) -> None:
    assert why_taken(cause, 6, left) == text


def test_a_record_that_was_changed_or_lies_in_another_slot_proves_nothing() -> None:
    data = bytearray(encode_slot(RECORD))
    assert decode_slot(bytes(data), 4) is None
    data[-1] ^= 1
    assert decode_slot(bytes(data), 3) is None
    assert decode_slot(bytes(encode_slot(RECORD))[:-1], 3) is None
    # A filler is of a higher epoch than its slot, and no record is of a lower one.
    assert decode_slot(encode_slot(replace(RECORD, epoch=9)), 3) == replace(RECORD, epoch=9)
    assert decode_slot(encode_slot(replace(RECORD, epoch=2)), 3) is None


def test_what_only_a_later_release_knows_is_read_as_unknown() -> None:
    assert Cause(250) is Cause.UNKNOWN
    assert Ending(250) is Ending.UNSAID
    assert Ending.DRAIN.describe()
