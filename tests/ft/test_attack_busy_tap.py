"""Whoever listens to everything at the active's listener, and is not silent, keeps no client of
another member from its answers.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from ftstan.wire import messages
from tests.ft.client import NatsConnection, StanClient

if TYPE_CHECKING:
    from tests.processes import Stage

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("tap", [">", "_INBOX.>"])
def test_a_tap_that_publishes_keeps_no_client_of_another_member_from_its_answers(
    stage: Stage, tap: str
) -> None:
    a, b = stage.routed_pair()
    taps = NatsConnection(a.port)
    taps.listen(tap, lambda _: None)
    taps.flush()
    ends = threading.Event()

    def be_busy() -> None:
        """An application beside STAN: it says something each half second, and reads all."""
        while not ends.is_set():
            taps.publish("metrics.cpu", b"12")
            taps.read(0.1)
            time.sleep(0.4)

    thread = threading.Thread(target=be_busy)
    thread.start()
    try:
        time.sleep(1)
        client = StanClient(b.port, "there")
        request = messages.encode(
            messages.ConnectRequest(
                client_id=b"there",
                heartbeat_inbox=client._heartbeat_inbox,
                conn_id=client.conn_id,
                protocol=1,
            )
        )
        answer = client.nats.request(client._subjects.discovery, request, 25.0)
        assert answer is not None, "no answer to a connect within 25 s"
        client.publish(b"foo", b"1", b"2", b"3")
        got = client.subscribe(b"foo")
        client.nats.pump(lambda: got.has(3), "the messages")
    finally:
        ends.set()
        thread.join()


@pytest.mark.parametrize("tap", [">", "_INBOX.>"])
def test_a_new_tap_takes_nothing_from_a_subscriber_of_another_member(
    stage: Stage, tap: str
) -> None:
    a, b = stage.routed_pair()
    here = StanClient(a.port, "here")
    here.connect()
    there = StanClient(b.port, "there")
    there.connect()
    got = there.subscribe(b"foo")
    here.publish(b"foo", b"1")
    there.nats.pump(lambda: got.has(1), "the first")
    taps = NatsConnection(a.port)
    taps.listen(tap, lambda _: None)
    taps.flush()
    here.publish(b"foo", *(b"%d" % n for n in range(2, 50)))
    end = time.monotonic() + 4
    while time.monotonic() < end and not got.has(49):
        there.nats.read(0.05)
    assert got.sequences == list(range(1, 50))
