"""Entries of the log: what is written is read, and nothing else passes for the next one."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.base.errors import DamageError
from ftstan.cluster.entry import (
    Entry,
    Kind,
    LeaderRecord,
    Op,
    Operation,
    Position,
    crc_after,
    decode_operations,
    encode_operations,
    follow,
)
from ftstan.stores.interface import ClientInfo, ServerInfo, StoredAt, SubState
from ftstan.wire.block import MsgBlock, SubEvents, unpack_block, unpack_events

LOG = bytes(range(16))


def leader(at: Position, node: str = "a") -> Entry:
    record = LeaderRecord(node, os.urandom(16), at.epoch, at.sequence)
    return Entry(Kind.LEADER, at.incarnation, at.sequence + 1, 0, at.crc, record.encode())


def batch(at: Position, body: bytes = b"") -> Entry:
    return Entry(Kind.BATCH, at.incarnation, at.sequence + 1, at.epoch, at.crc, body)


def test_a_log_is_followed_from_its_beginning_and_positions_say_who_leads() -> None:
    at = Position(LOG)
    for entry in (leader(at),):
        _, at = follow(entry.encode(), 1, at)
    assert (at.sequence, at.epoch, at.leader) == (1, 1, "a")
    data = batch(at, b"body").encode()
    entry, behind = follow(data, 2, at)
    assert (entry.body, behind.crc) == (b"body", crc_after(at.crc, data))
    _, last = follow(leader(behind, "b").encode(), 3, behind)
    assert (last.epoch, last.leader) == (3, "b")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"incarnation": bytes(16)}, "deleted and made again"),
        ({"crc_before": 7}, "lost entries that were acknowledged"),
        ({"position": 9}, "was written as entry 9"),
        ({"epoch": 9}, "is of epoch 9"),
    ],
)
def test_an_entry_of_another_log_or_another_history_is_refused(
    change: dict[str, object], text: str
) -> None:
    _, at = follow(leader(Position(LOG)).encode(), 1, Position(LOG))
    entry = replace(batch(at), **change)  # type: ignore[arg-type]
    with pytest.raises(DamageError, match=text):
        follow(entry.encode(), 2, at)


def test_a_hole_is_seen() -> None:
    _, at = follow(leader(Position(LOG)).encode(), 1, Position(LOG))
    with pytest.raises(DamageError, match="entries are missing"):
        follow(batch(at).encode(), 3, at)


def test_a_leader_record_behind_another_epoch_than_the_logs_is_refused() -> None:
    _, at = follow(leader(Position(LOG)).encode(), 1, Position(LOG))
    wrong = leader(replace(at, epoch=0))
    with pytest.raises(DamageError, match="another epoch"):
        follow(wrong.encode(), 2, at)


@given(st.binary(max_size=80))
def test_no_bytes_do_more_than_being_refused(data: bytes) -> None:
    with pytest.raises(DamageError):
        follow(data, 1, Position(LOG))


@given(st.binary(max_size=80))
def test_no_operations_do_more_than_being_refused(data: bytes) -> None:
    try:
        decode_operations(data)
    except DamageError:
        return


numbers = st.integers(0, (1 << 62) - 1)
signed = st.integers(-(1 << 31), (1 << 31) - 1)
words = st.binary(max_size=12)
subs = st.builds(
    SubState, numbers, words, words, words, words, signed, signed, words, numbers,
    is_durable=st.booleans(), is_closed=st.booleans(),
)  # fmt: skip
clients = st.builds(ClientInfo, words, words, words, signed, signed, signed)


@given(st.lists(st.one_of(
    st.builds(Operation, st.just(Op.SUB_NEW), words, subs),
    st.builds(Operation, st.just(Op.SUB_UPDATE), words, subs),
    st.builds(Operation, st.just(Op.CLIENT_NEW), words, clients),
    st.builds(Operation, st.sampled_from((Op.SUB_DELETE, Op.PURGE, Op.NODE)), words, numbers),
    st.builds(
        Operation, st.sampled_from((Op.KEEP, Op.CLIENT_DELETE, Op.CHANNEL_DELETE)), words),
    st.builds(Operation, st.just(Op.REMEMBER), words, st.tuples(
        st.dictionaries(words, st.builds(StoredAt, numbers, numbers), max_size=3), numbers)),
), max_size=6))  # fmt: skip
def test_operations_come_back_as_they_were(operations: list[Operation]) -> None:
    assert decode_operations(encode_operations(operations)) == operations


def test_server_information_messages_and_events_come_back() -> None:
    info = ServerInfo("c", "d", "p", "s", "u", "x", "y", "z", encrypted=True)
    block = MsgBlock()
    block.append(3, b"foo", b"reply", b"data", 17)
    block.append(4, b"foo", b"", b"", 18)
    events = SubEvents()
    events.sent(1, 3)
    events.acked(2, 4)
    found = decode_operations(
        encode_operations(
            [
                Operation(Op.SERVER_INFO, b"", info),
                Operation(Op.PUBLISH, b"foo", block),
                Operation(Op.EVENTS, b"foo", events),
            ]
        )
    )
    assert found[0].argument == info
    # That payloads are encrypted is no part of what is compared.
    assert isinstance(found[0].argument, ServerInfo)
    assert found[0].argument.encrypted
    messages = found[1].argument
    assert isinstance(messages, MsgBlock)
    assert bytes(messages) == bytes(block)
    assert [messages.timestamp(i) for i in range(2)] == [17, 18]
    happened = found[2].argument
    assert isinstance(happened, SubEvents)
    assert happened.items() == [("sent", 1, 3), ("acked", 2, 4)]


def test_events_can_be_taken_out() -> None:
    events = SubEvents()
    events.sent(1, 3)
    taken = events.take()
    assert (len(events), taken.items()) == (0, [("sent", 1, 3)])


@given(st.binary(max_size=60))
def test_packed_blocks_that_are_none_are_refused(data: bytes) -> None:
    for unpack in (unpack_block, unpack_events):
        try:
            found = unpack(data)
        except ValueError:
            continue
        assert found.pack() == data
