"""Publishes of our own client that were stored already: a repeat is acknowledged and not stored
twice.

Only guids that begin with ``ft1.`` are looked at: that client promises to use one guid for one
message. A window holds the newest of them, as digests; the store makes it durable with the batch
(``docs/store.md`` section 5). Where payloads are encrypted, its check values are made with a key:
one of the plain payload would tell something about it. An entry is a hint: it counts only if the
log holds the very message, which is looked up when a repeat comes. A channel that was deleted and
made again has other messages under the same sequences. What was in the log in this activation
counts also when limits or a purge have removed it since, until its channel is deleted.
"""

from __future__ import annotations

from collections import defaultdict
from hashlib import blake2b
from typing import TYPE_CHECKING

from ftstan.base.errors import DamageError, StoreError
from ftstan.stores.interface import REMEMBERED_SIZE, StoredAt
from ftstan.stores.marks import mark_of
from ftstan.wire.codec import decode_msg_proto

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from ftstan.stores.interface import ChannelStore

_WHOLE = 1 << 62


class Window:
    """The newest ``size`` publishes: digest of channel and guid -> message, oldest first.

    ``known``: what a former activation remembered. ``mark_keys``: for check values, the one that is
    used first; those made with any of them are known, and those made without a key, from before
    payloads were encrypted.
    """

    def __init__(
        self, size: int, known: dict[bytes, StoredAt], mark_keys: Sequence[bytes] = ()
    ) -> None:
        self.known = known
        self._mark_keys = (*mark_keys, b"")
        self._size = size
        self._proven: dict[bytes, bytes] = {}
        """What was in a log in this activation, by digest: its channel."""
        self._proven_of: defaultdict[bytes, set[bytes]] = defaultdict(set)
        """The same by channel: many may be deleted at once."""
        self._fresh: dict[bytes, bytes] = {}
        """The same of what is in no log yet, but in the batch."""
        self._learnt: dict[bytes, None] = {}
        """What was heard of since the start, and is in no file of ours yet; a set in order."""
        self._shrink()

    def learn(self, found: Mapping[bytes, StoredAt]) -> None:
        """Know what a former owner remembered behind our start, but for what is this activation's
        own.
        """
        for digest, at in found.items():
            if (
                digest not in self._fresh
                and digest not in self._proven
                and self.known.get(digest) != at
            ):
                self._forget(digest)
                self.known[digest] = at
                self._learnt[digest] = None
        self._shrink()

    def proven(self, channel: bytes) -> dict[bytes, StoredAt]:
        """What was in the channel's log in this activation."""
        return {digest: self.known[digest] for digest in self._proven_of.get(channel, ())}

    def look(self, channel: bytes, guid: bytes, log: ChannelStore) -> int:
        """The sequence that the publish was stored with; 0 if it is not known.

        ``log``: the channel's messages.

        Raises ``StoreError``: storage does not say whether it is there.
        """
        digest = _digest(channel, guid)
        found = self.known.get(digest)
        if found is None:
            return 0
        is_proven = digest in self._proven
        if digest not in self._fresh and not (is_proven and found.sequence < log.first):
            try:
                if not self._holds(log, found):
                    return 0
            except StoreError:
                # It has been seen there in this activation.
                if not is_proven:
                    raise
            self._prove(digest, channel)
        return found.sequence

    def add(self, channel: bytes, guid: bytes, sequence: int, timestamp: int, data: bytes) -> None:
        """The publish was applied, as that message."""
        digest = _digest(channel, guid)
        # A digest that is known and was not taken for a repeat names something that is gone: it
        # moves to the end.
        self._forget(digest)
        self.known[digest] = StoredAt(sequence, mark_of(timestamp, data, self._mark_keys[0]))
        self._fresh[digest] = channel
        self._shrink()

    def staged(self) -> list[bytes]:
        """What was added or learnt since the last batch: before a repeat of it is answered it must
        be in our file.
        """
        return [*self._learnt, *self._fresh]

    def committed(self, failed: Container[bytes]) -> None:
        """The batch is durable but for ``failed`` channels: of those the log is asked when a repeat
        comes.

        The messages of a refused batch that filled a slice are in the log all the same.
        """
        self._learnt.clear()
        fresh = self._fresh
        self._fresh = {}
        for digest, channel in fresh.items():
            if channel not in failed:
                self._prove(digest, channel)

    def ended(self, channel: bytes) -> None:
        """The channel was deleted: what it held has not been in the log of the next one of that
        name.
        """
        for digest in self._proven_of.pop(channel, ()):
            del self._proven[digest]

    def _prove(self, digest: bytes, channel: bytes) -> None:
        self._proven[digest] = channel
        self._proven_of[channel].add(digest)

    def _forget(self, digest: bytes) -> None:
        self.known.pop(digest, None)
        self._fresh.pop(digest, None)
        self._learnt.pop(digest, None)
        channel = self._proven.pop(digest, None)
        if channel is not None:
            of_channel = self._proven_of[channel]
            of_channel.discard(digest)
            if not of_channel:
                del self._proven_of[channel]

    def _shrink(self) -> None:
        while len(self.known) > self._size:
            self._forget(next(iter(self.known)))

    def _holds(self, log: ChannelStore, at: StoredAt) -> bool:
        """Whether the message is there.

        One that is damaged, or has been removed since, counts as one that is not.
        """
        if not log.first <= at.sequence <= log.last:
            return False
        try:
            block = log.read(at.sequence, 1, _WHOLE)
        except DamageError:
            return False
        # The block may begin before the message.
        i = block.position(at.sequence) if block is not None else 0
        if block is None or i == len(block) or block.sequence(i) != at.sequence:
            return False
        _, _, _, data, timestamp, _, _ = decode_msg_proto(block.payload(i))
        return any(mark_of(timestamp, data, key) == at.mark for key in self._mark_keys)


def _digest(channel: bytes, guid: bytes) -> bytes:
    # A channel name holds no zero byte (``docs/compat/protocol.md``, channel names).
    return blake2b(channel + b"\0" + guid, digest_size=REMEMBERED_SIZE).digest()
