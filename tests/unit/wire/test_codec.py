"""The hot codec against an independent decoder of the original's rules and against the generated
classes.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ftstan.base.errors import WireError
from ftstan.wire import codec
from ftstan.wire.messages import Ack, CtrlMsg, MsgProto, PubAck, PubMsg, encode
from tests.oracle import godecode, wiregen
from tests.oracle.wiregen import few, many

PUB_FIELDS = ("client_id", "guid", "subject", "reply", "data", "conn_id")
MSG_FIELDS = (
    "sequence",
    "subject",
    "reply",
    "data",
    "timestamp",
    "redelivered",
    "redelivery_count",
)

sequences = wiregen.numbers
timestamps = st.integers(-(2**63), 2**63 - 1)


def refused_guid(error: WireError) -> bytes:
    guid: bytes = error.guid  # type: ignore[attr-defined]  # only decode_pub_msg sets it
    return guid


def check_pub_msg(raw: bytes) -> None:
    got: object
    try:
        got = codec.decode_pub_msg(raw)
    except WireError as error:
        got = refused_guid(error)
    expected: object
    try:
        decoded = godecode.decode("PubMsg", raw)
        expected = tuple(decoded[name] for name in PUB_FIELDS)
    except godecode.UndecodableError as error:
        expected = error.partial["guid"]
    assert got == expected


@many
@given(wiregen.payloads("PubMsg"))
@example(b"\x12\x06g22\x06cc")
def test_a_publish_is_read_or_refused_as_the_original_does(raw: bytes) -> None:
    check_pub_msg(raw)


@many
@given(st.binary(max_size=80))
def test_random_bytes_on_the_publish_subject_are_read_or_refused_as_the_original_does(
    raw: bytes,
) -> None:
    check_pub_msg(raw)


@few
@given(wiregen.fields("PubMsg"))
def test_every_valid_publish_is_read_as_the_protobuf_runtime_reads_it(
    fields: dict[str, bytes],
) -> None:
    message = PubMsg(**fields)
    assert codec.decode_pub_msg(encode(message)) == tuple(
        getattr(message, name) for name in PUB_FIELDS
    )


@few
@given(wiregen.fields("PubMsg"), st.data())
def test_a_publish_cut_anywhere_is_read_or_refused_as_the_original_does(
    fields: dict[str, bytes], data: st.DataObject
) -> None:
    raw = encode(PubMsg(**fields))
    check_pub_msg(raw[: data.draw(st.integers(0, len(raw)))])


def test_a_refused_publish_names_the_guid_read_before_the_error() -> None:
    with pytest.raises(WireError) as caught:
        codec.decode_pub_msg(b"\x12\x03p22\x32\x06conn-a\x18\x05")
    assert refused_guid(caught.value) == b"p22"
    with pytest.raises(WireError) as caught:
        codec.decode_pub_msg(b"\x18\x05\x12\x03p22")
    assert refused_guid(caught.value) == b""


def test_a_truncated_guid_leaves_the_one_before_it() -> None:
    with pytest.raises(WireError) as caught:
        codec.decode_pub_msg(b"\x12\x01a\x12\x05bc")
    assert refused_guid(caught.value) == b"a"


@many
@given(
    wiregen.payloads("CtrlMsg") | wiregen.payloads("CtrlMsg").map(lambda rest: b"\x08\x03" + rest)
)
def test_a_control_message_is_recognised_by_its_first_byte_and_by_decoding(raw: bytes) -> None:
    try:
        godecode.decode("CtrlMsg", raw)
        decodes = True
    except godecode.UndecodableError:
        decodes = False
    assert codec.is_ctrl_msg(raw) == (decodes and raw[:1] == b"\x08")


@few
@given(wiregen.fields("PubMsg"), wiregen.fields("Ack"))
def test_no_publish_or_ack_is_taken_for_a_control_message(
    pub: dict[str, bytes], ack: dict[str, godecode.Value]
) -> None:
    assert not codec.is_ctrl_msg(encode(PubMsg(**pub)))
    message = Ack(subject=ack.get("subject", b""), sequence=ack.get("sequence", 0))  # type: ignore[arg-type]
    assert not codec.is_ctrl_msg(encode(message))


def test_a_control_message_of_another_server_is_no_publish() -> None:
    raw = encode(CtrlMsg(msg_type=CtrlMsg.FT_HEARTBEAT, server_id=b"yyyy"))
    assert codec.is_ctrl_msg(raw)
    with pytest.raises(WireError):
        codec.decode_pub_msg(raw)
    with pytest.raises(WireError):
        codec.decode_ack(raw)


@many
@given(wiregen.payloads("Ack"))
def test_an_ack_is_read_or_refused_as_the_original_does(raw: bytes) -> None:
    try:
        expected = godecode.decode("Ack", raw)
    except godecode.UndecodableError:
        with pytest.raises(WireError):
            codec.decode_ack(raw)
    else:
        assert codec.decode_ack(raw) == (expected["subject"], expected["sequence"])


@many
@given(wiregen.payloads("MsgProto"))
def test_a_stored_message_is_read_or_refused_as_the_original_does(raw: bytes) -> None:
    try:
        expected = godecode.decode("MsgProto", raw)
    except godecode.UndecodableError:
        with pytest.raises(WireError):
            codec.decode_msg_proto(raw)
    else:
        assert codec.decode_msg_proto(raw) == tuple(expected[name] for name in MSG_FIELDS)


@few
@given(sequences, wiregen.strings, wiregen.strings, wiregen.strings, timestamps)
def test_a_message_is_encoded_as_the_protobuf_runtime_encodes_it(
    sequence: int, subject: bytes, reply: bytes, data: bytes, timestamp: int
) -> None:
    message = MsgProto(
        sequence=sequence, subject=subject, reply=reply, data=data, timestamp=timestamp
    )
    raw = codec.encode_msg_proto(sequence, subject, reply, data, timestamp)
    assert raw == encode(message)
    assert codec.decode_msg_proto(raw) == (sequence, subject, reply, data, timestamp, False, 0)


@pytest.mark.parametrize("size", [127, 128, 16383, 16384, 1 << 20])
def test_payload_lengths_around_a_size_byte_more(size: int) -> None:
    data = b"x" * size
    raw = codec.encode_msg_proto(1, b"foo", b"", data, 2)
    assert raw == encode(MsgProto(sequence=1, subject=b"foo", data=data, timestamp=2))
    assert codec.decode_msg_proto(raw)[3] == data
    assert codec.decode_pub_msg(encode(PubMsg(guid=b"g", data=data)))[4] == data


@few
@given(wiregen.strings, wiregen.strings)
def test_a_publisher_ack_is_encoded_as_the_protobuf_runtime_encodes_it(
    guid: bytes, error: bytes
) -> None:
    assert codec.encode_pub_ack(guid, error) == encode(PubAck(guid=guid, error=error))


@few
@given(st.integers(0, 2**32 - 1))
def test_a_resend_is_the_stored_bytes_and_the_two_redelivery_fields(count: int) -> None:
    stored = codec.encode_msg_proto(3, b"foo", b"", b"data", 4)
    resent = stored + codec.redelivery_suffix(count)
    message = MsgProto(
        sequence=3,
        subject=b"foo",
        data=b"data",
        timestamp=4,
        redelivered=True,
        redelivery_count=count,
    )
    assert resent == encode(message)
    assert codec.decode_msg_proto(resent) == (3, b"foo", b"", b"data", 4, True, count)
