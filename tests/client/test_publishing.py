"""What publishers may rely on, against a server that does what the test tells it."""

from __future__ import annotations

import asyncio

import pytest

import ftstan.client
from ftstan.client import (
    ConnectionClosedError,
    InvalidArgumentError,
    PublishRefusedError,
    PublishTimeoutError,
    PublishUnknownError,
)
from ftstan.client.session import Session
from ftstan.wire import messages
from tests.client.fake import FakeStan, on_a_loop, stan, until
from tests.processes import CLUSTER


@on_a_loop
async def test_a_publish_gives_its_guid_once_it_is_acknowledged() -> None:
    server = await stan()
    async with await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url) as client:
        guid = await client.publish("orders", b"one", reply=b"back")
    (publish,) = server.of("publish")
    assert (publish.guid.decode(), publish.subject, publish.data, publish.reply) == (
        guid,
        b"orders",
        b"one",
        b"back",
    )
    assert publish.client_id == b"me"
    assert publish.conn_id == server.of("connect")[0].conn_id
    await server.nats.close()


@on_a_loop
async def test_guids_are_those_that_a_dedup_window_looks_at_and_never_the_same() -> None:
    server = await stan()
    async with await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url) as client:
        guids = [await client.publish("orders", b"") for _ in range(50)]
    assert all(guid.startswith("ft1.") for guid in guids)
    assert len(set(guids)) == 50
    await server.nats.close()


@on_a_loop
async def test_a_name_makes_the_guid_and_is_not_on_its_way_twice() -> None:
    server = await stan()
    server.acks_publishes = False
    async with await ftstan.client.connect(
        CLUSTER, "me", servers=server.nats.url, max_in_flight=2
    ) as client:
        first = await client.publish_async("orders", b"one", name="order 1")
        with pytest.raises(InvalidArgumentError, match="order 1 is on its way to orders already"):
            await client.publish_async("orders", b"one", name="order 1")
        await until(lambda: server.of("publish"), "the publish")
        _acknowledge(server, 0)
        assert await first == "ft1.order 1"
        server.acks_publishes = True
        assert await client.publish("orders", b"one", name="order 1") == "ft1.order 1"
        for name in ("a\nb", "x" * 257):
            with pytest.raises(InvalidArgumentError, match="cannot name a message"):
                await client.publish("orders", b"", name=name)
    await server.nats.close()


@on_a_loop
async def test_one_name_is_on_its_way_in_two_channels_and_each_gets_its_own_answer() -> None:
    server = await stan()
    server.acks_publishes = False
    async with await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url) as client:
        orders = await client.publish_async("orders", b"one", name="order 1")
        audit = await client.publish_async("audit", b"one", name="order 1")
        await until(lambda: len(server.of("publish")) == 2, "both")
        _acknowledge(server, 1, "too many channels")
        with pytest.raises(PublishRefusedError, match="too many channels") as caught:
            await audit
        assert caught.value.channel == "audit"
        assert not orders.done()
        _acknowledge(server, 0)
        assert await orders == "ft1.order 1"
    await server.nats.close()


@on_a_loop
@pytest.mark.parametrize("channel", ["audit", "orders"])
@pytest.mark.parametrize("republish", [False, True])
async def test_an_ack_that_comes_late_or_again_answers_no_other_publish_of_that_name(
    *, republish: bool, channel: str
) -> None:
    server = await stan()
    server.acks_publishes = False
    client = await ftstan.client.connect(
        CLUSTER,
        "me",
        servers=server.nats.url,
        republish=republish,
        republish_after=0.1,
        ack_timeout=None if republish else 2,
        ping_interval=1,
    )
    first = await client.publish_async("orders", b"one", name="order 1")
    if republish:
        await until(lambda: len(server.of("publish")) >= 2, "a repeat")
        _acknowledge(server, 0)
        await first
    else:
        with pytest.raises(PublishTimeoutError):
            await first
    server.stop()
    await until(lambda: not client.connected, "a ping that nobody hears")
    second = await client.publish_async(channel, b"two", name="order 1")
    _acknowledge(server, -1)
    server.publish_error = "too many channels"
    server.acks_publishes = True
    server.start()
    with pytest.raises(PublishRefusedError, match="too many channels"):
        await second
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_a_refused_publish_raises_in_the_words_of_the_server() -> None:
    server = await stan()
    server.publish_error = "too many channels"
    async with await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url) as client:
        with pytest.raises(PublishRefusedError, match="too many channels") as caught:
            await client.publish("orders", b"")
    assert caught.value.channel == "orders"
    assert caught.value.guid == server.of("publish")[0].guid.decode()
    await server.nats.close()


@on_a_loop
async def test_a_publish_that_nobody_acknowledges_times_out_and_its_place_is_free_again() -> None:
    server = await stan()
    server.acks_publishes = False
    async with await ftstan.client.connect(
        CLUSTER, "me", servers=server.nats.url, ack_timeout=0.2, max_in_flight=1
    ) as client:
        for _ in range(2):
            with pytest.raises(
                PublishTimeoutError, match=r"not acknowledged within 0\.2 s"
            ) as caught:
                await client.publish("orders", b"")
            assert caught.value.hint
    await server.nats.close()


@on_a_loop
async def test_no_more_than_max_in_flight_are_on_their_way() -> None:
    server = await stan()
    server.acks_publishes = False
    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url, max_in_flight=3)
    under_way = [await client.publish_async("orders", b"%d" % i) for i in range(3)]
    fourth = asyncio.create_task(client.publish_async("orders", b"3"))
    await until(lambda: len(server.of("publish")) == 3, "three publishes")
    await asyncio.sleep(0.05)
    assert not fourth.done()
    assert client.in_flight == 3

    server.nats.publish(_acks(server), _ack(server.of("publish")[1].guid))
    await until(lambda: len(server.of("publish")) == 4, "the fourth")
    assert await under_way[1]
    await fourth
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_no_more_bytes_than_allowed_are_under_way_and_a_larger_message_goes_alone() -> None:
    server = await stan()
    server.acks_publishes = False
    client = await ftstan.client.connect(
        CLUSTER, "me", servers=server.nats.url, max_in_flight_bytes=100
    )
    large = await client.publish_async("orders", b"x" * 1000)
    small = asyncio.create_task(client.publish_async("orders", b"y"))
    await until(lambda: len(server.of("publish")) == 1, "the large one")
    await asyncio.sleep(0.05)
    assert not small.done()
    server.nats.publish(_acks(server), _ack(server.of("publish")[0].guid))
    await large
    await small
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_a_cancelled_wait_for_room_leaves_the_room_to_the_next() -> None:
    server = await stan()
    server.acks_publishes = False
    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url, max_in_flight=1)
    await client.publish_async("orders", b"0")
    given_up = asyncio.create_task(client.publish_async("orders", b"1"))
    patient = asyncio.create_task(client.publish_async("orders", b"2"))
    await asyncio.sleep(0.05)
    given_up.cancel()
    server.nats.publish(_acks(server), _ack(server.of("publish")[0].guid))
    await patient
    await until(lambda: len(server.of("publish")) == 2, "the patient one")
    assert [publish.data for publish in server.of("publish")] == [b"0", b"2"]
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_a_cancelled_publish_keeps_its_place_until_it_is_answered() -> None:
    server = await stan()
    server.acks_publishes = False
    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url, max_in_flight=1)
    publish = asyncio.create_task(client.publish("orders", b"0"))
    await until(lambda: server.of("publish"), "the publish")
    publish.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publish
    assert client.in_flight == 1
    server.nats.publish(_acks(server), _ack(server.of("publish")[0].guid))
    await until(lambda: client.in_flight == 0, "the answer")
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_a_loop_of_publishes_lets_heartbeats_through() -> None:
    server = await stan()
    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    for _ in range(1000):
        await client.publish_async("orders", b"")
    counting.cancel()
    assert turns >= 10
    await client.flush()
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_what_is_published_while_nobody_listens_is_sent_when_somebody_does() -> None:
    server = await stan()
    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url, ping_interval=1)
    server.stop()
    await until(lambda: not client.connected, "a ping that nobody hears")
    publishes = [asyncio.create_task(client.publish("orders", b"%d" % i)) for i in range(5)]
    await asyncio.sleep(0.1)
    server.start()
    await asyncio.gather(*publishes)
    assert [publish.data for publish in server.of("publish")] == [b"%d" % i for i in range(5)]
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_what_is_published_as_service_comes_back_is_sent_behind_what_has_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = await stan()
    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url, ping_interval=1)
    server.stop()
    await until(lambda: not client.connected, "a ping that nobody hears")
    answers = [await client.publish_async("orders", b"%d" % i) for i in range(5)]
    late: list[asyncio.Task[asyncio.Future[str]]] = []
    serve = Session._serve

    def served(session: Session) -> None:
        if not session.served:
            # It has its turn before what has waited.
            late.append(asyncio.create_task(client.publish_async("orders", b"5")))
        serve(session)

    monkeypatch.setattr(Session, "_serve", served)
    server.start()
    await asyncio.gather(*answers)
    await (await late[0])
    assert [publish.data for publish in server.of("publish")] == [b"%d" % i for i in range(6)]
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_an_ack_that_makes_room_as_the_connection_ends_lets_nobody_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = await stan()
    server.acks_publishes = False
    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url, max_in_flight=1)
    first = await client.publish_async("orders", b"0")
    second = asyncio.create_task(client.publish("orders", b"1"))
    await until(lambda: server.of("publish"), "the publish")
    room = client._publisher._room
    give = room.give

    def given(size: int) -> None:
        # The end comes before whoever has got the room goes on.
        monkeypatch.setattr(room, "give", give)
        give(size)
        client._publisher.stop(ConnectionClosedError("closed"))

    monkeypatch.setattr(room, "give", given)
    _acknowledge(server, 0)
    await first
    with pytest.raises(ConnectionClosedError):
        await second
    await client.flush()
    assert client.in_flight == 0
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_what_is_published_while_nats_is_away_is_sent_when_it_is_back() -> None:
    server = await stan()
    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url)
    await server.nats.close()
    await until(lambda: not client.connected, "the end of the connection")
    publish = asyncio.create_task(client.publish("orders", b"late"))
    await asyncio.sleep(0.1)
    await server.nats.open()
    await publish
    assert [p.data for p in server.of("publish")] == [b"late"]
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_without_republish_what_was_sent_is_never_sent_again() -> None:
    server = await stan()
    server.acks_publishes = False
    client = await ftstan.client.connect(
        CLUSTER, "me", servers=server.nats.url, ack_timeout=1, republish_after=0.1, ping_interval=1
    )
    publish = await client.publish_async("orders", b"once")
    await until(lambda: server.of("publish"), "the publish")
    server.nats.cut()
    await until(lambda: client.connected, "another connection")
    with pytest.raises(PublishTimeoutError):
        await publish
    assert len(server.of("publish")) == 1
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_with_republish_it_is_sent_again_under_its_guid_until_it_is_acknowledged() -> None:
    server = await stan()
    server.acks_publishes = False
    client = await ftstan.client.connect(
        CLUSTER, "me", servers=server.nats.url, republish=True, republish_after=0.1
    )
    publish = await client.publish_async("orders", b"again")
    await until(lambda: len(server.of("publish")) >= 3, "two repeats")
    server.acks_publishes = True
    guid = await publish
    assert {p.guid.decode() for p in server.of("publish")} == {guid}
    assert {p.data for p in server.of("publish")} == {b"again"}
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_beside_one_without_an_ack_more_are_published_than_may_be_in_flight() -> None:
    """How far back a repeat may lie: a window of ``max_in_flight`` would not know it any more."""
    server = await stan()
    server.acks_publishes = False
    client = await ftstan.client.connect(
        CLUSTER, "me", servers=server.nats.url, max_in_flight=2, republish=True, republish_after=60
    )
    lost = await client.publish_async("orders", b"lost")
    await until(lambda: server.of("publish"), "the publish")
    server.acks_publishes = True
    for _ in range(10):
        await client.publish("orders", b"another")
    assert not lost.done()
    server.nats.cut()
    await lost
    assert [p.data for p in server.of("publish")] == [b"lost", *10 * [b"another"], b"lost"]
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_with_republish_a_lost_connection_repeats_unacknowledged_publishes_in_order() -> None:
    server = await stan()
    server.acks_publishes = False
    client = await ftstan.client.connect(
        CLUSTER, "me", servers=server.nats.url, republish=True, republish_after=60
    )
    publishes = [await client.publish_async("orders", b"%d" % i) for i in range(5)]
    await until(lambda: len(server.of("publish")) == 5, "five publishes")
    server.nats.publish(_acks(server), _ack(server.of("publish")[2].guid))
    await publishes[2]
    server.acks_publishes = True
    server.nats.cut()
    await asyncio.gather(*publishes)
    assert [p.data for p in server.of("publish")[5:]] == [b"0", b"1", b"3", b"4"]
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_a_cancelled_publish_is_not_sent_again() -> None:
    server = await stan()
    server.acks_publishes = False
    client = await ftstan.client.connect(
        CLUSTER, "me", servers=server.nats.url, republish=True, republish_after=0.1
    )
    given_up = asyncio.create_task(client.publish("orders", b"given up"))
    await until(lambda: server.of("publish"), "the publish")
    given_up.cancel()
    await client.publish_async("orders", b"wanted")
    await until(
        lambda: [p.data for p in server.of("publish")].count(b"wanted") >= 3,
        "repeats of the other one",
    )
    assert [p.data for p in server.of("publish")].count(b"given up") <= 2
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_closing_tells_those_who_wait_that_nothing_is_known_of_their_publish() -> None:
    server = await stan()
    server.acks_publishes = False
    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url, max_in_flight=1)
    publish = await client.publish_async("orders", b"")
    waiting = asyncio.create_task(client.publish_async("orders", b""))
    await asyncio.sleep(0.05)
    await client.close()
    with pytest.raises(PublishUnknownError, match="not acknowledged when the connection ended"):
        await publish
    with pytest.raises(ConnectionClosedError):
        await waiting
    with pytest.raises(ConnectionClosedError):
        await client.publish("orders", b"")
    await server.nats.close()


@on_a_loop
async def test_leaving_the_context_waits_for_the_acks() -> None:
    server = await stan()
    async with await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url) as client:
        publishes = [await client.publish_async("orders", b"") for _ in range(100)]
    assert all(publish.done() and not publish.exception() for publish in publishes)
    assert client.closed
    await server.nats.close()


@on_a_loop
@pytest.mark.parametrize("channel", ["", ".", "a..b", "a.*", "a.>", "a/b", "a b", "a\r\nPUB x 0"])
async def test_a_channel_that_no_server_accepts_is_refused_before_anything_is_sent(
    channel: str,
) -> None:
    server = await stan()
    async with await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url) as client:
        with pytest.raises(InvalidArgumentError, match="cannot name a channel"):
            await client.publish(channel, b"")
        with pytest.raises(InvalidArgumentError, match="cannot name a channel"):
            await client.subscribe(channel)
    assert not server.of("publish")
    await server.nats.close()


@on_a_loop
async def test_a_message_that_nats_does_not_carry_is_refused_and_takes_no_room() -> None:
    server = await stan()
    async with await ftstan.client.connect(
        CLUSTER, "me", servers=server.nats.url, max_in_flight=1
    ) as client:
        with pytest.raises(InvalidArgumentError, match="more than this NATS server carries"):
            await client.publish("orders", b"x" * (1 << 20))
        await client.publish("orders", b"small")
    await server.nats.close()


@on_a_loop
@pytest.mark.parametrize("away", ["streaming", "nats"])
async def test_a_message_that_is_too_large_is_refused_also_while_nobody_serves(away: str) -> None:
    server = await stan()
    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url, ping_interval=1)
    if away == "nats":
        await server.nats.close()
    else:
        server.stop()
    await until(lambda: not client.connected, "nobody to serve")
    before = await client.publish_async("orders", b"before")
    with pytest.raises(InvalidArgumentError, match="more than this NATS server carries"):
        await client.publish("orders", b"x" * (1 << 20))
    assert client.in_flight == 1
    if away == "nats":
        await server.nats.open()
    else:
        server.start()
    await before
    await client.close()
    await server.nats.close()


@on_a_loop
@pytest.mark.parametrize("republish", [False, True])
async def test_what_the_next_nats_server_does_not_carry_ends_alone_and_the_rest_is_sent(
    *, republish: bool
) -> None:
    server = await stan()
    client = await ftstan.client.connect(
        CLUSTER, "me", servers=server.nats.url, republish=republish, republish_after=0.1
    )
    if republish:
        server.acks_publishes = False
        sent = await client.publish_async("orders", b"x" * 5000)
        await until(lambda: server.of("publish"), "the first publish")
    await server.nats.close()
    await until(lambda: not client.connected, "the end of the connection")
    answers = [await client.publish_async("orders", data) for data in (b"a", b"x" * 5000, b"c")]
    server.acks_publishes = True
    server.nats.max_payload = 4096
    await server.nats.open()
    results = await asyncio.gather(*answers, return_exceptions=True)
    assert [type(result).__name__ for result in results] == ["str", "InvalidArgumentError", "str"]
    if republish:
        with pytest.raises(PublishUnknownError, match="cannot be sent again"):
            await sent
    await client.publish("orders", b"d")
    assert [publish.data for publish in server.of("publish")][-3:] == [b"a", b"c", b"d"]
    await client.close()
    await server.nats.close()


def _acks(server: object) -> str:
    (subject,) = (
        s
        for s in server.nats.wanted()  # type: ignore[attr-defined]
        if s.startswith("_STAN.acks.") and not s.endswith(".*")
    )
    return str(subject)


def _acknowledge(server: FakeStan, number: int, error: str = "") -> None:
    """Answer a publish by its number, with an error if there is one."""
    ack = messages.PubAck(guid=server.of("publish")[number].guid, error=error.encode())
    server.nats.publish(server.publish_replies[number], messages.encode(ack))


def _ack(guid: bytes) -> bytes:
    return b"\x0a" + bytes([len(guid)]) + guid
