"""A client's registration as bytes: what the file store keeps, and what partitions tell each
other.
"""

from __future__ import annotations

from ftstan.stores.interface import ClientInfo
from ftstan.wire import messages


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
