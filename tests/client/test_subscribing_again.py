"""A subscribe request that its server took to its grave is sent again, and nobody is served twice:
against a server that does what the test tells it, and against a group whose active is killed.
"""

from __future__ import annotations

import asyncio
import json
import signal
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest

import ftstan.client
from ftstan.client import ClientError, RequestRefusedError, RequestTimeoutError, Start
from ftstan.client.errors import DUPLICATE_DURABLE
from ftstan.client.link import Link
from ftstan.wire import messages
from ftstan.wire.messages import StartPosition
from tests import processes
from tests.client.fake import FakeNats, FakeStan, on_a_loop, until
from tests.processes import CLUSTER, PATIENCE_S

if TYPE_CHECKING:
    from ftstan.client.link import Arrived
    from tests.compat.players.natswire import Operation
    from tests.processes import Server, Stage

KINDS: tuple[dict[str, str], ...] = (
    {},
    {"durable": "audit"},
    {"queue": "workers"},
    {"queue": "workers", "durable": "audit"},
)


class Owner(FakeStan):
    """Knows the subscriptions that it holds, as servers do.

    ``loses``: so many subscribe requests vanish, as if a killed owner had them in its socket.
    ``keeps``: so many are carried out and not answered. ``holds``: requests wait in ``held``.
    ``by_inbox``: whether a subscription can be closed by its message inbox. ``down``: channels of
    a partition that nobody serves. ``goes``: nothing gets through behind a request that is kept.
    """

    def __init__(self, nats: FakeNats) -> None:
        self.loses = 0
        self.keeps = 0
        self.holds = False
        self.by_inbox = True
        self.goes = False
        self.down: set[bytes] = set()
        self.held: list[Operation] = []
        self.live: dict[str, messages.SubscriptionRequest] = {}
        """By ack inbox."""
        super().__init__(nats)

    def _on_subscribe(self, operation: Operation) -> None:
        if self.holds:
            self.held.append(operation)
            return
        request = messages.parse(messages.SubscriptionRequest, operation.payload or b"")
        if request.subject in self.down:
            self.heard.append(("subscribe", request))
            return
        if self.loses:
            self.loses -= 1
            self.heard.append(("subscribe", request))
            return
        is_taken = (
            request.durable_name
            and not request.q_group
            and any(live.durable_name == request.durable_name for live in self.live.values())
        )
        self.subscribe_error = DUPLICATE_DURABLE if is_taken else ""
        before = len(self.ack_inboxes)
        self.answers_subscribes = True
        reply = operation.reply
        if self.keeps:
            self.keeps -= 1
            self.nats.silent = self.goes
            operation.reply = "nowhere"
        super()._on_subscribe(operation)
        operation.reply = reply
        if len(self.ack_inboxes) > before:
            self.live[self.ack_inboxes[-1]] = request

    def _on_connect(self, operation: Operation) -> None:
        # It finds out that the former session is dead.
        self.live.clear()
        super()._on_connect(operation)

    def release(self) -> None:
        """Carry out what waits."""
        self.holds = False
        for operation in self.held:
            self._on_subscribe(operation)
        self.held.clear()

    def _on_end(self, how: str, operation: Operation) -> None:
        request = messages.parse(messages.UnsubscribeRequest, operation.payload or b"")
        self.heard.append((how, request))
        if request.subject in self.down:
            return
        found = [
            ack_inbox
            for ack_inbox, live in self.live.items()
            if request.inbox in {ack_inbox.encode(), live.inbox if self.by_inbox else b""}
        ]
        for ack_inbox in found:
            del self.live[ack_inbox]
        error = b"" if found else b"stan: invalid subscription"
        if operation.reply:
            self._answer(operation, messages.SubscriptionResponse(error=error))


async def owner() -> Owner:
    nats = FakeNats()
    await nats.open()
    return Owner(nats)


async def connected(server: FakeStan, **options: Any) -> ftstan.client.Connection:
    return await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url, **options)


@pytest.fixture(autouse=True)
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is silent for long is so sooner, where no process is waited for."""
    if not request.node.get_closest_marker("processes"):
        monkeypatch.setattr("ftstan.client.subscription.SILENT_S", 0.3)


@on_a_loop
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fate", ["loses", "keeps"])
async def test_a_request_that_its_server_took_to_its_grave_is_sent_again_and_one_is_left(
    kind: dict[str, str], fate: str
) -> None:
    server = await owner()
    setattr(server, fate, 1)
    client = await connected(server)
    subscription = await client.subscribe("foo", start=Start.first(), **kind)  # type: ignore[arg-type]
    first, second = server.of("subscribe")
    # On another inbox: what comes to the first one is nobody's any more.
    assert first.inbox != second.inbox
    assert [live.inbox for live in server.live.values()] == [second.inbox]
    assert first.inbox.decode() not in server.nats.wanted()
    server.deliver(1, b"one")
    assert (await subscription.next(30)).data == b"one"
    await client.close()
    await server.nats.close()


@on_a_loop
@pytest.mark.parametrize("kind", KINDS)
async def test_it_is_taken_back_by_whoever_serves_next_before_it_is_asked_for_again(
    kind: dict[str, str],
) -> None:
    server = await owner()
    server.keeps = 1
    client = await connected(server)
    subscribing = asyncio.create_task(client.subscribe("foo", **kind))  # type: ignore[arg-type]
    await until(lambda: server.live, "it to be stored")
    server.stop()
    # Nobody listens while the next one takes over, with what was stored.
    await asyncio.sleep(0.8)
    server.start()
    await subscribing
    assert [live.inbox for live in server.live.values()] == [server.of("subscribe")[-1].inbox]
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_one_that_two_owners_took_along_is_sent_a_third_time() -> None:
    server = await owner()
    server.loses = 2
    client = await connected(server)
    await client.subscribe("foo", durable="audit")
    assert len(server.of("subscribe")) == 3
    assert len(server.live) == 1
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_what_nobody_answers_in_time_is_told_and_taken_back() -> None:
    server = await owner()
    server.loses = 9
    client = await connected(server, request_timeout=1.0)
    with pytest.raises(RequestTimeoutError, match=r"no answer on _STAN\.sub\.x"):
        await client.subscribe("foo")
    asked = [request.inbox for request in server.of("subscribe")]
    assert len(asked) == 2
    await until(lambda: asked[-1] in {r.inbox for r in server.of("close")}, "the withdrawal")
    await client.close()
    await server.nats.close()


@on_a_loop
@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_that_is_slow_carries_out_all_of_it_and_one_is_left(
    kind: dict[str, str],
) -> None:
    server = await owner()
    server.holds = True
    client = await connected(server)
    subscribing = asyncio.create_task(client.subscribe("foo", **kind))  # type: ignore[arg-type]
    await until(lambda: len(server.held) > 1, "it to be sent again")
    # The original carries out requests of two kinds in any order: the close came first here.
    server.release()
    await subscribing
    await until(lambda: len(server.live) == 1, "the other one to be closed")
    assert len(server.nats.wanted() & {live.inbox.decode() for live in server.live.values()}) == 1
    await client.close()
    await server.nats.close()


async def away(server: Owner, seconds: float) -> None:
    """NATS goes with the answer to what is stored, and stays away for longer than a request
    lasts.
    """
    await until(lambda: server.live, "it to be stored")
    await server.nats.close()
    await asyncio.sleep(seconds)
    server.nats.silent = False
    await server.nats.open()


@on_a_loop
@pytest.mark.parametrize("kind", KINDS)
async def test_what_was_stored_when_nats_went_away_for_long_is_closed_when_it_is_back(
    kind: dict[str, str],
) -> None:
    server = await owner()
    client = await connected(server, request_timeout=3.0)
    server.keeps = 1
    server.goes = True
    leaving = asyncio.create_task(away(server, 4))
    with pytest.raises(RequestTimeoutError):
        await client.subscribe("foo", **kind)  # type: ignore[arg-type]
    await leaving
    # Nobody has to subscribe again for that.
    await until(lambda: not server.live, "it to be closed")
    subscription = await client.subscribe("foo", start=Start.first(), **kind)  # type: ignore[arg-type]
    assert [live.inbox for live in server.live.values()] == [server.of("subscribe")[-1].inbox]
    server.deliver(1, b"one")
    assert (await subscription.next(30)).data == b"one"
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_nothing_is_asked_of_a_channel_before_what_was_asked_for_is_taken_back() -> None:
    server = await owner()
    client = await connected(server, request_timeout=2.0)
    server.down.add(b"foo")
    with pytest.raises(RequestTimeoutError, match="no answer to a subscribe to foo"):
        await client.subscribe("foo", durable="audit")
    before = len(server.of("subscribe"))
    with pytest.raises(RequestTimeoutError, match="none to taking it back"):
        await client.subscribe("foo", durable="audit")
    assert len(server.of("subscribe")) == before
    # Other channels are not concerned.
    await client.subscribe("bar")
    server.down.clear()
    await until(lambda: len(server.live) == 1, "the withdrawal")
    await client.subscribe("foo", durable="other")
    await client.close()
    await server.nats.close()


@on_a_loop
@pytest.mark.parametrize("kind", KINDS)
async def test_a_session_that_is_made_again_goes_on_although_it_lost_the_answer_to_a_subscribe(
    kind: dict[str, str],
) -> None:
    server = await owner()
    told: list[ClientError] = []

    async def on_error(error: ClientError) -> None:
        told.append(error)

    client = await connected(server, request_timeout=1.0, ping_interval=1, on_error=on_error)
    subscription = await client.subscribe("foo", start=Start.first(), **kind)  # type: ignore[arg-type]
    server.keeps = 1
    server.goes = True
    server.ping_error = "client has been replaced or is no longer registered"
    await until(lambda: len(server.of("connect")) == 2, "the next session")
    server.ping_error = ""
    await away(server, 2)
    await until(lambda: len(server.inboxes) == 3, "it to be made again")
    assert [live.inbox for live in server.live.values()] == [server.of("subscribe")[-1].inbox]
    await client.publish("foo", b"")
    server.deliver(1, b"one")
    assert (await subscription.next(30)).data == b"one"
    assert {type(error) for error in told} == {RequestTimeoutError}
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_a_partition_that_is_down_does_not_keep_the_next_session_from_the_others() -> None:
    server = await owner()
    back: list[bool] = []

    async def on_back() -> None:
        back.append(True)

    client = await connected(
        server, ping_interval=1, on_reconnected=on_back, request_timeout=PATIENCE_S
    )
    silent = await client.subscribe("foo", durable="audit")
    heard = await client.subscribe("bar", start=Start.first())
    server.down.add(b"foo")
    server.ping_error = "client has been replaced or is no longer registered"
    await until(lambda: len(server.of("connect")) == 2, "the next session")
    server.ping_error = ""
    await until(lambda: back, "the next session to be told")
    await client.publish("bar", b"")
    server.deliver(1, b"one", channel="bar")
    assert (await heard.next(30)).data == b"one"
    await client.subscribe("bar", durable="new")
    server.down.clear()
    await until(
        lambda: b"foo" in {live.subject for live in server.live.values()}, "the other partition"
    )
    server.deliver(1, b"two")
    assert (await silent.next(30)).data == b"two"
    await client.close()
    await server.nats.close()


def heard(server: Owner, kind: str, count: int) -> bool:
    return len(server.of(kind)) >= count


@on_a_loop
async def test_one_that_still_waits_for_its_answer_is_asked_for_by_the_newest_session_alone() -> (
    None
):
    server = await owner()
    client = await connected(server, ping_interval=1, request_timeout=PATIENCE_S)
    await client.subscribe("foo", durable="audit")
    server.down.add(b"foo")
    for number in (2, 3):
        server.ping_error = "client has been replaced or is no longer registered"
        asked = len(server.of("subscribe"))
        await until(partial(heard, server, "connect", number), "the next session")
        server.ping_error = ""
        await until(partial(heard, server, "subscribe", asked + 1), "its request")
        await until(lambda: client.connected, "service")
    server.down.clear()
    await until(lambda: len(server.live) == 1, "the subscription")
    await asyncio.sleep(1)
    assert len(server.live) == 1
    assert len(server.inboxes) == 2
    await client.close()
    await server.nats.close()


@on_a_loop
@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_session_asks_for_when_it_is_lost_is_held_once_by_the_next_one(
    kind: dict[str, str],
) -> None:
    """The next owner hears the connect first: a request of the former session would be carried out
    in the name of the new one, for both have one client id.
    """
    server = await owner()
    told: list[ClientError] = []

    lost = asyncio.Event()

    async def on_lost(_error: ClientError) -> None:
        lost.set()

    async def on_error(error: ClientError) -> None:
        told.append(error)

    client = await connected(
        server,
        ping_interval=1,
        ping_max_out=1,
        on_connection_lost=on_lost,
        on_error=on_error,
        request_timeout=PATIENCE_S,
    )
    server.stop()
    subscribing = asyncio.create_task(client.subscribe("foo", start=Start.first(), **kind))  # type: ignore[arg-type]
    await lost.wait()
    for subject, handler in server._subjects().items():
        if "discover" in subject:
            server.nats.serve(subject, handler)
    await until(lambda: len(server.of("connect")) == 2, "the next session")
    server.start()
    subscription = await subscribing
    server.deliver(1, b"one")
    assert (await subscription.next(30)).data == b"one"
    await asyncio.sleep(0.5)
    assert [live.inbox for live in server.live.values()] == [server.of("subscribe")[-1].inbox]
    assert told == []
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_one_that_is_closed_before_the_next_session_has_its_answer_leaves_nothing() -> None:
    server = await owner()
    client = await connected(server, ping_interval=1)
    subscription = await client.subscribe("foo", durable="audit")
    server.holds = True
    server.ping_error = "client has been replaced or is no longer registered"
    await until(lambda: server.held, "its request")
    server.ping_error = ""
    await subscription.close()
    server.release()
    await until(lambda: server.of("close"), "its end")
    assert not server.live
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_a_durable_that_is_given_up_between_two_sessions_is_forgotten_in_the_next() -> None:
    server = await owner()
    client = await connected(server, ping_interval=1)
    subscription = await client.subscribe("foo", durable="audit")
    server.holds = True
    server.ping_error = "client has been replaced or is no longer registered"
    await until(lambda: server.held, "its request")
    server.ping_error = ""
    leaving = asyncio.create_task(subscription.unsubscribe(60))
    await asyncio.sleep(0.05)
    assert not leaving.done()
    server.release()
    await leaving
    assert [request.inbox.decode() for request in server.of("unsubscribe")] == [
        server.ack_inboxes[-1]
    ]
    assert not server.live
    assert subscription.closed
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_a_durable_that_is_given_up_behind_its_last_session_is_said_to_stay() -> None:
    server = await owner()
    client = await connected(server, ping_interval=1)
    subscription = await client.subscribe("foo", durable="audit")
    other = await client.subscribe("foo")
    server.answers_connects = False
    server.ping_error = "client has been replaced or is no longer registered"
    await until(lambda: len(server.of("connect")) > 1, "another session to be asked for")
    # The server forgets this one with its session.
    await other.unsubscribe()
    with pytest.raises(RequestTimeoutError, match="the server keeps the durable audit"):
        await subscription.unsubscribe(0.2)
    assert subscription.closed
    assert server.of("unsubscribe") == []
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_a_durable_that_is_in_use_is_refused_at_once_and_keeps_its_place() -> None:
    server = await owner()
    client = await connected(server)
    await client.subscribe("foo", durable="audit")
    with pytest.raises(RequestRefusedError, match=DUPLICATE_DURABLE):
        await client.subscribe("foo", durable="audit")
    assert len(server.of("subscribe")) == 2
    assert server.of("close") == []
    # Also if the request was lost: only what was asked for by it is taken back.
    server.loses = 1
    with pytest.raises(RequestRefusedError, match=DUPLICATE_DURABLE):
        await client.subscribe("foo", durable="audit")
    assert len(server.live) == 1
    assert next(iter(server.live)) == server.ack_inboxes[0]
    await client.close()
    await server.nats.close()


@on_a_loop
async def test_an_old_server_that_closes_nothing_by_an_inbox_is_not_asked_for_ever() -> None:
    server = await owner()
    server.by_inbox = False
    server.keeps = 1
    client = await connected(server, request_timeout=1.5)
    with pytest.raises(RequestRefusedError, match=DUPLICATE_DURABLE):
        await client.subscribe("foo", durable="audit")
    await client.close()
    await server.nats.close()


@on_a_loop
@pytest.mark.parametrize(
    ("start", "wanted"),
    [
        (Start.new(), StartPosition.TIME_DELTA_START),
        (Start.last(), StartPosition.LAST_RECEIVED),
        (Start.first(), StartPosition.FIRST),
        (Start.sequence(7), StartPosition.SEQUENCE_START),
        (Start.ago(100), StartPosition.TIME_DELTA_START),
    ],
)
async def test_what_is_published_between_two_requests_is_not_missed(
    start: Start, wanted: int
) -> None:
    server = await owner()
    server.loses = 1
    client = await connected(server)
    await client.subscribe("foo", start=start)
    again = server.of("subscribe")[1]
    assert int(again.start_position) == wanted
    if wanted == StartPosition.TIME_DELTA_START:
        passed = again.start_time_delta - start.number
        assert 0.3e9 <= passed <= PATIENCE_S * 1e9
    assert again.start_sequence == (7 if wanted == StartPosition.SEQUENCE_START else 0)
    await client.close()
    await server.nats.close()


# ---- a group


def held_by(server: Server) -> list[dict[str, Any]]:
    """The subscriptions that a server shows."""
    status, body = server.get("/streaming/channelsz?channel=foo&subs=1")
    assert status == HTTPStatus.OK
    found: list[dict[str, Any]] = json.loads(body).get("subscriptions") or []
    return found


@pytest.mark.processes
@pytest.mark.parametrize("kind", [{}, {"durable": "audit"}])
@pytest.mark.parametrize("fate", ["lost", "stored"])
@on_a_loop
async def test_the_next_active_serves_what_the_killed_one_was_asked_for_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, kind: dict[str, str], fate: str
) -> None:
    deaf = False
    hear = Link._on_answer

    async def on_answer(link: Link, arrived: Arrived) -> None:
        if not deaf:
            await hear(link, arrived)

    monkeypatch.setattr(Link, "_on_answer", on_answer)
    nats = await asyncio.to_thread(stage.nats)
    active, standby = await asyncio.to_thread(stage.pair_on, nats)
    client = await ftstan.client.connect(
        CLUSTER, "me", servers=nats.url, timeout=PATIENCE_S, request_timeout=PATIENCE_S
    )
    await client.publish("foo", b"before")
    if fate == "lost":
        active.signal(signal.SIGSTOP)
    deaf = True
    subscribing = asyncio.create_task(client.subscribe("foo", start=Start.first(), **kind))  # type: ignore[arg-type]
    if fate == "stored":
        await asyncio.to_thread(processes.until, lambda: held_by(active), "it to be stored")
    else:
        # The request is in its socket.
        await asyncio.sleep(0.2)
    active.kill()
    deaf = False
    subscription = await subscribing
    await asyncio.to_thread(standby.wait_until_active)
    (held,) = await asyncio.to_thread(held_by, standby)
    assert held["client_id"] == "me"
    await client.publish("foo", b"behind")
    assert [(await subscription.next(PATIENCE_S)).data for _ in range(2)] == [b"before", b"behind"]
    await subscription.close()
    await client.close()
