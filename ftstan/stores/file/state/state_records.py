"""Records of clients and subscriptions: between stored payloads and the store's plain
objects.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ftstan.base.errors import RecoveryError, WireError
from ftstan.stores.clients import decode_client, encode_client
from ftstan.stores.file.log import records
from ftstan.stores.file.state import subreplay
from ftstan.stores.interface import StoredSub, SubState
from ftstan.wire import messages
from ftstan.wire.block import SubEvents
from ftstan.wire.pb import stan_internal_pb2 as pb

if TYPE_CHECKING:
    from ftstan.stores.file.log.records import Crc
    from ftstan.stores.interface import ClientInfo


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


def replay_clients(rows: list[tuple[int, bytes]], shown: str) -> dict[bytes, ClientInfo]:
    """The clients that are registered after all records.

    Raises ``RecoveryError`` for one that is none.
    """
    clients: dict[bytes, ClientInfo] = {}
    for number, (kind, payload) in enumerate(rows, 1):
        try:
            replay_client(clients, kind, payload)
        except WireError as error:
            raise RecoveryError(
                f'unable to recover client file "{shown}": {error.text} (record {number})'
            ) from error
    return clients


def sub_record(kind: int, state: SubState, crc: Crc) -> bytes:
    """A "new" or "update" record of ``subs.dat``."""
    payload = pb.SubState(
        id=state.sub_id,
        client_id=state.client_id,
        q_group=state.queue,
        inbox=state.inbox,
        ack_inbox=state.ack_inbox,
        max_in_flight=state.max_in_flight,
        ack_wait_in_secs=state.ack_wait_secs,
        durable_name=state.durable_name,
        last_sent=state.last_sent,
        is_durable=state.is_durable,
        is_closed=state.is_closed,
    ).SerializeToString()
    return records.typed_record(kind, payload, crc)


def sub_delete_record(sub_id: int, crc: Crc) -> bytes:
    """A "delete" record of ``subs.dat``."""
    return records.typed_record(
        records.SUB_DELETE, pb.SubStateDelete(id=sub_id).SerializeToString(), crc
    )


def decode_sub(payload: bytes) -> SubState:
    """The state in a "new" or "update" record. Raises ``WireError``."""
    m = messages.parse(pb.SubState, payload)
    return SubState(
        sub_id=m.id,
        client_id=m.client_id,
        queue=m.q_group,
        inbox=m.inbox,
        ack_inbox=m.ack_inbox,
        max_in_flight=m.max_in_flight,
        ack_wait_secs=m.ack_wait_in_secs,
        durable_name=m.durable_name,
        last_sent=m.last_sent,
        is_durable=m.is_durable,
        is_closed=m.is_closed,
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
