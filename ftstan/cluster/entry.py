"""What stands in the log: entries, and the operations in them. Pure bytes, no sockets or files.

Every entry names the log that it belongs to (its *incarnation*), its own position, the epoch of the
leader that wrote it, and the check value of everything before it (the *running CRC*). So a reader
needs nothing but the entries to see that one is missing, that the log was cut and went on, or that
it is another log. A batch of operations that is larger than an entry may be goes on in the next
ones (``MORE``) and counts only when its last piece is there.

::

    version 1 | kind 1 | flags 2 | incarnation 16 | position 8 | epoch 8 | CRC before 4 | body

Numbers are big-endian. The running CRC behind an entry is the CRC-32 of its bytes, begun with the
one before.
"""

from __future__ import annotations

import enum
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import DamageError
from ftstan.stores.interface import ClientInfo, ServerInfo, StoredAt, SubState
from ftstan.wire.block import MsgBlock, SubEvents, unpack_block, unpack_events

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

VERSION: Final = 1
_HEAD: Final = struct.Struct(">BBH16sQQI")
HEAD_SIZE: Final = _HEAD.size
INCARNATION_SIZE: Final = 16
NONCE_SIZE: Final = 16
_MORE: Final = 1
_LEADER: Final = struct.Struct(">16sQQ")
_LENGTH: Final = struct.Struct(">I")
_SUB: Final = struct.Struct(">QqqQ??")
_CLIENT: Final = struct.Struct(">qqq")
_STORED: Final = struct.Struct(">QQ")
_NUMBER: Final = struct.Struct(">Q")


class Kind(enum.IntEnum):
    """What an entry is."""

    LEADER = 1
    BATCH = 2


@dataclass(frozen=True, slots=True)
class Position:
    """How far a log was read.

    ``sequence``: of the last entry (0: none). ``crc``: the running CRC behind it. ``epoch`` and
    ``leader``: of the last leader record.
    """

    incarnation: bytes
    sequence: int = 0
    crc: int = 0
    epoch: int = 0
    leader: str = ""


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """The body of an entry that makes a leader: who, and behind what."""

    node: str
    nonce: bytes
    previous_epoch: int
    previous: int

    def encode(self) -> bytes:
        """As bytes."""
        head = _LEADER.pack(self.nonce, self.previous_epoch, self.previous)
        return head + self.node.encode()

    @classmethod
    def decode(cls, body: bytes) -> LeaderRecord:
        """From bytes. Raises ``DamageError``."""
        try:
            nonce, epoch, previous = _LEADER.unpack_from(body)
            return cls(body[_LEADER.size :].decode(), nonce, epoch, previous)
        except (struct.error, UnicodeDecodeError) as error:
            raise DamageError("the log has a leader record that cannot be read") from error


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry, read or about to be appended. ``position`` is its sequence in the stream."""

    kind: Kind
    incarnation: bytes
    position: int
    epoch: int
    crc_before: int
    body: bytes
    more: bool = False

    def encode(self) -> bytes:
        """As bytes."""
        flags = _MORE if self.more else 0
        return (
            _HEAD.pack(
                *(VERSION, self.kind, flags, self.incarnation),
                *(self.position, self.epoch, self.crc_before),
            )
            + self.body
        )


def crc_after(before: int, data: bytes) -> int:
    """The running CRC behind an entry."""
    return zlib.crc32(data, before)


def follow(data: bytes, sequence: int, at: Position) -> tuple[Entry, Position]:
    """Read the entry that the stream has under ``sequence``, next behind ``at``.

    Raises ``DamageError`` if it is anything but the next entry of the same log.
    """
    where = f"entry {sequence} of the log"
    if sequence != at.sequence + 1:
        raise DamageError(f"{where} follows entry {at.sequence}: entries are missing")
    if len(data) < HEAD_SIZE:
        raise DamageError(f"{where} is cut short")
    version, kind, flags, incarnation, position, epoch, crc = _HEAD.unpack_from(data)
    if version != VERSION:
        raise DamageError(
            f"{where} has version {version}, and this server reads {VERSION}",
            hint="start a release on this node that is as new as the others",
        )
    if incarnation != at.incarnation:
        raise DamageError(f"{where} belongs to another log: the stream was deleted and made again")
    if position != sequence:
        raise DamageError(f"{where} was written as entry {position}")
    if crc != at.crc:
        raise DamageError(
            f"{where} follows other entries than those that this node has read: the log lost "
            "entries that were acknowledged, or was edited"
        )
    if kind not in (Kind.LEADER, Kind.BATCH):
        raise DamageError(f"{where} is of a kind that this server does not know: {kind}")
    entry = Entry(
        Kind(kind), incarnation, position, epoch, crc, data[HEAD_SIZE:], bool(flags & _MORE)
    )
    after = crc_after(crc, data)
    if entry.kind is Kind.LEADER:
        record = LeaderRecord.decode(entry.body)
        if record.previous_epoch != at.epoch or record.previous != at.sequence:
            raise DamageError(f"{where} makes a leader behind another epoch than the log has")
        return entry, Position(incarnation, sequence, after, sequence, record.node)
    if epoch != at.epoch:
        raise DamageError(f"{where} is of epoch {epoch}, and the leader's is {at.epoch}")
    return entry, Position(incarnation, sequence, after, at.epoch, at.leader)


# ---- operations
# --------------------------------------------------------------------------------------------------


class Op(enum.IntEnum):
    """What happens to the stores, in the order in which the leader did it."""

    PUBLISH = 1
    KEEP = 2
    SUB_NEW = 3
    SUB_UPDATE = 4
    SUB_DELETE = 5
    EVENTS = 6
    CLIENT_NEW = 7
    CLIENT_DELETE = 8
    CHANNEL_DELETE = 9
    PURGE = 10
    SERVER_INFO = 11
    REMEMBER = 12
    NODE = 13
    """A node was added to the cluster (1), or removed from it (0)."""


#: Keys of ``REMEMBER``: digests that are new, and how many are kept.
Remembered = tuple[dict[bytes, StoredAt], int]
#: What an operation carries beside the name (a channel's or a client's).
Argument = MsgBlock | SubEvents | SubState | ClientInfo | ServerInfo | Remembered | int | None


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. ``name``: the channel's, the client's, or the node's."""

    op: Op
    name: bytes = b""
    argument: Argument = None


def encode_operations(operations: Iterable[Operation]) -> bytes:
    """All of them as bytes."""
    parts: list[bytes] = []
    for operation in operations:
        body = _encode_argument(operation.argument)
        parts += (
            bytes((operation.op,)),
            _LENGTH.pack(len(operation.name)),
            operation.name,
            _LENGTH.pack(len(body)),
            body,
        )
    return b"".join(parts)


def decode_operations(data: bytes) -> list[Operation]:
    """The operations. Raises ``DamageError``."""
    found = []
    at = 0
    try:
        while at < len(data):
            op = Op(data[at])
            name, at = _bytes_at(data, at + 1)
            body, at = _bytes_at(data, at)
            found.append(Operation(op, name, _decode_argument(op, body)))
    except (struct.error, ValueError, UnicodeDecodeError) as error:
        raise DamageError(f"the log has an operation that cannot be read: {error}") from error
    return found


def _bytes_at(data: bytes, at: int) -> tuple[bytes, int]:
    (size,) = _LENGTH.unpack_from(data, at)
    end = at + _LENGTH.size + size
    if end > len(data):
        raise ValueError("it ends too early")
    return data[at + _LENGTH.size : end], end


def _joined(parts: Sequence[bytes]) -> bytes:
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def _split(data: bytes, count: int) -> tuple[list[bytes], int]:
    parts = []
    at = 0
    for _ in range(count):
        part, at = _bytes_at(data, at)
        parts.append(part)
    return parts, at


def _encode_argument(argument: Argument) -> bytes:
    match argument:
        case MsgBlock() | SubEvents():
            return argument.pack()
        case SubState():
            s = argument
            numbers = _SUB.pack(
                *(s.sub_id, s.max_in_flight, s.ack_wait_secs, s.last_sent),
                *(s.is_durable, s.is_closed),
            )
            return _joined((s.client_id, s.queue, s.inbox, s.ack_inbox, s.durable_name)) + numbers
        case ClientInfo():
            c = argument
            numbers = _CLIENT.pack(c.protocol, c.ping_interval, c.ping_max_out)
            return _joined((c.client_id, c.hb_inbox, c.conn_id)) + numbers
        case ServerInfo():
            words = _joined([word.encode() for word in _words(argument)])
            return words + bytes((argument.encrypted,))
        case int():
            return _NUMBER.pack(argument)
        case tuple():
            fresh, size = argument
            rows = [_joined((key,)) + _STORED.pack(*at) for key, at in fresh.items()]
            return _NUMBER.pack(size) + b"".join(rows)
    return b""


def _words(info: ServerInfo) -> tuple[str, ...]:
    return (
        *(info.cluster_id, info.discovery, info.publish, info.subscribe, info.unsubscribe),
        *(info.close, info.sub_close, info.acks_subs),
    )


def _decode_argument(op: Op, body: bytes) -> Argument:
    match op:
        case Op.PUBLISH:
            return unpack_block(body)
        case Op.EVENTS:
            return unpack_events(body)
        case Op.SUB_NEW | Op.SUB_UPDATE:
            (client, queue, inbox, acks, durable), at = _split(body, 5)
            sub_id, most, wait, last, is_durable, is_closed = _SUB.unpack_from(body, at)
            return SubState(
                *(sub_id, client, queue, inbox, acks, most, wait, durable, last),
                is_durable=is_durable,
                is_closed=is_closed,
            )
        case Op.CLIENT_NEW:
            (client, inbox, connection), at = _split(body, 3)
            return ClientInfo(client, inbox, connection, *_CLIENT.unpack_from(body, at))
        case Op.SERVER_INFO:
            words, at = _split(body, 8)
            # Earlier releases did not say it.
            encrypted = body[at : at + 1] == b"\x01"
            return ServerInfo(*(word.decode() for word in words), encrypted=encrypted)
        case Op.SUB_DELETE | Op.PURGE | Op.NODE:
            number: int = _NUMBER.unpack(body)[0]
            return number
        case Op.REMEMBER:
            return _decode_remembered(body)
    return None


def _decode_remembered(body: bytes) -> Remembered:
    (size,) = _NUMBER.unpack_from(body)
    at = _NUMBER.size
    fresh = {}
    while at < len(body):
        key, at = _bytes_at(body, at)
        fresh[key] = StoredAt(*_STORED.unpack_from(body, at))
        at += _STORED.size
    return fresh, size
