"""The messages of a planned hand-over, in which no publish goes without an answer (``docs/ft.md``,
planned hand-over).

On the group's own subject, in this order:

1. ``Leaving``: the owner wants to go, and where publishes arrive. From before this message on it
   notes every publish that it takes.
2. ``Subscribed``: a standby listens for publishes, too, and keeps what arrives.
3. ``Took``: the owner has stopped listening, has answered everything that it took and confirmed it,
   and names those publishes and its successor. In parts, because the list can be long.
4. ``Released`` (``ft/subjects.py``): the store is unlocked.
5. ``Following``, again and again from 3 on: the successor is on its way.

The successor stores what it kept and what nobody named. Without a whole ``Took`` it stores nothing
of that: the publishers' ack timeout rules, as after a crash. Nothing here can hurt the promise of
the store; it only decides which unanswered publishes are answered by whom.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ftstan.ft.subjects import STORE_ID_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Bytes of publish keys in one ``Took`` at most, and of all else in it: NATS may carry less than it
#: does by default.
PART_BYTES: Final = 512 << 10
_ELSE_BYTES: Final = 4 << 10
#: Bytes of each half of a key: its length is written in two.
LONGEST_KEY: Final = 0xFFFF
_LENGTHS: Final = 4
_MAX_SIZE: Final = 1 << 20
_MAX_EPOCH: Final = 1 << 63
_MAX_NAME: Final = 64
_MAX_PARTS: Final = 1 << 12
#: Bytes of publish keys, of all parts together, that a successor keeps at most: as many as of
#: publishes. An owner that took more is not heard to the end, as if a part were lost.
MOST_BYTES: Final = 64 << 20


#: A publish as ``Core.taken`` names it: connection id (or client id), a zero byte, guid; and its
#: channel, for a guid may be used in several. Owners of older releases name no channel: it is empty
#: then, and stands for any.
PublishKey = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Leaving:
    """The owner of ``epoch`` looks for a successor: ``to`` (a server id), or anybody if that is
    empty.

    ``publishes`` is the subject on which publishes arrive. ``switchover``: because an operator
    asked for it.
    """

    server_id: str
    epoch: int
    store_id: bytes
    publishes: str
    to: str = ""
    switchover: bool = False
    search: int = 1
    """Which of this owner's searches: answers to an earlier one, which found nobody, must not
    count.
    """


@dataclass(frozen=True, slots=True)
class Subscribed:
    """``server_id`` keeps what is published from now on, for the case that it succeeds the owner of
    ``epoch``.
    """

    server_id: str
    epoch: int
    store_id: bytes
    search: int = 1
    name: str = ""
    """The member's name, for the owner's log; releases that have none do not say it."""


@dataclass(frozen=True, slots=True)
class Took:
    """Part ``part`` of ``parts`` of the publishes that the owner of ``epoch`` took since its
    ``Leaving``.

    A publish that came several times under one guid is named as often: each copy that the successor
    kept is left out once.
    """

    server_id: str
    epoch: int
    store_id: bytes
    successor: str
    part: int
    parts: int
    keys: tuple[PublishKey, ...]
    search: int = 1


@dataclass(frozen=True, slots=True)
class Following:
    """``server_id`` was named by the owner of ``epoch``, and has not taken the store yet.

    For members that have started since: they did not hear who was named.
    """

    server_id: str
    epoch: int
    store_id: bytes
    search: int = 1


Message = Leaving | Subscribed | Took | Following


def part_bytes(max_payload: int) -> int:
    """Bytes of publish keys that one ``Took`` may have where NATS carries messages of
    ``max_payload`` bytes.
    """
    return min(PART_BYTES, max(max_payload - _ELSE_BYTES, 0) // 4 * 3)


def split_keys(keys: Sequence[PublishKey], most: int = PART_BYTES) -> list[list[PublishKey]]:
    """Divide ``keys`` into parts of ``most`` bytes; at least one part, which may be empty."""
    parts: list[list[PublishKey]] = [[]]
    size = 0
    for key in keys:
        size += _size(key) + _LENGTHS
        if size > most and parts[-1]:
            parts.append([])
            size = _size(key) + _LENGTHS
        parts[-1].append(key)
    return parts


def _size(key: PublishKey) -> int:
    return len(key[0]) + len(key[1])


def encode(message: Message) -> bytes:
    """Build the payload for the group's own subject."""
    fields: dict[str, Any] = {
        "type": type(message).__name__.lower(),
        "server": message.server_id,
        "epoch": message.epoch,
        "store": message.store_id.hex(),
        "search": message.search,
    }
    match message:
        case Subscribed() if message.name:
            fields["name"] = message.name
        case Leaving():
            fields |= {
                "publishes": message.publishes,
                "to": message.to,
                "switchover": message.switchover,
            }
        case Took():
            fields |= {
                "successor": message.successor,
                "part": message.part,
                "parts": message.parts,
                "keys": _packed(key for key, _ in message.keys),
                # Beside the keys: older releases know them alone.
                "channels": _packed(channel for _, channel in message.keys),
            }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode(payload: bytes) -> Message | None:
    """Read the message in ``payload``, or ``None`` if it is anything else.

    Keys that we do not know are ignored.
    """
    if len(payload) > _MAX_SIZE:
        return None
    try:
        fields = json.loads(payload)
        return _message(fields) if isinstance(fields, dict) else None
    except (ValueError, TypeError, KeyError, RecursionError, binascii.Error):
        return None


def _message(fields: dict[str, Any]) -> Message | None:
    server_id = _text(fields["server"])
    epoch = _number(fields["epoch"], _MAX_EPOCH)
    store_id = bytes.fromhex(fields["store"])
    search = _number(fields.get("search", 1), _MAX_EPOCH)
    if len(store_id) != STORE_ID_SIZE or not server_id or not server_id.isprintable():
        return None
    match fields["type"]:
        case "leaving":
            publishes = _text(fields["publishes"])
            if not publishes or not publishes.isprintable() or " " in publishes:
                return None
            asked = fields.get("switchover") is True
            return Leaving(
                server_id, epoch, store_id, publishes, _text(fields.get("to", "")), asked, search
            )
        case "subscribed":
            name = _text(fields.get("name", ""))
            name = name if name.isprintable() and len(name) <= _MAX_NAME else ""
            return Subscribed(server_id, epoch, store_id, search, name)
        case "following":
            return Following(server_id, epoch, store_id, search)
        case "took":
            parts = _number(fields["parts"], _MAX_PARTS)
            part = _number(fields["part"] + 1, parts + 1) - 1
            keys = _unpack(fields["keys"])
            channels = _unpack(fields["channels"]) if "channels" in fields else [b""] * len(keys)
            named = tuple(zip(keys, channels, strict=True))
            return Took(
                server_id, epoch, store_id, _text(fields["successor"]), part, parts, named, search
            )
    return None


def _packed(texts: Iterable[bytes]) -> str:
    return base64.b64encode(
        b"".join(len(text).to_bytes(2, "little") + text for text in texts)
    ).decode()


def _unpack(field: str) -> list[bytes]:
    packed = base64.b64decode(field, validate=True)
    texts = []
    at = 0
    while at < len(packed):
        end = at + 2 + int.from_bytes(packed[at : at + 2], "little")
        if end > len(packed):
            raise ValueError("a key is cut short")
        texts.append(packed[at + 2 : end])
        at = end
    return texts


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _number(value: object, below: int) -> int:
    """Check a positive number. bool is an int in Python, but not a number here."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < below:
        raise ValueError("not a number in range")
    return value


class TakenElsewhere:
    """The parts of one owner's ``Took`` that a successor has received so far."""

    def __init__(self, leaving: Leaving) -> None:
        self.leaving = leaving
        self.successor = ""
        self.heard_original = False
        """Whether an original server has said since that it is active."""
        self._parts: dict[int, tuple[PublishKey, ...]] = {}
        self._count = 0
        self._size = 0

    def add(self, took: Took) -> None:
        """Note a part. Ignored are parts of another owner or another store, what comes when all is
        there, and what would be more than ``MOST_BYTES``.
        """
        ours = self.leaving
        if (took.server_id, took.epoch, took.store_id) != (
            ours.server_id,
            ours.epoch,
            ours.store_id,
        ):
            return
        if took.search != ours.search:
            return
        # Whom the owner names is heard to the end: of two successors neither may use anything.
        self.successor = took.successor
        size = sum(map(_size, took.keys)) - sum(map(_size, self._parts.get(took.part, ())))
        if self.is_whole or self._size + size > MOST_BYTES:
            return
        self._size += size
        self._count = took.parts
        self._parts[took.part] = took.keys

    @property
    def is_whole(self) -> bool:
        """Whether every part has come."""
        return self._count > 0 and len(self._parts) == self._count

    def counts(self) -> dict[PublishKey, int]:
        """Every publish that the owner took, and how often it came."""
        return dict(Counter(key for part in self._parts.values() for key in part))
