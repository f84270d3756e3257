"""Names of messages that Spark writes: the same rows get the same names again, so that a retry can
be stored once.

Spark runs a task again when it failed, when its executor was lost, and when a stream starts again
behind a batch that was not committed. What a former attempt had published is then published again.
The name of a row is made of what does not change between attempts: which write it belongs to (the
query's id, or the ``writeId`` of a batch write), which batch, which partition, what the row says,
and how many equal rows of the partition came before it. A server with ``dedup_window`` stores one
name once.

The place of a row in its partition is not part of its name, because nothing promises that a retry
sees the rows in the same order: a place would give the name of one message to another, and that one
would be lost. The partition is part of it, because the same row in two partitions is two messages.
So rows that go to another partition in a retry get other names; a column ``guid`` is for them.

Pure: no clock, no I/O.
"""

from __future__ import annotations

from hashlib import blake2b, sha256

_NAME_SIZE = 16


class Names:
    """Gives the rows of one partition of one batch their names.

    ``writing`` says which write it is, ``batch`` which batch of it (0 where there are none).
    Remembers 8 bytes of each row's digest, which is some 100 bytes of memory.
    """

    def __init__(self, writing: str, batch: int, partition: int) -> None:
        self._place = b"%d %d %s" % (batch, partition, writing.encode())
        self._seen: dict[int, int] = {}

    def of(self, channel: bytes, data: bytes, reply: bytes = b"") -> str:
        """The name of the next row: 32 hexadecimal digits."""
        # The lengths keep what belongs to one field out of the next one.
        content = sha256(b"%d %d " % (len(channel), len(reply)) + channel + reply)
        content.update(data)
        digest = content.digest()
        # Two rows that share these 8 bytes share a count, and still have different names.
        key = int.from_bytes(digest[:8])
        nth = self._seen.get(key, 0) + 1
        self._seen[key] = nth
        return blake2b(digest + b"%d " % nth + self._place, digest_size=_NAME_SIZE).hexdigest()
