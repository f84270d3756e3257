"""The exchange of channel lists, byte for byte, and what counts as a conflict."""

from __future__ import annotations

import gzip
import itertools
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.base.errors import ConfigError, WireError
from ftstan.wire import messages, partition
from ftstan.wire.partition import Sender
from ftstan.wire.patterns import PatternSet, intersect
from tests.compat.players.recordings import DATA

GO = Sender(b"Gv6m3Rpu8U4wfDhDbjJHq5")
MEGABYTE = 1 << 20

tokens = st.lists(st.sampled_from([b"a", b"b", b"*"]), min_size=1, max_size=3)
names = st.one_of(tokens.map(b".".join), tokens.map(lambda t: b".".join([*t, b">"])))


def test_a_request_is_the_captured_one() -> None:
    assert partition.requests(GO, [b"foo.*", b"bar"], MEGABYTE) == [
        bytes.fromhex(
            "08 04 12 16 47 76 36 6d 33 52 70 75 38 55 34 77 66 44 68 44 62 6a 4a 48 71 35"
            "1a 0c 05 00 66 6f 6f 2e 2a 03 00 62 61 72"
        )
    ]


def test_a_reply_is_the_captured_one() -> None:
    head = bytes.fromhex(
        "08 04 12 16 47 76 36 6d 33 52 70 75 38 55 34 77 66 44 68 44 62 6a 4a 48 71 35"
    )
    assert partition.reply(GO, None) == head
    assert partition.reply(GO, b"foo.bar") == head + bytes.fromhex("1a 07 66 6f 6f 2e 62 61 72")


def test_every_recorded_message_is_read_and_written_as_it_is() -> None:
    seen = 0
    with gzip.open(DATA / "partitioning.v0.25.6.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in map(json.loads, file):
            if not line["conn"].endswith(".pc") or line["op"] not in {"PUB", "MSG"}:
                continue
            payload = bytes.fromhex(line["payload_hex"])
            sender, data = partition.decode(payload)
            if "reply" in line:
                assert partition.requests(sender, partition.decode_names(data), MEGABYTE) == [
                    payload
                ]
            else:
                assert partition.reply(sender, data or None) == payload
            seen += 1
    assert seen >= 10


def test_the_subject_has_the_cluster_id() -> None:
    assert partition.subject("test-cluster") == "_STAN.part.test-cluster"


# ---- the list
# --------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_a_list_is_read_as_it_was_written(some: list[bytes]) -> None:
    assert partition.decode_names(partition.encode_names(some)) == some


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x03", "unable to decode size, pos=0 len=1"),
        (b"\x03\x00fooX", "unable to decode size, pos=5 len=6"),
        (b"\x04\x00foo", "unable to decode channel, pos=2 len=4 max=5 (string=\x04\x00foo)"),
    ],
)
def test_a_list_that_is_cut_off_is_refused_in_the_originals_words(data: bytes, text: str) -> None:
    with pytest.raises(WireError, match=f"^{re.escape(text)}$"):
        partition.decode_names(data)


@given(st.lists(names, min_size=1, max_size=30, unique=True), st.integers(60, 200))
def test_a_long_list_goes_out_in_pieces_that_fit_and_nothing_is_missing(
    some: list[bytes], max_payload: int
) -> None:
    pieces = partition.requests(GO, some, max_payload)
    assert max(len(piece) for piece in pieces) <= max_payload
    told = [partition.decode(piece) for piece in pieces]
    assert {sender for sender, _ in told} == {GO}
    assert list(itertools.chain(*(partition.decode_names(data) for _, data in told))) == some


def test_a_piece_is_as_full_as_the_original_fills_it() -> None:
    # Its own head of 26 bytes, and 9 that the original leaves for the list's.
    pieces = partition.requests(GO, [b"aaa", b"bbb", b"ccc"], 26 + 9 + 10)
    assert [partition.decode_names(partition.decode(piece)[1]) for piece in pieces] == [
        [b"aaa", b"bbb"],
        [b"ccc"],
    ]


def test_a_name_that_fits_into_no_message_is_an_error() -> None:
    with pytest.raises(
        ConfigError, match="unable to send channels list: message payload too small"
    ):
        partition.requests(GO, [b"a", b"b" * 100], 100)


# ---- who
# --------------------------------------------------------------------------------------------------


def test_what_a_member_of_a_group_adds_is_skipped_by_the_original() -> None:
    ours = Sender(b"me", bytes(16))
    payload = partition.reply(ours, b"foo")
    assert partition.decode(payload) == (ours, b"foo")
    assert payload.startswith(partition.reply(Sender(b"me"), b"foo"))
    assert (
        messages.parse(messages.ClientInfo, payload.partition(b"foo")[2]) == messages.ClientInfo()
    )


def test_owners_of_one_store_are_the_same_partition() -> None:
    store = bytes(16)
    other = bytes([1]) * 16
    me = Sender(b"me", store)
    assert me.is_same_partition(Sender(b"before", store))
    assert me.is_same_partition(Sender(b"me"))
    assert not me.is_same_partition(Sender(b"elsewhere", other))
    assert not me.is_same_partition(Sender(b"original"))
    assert not Sender(b"a").is_same_partition(Sender(b"b"))


# ---- conflicts
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "theirs", "offender"),
    [
        ([b"foo"], [b"bar"], None),
        ([b"foo", b"bar.*"], [b"bar.>"], b"bar.>"),
        ([b"baz", b"bar.x.y"], [b"bar.>"], b"bar.x.y"),
        ([b"foo.*"], [b"baz", b"foo.bar"], b"foo.bar"),
        ([b"foo"], [b"x", b"foo"], b"foo"),
        ([b">"], [b"a", b"b"], b"a"),
        ([b"foo.*"], [b"*.zed"], b"*.zed"),
        ([b"foo.*.x"], [b"foo.bar.>"], b"foo.bar.>"),
        ([b"foo.*"], [b"foo"], None),
        ([b"foo.>"], [b"foo"], None),
    ],
)
def test_the_offender_is_the_one_that_the_original_names(
    mine: list[bytes], theirs: list[bytes], offender: bytes | None
) -> None:
    assert partition.offender(PatternSet(mine), theirs) == offender


@given(st.lists(names, max_size=4), st.lists(names, max_size=4))
def test_lists_conflict_when_a_channel_is_in_both(mine: list[bytes], theirs: list[bytes]) -> None:
    expected = any(intersect(a, b) for a in mine for b in theirs)
    found = partition.offender(PatternSet(mine), theirs)
    assert (found is not None) == expected
    assert found is None or found in mine + theirs


@given(st.lists(st.binary(max_size=6), max_size=5))
def test_a_list_of_strange_names_is_compared_without_an_error(theirs: list[bytes]) -> None:
    found = partition.offender(PatternSet([b"foo.*", b"bar"]), theirs)
    assert found in [None, *theirs, b"foo.*", b"bar"]
