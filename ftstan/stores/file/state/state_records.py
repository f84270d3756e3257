"""Records of ``clients.dat`` and ``subs.dat``: made, and replayed into plain objects."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ftstan.base.errors import RecoveryError, WireError
from ftstan.stores.file.log import records
from ftstan.stores.file.state import subreplay
from ftstan.stores.interface import StoredSub
from ftstan.stores.protos import decode_client, decode_sub, encode_client, encode_sub
from ftstan.wire import messages
from ftstan.wire.block import SubEvents
from ftstan.wire.pb import stan_internal_pb2 as pb

if TYPE_CHECKING:
    from ftstan.stores.file.log.records import Crc
    from ftstan.stores.interface import ClientInfo, SubState


def client_record(info: ClientInfo, crc: Crc) -> bytes:
    """An "add" record of ``clients.dat``."""
    return records.typed_record(records.CLIENT_ADD, encode_client(info), crc)


def client_delete_record(client_id: bytes, crc: Crc) -> bytes:
    """A "delete" record of ``clients.dat``."""
    return records.typed_record(
        records.CLIENT_DELETE, pb.ClientDelete(id=client_id).SerializeToString(), crc
    )


def replay_client(clients: dict[bytes, ClientInfo], kind: int, payload: bytes) -> None:
    """Apply one record of ``clients.dat``. Raises ``WireError``."""
    if kind == records.CLIENT_ADD:
        info = decode_client(payload)
        clients[info.client_id] = info
    elif kind == records.CLIENT_DELETE:
        clients.pop(messages.parse(pb.ClientDelete, payload).id, None)
    else:
        raise WireError(f"invalid client record type: {kind}")


def sub_record(kind: int, state: SubState, crc: Crc) -> bytes:
    """A "new" or "update" record of ``subs.dat``."""
    return records.typed_record(kind, encode_sub(state), crc)


def sub_delete_record(sub_id: int, crc: Crc) -> bytes:
    """A "delete" record of ``subs.dat``."""
    return records.typed_record(
        records.SUB_DELETE, pb.SubStateDelete(id=sub_id).SerializeToString(), crc
    )


def stored_subs(replay: subreplay.SubReplay) -> dict[int, StoredSub]:
    """Subscriptions by id after all records that ``replay`` took (``docs/compat/filestore.md``,
    replay).
    """
    subs = {}
    for payload, sent, pending in replay.result():
        state = decode_sub(payload)
        if sent > state.last_sent:
            state = replace(state, last_sent=sent)
        subs[state.sub_id] = StoredSub(state, pending)
    return subs


def replay_subs(rows: list[tuple[int, bytes]], shown: str) -> tuple[dict[int, StoredSub], int]:
    """Subscriptions after all records, by id, and the highest id ever seen.

    Raises ``RecoveryError``.
    """
    crc = records.Crc()
    replay = subreplay.SubReplay(crc)
    _, why = replay.feed(
        b"".join(records.typed_record(kind, payload, crc) for kind, payload in rows)
    )
    if why:
        raise RecoveryError(f'"{shown}": {why.removeprefix("bad: ")} (record {replay.records + 1})')
    return stored_subs(replay), replay.highest


def snapshot_subs(subs: dict[int, StoredSub], highest: int, crc: Crc) -> bytes:
    """Records that replay to ``subs`` and to the same highest id."""
    out = []
    pending = SubEvents()
    if highest and highest not in subs:
        # Only a record that names it keeps the id from being given out again.
        out.append(sub_delete_record(highest, crc))
    for sub_id in sorted(subs):
        stored = subs[sub_id]
        out.append(sub_record(records.SUB_NEW, stored.state, crc))
        for sequence in sorted(stored.pending):
            pending.sent(sub_id, sequence)
        # In C, which leaves ``pending`` empty: there may be a million of them.
        out.append(records.encode_events(pending, crc))
    return b"".join(out)
