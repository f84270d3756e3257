"""What two partitions say to each other while a channel moves: proofs, pieces, damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.base.errors import RefusedError, WireError
from ftstan.wire import transfers

SECRET = b"s" * 32
OTHER = b"t" * 32


@given(st.binary(max_size=50), st.integers(1, 60))
def test_an_answer_comes_in_pieces_that_are_the_whole(whole: bytes, most: int) -> None:
    got = b""
    told = (1, 0)
    while len(got) < told[0]:
        data = transfers.encode_answer(SECRET, "n", whole, len(got), most)
        piece, told = transfers.decode_answer(SECRET, "n", data)
        assert len(piece) <= most
        got += piece
        if not whole:
            break
    transfers.check_whole(got, told)
    assert got == whole
    with pytest.raises(WireError):
        transfers.check_whole(got + b"x", told)


@given(st.integers(0, 200), st.integers(1, 255))
def test_an_answer_that_was_changed_or_belongs_to_another_question_is_none(
    at: int, change: int
) -> None:
    data = transfers.encode_answer(SECRET, "n", b"x" * 100, 0, 100)
    at %= len(data)
    changed = data[:at] + bytes([data[at] ^ change]) + data[at + 1 :]
    for nonce, secret, answer in (
        ("n", SECRET, changed),
        ("m", SECRET, data),
        ("n", OTHER, data),
        ("n", SECRET, data[:at]),
    ):
        with pytest.raises(WireError, match="is none, or damaged"):
            transfers.decode_answer(secret, nonce, answer)


def test_a_refusal_says_why() -> None:
    with pytest.raises(RefusedError, match="not now"):
        transfers.decode_answer(SECRET, "n", transfers.encode_refusal(SECRET, "n", "not now"))


def test_a_question_proves_who_asks() -> None:
    data = transfers.encode_question(SECRET, {"transfer": "t", "do": "look"})
    assert transfers.read_question(data) == {"transfer": "t", "do": "look"}
    assert transfers.is_proven(SECRET, data)
    assert not transfers.is_proven(OTHER, data)
    assert not transfers.is_proven(SECRET, data[:-1] + b" ")


@given(st.binary(max_size=80))
def test_what_is_no_question_is_an_error(data: bytes) -> None:
    for bad in (data, bytes(16) + data, bytes(16) + b'{"transfer":1}', bytes(16) + b"[" * 9000):
        with pytest.raises(WireError):
            transfers.read_question(bad)
