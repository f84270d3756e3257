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

#: Of the largest number of 64 bits.
_DIGITS: Final = 20
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

    ``inbox``: where answers go, ending in the part that the sequence completes; ``subject``: where
    the stream listens.
    """

    def __init__(self, channel: str, stream: str, bridge: str, inbox: str, subject: str) -> None:
        told = _header(channel.encode())
        # Formats: a percent sign of a name is doubled.
        self._control = b"HPUB %b %b%%d %%d %%d\r\n" % (
            subject.encode().replace(b"%", b"%%"),
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


#: What the reply field begins with of a message that came to the channel from a stream.
_ORIGIN: Final = b"ftstan-bridge?stream="


def origin(stream: str, sequence: int) -> bytes:
    """The reply field of a message that the bridge publishes to the channel: where it is from."""
    return b"%b%b&seq=%d" % (_ORIGIN, _header(stream.encode()), sequence)


def origin_of(reply: bytes, stream: str) -> int:
    """The sequence that a message has in ``stream``, by its reply field; 0: it is not from there.

    What is not written by ``origin`` in every byte is no origin.
    """
    head, _, digits = reply.rpartition(b"&seq=")
    if not head.startswith(_ORIGIN) or not digits.isdigit() or len(digits) > _DIGITS:
        return 0
    sequence = int(digits)
    return sequence if reply == origin(stream, sequence) else 0


def origin_in(headers: Mapping[str, str], stream: str) -> int:
    """The same of a copy in a stream, by its headers."""
    told = headers.get(REPLY.lower(), "")
    return origin_of(urllib.parse.unquote_to_bytes(told), stream)


def is_copy(headers: Mapping[str, str]) -> bool:
    """Whether a bridge brought the message: it must not go back."""
    return BRIDGE.lower() in headers


def _header(value: bytes) -> bytes:
    """A value that no header can be broken with."""
    return urllib.parse.quote(value, safe=_PLAIN).encode()
