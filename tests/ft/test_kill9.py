"""A lone server on the file store, killed without a word while it is under load."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.ft.client import StanClient
from tests.ft.load import CHANNEL, Load
from tests.processes import READY, free_ports

if TYPE_CHECKING:
    from tests.processes import Server, Stage

pytestmark = pytest.mark.processes

ROUNDS = 10


def start(stage: Stage, ports: list[int]) -> Server:
    server = stage.file_server("server", port=ports[0], monitor=ports[1])
    server.wait_for(READY)
    return server


def test_every_acked_publish_survives_ten_kills_at_one_sequence_with_one_content(
    stage: Stage,
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    ports = free_ports(2)
    load = Load()
    contents: dict[int, bytes] = {}
    server = start(stage, ports)
    for round_ in range(ROUNDS):
        publisher = StanClient(server.port, f"publisher-{round_}")
        publisher.connect()
        load.join(publisher)
        load.run(rng.randrange(200, 2000))
        server.kill()
        load.read_last_acks()

        server = start(stage, ports)
        reader = StanClient(server.port, f"reader-{round_}")
        reader.connect()
        now = reader.read_all(CHANNEL)
        assert contents.items() <= now.items(), "a sequence changed its content, or went away"
        contents = now
        load.judge(contents)


def test_a_client_that_outlived_a_kill_goes_on_with_its_connection_id(stage: Stage) -> None:
    ports = free_ports(2)
    server = start(stage, ports)
    client = StanClient(server.port)
    client.connect()
    client.publish(CHANNEL, b"one", b"two")

    server.kill()
    server = start(stage, ports)

    client.move(server.port)
    assert client.ping() == ""
    client.publish(CHANNEL, b"three")
    assert client.read_to(CHANNEL, 3) == {1: b"one", 2: b"two", 3: b"three"}


def test_a_durable_goes_on_after_a_kill_with_what_was_pending(stage: Stage) -> None:
    ports = free_ports(2)
    server = start(stage, ports)
    client = StanClient(server.port)
    client.connect()
    durable = client.subscribe(CHANNEL, durable=b"audit", acks=False)
    client.publish(CHANNEL, *(b"%d" % n for n in range(1, 11)))
    client.nats.pump(lambda: len(durable.received) == 10, "ten deliveries")
    client.settle_acks()

    server.kill()
    server = start(stage, ports)

    client.move(server.port)
    client.close()
    client = StanClient(server.port)
    client.connect()
    again = client.subscribe(CHANNEL, durable=b"audit", acks=False)
    client.nats.pump(lambda: len(again.received) == 10, "the ten that were not acked")
    assert [(m.sequence, m.data, m.redelivered) for m in again.received] == [
        (n, b"%d" % n, True) for n in range(1, 11)
    ]


def test_a_publish_that_our_client_repeats_after_a_kill_is_acked_and_stored_once(
    stage: Stage,
) -> None:
    ports = free_ports(2)
    words = ("-dedup_window", "1000")
    server = stage.file_server("server", *words, port=ports[0], monitor=ports[1])
    server.wait_for(READY)
    first = StanClient(server.port, "first")
    first.connect()
    guids = [b"ft1.%d" % i for i in range(100)]
    payloads = [b"payload %d" % i for i in range(100)]
    first.offer(CHANNEL, *payloads, guids=guids)
    first.settle(guids)
    server.kill()

    server = stage.file_server("server", *words, port=ports[0], monitor=ports[1])
    server.wait_for(READY)
    second = StanClient(server.port, "second")
    second.connect()
    second.offer(CHANNEL, *payloads, b"new", guids=[*guids, b"ft1.new"])
    second.settle([*guids, b"ft1.new"])
    assert not second.errors
    assert list(second.read_to(CHANNEL, 101).values()) == [*payloads, b"new"]
    assert second.publish(CHANNEL, b"behind them")
    assert second.read_to(CHANNEL, 102)[102] == b"behind them"
