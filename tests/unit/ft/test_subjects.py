"""The subjects of a group and the ``released`` message."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.ft.subjects import (
    Released,
    control_subject,
    decode_released,
    encode_released,
    group_subject,
    heartbeat_subject,
    question_subject,
)

RELEASED = Released(server_id="S1", epoch=3, store_id=bytes(range(16)))
FIELDS = {"type": "released", "server": "S1", "epoch": 3, "store": bytes(range(16)).hex()}


def test_heartbeats_use_the_original_subject_and_our_own_messages_another() -> None:
    assert heartbeat_subject("test-cluster", "g1") == "_STAN.ft.test-cluster.g1"
    assert group_subject("test-cluster", "g1") == "_FTSTAN.ft.test-cluster.g1"
    assert control_subject("test-cluster", "S1") == "_FTSTAN.ctl.test-cluster.S1"
    assert question_subject("test-cluster") == "_FTSTAN.ctl.test-cluster.who"


@given(
    st.text(min_size=1, max_size=40), st.integers(1, 2**63 - 1), st.binary(min_size=16, max_size=16)
)
def test_released_survives_the_wire(server_id: str, epoch: int, store_id: bytes) -> None:
    released = Released(server_id, epoch, store_id)
    assert decode_released(encode_released(released)) == released


@pytest.mark.parametrize(
    "change",
    [
        {"type": "digest"},
        {"server": ""},
        {"server": 1},
        {"epoch": 0},
        {"epoch": True},
        {"epoch": "3"},
        {"epoch": 2**63},
        {"store": "00"},
        {"store": "zz" * 16},
        {"store": None},
    ],
)
def test_a_message_that_is_not_exactly_a_release_says_nothing(change: dict[str, object]) -> None:
    assert decode_released(json.dumps(FIELDS | change).encode()) is None


def test_keys_of_newer_servers_are_ignored() -> None:
    assert decode_released(json.dumps(FIELDS | {"more": [1]}).encode()) == RELEASED


@given(st.binary(max_size=60))
def test_garbage_says_nothing(payload: bytes) -> None:
    assert decode_released(payload) is None


def test_an_oversized_or_deeply_nested_message_says_nothing() -> None:
    assert decode_released(json.dumps(FIELDS | {"pad": "x" * 2000}).encode()) is None
    assert decode_released(b"[" * 1000) is None
    assert decode_released(b"\xff\xfe") is None
