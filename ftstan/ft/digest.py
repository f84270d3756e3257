"""The digest: an owner's hint, each second, of where its channels end, so that standbys can read ahead.

On the group's own subject, as JSON, in as many messages as it takes. Nothing that matters is decided by it: a standby
reads what it names into the page cache (``ft/warm.py``), and forgets all of it when it takes over. What does not decode
is no digest; names that could leave the datastore's directory are none of a channel.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ftstan.ft.subjects import read_owners_word
from ftstan.stores.interface import ChannelEnd
from ftstan.wire.subjects import valid_channel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Channels in one message: with the longest names it stays below the smallest payload limit that servers use.
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


def encode_digest(server_id: str, epoch: int, store_id: bytes, ends: Sequence[ChannelEnd]) -> Iterator[bytes]:
    """Build the payloads for ``group_subject``; none if there is nothing to say."""
    for start in range(0, len(ends), PART_ROWS):
        rows = [(os.fsdecode(e.name), e.last, e.slice_number, e.index_end) for e in ends[start : start + PART_ROWS]]
        fields = {"type": "digest", "server": server_id, "epoch": epoch, "store": store_id.hex(), "ends": rows}
        yield json.dumps(fields, separators=(",", ":")).encode()


def decode_digest(payload: bytes) -> Digest | None:
    """Read the message in ``payload``, or ``None`` if it is anything else. Rows that cannot be are left out."""
    said = read_owners_word(payload, "digest", _MAX_SIZE)
    if said is None:
        return None
    fields, owner = said
    rows = fields.get("ends")
    if not isinstance(rows, list):
        return None
    ends = (end for row in rows[:PART_ROWS] if (end := _end(row)) is not None)
    return Digest(*owner, tuple(ends))


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
