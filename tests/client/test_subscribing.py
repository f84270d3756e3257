"""What subscribers may rely on, against a server that does what the test tells it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

import ftstan.client
from ftstan.client import (
    DrainTimeoutError,
    InvalidArgumentError,
    Message,
    RequestRefusedError,
    RequestTimeoutError,
    Start,
    SubscriptionClosedError,
)
from ftstan.wire.messages import StartPosition
from tests.client.fake import FakeStan, on_a_loop, stan, until
from tests.processes import CLUSTER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

NS = 1_000_000_000


def acks(server: FakeStan, number: int = -1) -> list[int]:
    return server.acks[server.ack_inboxes[number]]


@on_a_loop
async def test_every_option_is_in_the_request() -> None:
    server = await stan()
    async with await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url) as client:
        await client.subscribe(
            "foo",
            queue="workers",
            durable="audit",
            start=Start.sequence(7),
            max_in_flight=3,
            ack_wait=9,
        )
        (request,) = server.of("subscribe")
    assert (request.client_id, request.subject, request.q_group, request.durable_name) == (
        b"me", b"foo", b"workers", b"audit",
    )  # fmt: skip
    assert (request.max_in_flight, request.ack_wait_in_secs) == (3, 9)
    assert (request.start_position, request.start_sequence) == (StartPosition.SEQUENCE_START, 7)
    await server.nats.close()


@on_a_loop
async def test_the_default_is_new_messages_one_thousand_in_flight_and_thirty_seconds() -> None:
    server = await stan()
    async with await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url) as client:
        await client.subscribe("foo")
        (request,) = server.of("subscribe")
    assert (request.start_position, request.max_in_flight, request.ack_wait_in_secs) == (
        0,
        1024,
        30,
    )
    await server.nats.close()


def test_every_start_is_what_the_protocol_has_for_it() -> None:
    now = 1_700_000_000 * NS
    when = datetime.fromtimestamp(1_700_000_000, UTC) - timedelta(minutes=1, microseconds=3)
    assert Start.new().position == StartPosition.NEW_ONLY
    assert Start.last().position == StartPosition.LAST_RECEIVED
    assert Start.first().position == StartPosition.FIRST
    assert (Start.ago(1.5).position, Start.ago(1.5).delta(now)) == (
        StartPosition.TIME_DELTA_START,
        1_500_000_000,
    )
    assert Start.ago(timedelta(days=2)).delta(now) == 2 * 86400 * NS
    assert Start.time(when).delta(now) == 60_000_003_000
    assert Start.time(when + timedelta(hours=1)).delta(now) == 0
    assert Start.first().delta(now) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Start.sequence(-1),
        lambda: Start.ago(-1),
        lambda: Start.time(datetime(2026, 1, 1)),  # noqa: DTZ001  # the point of it
    ],
)
def test_a_start_that_makes_no_sense_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        wrong()  # type: ignore[operator]
    assert caught.value.hint


@on_a_loop
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_in_flight": 0}, "max_in_flight is 0"),
        ({"ack_wait": 0}, "ack_wait is 0"),
        ({"ack_wait": 1.5}, "ack_wait is 1.5"),
        ({"queue": "q", "durable": "a:b"}, "contains a colon"),
        ({"callback": print}, "no coroutine function"),
    ],
)
async def test_options_that_every_server_refuses_are_refused_here(
    options: dict[str, object], text: str
) -> None:
    server = await stan()
    async with await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url) as client:
        with pytest.raises(InvalidArgumentError, match=text):
            await client.subscribe("foo", **options)  # type: ignore[arg-type]
    assert not server.of("subscribe")
    await server.nats.close()


@on_a_loop
async def test_a_message_shows_what_the_server_sent() -> None:
    server = await stan()
    async with await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url) as client:
        subscription = await client.subscribe("foo")
        server.deliver(4, b"data", timestamp=1_700_000_000_123_456_789, again=2)
        message = await subscription.next(30)
    assert (message.channel, message.sequence, message.data, message.reply) == (
        "foo",
        4,
        b"data",
        b"",
    )
    assert (message.redelivered, message.redelivery_count) == (True, 2)
    assert message.timestamp == 1_700_000_000_123_456_789
    assert message.time == datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)
    await server.nats.close()


@on_a_loop
async def test_a_callback_gets_messages_singly_in_order_and_acks_each_when_it_returns() -> None:
    server = await stan()
    order: list[str] = []
    gate = asyncio.Event()

    async def handler(message: Message) -> None:
        order.append(f"begin {message.sequence}")
        await gate.wait()
        order.append(f"end {message.sequence}")

    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url)
    await client.subscribe("foo", handler)
    for sequence in (1, 2, 3):
        server.deliver(sequence)
    await until(lambda: order, "the first message")
    await asyncio.sleep(0.05)
    assert order == ["begin 1"]
    assert acks(server) == []
    gate.set()
    await until(lambda: acks(server) == [1, 2, 3], "the acks")
    assert order == ["begin 1", "end 1", "begin 2", "end 2", "begin 3", "end 3"]
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_what_a_callback_failed_on_is_not_acked_and_handed_out_when_it_comes_again() -> None:
    server = await stan()
    tries: list[tuple[int, bool]] = []

    async def quiet(_: ftstan.client.ClientError) -> None:
        pass

    async def handler(message: Message) -> None:
        tries.append((message.sequence, message.redelivered))
        if len(tries) == 1:
            raise RuntimeError

    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url, on_error=quiet)
    await client.subscribe("foo", handler)
    server.deliver(1)
    server.deliver(2)
    await until(lambda: acks(server) == [2], "the ack of the second")
    server.deliver(1, again=1)
    await until(lambda: acks(server) == [2, 1], "the ack of the first")
    assert tries == [(1, False), (2, False), (1, True)]
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_an_iterated_message_is_acked_when_the_next_one_is_asked_for() -> None:
    server = await stan()
    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url)
    subscription = await client.subscribe("foo")
    for sequence in (1, 2, 3):
        server.deliver(sequence)
    got: list[int] = []
    async for message in subscription:
        await until(lambda: acks(server) == got, "the acks of those before")
        got.append(message.sequence)
        await asyncio.sleep(0.02)
        assert message.sequence not in acks(server)
        if message.sequence == 3:
            break
    assert got == [1, 2, 3]
    await client.close()
    assert acks(server) == [1, 2]
    await server.nats.close()


@on_a_loop
async def test_with_manual_acks_nothing_is_acked_but_by_the_user_and_only_once() -> None:
    server = await stan()
    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url)
    subscription = await client.subscribe("foo", manual_acks=True)
    for sequence in (1, 2, 3):
        server.deliver(sequence)
    got = [await subscription.next(30) for _ in range(3)]
    await got[1].ack()
    await got[1].ack()
    await got[0].ack()
    await until(lambda: len(acks(server)) >= 2, "the acks")
    await client.close()
    assert acks(server) == [2, 1]
    await server.nats.close()


@on_a_loop
async def test_messages_that_come_before_the_answer_to_the_subscribe_wait_for_it() -> None:
    server = await stan()
    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url)
    seen: list[int] = []
    server.answers_subscribes = False
    pending = asyncio.create_task(client.subscribe("foo", _append_to(seen)))
    await until(lambda: server.of("subscribe"), "the request")
    server.inboxes.append(server.of("subscribe")[0].inbox.decode())
    server.deliver(1)
    await until(lambda: seen == [1], "the message")
    pending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pending
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_a_refused_subscribe_raises_and_listens_no_more() -> None:
    server = await stan()
    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url)
    server.subscribe_error = "stan: duplicate durable registration"
    with pytest.raises(RequestRefusedError, match="stan: duplicate durable registration"):
        await client.subscribe("foo", durable="audit")
    await until(
        lambda: server.of("subscribe")[0].inbox.decode() not in server.nats.wanted(),
        "the end of the inbox",
    )
    assert not server.of("close")
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_a_subscribe_that_is_not_answered_is_taken_back_by_its_inbox() -> None:
    server = await stan()
    client = await ftstan.client.connect(
        CLUSTER, "me", servers=server.nats.url, request_timeout=0.3
    )
    server.answers_subscribes = False
    with pytest.raises(RequestTimeoutError):
        await client.subscribe("foo")
    await until(lambda: server.of("close"), "the withdrawal")
    assert server.of("close")[0].inbox == server.of("subscribe")[0].inbox
    await client.close()
    await server.nats.close()


@on_a_loop
@pytest.mark.parametrize("how", ["close", "unsubscribe"])
async def test_closing_and_unsubscribing_go_to_their_subjects_and_end_the_iteration(
    how: str,
) -> None:
    server = await stan()
    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url)
    subscription = await client.subscribe("foo", durable="audit")
    server.deliver(1)
    message = await subscription.next(30)
    iterating = asyncio.create_task(_all(subscription))
    await asyncio.sleep(0.02)
    await getattr(subscription, how)()
    assert await iterating == []
    (request,) = server.of(how)
    assert (request.client_id, request.subject, request.inbox.decode()) == (
        b"me",
        b"foo",
        server.ack_inboxes[0],
    )
    assert server.of({"close": "unsubscribe", "unsubscribe": "close"}[how]) == []
    with pytest.raises(SubscriptionClosedError):
        await message.ack()
    await getattr(subscription, how)()
    assert len(server.of(how)) == 1
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_draining_handles_and_acks_what_has_come_before_it_closes() -> None:
    server = await stan()
    got: list[int] = []
    gate = asyncio.Event()

    async def handler(message: Message) -> None:
        await gate.wait()
        got.append(message.sequence)

    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url)
    await client.subscribe("foo", handler)
    iterated = await client.subscribe("foo")
    for sequence in (1, 2, 3):
        server.deliver(sequence, inbox=0)
        server.deliver(sequence, inbox=1)
    iterating = asyncio.create_task(_all(iterated))
    publish = await client.publish_async("foo", b"")
    await until(lambda: iterated.pending < 3, "the first message")
    draining = asyncio.create_task(client.drain())
    await asyncio.sleep(0.05)
    server.deliver(4, inbox=0)
    gate.set()
    await draining
    assert got == [1, 2, 3] == await iterating
    assert acks(server, 0) == acks(server, 1) == [1, 2, 3]
    assert publish.done()
    kinds = [kind for kind, _ in server.heard]
    assert kinds[-3:] == ["close", "close", "goodbye"]
    await server.nats.close()


@on_a_loop
async def test_draining_that_takes_too_long_closes_and_says_so() -> None:
    server = await stan()

    async def handler(_: Message) -> None:
        await asyncio.Event().wait()

    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url)
    await client.subscribe("foo", handler)
    server.deliver(1)
    with pytest.raises(DrainTimeoutError, match=r"messages of foo were not handled within 0\.2 s"):
        await client.drain(0.2)
    assert client.closed
    assert acks(server) == []
    await server.nats.close()


@on_a_loop
async def test_one_that_waits_here_and_comes_again_is_handed_out_once() -> None:
    server = await stan()
    got: list[int] = []
    gate = asyncio.Event()

    async def handler(message: Message) -> None:
        await gate.wait()
        got.append(message.sequence)

    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url)
    subscription = await client.subscribe("foo", handler)
    for sequence in (1, 2, 3):
        server.deliver(sequence)
    await until(lambda: subscription.pending == 2, "two that wait")
    server.deliver(2, again=1)
    server.deliver(3, again=1)
    server.deliver(4)
    await until(lambda: subscription.pending == 3, "the fourth")
    gate.set()
    await until(lambda: len(acks(server)) == 4, "the acks")
    assert got == [1, 2, 3, 4]
    await client.close()
    await server.nats.close()


@on_a_loop
@pytest.mark.parametrize("kind", [{}, {"durable": "audit"}, {"queue": "workers"}])
async def test_one_that_was_acked_and_comes_again_is_acked_again_and_not_handed_out(
    kind: dict[str, str],
) -> None:
    server = await stan()
    got: list[int] = []
    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url)
    await client.subscribe("foo", _append_to(got), **kind)  # type: ignore[arg-type]
    server.deliver(1)
    await until(lambda: acks(server) == [1], "the ack")
    server.deliver(1, again=1)
    await until(lambda: acks(server) == [1, 1], "the second ack")
    assert got == [1]
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_closing_from_inside_a_callback_works() -> None:
    server = await stan()
    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url)
    done = asyncio.Event()

    async def handler(message: Message) -> None:
        assert message.subscription is not None
        await message.subscription.close()
        await client.close()
        done.set()

    await client.subscribe("foo", handler)
    server.deliver(1)
    await asyncio.wait_for(done.wait(), 30)
    assert client.closed
    await server.nats.close()


@on_a_loop
async def test_waiting_for_a_message_can_be_cancelled_without_losing_one() -> None:
    server = await stan()
    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url)
    subscription = await client.subscribe("foo")
    with pytest.raises(TimeoutError):
        await subscription.next(0.05)
    server.deliver(1)
    assert (await subscription.next(30)).sequence == 1
    await client.close()
    await server.nats.close()


def _append_to(seen: list[int]) -> Callable[[Message], Awaitable[None]]:
    async def handler(message: Message) -> None:
        seen.append(message.sequence)

    return handler


async def _all(subscription: ftstan.client.Subscription) -> list[int]:
    return [message.sequence async for message in subscription]
