"""What the headers of a mirrored message say: where it comes from, and who brought it.

Any message of a stream that has no such headers was not put there by a bridge. That is also what
keeps a message from going round in circles.
"""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

CHANNEL: Final = "Ftstan-Channel"
SEQUENCE: Final = "Ftstan-Sequence"
TIMESTAMP: Final = "Ftstan-Timestamp"
REPLY: Final = "Ftstan-Reply"
BRIDGE: Final = "Ftstan-Bridge"

#: Everything that is printable and no blank but the percent sign, which begins an escape.
_PLAIN: Final = "".join(chr(c) for c in range(0x21, 0x7F) if c != ord("%"))


class Item(NamedTuple):
    """A message of a channel. ``timestamp``: when the server stored it, nanoseconds since 1970."""

    sequence: int
    timestamp: int
    reply: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a message of a stream comes from. ``bridge``: the run that brought it."""

    channel: str
    sequence: int
    timestamp: int
    bridge: str


class Framer:
    """Makes the frames of the appends of one channel, each with what it must follow.

    ``inbox``: where answers go, ending in the part that the sequence completes.
    """

    def __init__(self, channel: str, stream: str, bridge: str, inbox: str) -> None:
        told = _header(channel.encode())
        # Formats: a percent sign of a name is doubled.
        self._control = b"HPUB %b %b%%d %%d %%d\r\n" % (
            channel.encode().replace(b"%", b"%%"),
            inbox.encode(),
        )
        lines = (
            b"NATS/1.0\r\nNats-Expected-Last-Sequence: %d\r\n",
            b"Nats-Expected-Stream: " + stream.encode() + b"\r\n",
            b"Nats-Msg-Id: " + told.replace(b"%", b"%%") + b":%d\r\n",
            f"{CHANNEL}: ".encode() + told.replace(b"%", b"%%") + b"\r\n",
            f"{BRIDGE}: {bridge}\r\n{SEQUENCE}: %d\r\n{TIMESTAMP}: %d\r\n".encode(),
        )
        self._head = b"".join(lines)

    def frame(self, item: Item) -> tuple[bytes, bytes]:
        """The frame of an append behind the sequence before it, and its payload, to be followed by
        a line end.
        """
        sequence = item[0]
        head = self._head % (sequence - 1, sequence, sequence, item[1])
        if item[2]:
            head += f"{REPLY}: ".encode() + _header(item[2]) + b"\r\n"
        head += b"\r\n"
        data = item[3]
        return self._control % (sequence, len(head), len(head) + len(data)) + head, data


def mark_of(headers: Mapping[str, str]) -> Mark | None:
    """What the headers say, by their names in lower case; ``None`` for those of no bridge."""
    try:
        return Mark(
            urllib.parse.unquote(headers[CHANNEL.lower()]),
            int(headers[SEQUENCE.lower()]),
            int(headers[TIMESTAMP.lower()]),
            headers[BRIDGE.lower()],
        )
    except (KeyError, ValueError):
        return None


def _header(value: bytes) -> bytes:
    """A value that no header can be broken with."""
    return urllib.parse.quote(value, safe=_PLAIN).encode()
