"""The server's identity as every durable store keeps it: one protobuf, with the mark of a store
that has encrypted payloads.
"""

from __future__ import annotations

from ftstan.stores.interface import ServerInfo
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
