"""The shapes of the oracle's answer, and the fields of the stored messages
(``docs/compat/filestore.md`` §2.5).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.oracle.goproto import Fields

#: Contents of a datastore: path relative to its root -> bytes, or ``None`` for a directory.
Tree = dict[str, bytes | None]

SERVER_FIELDS: Fields = {
    1: ("ClusterID", "bytes"),
    2: ("Discovery", "bytes"),
    3: ("Publish", "bytes"),
    4: ("Subscribe", "bytes"),
    5: ("Unsubscribe", "bytes"),
    6: ("Close", "bytes"),
    7: ("SubClose", "bytes"),
    8: ("AcksSubs", "bytes"),
    9: ("NodeID", "bytes"),
}
CLIENT_FIELDS: Fields = {
    1: ("ID", "bytes"),
    2: ("HbInbox", "bytes"),
    3: ("ConnID", "bytes"),
    4: ("Protocol", "int32"),
    5: ("PingInterval", "int32"),
    6: ("PingMaxOut", "int32"),
}
CLIENT_DELETE_FIELDS: Fields = {1: ("ID", "bytes")}
SUB_FIELDS: Fields = {
    1: ("ID", "uint64"),
    2: ("ClientID", "bytes"),
    3: ("QGroup", "bytes"),
    4: ("Inbox", "bytes"),
    5: ("AckInbox", "bytes"),
    6: ("MaxInFlight", "int32"),
    7: ("AckWaitInSecs", "int32"),
    8: ("DurableName", "bytes"),
    9: ("LastSent", "uint64"),
    10: ("IsDurable", "bool"),
    11: ("IsClosed", "bool"),
}
SUB_DELETE_FIELDS: Fields = {1: ("ID", "uint64")}
SUB_EVENT_FIELDS: Fields = {1: ("ID", "uint64"), 2: ("Seqno", "uint64")}
MESSAGE_FIELDS: Fields = {
    1: ("Sequence", "uint64"),
    2: ("Subject", "bytes"),
    3: ("Reply", "bytes"),
    4: ("Data", "bytes"),
    5: ("Timestamp", "int64"),
    6: ("Redelivered", "bool"),
    7: ("RedeliveryCount", "uint32"),
    10: ("CRC32", "uint32"),
}


class GoRefuses(Exception):  # noqa: N818 - a verdict, not an error
    """The server would not start: ``text`` is what it says, ``tree`` what it leaves behind."""

    def __init__(self, text: str, tree: Tree) -> None:
        super().__init__(text)
        self.text = text
        self.tree = tree


@dataclass(frozen=True, slots=True)
class GoServerInfo:
    cluster_id: bytes
    discovery: bytes
    publish: bytes
    subscribe: bytes
    unsubscribe: bytes
    close: bytes
    sub_close: bytes
    acks_subs: bytes
    node_id: bytes


@dataclass(frozen=True, slots=True)
class GoClient:
    client_id: bytes
    hb_inbox: bytes
    conn_id: bytes
    protocol: int
    ping_interval: int
    ping_max_out: int


@dataclass(frozen=True, slots=True)
class GoMessage:
    sequence: int
    timestamp: int
    subject: bytes
    reply: bytes
    data: bytes


@dataclass(slots=True)
class GoSub:
    sub_id: int
    client_id: bytes
    queue: bytes
    inbox: bytes
    ack_inbox: bytes
    max_in_flight: int
    ack_wait_secs: int
    durable_name: bytes
    last_sent: int
    is_durable: bool
    is_closed: bool
    pending: set[int] = field(default_factory=set)


@dataclass(slots=True)
class GoChannel:
    """A recovered channel.

    ``messages`` is what a subscriber from the first message receives until delivery stops.

    ``write_slice``: number of the slice that the next message goes to, or after which a new one is
    made.
    """

    name: bytes
    msgs: int = 0
    bytes: int = 0
    first: int = 0
    last: int = 0
    write_slice: int | None = None
    messages: dict[int, GoMessage] = field(default_factory=dict)
    subs: dict[int, GoSub] = field(default_factory=dict)
    max_sub_id: int = 0


@dataclass(slots=True)
class GoView:
    """The recovered store; ``info`` is ``None`` if there was no server record.

    ``tree``: the files after recovery.
    """

    info: GoServerInfo | None
    clients: dict[bytes, GoClient]
    channels: dict[bytes, GoChannel]
    tree: Tree
