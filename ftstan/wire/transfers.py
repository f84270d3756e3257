"""What two partitions say to each other while a channel moves: questions of the target, answers of
the source, as bytes.

Each message proves that its sender knows the secret of the move, which an operator's sealed
requests have brought to both; an answer also that it belongs to its question. A question is one
JSON object behind its proof, an answer is binary, and long ones come in pieces.

Source: ``docs/partitioning.md`` (moving a channel).
"""

from __future__ import annotations

import hmac
import json
import struct
import zlib
from hashlib import blake2b
from typing import Any, Final

from ftstan.base.errors import RefusedError, WireError

#: Bytes of a piece; what NATS carries may be less.
PIECE: Final = 512 << 10
#: Bytes of an answer around its piece, and more.
ROOM: Final = 4 << 10
_PROOF: Final = 16
_HEAD: Final = struct.Struct(">BQI")
_GIVEN: Final = 0
_REFUSED: Final = 1
_LARGEST_QUESTION: Final = 4 << 10


def subject(cluster_id: str) -> str:
    """Where the targets of moves ask; only the source of the move that is named answers."""
    return f"_FTSTAN.move.{cluster_id}"


def _proof(secret: bytes, kind: bytes, data: bytes) -> bytes:
    return blake2b(data, key=secret, person=kind, digest_size=_PROOF).digest()


def encode_question(secret: bytes, fields: dict[str, Any]) -> bytes:
    """A question. ``fields``: with ``transfer``, and ``nonce``, which no other question has."""
    body = json.dumps(fields, separators=(",", ":")).encode()
    return _proof(secret, b"question", body) + body


def read_question(data: bytes) -> dict[str, Any]:
    """The fields of a question, which prove nothing yet. Raises ``WireError``."""
    try:
        fields = json.loads(data[_PROOF:]) if len(data) <= _LARGEST_QUESTION else None
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or not isinstance(fields.get("transfer"), str):
        raise WireError("a question about a move cannot be understood")
    return fields


def is_proven(secret: bytes, data: bytes) -> bool:
    """Whether who sent the question knows the secret."""
    return hmac.compare_digest(data[:_PROOF], _proof(secret, b"question", data[_PROOF:]))


def encode_answer(secret: bytes, nonce: str, whole: bytes, offset: int, most: int) -> bytes:
    """A piece of the answer ``whole``, from ``offset`` on, of at most ``most`` bytes."""
    piece = whole[offset : offset + most]
    return _sealed(secret, nonce, _HEAD.pack(_GIVEN, len(whole), zlib.crc32(whole)) + piece)


def encode_refusal(secret: bytes, nonce: str, why: str) -> bytes:
    """The answer to what cannot be done."""
    return _sealed(
        secret, nonce, _HEAD.pack(_REFUSED, 0, 0) + why.encode("utf-8", "backslashreplace")
    )


def _sealed(secret: bytes, nonce: str, body: bytes) -> bytes:
    return _proof(secret, b"answer", nonce.encode() + body) + body


def decode_answer(secret: bytes, nonce: str, data: bytes) -> tuple[bytes, tuple[int, int]]:
    """A piece, and the size of the whole with its CRC-32.

    Raises ``WireError``: it is no answer to that question; ``RefusedError``: the source said no.
    """
    body = data[_PROOF:]
    if len(body) < _HEAD.size or not hmac.compare_digest(
        data[:_PROOF], _proof(secret, b"answer", nonce.encode() + body)
    ):
        raise WireError("an answer about a move is none, or damaged")
    status, size, check = _HEAD.unpack_from(body)
    piece = body[_HEAD.size :]
    if status != _GIVEN:
        raise RefusedError(piece.decode("utf-8", "replace"))
    return piece, (size, check)


def check_whole(data: bytes, told: tuple[int, int]) -> None:
    """Raise ``WireError`` unless the pieces are the whole that was told of."""
    if (len(data), zlib.crc32(data)) != told:
        raise WireError("what the other server sent was damaged on the way")
