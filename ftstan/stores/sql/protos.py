"""Stored subscriptions, between rows and plain objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.stores.interface import SubState
from ftstan.wire import messages
from ftstan.wire.pb import stan_internal_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable


def encode_sub(state: SubState) -> bytes:
    """What stands in ``Subscriptions.proto``."""
    return pb.SubState(
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


def decode_sub(payload: bytes) -> SubState:
    """Raises ``WireError``."""
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


def encode_sequences(sequences: Iterable[int]) -> bytes | None:
    """A list as it stands in ``SubsPending``; ``None`` for an empty one."""
    text = ",".join(map(str, sequences))
    return f"[{text}]".encode() if text else None
