"""Hypothesis strategies for STAN payloads: messages as programs write them, and what can go wrong
with them.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.oracle.godecode import TABLES, Value

# How hard a property is tried. No deadline: a busy machine is not a wrong answer.
few = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
many = settings(few, max_examples=200)

U64 = 2**64 - 1
_EDGES = [0, 1, 127, 128, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, U64]

numbers = st.sampled_from(_EDGES) | st.integers(0, U64)
strings = st.sampled_from([b"", b"foo", b"a.b", b"\xff\xfe"]) | st.binary(max_size=200)

_RANGES = {
    "u64": (0, U64),
    "i64": (-(2**63), 2**63 - 1),
    "u32": (0, 2**32 - 1),
    "i32": (-(2**31), 2**31 - 1),
}


def varint(value: int, pad: int = 0) -> bytes:
    """``value`` in its shortest form, or with ``pad`` needless bytes."""
    out = bytearray()
    value &= U64
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    for _ in range(pad):
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


def _value(kind: str) -> st.SearchStrategy[Value]:
    if kind == "b":
        return strings
    if kind == "bool":
        return st.booleans()
    low, high = _RANGES[kind]
    return st.sampled_from([edge for edge in _EDGES if low <= edge <= high]) | st.integers(
        low, high
    )


def fields(message: str) -> st.SearchStrategy[dict[str, Value]]:
    """Some or all fields of the message, by name."""
    return st.fixed_dictionaries(
        {}, optional={name: _value(kind) for name, kind in TABLES[message].values()}
    )


_numbers_as_sent = st.builds(varint, numbers, st.integers(0, 3)) | st.builds(
    # Ten bytes, the last of them with bits beyond the 64th; or eleven.
    lambda body, last: body + last,
    st.binary(min_size=9, max_size=9).map(lambda raw: bytes(byte | 0x80 for byte in raw)),
    st.sampled_from([b"\x00", b"\x01", b"\x02", b"\x7f", b"\x80\x00"]),
)
_bytes_as_sent = st.builds(lambda raw, pad: varint(len(raw), pad) + raw, strings, st.integers(0, 2))
_wrong_lengths = st.builds(lambda length, raw: varint(length) + raw, numbers, st.binary(max_size=8))


def _field(
    number: st.SearchStrategy[int], wire_type: int, value: st.SearchStrategy[bytes]
) -> st.SearchStrategy[bytes]:
    def build(number: int, beyond: int, pad: int, value: bytes) -> bytes:
        # Bits of a field number above the 32nd are ignored by the original.
        return varint((number + (beyond << 32)) << 3 | wire_type, pad) + value

    return st.builds(
        build,
        number,
        st.sampled_from([0, 0, 0, 0, 1, 2**28]),
        st.sampled_from([0, 0, 0, 1, 2]),
        value,
    )


def _fields_of(number: st.SearchStrategy[int]) -> st.SearchStrategy[bytes]:
    return (
        _field(number, 0, _numbers_as_sent)
        | _field(number, 1, st.binary(min_size=8, max_size=8))
        | _field(number, 2, _bytes_as_sent)
        | _field(number, 5, st.binary(min_size=4, max_size=4))
    )


_any_number = st.sampled_from(
    [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 15, 16, 100, 2**29 - 1, 2**31 - 1]
)
_illegal_number = st.sampled_from([0, 2**31, 2**32 - 1, 2**32])


def _group(inside: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.builds(
        lambda start, body, end: varint(start << 3 | 3) + body + varint(end << 3 | 4),
        _any_number,
        inside,
        _any_number,
    )


_groups = st.recursive(
    _fields_of(_any_number | _illegal_number) | st.just(b""), _group, max_leaves=4
).flatmap(lambda body: _group(st.just(body)))
_broken = (
    _field(_illegal_number, 0, _numbers_as_sent)
    | _field(_any_number, 2, _wrong_lengths)
    | st.builds(
        lambda number, wire_type: varint(number << 3 | wire_type),
        _any_number,
        st.sampled_from([3, 4, 6, 7]),
    )
    | st.binary(max_size=6)
)


@st.composite
def payloads(draw: st.DrawFn, message: str) -> bytes:
    """Bytes that claim to be ``message``: right fields in any order, duplicates, strangers, damage,
    a cut end.
    """
    table = TABLES[message]
    known = st.one_of(
        *(
            _field(
                st.just(number),
                2 if kind == "b" else 0,
                _bytes_as_sent if kind == "b" else _numbers_as_sent,
            )
            for number, (_, kind) in table.items()
        )
    )
    stranger = _fields_of(_any_number.filter(lambda number: number not in table)) | _groups
    piece = known | known | known | stranger
    pieces = draw(st.lists(piece, max_size=8))
    if draw(st.integers(0, 2)) == 0:
        pieces.insert(draw(st.integers(0, len(pieces))), draw(_broken | _fields_of(_any_number)))
    data = bytearray(b"".join(pieces))
    if data and draw(st.integers(0, 3)) == 0:
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    if draw(st.integers(0, 3)) == 0:
        del data[draw(st.integers(0, len(data))) :]
    return bytes(data)
