"""What every durable store keeps of a server, its clients and its subscriptions: the original's
protobufs, between bytes and plain objects.

Source: ``docs/compat/filestore.md``, ``docs/compat/sqlstore.md``.
"""

from __future__ import annotations

from ftstan.stores.interface import ClientInfo, ServerInfo, SubState
from ftstan.wire import messages
from ftstan.wire.pb import stan_internal_pb2 as pb


def encode_server(info: ServerInfo) -> bytes:
    """Payload of ``server.dat``, and of the column ``proto`` of a database."""
    return pb.ServerInfo(
        cluster_id=info.cluster_id.encode(),
        discovery=info.discovery.encode(),
        publish=info.publish.encode(),
        subscribe=info.subscribe.encode(),
        unsubscribe=info.unsubscribe.encode(),
        close=info.close.encode(),
        sub_close=info.sub_close.encode(),
        acks_subs=info.acks_subs.encode(),
        node_id=info.node_id.encode(),
        encrypted=info.encrypted,
    ).SerializeToString()


def decode_server(payload: bytes) -> ServerInfo:
    """Raises ``WireError``."""
    m = messages.parse(pb.ServerInfo, payload)

    def text(b: bytes) -> str:
        return b.decode("utf-8", "surrogateescape")

    return ServerInfo(
        cluster_id=text(m.cluster_id),
        discovery=text(m.discovery),
        publish=text(m.publish),
        subscribe=text(m.subscribe),
        unsubscribe=text(m.unsubscribe),
        close=text(m.close),
        sub_close=text(m.sub_close),
        acks_subs=text(m.acks_subs),
        node_id=text(m.node_id),
        encrypted=m.encrypted,
    )


def encode_client(info: ClientInfo) -> bytes:
    """The original's record of a client (``docs/compat/filestore.md``, clients)."""
    return messages.encode(
        messages.ClientInfo(
            id=info.client_id,
            hb_inbox=info.hb_inbox,
            conn_id=info.conn_id,
            protocol=info.protocol,
            ping_interval=info.ping_interval,
            ping_max_out=info.ping_max_out,
        )
    )


def decode_client(payload: bytes) -> ClientInfo:
    """The same in the other direction. Raises ``WireError``."""
    m = messages.parse(messages.ClientInfo, payload)
    return ClientInfo(m.id, m.hb_inbox, m.conn_id, m.protocol, m.ping_interval, m.ping_max_out)


def encode_sub(state: SubState) -> bytes:
    """Payload of a "new" or "update" record of ``subs.dat``, and of ``Subscriptions.proto``."""
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
