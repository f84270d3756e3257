"""Recorded monitoring answers of the original: the operations that led to them, carried out here,
and how to compare.

Clients use the inboxes that the recordings name, so that answers can be compared letter by letter;
what differs from run to run (ids, times, descriptors) is blotted out on both sides.
"""

from __future__ import annotations

import gzip
import http.client
import json
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ftstan.wire import messages
from ftstan.wire.codec import decode_msg_proto
from ftstan.wire.frames import pub_frame
from ftstan.wire.messages import StartPosition
from ftstan.wire.subjects import Subjects
from tests.ft.client import Arrived, NatsConnection
from tests.processes import HOST, PATIENCE_S, ROOT

if TYPE_CHECKING:
    import ssl

RECORDINGS = ROOT / "tests" / "data" / "cli" / "monitoring"
STARTS = {
    "new": StartPosition.NEW_ONLY,
    "last": StartPosition.LAST_RECEIVED,
    "seq": StartPosition.SEQUENCE_START,
    "first": StartPosition.FIRST,
}


def recording(name: str) -> dict[str, Any]:
    """One file of recorded answers, with the operations before them."""
    data: dict[str, Any] = json.loads(
        gzip.decompress((RECORDINGS / f"{name}.v0.25.6.json.gz").read_bytes())
    )
    return data


class Player:
    """The clients of a recording, on one NATS connection."""

    def __init__(self, port: int, cluster: str) -> None:
        self._nats = NatsConnection(port)
        self._subjects = Subjects.for_cluster(cluster)
        self._acks: dict[bytes, str] = {}
        self._acks_inbox = self._nats.inbox()
        self._nats.listen(self._acks_inbox, self._on_ack)
        self._subs: dict[tuple[str, str], bytes] = {}

    def play(self, operations: list[dict[str, Any]]) -> None:
        """Carry out the operations in order; each must end as it was recorded."""
        for operation in operations:
            kind = operation["op"]
            assert getattr(self, f"_{kind}")(operation) == operation["result"], operation
        # What was delivered last is acknowledged, and the acknowledgements have arrived.
        self._wait({"seconds": 0.2})
        self._connected("nobody")

    def close(self) -> None:
        self._nats.close()

    def _connect(self, operation: dict[str, Any]) -> str:
        client = operation["client"].encode()
        inbox = b"_INBOX.hb." + client
        self._nats.listen(inbox, lambda arrived: self._nats.publish(arrived.reply, b""))
        request = messages.ConnectRequest(
            client_id=client, heartbeat_inbox=inbox, conn_id=b"conn-" + client, protocol=1
        )
        answer = messages.parse(
            messages.ConnectResponse, self._ask(self._subjects.discovery, messages.encode(request))
        )
        return answer.error.decode() or "ok"

    def _publish(self, operation: dict[str, Any]) -> str:
        client = operation["client"].encode()
        guid = operation["guid"].encode()
        channel = operation["channel"].encode()
        self._acks.pop(guid, None)
        request = messages.PubMsg(
            client_id=client,
            conn_id=b"conn-" + client,
            guid=guid,
            subject=channel,
            data=operation["data"].encode(),
        )
        subject = self._subjects.publish.encode() + b"." + channel
        self._nats.send(pub_frame(subject, self._acks_inbox, messages.encode(request)))
        self._nats.pump(lambda: guid in self._acks, "an ack")
        return self._acks[guid] or "ok"

    def _subscribe(self, operation: dict[str, Any]) -> str:
        client = operation["client"]
        name = operation["name"]
        channel = operation["channel"].encode()
        inbox = f"_INBOX.{client}.{name}".encode()
        received: list[int] = []
        acks = operation.get("ack", True)
        key = (client, name)

        def on_message(arrived: Arrived) -> None:
            received.append(decode_msg_proto(arrived.payload)[0])
            if acks and key in self._subs:
                self._ack(channel, self._subs[key], received.pop())

        self._nats.listen(inbox, on_message)
        request = messages.SubscriptionRequest(
            client_id=client.encode(),
            subject=channel,
            inbox=inbox,
            q_group=operation.get("queue", "").encode(),
            durable_name=operation.get("durable", "").encode(),
            start_position=STARTS[operation.get("start", "new")],
            start_sequence=operation.get("seq", 0),
            max_in_flight=operation.get("max_inflight", 1024),
            ack_wait_in_secs=operation.get("ack_wait", 30),
        )
        payload = self._ask(self._subjects.subscribe, messages.encode(request))
        answer = messages.parse(messages.SubscriptionResponse, payload)
        self._subs[key] = answer.ack_inbox
        while acks and received:
            self._ack(channel, answer.ack_inbox, received.pop())
        return answer.error.decode() or "ok"

    def _close(self, operation: dict[str, Any]) -> str:
        request = messages.CloseRequest(client_id=operation["client"].encode())
        answer = messages.parse(
            messages.CloseResponse, self._ask(self._subjects.close, messages.encode(request))
        )
        return answer.error.decode() or "ok"

    def _wait(self, operation: dict[str, Any]) -> str:
        end = time.monotonic() + operation["seconds"]
        while (left := end - time.monotonic()) > 0:
            self._nats.read(left)
        return "ok"

    def _connected(self, name: str) -> None:
        """A ping that is answered comes behind every ack before it."""
        ping = messages.encode(messages.Ping(conn_id=f"conn-{name}".encode()))
        for _ in range(2):
            self._ask(self._subjects.pings, ping)

    def _ask(self, subject: str, payload: bytes) -> bytes:
        answer = self._nats.request(subject, payload)
        assert answer is not None
        return answer.payload

    def _ack(self, channel: bytes, inbox: bytes, sequence: int) -> None:
        self._nats.publish(inbox, messages.encode(messages.Ack(subject=channel, sequence=sequence)))

    def _on_ack(self, arrived: Arrived) -> None:
        ack = messages.parse(messages.PubAck, arrived.payload)
        self._acks[ack.guid] = ack.error.decode()


@dataclass
class Answer:
    """What is compared of an answer: header names are lower case."""

    status: str
    headers: dict[str, str]
    body: str


def ask(port: int, request: dict[str, Any], context: ssl.SSLContext | None = None) -> Answer:
    """Send a recorded request."""
    connection = (
        http.client.HTTPConnection(HOST, port, timeout=PATIENCE_S)
        if context is None
        else http.client.HTTPSConnection(HOST, port, timeout=PATIENCE_S, context=context)
    )
    try:
        connection.putrequest(request["method"], request["target"], skip_accept_encoding=True)
        for name, value in {"Connection": "close", **request.get("headers", {})}.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        body = answer.read().decode("utf-8", "replace")
        return Answer(f"HTTP/1.1 {answer.status} {answer.reason}", headers, body)
    finally:
        connection.close()


def recorded_answer(response: dict[str, Any]) -> Answer:
    """The same of the original."""
    headers = dict(line.split(": ", 1) for line in response["headers"])
    return Answer(
        response["status_line"],
        {name.lower(): value for name, value in headers.items()},
        response["body"] or "",
    )


_VOLATILE = re.compile(
    r'"(server_id|now|start_time|uptime|go|ack_inbox)": "[^"]*"|"(open_fds|max_fds)": \d+'
)


def steady(body: str) -> str:
    """A body without what differs from run to run."""
    return _VOLATILE.sub(lambda found: f'"{found[1] or found[2]}": ~', body)
