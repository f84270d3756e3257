"""Dead letters of real servers: given up after their deliveries, kept over kill -9, published again
with ``ftstanctl channel redrive``.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import json
import random
import signal
import sys
from typing import TYPE_CHECKING

import pytest

import ftstan.client
from ftstan.client import Start
from ftstan.wire.origin import Origin, encode_origin, parse_origin
from tests.contract.sqlplaces import empty
from tests.ft.cluster import Cluster
from tests.ft.operator import run
from tests.processes import CLUSTER, HOST, READY, until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ftstan.client import Message
    from ftstan.stores.sql.source import Source
    from tests.processes import Server, Stage

pytestmark = pytest.mark.processes

LETTERS = 'dead_letter: { max_deliveries: %d, channel: "dead" }'


def configured(stage: Stage, rules: str, more: str = "") -> Path:
    file = stage.directory / "server.conf"
    file.write_text(f'store_limits {{ channels {{ "orders.>" {{ {rules} }} {more} }} }}\n')
    return file


def client(port: int, client_id: str) -> object:
    return ftstan.client.connect(
        CLUSTER, client_id, servers=f"nats://{HOST}:{port}", republish=True, timeout=30
    )


async def poison(port: int, channel: str, *messages: bytes, wait_s: float = 0.0) -> None:
    """Publish messages, and have a durable be sent them that acknowledges none."""
    async with await client(port, "worker") as one:  # type: ignore[misc]
        await one.subscribe(
            channel, start=Start.first(), durable="pay", ack_wait=1, manual_acks=True
        )
        for message in messages:
            await one.publish(channel, message)
        await asyncio.sleep(wait_s)


async def stored(port: int, channel: str = "dead", count: int = 0) -> list[Message]:
    """What a channel holds; waits for so many messages."""
    found: list[Message] = []
    async with await client(port, f"reader-{random.randrange(1 << 30)}") as one:  # type: ignore[misc]
        sub = await one.subscribe(channel, start=Start.first())
        try:
            while True:
                found.append(await sub.next(20.0 if len(found) < count else 0.5))
        except TimeoutError:
            return found


def again(port: int, *words: str) -> Sequence[str]:
    return ("--server", f"nats://{HOST}:{port}", "--cluster", CLUSTER, *words)


def test_a_message_that_nobody_can_process_ends_in_the_dead_letter_channel_and_goes_back(
    stage: Stage,
) -> None:
    server = stage.file_server("a", "-c", str(configured(stage, LETTERS % 2)))
    server.wait_for(READY)
    asyncio.run(poison(server.port, "orders.eu", b"poison", b"\x00\xff", wait_s=4))
    letters = asyncio.run(stored(server.port, count=2))
    assert [letter.data for letter in letters] == [b"poison", b"\x00\xff"]
    for number, letter in enumerate(letters, 1):
        origin = parse_origin(letter.reply)
        assert origin is not None
        assert (origin.channel, origin.sequence) == (b"orders.eu", number)
        assert (origin.durable, origin.client_id) == (b"pay", b"worker")
        assert origin.deliveries == 2
        assert 0 < letter.timestamp - origin.first_ns < 60_000_000_000
    (sample,) = server.metrics()["ftstan_dead_letters"].samples
    assert (sample.labels, sample.value) == ({"channel": "orders.eu"}, 2)
    status, body = server.get("/dashboard/data")
    assert (status, json.loads(body)["counters"]["dead_letters"]) == (http.HTTPStatus.OK, 2)

    said = run("channel", "redrive", *again(server.port), "dead", "--output", "json")
    assert said.status == 0, said
    assert said.json == {
        "channel": "dead",
        "published": 2,
        "filtered": 0,
        "without_origin": 0,
        "failed": 0,
        "not_looked_at": 0,
    }
    back = asyncio.run(stored(server.port, "orders.eu", 4))
    assert [(m.data, m.reply) for m in back] == [(b"poison", b""), (b"\x00\xff", b"")] * 2

    # Each has been published, and is not published twice.
    said = run("channel", "redrive", *again(server.port), "dead", "--output", "json")
    assert said.json["published"] == 0
    said = run("channel", "redrive", *again(server.port), "dead", "--to", "orders.other")
    assert (said.status, said.out) == (
        0,
        (
            "channel dead: 2 published again to orders.other, 0 not of the filter, 0 without an "
            "origin, 0 failed, 0 not looked at\n"
        ),
    )
    words = ("--filter", "channel=orders.*", "--filter", "durable=other")
    said = run("channel", "redrive", *again(server.port), "dead", *words, "--output", "json")
    assert (said.json["published"], said.json["filtered"]) == (0, 2)


def test_a_redrive_goes_past_origins_that_name_no_channel(stage: Stage) -> None:
    server = stage.file_server("a")
    server.wait_for(READY)

    async def fill() -> None:
        async with await client(server.port, "filler") as one:  # type: ignore[misc]
            for name in (b"no/channel", b"ft.epoch", b"a..b"):
                for n in range(300):
                    reply = encode_origin(Origin(name, n + 1, b"pay"))
                    await one.publish_async("dead", b"x", reply=reply)
            await one.publish("dead", b"last", reply=encode_origin(Origin(b"orders.eu", 1)))

    asyncio.run(fill())
    said = run("channel", "redrive", *again(server.port), "dead", "--output", "json")
    assert said.status == 0, said
    assert (said.json["published"], said.json["without_origin"]) == (1, 900)
    assert [one.data for one in asyncio.run(stored(server.port, "orders.eu", 1))] == [b"last"]


def test_a_redrive_refuses_what_it_does_not_understand(stage: Stage) -> None:
    server = stage.file_server("a", "-c", str(configured(stage, LETTERS % 2)))
    server.wait_for(READY)
    said = run("channel", "redrive", *again(server.port), "dead")
    assert said.status != 0
    assert 'there is no channel "dead"' in said.err
    asyncio.run(poison(server.port, "dead", b"x"))
    for words in (
        ("--filter", "colour=red"),
        ("--filter", "channel"),
        ("--to", "dead"),
        ("--to", "a/b"),
    ):
        said = run("channel", "redrive", *again(server.port), "dead", *words)
        assert said.status != 0
        assert "Traceback" not in said.err


def test_rules_come_and_go_with_a_reload(stage: Stage) -> None:
    file = configured(stage, "max_msgs: 1000")
    server = stage.file_server("a", "-c", str(file))
    server.wait_for(READY)
    asyncio.run(poison(server.port, "orders.eu", b"one"))
    configured(stage, LETTERS % 1)
    server.signal(signal.SIGHUP)
    server.wait_for('Reloaded: "orders.>": ')
    asyncio.run(poison(server.port, "orders.eu", b"two", wait_s=3))
    assert len(asyncio.run(stored(server.port, count=1))) >= 1
    configured(stage, 'dead_letter: { max_deliveries: 2, channel: "no/channel" }')
    server.signal(signal.SIGHUP)
    server.wait_for('"no/channel" cannot name a channel')


def test_kill_9_at_any_moment_leaves_no_message_in_neither_place(stage: Stage) -> None:
    """Four times: messages that are never acknowledged, and a server that dies among them."""
    file = configured(stage, LETTERS % 2)
    chance = random.Random()
    published = 0

    async def die(server: Server) -> None:
        async with await client(server.port, "worker") as one:  # type: ignore[misc]
            await one.subscribe("orders.eu", durable="pay", ack_wait=1, manual_acks=True)
            await asyncio.sleep(chance.uniform(0.9, 2.6))
            server.kill()

    for life in range(4):
        server = stage.file_server(f"life-{life}", "-c", str(file))
        server.wait_for(READY)
        messages = [b"%d" % n for n in range(published, published + 20)]
        asyncio.run(poison(server.port, "orders.eu", *messages))
        published += 20
        # A session that ends with its server has nobody who closes it.
        with contextlib.suppress(ftstan.client.ClientError):
            asyncio.run(die(server))
    server = stage.file_server("last", "-c", str(file))
    server.wait_for(READY)
    port = server.port
    asyncio.run(poison(port, "orders.eu", wait_s=6))
    letters = asyncio.run(stored(port, count=published))
    times = [letter.data for letter in letters]
    assert sorted(set(times), key=int) == [b"%d" % n for n in range(published)]
    # A death between the store and the acknowledgement stores one more.
    assert max(map(times.count, times)) <= 5


@pytest.mark.parametrize("window", [0, 100_000])
def test_a_redrive_that_is_killed_goes_on_and_with_a_window_publishes_each_once(
    stage: Stage, window: int
) -> None:
    server = stage.file_server("a", "-dedup_window", str(window))
    server.wait_for(READY)
    count = 6000

    async def fill() -> None:
        async with await client(server.port, "filler") as one:  # type: ignore[misc]
            for n in range(count):
                reply = encode_origin(Origin(b"orders.eu", n + 1, b"pay"))
                await one.publish_async("dead", b"%d" % n, reply=reply)
            await one.flush()

    # All of it is stored: whether the session was closed in time is of no interest.
    with contextlib.suppress(ftstan.client.ClientError):
        asyncio.run(fill())
    command = [sys.executable, "-m", "ftstan.cli.ctl", "channel", "redrive"]
    command += [*again(server.port), "dead", "--output", "json"]
    kills = 0
    for _ in range(3):
        before = published_again(server)
        started = stage.run("redrive", command)
        until(
            lambda started=started, before=before: (  # type: ignore[misc]
                not started.running or published_again(server) > before
            ),
            "some of it",
        )
        kills += started.running
        started.kill()
    assert kills
    said = run("channel", "redrive", *again(server.port), "dead", "--output", "json")
    assert said.status == 0, said
    back = [int(one.data) for one in asyncio.run(stored(server.port, "orders.eu", count))]
    assert set(back) == set(range(count))
    if window:
        assert len(back) == count


def published_again(server: Server) -> int:
    """How many messages the channel of the dead letters has, right now."""
    status, body = server.get("/streaming/channelsz?channel=orders.eu")
    return int(json.loads(body)["msgs"]) if status == http.HTTPStatus.OK else 0


def killed_and_read(stage: Stage, name: str, words: Sequence[str]) -> None:
    """Dead letters that a server stored are in the store of the next one, each once."""
    server = stage.server(f"{name}-1", *words)
    server.wait_for(READY)
    asyncio.run(poison(server.port, "orders.eu", b"one", b"two", wait_s=4))
    asyncio.run(stored(server.port, count=2))
    server.kill()
    server = stage.server(f"{name}-2", *words)
    server.wait_for(READY)
    asyncio.run(poison(server.port, "orders.eu", wait_s=3))
    assert [one.data for one in asyncio.run(stored(server.port, count=2))] == [b"one", b"two"]


def test_a_database_keeps_dead_letters_too(stage: Stage, sql_source: Source, sql_text: str) -> None:
    empty(sql_source)
    words = ("-store", "sql", "-sql_driver", sql_source.driver, "-sql_source", sql_text)
    file = configured(stage, LETTERS % 2)
    killed_and_read(stage, sql_source.driver, (*words, "-sc", str(file)))


def test_a_takeover_goes_on_with_dead_letters(stage: Stage) -> None:
    nats = stage.nats()
    a, b = stage.pair_on(nats, "-sc", str(configured(stage, LETTERS % 2)))
    asyncio.run(poison(nats.port, "orders.eu", b"one", wait_s=3))
    asyncio.run(stored(nats.port, count=1))
    asyncio.run(poison(nats.port, "orders.eu", b"two"))
    a.kill()
    b.wait_until_active()
    asyncio.run(poison(nats.port, "orders.eu", wait_s=4))
    letters = asyncio.run(stored(nats.port, count=2))
    assert [one.data for one in letters] == [b"one", b"two"]


def test_a_cluster_keeps_dead_letters_when_its_leader_is_killed(stage: Stage) -> None:
    cluster = Cluster(stage, "-sc", str(configured(stage, LETTERS % 2)))
    cluster.start()
    leader = cluster.leader()
    port = cluster.port(cluster.others(leader)[0])
    asyncio.run(poison(port, "orders.eu", b"one", wait_s=4))
    assert [one.data for one in asyncio.run(stored(port, count=1))] == [b"one"]
    cluster.kill(leader)
    cluster.leader(but=leader)
    asyncio.run(poison(port, "orders.eu", b"two", wait_s=4))
    letters = [one.data for one in asyncio.run(stored(port, count=2))]
    assert set(letters) == {b"one", b"two"}
