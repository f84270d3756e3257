"""The client against real servers: every way to subscribe, restarts, a group whose active is killed
under load.
"""

from __future__ import annotations

import asyncio
import signal
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import ftstan.client
from ftstan.client import (
    ClientIdTakenError,
    ConnectionLostError,
    Message,
    PublishRefusedError,
    ReplacedError,
    RequestRefusedError,
    Start,
    Subscription,
)
from tests.client.fake import on_a_loop, until
from tests.processes import CLUSTER, PATIENCE_S, READY, STANDING_BY, free_ports

if TYPE_CHECKING:
    from tests.processes import Server, Stage

pytestmark = pytest.mark.processes

WINDOW = 5000


async def wait_for(server: Server, text: str) -> None:
    await asyncio.to_thread(server.wait_for, text)


async def take(subscription: Subscription, count: int) -> list[Message]:
    return [await subscription.next(PATIENCE_S) for _ in range(count)]


async def sequences(client: ftstan.client.Connection, count: int, **options: Any) -> list[int]:
    async with await client.subscribe("foo", **options) as subscription:
        return [message.sequence for message in await take(subscription, count)]


@on_a_loop
async def test_every_start_durables_queues_and_both_ends(stage: Stage) -> None:
    server = stage.file_server("server")
    await wait_for(server, READY)
    url = f"nats://127.0.0.1:{server.port}"
    async with await ftstan.client.connect(CLUSTER, "me", servers=url) as client:
        for number in range(1, 4):
            await client.publish("foo", b"%d" % number)
        await asyncio.sleep(0.01)
        middle = datetime.now(UTC)
        # The protocol says how long ago: what the request is under way counts, too, seconds on a
        # busy machine.
        await asyncio.sleep(5)
        for number in range(4, 7):
            await client.publish("foo", b"%d" % number)

        assert await sequences(client, 6, start=Start.first()) == [1, 2, 3, 4, 5, 6]
        assert await sequences(client, 1, start=Start.last()) == [6]
        assert await sequences(client, 2, start=Start.sequence(5)) == [5, 6]
        assert await sequences(client, 3, start=Start.time(middle)) == [4, 5, 6]
        assert await sequences(client, 6, start=Start.ago(3600)) == [1, 2, 3, 4, 5, 6]
        new = await client.subscribe("foo")
        await client.publish("foo", b"7")
        assert [message.data for message in await take(new, 1)] == [b"7"]

        durable: dict[str, Any] = {"durable": "audit", "start": Start.first(), "manual_acks": True}
        subscription = await client.subscribe("foo", **durable)
        for message in await take(subscription, 3):
            await message.ack()
        await subscription.close()
        subscription = await client.subscribe("foo", **durable)
        assert (await subscription.next(PATIENCE_S)).sequence == 4
        await subscription.unsubscribe()
        assert await sequences(client, 1, **durable) == [1]

        shares: list[list[int]] = [[], []]

        def member(number: int) -> Any:
            async def handler(message: Message) -> None:
                shares[number].append(message.sequence)

            return handler

        for number in range(2):
            await client.subscribe("foo", member(number), queue="workers", start=Start.first())
        await until(lambda: len(shares[0]) + len(shares[1]) >= 7, "all messages")
        assert sorted(shares[0] + shares[1]) == [1, 2, 3, 4, 5, 6, 7]

        held = await client.subscribe("foo", durable="held")
        with pytest.raises(RequestRefusedError, match="stan: duplicate durable registration"):
            await client.subscribe("foo", durable="held")
        await held.close()
        with pytest.raises(ClientIdTakenError):
            await ftstan.client.connect(CLUSTER, "me", servers=url)


@on_a_loop
async def test_the_limit_of_channels_is_told_to_publishers_and_subscribers(stage: Stage) -> None:
    server = stage.server("server", "-mc", "1")
    await wait_for(server, READY)
    async with await ftstan.client.connect(
        CLUSTER, "me", servers=f"127.0.0.1:{server.port}"
    ) as client:
        await client.publish("foo", b"")
        with pytest.raises(PublishRefusedError, match="too many channels"):
            await client.publish("bar", b"")
        with pytest.raises(RequestRefusedError, match="too many channels"):
            await client.subscribe("bar")


@on_a_loop
async def test_a_plain_subscription_gets_everything_that_a_memory_server_has_after_its_restart(
    stage: Stage,
) -> None:
    nats = stage.nats()
    server = stage.server("server", "-ns", nats.url)
    await wait_for(server, READY)
    lost: list[ConnectionLostError] = []

    async def on_lost(error: ConnectionLostError) -> None:
        lost.append(error)

    got: list[bytes] = []

    async def handler(message: Message) -> None:
        got.append(message.data)

    client = await ftstan.client.connect(
        CLUSTER, "me", servers=nats.url, ping_interval=1, on_connection_lost=on_lost, republish=True
    )
    await client.subscribe("foo", handler)
    for number in range(5):
        await client.publish("foo", b"before %d" % number)
    await until(lambda: len(got) == 5, "five messages")
    server.kill()

    server = stage.server("again", "-ns", nats.url)
    await wait_for(server, READY)
    async with await ftstan.client.connect(CLUSTER, "other", servers=nats.url) as other:
        await other.publish("foo", b"after 0")
    await until(lambda: lost, "the loss")
    assert isinstance(lost[0], ReplacedError)
    await client.publish("foo", b"after 1")
    await until(lambda: len(got) == 7, "what was published since")
    assert got[5:] == [b"after 0", b"after 1"]
    await client.close()


@on_a_loop
async def test_a_session_outlives_a_stop_and_a_start_and_nothing_is_handed_out_twice(
    stage: Stage,
) -> None:
    nats = stage.nats()
    server = stage.file_server("server", "-ns", nats.url, "-dedup_window", str(WINDOW))
    await wait_for(server, READY)
    got: list[int] = []

    async def handler(message: Message) -> None:
        got.append(int(message.data))

    client = await ftstan.client.connect(
        CLUSTER, "me", servers=nats.url, ping_interval=1, republish=True
    )
    await client.subscribe("foo", handler, durable="audit")
    publishing = asyncio.create_task(_publish(client, 2000))
    await until(lambda: len(got) > 500, "some messages")
    server.signal(signal.SIGTERM)
    await asyncio.to_thread(server.status)
    server = stage.file_server("again", "-ns", nats.url, "-dedup_window", str(WINDOW))
    await wait_for(server, READY)
    await publishing
    await until(lambda: len(got) >= 2000, "all messages")
    assert sorted(got) == list(range(2000))
    await client.close()


@on_a_loop
async def test_every_publish_is_stored_exactly_once_over_a_kill_of_the_active_under_load(
    stage: Stage,
) -> None:
    words = ("-dedup_window", str(WINDOW))
    route_a, route_b = (f"nats://127.0.0.1:{port}" for port in free_ports(2))
    a = stage.member("a", "-cluster", route_a, "-routes", route_b, *words)
    await asyncio.to_thread(a.wait_until_active)
    b = stage.member("b", "-cluster", route_b, "-routes", route_a, *words)
    await wait_for(b, STANDING_BY)
    servers = [f"nats://127.0.0.1:{server.port}" for server in (a, b)]

    got: dict[int, list[bytes]] = {}

    async def handler(message: Message) -> None:
        got.setdefault(message.sequence, []).append(message.data)

    options: dict[str, Any] = {
        "servers": servers,
        "republish": True,
        "max_in_flight": 500,
        "ping_interval": 1,
    }
    client = await ftstan.client.connect(CLUSTER, "publisher", ack_timeout=PATIENCE_S, **options)
    reader = await ftstan.client.connect(CLUSTER, "reader", **options)
    durable = await reader.subscribe("foo", handler, durable="audit")
    publishing = asyncio.create_task(_publish(client, 4000))
    await until(lambda: len(got) > 1000, "load")
    assert not publishing.done()
    a.kill()
    await publishing
    assert client.nats_server.endswith(f":{b.port}")

    stored = await client.subscribe("foo", start=Start.first())
    contents = [message.data for message in await take(stored, 4000)]
    assert sorted(int(data) for data in contents) == list(range(4000)), (
        "one missing, or one stored twice"
    )
    await client.publish("foo", b"behind them")
    assert (await stored.next(PATIENCE_S)).sequence == 4001

    await until(lambda: len(got) == 4001, "every message at the subscriber")
    assert {sequence: set(data) for sequence, data in got.items()} == {
        sequence: {data} for sequence, data in enumerate([*contents, b"behind them"], 1)
    }
    assert not durable.closed
    await reader.close()
    await client.close()


async def _publish(client: ftstan.client.Connection, count: int) -> None:
    under_way = []
    for number in range(count):
        under_way.append(await client.publish_async("foo", b"%d" % number))
        if number % 20 == 0:
            await asyncio.sleep(0.01)
    await asyncio.gather(*under_way)


@on_a_loop
async def test_a_connection_that_was_lost_with_bytes_still_to_send_is_made_again(
    stage: Stage,
) -> None:
    """nats-py never says that it closed then: its last write fails inside its own clean-up."""
    nats = stage.nats()
    server = stage.server("server", "-ns", nats.url)
    async with await ftstan.client.connect(
        CLUSTER, "me", servers=nats.url, timeout=PATIENCE_S
    ) as client:
        await client.publish("foo", b"before")
        inner = client._link._client
        assert inner is not None

        async def reset() -> None:
            raise ConnectionResetError

        inner._transport.drain = reset  # type: ignore[union-attr,method-assign]
        inner._pending.append(b"PING\r\n")
        inner._pending_data_size += 6
        nats.kill()
        again = await asyncio.to_thread(stage.nats, "again", nats.port)
        assert again.running
        await wait_for(server, "reconnected to NATS Server")
        await until(
            lambda: client.connected and client._link._client is not inner,
            "the connection to be made again",
        )
        await client.publish("foo", b"behind")
