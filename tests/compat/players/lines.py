"""One line of a session, recorded or played: what passed on one NATS connection, or what was done
to a server.

Both come in the form that ``tests/data/wire/README.md`` describes, so that one judge reads them
alike. Names of fields are in snake case here. ``Directory`` learns from what passes which message a
payload is; ``names`` gives the id of what comes to a raw client. Nothing here opens a socket.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ftstan.base.errors import WireError
from ftstan.wire import messages

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor

HEARTBEAT = "heartbeat"

_INBOX = re.compile(r"_INBOX\.client\d\.(r|m|hb)\.(\w+)")
_NAMED = {
    "start_position": ["NewOnly", "LastReceived", "TimeDeltaStart", "SequenceStart", "First"],
    "msg_type": ["SubUnsubscribe", "SubClose", "ConnClose", "FTHeartbeat", "Partitioning"],
}
#: Fields that are bytes, not strings.
_RAW = {"data", "conn_id", "sha256"}
#: Subjects by their beginning -> the message that is published there, and the one that answers it.
_REQUESTS = [
    (re.compile(r"_STAN\.discover\..*\.pings"), "Ping", "PingResponse"),
    (re.compile(r"_STAN\.discover\..*"), "ConnectRequest", "ConnectResponse"),
    (re.compile(r"_STAN\.pub\..*"), "PubMsg", "PubAck"),
    (re.compile(r"_STAN\.sub\..*"), "SubscriptionRequest", "SubscriptionResponse"),
    (re.compile(r"_STAN\.(unsub|subclose)\..*"), "UnsubscribeRequest", "SubscriptionResponse"),
    (re.compile(r"_STAN\.close\..*"), "CloseRequest", "CloseResponse"),
    (re.compile(r"_STAN\.(ft|part)\..*"), "CtrlMsg", "CtrlMsg"),
]


@dataclass(slots=True)
class Line:
    """``t`` in seconds.

    ``sources``: which parts came from the server earlier; the rest as on the wire.
    """

    n: int
    t: float
    conn: str
    op: str
    dir: str | None = None
    id: str = ""
    subject: str = ""
    reply: str = ""
    sid: str = ""
    text: str = ""
    hdr: str = ""
    payload: bytes | None = None
    type: str = ""
    fields: dict[str, Any] | None = None
    kind: str = ""
    args: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    @property
    def of_client(self) -> bool:
        """Whether it passed on a connection of a client."""
        return self.conn != "runner" and not self.conn.startswith("server")

    @property
    def delivered(self) -> bool:
        """Whether a client received it as a message."""
        return self.of_client and self.dir == "s2c" and self.op in {"MSG", "HMSG"}

    def value(self, name: str) -> Any:
        """A field of the message, ``None`` if it is not there."""
        return (self.fields or {}).get(name)

    def shown(self) -> str:
        """For a report."""
        head = f"{self.t:8.3f} {self.conn} {self.dir or ''} {self.op} {self.id} {self.subject}"
        body = f"{self.type} {self.fields}" if self.fields is not None else self.text
        return f"{head} {body}"[:240]


def snake(name: str) -> str:
    """A field's name as the message classes have it."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def text(name: str, value: bytes) -> str:
    """A field of bytes as recordings show it: a string as it is, other bytes when they are
    printable ASCII.
    """
    try:
        found = value.decode()
    except UnicodeDecodeError:
        return "0x" + value.hex()
    printable = all(0x20 <= byte < 0x7F for byte in value)
    return found if printable or name not in _RAW else "0x" + value.hex()


def decode(kind: str, payload: bytes) -> dict[str, Any] | None:
    """The fields that are set in a payload of message ``kind``; ``None`` if it does not decode."""
    try:
        message = messages.parse(getattr(messages, kind), payload)
    except WireError:
        return None
    return {f.name: _shown(f, value) for f, value in message.ListFields()}


def _shown(descriptor: FieldDescriptor, value: Any) -> Any:
    if descriptor.name in _NAMED and 0 <= value < len(_NAMED[descriptor.name]):
        return _NAMED[descriptor.name][value]
    return text(descriptor.name, value) if isinstance(value, bytes) else value


class Directory:
    """Which message goes to which subject, as far as it has been said in what passed."""

    def __init__(self) -> None:
        self._types: dict[str, str] = {}
        self._heartbeats: set[str] = set()

    def read(self, line: Line) -> None:
        """Fill in type, fields and kind of a line that carries a payload, and learn from it."""
        if line.payload is None or line.hdr:
            return
        if line.subject in self._heartbeats:
            line.kind = HEARTBEAT if line.dir == "s2c" else ""
            return
        request = next((r for r in _REQUESTS if r[0].fullmatch(line.subject)), None)
        line.type = request[1] if request else self._types.get(line.subject, "")
        if not line.type:
            return
        if request and line.reply:
            self._types[line.reply] = request[2]
        line.fields = decode(line.type, line.payload)
        if line.fields is None and line.type == "PubMsg" and line.payload.startswith(b"\x08"):
            # A control message among publishes is known by its first byte.
            line.type = "CtrlMsg"
            line.fields = decode("CtrlMsg", line.payload)
        match line.type, line.fields:
            case "ConnectRequest", {"heartbeat_inbox": inbox}:
                self._heartbeats.add(inbox)
            case "SubscriptionRequest", {"inbox": inbox}:
                self._types[inbox] = "MsgProto"
            case "SubscriptionResponse", {"ack_inbox": inbox}:
                self._types[inbox] = "Ack"


class Names:
    """The ids of what comes to raw clients, whose inboxes tell what they are for."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def of(self, subject: str) -> str:
        """The id of the next message to ``subject``; empty if it is no inbox of a raw client."""
        found = _INBOX.fullmatch(subject)
        if found is None:
            return ""
        count = self._counts[subject] = self._counts.get(subject, 0) + 1
        purpose, name = found.groups()
        if purpose == "r":
            return f"{name}.reply" + (str(count) if count > 1 else "")
        return f"{name}.msg{count}" if purpose == "m" else f"{name}.hb{count}"
