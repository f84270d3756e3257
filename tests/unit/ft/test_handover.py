"""The messages of a planned hand-over, and what a successor makes of them."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.ft import handover
from ftstan.ft.handover import (
    PART_BYTES,
    Following,
    Leaving,
    Message,
    PublishKey,
    Subscribed,
    TakenElsewhere,
    Took,
    decode,
    encode,
    part_bytes,
    split_keys,
)

STORE = bytes(range(16))
LEAVING = Leaving("A", 7, STORE, "_STAN.pub.c.>", "B")
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
KEYS = st.lists(st.tuples(st.binary(max_size=80), st.binary(max_size=40)), max_size=20)


def _named(*keys: bytes) -> tuple[PublishKey, ...]:
    return tuple((key, b"foo") for key in keys)


@given(NAMES.filter(str.isprintable), st.integers(1, 2**62), NAMES, KEYS, st.integers(1, 4))
def test_what_is_encoded_is_read_back(
    server: str, epoch: int, other: str, keys: list[PublishKey], parts: int
) -> None:
    messages: list[Message] = [
        Leaving(server, epoch, STORE, "_STAN.pub.c.>", other),
        Leaving(server, epoch, STORE, "_STAN.pub.c.>", switchover=True),
        Subscribed(server, epoch, STORE, parts),
        Subscribed(server, epoch, STORE, parts, "node-b"),
        Following(server, epoch, STORE, parts),
        Took(server, epoch, STORE, other, parts - 1, parts, tuple(keys)),
    ]
    assert [decode(encode(message)) for message in messages] == messages


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists)
)
def test_anything_else_is_no_message(payload: object) -> None:
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    assert decode(data) is None


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 0},
        {"epoch": True},
        {"epoch": "7"},
        {"store": "00"},
        {"server": ""},
        {"part": 3},
        {"part": -1},
        {"parts": 0},
        {"parts": 1 << 20},
        {"keys": "?"},
        {"keys": "/////w=="},
        {"keys": ""},
        {"channels": "?"},
        {"channels": ""},
        {"channels": None},
        {"successor": 1},
        {"type": "leave"},
    ],
)
def test_a_message_with_a_wrong_field_is_none(change: dict[str, object]) -> None:
    fields = json.loads(encode(Took("A", 7, STORE, "B", 2, 3, ((b"key", b"foo"),))))
    assert decode(json.dumps(fields).encode()) is not None
    assert decode(json.dumps(fields | change).encode()) is None


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nPUB x 0", "\x00"])
def test_a_subject_that_would_be_more_than_one_word_of_the_protocol_is_no_subject(
    subject: str,
) -> None:
    fields = json.loads(encode(LEAVING))
    assert decode(json.dumps(fields | {"publishes": subject}).encode()) is None


def test_an_owner_of_an_older_release_names_no_channels_and_an_older_successor_wants_none() -> None:
    fields = json.loads(encode(Took("A", 7, STORE, "B", 2, 3, ((b"key", b"foo"),))))
    assert fields["keys"] == base64.b64encode(b"\x03\x00key").decode()
    del fields["channels"]
    took = decode(json.dumps(fields).encode())
    assert isinstance(took, Took)
    assert took.keys == ((b"key", b""),)


@given(
    st.lists(st.tuples(st.binary(max_size=40000), st.binary(max_size=40000)), max_size=40),
)
def test_parts_hold_every_key_once_in_order_and_fit_into_a_message(keys: list[PublishKey]) -> None:
    parts = split_keys(keys)
    assert [key for part in parts for key in part] == keys
    assert all(
        sum(len(key) + len(channel) + 4 for key, channel in part) <= PART_BYTES for part in parts
    )
    assert len(encode(Took("A", 1, STORE, "B", 0, 1, tuple(parts[0])))) < 1 << 20


def test_a_publish_in_several_parts_is_counted_in_all_and_a_repeated_part_is_not() -> None:
    taken = TakenElsewhere(LEAVING)
    first = Took("A", 7, STORE, "B", 0, 2, _named(b"twice", b"three times", b"twice"))
    second = Took("A", 7, STORE, "B", 1, 2, _named(b"three times", b"once", b"three times"))
    for took in (first, second, first):
        # As it goes over the wire: every version names each copy, and took them for one.
        decoded = decode(encode(took))
        assert isinstance(decoded, Took)
        assert decoded.keys == took.keys
        taken.add(decoded)
    assert taken.counts() == {
        (b"once", b"foo"): 1,
        (b"twice", b"foo"): 2,
        (b"three times", b"foo"): 3,
    }


def test_what_was_answered_is_known_when_every_part_of_that_owner_has_come() -> None:
    taken = TakenElsewhere(LEAVING)
    taken.add(Took("A", 7, STORE, "B", 1, 2, _named(b"two")))
    assert taken.counts() == {(b"two", b"foo"): 1}
    taken.add(Took("A", 8, STORE, "B", 0, 2, _named(b"of a later epoch")))
    taken.add(Took("X", 7, STORE, "B", 0, 2, _named(b"of another server")))
    taken.add(Took("A", 7, bytes(16), "B", 0, 2, _named(b"of another store")))
    taken.add(Took("A", 7, STORE, "B", 0, 2, _named(b"of a later search"), 2))
    assert taken.counts() == {(b"two", b"foo"): 1}
    taken.add(Took("A", 7, STORE, "B", 0, 2, _named(b"one")))
    assert taken.is_whole
    assert taken.counts() == {(b"one", b"foo"): 1, (b"two", b"foo"): 1}
    assert taken.successor == "B"


def test_keys_are_divided_into_parts_that_fit_and_a_long_one_has_a_part_of_its_own() -> None:
    ten = [(b"%06d" % n, b"rows") for n in range(5)]
    assert split_keys(ten, 28) == [ten[:2], ten[2:4], ten[4:]]
    assert split_keys(ten, 27) == [[key] for key in ten]
    long = (b"x" * 50, b"y" * 50)
    assert split_keys([long, *ten[:2], long], 28) == [[long], ten[:2], [long]]
    assert split_keys([], 28) == [[]]


def test_a_part_leaves_room_for_all_else_in_what_nats_carries() -> None:
    assert part_bytes(1 << 20) == PART_BYTES
    assert part_bytes(8 << 10) == 3 << 10
    assert part_bytes(4 << 10) == part_bytes(0) == 0


def test_what_is_larger_than_nats_carries_is_no_message() -> None:
    padding = b" " * ((1 << 20) - len(encode(LEAVING)))
    assert decode(encode(LEAVING) + padding) == LEAVING
    assert decode(encode(LEAVING) + padding + b" ") is None


def test_what_one_successor_keeps_of_the_parts_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handover, "MOST_BYTES", 16)
    taken = TakenElsewhere(LEAVING)
    taken.add(Took("A", 7, STORE, "B", 0, 3, _named(b"sixsix")))
    taken.add(Took("A", 7, STORE, "B", 0, 3, _named(b"seven__")))
    taken.add(Took("A", 7, STORE, "B", 1, 3, _named(b"three")))
    assert not taken.is_whole
    assert taken.counts() == {(b"seven__", b"foo"): 1}
    taken.add(Took("A", 7, STORE, "B", 1, 3, _named(b"two")))
    taken.add(Took("A", 7, STORE, "B", 2, 3, ()))
    assert taken.is_whole


def test_nothing_is_added_to_what_is_whole_but_another_successor_is_heard() -> None:
    taken = TakenElsewhere(LEAVING)
    taken.add(Took("A", 7, STORE, "B", 0, 1, _named(b"one")))
    taken.add(Took("A", 7, STORE, "C", 1, 2, _named(b"two")))
    assert taken.is_whole
    assert taken.counts() == {(b"one", b"foo"): 1}
    assert taken.successor == "C"
