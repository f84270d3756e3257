"""How a session is made, kept, lost and made again, against a server that does what the test tells
it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import ftstan.client
from ftstan.broker import constants
from ftstan.broker.publishing import INVALID_PUBLISH
from ftstan.client import (
    ClientError,
    ClientIdTakenError,
    ConnectionClosedError,
    ConnectionLostError,
    ConnectRefusedError,
    ConnectTimeoutError,
    InvalidArgumentError,
    Message,
    NatsUnreachableError,
    NotAllowedError,
    ReplacedError,
    RequestRefusedError,
    Start,
    errors,
)
from ftstan.client.link import Arrived, Link
from ftstan.client.subscription import Subscription
from ftstan.wire import messages
from tests.client.fake import FakeNats, FakeStan, on_a_loop, stan, until
from tests.processes import CLUSTER, HOST, free_ports

if TYPE_CHECKING:
    from tests.compat.players.natswire import Operation

REPLACED = "client has been replaced or is no longer registered"
TAKEN = errors.CLIENT_ID_TAKEN


def test_the_texts_that_the_client_knows_are_those_of_the_server() -> None:
    assert errors.CLIENT_ID_TAKEN == constants.DUPLICATE_CLIENT
    assert errors.DUPLICATE_DURABLE == constants.DUPLICATE_DURABLE
    assert errors.INVALID_PUBLISH.encode() == INVALID_PUBLISH


@on_a_loop
async def test_a_connect_request_says_who_and_how_and_listens_before_it_asks() -> None:
    server = await stan()
    async with await ftstan.client.connect(
        CLUSTER, "me-1_2", servers=server.nats.url, ping_interval=7, ping_max_out=9
    ) as client:
        (request,) = server.of("connect")
        assert (
            request.client_id,
            request.protocol,
            request.ping_interval,
            request.ping_max_out,
        ) == (
            b"me-1_2",
            1,
            7,
            9,
        )
        assert request.conn_id
        assert request.heartbeat_inbox.decode() in server.nats.wanted()
        assert client.connected
        assert client.nats_server == f"{HOST}:{server.nats.port}"
    assert [g.client_id for g in server.of("goodbye")] == [b"me-1_2"]
    assert client.closed
    await server.nats.close()


@on_a_loop
async def test_a_refusal_comes_in_the_words_of_the_server_and_nothing_is_left() -> None:
    server = await stan()
    server.connect_error = "stan: invalid connection request"
    with pytest.raises(ConnectRefusedError, match="stan: invalid connection request"):
        await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url)
    server.connect_error = TAKEN
    with pytest.raises(ClientIdTakenError, match=TAKEN) as caught:
        await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url)
    assert "own" in caught.value.hint
    await until(lambda: not server.nats.clients, "the end of the connections")
    await server.nats.close()


@on_a_loop
async def test_connecting_waits_for_a_server_to_become_active() -> None:
    server = await stan()
    server.stop()
    connecting = asyncio.create_task(ftstan.client.connect(CLUSTER, "me", servers=server.nats.url))
    await asyncio.sleep(0.5)
    server.start()
    await (await connecting).close()
    await server.nats.close()


@on_a_loop
async def test_a_connect_request_that_its_server_took_to_its_grave_is_sent_again() -> None:
    server = await stan()
    server.answers_connects = False
    connecting = asyncio.create_task(ftstan.client.connect(CLUSTER, "me", servers=server.nats.url))
    await until(lambda: server.of("connect"), "the first request")
    # Whoever follows and knows the client from the store asks it whether it is alive.
    answers: list[Operation] = []
    server.beat(answers.append)
    # The probe of the second request is not over when a third one comes.
    server.answers_connects = True
    server.connect_error = TAKEN
    await until(lambda: len(server.of("connect")) > 2, "it to be sent again")
    server.connect_error = ""
    client = await connecting
    assert not answers
    server.beat(answers.append)
    await until(lambda: answers, "an answer to a heartbeat")
    assert len({request.conn_id for request in server.of("connect")}) == 1
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_a_late_answer_to_the_first_connect_request_will_do() -> None:
    server = await stan()
    server.answers_connects = False
    connecting = asyncio.create_task(ftstan.client.connect(CLUSTER, "me", servers=server.nats.url))
    await until(lambda: len(server.of("connect")) > 1, "the second request")
    # A server that always takes longer than the client waits before it asks again.
    answer = messages.ConnectResponse(pub_prefix=b"_STAN.pub.x", close_requests=b"_STAN.close.x")
    server.nats.publish(server.connect_replies[0], messages.encode(answer))
    await (await connecting).close()
    await server.nats.close()


@on_a_loop
async def test_nobody_serving_and_no_nats_server_are_told_apart() -> None:
    server = await stan()
    server.stop()
    with pytest.raises(
        ConnectTimeoutError, match=r"nobody listens on _STAN\.discover\.test-cluster"
    ) as nobody:
        await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url, timeout=4)
    assert "cluster id" in nobody.value.hint
    server.nats.silent = True
    with pytest.raises(ConnectTimeoutError, match=r"no answer on _STAN\.discover\.test-cluster"):
        await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url, timeout=4)
    await server.nats.close()
    with pytest.raises(
        NatsUnreachableError, match=f"no NATS server reached within 0.5 s at {server.nats.url}"
    ):
        await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url, timeout=0.5)


@on_a_loop
async def test_a_cancelled_connect_leaves_no_connection() -> None:
    server = await stan()
    server.nats.silent = True
    connecting = asyncio.create_task(ftstan.client.connect(CLUSTER, "me", servers=server.nats.url))
    await until(server.nats.wanted, "a connection")
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    await until(lambda: not server.nats.clients, "its end")
    await server.nats.close()


@on_a_loop
async def test_of_several_addresses_any_that_answers_will_do() -> None:
    server = await stan()
    (nobody,) = free_ports(1)
    async with await ftstan.client.connect(
        CLUSTER, "me", servers=[f"nats://{HOST}:{nobody}", f"{HOST}:{server.nats.port}"]
    ) as client:
        assert client.nats_server == f"{HOST}:{server.nats.port}"
    await server.nats.close()


@on_a_loop
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"client_id": "a b"}, "client id 'a b' cannot be used"),
        ({"cluster_id": "a.*"}, r"cluster id 'a.\*' cannot be used"),
        ({"servers": "ftp://x"}, "no address of a NATS server"),
        ({"servers": []}, "no address of a NATS server"),
        ({"max_in_flight": 0}, "max_in_flight is 0"),
        ({"ack_timeout": -1}, "ack_timeout is -1"),
        ({"ping_interval": 0.5}, "ping_interval is 0.5"),
        ({"on_error": print}, "on_error is no coroutine function"),
        (
            {"login": ftstan.client.NatsLogin(user_credentials="/nowhere.creds")},
            "/nowhere.creds: No such file",
        ),
        (
            {"login": ftstan.client.NatsLogin(user_credentials=__file__)},
            "is no file of NATS credentials",
        ),
        (
            {"login": ftstan.client.NatsLogin(nkeys_seed="/nowhere.nk")},
            "/nowhere.nk: No such file",
        ),
        (
            {"login": ftstan.client.NatsLogin(nkeys_seed=__file__)},
            "holds no seed of an nkey",
        ),
    ],
)
async def test_a_wrong_argument_is_told_before_anything_is_sent(
    arguments: dict[str, object], text: str
) -> None:
    given: dict[str, object] = {
        "cluster_id": CLUSTER,
        "client_id": "me",
        "servers": "nats://127.0.0.1:1",
        **arguments,
    }
    with pytest.raises(InvalidArgumentError, match=text) as caught:
        await ftstan.client.connect(**given)  # type: ignore[arg-type]
    assert caught.value.hint


def test_a_login_does_not_show_its_secrets() -> None:
    login = ftstan.client.NatsLogin(user="me", password="secret", token="secret")
    assert "secret" not in repr(login)


@on_a_loop
async def test_heartbeats_are_answered_while_a_callback_is_busy_or_fails() -> None:
    server = await stan()
    told: list[ClientError] = []
    stuck = asyncio.Event()

    async def on_error(error: ClientError) -> None:
        told.append(error)

    async def handler(message: Message) -> None:
        if message.sequence == 1:
            raise ValueError("not today")
        await stuck.wait()

    client = await ftstan.client.connect(
        CLUSTER, "me", servers=server.nats.url, ping_interval=1, on_error=on_error
    )
    await client.subscribe("foo", handler)
    for sequence in range(1, 500):
        server.deliver(sequence)
    answers: list[Operation] = []
    for _ in range(3):
        server.beat(answers.append)
    await until(lambda: len(answers) == 3, "three answers")
    assert all(answer.payload == b"" for answer in answers)
    await until(lambda: len(server.of("ping")) >= 2, "pings")
    await until(lambda: told, "the failure")
    assert "failed at message 1: ValueError('not today')" in told[0].text
    assert isinstance(told[0].__cause__, ValueError)
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_pings_carry_the_connection_id_and_unanswered_ones_end_the_session() -> None:
    server = await stan()
    lost: list[ConnectionLostError] = []

    async def on_lost(error: ConnectionLostError) -> None:
        lost.append(error)

    client = await ftstan.client.connect(
        CLUSTER,
        "me",
        servers=server.nats.url,
        ping_interval=1,
        ping_max_out=1,
        reconnect=False,
        on_connection_lost=on_lost,
    )
    await until(lambda: len(server.of("ping")) >= 2, "pings")
    assert {ping.conn_id for ping in server.of("ping")} == {server.of("connect")[0].conn_id}
    assert not lost
    server.answers_pings = False
    await until(lambda: lost, "the loss")
    assert lost[0].text.startswith("stan: connection lost due to PING failure")
    await until(lambda: client.closed, "the end")
    with pytest.raises(ConnectionClosedError, match="PING failure"):
        await client.publish("foo", b"")
    await client.close()
    assert not server.of("goodbye")
    await server.nats.close()


@on_a_loop
async def test_a_server_without_pings_is_never_pinged() -> None:
    nats = FakeNats()
    await nats.open()
    server = FakeStan(nats, protocol=0)
    client = await ftstan.client.connect(CLUSTER, "me", servers=nats.url, ping_interval=1)
    await asyncio.sleep(1.2)
    assert not server.of("ping")
    nats.cut()
    await until(lambda: not client.connected, "the loss of the connection")
    await client.publish("foo", b"")
    assert server.of("publish")[0].conn_id == b""
    await client.close()
    await nats.close()


@on_a_loop
async def test_a_lost_nats_connection_keeps_the_session_and_what_it_listens_to() -> None:
    server = await stan()
    got: list[int] = []

    async def handler(message: Message) -> None:
        got.append(message.sequence)

    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url)
    await client.subscribe("foo", handler)
    server.deliver(1)
    await until(lambda: server.acks[server.ack_inboxes[0]] == [1], "the ack")
    server.nats.cut()
    await until(lambda: server.inboxes[0] in server.nats.wanted(), "the inbox again")
    await until(lambda: client.connected, "an answer to a ping")
    server.deliver(2)
    await until(lambda: server.acks[server.ack_inboxes[0]] == [1, 2], "the second ack")
    assert got == [1, 2]
    assert len(server.of("connect")) == len(server.of("subscribe")) == 1
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_an_ack_that_is_given_while_nats_is_away_is_sent_when_it_is_back() -> None:
    server = await stan()
    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url)
    subscription = await client.subscribe("foo", manual_acks=True)
    server.deliver(1)
    message = await subscription.next(30)
    await server.nats.close()
    await until(lambda: not client.connected, "the end of the connection")
    await message.ack()
    await server.nats.open()
    await until(lambda: server.acks[server.ack_inboxes[0]] == [1], "the ack")
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_a_session_unknown_to_the_server_is_made_again_with_its_subscriptions() -> None:
    server = await stan()
    lost: list[ConnectionLostError] = []
    back: list[bool] = []

    async def on_lost(error: ConnectionLostError) -> None:
        lost.append(error)

    async def on_back() -> None:
        back.append(True)

    client = await ftstan.client.connect(
        CLUSTER,
        "me",
        servers=server.nats.url,
        ping_interval=1,
        on_connection_lost=on_lost,
        on_reconnected=on_back,
    )
    durable = await client.subscribe(
        "foo", durable="audit", start=Start.first(), max_in_flight=5, ack_wait=3
    )
    server.ping_error = REPLACED
    await until(lambda: lost, "the loss")
    server.ping_error = ""
    await until(lambda: back, "the next session")
    assert isinstance(lost[0], ReplacedError)
    assert lost[0].text == REPLACED
    first, second = server.of("connect")
    assert first.client_id == second.client_id == b"me"
    assert first.conn_id != second.conn_id
    assert first.heartbeat_inbox.decode() not in server.nats.wanted()
    before, after = server.of("subscribe")
    assert before.inbox != after.inbox
    before.inbox = after.inbox = b""
    assert before == after
    server.deliver(1)
    assert (await durable.next(30)).sequence == 1
    assert await client.publish("foo", b"")
    assert server.of("publish")[0].conn_id == second.conn_id
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_what_is_refused_because_the_session_is_gone_is_sent_by_the_next_one() -> None:
    server = await stan()
    client = await ftstan.client.connect(
        CLUSTER, "me", servers=server.nats.url, ping_interval=60, republish=True
    )
    server.publish_error = "stan: invalid publish request"
    server.ping_error = REPLACED
    publish = asyncio.create_task(client.publish("foo", b"kept"))
    await until(lambda: server.of("ping"), "the ping that asks")
    server.publish_error = server.ping_error = ""
    guid = await publish
    assert {p.guid.decode() for p in server.of("publish")} == {guid}
    assert len(server.of("connect")) == 2
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_an_invalid_publish_of_a_known_session_is_refused_also_with_republish() -> None:
    server = await stan()
    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url, republish=True)
    server.publish_error = "stan: invalid publish request"
    with pytest.raises(ftstan.client.PublishRefusedError, match="invalid publish request"):
        await client.publish("foo", b"")
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_a_client_whose_id_another_process_has_taken_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ftstan.client.connection._NEXT_TRY_S", 0.01)
    server = await stan()
    lost: list[ConnectionLostError] = []

    async def on_lost(error: ConnectionLostError) -> None:
        lost.append(error)

    client = await ftstan.client.connect(
        CLUSTER, "me", servers=server.nats.url, ping_interval=1, on_connection_lost=on_lost
    )
    subscription = await client.subscribe("foo")
    server.ping_error = REPLACED
    server.connect_error = TAKEN
    with pytest.raises(ftstan.client.SubscriptionClosedError, match=TAKEN):
        await subscription.next(30)
    await until(lambda: client.closed, "the end")
    assert [type(error) for error in lost] == [ReplacedError, ReplacedError]
    assert TAKEN in lost[1].text
    # The id belongs to somebody else now: a close request would close their session.
    await client.close()
    assert not server.of("goodbye")
    await server.nats.close()


@on_a_loop
async def test_a_subscription_that_the_next_session_is_refused_ends_and_the_others_go_on() -> None:
    server = await stan()
    told: list[ClientError] = []

    async def on_error(error: ClientError) -> None:
        told.append(error)

    client = await ftstan.client.connect(
        CLUSTER, "me", servers=server.nats.url, ping_interval=1, on_error=on_error
    )
    subscription = await client.subscribe("foo")
    server.ping_error = REPLACED
    server.subscribe_error = "too many subscriptions per channel"
    await until(lambda: len(server.of("connect")) == 2, "the next session")
    server.ping_error = ""
    with pytest.raises(
        ftstan.client.SubscriptionClosedError, match="too many subscriptions per channel"
    ):
        await subscription.next(30)
    await until(lambda: told, "the loss is told")
    assert [type(error).__name__ for error in told] == ["SubscriptionLostError"]
    await client.publish("foo", b"")
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_a_subscription_that_nats_does_not_allow_the_next_session_ends_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = await stan()
    told: list[ClientError] = []
    back: list[bool] = []

    async def on_error(error: ClientError) -> None:
        told.append(error)

    async def on_back() -> None:
        back.append(True)

    client = await ftstan.client.connect(
        CLUSTER,
        "me",
        servers=server.nats.url,
        ping_interval=1,
        on_error=on_error,
        on_reconnected=on_back,
    )
    refused = await client.subscribe("foo")
    kept = await client.subscribe("bar")
    opened = Subscription.open

    async def denied(self: Subscription, *rest: Any) -> None:
        if self is refused:
            raise NotAllowedError("NATS refuses: permissions violation")
        await opened(self, *rest)

    monkeypatch.setattr(Subscription, "open", denied)
    server.ping_error = REPLACED
    await until(lambda: len(server.of("connect")) == 2, "the next session")
    server.ping_error = ""
    with pytest.raises(ftstan.client.SubscriptionClosedError, match="permissions violation"):
        await refused.next(30)
    await until(lambda: back, "the next session to be told")
    assert [type(error).__name__ for error in told] == ["SubscriptionLostError"]
    assert not kept.closed
    await client.publish("foo", b"")
    await client.close()
    await server.nats.close()


@on_a_loop
@pytest.mark.parametrize(
    "broken", ["client.connection.Connection._renew", "client.publishing.Publisher._give_up"]
)
async def test_a_defect_in_what_keeps_the_client_going_ends_it_and_is_told(
    monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    server = await stan()
    lost: list[ConnectionLostError] = []
    shown: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: shown.append(what))

    async def on_lost(error: ConnectionLostError) -> None:
        lost.append(error)

    def fails(*_: object) -> None:
        raise ZeroDivisionError("broken")

    client = await ftstan.client.connect(
        CLUSTER, "me", servers=server.nats.url, ping_interval=1, on_connection_lost=on_lost
    )
    subscription = await client.subscribe("foo")
    server.acks_publishes = False
    answer = await client.publish_async("foo", b"")
    monkeypatch.setattr(f"ftstan.{broken}", fails)
    server.ping_error = REPLACED
    with pytest.raises(ftstan.client.SubscriptionClosedError, match="ZeroDivisionError"):
        await subscription.next(30)
    await until(lambda: client.closed, "the end")
    with pytest.raises(ftstan.client.PublishUnknownError, match="ZeroDivisionError"):
        await answer
    with pytest.raises(ConnectionClosedError, match="the client has failed: ZeroDivisionError"):
        await client.publish("foo", b"")
    assert isinstance(lost[-1].__cause__, ZeroDivisionError)
    assert shown
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_a_durable_that_the_former_session_holds_is_asked_for_until_free() -> None:
    server = await stan()
    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url, ping_interval=1)
    await client.subscribe("foo", durable="audit")
    server.ping_error = REPLACED
    server.subscribe_error = "stan: duplicate durable registration"
    await until(lambda: len(server.of("subscribe")) >= 3, "a second try")
    server.ping_error = server.subscribe_error = ""
    await until(lambda: len(server.inboxes) == 2, "success")
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_a_close_while_the_next_session_is_being_furnished_closes_that_one() -> None:
    server = await stan()
    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url, ping_interval=1)
    await client.subscribe("foo", durable="audit")
    server.answers_subscribes = False
    server.ping_error = REPLACED
    await until(lambda: len(server.of("connect")) == 2, "the next session")
    server.ping_error = ""
    await until(lambda: len(server.of("subscribe")) == 2, "its subscription")
    await client.close()
    assert [g.client_id for g in server.of("goodbye")] == [b"me"]
    await until(lambda: not server.nats.clients, "the end of the connection")
    await server.nats.close()


@on_a_loop
async def test_a_subscribe_that_is_answered_as_the_connection_ends_gives_no_subscription(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = await stan()
    ends: list[asyncio.Task[None]] = []
    answered = Link._on_answer

    async def on_answer(self: Link, arrived: Arrived) -> None:
        await answered(self, arrived)
        if server.of("subscribe"):
            # In the turn in which the request gets its answer.
            ends.append(asyncio.create_task(client._finish(ConnectionClosedError("closed"))))

    monkeypatch.setattr(Link, "_on_answer", on_answer)
    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url)
    with pytest.raises(ConnectionClosedError):
        await client.subscribe("foo", durable="d")
    await asyncio.wait(ends)
    assert not client._subscriptions
    await server.nats.close()


@on_a_loop
async def test_a_close_that_is_refused_says_so_and_is_a_close_all_the_same() -> None:
    server = await stan()
    client = await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url)
    server.close_error = "stan: unknown clientID"
    with pytest.raises(RequestRefusedError, match="stan: unknown clientID"):
        await client.close()
    assert client.closed
    await client.close()
    await until(lambda: not server.nats.clients, "the end of the connection")
    await server.nats.close()
