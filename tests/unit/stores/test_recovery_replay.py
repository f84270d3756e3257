"""Replay of ``subs.dat`` in one pass, and the search behind bad records: both against a plain
reading of the rules.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.stores.file.log import records
from ftstan.stores.file.state import state_records, subreplay
from ftstan.stores.interface import SubState
from ftstan.wire.block import MsgBlock, SubEvents

CRC = records.Crc()

Row = tuple[int, int, int]

ROWS = st.lists(
    st.tuples(
        st.integers(1, 5), st.integers(0, 4), st.one_of(st.integers(1, 12), st.integers(1, 2**63))
    ),
    max_size=80,
)


def encoded(row: Row) -> bytes:
    kind, sub_id, number = row
    if kind in (records.SUB_NEW, records.SUB_UPDATE):
        return state_records.sub_record(
            kind, SubState(sub_id, b"me", last_sent=number, max_in_flight=number % 9), CRC
        )
    if kind == records.SUB_DELETE:
        return state_records.sub_delete_record(sub_id, CRC)
    events = SubEvents()
    (events.acked if kind == records.SUB_ACK else events.sent)(sub_id, number)
    return records.encode_events(events, CRC)


def by_the_rules(rows: list[Row]) -> tuple[dict[int, tuple[int, int, set[int]]], int]:
    """id -> (max in flight, last sent, pending), and the highest id."""
    subs: dict[int, tuple[int, int, set[int]]] = {}
    highest = 0
    for kind, sub_id, number in rows:
        known = subs.get(sub_id)
        if kind <= records.SUB_DELETE:
            highest = max(highest, sub_id)
        if kind == records.SUB_NEW or (kind == records.SUB_UPDATE and known is None):
            subs[sub_id] = (number % 9, number, set())
        elif kind == records.SUB_UPDATE and known is not None:
            subs[sub_id] = (number % 9, number, known[2])
        elif kind == records.SUB_DELETE:
            subs.pop(sub_id, None)
        elif known is not None and kind == records.SUB_ACK:
            known[2].discard(number)
        elif known is not None:
            known[2].add(number)
            subs[sub_id] = (known[0], max(known[1], number), known[2])
    return subs, highest


@given(ROWS, st.integers(0, 80))
def test_replay_in_one_pass_is_replay_by_the_rules_wherever_it_is_interrupted(
    rows: list[Row], cut: int
) -> None:
    data = b"".join(encoded(row) for row in rows)
    middle = len(b"".join(encoded(row) for row in rows[:cut]))
    replay = subreplay.SubReplay(CRC)
    assert replay.feed(data[:middle]) == (middle, "")
    assert replay.feed(data, middle) == (len(data), "")
    found = {
        i: (s.state.max_in_flight, s.state.last_sent, s.pending)
        for i, s in state_records.stored_subs(replay).items()
    }
    assert (found, replay.highest, replay.records) == (*by_the_rules(rows), len(rows))


def test_a_million_records_leave_what_was_not_acknowledged() -> None:
    events = SubEvents()
    for sequence in range(1, 500_001):
        events.sent(1, sequence)
        if sequence > 7:
            events.acked(1, sequence - 7)
    data = state_records.sub_record(
        records.SUB_NEW, SubState(1, b"me"), CRC
    ) + records.encode_events(events, CRC)
    replay = subreplay.SubReplay(CRC)
    assert replay.feed(data) == (len(data), "")
    stored = state_records.stored_subs(replay)[1]
    assert stored.pending == set(range(499_994, 500_001))
    assert stored.state.last_sent == 500_000


def test_a_set_of_sequences_keeps_what_it_has_when_others_go() -> None:
    events = SubEvents()
    for sequence in [
        *range(1, 3000),
        *(1 << 17 | n for n in range(500)),
        *(n << 40 for n in range(1, 500)),
    ]:
        events.sent(1, sequence)
    for sequence in range(1, 3000, 2):
        events.acked(1, sequence)
    replay = subreplay.SubReplay(CRC)
    replay.feed(
        state_records.sub_record(records.SUB_NEW, SubState(1, b"me"), CRC)
        + records.encode_events(events, CRC)
    )
    assert state_records.stored_subs(replay)[1].pending == {
        *range(2, 3000, 2),
        *(1 << 17 | n for n in range(500)),
        *(n << 40 for n in range(1, 500)),
    }


@pytest.mark.parametrize("step", [1, 2, 3, 8, 64, 1000, 1024, 2**17, 2**17 + 1, 2**20])
@pytest.mark.parametrize("order", ["as sent", "backwards", "in any order"])
def test_the_work_for_sequences_that_go_grows_with_their_number_alone(
    step: int, order: str
) -> None:
    """All that a queue member had goes to another, or is acknowledged after a long time."""
    sequences = range(1, 20_000 * step, step)
    gone = list(sequences)[:: -1 if order == "backwards" else 1]
    if order == "in any order":
        Random(1).shuffle(gone)
    events = SubEvents()
    for sequence in sequences:
        events.sent(1, sequence)
    for sequence in gone:
        events.acked(1, sequence)
    replay = subreplay.SubReplay(CRC)
    replay.feed(
        state_records.sub_record(records.SUB_NEW, SubState(1, b"me"), CRC)
        + records.encode_events(events, CRC)
    )
    assert state_records.stored_subs(replay)[1].pending == set()
    assert replay.looks <= 8 * replay.records


# ---- behind bad records
# --------------------------------------------------------------------------------------------


def messages_of(*rows: tuple[int, bytes], channel: bytes = b"foo") -> bytes:
    block = MsgBlock()
    for sequence, data in rows:
        block.append(sequence, channel, b"", data, 1)
    records.seal(block, CRC)
    return bytes(memoryview(block))


@given(st.binary(max_size=200), st.binary(max_size=40), st.integers(1, 1000))
def test_the_next_record_is_found_behind_any_bytes(junk: bytes, data: bytes, sequence: int) -> None:
    rest = junk + messages_of((sequence, data))
    assert records.next_record(rest, 0, b"foo", 0, CRC) == len(junk)
    assert records.next_record(rest, len(junk) + 1, b"foo", 0, CRC) == -1


def test_a_record_of_another_channel_or_an_older_one_is_not_the_next() -> None:
    data = (
        messages_of((7, b"x"), channel=b"bar") + messages_of((5, b"old")) + messages_of((8, b"new"))
    )
    assert records.next_record(data, 0, b"foo", 5, CRC) == len(data) - len(messages_of((8, b"new")))
    assert records.next_record(data, 0, b"", 5, CRC) == 0


@given(st.binary(max_size=200), st.integers(1, 1000))
def test_the_next_typed_record_is_found_behind_any_bytes(junk: bytes, number: int) -> None:
    record = encoded((records.SUB_MSG, 3, number))
    assert records.next_typed(junk + record, 0, records.SUB_MSG, CRC) == len(junk)
    assert records.next_typed(junk + record, 0, records.CLIENT_DELETE, CRC) == -1


def test_reading_goes_on_behind_bad_records_and_names_them() -> None:
    rows = [(sequence, b"%d" % sequence * 9) for sequence in range(1, 6)]
    data = bytearray(messages_of(*rows))
    index = records.index_entries(records.scan_data(bytes(data), b"foo", 0, CRC)[0], 0, 5, 4, CRC)
    size = len(data) // 5
    data[size + 20] ^= 1
    data[3 * size] ^= 7  # the size in the header: the index knows better
    block, bad = records.read_readable(bytes(data[:-2]), index, CRC)
    assert [block.sequence(i) for i in range(len(block))] == [1, 3, 4]
    assert [(sequence, offset) for sequence, offset, _ in bad] == [(2, 4 + size), (5, 4 + 4 * size)]
    assert bad[0][2].startswith("corrupted data, expected crc to be 0x")
    assert bad[1][2] == "unexpected EOF"
