"""The digest: an owner's hints, of where its channels end, so that standbys can read ahead, and of
who is a member.

On the group's own subject, as JSON, in as many messages as it takes. Nothing that matters is
decided by it: a standby reads what it names into the page cache (``ft/warm.py``), and forgets all
of it when it takes over. What does not decode is no digest; names that could leave the datastore's
directory are none of a channel.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from ftstan.base.states import READY_PHASES, NodeState
from ftstan.ft.subjects import read_owners_word
from ftstan.stores.interface import ChannelEnd
from ftstan.wire.subjects import valid_channel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Channels in one message: with the longest names it stays below the smallest payload limit that
#: servers use.
PART_ROWS: Final = 512
_MAX_SIZE: Final = 1 << 20
_MAX_NAME: Final = 255
_MAX_NUMBER: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class Digest:
    """Where some channels of the store ``store_id`` end, as the owner of ``epoch`` knows."""

    server_id: str
    epoch: int
    store_id: bytes
    ends: tuple[ChannelEnd, ...]


def encode_digest(
    server_id: str, epoch: int, store_id: bytes, ends: Sequence[ChannelEnd]
) -> Iterator[bytes]:
    """Build the payloads for ``group_subject``; none if there is nothing to say."""
    for start in range(0, len(ends), PART_ROWS):
        rows = [
            (os.fsdecode(e.name), e.last, e.slice_number, e.index_end)
            for e in ends[start : start + PART_ROWS]
        ]
        fields = {
            "type": "digest",
            "server": server_id,
            "epoch": epoch,
            "store": store_id.hex(),
            "ends": rows,
        }
        yield json.dumps(fields, separators=(",", ":")).encode()


def decode_digest(payload: bytes) -> Digest | None:
    """Read the message in ``payload``, or ``None`` if it is anything else.

    Rows that cannot be are left out.
    """
    said = read_owners_word(payload, "digest", _MAX_SIZE)
    if said is None:
        return None
    fields, owner = said
    rows = fields.get("ends")
    if not isinstance(rows, list):
        return None
    ends = (end for row in rows[:PART_ROWS] if (end := _end(row)) is not None)
    return Digest(*owner, tuple(ends))


#: Members that are told of, and letters in what is told of each.
MOST_MEMBERS: Final = 64
_MAX_TEXT: Final = 300
_TEXTS: Final = ("server", "host", "monitor", "state", "phase")
#: Texts that a member may leave out, too.
_SAID: Final = (*_TEXTS, "version", "name")


@dataclass(frozen=True, slots=True)
class Member:
    """One member as the owner knows it.

    ``monitor`` is the URL of its pages, empty if it has none. ``lag_messages``, ``lag_s``: how far
    a standby that reads ahead is behind, -1 for any other. ``silent_s``: for how long it has not
    answered its owner; 0 if it did just now. ``name`` is the member's, empty from releases without
    names.
    """

    server: str
    host: str
    monitor: str
    state: str
    phase: str
    version: str = ""
    lag_messages: int = -1
    lag_s: float = -1.0
    silent_s: float = 0.0
    name: str = ""

    @property
    def called(self) -> str:
        """The member's name as people see it."""
        return self.name or f"{self.server} on {self.host}"

    @property
    def serving(self) -> bool:
        """Whether it answers clients: who says it is active does."""
        return self.state == NodeState.ACTIVE

    @property
    def owns_store(self) -> bool:
        """Whether it is the one that serves its group."""
        return self.serving

    @property
    def can_take_over(self) -> bool:
        """Whether it is a standby that nothing holds back."""
        return self.state == NodeState.STANDBY and self.phase in READY_PHASES

    @property
    def store_id(self) -> str:
        """Not told: a member of another datastore is none of these."""
        return ""


@dataclass(frozen=True, slots=True)
class Members:
    """The members of the group of the store ``store_id``, as the owner of ``epoch`` knows.

    Itself is one.
    """

    server_id: str
    epoch: int
    store_id: bytes
    members: tuple[Member, ...]


def encode_members(told: Members) -> bytes:
    """Build the payload for ``group_subject``.

    Only owners say this: a standby answers, it tells nothing unasked.
    """
    rows = [asdict(member) for member in told.members[:MOST_MEMBERS]]
    fields = {
        "type": "members",
        "server": told.server_id,
        "epoch": told.epoch,
        "store": told.store_id.hex(),
    }
    return json.dumps(fields | {"members": rows}, separators=(",", ":")).encode()


def decode_members(payload: bytes) -> Members | None:
    """Read the message in ``payload``, or ``None`` if it is anything else.

    Rows that cannot be are left out.
    """
    said = read_owners_word(payload, "members", _MAX_SIZE)
    if said is None:
        return None
    fields, owner = said
    rows = fields.get("members")
    if not isinstance(rows, list):
        return None
    members = (member for row in rows[:MOST_MEMBERS] if (member := _member(row)) is not None)
    return Members(*owner, tuple(members))


def _member(row: Any) -> Member | None:  # whatever somebody sent
    if not isinstance(row, dict):
        return None
    # What a later release says besides is for later releases.
    told: dict[str, Any] = {name: row[name] for name in Member.__slots__ if name in row}
    texts = [told.get(name, "") for name in _SAID]
    measures = [value for name, value in told.items() if name not in _SAID]
    if not (
        told.keys() >= set(_TEXTS) and all(map(_is_text, texts)) and all(map(_is_measure, measures))
    ):
        return None
    member = Member(**told)
    return member if not member.monitor or is_page_url(member.monitor) else None


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TEXT and value.isprintable()


def _is_measure(value: object) -> bool:
    # Neither a truth value nor what JSON of Python calls NaN and Infinity.
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and -1 <= value < _MAX_NUMBER
    )


def is_page_url(text: str) -> bool:
    """Whether a page may be asked there: nothing but HTTP, a host and a port."""
    return (
        re.fullmatch(r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}", text, re.ASCII)
        is not None
    )


def _end(row: Any) -> ChannelEnd | None:  # whatever somebody sent
    if not isinstance(row, list) or len(row) != 4 or not isinstance(row[0], str):
        return None
    if not all(_is_number(value) for value in row[1:]):
        return None
    try:
        name = os.fsencode(row[0])
    except UnicodeEncodeError:
        return None
    if len(name) > _MAX_NAME or not valid_channel(name) or b"/" in name or b"\0" in name:
        return None
    return ChannelEnd(name, *row[1:])


def _is_number(value: object) -> bool:
    # bool is an int in Python, but not a number here.
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_NUMBER
