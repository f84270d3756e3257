"""The bytes of the file store against the worked example of the format, and the tails that crashes
leave.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftstan.base.errors import ConfigError, RecoveryError, WireError
from ftstan.stores import protos
from ftstan.stores.file.log import records
from ftstan.stores.file.log.records import Crc
from ftstan.stores.file.state import state_records
from ftstan.stores.interface import ClientInfo, ServerInfo, StoredSub, SubState
from ftstan.wire.block import MsgBlock, SubEvents

CRC = Crc()
POLYNOMIALS = [0xEDB88320, 0x82F63B78, 0xEB31D82E, 1, 0xFFFFFFFF]

# ---- the worked example (a client c1, a durable dur on foo, three messages, one ack)
# -------------------------------

SERVER_DAT = (
    bytes.fromhex("01000000 c4000000 f42887ff 0a0c")
    + b"test-cluster"
    + b"".join(
        bytes([tag, len(prefix) + 12]) + prefix + b"test-cluster"
        for tag, prefix in (
            (0x12, b"_STAN.discover."),
            (0x1A, b"_STAN.pub."),
            (0x22, b"_STAN.sub."),
            (0x2A, b"_STAN.unsub."),
            (0x32, b"_STAN.close."),
            (0x3A, b"_STAN.subclose."),
            (0x42, b"_STAN.ack."),
        )
    )
)
CLIENTS_DAT = bytes.fromhex(
    "01000000 41000001 263d9ad0 0a026331"
    "121d5f494e424f582e7043316b5461466652507749373774 6d436d66567157"
    "1a167043316b54614666525077493737746d436d66566d62 2001 2805 3003"
)
SUBS_DAT = bytes.fromhex(
    "01000000 4f000001 b296f1a0 0801 12026331"
    "221d5f494e424f582e7043316b54614666525077493737746d436d66573643"
    "2a1d5f494e424f582e57775774396669487478707970734537744971386b4f"
    "300a 381e 4203647572 5001"
    "04000005 03bff7d8 08011001 04000005 b9eefe41 08011002"
    "04000004 b9eefe41 08011002 04000005 2fdef936 08011003"
)
MSGS_DAT = bytes.fromhex(
    "01000000 18000000 d5f85daa 0801 1203666f6f 22056d73672d31 2891eec1fb86c3edf418"
    "18000000 e2040c22 0802 1203666f6f 22056d73672d32 289ef983fc86c3edf418"
    "18000000 67ec31ba 0803 1203666f6f 22056d73672d33 28c0cfa7fc86c3edf418"
)
MSGS_IDX = bytes.fromhex(
    "01000000 0100000000000000 0400000000000000 117770 6f18b6e918 18000000 def592e2"
    "0200000000000000 2400000000000000 9efc806f18b6e918 18000000 216c6fac"
    "0300000000000000 4400000000000000 c0e7896f18b6e918 18000000 76805626"
)
TIMESTAMPS = [1795166142548965137, 1795166142550047902, 1795166142550632384]
INFO = ServerInfo(
    "test-cluster",
    *(
        f"_STAN.{word}.test-cluster"
        for word in ("discover", "pub", "sub", "unsub", "close", "subclose", "ack")
    ),
)
CLIENT = ClientInfo(b"c1", b"_INBOX.pC1kTaFfRPwI77tmCmfVqW", b"pC1kTaFfRPwI77tmCmfVmb", 1, 5, 3)
SUB = SubState(
    1,
    b"c1",
    inbox=b"_INBOX.pC1kTaFfRPwI77tmCmfW6C",
    ack_inbox=b"_INBOX.WwWt9fiHtxpypsE7tIq8kO",
    max_in_flight=10,
    ack_wait_secs=30,
    durable_name=b"dur",
    is_durable=True,
)


def example() -> MsgBlock:
    block = MsgBlock()
    for i, timestamp in enumerate(TIMESTAMPS, 1):
        block.append(i, b"foo", b"", b"msg-%d" % i, timestamp)
    return block


def sealed(block: MsgBlock, crc: Crc = CRC) -> bytes:
    records.seal(block, crc)
    return bytes(memoryview(block))


def test_server_dat_of_the_example() -> None:
    assert len(SERVER_DAT) == 208
    assert records.VERSION + records.untyped_record(protos.encode_server(INFO), CRC) == SERVER_DAT
    assert protos.decode_server(SERVER_DAT[12:]) == INFO


def replayed_clients(rows: list[tuple[int, bytes]]) -> dict[bytes, ClientInfo]:
    clients: dict[bytes, ClientInfo] = {}
    for kind, payload in rows:
        state_records.replay_client(clients, kind, payload)
    return clients


def test_clients_dat_of_the_example() -> None:
    assert len(CLIENTS_DAT) == 77
    assert records.VERSION + state_records.client_record(CLIENT, CRC) == CLIENTS_DAT
    rows, end, why = records.scan_typed(CLIENTS_DAT[4:], CRC)
    assert (end, why) == (73, "")
    assert replayed_clients(rows) == {b"c1": CLIENT}


def test_subs_dat_of_the_example() -> None:
    assert len(SUBS_DAT) == 139
    events = SubEvents()
    events.sent(1, 1)
    events.sent(1, 2)
    events.acked(1, 2)
    events.sent(1, 3)
    new = state_records.sub_record(records.SUB_NEW, SUB, CRC)
    assert records.VERSION + new + records.encode_events(events, CRC) == SUBS_DAT
    assert len(events) == 0
    subs, highest = state_records.replay_subs(records.scan_typed(SUBS_DAT[4:], CRC)[0], "subs.dat")
    assert highest == 1
    (sub,) = subs.values()
    assert (sub.state.durable_name, sub.state.last_sent, sub.pending) == (b"dur", 3, {1, 3})


def test_a_slice_of_the_example() -> None:
    assert (len(MSGS_DAT), len(MSGS_IDX)) == (100, 100)
    block = example()
    assert records.VERSION + sealed(block) == MSGS_DAT
    assert records.VERSION + records.index_entries(block, 0, 3, 4, CRC) == MSGS_IDX
    found, end, why = records.scan_data(MSGS_DAT[4:], b"foo", 0, CRC)
    assert ([found.payload(i) for i in range(3)], end, why) == (
        [block.payload(i) for i in range(3)],
        96,
        "",
    )
    scan = records.scan_index(MSGS_IDX[4:], CRC)
    assert (scan.count, scan.first, scan.last, scan.end, scan.clean, scan.contiguous) == (
        3,
        1,
        3,
        100,
        True,
        True,
    )
    assert (scan.first_ts, scan.last_ts) == (TIMESTAMPS[0], TIMESTAMPS[2])
    assert records.entry(MSGS_IDX[4:], 1) == (2, 36, TIMESTAMPS[1], 24)


# ---- CRC
# --------------------------------------------------------------------------------------------------


def bitwise(polynomial: int, data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (polynomial if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(POLYNOMIALS), st.binary(max_size=80))
def test_a_crc_is_that_of_the_bitwise_definition(polynomial: int, data: bytes) -> None:
    assert Crc(polynomial)(data) == bitwise(polynomial, data)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=5000))
def test_the_default_crc_is_that_of_zlib(data: bytes) -> None:
    assert CRC(data) == zlib.crc32(data)


@given(st.binary(max_size=1200), st.integers(0, 15))
def test_folding_and_tables_agree_from_any_position_and_for_any_length(
    data: bytes, start: int
) -> None:
    view = memoryview(data)[start:]
    assert CRC(view) == Crc(fold=False)(view) == zlib.crc32(view)


def test_every_length_around_a_fold_and_random_long_ones_agree_from_every_alignment() -> None:
    rng = Random(1)
    tables = Crc(fold=False)
    data = memoryview(rng.randbytes(1 << 20))
    pieces = [(start, length) for start in range(16) for length in range(56, 150)]
    pieces += [(rng.randrange(4096), rng.randrange(1 << rng.randrange(5, 20))) for _ in range(500)]
    for start, length in pieces:
        piece = data[start : start + length]
        assert CRC(piece) == tables(piece) == zlib.crc32(piece), (start, length)


def test_only_the_usual_polynomial_is_folded_and_only_by_a_processor_that_can() -> None:
    assert not Crc(0x82F63B78).folded
    assert not Crc(fold=False).folded
    flags = Path("/proc/cpuinfo").read_text(encoding="ascii").split()
    assert Crc().folded == ("pclmulqdq" in flags and "sse4_1" in flags)


def test_known_crcs_of_the_named_polynomials() -> None:
    assert Crc(0x82F63B78)(b"123456789") == 0xE3069283
    assert Crc(0xEB31D82E)(b"123456789") == 0x2D3DD0AE
    assert CRC(b"") == 0


@pytest.mark.parametrize("polynomial", [0, -1, 2**32])
def test_a_polynomial_outside_32_bits_is_refused(polynomial: int) -> None:
    with pytest.raises(ConfigError, match="crc polynomial should be between 1 and 4294967295"):
        Crc(polynomial)


# ---- message data: what may lie at its end
# -------------------------------------------------------------------------

DATA = MSGS_DAT[4:]


def scanned(data: bytes, channel: bytes = b"foo", after: int = 0) -> tuple[int, int, str]:
    block, end, why = records.scan_data(data, channel, after, CRC)
    return len(block), end, why


@pytest.mark.parametrize("missing", range(1, 96))
def test_data_cut_anywhere_holds_its_whole_records(missing: int) -> None:
    data = DATA[:-missing]
    whole = len(data) // 32
    assert scanned(data) == (whole, whole * 32, "torn" if len(data) % 32 else "")


@pytest.mark.parametrize("zeros", [8, 9, 100, 4096])
def test_zero_padding_is_known_as_such(zeros: int) -> None:
    assert scanned(DATA + bytes(zeros)) == (3, 96, "zeros")


@pytest.mark.parametrize("zeros", range(1, 8))
def test_less_than_a_header_is_torn_even_if_it_is_zeros(zeros: int) -> None:
    assert scanned(DATA + bytes(zeros)) == (3, 96, "torn")


def test_something_behind_zeros_is_not_padding() -> None:
    count, end, why = scanned(DATA + bytes(64) + DATA[:32])
    assert (count, end) == (3, 96)
    assert why.startswith("bad")


@pytest.mark.parametrize("at", range(96))
def test_a_changed_byte_ends_the_log_before_its_record(at: int) -> None:
    spoiled = bytearray(DATA)
    spoiled[at] ^= 0x55
    count, end, why = scanned(bytes(spoiled))
    assert (count, end) == (at // 32, at // 32 * 32)
    assert why


def test_a_huge_size_is_torn_and_not_read() -> None:
    assert scanned(DATA + struct.pack("<II", 0xFFFFFFFF, 1) + b"x") == (3, 96, "torn")


def test_swapped_repeated_and_foreign_records_are_refused() -> None:
    one = DATA[:32]
    two = DATA[32:64]
    three = DATA[64:]
    assert scanned(one + three + two) == (2, 64, "bad: sequence 2 after 3")
    assert scanned(two + one) == (1, 32, "bad: sequence 1 after 2")
    assert scanned(one + one) == (1, 32, "bad: sequence 1 after 1")
    assert scanned(DATA, after=1) == (0, 0, "bad: sequence 1 after 1")
    assert scanned(DATA, channel=b"bar") == (0, 0, "bad: record of another channel")
    assert scanned(one + three) == (2, 64, "")


def test_a_record_that_does_not_decode_is_bad_in_spite_of_its_crc() -> None:
    payload = b"\x08\x04\x12\x7ffoo"
    assert scanned(DATA + records.untyped_record(payload, CRC)) == (
        3,
        96,
        "bad: message does not decode",
    )


def test_without_crc_checks_only_the_crc_is_not_looked_at() -> None:
    spoiled = bytearray(DATA)
    spoiled[4] ^= 1
    block, end, why = records.scan_data(bytes(spoiled), b"foo", 0, CRC, check_crc=False)
    assert (len(block), end, why) == (3, 96, "")


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=120))
def test_no_garbage_behind_the_data_is_taken_for_more_of_it(junk: bytes) -> None:
    block, end, _ = records.scan_data(DATA + junk, b"foo", 0, CRC)
    assert (len(block), end) == (3, 96)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.binary(max_size=40), st.binary(max_size=300), st.integers(0, 2**62)),
        min_size=1,
        max_size=9,
    ),
    st.integers(1, 2**63),
    st.sampled_from(POLYNOMIALS),
)
def test_what_was_written_is_read_back_with_and_without_index(
    rows: list[tuple[bytes, bytes, int]], first: int, polynomial: int
) -> None:
    crc = Crc(polynomial)
    block = MsgBlock()
    for i, (reply, data, timestamp) in enumerate(rows):
        block.append(first + i, b"ch", reply, data, timestamp)
    data = sealed(block, crc)
    index = records.index_entries(block, 0, len(block), 4, crc)
    payloads = [block.payload(i) for i in range(len(block))]
    scan = records.scan_index(index, crc)
    assert (scan.count, scan.end, scan.clean) == (len(block), 4 + len(data), True)
    found, end, why = records.scan_data(data, b"ch", 0, crc)
    assert ([found.payload(i) for i in range(len(found))], end, why) == (payloads, len(data), "")
    found, why = records.read_block(data, index, crc)
    assert ([found.payload(i) for i in range(len(found))], why) == (payloads, "")
    assert [found.timestamp(i) for i in range(len(found))] == [t for _, _, t in rows]


# ---- index
# --------------------------------------------------------------------------------------------------

INDEX = MSGS_IDX[4:]


def entry_bytes(sequence: int, offset: int, size: int = 24, timestamp: int = 5) -> bytes:
    head = struct.pack("<QQqI", sequence, offset, timestamp, size)
    return head + struct.pack("<I", zlib.crc32(head))


@pytest.mark.parametrize("missing", range(1, 96))
def test_an_index_cut_anywhere_proves_its_whole_entries(missing: int) -> None:
    data = INDEX[:-missing]
    scan = records.scan_index(data, CRC)
    assert (scan.count, scan.end, scan.clean) == (
        len(data) // 32,
        4 + len(data) // 32 * 32,
        len(data) % 32 == 0,
    )


@pytest.mark.parametrize("at", range(96))
def test_a_changed_byte_of_an_index_proves_nothing_from_there_on(at: int) -> None:
    spoiled = bytearray(INDEX)
    spoiled[at] ^= 0x40
    scan = records.scan_index(bytes(spoiled), CRC)
    assert (scan.count, scan.clean) == (at // 32, False)


@pytest.mark.parametrize(
    "wrong",
    [
        entry_bytes(4, 101),
        entry_bytes(4, 99),
        entry_bytes(4, 4),
        entry_bytes(3, 100),
        entry_bytes(1, 100),
        entry_bytes(0, 100),
        bytes(32),
    ],
)
def test_an_entry_with_a_right_crc_that_does_not_follow_proves_nothing(wrong: bytes) -> None:
    scan = records.scan_index(INDEX + wrong + entry_bytes(5, 132), CRC)
    assert (scan.count, scan.last, scan.end, scan.clean) == (3, 3, 100, False)


def test_an_index_whose_offsets_are_all_shifted_proves_nothing() -> None:
    # As v0.10.0 to v0.18.0 rebuild it after an error.
    shifted = b"".join(entry_bytes(i + 1, 4 + 32 * i + 96) for i in range(3))
    assert records.scan_index(shifted, CRC).count == 0


def test_swapped_entries_prove_only_what_comes_before_them() -> None:
    swapped = INDEX[:32] + INDEX[64:] + INDEX[32:64]
    assert records.scan_index(swapped, CRC).count == 1


def test_a_gap_in_the_sequences_is_allowed_and_known() -> None:
    scan = records.scan_index(INDEX + entry_bytes(9, 100), CRC)
    assert (scan.count, scan.last, scan.contiguous, scan.clean) == (4, 9, False, True)
    index = INDEX + entry_bytes(9, 100)
    assert [records.find_entry(index, s) for s in (0, 1, 3, 4, 9, 10)] == [0, 0, 2, 3, 3, 4]


def test_reading_through_an_index_stops_at_the_first_record_that_differs_from_its_entry() -> None:
    spoiled = bytearray(DATA)
    spoiled[50] ^= 1
    block, why = records.read_block(bytes(spoiled), INDEX, CRC)
    assert len(block) == 1
    assert why.startswith("sequence 2: corrupted data, expected crc to be 0x220c04e2, got 0x")
    block, why = records.read_block(DATA[:95], INDEX, CRC)
    assert (len(block), why) == (2, "sequence 3: the file ends inside the record")
    block, why = records.read_block(DATA[32:] + DATA[:32], INDEX, CRC)
    assert (len(block), why) == (0, "sequence 1: the record holds sequence 2")
    block, why = records.read_block(DATA, entry_bytes(1, 4, 25), CRC)
    assert (len(block), why) == (0, "sequence 1: expected size to be 25, got 24")


# ---- typed files
# --------------------------------------------------------------------------------------------------

TYPED = SUBS_DAT[4:]


@pytest.mark.parametrize("size", range(len(TYPED)))
def test_a_typed_file_cut_anywhere_holds_its_whole_records(size: int) -> None:
    ends = [0, 87, 99, 111, 123, 135]
    whole = max(e for e in ends if e <= size)
    rows, end, why = records.scan_typed(TYPED[:size], CRC)
    assert (len(rows), end, why) == (ends.index(whole), whole, "" if size == whole else "torn")


def test_an_empty_typed_record_is_a_record() -> None:
    rows, end, why = records.scan_typed(bytes.fromhex("0000000300000000") + TYPED, CRC)
    assert (rows[0], len(rows), end, why) == ((3, b""), 6, 143, "")
    subs, highest = state_records.replay_subs(rows, "subs.dat")
    assert (list(subs), highest) == ([1], 1)


def test_typed_zeros_are_padding_and_a_wrong_crc_is_damage() -> None:
    assert records.scan_typed(TYPED + bytes(20), CRC)[1:] == (135, "zeros")
    spoiled = bytearray(TYPED)
    spoiled[95] ^= 1
    rows, end, why = records.scan_typed(bytes(spoiled), CRC)
    assert (len(rows), end) == (1, 87)
    assert why.startswith("bad: corrupted data, expected crc to be 0xd8f7bf03, got 0x")


def test_a_payload_that_the_type_byte_leaves_no_room_for_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        records.typed_record(1, bytes(records.MAX_TYPED + 1), CRC)


# ---- replay
# --------------------------------------------------------------------------------------------------


def update(sub_id: int, seqno: int) -> bytes:
    return b"\x08" + bytes([sub_id]) + b"\x10" + bytes([seqno])


def new(sub_id: int) -> tuple[int, bytes]:
    return 1, state_records.sub_record(1, SubState(sub_id, b"me"), CRC)[8:]


def test_replay_follows_the_table_of_the_format() -> None:
    rows = [
        (5, update(1, 9)),  # before its subscription: ignored
        (4, update(1, 9)),
        new(1),
        (5, update(1, 2)),
        (5, update(1, 1)),
        (4, update(1, 2)),
        (4, update(1, 7)),  # not pending: no error
        (
            2,
            state_records.sub_record(2, SubState(1, b"me", inbox=b"new", last_sent=2), CRC)[8:],
        ),  # keeps what is pending
        (2, new(2)[1]),  # an update of an unknown one makes it
        new(3),
        (5, update(3, 4)),
        new(3),  # made again: nothing pending
        new(4),
        (3, b"\x08\x04"),
        (3, b"\x08\x09"),  # unknown: raises the highest id all the same
        (3, b""),
    ]
    subs, highest = state_records.replay_subs(rows, "subs.dat")
    assert highest == 9
    assert {i: (s.state.inbox, s.state.last_sent, s.pending) for i, s in subs.items()} == {
        1: (b"new", 2, {1}),
        2: (b"", 0, set()),
        3: (b"", 0, set()),
    }


def test_a_record_type_that_does_not_exist_is_named() -> None:
    with pytest.raises(RecoveryError, match="unexpected record type: 6"):
        state_records.replay_subs([(6, b"")], "foo/subs.dat")
    with pytest.raises(WireError, match="invalid client record type: 3"):
        replayed_clients([(3, b"")])


def test_a_record_that_does_not_decode_is_refused_with_its_number() -> None:
    with pytest.raises(RecoveryError, match="record 2"):
        state_records.replay_subs([new(1), (5, b"\x0a\x01")], "foo/subs.dat")
    with pytest.raises(WireError):
        replayed_clients([(1, b"\x0a\x7f")])


def test_a_client_added_again_is_replaced_and_one_deleted_twice_is_gone() -> None:
    row = state_records.client_record(ClientInfo(b"a", b"one"), CRC)[8:]
    again = state_records.client_record(ClientInfo(b"a", b"two"), CRC)[8:]
    gone = state_records.client_delete_record(b"b", CRC)[8:]
    clients = replayed_clients([(1, row), (1, again), (2, gone), (2, gone)])
    assert clients == {b"a": ClientInfo(b"a", b"two")}


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.integers(1, 9), st.sets(st.integers(1, 2**40), max_size=5), max_size=5),
    st.integers(0, 12),
)
def test_a_snapshot_replays_to_the_same_subscriptions_and_highest_id(
    pending: dict[int, set[int]], above: int
) -> None:
    subs = {
        i: StoredSub(SubState(i, b"me", last_sent=max(p, default=0), is_durable=True), p)
        for i, p in pending.items()
    }
    highest = max([above, *subs])
    rows, _, why = records.scan_typed(state_records.snapshot_subs(subs, highest, CRC), CRC)
    assert why == ""
    assert state_records.replay_subs(rows, "subs.dat") == (subs, highest)


def test_an_entry_that_points_before_the_first_one_is_outside_of_what_was_read() -> None:
    index = bytearray(INDEX)
    index[40:48] = bytes(8)
    block, why = records.read_block(DATA, index, CRC)
    assert (len(block), why) == (1, "sequence 2: the file ends inside the record")
    block, bad = records.read_readable(DATA, index, CRC)
    assert ([block.sequence(i) for i in range(len(block))], bad) == (
        [1, 3],
        [(2, 0, "unexpected EOF")],
    )


def test_no_number_of_an_entry_leads_out_of_the_index() -> None:
    for k in (-1, 3, 2**58, 2**63 - 1, -(2**63)):
        with pytest.raises(IndexError):
            records.entry(INDEX, k)


def test_the_size_of_a_record_and_its_header_may_exceed_32_bits() -> None:
    fields = [(1, 4, 0, 2**32 - 4), (2, 4, 0, 8)]
    heads = [struct.pack("<QQqI", *entry) for entry in fields]
    index = b"".join(head + zlib.crc32(head).to_bytes(4, "little") for head in heads)
    scan = records.scan_index(index, CRC)
    assert (scan.count, scan.end, scan.clean) == (1, 2**32 + 8, False)
    assert records.fitting_entries(index, 2**32) == 1
