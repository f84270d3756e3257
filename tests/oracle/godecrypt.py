"""Payloads as the original encrypts them, by its rules alone (``docs/compat/encryption.md``).

The second opinion: shares no code with ``ftstan``, and knows one key, as the original does.
"""

from __future__ import annotations

import hashlib

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import aead


class GoUndecryptable(Exception):  # noqa: N818 - a verdict, not an error
    """What the original says of a message that it cannot decrypt."""


def key_of(key: bytes, channel: bytes) -> bytes:
    master = hashlib.sha256(key).digest()
    return hashlib.sha256(b"\0" * (33 + len(channel)) + master + b"." + channel).digest()


def decrypted(key: bytes, channel: bytes, data: bytes) -> bytes:
    """The payload that the original delivers; empty ones are stored empty."""
    if not data or data[0] not in (1, 2):
        return data
    if len(data) <= 13:
        raise GoUndecryptable(f"trying to decrypt data that is not (len={len(data)})")
    cipher: aead.AESGCM | aead.ChaCha20Poly1305
    if data[0] == 1:
        cipher, name = aead.AESGCM(key_of(key, channel)), "cipher"
    else:
        cipher, name = aead.ChaCha20Poly1305(key_of(key, channel)), "chacha20poly1305"
    try:
        return cipher.decrypt(data[1:13], data[13:], None)
    except InvalidTag:
        raise GoUndecryptable(f"{name}: message authentication failed") from None
