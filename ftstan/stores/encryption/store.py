"""A store whose payloads are encrypted: around any other, which never sees one of them plain.

What is staged is encrypted before the store below gets it, so sizes, limits and checksums are those
of what is stored. What is read is decrypted on the way out. A message that no key decrypts stops
its reader, as it does in the original: it is never given as it is stored, and nobody is told that
it was delivered.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import RecoveryError, StoreError
from ftstan.base.log import stream as log
from ftstan.stores.encryption import payloads
from ftstan.stores.encryption.cipher import (
    CODES,
    MOST_UNDER_ONE_KEY,
    NONCE_SIZE,
    OVERHEAD,
    UndecryptableError,
)
from ftstan.stores.encryption.sampling import with_some_opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ftstan.config.limits import Limits
    from ftstan.stores.encryption.cipher import KeyRing
    from ftstan.stores.interface import (
        ChannelEnd,
        ChannelLimits,
        ChannelStore,
        ClientInfo,
        Recovered,
        ServerInfo,
        Store,
        StoredAt,
        StoredSub,
        SubState,
    )
    from ftstan.wire.block import MsgBlock, SubEvents

#: Channels that are named where a key is wrong.
_NAMED: Final = 3
#: Messages that are looked at for one that says whether the key is right.
_LOOK_BACK: Final = 64
_CODES: Final = tuple(CODES.values())

WRONG_KEY: Final = "the encryption key does not decrypt the newest message of "


class EncryptedChannel:
    """One channel whose payloads are encrypted. Implements ``ChannelStore``."""

    def __init__(self, inner: ChannelStore, ring: KeyRing, *, refuse_plain: bool = False) -> None:
        """``refuse_plain``: what was stored plain is given to nobody."""
        self._inner = inner
        self._refuse_plain = refuse_plain
        self._ring = ring
        self._keys = ring.channel(inner.name)
        self._told: set[int] = set()
        """Sequences that were found undecryptable, counted and told."""
        self.name = inner.name

    @property
    def snapshot(self) -> Callable[[], Iterable[StoredSub]] | None:
        """What the broker has set."""
        return self._inner.snapshot

    @snapshot.setter
    def snapshot(self, value: Callable[[], Iterable[StoredSub]] | None) -> None:
        self._inner.snapshot = value

    @property
    def limits(self) -> ChannelLimits:
        """The limits in force; they count what is stored."""
        return self._inner.limits

    @property
    def first(self) -> int:
        """Sequence of the first available message."""
        return self._inner.first

    @property
    def last(self) -> int:
        """Sequence of the last durable message."""
        return self._inner.last

    @property
    def count(self) -> int:
        """Available messages."""
        return self._inner.count

    @property
    def size(self) -> int:
        """Bytes as they are stored, encrypted."""
        return self._inner.size

    @property
    def last_timestamp(self) -> int:
        """Timestamp of the last durable message."""
        return self._inner.last_timestamp

    @property
    def next_sub_id(self) -> int:
        """The id for the next new subscription."""
        return self._inner.next_sub_id

    def keep(self) -> None:
        """Stage the channel itself."""
        self._inner.keep()

    def append(self, block: MsgBlock) -> None:
        """Stage messages, encrypted."""
        keys = self._keys
        nonces = os.urandom(NONCE_SIZE * len(block))
        self._inner.append(payloads.seal(block, keys.code, keys.encrypt, nonces, keys.fast))

    def read(self, sequence: int, max_msgs: int, max_bytes: int) -> MsgBlock | None:
        """Messages from the first existing one at or after ``sequence``, decrypted.

        Raises ``UndecryptableError`` if that is one that no key decrypts, or a plain one that is
        refused.
        """
        # The block below may begin long before it, with messages that are gone.
        sequence = max(sequence, self._inner.first)
        stored = self._inner.read(sequence, max_msgs, max_bytes)
        if stored is None:
            return None
        block, bad, error = payloads.unseal(
            stored,
            sequence,
            max_msgs,
            max_bytes,
            self._keys.decrypt,
            self._refuse_plain,
            self._keys.fast,
        )
        if error is None or len(block):
            # What lies before it can be delivered.
            return block
        text = f"Error looking up message {self._shown}:{bad} ({error.text})"
        if bad not in self._told:
            self._told.add(bad)
            self._ring.undecryptable += 1
            log.error(text, backs_off="undecryptable messages", channel=self.name)
        raise UndecryptableError(
            text,
            hint=error.hint
            or "add the key that wrote it to the file of -encryption_key_file, or purge the"
            f" channel up to it: ftstanctl channel purge {self._shown} --up-to {bad}",
        ) from error

    @property
    def _shown(self) -> str:
        return self.name.decode("utf-8", "backslashreplace")

    def is_newest_readable(self) -> bool:
        """Whether the newest message that is encrypted decrypts. True if none of the last few is:
        they are empty, or were stored plain, or are damaged.
        """
        last = self._inner.last
        if not last or not self._inner.count:
            return True
        for sequence in range(last, max(self._inner.first, last - _LOOK_BACK) - 1, -1):
            try:
                stored = self._inner.read(sequence, 1, 1)
                if stored is None:
                    continue
                i = stored.position(sequence)
                data = payloads.stored_data(stored, i) if i < len(stored) else b""
                # One too short for a record is what some client has sent, before there was a key.
                if len(data) >= OVERHEAD and data[0] in _CODES:
                    self._keys.decrypt(data)
                    return True
            except UndecryptableError:
                return False
            except StoreError:
                # Its readers will be told.
                return True
        return True

    def warn_of_many(self) -> None:
        """Tell of a channel with so many messages that random nonces may come to an end."""
        if self._inner.last >= MOST_UNDER_ONE_KEY:
            log.warning(
                f'channel "{self._shown}" has had {self._inner.last} messages, more than one key '
                "should encrypt: put a new key in front of the others, and ftstanctl store rekey "
                "(docs/encryption.md)"
            )

    def sequence_at(self, timestamp: int) -> int:
        """First sequence at or after a time."""
        return self._inner.sequence_at(timestamp)

    def add_sub(self, state: SubState) -> None:
        """Stage a new subscription."""
        self._inner.add_sub(state)

    def update_sub(self, state: SubState) -> None:
        """Stage the new state of a subscription."""
        self._inner.update_sub(state)

    def delete_sub(self, sub_id: int) -> None:
        """Stage the end of a subscription."""
        self._inner.delete_sub(sub_id)

    def add_events(self, events: SubEvents) -> None:
        """Stage sent and acknowledged sequences; leaves ``events`` empty."""
        self._inner.add_events(events)

    def recovered_subs(self) -> Sequence[StoredSub]:
        """The subscriptions found at recovery."""
        return self._inner.recovered_subs()

    def expire(self, now_ns: int) -> None:
        """Apply the limits."""
        self._inner.expire(now_ns)

    @property
    def mover(self) -> bytes | None:
        """Who may still publish to a channel that has moved."""
        return self._inner.mover

    def set_moved(self, mover: bytes | None) -> None:
        """Mark the channel as one that has moved, or has not."""
        self._inner.set_moved(mover)

    def purge(self, sequence: int) -> None:
        """Drop every message up to ``sequence`` for good."""
        self._inner.purge(sequence)


class EncryptedStore:
    """A store whose payloads are encrypted. Implements ``Store``."""

    def __init__(
        self,
        inner: Store,
        ring: KeyRing,
        *,
        accept_unreadable: bool = False,
        refuse_plain: bool = False,
    ) -> None:
        """``accept_unreadable``: serve also where the newest message does not decrypt.

        ``refuse_plain``: give nobody what was stored plain.
        """
        self._inner = inner
        self._refuse_plain = refuse_plain
        self._ring = ring
        self._accept_unreadable = accept_unreadable
        self._refused: dict[bytes, str] = {}
        """Channels that are not served for want of their key."""

    @property
    def kind(self) -> str:
        """That of the store below."""
        return self._inner.kind

    def recover(self) -> Recovered:
        """Read everything back.

        Raises ``RecoveryError`` too if the newest message of a channel does not decrypt.
        """
        recovered = with_some_opened(self._inner, self._inner.recover())
        channels = [self._around(inner) for inner in recovered.channels]
        bad = [channel for channel in channels if not channel.is_newest_readable()]
        if bad:
            shown = [channel.name.decode("utf-8", "backslashreplace") for channel in bad]
            text = f"{WRONG_KEY}{len(bad)} of {len(channels)} channels: {', '.join(shown[:_NAMED])}"
            if len(bad) > _NAMED:
                text += ", ..."
            if not self._accept_unreadable:
                raise RecoveryError(
                    text,
                    hint="give the key that wrote them, or add it to -encryption_key_file; "
                    "-encryption_accept_unreadable serves what can be read",
                )
            log.warning(text)
        info = recovered.info
        if info is not None and not info.encrypted:
            # Before the first payload: a server without a key must not take it for a plain one.
            info = replace(info, encrypted=True)
            self._inner.set_server_info(info)
        return replace(recovered, info=info, channels=list(channels))

    def _around(self, inner: ChannelStore) -> EncryptedChannel:
        channel = EncryptedChannel(inner, self._ring, refuse_plain=self._refuse_plain)
        channel.warn_of_many()
        return channel

    def set_server_info(self, info: ServerInfo) -> None:
        """Make identity and subjects durable at once, and that payloads are encrypted."""
        self._inner.set_server_info(replace(info, encrypted=True))

    def add_client(self, info: ClientInfo) -> None:
        """Stage a client registration."""
        self._inner.add_client(info)

    def delete_client(self, client_id: bytes) -> None:
        """Stage the end of a client's registration."""
        self._inner.delete_client(client_id)

    def create_channel(self, name: bytes, limits: ChannelLimits) -> EncryptedChannel:
        """A new, empty channel."""
        return self._around(self._inner.create_channel(name, limits))

    def open_channel(self, name: bytes) -> Recovered:
        """Read back a channel that ``recover`` has left for later.

        One whose newest message does not decrypt is refused.
        """
        recovered = self._inner.open_channel(name)
        channels = [self._around(inner) for inner in recovered.channels]
        refused = dict(recovered.refused)
        for channel in channels:
            if channel.is_newest_readable():
                continue
            text = f'{WRONG_KEY}channel "{channel.name.decode("utf-8", "backslashreplace")}"'
            if self._accept_unreadable:
                log.warning(text)
            elif channel.name not in refused:
                log.error(f"{text}: it is not served")
                refused[channel.name] = self._refused[channel.name] = text
        return replace(recovered, channels=list(channels), refused=refused)

    def set_limits(self, limits: Limits) -> None:
        """From now on these limits hold; they count what is stored."""
        self._inner.set_limits(limits)

    def delete_channel(self, name: bytes) -> None:
        """Forget a channel and everything in it.

        Raises ``StoreError`` for one that is not served for want of its key, too: nobody can use
        it, and so it looks as if nobody did.
        """
        if text := self._refused.get(name):
            raise StoreError(text, hint="give the key that wrote it, then delete it")
        self._inner.delete_channel(name)

    def commit(self) -> dict[bytes, StoreError]:
        """Make everything staged durable."""
        return self._inner.commit()

    def remember(self, fresh: Sequence[bytes], window: Mapping[bytes, StoredAt]) -> None:
        """Make the digests of publishes durable that are staged."""
        self._inner.remember(fresh, window)

    def confirm(self) -> None:
        """Raise ``FencedError`` unless the store is still ours."""
        self._inner.confirm()

    @property
    def events_first(self) -> bool:
        """Whether ``write_events`` comes before the output of a batch."""
        return self._inner.events_first

    def write_events(self) -> None:
        """Hand staged ``SubEvents`` to the file system."""
        self._inner.write_events()

    @property
    def acks_wait(self) -> bool:
        """Whether acks are in memory only."""
        return self._inner.acks_wait

    def catch_up(self) -> bool:
        """Replace some files that acks wait for; returns whether others wait."""
        return self._inner.catch_up()

    def tick(self, now_ns: int) -> bool:
        """Work of once a second; returns whether more of it waits."""
        return self._inner.tick(now_ns)

    def ends(self, most: int) -> list[ChannelEnd]:
        """Where at most ``most`` channels end."""
        return self._inner.ends(most)

    def prepare_close(self, seconds: float) -> bool:
        """Do some of what ``close`` would do; returns whether there is more."""
        return self._inner.prepare_close(seconds)

    def close(self) -> None:
        """Write and sync what is left and release every handle."""
        self._inner.close()

    def abandon(self) -> None:
        """Release every handle and write nothing."""
        self._inner.abandon()
