"""A takeover of a store with more channels than are opened at once, and what its owner tells
standbys of them.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from ftstan.ft.digest import Digest, decode_digest
from ftstan.ft.subjects import group_subject
from tests.ft.client import Arrived, NatsConnection, StanClient
from tests.processes import CLUSTER, GROUP

if TYPE_CHECKING:
    from tests.processes import Stage

pytestmark = pytest.mark.processes

CHANNELS = [b"channel.%d" % n for n in range(70)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_every_channel_goes_on_where_it_ended_and_its_subscriptions_too(
    stage: Stage, number: signal.Signals
) -> None:
    nats = stage.nats()
    active, standby = stage.pair_on(nats)
    client = StanClient(nats.port)
    client.connect()
    for channel in CHANNELS:
        client.publish(channel, b"before")
    plain = client.subscribe(CHANNELS[-1])

    active.signal(number)
    standby.wait_until_active()

    for channel in CHANNELS:
        client.publish(channel, b"after")
    client.nats.pump(lambda: 2 in plain.sequences, "the new message on a recovered subscription")
    for channel in CHANNELS:
        assert client.read_to(channel, 2) == {1: b"before", 2: b"after"}
    assert standby.serverz()["channels"] == len(CHANNELS)
    assert set(client.acks.values()) == {1}


def test_an_owner_says_each_second_where_its_channels_end(stage: Stage) -> None:
    nats = stage.nats()
    active, standby = stage.pair_on(nats)
    client = StanClient(nats.port)
    client.connect()
    observer = NatsConnection(nats.port)
    heard: list[Digest] = []

    def on_message(arrived: Arrived) -> None:
        digest = decode_digest(arrived.payload)
        if digest is not None:
            heard.append(digest)

    observer.listen(group_subject(CLUSTER, GROUP), on_message)
    observer.flush()
    client.publish(b"orders", b"one", b"two")
    observer.pump(
        lambda: any(e.last == 2 for d in heard for e in d.ends), "a digest with both messages"
    )

    (end,) = heard[-1].ends
    assert (end.name, heard[-1].server_id) == (b"orders", active.serverz()["server_id"])
    assert (stage.store / "orders" / f"msgs.{end.slice_number}.idx").stat().st_size == end.index_end
    assert standby.ft_status == 204
