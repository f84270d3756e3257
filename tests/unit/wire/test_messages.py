"""Cold messages: decoding as the original does, and the exact bytes of a server's answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.base.errors import WireError
from ftstan.wire import messages
from ftstan.wire.messages import (
    ConnectRequest,
    ConnectResponse,
    CtrlMsg,
    MsgProto,
    Ping,
    SubscriptionRequest,
    SubState,
    encode,
    parse,
)
from ftstan.wire.subjects import Subjects
from tests.oracle import godecode, wiregen
from tests.oracle.wiregen import few

if TYPE_CHECKING:
    from google.protobuf.message import Message

CLASSES: dict[str, type[Message]] = {name: getattr(messages, name) for name in godecode.TABLES}


#: The number of a field of ours in ``ServerInfo``, which the original skips.
_OURS = 120


def as_dict(message: Message) -> dict[str, godecode.Value]:
    return {
        field.name: getattr(message, field.name)
        for field in message.DESCRIPTOR.fields
        if field.number != _OURS
    }


def test_proto_files_and_the_protocol_tables_describe_the_same_fields() -> None:
    described = {
        name: {f.number: f.name for f in cls.DESCRIPTOR.fields if f.number != _OURS}
        for name, cls in CLASSES.items()
    }
    assert described == {
        name: {number: field for number, (field, _) in table.items()}
        for name, table in godecode.TABLES.items()
    }


@pytest.mark.parametrize("name", sorted(CLASSES))
@few
@given(data=st.data())
def test_what_is_encoded_is_parsed_back_and_read_the_same_by_the_runtime(
    name: str, data: st.DataObject
) -> None:
    cls = CLASSES[name]
    message = cls(**data.draw(wiregen.fields(name)))
    raw = encode(message)
    assert parse(cls, raw) == message == cls.FromString(raw)
    assert godecode.decode(name, raw) == as_dict(message)


@pytest.mark.parametrize("name", sorted(CLASSES))
@few
@given(data=st.data())
def test_any_bytes_are_accepted_or_refused_as_the_original_does(
    name: str, data: st.DataObject
) -> None:
    raw = data.draw(wiregen.payloads(name))
    try:
        expected = godecode.decode(name, raw)
    except godecode.UndecodableError:
        with pytest.raises(WireError, match=f"undecodable {name}: "):
            parse(CLASSES[name], raw)
    else:
        assert as_dict(parse(CLASSES[name], raw)) == expected


@few
@given(st.binary(max_size=64))
def test_random_bytes_are_accepted_or_refused_as_the_original_does(raw: bytes) -> None:
    try:
        expected = godecode.decode("SubState", raw)
    except godecode.UndecodableError:
        with pytest.raises(WireError):
            parse(SubState, raw)
    else:
        assert as_dict(parse(SubState, raw)) == expected


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_an_empty_payload_is_a_message_of_defaults(name: str) -> None:
    assert as_dict(parse(CLASSES[name], b"")) == godecode.defaults(name)
    assert encode(CLASSES[name]()) == b""


def test_bytes_that_are_not_utf8_are_a_legal_string() -> None:
    assert parse(SubscriptionRequest, b"\x12\x02\xff\xfe").subject == b"\xff\xfe"


def test_the_last_of_a_duplicate_field_counts() -> None:
    assert parse(Ping, b"\x0a\x01a\x0a\x02bc").conn_id == b"bc"


def test_unknown_fields_are_skipped_and_not_sent_on() -> None:
    message = parse(Ping, b"\x18\x05\x0a\x01a\x91\x03" + bytes(8) + b"\xf5\x01" + bytes(4))
    assert encode(message) == b"\x0a\x01a"


def test_an_unknown_group_is_skipped_with_all_that_is_in_it() -> None:
    nested = b"\x1b\x08\x01\x23\x12\x02xy\x24\x1c"
    assert parse(Ping, nested + b"\x0a\x01a").conn_id == b"a"


def test_an_int32_may_take_ten_bytes_and_keeps_its_low_32_bits() -> None:
    minus_five = b"\x18\xfb\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    assert parse(ConnectRequest, minus_five).protocol == -5
    assert encode(ConnectRequest(protocol=-5)) == minus_five
    assert parse(ConnectRequest, b"\x18\x87\x80\x80\x80\x10").protocol == 7
    assert parse(ConnectRequest, b"\x18\x85\x80\x80\x00").protocol == 5


def test_an_unknown_start_position_is_kept_for_the_server_to_refuse() -> None:
    assert parse(SubscriptionRequest, b"\x50\x09").start_position == 9


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"\xff\xff\xff", "truncated"),
        (b"\x0a", "truncated"),
        (b"\x0a\x04ab", "truncated"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "truncated"),
        (b"\x18\x80", "truncated"),
        (b"\x18" + b"\x80" * 10 + b"\x00", "number of more than ten bytes"),
        (b"\x00\x00", "illegal tag"),
        (b"\x3c", "illegal tag"),
        (b"\x3e", "illegal wire type"),
        (b"\x3f", "illegal wire type"),
        (b"\x3b\x08\x01", "illegal group"),
        (b"\x08\x01", "wrong wire type for client_id"),
        (b"\x0b\x0c", "wrong wire type for client_id"),
        (b"\x1a\x01a", "wrong wire type for protocol"),
    ],
)
def test_broken_bytes_are_refused_with_the_reason(raw: bytes, why: str) -> None:
    with pytest.raises(WireError, match=f"^undecodable ConnectRequest: {why}$"):
        parse(ConnectRequest, raw)


def test_a_connect_response_has_exactly_the_fields_a_client_of_protocol_1_gets() -> None:
    request = ConnectRequest(
        client_id=b"me", heartbeat_inbox=b"_INBOX.h", protocol=1, ping_interval=5, ping_max_out=3
    )
    expected = b"".join(
        [
            b"\x0a\x0c_STAN.pub.tc",
            b"\x12\x0c_STAN.sub.tc",
            b"\x1a\x0e_STAN.unsub.tc",
            b"\x22\x0e_STAN.close.tc",
            b"\x32\x11_STAN.subclose.tc",
            b"\x3a\x17_STAN.discover.tc.pings",
            b"\x40\x05\x48\x03\x50\x01",
        ]
    )
    assert messages.connect_response(Subjects.for_cluster("tc"), request) == expected


def test_a_client_of_protocol_0_is_told_nothing_about_pings() -> None:
    request = ConnectRequest(
        client_id=b"me", heartbeat_inbox=b"_INBOX.h", ping_interval=5, ping_max_out=3
    )
    response = parse(
        ConnectResponse, messages.connect_response(Subjects.for_cluster("tc"), request)
    )
    assert response == ConnectResponse(
        pub_prefix=b"_STAN.pub.tc",
        sub_requests=b"_STAN.sub.tc",
        unsub_requests=b"_STAN.unsub.tc",
        close_requests=b"_STAN.close.tc",
        sub_close_requests=b"_STAN.subclose.tc",
        protocol=1,
    )


def test_a_ping_interval_of_zero_is_echoed_by_absence() -> None:
    request = ConnectRequest(client_id=b"me", heartbeat_inbox=b"_INBOX.h", protocol=1)
    assert messages.connect_response(Subjects.for_cluster("tc"), request).endswith(
        b".pings\x50\x01"
    )


def test_success_is_an_empty_payload_and_an_error_stands_alone() -> None:
    assert messages.close_response() == b""
    assert messages.ping_response() == b""
    assert messages.subscription_response() == b""
    assert messages.subscription_response(b"_INBOX.a") == b"\x12\x08_INBOX.a"
    assert messages.connect_error("no") == b"\x2a\x02no"
    assert messages.subscription_error("no") == b"\x1a\x02no"
    assert messages.close_response("no") == b"\x0a\x02no"
    assert messages.ping_response("no") == b"\x0a\x02no"


def test_an_error_that_names_a_channel_carries_its_bytes() -> None:
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    assert messages.close_response(name) == b"\x0a\x02\xff\xfe"


def test_a_control_message_is_written_as_servers_write_it() -> None:
    heartbeat = CtrlMsg(msg_type=CtrlMsg.FT_HEARTBEAT, server_id=b"S", data=b"\x01")
    assert encode(heartbeat) == b"\x08\x03\x12\x01S\x1a\x01\x01"


def test_redelivery_fields_follow_the_stored_bytes() -> None:
    stored = encode(MsgProto(sequence=7, subject=b"foo", timestamp=9))
    resent = encode(
        MsgProto(sequence=7, subject=b"foo", timestamp=9, redelivered=True, redelivery_count=2)
    )
    assert resent == stored + b"\x30\x01\x38\x02"
