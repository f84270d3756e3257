"""Heartbeats: the bytes of original servers both ways, ours beside them, and what is none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.ft.heartbeat import (
    BeatPhase,
    Heartbeat,
    decode_heartbeat,
    decode_time,
    encode_heartbeat,
    encode_time,
)
from ftstan.wire.pb import stan_internal_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

RECORDED: list[Mapping[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "ft" / "heartbeats.json").read_text(encoding="ascii")
)
OURS = Heartbeat(
    "s" * 22, 1_700_000_000_123_456_789, epoch=7, store_id=bytes(range(16)), phase=BeatPhase.SERVING
)

beats = st.builds(
    Heartbeat,
    server_id=st.text(min_size=1, max_size=30).filter(lambda text: "\ufffd" not in text),
    activated_ns=st.integers(-(10**18), 10**19),
    epoch=st.integers(1, 2**63 - 1),
    store_id=st.binary(min_size=16, max_size=16),
    phase=st.sampled_from(BeatPhase),
    has_lock=st.booleans(),
)


@pytest.mark.parametrize(
    "row", RECORDED, ids=lambda row: f"{row['recording']}-{row['server_id'][:4]}"
)
def test_a_heartbeat_without_an_epoch_has_the_bytes_of_an_original_server(
    row: Mapping[str, Any],
) -> None:
    beat = Heartbeat(row["server_id"], row["unix"] * 1_000_000_000 + row["nanos"])
    assert row["zone"] == 0
    assert encode_heartbeat(beat).hex() == row["payload"]
    assert decode_heartbeat(bytes.fromhex(row["payload"])) == beat
    assert not beat.is_ours


@given(beats)
def test_what_we_encode_we_decode(beat: Heartbeat) -> None:
    assert decode_heartbeat(encode_heartbeat(beat)) == beat


@given(beats)
def test_a_reader_that_does_not_know_our_fields_sees_an_original_heartbeat(beat: Heartbeat) -> None:
    message = stan_internal_pb2.CtrlMsg.FromString(encode_heartbeat(beat))
    assert message.msg_type == 3
    assert message.server_id == beat.server_id.encode()
    assert decode_time(message.data) == beat.activated_ns
    assert not message.ref_id


@given(st.binary(max_size=80))
def test_garbage_is_not_a_heartbeat_and_raises_nothing(payload: bytes) -> None:
    beat = decode_heartbeat(payload)
    assert beat is None or beat.server_id


@given(beats, st.data())
def test_a_cut_heartbeat_never_reads_as_a_whole_one(beat: Heartbeat, data: st.DataObject) -> None:
    payload = encode_heartbeat(beat)
    cut = decode_heartbeat(payload[: data.draw(st.integers(0, len(payload) - 1))])
    assert cut != beat


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"hello",
        b"\x08\x04\x12\x01a",  # a partition list
        b"\x08\x03",  # nobody said it
        b"\x0a\x01\x03\x12\x01a",  # the type as a string
        b"\x08\x03\x12\x05ab",  # truncated
        b"\x08\x03\x12\x01a\x00\x00",  # field number 0
        b"\x08\x03\x12\x01a" + b"\xff" * 11,  # a varint without an end
        b"\x08\x03\x12\x01a\x0b",  # a group
    ],
)
def test_a_stray_foreign_or_malformed_message_is_not_a_heartbeat(payload: bytes) -> None:
    assert decode_heartbeat(payload) is None


def test_half_of_our_fields_is_not_taken_for_an_original_heartbeat() -> None:
    assert decode_heartbeat(encode_heartbeat(replace(OURS, store_id=b"short"))) is None
    assert decode_heartbeat(encode_heartbeat(replace(OURS, epoch=2**63))) is None


def test_unknown_fields_and_phases_of_newer_servers_are_skipped() -> None:
    newer = (
        encode_heartbeat(replace(OURS, phase=BeatPhase.UNKNOWN))
        + b"\xb0\x06\x63"
        + b"\xca\x06\x02hi"
        + b"\xe5\x06abcd"
    )
    assert decode_heartbeat(newer) == replace(OURS, phase=BeatPhase.UNKNOWN)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "Time.UnmarshalBinary: no data"),
        (b"\x03" + bytes(14), "Time.UnmarshalBinary: unsupported version"),
        (b"\x01" + bytes(13), "Time.UnmarshalBinary: invalid length"),
        (b"\x02" + bytes(14), "Time.UnmarshalBinary: invalid length"),
    ],
)
def test_an_unreadable_activation_time_is_told_in_the_original_words(
    data: bytes, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        decode_time(data)
    payload = b"\x08\x03\x12\x01a" + (bytes([0x1A, len(data)]) + data if data else b"")
    beat = decode_heartbeat(payload)
    assert beat is not None
    assert beat.time_error == text


def test_zones_do_not_move_the_instant() -> None:
    plain = encode_time(1_795_166_754_875_059_227)
    assert decode_time(plain[:-2] + b"\xff\xff") == decode_time(plain)
    assert decode_time(b"\x02" + plain[1:] + b"\x1e") == decode_time(plain)
