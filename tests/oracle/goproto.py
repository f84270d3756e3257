"""A protobuf reader with the rules of the original's generated decoders
(``docs/compat/filestore.md`` §2.5).

Any field order, the last duplicate wins, unknown fields are skipped, strings are bytes, a known
field with another wire type is an error. It reads flat messages only and never encodes.
"""

from __future__ import annotations

#: Field number -> (name in error texts, kind: ``bytes``, ``bool``, ``int32``, ``int64``, ``uint32``
#: or ``uint64``).
Fields = dict[int, tuple[str, str]]

_SIGNED = {"int32": 32, "int64": 64}
_UNSIGNED = {"uint32": 32, "uint64": 64, "bool": 64}


class ProtoError(Exception):
    """The payload does not decode; the text is what the original's decoder says."""


class Values:
    """Decoded fields; absent ones read as zero or empty."""

    def __init__(self) -> None:
        self.ints: dict[int, int] = {}
        self.blobs: dict[int, bytes] = {}

    def num(self, number: int) -> int:
        return self.ints.get(number, 0)

    def blob(self, number: int) -> bytes:
        return self.blobs.get(number, b"")


def decode(data: bytes, fields: Fields) -> Values:
    """Fields of ``data``; raises ``ProtoError``."""
    values = Values()
    at = 0
    end = len(data)
    while at < end:
        tag = data[at]
        if tag < 0x80:
            at += 1
        else:
            tag, at = _varint(data, at)
        number = tag >> 3
        wire = tag & 7
        if number == 0 or wire == 4:
            raise ProtoError(f"proto: illegal tag {number} (wire type {wire})")
        known = fields.get(number)
        if known is None:
            at = _skip(data, at, wire)
            continue
        name, kind = known
        if wire != (2 if kind == "bytes" else 0):
            raise ProtoError(f"proto: wrong wireType = {wire} for field {name}")
        if kind == "bytes":
            start, at = _chunk(data, at)
            values.blobs[number] = data[start:at]
        else:
            raw, at = _varint(data, at)
            values.ints[number] = _fit(raw, kind)
    return values


def _fit(raw: int, kind: str) -> int:
    if 0 <= raw < 1 << 31:
        return raw
    if kind in _UNSIGNED:
        return raw & ((1 << _UNSIGNED[kind]) - 1)
    bits = _SIGNED[kind]
    raw &= (1 << bits) - 1
    return raw - (1 << bits) if raw >> (bits - 1) else raw


def _varint(data: bytes, at: int) -> tuple[int, int]:
    if at < len(data) and data[at] < 0x80:
        return data[at], at + 1
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ProtoError("unexpected EOF")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), at
    raise ProtoError("proto: integer overflow")


def _chunk(data: bytes, at: int) -> tuple[int, int]:
    length, at = _varint(data, at)
    if at + length > len(data):
        raise ProtoError("unexpected EOF")
    return at, at + length


def _skip(data: bytes, at: int, wire: int) -> int:
    if wire == 0:
        return _varint(data, at)[1]
    if wire == 2:
        return _chunk(data, at)[1]
    if wire in {1, 5}:
        end = at + (8 if wire == 1 else 4)
        if end > len(data):
            raise ProtoError("unexpected EOF")
        return end
    raise ProtoError(f"proto: illegal wireType {wire}")
