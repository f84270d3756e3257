"""Whole sessions of clients with the habits of each library: alone, over a restart, and over a
failover.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.wire.messages import StartPosition
from tests.compat.players.libraries import (
    CSHARP,
    GO,
    JAVA,
    LIBRARIES,
    NODE,
    OLD_GO,
    OLD_JAVA,
    PYTHON,
    Library,
    NoAnswerError,
    Player,
    RefusedError,
    Subscription,
)
from tests.lateness import LateError
from tests.processes import PATIENCE_S, READY, Nats, Server, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

pytestmark = pytest.mark.processes

each_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
pinging = pytest.mark.parametrize(
    "library", [GO, PYTHON, NODE, JAVA, CSHARP], ids=lambda library: library.name
)

FAST = (1, 60)
"""Pings each second; patience for as long as a takeover may take on a busy machine."""


def play(session: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(session())


async def until(done: Callable[[], object], what: str) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + PATIENCE_S
    while not done():
        if loop.time() >= end:
            raise LateError(f"waited {PATIENCE_S:g} s in vain for {what}")
        await asyncio.sleep(0.01)


async def got(subscription: Subscription, *sequences: int) -> None:
    """Wait until a subscription has got exactly these."""
    await until(
        lambda: len(subscription.received) >= len(sequences),
        f"{sequences}, got {subscription.sequences}",
    )
    assert subscription.sequences == list(sequences)


async def got_news(subscription: Subscription, *sequences: int) -> None:
    """The same, leaving out what came again."""
    await until(
        lambda: set(subscription.sequences) >= set(sequences),
        f"{sequences}, got {subscription.sequences}",
    )
    assert list(dict.fromkeys(subscription.sequences)) == list(sequences)


async def publish_until_acked(player: Player, channel: str, data: bytes) -> None:
    """What an application does over a failover: no library sends a publish again by itself."""
    for _ in range(200):
        try:
            await player.publish(channel, data)
        except NoAnswerError:
            continue
        return
    raise AssertionError("no publish was acknowledged")


@pytest.fixture
def nats(stage: Stage) -> Nats:
    return stage.nats()


@pytest.fixture
def server(stage: Stage, nats: Nats) -> Server:
    return _started(stage, nats, "server")


def _started(stage: Stage, nats: Nats, name: str) -> Server:
    server = stage.file_server(name, "-ns", nats.url, "-hbi", "1s", "-hbt", "10s")
    server.wait_for(READY)
    return server


@each_library
def test_a_whole_session(library: Library, nats: Nats, server: Server) -> None:
    async def session() -> None:
        me = Player(library, "me", nats.port)
        await me.connect()
        asked = (
            (*library.pings, b"_STAN.discover.test-cluster.pings")
            if library.protocol
            else (0, 0, b"")
        )
        told = me.subjects
        assert (told.ping_interval, told.ping_max_out, told.ping_requests) == asked

        for data in (b"one", b"two", b"three"):
            await me.publish("foo", data)
        everything = await me.subscribe("foo", start=StartPosition.FIRST)
        await got(everything, 1, 2, 3)
        last = await me.subscribe("foo", start=StartPosition.LAST_RECEIVED)
        third = await me.subscribe("foo", start=StartPosition.SEQUENCE_START, sequence=3)
        news = await me.subscribe("foo")
        await asyncio.gather(*(me.publish_async("foo", data) for data in (b"four", b"five")))
        await got(everything, 1, 2, 3, 4, 5)
        await got(last, 3, 4, 5)
        await got(third, 3, 4, 5)
        await got(news, 4, 5)
        assert [message.data for message in everything.received] == [
            b"one",
            b"two",
            b"three",
            b"four",
            b"five",
        ]

        durable = await me.subscribe(
            "foo", durable="dur", start=StartPosition.FIRST, manual=True, max_in_flight=2
        )
        await got(durable, 1, 2)
        me.ack(durable, 1)
        await got(durable, 1, 2, 3)
        with pytest.raises(RefusedError, match=r"^stan: duplicate durable registration$"):
            await me.subscribe("foo", durable="dur")
        await me.close_subscription(durable)
        resumed = await me.subscribe("foo", durable="dur", manual=True)
        await got(resumed, 2, 3, 4, 5)
        assert [message.count for message in resumed.received] == [1, 1, 0, 0]
        await me.unsubscribe(resumed)
        anew = await me.subscribe("foo", durable="dur", start=StartPosition.FIRST)
        await got(anew, 1, 2, 3, 4, 5)

        with pytest.raises(RefusedError, match=r"^stan: invalid publish request$"):
            await me.publish("a/b", b"x")
        with pytest.raises(RefusedError, match=r"^stan: invalid subject$"):
            await me.subscribe("foo.>")
        await until(lambda: me.heartbeats >= 2, "two heartbeats")
        await me.close()

        again = Player(library, "me", nats.port)
        await again.connect()
        with pytest.raises(RefusedError, match=r"^stan: clientID already registered$"):
            await Player(library, "me", nats.port).connect()
        await again.publish("foo", b"six")
        resumed = await again.subscribe("foo", durable="dur")
        await got(resumed, 6)
        await again.close()

    play(session)


@each_library
def test_members_of_a_queue_group_share(library: Library, nats: Nats, server: Server) -> None:
    async def session() -> None:
        one = Player(library, "one", nats.port)
        two = Player(library, "two", nats.port)
        await one.connect()
        await two.connect()
        members = [
            await one.subscribe("foo", group="g"),
            await two.subscribe("foo", group="g"),
            await two.subscribe("foo", group="g", manual=True),
        ]
        for _ in range(9):
            await one.publish("foo", b"x")
        await until(lambda: sum(len(member.received) for member in members) >= 9, "nine messages")
        assert sorted(s for member in members for s in member.sequences) == list(range(1, 10))
        held = members[2].sequences
        assert held
        await two.close_subscription(members[2])
        await until(
            lambda: sum(len(member.received) for member in members[:2]) >= 9, "what the leaver held"
        )
        again = [
            message for member in members[:2] for message in member.received if message.redelivered
        ]
        assert sorted(message.sequence for message in again) == sorted(held)
        await one.close()
        await two.close()

    play(session)


@each_library
def test_a_session_goes_on_over_a_restart(
    library: Library, stage: Stage, nats: Nats, server: Server
) -> None:
    async def session() -> None:
        me = Player(library, "me", nats.port, pings=FAST if library.protocol else None, ack_s=0.5)
        await me.connect()
        plain = await me.subscribe("foo", manual=True, ack_wait=1)
        durable = await me.subscribe("foo", durable="dur")
        await me.publish("foo", b"one")
        await got(plain, 1)
        await got(durable, 1)

        server.kill()
        with pytest.raises(NoAnswerError):
            await me.publish("foo", b"nobody is there")
        await asyncio.to_thread(_started, stage, nats, "restarted")

        pings = me.answered_pings
        heartbeats = me.heartbeats
        await me.publish("foo", b"two")
        await got_news(plain, 1, 2)
        await got_news(durable, 1, 2)
        await until(
            lambda: any(m.redelivered for m in plain.received), "the redelivery of what is pending"
        )
        me.ack(plain, 1, 2)
        await until(lambda: me.heartbeats > heartbeats, "a heartbeat")
        if library.protocol:
            await until(lambda: me.answered_pings > pings, "the answer to a ping")
        assert not me.lost
        await me.close()

    play(session)


@each_library
def test_a_session_goes_on_over_a_failover(library: Library, stage: Stage, nats: Nats) -> None:
    a, b = stage.pair_on(nats)

    async def session() -> None:
        me = Player(library, "me", nats.port, pings=FAST if library.protocol else None, ack_s=0.5)
        await me.connect()
        plain = await me.subscribe("foo", manual=True, ack_wait=1)
        durable = await me.subscribe("foo", durable="dur", start=StartPosition.FIRST)
        await me.publish("foo", b"one")
        await got(plain, 1)

        a.kill()
        await publish_until_acked(me, "foo", b"two")

        await got_news(plain, 1, 2)
        await got_news(durable, 1, 2)
        await until(
            lambda: any(m.redelivered for m in plain.received), "the redelivery of what is pending"
        )
        me.ack(plain, 1, 2)
        pings = me.answered_pings
        if library.protocol:
            await until(lambda: me.answered_pings > pings, "the new active to answer a ping")
        await me.close_subscription(durable)
        await me.publish("foo", b"three")
        resumed = await me.subscribe("foo", durable="dur")
        await until(lambda: 3 in resumed.sequences, "message 3")
        # The acks that the killed server noted last may have died with it.
        assert [message.sequence for message in resumed.received if not message.redelivered] == [3]
        assert not me.lost
        await me.close()

    play(session)
    assert b.running


@pinging
def test_a_client_that_was_replaced_learns_it_from_its_next_ping(
    library: Library, nats: Nats, server: Server
) -> None:
    async def session() -> None:
        first = Player(library, "me", nats.port, pings=FAST)
        await first.connect()
        # It hears no heartbeats any more, but its connection is still there.
        first._drop(first._heartbeat_inbox)
        second = Player(library, "me", nats.port, pings=FAST)
        await second.connect()
        await until(lambda: first.lost, "the first client to be told")
        assert first.lost == "client has been replaced or is no longer registered"
        with pytest.raises(RefusedError, match=r"^stan: invalid publish request$"):
            await first.publish("foo", b"x")
        await first.kill()
        await second.publish("foo", b"x")
        await second.close()

    play(session)


@pinging
def test_a_client_gives_up_when_its_pings_are_not_answered(
    library: Library, nats: Nats, server: Server
) -> None:
    async def session() -> None:
        me = Player(library, "me", nats.port, pings=(1, 2))
        await me.connect()
        server.kill()
        await until(lambda: me.lost, "the client to give up")
        assert me.lost == "stan: connection lost due to PING failure"
        await me.kill()

    play(session)


@each_library
def test_a_client_that_died_leaves_its_durable_to_the_next_of_its_name(
    library: Library, nats: Nats, server: Server
) -> None:
    async def session() -> None:
        first = Player(library, "me", nats.port)
        await first.connect()
        await first.publish("foo", b"one")
        await got(
            await first.subscribe("foo", durable="dur", start=StartPosition.FIRST, manual=True), 1
        )
        await first.kill()
        second = Player(library, "me", nats.port)
        await second.connect()
        durable = await second.subscribe("foo", durable="dur")
        await got(durable, 1)
        assert durable.received[0].redelivered
        await second.close()

    play(session)


def test_a_subscribe_that_go_takes_back_leaves_nothing(nats: Nats, server: Server) -> None:
    async def session() -> None:
        hasty = Player(GO, "hasty", nats.port)
        await hasty.connect()
        # The answer goes nowhere: what Go sees when it comes too late.
        hasty._ask = partial(_ask_and_not_wait, hasty)  # type: ignore[method-assign]
        with pytest.raises(NoAnswerError):
            await hasty.subscribe("foo")
        del hasty._ask
        await hasty.publish("foo", b"x")
        await until(lambda: _subscriptions(server) == 0, "the subscription to go")
        await hasty.close()

    play(session)


@pytest.mark.parametrize("library", [GO, NODE, JAVA], ids=lambda library: library.name)
def test_sessions_that_share_a_nats_connection_end_each_by_itself(
    library: Library, nats: Nats, server: Server
) -> None:
    async def session() -> None:
        lender = Player(library, "lender", nats.port)
        await lender.connect()
        borrower = Player(library, "borrower", lender=lender)
        await borrower.connect()
        theirs = await lender.subscribe("foo")
        ours = await borrower.subscribe("foo")
        await borrower.publish("foo", b"one")
        await lender.publish("foo", b"two")
        for subscription in (theirs, ours):
            await got(subscription, 1, 2)
        await borrower.close()
        assert server.serverz()["clients"] == 1
        await lender.publish("foo", b"three")
        await got(theirs, 1, 2, 3)
        assert (ours.sequences, lender.lost) == ([1, 2], "")
        await lender.close()
        assert server.serverz()["clients"] == 0

    play(session)


async def _ask_and_not_wait(
    player: Player, subject: str, payload: bytes, what: str, _: object
) -> bytes:
    player._send(subject, payload, player._inbox())
    raise NoAnswerError(what)


def _subscriptions(server: Server) -> int:
    subscriptions: int = server.serverz()["subscriptions"]
    return subscriptions


def test_the_habits_differ_where_the_libraries_do() -> None:
    assert {library.pings for library in LIBRARIES} == {(5, 88), (5, 3), (0, 0)}
    assert [library.name for library in LIBRARIES if library.hangs_up_first] == [PYTHON.name]
    assert [library.name for library in LIBRARIES if library.needs_answer_first] == [NODE.name]
    assert [library.name for library in LIBRARIES if not library.protocol] == [
        OLD_GO.name,
        OLD_JAVA.name,
    ]
    assert len(PYTHON.unique()) == len(GO.unique()) == 22
