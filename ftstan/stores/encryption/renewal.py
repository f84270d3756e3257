"""What ``rekey`` looks at before it changes anything, whatever kind of store it is run on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ftstan.base.errors import DamageError
from ftstan.stores.encryption import payloads
from ftstan.stores.encryption.cipher import CODES
from ftstan.stores.marks import mark_of
from ftstan.wire.codec import decode_msg_proto

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ftstan.stores.encryption.cipher import ChannelKeys, KeyRing
    from ftstan.stores.interface import StoredAt
    from ftstan.wire.block import MsgBlock

_ALL: Final = 1 << 62
_CODES: Final = frozenset(CODES.values())

ADD_THE_KEY: Final = "add the key that wrote it to the file"


def refusal(name: bytes, sequence: int, why: str, cure: str) -> DamageError:
    """The error about one message that cannot be changed; ``name``: its channel."""
    shown = name.decode("utf-8", "backslashreplace")
    return DamageError(
        f'channel "{shown}" message {sequence}: {why}',
        hint=f"this message and those behind it are as they were; {cure}, and run this again",
    )


def is_told_plain(data: bytes) -> bool:
    """Whether a payload is taken for a plain one."""
    return data[0] not in _CODES


def decrypted(name: bytes, block: MsgBlock, keys: ChannelKeys) -> MsgBlock:
    """The messages of a channel with the payloads that clients sent.

    Raises ``DamageError`` if there is one that no key decrypts.
    """
    plain, bad, error = payloads.unseal(block, 0, _ALL, _ALL, keys.decrypt, fast=keys.fast)
    if error is not None:
        raise refusal(name, bad, error.text, ADD_THE_KEY)
    return plain


def require_plainly_plain(name: bytes, plain: MsgBlock) -> None:
    """Raise ``DamageError`` for a decrypted message that would look encrypted where it is plain."""
    if not payloads.count_others(plain, is_told_plain):
        return
    for i in range(len(plain)):
        data = payloads.stored_data(plain, i)
        if data and not is_told_plain(data):
            raise refusal(
                name,
                plain.sequence(i),
                f"begins with the byte {data[0]}, and would look encrypted where it is plain",
                "purge it, or keep the store encrypted",
            )


class Marks:
    """The check values of remembered publishes, made anew as their messages are met.

    With the first key alone, values made with another would not be known, and a repeat would be
    stored twice.
    """

    def __init__(self, window: Mapping[bytes, StoredAt], ring: KeyRing, *, to_plain: bool) -> None:
        """``window``: what is remembered, by digest."""
        self._keys = [*ring.mark_keys(), b""]
        self._key = b"" if to_plain else self._keys[0]
        self._window = dict(window)
        self._by_sequence: dict[int, list[bytes]] = {}
        for digest, at in self._window.items():
            self._by_sequence.setdefault(at.sequence, []).append(digest)
        self._is_changed = False

    def look(self, plain: MsgBlock) -> None:
        """Messages of a channel, decrypted."""
        if not self._by_sequence:
            return
        for i in range(len(plain)):
            if digests := self._by_sequence.get(plain.sequence(i)):
                _, _, _, data, timestamp, _, _ = decode_msg_proto(plain.payload(i))
                made = mark_of(timestamp, data, self._key)
                known = {mark_of(timestamp, data, key) for key in self._keys} - {made}
                for digest in digests:
                    at = self._window[digest]
                    if at.mark in known:
                        self._window[digest] = at._replace(mark=made)
                        self._is_changed = True

    def changed(self) -> dict[bytes, StoredAt] | None:
        """The whole window in its order, ``None`` if it is as it was."""
        return self._window if self._is_changed else None
