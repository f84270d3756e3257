"""Debug and trace lines of a real server, beside those that the original wrote at the same
operations.
"""

from __future__ import annotations

import json
import re
import signal
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.wire import messages
from ftstan.wire.subjects import Subjects
from tests.ft.client import NatsConnection
from tests.processes import CLUSTER, READY

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ft.client import Arrived
    from tests.processes import Stage

pytestmark = pytest.mark.processes

RECORDED = Path(__file__).parents[1] / "data" / "cli" / "debug-trace.0.25.6.txt"
_OPERATION = re.compile(r"# operation: (\{.*?\})(?: -> (.*))?")
_LINE = re.compile(r"\[[^]]+\] (?:<time> )?(\[[A-Z]{3}\] STREAM: .*)")
_STARTS = {
    "": messages.StartPosition.NEW_ONLY,
    "first": messages.StartPosition.FIRST,
    "last": messages.StartPosition.LAST_RECEIVED,
    "seq": messages.StartPosition.SEQUENCE_START,
}
#: Where ours differs on purpose (docs/compat/logging.md): what arrives malformed is told by kind,
#: at a falling rate.
OURS = {
    '[ERR] STREAM: [Client:me] Invalid channel "a.*" in subscription request from '
    "_STAN.sub.test-cluster": (
        "[WRN] STREAM: malformed subscribe: 1 since the last such line, the first one: client "
        '"me": '
        "stan: invalid subject"
    ),
}


def recorded() -> tuple[list[str], list[tuple[dict[str, Any], str, list[str]]]]:
    """The lines of the start, and each operation with its answer and the lines that followed it."""
    start: list[str] = []
    operations: list[tuple[dict[str, Any], str, list[str]]] = []
    for row in RECORDED.read_text("utf-8").splitlines():
        if row.startswith("# the NATS connections"):
            break
        if (found := _OPERATION.fullmatch(row)) is not None:
            operations.append((json.loads(found[1]), found[2] or "ok", []))
        elif (line := _LINE.fullmatch(row)) is not None:
            text = OURS.get(line[1], line[1])
            (operations[-1][2] if operations else start).append(text)
    return start, operations


class Player:
    """Does what the recording says, with the same names."""

    def __init__(self, port: int) -> None:
        self.nats = NatsConnection(port)
        self._subjects = Subjects.for_cluster(CLUSTER)
        self._ack_inboxes: dict[str, bytes] = {}
        self._channels: dict[str, bytes] = {}
        self._received: dict[str, int] = {}
        self._serial = count()

    def play(self, operation: dict[str, Any]) -> str:
        doing: Callable[[dict[str, Any]], bytes] = getattr(self, operation["op"])
        return doing(operation).decode() or "ok"

    def ask(self, subject: str, request: bytes) -> bytes:
        answer = self.nats.request(subject, request)
        assert answer is not None
        return answer.payload

    def connect(self, operation: dict[str, Any]) -> bytes:
        client = operation["client"].encode()
        inbox = b"_INBOX.hb." + client
        self.nats.listen(inbox, lambda beat: self.nats.publish(beat.reply, b""))
        self.nats.flush()
        request = messages.ConnectRequest(
            client_id=client, heartbeat_inbox=inbox, conn_id=client, protocol=1
        )
        answer = self.ask(self._subjects.discovery, messages.encode(request))
        return messages.parse(messages.ConnectResponse, answer).error

    def publish(self, operation: dict[str, Any]) -> bytes:
        message = messages.PubMsg(
            client_id=operation["client"].encode(),
            conn_id=operation["client"].encode(),
            guid=operation["guid"].encode(),
            subject=operation["channel"].encode(),
            data=operation["data"].encode(),
        )
        answer = self.ask(
            f"{self._subjects.publish}.{operation['channel']}", messages.encode(message)
        )
        return messages.parse(messages.PubAck, answer).error

    def subscribe(self, operation: dict[str, Any]) -> bytes:
        name = operation["name"]
        client = operation["client"]
        inbox = f"_INBOX.{client}.{name}".encode()
        self._channels[name] = operation["channel"].encode()
        self._received[name] = 0

        def on_message(_: Arrived) -> None:
            self._received[name] += 1

        self.nats.listen(inbox, on_message)
        request = messages.SubscriptionRequest(
            client_id=client.encode(),
            subject=self._channels[name],
            inbox=inbox,
            q_group=operation.get("queue", "").encode(),
            durable_name=operation.get("durable", "").encode(),
            max_in_flight=1024,
            ack_wait_in_secs=operation.get("ack_wait", 30),
            start_position=_STARTS[operation.get("start", "")],
            start_sequence=operation.get("seq", 0),
        )
        answer = self.ask(self._subjects.subscribe, messages.encode(request))
        response = messages.parse(messages.SubscriptionResponse, answer)
        self._ack_inboxes[name] = response.ack_inbox
        return response.error

    def expect(self, name: str, received: int) -> None:
        """Wait until a subscription has so many messages."""
        self.nats.pump(lambda: self._received[name] >= received, f"message {received} of {name}")

    def acknowledge(self, name: str, sequence: int) -> None:
        ack = messages.encode(messages.Ack(subject=self._channels[name], sequence=sequence))
        self.nats.publish(self._ack_inboxes[name], ack)
        self.nats.flush()

    def unsubscribe(self, operation: dict[str, Any]) -> bytes:
        return self._leave(self._subjects.unsubscribe, operation["name"])

    def close_sub(self, operation: dict[str, Any]) -> bytes:
        return self._leave(self._subjects.sub_close, operation["name"])

    def _leave(self, subject: str, name: str) -> bytes:
        request = messages.UnsubscribeRequest(
            client_id=b"me", subject=self._channels[name], inbox=self._ack_inboxes[name]
        )
        return messages.parse(
            messages.SubscriptionResponse, self.ask(subject, messages.encode(request))
        ).error

    def close(self, operation: dict[str, Any]) -> bytes:
        request = messages.CloseRequest(client_id=operation["client"].encode())
        return messages.parse(
            messages.CloseResponse, self.ask(self._subjects.close, messages.encode(request))
        ).error


def test_every_operation_leaves_the_lines_that_the_original_leaves(stage: Stage) -> None:
    server = stage.server("server", "-SD", "-SV")
    server.wait_for(READY)
    start, operations = recorded()
    assert len(operations) == 19

    def ours() -> list[str]:
        return [line for line in server.lines() if " STREAM: " in line]

    # Four lines have versions and ids in them; the tests of the start look at those.
    assert ours()[4:] == start[4:]
    player = Player(server.port)
    for operation, outcome, expected in operations:
        before = len(ours())
        deliveries = [line for line in expected if "elivering msg" in line]
        if operation["op"] == "wait":
            player.expect("s6", 2)
        else:
            assert player.play(operation) == outcome, operation
        if deliveries and operation["op"] == "subscribe":
            player.expect(operation["name"], 1)
            if operation.get("ack", True):
                (found,) = re.findall(r"seq=(\d+)$", deliveries[0])
                player.acknowledge(operation["name"], int(found))
        server.wait_for(expected[-1].removeprefix("[DBG] "), 1) if expected else player.nats.flush()
        seen = ours()[before:]
        # The order in which a client's subscriptions end is nobody's promise.
        arranged = sorted if operation["op"] == "close" else list
        assert arranged(seen) == arranged(expected), operation
    before = len(ours())
    server.signal(signal.SIGINT)
    assert server.status() == 0
    assert ours()[before:] == [
        "[INF] STREAM: Shutting down.",
        f'[DBG] STREAM: connection "_NSS-{CLUSTER}-general" has been closed',
    ]


def test_without_the_flags_no_such_line_is_written(stage: Stage) -> None:
    server = stage.server("server")
    server.wait_for(READY)
    player = Player(server.port)
    for operation, outcome, _ in recorded()[1][:3]:
        assert player.play(operation) == outcome
    server.signal(signal.SIGINT)
    assert server.status() == 0
    assert [line for line in server.lines() if line.startswith(("[DBG]", "[TRC]"))] == []
