"""Bytes that a real server wrote: every payload of the recorded sessions, and worked examples of
the file store.
"""

from __future__ import annotations

import gzip
import json
import re
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.errors import WireError
from ftstan.wire import codec, messages
from ftstan.wire.messages import (
    ClientInfo,
    CtrlMsg,
    MsgProto,
    ServerInfo,
    SubState,
    SubStateUpdate,
    encode,
    parse,
)
from ftstan.wire.subjects import Subjects
from tests.oracle import godecode

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDINGS = sorted((Path(__file__).parents[2] / "data" / "wire").glob("*.jsonl.gz"))

NAMES = {
    "start_position": ["NewOnly", "LastReceived", "TimeDeltaStart", "SequenceStart", "First"],
    "msg_type": ["SubUnsubscribe", "SubClose", "ConnClose", "FTHeartbeat", "Partitioning"],
}
#: Seconds from the year 1, where Go's binary times begin, to 1970.
YEAR_ONE = 62_135_596_800


def lines(recording: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(recording, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def value(field: str, recorded: Any) -> godecode.Value:
    """The value of a field as it was on the wire, from the recording's readable form."""
    if isinstance(recorded, dict) and "channels" in recorded:
        return b"".join(
            struct.pack("<H", len(name)) + name.encode() for name in recorded["channels"]
        )
    if isinstance(recorded, dict):
        return struct.pack(
            ">Bqih",
            recorded["version"],
            recorded["unix"] + YEAR_ONE,
            recorded["nanos"],
            recorded["zone"],
        )
    if not isinstance(recorded, str):
        number: int = recorded
        return number
    if field in NAMES:
        return NAMES[field].index(recorded)
    return bytes.fromhex(recorded[2:]) if recorded.startswith("0x") else recorded.encode()


def expected(decoded: dict[str, Any]) -> dict[str, godecode.Value]:
    return godecode.defaults(decoded["type"]) | {
        snake(name): value(snake(name), recorded)
        for name, recorded in decoded["fields"].items()
        if not name.startswith("unknown_")
    }


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.name.split(".")[0])
def test_every_recorded_payload_decodes_to_what_was_recorded(recording: Path) -> None:
    seen = 0
    for line in lines(recording):
        if not line.get("decoded"):
            continue
        raw = bytes.fromhex(line["payload_hex"])
        kind = line["decoded"]["type"]
        fields = expected(line["decoded"])
        message = parse(getattr(messages, kind), raw)
        assert {
            field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields
        } == fields, line
        hot: tuple[godecode.Value, ...] | None = {
            "PubMsg": codec.decode_pub_msg,
            "Ack": codec.decode_ack,
            "MsgProto": codec.decode_msg_proto,
        }.get(kind, lambda _: None)(raw)
        assert hot is None or hot == tuple(fields.values())[: len(hot)], line
        seen += 1
    assert seen > 10


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.name.split(".")[0])
def test_what_the_recorded_server_sent_is_what_we_would_send(recording: Path) -> None:
    seen = 0
    for line in lines(recording):
        if not line.get("decoded") or not line["conn"].startswith("server") or line["dir"] != "c2s":
            continue
        raw = bytes.fromhex(line["payload_hex"])
        kind = line["decoded"]["type"]
        fields = expected(line["decoded"])
        message = getattr(messages, kind)(**fields)
        assert encode(message) == raw, line
        if kind == "PubAck":
            assert codec.encode_pub_ack(message.guid, message.error) == raw, line
        if kind == "MsgProto":
            stored = codec.encode_msg_proto(
                message.sequence, message.subject, message.reply, message.data, message.timestamp
            )
            suffix = (
                codec.redelivery_suffix(message.redelivery_count) if message.redelivered else b""
            )
            assert stored + suffix == raw, line
        seen += 1
    assert seen > 2


def test_every_recorded_payload_that_was_refused_is_refused_for_the_same_reason() -> None:
    refused = [
        line for recording in RECORDINGS for line in lines(recording) if "decode_error" in line
    ]
    assert len(refused) >= 6
    for line in refused:
        kind, why = line["decode_error"].split(": ")
        raw = bytes.fromhex(line["payload_hex"])
        words = [*why.split()[:-1], snake(why.split()[-1])]
        with pytest.raises(WireError, match=f"^undecodable {kind}: {' '.join(words)}$"):
            parse(getattr(messages, kind), raw)


def test_the_guid_of_an_undecodable_publish_is_the_one_the_recorded_server_acknowledged() -> None:
    (recording,) = (path for path in RECORDINGS if path.name.startswith("publish-errors."))
    acknowledged = {
        line["subject"]: line["decoded"]["fields"].get("guid", "").encode()
        for line in lines(recording)
        if (line.get("decoded") or {}).get("type") == "PubAck"
    }
    refused = [
        (bytes.fromhex(line["payload_hex"]), acknowledged[line["reply"]])
        for line in lines(recording)
        if line.get("decode_error", "").startswith("PubMsg")
    ]
    assert {guid for _, guid in refused} == {b"", b"g22"}
    for raw, guid in refused:
        with pytest.raises(WireError) as caught:
            codec.decode_pub_msg(raw)
        assert caught.value.guid == guid  # type: ignore[attr-defined]  # only decode_pub_msg sets it


STORED = [
    (
        "080112 03666f6f 22056d73672d31 2891eec1fb86c3edf418",
        MsgProto(sequence=1, subject=b"foo", data=b"msg-1", timestamp=1795166142548965137),
    ),
    (
        "080212 03666f6f 22056d73672d32 289ef983fc86c3edf418",
        MsgProto(sequence=2, subject=b"foo", data=b"msg-2", timestamp=1795166142550047902),
    ),
    (
        "080312 03666f6f 22056d73672d33 28c0cfa7fc86c3edf418",
        MsgProto(sequence=3, subject=b"foo", data=b"msg-3", timestamp=1795166142550632384),
    ),
]


@pytest.mark.parametrize(("raw", "message"), STORED)
def test_a_stored_message_of_a_real_server(raw: str, message: MsgProto) -> None:
    stored = bytes.fromhex(raw)
    assert parse(MsgProto, stored) == message
    assert codec.decode_msg_proto(stored) == (
        message.sequence,
        b"foo",
        b"",
        message.data,
        message.timestamp,
        False,
        0,
    )
    assert (
        codec.encode_msg_proto(message.sequence, b"foo", b"", message.data, message.timestamp)
        == stored
    )


def test_a_stored_subscription_of_a_real_server() -> None:
    stored = bytes.fromhex(
        "0801 12026331"
        "221d5f494e424f582e7043316b54614666525077493737746d436d66573643"
        "2a1d5f494e424f582e5777577439666948747870797073453774497138 6b4f"
        "300a 381e 4203647572 5001"
    )
    state = SubState(
        id=1,
        client_id=b"c1",
        inbox=b"_INBOX.pC1kTaFfRPwI77tmCmfW6C",
        ack_inbox=b"_INBOX.WwWt9fiHtxpypsE7tIq8kO",
        max_in_flight=10,
        ack_wait_in_secs=30,
        durable_name=b"dur",
        is_durable=True,
    )
    assert len(stored) == 79
    assert parse(SubState, stored) == state
    assert encode(state) == stored
    assert encode(SubStateUpdate(id=1, seqno=2)) == bytes.fromhex("08011002")


def test_a_stored_client_of_a_real_server() -> None:
    stored = bytes.fromhex(
        "0a026331"
        "121d5f494e424f582e7043316b54614666525077493737746d436d66567157"
        "1a167043316b54614666525077493737746d436d66566d62"
        "200128053003"
    )
    client = ClientInfo(
        id=b"c1",
        hb_inbox=b"_INBOX.pC1kTaFfRPwI77tmCmfVqW",
        conn_id=b"pC1kTaFfRPwI77tmCmfVmb",
        protocol=1,
        ping_interval=5,
        ping_max_out=3,
    )
    assert len(stored) == 65
    assert parse(ClientInfo, stored) == client
    assert encode(client) == stored


def test_the_stored_server_record_of_a_cluster_is_196_bytes_in_field_order() -> None:
    subjects = Subjects.for_cluster("test-cluster")
    info = ServerInfo(
        cluster_id=b"test-cluster",
        discovery=subjects.discovery.encode(),
        publish=subjects.publish.encode(),
        subscribe=subjects.subscribe.encode(),
        unsubscribe=subjects.unsubscribe.encode(),
        close=subjects.close.encode(),
        sub_close=subjects.sub_close.encode(),
        acks_subs=subjects.acks_subs.encode(),
    )
    stored = encode(info)
    assert stored == b"".join(
        [
            b"\x0a\x0ctest-cluster",
            b"\x12\x1b_STAN.discover.test-cluster",
            b"\x1a\x16_STAN.pub.test-cluster",
            b"\x22\x16_STAN.sub.test-cluster",
            b"\x2a\x18_STAN.unsub.test-cluster",
            b"\x32\x18_STAN.close.test-cluster",
            b"\x3a\x1b_STAN.subclose.test-cluster",
            b"\x42\x16_STAN.ack.test-cluster",
        ]
    )
    assert len(stored) == 196
    # CRC-32 of the record as a real server wrote it.
    assert zlib.crc32(stored) == 0xFF8728F4


def test_a_heartbeat_of_an_ft_group_is_a_control_message() -> None:
    raw = bytes.fromhex(
        "0803121652623262506136317934306848434932336170704e571a0f010000000ee2938df012d875030000"
    )
    assert codec.is_ctrl_msg(raw)
    heartbeat = parse(CtrlMsg, raw)
    assert heartbeat.msg_type == CtrlMsg.FT_HEARTBEAT
    assert heartbeat.server_id == b"Rb2bPa61y40hHCI23appNW"
    assert len(heartbeat.data) == 15
