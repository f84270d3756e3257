"""The original's encryption of payloads: keys of channels, records, both ciphers.

A record is a byte that names the cipher, 12 bytes of nonce, and the ciphertext with its tag of 16
bytes; nothing is authenticated besides. A ring has several master keys: the first one writes, all
of them read, and which of them wrote a record is found by trial, for no record says so.

Nonces are 96 random bits each, of the kernel, and none is kept for later: whatever stands still,
starts again, is cloned or set back has nothing from which it could repeat one
(``docs/security.md``, Nonces).

Source: ``docs/compat/encryption.md``.
"""

from __future__ import annotations

import os
import platform
from hashlib import blake2b, sha256
from typing import TYPE_CHECKING, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from ftstan.base.errors import StoreError
from ftstan.stores.encryption import evp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Transform = Callable[[bytes, bytes, None], bytes]

AES: Final = "AES"
CHACHA: Final = "CHACHA"

NONCE_SIZE: Final = 12
TAG_SIZE: Final = 16
#: Bytes that encryption adds to a payload that is not empty.
OVERHEAD: Final = 1 + NONCE_SIZE + TAG_SIZE

#: Encryptions under one key until which random nonces are taken to be all different: two of so many
#: are alike once in 2^33 channels (NIST SP 800-38D, 8.3).
MOST_UNDER_ONE_KEY: Final = 1 << 32

CODES: Final = {AES: 1, CHACHA: 2}
_KINDS: Final[dict[int, type[AESGCM | ChaCha20Poly1305]]] = {
    1: AESGCM,
    2: ChaCha20Poly1305,
}
#: How the original says that a record is not what was written, by its cipher.
_REFUSALS: Final = {
    1: "cipher: message authentication failed",
    2: "chacha20poly1305: message authentication failed",
}
_FAST_AES: Final = ("x86_64", "amd64", "i386", "i486", "i586", "i686", "x86")


class UndecryptableError(StoreError):
    """A payload that no key of the ring decrypts."""


def usual_cipher(machine: str = "") -> str:
    """The cipher that the original takes on a processor, this one if none is named."""
    return AES if (machine or platform.machine()).lower() in _FAST_AES else CHACHA


def master_key(key: bytes) -> bytes:
    """What the keys of channels are made from: ``key`` is any string of bytes."""
    return sha256(key).digest()


def channel_key(master: bytes, channel: bytes) -> bytes:
    """The key of a channel, the same for both ciphers.

    The zeros in front are the original's: its buffer had its whole length already when it was
    appended to.
    """
    named = master + b"." + channel
    return sha256(bytes(len(named)) + named).digest()


class KeyRing:
    """Master keys, the writing one first, and the cipher that it writes with."""

    def __init__(self, keys: Sequence[bytes], cipher: str = "") -> None:
        """``keys``: as operators wrote them, at least one; ``cipher``: empty for the usual one."""
        self._masters = tuple(dict.fromkeys(master_key(key) for key in keys))
        self._code = CODES[cipher.upper() or usual_cipher()]
        self.undecryptable = 0
        """Messages met, since the start, that none of the keys decrypts."""

    def __repr__(self) -> str:
        return f"KeyRing({len(self._masters)} keys)"

    def __len__(self) -> int:
        return len(self._masters)

    def channel(self, name: bytes) -> ChannelKeys:
        """What encrypts and decrypts a channel's payloads."""
        return ChannelKeys([channel_key(master, name) for master in self._masters], self._code)

    def mark_keys(self) -> list[bytes]:
        """Keys for check values of payloads that are stored besides them, the writing one first."""
        return [
            blake2b(b"ftstan: marks of payloads", key=master, digest_size=32).digest()
            for master in self._masters
        ]


class ChannelKeys:
    """The keys of one channel.

    ``code`` names the cipher of ``encrypt``, which takes a nonce, a payload and ``None``.
    """

    def __init__(self, keys: Sequence[bytes], code: int) -> None:
        self._keys = list(keys)
        self._openers: dict[int, list[Transform]] = {}
        self.code = code
        self.fast = evp.Keys(keys) if evp.usable() else None
        """The same work from buffer to buffer (``payloads``), where OpenSSL can be called."""
        self.encrypt: Transform = _KINDS[code](keys[0]).encrypt

    def record(self, data: bytes) -> bytes:
        """What is stored of a payload: an empty one stays empty."""
        if not data:
            return data
        nonce = os.urandom(NONCE_SIZE)
        if self.fast is not None:
            return bytes([self.code]) + nonce + self.fast.encrypt(self.code, nonce, data)
        return bytes([self.code]) + nonce + self.encrypt(nonce, data, None)

    def decrypt(self, record: bytes) -> bytes:
        """The payload of what was stored; what begins with no cipher's code was stored plain.

        Raises ``UndecryptableError``, with the original's words.
        """
        code = record[0] if record else 0
        if code not in _KINDS and record:
            return record
        if len(record) <= 1 + NONCE_SIZE:
            raise UndecryptableError(f"trying to decrypt data that is not (len={len(record)})")
        if self.fast is not None and (found := self.fast.decrypt(record)) is not None:
            return found
        openers = self._openers.get(code)
        if openers is None:
            kind = _KINDS[code]
            openers = self._openers[code] = [kind(key).decrypt for key in self._keys]
        nonce = record[1 : 1 + NONCE_SIZE]
        sealed = record[1 + NONCE_SIZE :]
        for i, opener in enumerate(openers):
            try:
                data = opener(nonce, sealed, None)
            except InvalidTag:
                continue
            if i:
                # The records around it were written with the same key.
                openers.insert(0, openers.pop(i))
            return data
        raise UndecryptableError(_REFUSALS[code])

    def is_of_first_key(self, record: bytes) -> bool:
        """Whether a record that decrypts was written with the ring's first key, and its cipher."""
        if len(record) <= OVERHEAD - 1 or record[0] != self.code:
            return False
        try:
            _KINDS[self.code](self._keys[0]).decrypt(
                record[1 : 1 + NONCE_SIZE], record[1 + NONCE_SIZE :], None
            )
        except InvalidTag:
            return False
        return True
