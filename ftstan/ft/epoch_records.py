"""The bytes of one slot of the epoch file: who took which number, checksummed, 4 KiB.

Bytes in, records out; no file. A slot is *blank* (all zero), holds a *record*, or is *torn*:
anything else, and then somebody used it. Integers are little-endian; ``docs/ft.md`` has the table.
"""

from __future__ import annotations

import datetime as dt
import enum
import struct
import zlib
from dataclasses import dataclass, replace

SLOT_SIZE = 4096
NONCE_SIZE = 16
BLANK = bytes(SLOT_SIZE)

_MAGIC = b"FTSTEPO1"
_CRC = struct.Struct("<I")
# slot, epoch, since_ns, ours_from, pid, flags, nonce, store id, server id and host with their
# lengths, cause, after, originals_through, name with its length, left_ns, left
_BODY = struct.Struct("<QQqQQI16s16sH128sH256sBQQH64sqB")
_HEAD_SIZE = len(_MAGIC) + _CRC.size
_MAX_SERVER_ID = 128
_MAX_HOST = 256
_MAX_NAME = 64
_MIXED = 1


class Cause(enum.IntEnum):
    """Why an epoch was taken.

    Numbers are part of the format; one that we do not know reads as ``UNKNOWN``.
    """

    UNKNOWN = 0
    FIRST_START = 1
    STANDALONE_START = 2
    SILENCE = 3
    LOCK_FREE = 4
    RELEASED = 5
    SWITCHOVER = 6
    STOLEN = 7
    RAISED = 8
    MIXED_SWITCHED = 9
    TOOL = 10

    @classmethod
    def _missing_(cls, value: object) -> Cause:
        del value
        return cls.UNKNOWN

    def describe(self, after: int = 0) -> str:
        """For people. ``after``: the epoch that released, handed over or fell silent.

        0 if none is known.
        """
        return _CAUSE_TEXTS[self] + (f" (epoch {after})" if after else "")


class Ending(enum.IntEnum):
    """How an owner ended, as it said itself.

    Numbers are part of the formats of ``ft.epoch`` and ``ft.watch``; one that we do not know reads
    as ``UNSAID``: it died, or nothing is known.
    """

    UNSAID = 0
    SIGTERM = 1
    SIGINT = 2
    SWITCHOVER = 3
    DRAIN = 4
    BY_ITSELF = 5

    @classmethod
    def _missing_(cls, value: object) -> Ending:
        del value
        return cls.UNSAID

    def describe(self) -> str:
        """For people; empty if nothing was said."""
        return _ENDING_TEXTS[self]


_ENDING_TEXTS = {
    Ending.UNSAID: "",
    Ending.SIGTERM: "stopped (SIGTERM)",
    Ending.SIGINT: "stopped (SIGINT)",
    Ending.SWITCHOVER: "switchover",
    Ending.DRAIN: "stopped (drain)",
    Ending.BY_ITSELF: "stopped by itself",
}


@dataclass(frozen=True, slots=True)
class Departure:
    """The last sign of life of the owner of ``epoch`` (Unix nanoseconds), and how it ended."""

    epoch: int
    at_ns: int
    how: Ending = Ending.UNSAID


_CAUSE_TEXTS = {
    Cause.UNKNOWN: "unknown",
    Cause.FIRST_START: "first start",
    Cause.STANDALONE_START: "standalone start",
    Cause.SILENCE: "the active was silent",
    Cause.LOCK_FREE: "ended without notice",
    Cause.RELEASED: "released by its owner",
    Cause.SWITCHOVER: "switchover",
    Cause.STOLEN: "stolen from an owner that hung",
    Cause.RAISED: "slice numbers were used up",
    Cause.MIXED_SWITCHED: "mixed group switched",
    Cause.TOOL: "a tool changed the store",
}


#: The name in records of tools, which own a store for a moment and serve nobody.
TOOL_NAME = "ftstanctl"

#: What a successor noticed of an end: what the owner itself said of it is the better answer.
_NOTICED = frozenset({Cause.SILENCE, Cause.LOCK_FREE, Cause.RELEASED})


def why_taken(cause: Cause, after: int, left: Ending) -> str:
    """Why an epoch was taken, for people; ``left``: how the owner before it said that it ends."""
    if left and cause in _NOTICED:
        return left.describe() + (f" (epoch {after})" if after else "")
    return cause.describe(after)


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One activation, as written into slot ``slot``.

    ``epoch`` is the number of the activation that wrote it: equal to ``slot`` in its own slot,
    higher in the blank slots that it filled. ``nonce`` and ``store_id`` are 16 bytes. ``since_ns``
    is the activation time (Unix nanoseconds). ``ours_from`` is the first slice number of the
    store's first ftstan activation. ``ft_mixed`` says that original servers may be members of the
    group. ``cause`` says why the epoch was taken, ``after`` which epoch released, handed over or
    fell silent (0: none is known); records written before there was a cause have neither.
    ``originals_through`` is the last epoch behind which an original server may have served before
    this record, 0 if none has since our first. ``name`` is the member's (``ft_member``).
    ``left_ns`` and ``left`` are the last sign of life of the owner directly before, 0 if it left
    none, and how it said that it ends. These three are for people; earlier records
    have zeros there.
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
    cause: Cause = Cause.UNKNOWN
    after: int = 0
    originals_through: int = 0
    name: str = ""
    left_ns: int = 0
    left: Ending = Ending.UNSAID

    @property
    def is_filler(self) -> bool:
        """Whether the slot was filled by the taker of a higher number."""
        return self.slot != self.epoch

    def filling(self, slot: int) -> EpochRecord:
        """Make the same activation's record for the blank slot ``slot`` below its own."""
        return replace(self, slot=slot)

    def describe(self) -> str:
        """The activation in words: number, server, host, process, start."""
        since = dt.datetime.fromtimestamp(self.since_ns // 1_000_000_000, tz=dt.UTC)
        return (
            f"epoch {self.epoch} of server {self.name or self.server_id} on host {self.host} "
            f"pid {self.pid} since {since:%Y-%m-%dT%H:%M:%SZ}"
        )


def encode_slot(record: EpochRecord) -> bytes:
    """Build the 4,096 bytes of the slot."""
    server_id = record.server_id.encode()[:_MAX_SERVER_ID]
    host = record.host.encode()[:_MAX_HOST]
    name = record.name.encode("utf-8", "replace")[:_MAX_NAME]
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
        record.cause,
        record.after,
        record.originals_through,
        len(name),
        name,
        record.left_ns,
        record.left,
    ).ljust(SLOT_SIZE - _HEAD_SIZE, b"\0")
    return _MAGIC + _CRC.pack(zlib.crc32(body)) + body


def decode_slot(data: bytes, slot: int) -> EpochRecord | None:
    """Read the record in slot number ``slot``.

    ``None`` if the slot is torn (or blank: ask ``is_blank`` first).
    """
    if len(data) != SLOT_SIZE or not data.startswith(_MAGIC):
        return None
    (crc,) = _CRC.unpack_from(data, len(_MAGIC))
    if crc != zlib.crc32(data[_HEAD_SIZE:]):
        return None
    named, epoch, since_ns, ours_from, pid, flags, nonce, store_id, *rest = _BODY.unpack_from(
        data, _HEAD_SIZE
    )
    server_len, server_id, host_len, host, cause, after, originals_through, *people = rest
    name_len, name, left_ns, left = people
    # A record in another's slot was put there by a copy or a restore: it proves nothing about this
    # one.
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
        cause=Cause(cause),
        after=after,
        originals_through=originals_through,
        name=name[:name_len].decode("utf-8", "replace"),
        left_ns=left_ns,
        left=Ending(left),
    )


def is_blank(data: bytes) -> bool:
    """Whether nobody used the slot.

    A slot cut short by the end of the file counts as its bytes say.
    """
    return not any(data) if len(data) < SLOT_SIZE else data == BLANK
