"""What a hostile client tried on a running server, from outside, and what became of it for the
others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ftstan.wire import messages
from tests.ft.client import NatsConnection, StanClient
from tests.processes import CLUSTER, READY

if TYPE_CHECKING:
    from tests.processes import Server, Stage

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

#: Subscriptions whose whole windows, 65 MB, are sent again each second.
GREEDY = 500
WINDOW = 1000


def start(stage: Stage, *words: str) -> Server:
    server = stage.server("server", *(words or ("-store", "memory")))
    server.wait_for(READY)
    return server


def subscribe_greedily(client: StanClient, channel: bytes, inbox: bytes) -> None:
    """Subscribe many times over to one inbox, and acknowledge nothing."""
    for _ in range(GREEDY):
        request = messages.SubscriptionRequest(
            client_id=client.client_id,
            subject=channel,
            inbox=inbox,
            max_in_flight=WINDOW,
            ack_wait_in_secs=1,
            start_position=messages.StartPosition.FIRST,
        )
        client.nats.publish(f"_STAN.sub.{CLUSTER}", messages.encode(request), b"_INBOX.answers")
    client.nats.flush()


def test_a_reader_that_has_stopped_keeps_nothing_of_the_others_waiting(stage: Stage) -> None:
    """NATS stalls who sends to a client that reads nothing, and all of ours is on one connection.

    Each of the messages took two seconds and a half to be acknowledged, and none was delivered.
    """
    server = start(stage)
    greedy = StanClient(server.port, "greedy")
    greedy.connect()
    for _ in range(10):
        greedy.publish(b"much", *(b"x" * 100 for _ in range(200)))
    stopped = NatsConnection(server.port)
    stopped.send(b"SUB _INBOX.stopped 1\r\n")
    subscribe_greedily(greedy, b"much", b"_INBOX.stopped")
    bystander = StanClient(server.port, "bystander")
    bystander.connect()
    quiet = bystander.subscribe(b"quiet")
    # More than the NATS server keeps for one connection has been sent by then.
    server.wait_for("Slow Consumer Detected")
    for count in range(1, 51):
        bystander.publish(b"quiet", b"x")
        bystander.nats.pump(lambda count=count: quiet.has(count), "a message of one's own")  # type: ignore[misc]
    assert quiet.sequences == list(range(1, 51))
