"""Check values of remembered publishes: what tells whether a record is the one that was meant.

Where payloads are encrypted they are made with a key: one of the plain payload would say something
about it.
"""

from __future__ import annotations

from hashlib import blake2b
from zlib import crc32


def mark_of(timestamp: int, data: bytes, key: bytes) -> int:
    """The check value of a message, 0 to 2^32 - 1; ``key`` is empty where nothing is encrypted."""
    if not key:
        return crc32(data, timestamp & 0xFFFF_FFFF)
    stamped = (timestamp & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little") + data
    return int.from_bytes(blake2b(stamped, key=key, digest_size=4).digest(), "little")
