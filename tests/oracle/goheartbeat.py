"""Messages as the original encodes them, and its FT heartbeat (``docs/compat/ft.md`` §3).

The encoder writes fields in ascending number and leaves out what is zero or empty. It takes its
tables from ``godecode`` and shares nothing with ``ftstan``.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass

from tests.oracle.godecode import TABLES, UndecodableError, Value, decode

FT_HEARTBEAT = 3
_YEAR_ONE = 62135596800
"""Seconds from 0001-01-01 to 1970-01-01: the Go binary time counts from year one."""
_TIME = struct.Struct(">bqih")


class BadTime(Exception):  # noqa: N818 - named after what the original says of it
    """The activation time of a heartbeat does not decode; the text is the original's."""


@dataclass(frozen=True, slots=True, order=True)
class Instant:
    """A wall clock time; compared by the instant alone, whatever the zone it was sent in."""

    seconds: int
    nanos: int

    @classmethod
    def now(cls) -> Instant:
        seconds, nanos = divmod(time.time_ns(), 1_000_000_000)
        return cls(seconds, nanos)


def encode(message: str, **fields: Value) -> bytes:
    """The message with these fields; the names are those of ``godecode.TABLES``."""
    out = bytearray()
    for number, (name, kind) in sorted(TABLES[message].items()):
        value = fields.pop(name, 0)
        if not value:
            continue
        if kind == "b":
            assert isinstance(value, bytes)
            out += _varint(number << 3 | 2) + _varint(len(value)) + value
        else:
            out += _varint(number << 3) + _varint(int(value) % 2**64)
    assert not fields, f"{message} has no {sorted(fields)}"
    return bytes(out)


def encode_time(instant: Instant, zone_seconds: int) -> bytes:
    """The Go binary time of a local clock ``zone_seconds`` east of UTC: 15 bytes, or 16 if that is
    no whole minute.
    """
    # Go's division: towards zero, and so is the remainder.
    minutes = int(zone_seconds / 60)
    rest = zone_seconds - minutes * 60
    raw = _TIME.pack(2 if rest else 1, instant.seconds + _YEAR_ONE, instant.nanos, minutes)
    return raw + struct.pack(">b", rest) if rest else raw


def decode_time(data: bytes) -> Instant:
    """Raises ``BadTime`` as the original's decoder does."""
    if not data:
        raise BadTime("Time.UnmarshalBinary: no data")
    if data[0] not in {1, 2}:
        raise BadTime("Time.UnmarshalBinary: unsupported version")
    if len(data) != _TIME.size + (data[0] == 2):
        raise BadTime("Time.UnmarshalBinary: invalid length")
    _, seconds, nanos, _ = _TIME.unpack(data[: _TIME.size])
    return Instant(seconds - _YEAR_ONE, nanos)


def heartbeat(server_id: bytes, activation: Instant, zone_seconds: int) -> bytes:
    """What an active sends; the same bytes as long as it is active."""
    return encode(
        "CtrlMsg",
        msg_type=FT_HEARTBEAT,
        server_id=server_id,
        data=encode_time(activation, zone_seconds),
    )


def read_heartbeat(payload: bytes) -> tuple[bytes, bytes] | None:
    """Server ID and undecoded activation time; ``None`` for what an active ignores."""
    try:
        fields = decode("CtrlMsg", payload)
    except UndecodableError:
        return None
    server_id = fields["server_id"]
    data = fields["data"]
    assert isinstance(server_id, bytes)
    assert isinstance(data, bytes)
    return (server_id, data) if fields["msg_type"] == FT_HEARTBEAT else None


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
