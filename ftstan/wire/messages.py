"""The cold messages: decoding by the original server's rules, and the answers a server gives.

``parse`` reads any message class of ``ftstan.wire.pb`` as the original does, which is stricter and
laxer than the protobuf runtime: a wrong wire type for a known field is an error, bytes that are not
UTF-8 are not, and numbers may be longer than they need to be (``docs/compat/protocol.md``,
"Encoding"). What is per message on the hot path (PubMsg, Ack, MsgProto, PubAck) is decoded by
``ftstan.wire.codec`` and never here; the loop over the fields is there too, since anybody may send
a hundred thousand of them. Nothing in this module knows a client, a channel or a socket.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from ftstan.base.errors import WireError
from ftstan.wire.codec import read_fields
from ftstan.wire.pb.stan_internal_pb2 import (
    ClientDelete,
    ClientInfo,
    CtrlMsg,
    PartitionMsg,
    ServerInfo,
    SubState,
    SubStateDelete,
    SubStateUpdate,
)
from ftstan.wire.pb.stan_pb2 import (
    Ack,
    CloseRequest,
    CloseResponse,
    ConnectRequest,
    ConnectResponse,
    MsgProto,
    Ping,
    PingResponse,
    PubAck,
    PubMsg,
    StartPosition,
    SubscriptionRequest,
    SubscriptionResponse,
    UnsubscribeRequest,
)

if TYPE_CHECKING:
    from ftstan.wire.subjects import Subjects

__all__ = [
    "PROTOCOL",
    "Ack",
    "ClientDelete",
    "ClientInfo",
    "CloseRequest",
    "CloseResponse",
    "ConnectRequest",
    "ConnectResponse",
    "CtrlMsg",
    "MsgProto",
    "PartitionMsg",
    "Ping",
    "PingResponse",
    "PubAck",
    "PubMsg",
    "ServerInfo",
    "StartPosition",
    "SubState",
    "SubStateDelete",
    "SubStateUpdate",
    "SubscriptionRequest",
    "SubscriptionResponse",
    "UnsubscribeRequest",
    "close_response",
    "connect_error",
    "connect_response",
    "encode",
    "parse",
    "ping_response",
    "subscription_error",
    "subscription_response",
]

#: The protocol level that the server states in every ConnectResponse.
PROTOCOL = 1

M = TypeVar("M", bound=Message)

# What becomes of a 64-bit number: bits that are kept (of a bool: one, set by any other bit), and
# whether the highest of them is a sign.
_NUMBERS = {
    FieldDescriptor.TYPE_INT32: (32, True),
    FieldDescriptor.TYPE_ENUM: (32, True),
    FieldDescriptor.TYPE_UINT32: (32, False),
    FieldDescriptor.TYPE_INT64: (64, True),
    FieldDescriptor.TYPE_UINT64: (64, False),
    FieldDescriptor.TYPE_BOOL: (1, False),
}


def parse(cls: type[M], data: bytes) -> M:
    """Decode ``data`` as a message of class ``cls``; an empty payload gives all defaults.

    Of a field that appears twice the last value counts; unknown fields are skipped and not kept; an
    ``int32``, ``enum`` or ``uint32`` keeps the low 32 bits of what was sent. Raises ``WireError``
    when the data is truncated, has an illegal tag or a wrong wire type for a known field
    (``docs/compat/protocol.md``, "Encoding").
    """
    kinds, names, numbers = _fields(cls.DESCRIPTOR)
    try:
        values = read_fields(data, kinds, names)
    except WireError as error:
        raise WireError(f"undecodable {cls.DESCRIPTOR.name}: {error.text}") from None
    for name in values.keys() & numbers.keys():
        value = values[name]
        assert isinstance(value, int)
        bits, signed = numbers[name]
        values[name] = value != 0 if bits == 1 else _low_bits(value, bits, signed=signed)
    return cls(**values)


def encode(message: Message) -> bytes:
    """Give the bytes of a message: fields in ascending order, zero values left out.

    All defaults is empty.
    """
    return message.SerializeToString(deterministic=True)


def connect_response(subjects: Subjects, request: ConnectRequest) -> bytes:
    """Answer an accepted ``request``: where to publish and ask, and what pinging was agreed.

    A client of protocol 0 is told nothing about pings (``docs/compat/protocol.md``, "Messages").
    """
    response = ConnectResponse(
        pub_prefix=subjects.publish.encode(),
        sub_requests=subjects.subscribe.encode(),
        unsub_requests=subjects.unsubscribe.encode(),
        close_requests=subjects.close.encode(),
        sub_close_requests=subjects.sub_close.encode(),
        protocol=PROTOCOL,
    )
    if request.protocol >= 1:
        response.ping_requests = subjects.pings.encode()
        response.ping_interval = request.ping_interval
        response.ping_max_out = request.ping_max_out
    return encode(response)


def connect_error(error: str) -> bytes:
    """Refuse a connect; ``error`` stands alone."""
    return encode(ConnectResponse(error=_text(error)))


def subscription_response(ack_inbox: bytes = b"") -> bytes:
    """Answer a subscribe (with the subject for acks), or an unsubscribe or subscription close
    (empty).
    """
    return encode(SubscriptionResponse(ack_inbox=ack_inbox))


def subscription_error(error: str) -> bytes:
    """Refuse a subscribe, unsubscribe or subscription close."""
    return encode(SubscriptionResponse(error=_text(error)))


def close_response(error: str = "") -> bytes:
    """Answer a connection close; empty on success."""
    return encode(CloseResponse(error=_text(error)))


def ping_response(error: str = "") -> bytes:
    """Answer a client's ping; empty when the client is registered."""
    return encode(PingResponse(error=_text(error)))


def _text(error: str) -> bytes:
    # Errors may name a channel whose bytes were not UTF-8 and came in with surrogateescape.
    return error.encode("utf-8", "surrogateescape")


@cache
def _fields(descriptor: Descriptor) -> tuple[bytes, tuple[str, ...], dict[str, tuple[int, bool]]]:
    """Each field's kind and name by number, as ``read_fields`` wants them.

    (bits, signed) of numbers by name.
    """
    size = 1 + max(field.number for field in descriptor.fields)
    kinds = bytearray(size)
    names = [""] * size
    numbers = {}
    for field in descriptor.fields:
        number = _NUMBERS.get(field.type)
        kinds[field.number], names[field.number] = (
            (2, field.name) if number is None else (1, field.name)
        )
        if number is not None:
            numbers[field.name] = number
    return bytes(kinds), tuple(names), numbers


def _low_bits(value: int, bits: int, *, signed: bool) -> int:
    value &= (1 << bits) - 1
    if signed and value >> (bits - 1):
        value -= 1 << bits
    return value
