"""Where a dead letter comes from: a line of text in the reply field of its message.

    ftstan-dead-letter?channel=orders&seq=42&durable=pay&client=worker-1&deliveries=5&first=1764253563123456789

A fixed word, then ``key=value`` pairs in the form of a URL's query: names and values
percent-encoded, in this order, so that every language has a parser for it. What is empty is left
out. Readers skip keys that they do not know. Pure functions.

Source: ``docs/dead-letters.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes

#: What the reply field of every dead letter begins with.
PREFIX = b"ftstan-dead-letter?"

#: Bytes of names that stand as they are; all others are percent-encoded.
_PLAIN = "-._~:$,;@()!*>"

#: Digits of the largest number of 64 bits.
_DIGITS = 20


@dataclass(frozen=True, slots=True)
class Origin:
    """What a dead letter was, and who did not acknowledge it.

    ``queue`` is the name of the group as it is stored, ``durable:group`` for a durable one;
    ``first_ns``: when the server that gave up had first delivered it (Unix nanoseconds), 0: not
    known. ``reply``: the message's own reply field.
    """

    channel: bytes
    sequence: int
    durable: bytes = b""
    queue: bytes = b""
    client_id: bytes = b""
    deliveries: int = 0
    first_ns: int = 0
    reply: bytes = b""


def encode_origin(origin: Origin) -> bytes:
    """The reply field of a dead letter."""
    pairs: tuple[tuple[str, bytes | int], ...] = (
        ("channel", origin.channel),
        ("seq", origin.sequence),
        ("durable", origin.durable),
        ("queue", origin.queue),
        ("client", origin.client_id),
        ("deliveries", origin.deliveries),
        ("first", origin.first_ns),
        ("reply", origin.reply),
    )
    text = "&".join(
        f"{key}={value if isinstance(value, int) else quote(value, safe=_PLAIN)}"
        for key, value in pairs
        if value
    )
    return PREFIX + text.encode()


def parse_origin(reply: bytes) -> Origin | None:
    """The origin that a reply field tells of; ``None`` if it is that of another message."""
    if not reply.startswith(PREFIX):
        return None
    said: dict[bytes, bytes] = {}
    for pair in reply.removeprefix(PREFIX).split(b"&"):
        key, _, value = pair.partition(b"=")
        said[key] = unquote_to_bytes(value)
    try:
        sequence, deliveries, first = (
            _number(said.get(key, b"0")) for key in (b"seq", b"deliveries", b"first")
        )
    except ValueError:
        return None
    channel = said.get(b"channel", b"")
    if not channel or not sequence:
        return None
    return Origin(
        channel,
        sequence,
        said.get(b"durable", b""),
        said.get(b"queue", b""),
        said.get(b"client", b""),
        deliveries,
        first,
        said.get(b"reply", b""),
    )


def _number(text: bytes) -> int:
    """A number of 64 bits without a sign. Raises ``ValueError``."""
    if not text.isdigit() or len(text) > _DIGITS:
        raise ValueError(text)
    return int(text)
