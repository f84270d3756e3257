"""What partitions tell each other: lists of channels, and answers that name a conflict.

Bytes in, bytes out.

The messages are the original's, byte for byte (``docs/compat/partitioning.md``, "The exchange"). A
member of a group adds the id of its store behind them, in a field that the original skips: two
owners of one store are the same partition, and storage decides which of them may write.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError, WireError
from ftstan.wire import messages
from ftstan.wire.patterns import PatternSet
from ftstan.wire.subjects import valid_channel

if TYPE_CHECKING:
    from collections.abc import Sequence

_LENGTH = struct.Struct("<H")
#: Room that the original leaves for the tag and the length of the list.
_LIST_HEAD = 1 + 8

CONFLICT = 'channel "{channel}" causes conflict with channels on server "{server_id}"'
TOO_SMALL = "message payload too small to send channels list"


@dataclass(frozen=True, slots=True)
class Sender:
    """Who says something. ``store_id`` is empty of whoever is not a member of a group of ours."""

    server_id: bytes
    store_id: bytes = b""

    def is_same_partition(self, other: Sender) -> bool:
        """Whether both are the same server, or owners of one store at different times."""
        return self.server_id == other.server_id or (
            self.store_id != b"" and self.store_id == other.store_id
        )


def subject(cluster_id: str) -> str:
    """Where the partitions of a cluster id tell each other their lists."""
    return f"_STAN.part.{cluster_id}"


def clients_subject(cluster_id: str) -> str:
    """Where a partition asks the others for the clients that they know.

    Originals do not listen there.
    """
    return f"_FTSTAN.part.{cluster_id}"


def encode_names(names: Sequence[bytes]) -> bytes:
    """Each name behind its length, 16 bits, lowest byte first."""
    return b"".join(_LENGTH.pack(len(name)) + name for name in names)


def decode_names(data: bytes) -> list[bytes]:
    """The names of a list. Raises ``WireError`` with the original's text if it is cut off."""
    names = []
    at = 0
    while at < len(data):
        if at + _LENGTH.size > len(data):
            raise WireError(f"unable to decode size, pos={at} len={len(data)}")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        name = data[at : at + length]
        if len(name) < length:
            text = data.decode("utf-8", "backslashreplace")
            raise WireError(
                f"unable to decode channel, pos={at} len={length} max={len(data)} (string={text})"
            )
        names.append(name)
        at += length
    return names


def requests(sender: Sender, names: Sequence[bytes], max_payload: int) -> list[bytes]:
    """A list as messages of at most ``max_payload`` bytes; each is checked and answered by itself.

    Raises ``ConfigError`` if there is a name that fits into none.
    """
    room = max_payload - len(_encode(sender, b"")) - _LIST_HEAD
    parts: list[list[bytes]] = []
    used = room
    for name in names:
        size = _LENGTH.size + len(name)
        if size > room or len(name) > 0xFFFF:
            raise ConfigError(
                f"unable to send channels list: {TOO_SMALL}",
                hint="give the NATS server a larger max_payload, or the channel a shorter name",
            )
        if used + size > room:
            parts.append([])
            used = 0
        parts[-1].append(name)
        used += size
    return [_encode(sender, encode_names(part)) for part in parts]


def reply(sender: Sender, offender: bytes | None) -> bytes:
    """The answer to one message of a list: the channel that is served by both, or nothing behind
    our name.
    """
    return _encode(sender, offender or b"")


def decode(payload: bytes) -> tuple[Sender, bytes]:
    """Who sent a request or an answer, and its data: a list, or one bare name.

    Raises ``WireError``.

    The type of the message is not looked at, as by the original.
    """
    message = messages.parse(messages.PartitionMsg, payload)
    return Sender(message.server_id, message.store_id), message.data


def offender(mine: PatternSet, theirs: Sequence[bytes]) -> bytes | None:
    """The first name that makes two lists overlap, ``None`` if they do not.

    Which name is told is the original's choice where it finds one: the first of theirs that one of
    mine matches, else the first of mine that one of theirs matches, each taken as it stands. Where
    it finds none (``foo.*`` and ``*.zed``) it is the first of theirs that has a channel in common
    with mine.
    """
    for name in theirs:
        if mine.match(name):
            return name
    other = PatternSet(name for name in theirs if valid_channel(name, literal=False))
    for name in mine:
        if other.match(name):
            return name
    return next((name for name in other if mine.intersect(name)), None)


def _encode(sender: Sender, data: bytes) -> bytes:
    return messages.encode(
        messages.PartitionMsg(
            msg_type=messages.CtrlMsg.PARTITIONING,
            server_id=sender.server_id,
            data=data,
            store_id=sender.store_id,
        )
    )
