"""Records of TLS 1.3 that no library sends: a client whose keys are known, from a key log."""

from __future__ import annotations

import hashlib
import hmac
import ssl
import struct
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.tls_pipe import TlsPipe, unverified

if TYPE_CHECKING:
    import socket
    from pathlib import Path

HANDSHAKE = 22
APPLICATION = 23
#: ``update_not_requested``: the other side has nothing to answer.
KEY_UPDATE = b"\x18\0\0\1\0"


class Forger:
    """A connection whose handshake a library has done, and whose records are made here."""

    def __init__(self, raw: socket.socket, key_log: Path) -> None:
        """``raw`` has been greeted; ``key_log`` is written."""
        context = unverified(ssl.TLSVersion.TLSv1_3)
        context.keylog_filename = str(key_log)
        pipe = TlsPipe(raw, context)
        name, _, _ = pipe.ssl.cipher() or ("", "", 0)
        assert name == "TLS_AES_128_GCM_SHA256"
        self.raw = raw
        self.pipe = pipe
        words = [line.split() for line in key_log.read_text().splitlines()]
        self._secret = bytes.fromhex(
            next(of[2] for of in words if of[0] == "CLIENT_TRAFFIC_SECRET_0")
        )
        self._begin()

    def record(self, data: bytes, kind: int = APPLICATION) -> bytes:
        """``data`` as the next record."""
        head = struct.pack(">BHH", 23, 0x0303, len(data) + 1 + 16)
        mask = self._number.to_bytes(12, "big")
        nonce = bytes(a ^ b for a, b in zip(self._iv, mask, strict=True))
        self._number += 1
        return head + self._cipher.encrypt(nonce, data + bytes([kind]), head)

    def update(self) -> bytes:
        """A KeyUpdate; what follows is under the next keys."""
        made = self.record(KEY_UPDATE, HANDSHAKE)
        self._secret = _expanded(self._secret, b"traffic upd", 32)
        self._begin()
        return made

    def _begin(self) -> None:
        self._cipher = AESGCM(_expanded(self._secret, b"key", 16))
        self._iv = _expanded(self._secret, b"iv", 12)
        self._number = 0


def _expanded(secret: bytes, label: bytes, size: int) -> bytes:
    """HKDF-Expand-Label of RFC 8446, 7.1, without a context."""
    label = b"tls13 " + label
    info = struct.pack(">HB", size, len(label)) + label + b"\0"
    return hmac.digest(secret, info + b"\1", hashlib.sha256)[:size]
