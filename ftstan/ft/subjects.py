"""The NATS subjects of a group, and the one message that we send on our own.

On the original's subject nothing but heartbeats may ever be published: its standbys take every
message there for one. Our own messages travel beside it. ``released`` says "I have unlocked the
store": a reason to try the lock now, never a right to own anything.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

STORE_ID_SIZE = 16
_MAX_SIZE = 1024
_MAX_EPOCH = 1 << 63


def heartbeat_subject(cluster_id: str, group: str) -> str:
    """Where the active of ``group`` publishes its heartbeats (``docs/compat/ft.md``)."""
    return f"_STAN.ft.{cluster_id}.{group}"


def group_subject(cluster_id: str, group: str) -> str:
    """Where members of ``group`` that run ftstan talk to each other."""
    return f"_FTSTAN.ft.{cluster_id}.{group}"


def control_subject(cluster_id: str, server_id: str) -> str:
    """Where one member answers operators (``docs/ftstanctl.md``)."""
    return f"_FTSTAN.ctl.{cluster_id}.{server_id}"


def question_subject(cluster_id: str) -> str:
    """Where every server of ours in a cluster answers who it is.

    No server id is this word (``docs/admin.md``).
    """
    return f"_FTSTAN.ctl.{cluster_id}.who"


@dataclass(frozen=True, slots=True)
class Released:
    """The owner of ``epoch`` on the store ``store_id`` (16 bytes) has stopped and let go of the
    lock.
    """

    server_id: str
    epoch: int
    store_id: bytes


def encode_released(released: Released) -> bytes:
    """Build the payload for ``group_subject``."""
    fields = {
        "type": "released",
        "server": released.server_id,
        "epoch": released.epoch,
        "store": released.store_id.hex(),
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_released(payload: bytes) -> Released | None:
    """Read the message in ``payload``, or ``None`` if it is anything else.

    Keys that we do not know are ignored.
    """
    said = read_owners_word(payload, "released", _MAX_SIZE)
    return Released(*said[1]) if said is not None else None


def read_owners_word(
    payload: bytes, kind: str, most: int
) -> tuple[dict[str, Any], tuple[str, int, bytes]] | None:
    """Read a message of the type ``kind`` and at most ``most`` bytes.

    ``None`` if it is anything else.

    All its fields, and who says it: server id, epoch, store id (16 bytes).
    """
    if len(payload) > most:
        return None
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or fields.get("type") != kind:
        return None
    server = fields.get("server")
    epoch = fields.get("epoch")
    store = fields.get("store")
    if not isinstance(server, str) or not server or not isinstance(store, str):
        return None
    # bool is an int in Python, but not an epoch.
    if not isinstance(epoch, int) or isinstance(epoch, bool) or not 0 < epoch < _MAX_EPOCH:
        return None
    try:
        store_id = bytes.fromhex(store)
    except ValueError:
        return None
    if len(store_id) != STORE_ID_SIZE:
        return None
    return fields, (server, epoch, store_id)
