"""The bytes of one slot of the epoch file: who took which number, checksummed, 4 KiB.

Bytes in, records out; no file. A slot is *blank* (all zero), holds a *record*, or is *torn*: anything else, and then
somebody used it. Integers are little-endian; ``docs/ft.md`` has the table.
"""

from __future__ import annotations

import datetime as dt
import struct
import zlib
from dataclasses import dataclass, replace

SLOT_SIZE = 4096
NONCE_SIZE = 16
BLANK = bytes(SLOT_SIZE)

_MAGIC = b"FTSTEPO1"
_CRC = struct.Struct("<I")
# slot, epoch, since_ns, ours_from, pid, flags, nonce, store id, server id and host with their lengths
_BODY = struct.Struct("<QQqQQI16s16sH128sH256s")
_HEAD_SIZE = len(_MAGIC) + _CRC.size
_MAX_SERVER_ID, _MAX_HOST = 128, 256
_MIXED = 1


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One activation, as written into slot ``slot``.

    ``epoch`` is the number of the activation that wrote it: equal to ``slot`` in its own slot, higher in the blank
    slots that it filled. ``nonce`` and ``store_id`` are 16 bytes. ``since_ns`` is the activation time (Unix
    nanoseconds). ``ours_from`` is the first slice number of the store's first ftstan activation. ``ft_mixed`` says
    that original servers may be members of the group.
    """

    slot: int
    epoch: int
    server_id: str
    nonce: bytes
    store_id: bytes
    host: str
    pid: int
    since_ns: int
    ours_from: int
    ft_mixed: bool

    @property
    def is_filler(self) -> bool:
        """Whether the slot was filled by the taker of a higher number."""
        return self.slot != self.epoch

    def filling(self, slot: int) -> EpochRecord:
        """Make the same activation's record for the blank slot ``slot`` below its own."""
        return replace(self, slot=slot)

    def describe(self) -> str:
        """For messages: which activation, of whom, where, since when."""
        since = dt.datetime.fromtimestamp(self.since_ns // 1_000_000_000, tz=dt.UTC)
        return (
            f"epoch {self.epoch} of server {self.server_id} on host {self.host} pid {self.pid} "
            f"since {since:%Y-%m-%dT%H:%M:%SZ}"
        )


def encode_slot(record: EpochRecord) -> bytes:
    """Build the 4,096 bytes of the slot."""
    server_id = record.server_id.encode()[:_MAX_SERVER_ID]
    host = record.host.encode()[:_MAX_HOST]
    body = _BODY.pack(
        record.slot,
        record.epoch,
        record.since_ns,
        record.ours_from,
        record.pid,
        _MIXED if record.ft_mixed else 0,
        record.nonce,
        record.store_id,
        len(server_id),
        server_id,
        len(host),
        host,
    ).ljust(SLOT_SIZE - _HEAD_SIZE, b"\0")
    return _MAGIC + _CRC.pack(zlib.crc32(body)) + body


def decode_slot(data: bytes, slot: int) -> EpochRecord | None:
    """Read the record in slot number ``slot``; ``None`` if the slot is torn (or blank: ask ``is_blank`` first)."""
    if len(data) != SLOT_SIZE or not data.startswith(_MAGIC):
        return None
    (crc,) = _CRC.unpack_from(data, len(_MAGIC))
    if crc != zlib.crc32(data[_HEAD_SIZE:]):
        return None
    named, epoch, since_ns, ours_from, pid, flags, nonce, store_id, server_len, server_id, host_len, host = (
        _BODY.unpack_from(data, _HEAD_SIZE)
    )
    # A record in another's slot was put there by a copy or a restore: it proves nothing about this one.
    if named != slot or epoch < slot:
        return None
    return EpochRecord(
        slot=slot,
        epoch=epoch,
        server_id=server_id[:server_len].decode("utf-8", "replace"),
        nonce=nonce,
        store_id=store_id,
        host=host[:host_len].decode("utf-8", "replace"),
        pid=pid,
        since_ns=since_ns,
        ours_from=ours_from,
        ft_mixed=bool(flags & _MIXED),
    )


def is_blank(data: bytes) -> bool:
    """Whether nobody used the slot. A slot cut short by the end of the file counts as its bytes say."""
    return not any(data) if len(data) < SLOT_SIZE else data == BLANK
