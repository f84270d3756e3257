"""What a file store's bytes say, read slowly: the second opinion of ``targets``.

Written from the statements of the scanners (``docs/compat/filestore.md``) with whole numbers that
cannot wrap and slices that cannot reach beyond the end. Messages are decoded by
``tests.oracle.godecode``. Nothing is imported from ``ftstan``.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.oracle.godecode import TABLES, UndecodableError, Value, decode, decode_known

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = struct.Struct("<II")
ENTRY = struct.Struct("<QQQII")
#: What a reader of stored messages looks at; the rest is for those on the wire.
STORED = {number: TABLES["MsgProto"][number] for number in range(1, 6)}


@dataclass(frozen=True, slots=True)
class Found:
    """A record at ``at``: ``kind`` is 0 where files have none."""

    at: int
    kind: int
    payload: bytes
    crc: int

    @property
    def end(self) -> int:
        return self.at + 8 + len(self.payload)

    @property
    def is_sound(self) -> bool:
        return zlib.crc32(self.payload) == self.crc


def record_at(data: bytes, at: int, *, typed: bool) -> Found | str:
    """The record at ``at``, or why there is none: what a scan says of that place, the checksum left
    out.
    """
    if at == len(data):
        return ""
    if len(data) - at < 8:
        return "torn"
    first, crc = HEAD.unpack_from(data, at)
    if first == crc == 0:
        return "bad: empty record" if any(data[at:]) else "zeros"
    kind, size = (first >> 24, first & 0xFFFFFF) if typed else (0, first)
    if size > len(data) - at - 8:
        return "torn"
    return Found(at, kind, data[at + 8 : at + 8 + size], crc)


def mended(data: bytes, *, typed: bool) -> bytes:
    """``data`` with the right checksum in every record from the first on: no fuzzer guesses one."""
    out = bytearray(data)
    found = record_at(data, 0, typed=typed)
    while isinstance(found, Found):
        out[found.at + 4 : found.at + 8] = zlib.crc32(found.payload).to_bytes(4, "little")
        found = record_at(data, found.end, typed=typed)
    return bytes(out)


def mended_index(index: bytes) -> bytes:
    """The same for the entries of an index."""
    pieces = []
    for at in range(0, len(index) - 31, 32):
        head = index[at : at + 28]
        pieces.append(head + zlib.crc32(head).to_bytes(4, "little"))
    return b"".join(pieces) + index[len(pieces) * 32 :]


def message(payload: bytes) -> dict[str, Value] | None:
    """The fields of a stored message; ``None`` if it does not decode."""
    try:
        return decode_known(STORED, payload)
    except UndecodableError:
        return None


def scan_typed(data: bytes, *, check_crc: bool) -> tuple[list[tuple[int, bytes]], int, str]:
    """Records of a typed file, the position behind the last good one, the first word of what is
    there.
    """
    out: list[tuple[int, bytes]] = []
    at = 0
    while True:
        found = record_at(data, at, typed=True)
        if isinstance(found, str):
            return out, at, found
        if check_crc and not found.is_sound:
            return out, at, "bad: corrupted"
        out.append((found.kind, found.payload))
        at = found.end


def scan_data(
    data: bytes, channel: bytes, after: int, *, check_crc: bool
) -> tuple[list[tuple[int, Found]], int, str]:
    """Sequences and records of ``channel`` at the start of ``data``, and as ``scan_typed``."""
    out: list[tuple[int, Found]] = []
    at = 0
    while True:
        found = record_at(data, at, typed=False)
        if isinstance(found, str):
            return out, at, found
        if check_crc and not found.is_sound:
            return out, at, "bad: corrupted"
        fields = message(found.payload)
        if fields is None:
            return out, at, "bad: message"
        if channel and fields["subject"] != channel:
            return out, at, "bad: record of"
        sequence = fields["sequence"]
        assert isinstance(sequence, int)
        if sequence <= after:
            return out, at, "bad: sequence"
        out.append((sequence, found))
        after = sequence
        at = found.end


def next_record(data: bytes, start: int, channel: bytes, after: int) -> int:
    """The first place from ``start`` on with a whole message that begins with its sequence.

    -1: none.
    """
    for at in range(start, len(data) - 9):
        found = record_at(data, at, typed=False) if data[at + 8] == 8 else ""
        if isinstance(found, str) or len(found.payload) < 2 or not found.is_sound:
            continue
        fields = message(found.payload)
        if fields and int(fields["sequence"]) > after and channel in {b"", fields["subject"]}:
            return at
    return -1


def next_typed(data: bytes, start: int, kinds: int) -> int:
    """The same for records of types from 1 on that have a payload."""
    for at in range(start, len(data) - 8):
        found = record_at(data, at, typed=True)
        if (
            isinstance(found, Found)
            and 1 <= found.kind <= kinds
            and found.payload
            and found.is_sound
        ):
            return at
    return -1


def entries(index: bytes) -> list[tuple[int, int, int, int, bool]]:
    """``(sequence, offset, timestamp, size, is_sound)`` of every whole entry."""
    whole = index[: len(index) // 32 * 32]
    return [
        (*fields[:4], zlib.crc32(whole[at * 32 : at * 32 + 28]) == fields[4])
        for at, fields in enumerate(ENTRY.iter_unpack(whole))
    ]


@dataclass(slots=True)
class Chain:
    """What the entries of an index prove."""

    taken: list[tuple[int, int, int, int, bool]] = field(default_factory=list)
    end: int = 4
    clean: bool = True

    @property
    def contiguous(self) -> bool:
        return all(b[0] == a[0] + 1 for a, b in zip(self.taken, self.taken[1:], strict=False))


def chain(index: bytes, *, check_crc: bool, end: int = 4, after: int = 0) -> Chain:
    """Entries up to the first that does not follow from those before it."""
    out = Chain(end=end, clean=len(index) % 32 == 0)
    for entry in entries(index):
        sequence, offset, _, size, is_sound = entry
        if (check_crc and not is_sound) or offset != out.end or sequence <= after:
            out.clean = False
            break
        out.taken.append(entry)
        out.end = offset + 8 + size
        after = sequence
    return out


def read_through(
    data: bytes, index: bytes, base: int, channel: bytes | None
) -> Iterator[bytes | None]:
    """The record of each entry, ``None`` where it is not what was written.

    ``data`` begins at offset ``base``.
    """
    for sequence, offset, _, size, _ in entries(index):
        at = offset - base
        payload = data[at + 8 : at + 8 + size] if at >= 0 else b""
        if (
            at < 0
            or at + 8 + size > len(data)
            or HEAD.unpack_from(data, at)[1] != zlib.crc32(payload)
        ):
            yield None
            continue
        fields = message(payload)
        good = fields and fields["sequence"] == sequence and channel in {None, fields["subject"]}
        yield payload if good else None


@dataclass(slots=True)
class Sub:
    """A subscription of a ``subs.dat``."""

    payload: bytes
    sent: int = 0
    pending: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Subs:
    """What the records of a ``subs.dat`` add up to."""

    subs: dict[int, Sub] = field(default_factory=dict)
    highest: int = 0
    records: int = 0

    def feed(self, data: bytes, *, check_crc: bool) -> tuple[int, str]:
        """Take records: the position behind the last good one, and the first words of what is
        there.
        """
        at = 0
        while True:
            found = record_at(data, at, typed=True)
            if isinstance(found, str):
                return at, found
            if check_crc and not found.is_sound:
                return at, "bad: corrupted"
            if not 1 <= found.kind <= 5:
                return at, "bad: unexpected"
            try:
                self._take(found)
            except UndecodableError:
                return at, "bad: undecodable"
            self.records += 1
            at = found.end

    def _take(self, found: Found) -> None:
        fields = decode("SubStateUpdate" if found.kind > 3 else "SubState", found.payload)
        sub_id = int(fields["id"])
        if found.kind > 3:
            sub = self.subs.get(sub_id)
            sequence = int(fields["seqno"])
            if sub is None or sequence == 0:
                return
            if found.kind == 4:
                sub.pending.discard(sequence)
            else:
                sub.pending.add(sequence)
                sub.sent = max(sub.sent, sequence)
            return
        self.highest = max(self.highest, sub_id)
        if found.kind == 3:
            self.subs.pop(sub_id, None)
            return
        known = self.subs.get(sub_id) if found.kind == 2 else None
        self.subs[sub_id] = Sub(found.payload, pending=known.pending if known else set())
