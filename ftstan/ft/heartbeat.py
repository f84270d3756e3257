"""The heartbeat of an active server: bytes that the original understands, with our fields where it
does not look.

The message is the control message of type 3 (``docs/compat/ft.md``, ``docs/compat/protocol.md``):
server id and activation time. Epoch, store id, phase and a missing lock travel in fields 100 to
103, which a decoder that does not know them skips. Decoding follows the original's rules: a wrong
wire type is an error, unknown fields are skipped, strings are not checked. Hand-coded, because a
heartbeat is built once an activation and must not drag in a protobuf runtime.

A heartbeat can be forged: ``heartbeat_trust.py`` says what one may bring about.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from ftstan.ft.subjects import STORE_ID_SIZE

_MSG_TYPE = 1
_SERVER_ID = 2
_DATA = 3
_REF_ID = 4
_EPOCH = 100
_STORE_ID = 101
_PHASE = 102
_NO_LOCK = 103
_VARINT = 0
_FIXED64 = 1
_BYTES = 2
_FIXED32 = 5
_WIRE_TYPES = {
    _MSG_TYPE: _VARINT,
    _SERVER_ID: _BYTES,
    _DATA: _BYTES,
    _REF_ID: _BYTES,
    _EPOCH: _VARINT,
    _STORE_ID: _BYTES,
    _PHASE: _VARINT,
    _NO_LOCK: _VARINT,
}
_FT_HEARTBEAT = 3
_MAX_EPOCH = 1 << 63

_TIME = struct.Struct(">bqih")
_YEAR_1_TO_1970 = 62_135_596_800
_BILLION = 1_000_000_000


class BeatPhase(enum.IntEnum):
    """How far the sender has come. Unknown values of newer servers read as ``UNKNOWN``."""

    UNKNOWN = 0
    ACTIVATING = 1
    SERVING = 2
    STOPPING = 3


_PHASES = {phase.value: phase for phase in BeatPhase}


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Somebody says that it is active since ``activated_ns`` (Unix nanoseconds).

    ``epoch`` is 0 and ``store_id`` empty when the sender is an original server. ``time_error`` says
    why the activation time cannot be read (``activated_ns`` is then 0), else it is empty.
    """

    server_id: str
    activated_ns: int
    epoch: int = 0
    store_id: bytes = b""
    phase: BeatPhase = BeatPhase.UNKNOWN
    time_error: str = ""
    has_lock: bool = True
    """False of an owner that took the store without its lock and does not have it yet."""

    @property
    def is_ours(self) -> bool:
        """Whether the sender runs ftstan (and so obeys epochs)."""
        return self.epoch > 0


def encode_heartbeat(beat: Heartbeat) -> bytes:
    """Build the payload.

    Without an epoch it is, byte for byte, what an original server in UTC sends.
    """
    out = bytearray()
    _put_varint(out, _MSG_TYPE, _FT_HEARTBEAT)
    _put_bytes(out, _SERVER_ID, beat.server_id.encode())
    _put_bytes(out, _DATA, encode_time(beat.activated_ns))
    if beat.is_ours:
        _put_varint(out, _EPOCH, beat.epoch)
        _put_bytes(out, _STORE_ID, beat.store_id)
        if beat.phase is not BeatPhase.UNKNOWN:
            _put_varint(out, _PHASE, beat.phase)
        if not beat.has_lock:
            _put_varint(out, _NO_LOCK, 1)
    return bytes(out)


def decode_heartbeat(payload: bytes) -> Heartbeat | None:
    """Read the heartbeat in ``payload``.

    ``None`` if it is none: stray, foreign and malformed messages are not.
    """
    fields = _decode_fields(payload)
    if fields is None or fields.get(_MSG_TYPE) != _FT_HEARTBEAT:
        return None
    server_id = _bytes(fields.get(_SERVER_ID))
    if not server_id:
        return None
    epoch = _int(fields.get(_EPOCH))
    store_id = _bytes(fields.get(_STORE_ID))
    # Half of our fields is a damaged heartbeat of ours, not one of an original server.
    if (epoch or store_id) and not (0 < epoch < _MAX_EPOCH and len(store_id) == STORE_ID_SIZE):
        return None
    activated_ns = 0
    time_error = ""
    try:
        activated_ns = decode_time(_bytes(fields.get(_DATA)))
    except ValueError as error:
        time_error = str(error)
    return Heartbeat(
        server_id=server_id.decode("utf-8", "replace"),
        activated_ns=activated_ns,
        epoch=epoch,
        store_id=store_id,
        phase=_PHASES.get(_int(fields.get(_PHASE)), BeatPhase.UNKNOWN),
        time_error=time_error,
        has_lock=not _int(fields.get(_NO_LOCK)),
    )


def encode_time(unix_ns: int) -> bytes:
    """Go's binary form of a time in a zone at UTC: 15 bytes (``docs/compat/ft.md``)."""
    seconds, nanos = divmod(unix_ns, _BILLION)
    return _TIME.pack(1, seconds + _YEAR_1_TO_1970, nanos, 0)


def decode_time(data: bytes) -> int:
    """Unix nanoseconds of a time in Go's binary form.

    Raises ``ValueError`` with the original's text.
    """
    if not data:
        raise ValueError("Time.UnmarshalBinary: no data")
    if data[0] not in {1, 2}:
        raise ValueError("Time.UnmarshalBinary: unsupported version")
    # Version 2 has one byte more: the seconds of a zone offset. The instant does not depend on it.
    if len(data) != _TIME.size + data[0] - 1:
        raise ValueError("Time.UnmarshalBinary: invalid length")
    _, seconds, nanos, _ = _TIME.unpack_from(data)
    return int(seconds - _YEAR_1_TO_1970) * _BILLION + int(nanos)


def _put_varint(out: bytearray, field: int, value: int) -> None:
    _varint(out, field << 3 | _VARINT)
    _varint(out, value)


def _put_bytes(out: bytearray, field: int, value: bytes) -> None:
    _varint(out, field << 3 | _BYTES)
    _varint(out, len(value))
    out += value


def _varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _decode_fields(data: bytes) -> dict[int, int | bytes] | None:
    """Field number to value; the last of a repeated field wins.

    ``None`` if the bytes are no such message.
    """
    fields: dict[int, int | bytes] = {}
    at = 0
    try:
        while at < len(data):
            tag, at = _read_varint(data, at)
            number = tag >> 3
            wire_type = tag & 7
            if not number or _WIRE_TYPES.get(number, wire_type) != wire_type:
                return None
            value: int | bytes
            if wire_type == _VARINT:
                value, at = _read_varint(data, at)
            elif wire_type in {_BYTES, _FIXED64, _FIXED32}:
                size = {_FIXED64: 8, _FIXED32: 4}.get(wire_type, 0)
                if wire_type == _BYTES:
                    size, at = _read_varint(data, at)
                value = data[at : at + size]
                at += size
                if len(value) != size:
                    return None
            else:
                return None
            fields[number] = value
    except ValueError:
        return None
    return fields


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("truncated")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
    raise ValueError("varint too long")


def _int(value: int | bytes | None) -> int:
    return value if isinstance(value, int) else 0


def _bytes(value: int | bytes | None) -> bytes:
    return value if isinstance(value, bytes) else b""
