"""A second opinion on STAN messages: the original's decoding rules, written without looking at
ours.

Plain and slow, with the message tables typed from ``docs/compat/protocol.md`` and not from
``proto/``, so that a slip in either shows. It must never import anything from ``ftstan``.
"""

from __future__ import annotations

from dataclasses import dataclass

Value = bytes | int | bool

#: Message: field number: (name, type). Types: b(ytes), u64, i64, u32, i32, bool.
TABLES: dict[str, dict[int, tuple[str, str]]] = {
    "ConnectRequest": {
        1: ("client_id", "b"),
        2: ("heartbeat_inbox", "b"),
        3: ("protocol", "i32"),
        4: ("conn_id", "b"),
        5: ("ping_interval", "i32"),
        6: ("ping_max_out", "i32"),
    },
    "ConnectResponse": {
        1: ("pub_prefix", "b"),
        2: ("sub_requests", "b"),
        3: ("unsub_requests", "b"),
        4: ("close_requests", "b"),
        5: ("error", "b"),
        6: ("sub_close_requests", "b"),
        7: ("ping_requests", "b"),
        8: ("ping_interval", "i32"),
        9: ("ping_max_out", "i32"),
        10: ("protocol", "i32"),
        100: ("public_key", "b"),
    },
    "CloseRequest": {1: ("client_id", "b")},
    "CloseResponse": {1: ("error", "b")},
    "Ping": {1: ("conn_id", "b")},
    "PingResponse": {1: ("error", "b")},
    "PubMsg": {
        1: ("client_id", "b"),
        2: ("guid", "b"),
        3: ("subject", "b"),
        4: ("reply", "b"),
        5: ("data", "b"),
        6: ("conn_id", "b"),
        10: ("sha256", "b"),
    },
    "PubAck": {1: ("guid", "b"), 2: ("error", "b")},
    "MsgProto": {
        1: ("sequence", "u64"),
        2: ("subject", "b"),
        3: ("reply", "b"),
        4: ("data", "b"),
        5: ("timestamp", "i64"),
        6: ("redelivered", "bool"),
        7: ("redelivery_count", "u32"),
        10: ("crc32", "u32"),
    },
    "Ack": {1: ("subject", "b"), 2: ("sequence", "u64")},
    "SubscriptionRequest": {
        1: ("client_id", "b"),
        2: ("subject", "b"),
        3: ("q_group", "b"),
        4: ("inbox", "b"),
        5: ("max_in_flight", "i32"),
        6: ("ack_wait_in_secs", "i32"),
        7: ("durable_name", "b"),
        10: ("start_position", "i32"),
        11: ("start_sequence", "u64"),
        12: ("start_time_delta", "i64"),
    },
    "SubscriptionResponse": {2: ("ack_inbox", "b"), 3: ("error", "b")},
    "UnsubscribeRequest": {
        1: ("client_id", "b"),
        2: ("subject", "b"),
        3: ("inbox", "b"),
        4: ("durable_name", "b"),
    },
    "CtrlMsg": {
        1: ("msg_type", "i32"),
        2: ("server_id", "b"),
        3: ("data", "b"),
        4: ("ref_id", "b"),
    },
    "ServerInfo": {
        1: ("cluster_id", "b"),
        2: ("discovery", "b"),
        3: ("publish", "b"),
        4: ("subscribe", "b"),
        5: ("unsubscribe", "b"),
        6: ("close", "b"),
        7: ("sub_close", "b"),
        8: ("acks_subs", "b"),
        9: ("node_id", "b"),
    },
    "ClientInfo": {
        1: ("id", "b"),
        2: ("hb_inbox", "b"),
        3: ("conn_id", "b"),
        4: ("protocol", "i32"),
        5: ("ping_interval", "i32"),
        6: ("ping_max_out", "i32"),
    },
    "ClientDelete": {1: ("id", "b")},
    "SubState": {
        1: ("id", "u64"),
        2: ("client_id", "b"),
        3: ("q_group", "b"),
        4: ("inbox", "b"),
        5: ("ack_inbox", "b"),
        6: ("max_in_flight", "i32"),
        7: ("ack_wait_in_secs", "i32"),
        8: ("durable_name", "b"),
        9: ("last_sent", "u64"),
        10: ("is_durable", "bool"),
        11: ("is_closed", "bool"),
    },
    "SubStateDelete": {1: ("id", "u64")},
    "SubStateUpdate": {1: ("id", "u64"), 2: ("seqno", "u64")},
}


class UndecodableError(Exception):
    """The original refuses these bytes; ``partial`` is what it had decoded by then."""

    def __init__(self, partial: dict[str, Value]) -> None:
        super().__init__(partial)
        self.partial = partial


class _StopError(Exception):
    """A rule was broken at this place."""


@dataclass
class _Reader:
    left: bytes

    def take(self, count: int) -> bytes:
        if len(self.left) < count:
            raise _StopError
        head = self.left[:count]
        self.left = self.left[count:]
        return head

    def number(self) -> int:
        septets: list[int] = []
        while len(septets) < 10:
            (byte,) = self.take(1)
            septets.append(byte & 127)
            if byte == septets[-1]:
                return sum(septet << 7 * i for i, septet in enumerate(septets)) % 2**64
        raise _StopError

    def tag(self) -> tuple[int, int]:
        return divmod(self.number(), 8)

    def field(self) -> tuple[int, int]:
        number, wire_type = self.tag()
        number %= 2**32
        if wire_type == 4 or number == 0 or number >= 2**31:
            raise _StopError
        return number, wire_type

    def skip(self, wire_type: int) -> None:
        # Groups within groups are counted: a payload may hold more of them than Python takes calls.
        groups = 0
        while True:
            match wire_type:
                case 0:
                    self.number()
                case 1:
                    self.take(8)
                case 2:
                    self.take(self.number())
                case 3:
                    groups += 1
                case 4 if groups:
                    groups -= 1
                case 5:
                    self.take(4)
                case _:
                    raise _StopError
            if groups == 0:
                return
            _, wire_type = self.tag()

    def value(self, kind: str, wire_type: int) -> Value:
        if wire_type != (2 if kind == "b" else 0):
            raise _StopError
        number = self.number()
        match kind:
            case "b":
                return self.take(number)
            case "bool":
                return number != 0
            case "u64":
                return number
            case "u32":
                return number % 2**32
            case "i64":
                return (number + 2**63) % 2**64 - 2**63
            case _:
                return (number + 2**31) % 2**32 - 2**31


def defaults(message: str) -> dict[str, Value]:
    """Every field of the message with the value it has when absent."""
    return _absent(TABLES[message])


def _absent(table: dict[int, tuple[str, str]]) -> dict[str, Value]:
    zero: dict[str, Value] = {"b": b"", "bool": False}
    return {name: zero.get(kind, 0) for name, kind in table.values()}


def decode(message: str, data: bytes) -> dict[str, Value]:
    """All fields of a message, absent ones with their defaults; raises ``UndecodableError``."""
    return decode_known(TABLES[message], data)


def decode_known(table: dict[int, tuple[str, str]], data: bytes) -> dict[str, Value]:
    """``decode`` for a reader that knows the fields of ``table``."""
    out = _absent(table)
    reader = _Reader(data)
    try:
        while reader.left:
            number, wire_type = reader.field()
            if number in table:
                name, kind = table[number]
                out[name] = reader.value(kind, wire_type)
            else:
                reader.skip(wire_type)
    except _StopError:
        raise UndecodableError(out) from None
    return out
