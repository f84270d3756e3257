"""A client that closes with very many subscriptions: so much a turn, and what others see of it
meanwhile.
"""

from __future__ import annotations

import pytest

from ftstan.base.errors import StoreError
from ftstan.broker import managing
from ftstan.broker.broker import BrokerOptions
from ftstan.broker.closing import CHANNELS, MESSAGES, MOST_WAITING, PORTION
from ftstan.stores.interface import CLIENTS, ChannelLimits
from ftstan.stores.memory import MemoryStore
from ftstan.wire import messages
from tests.compat.driver import SECOND, SUBJECTS, Driver, connect_request, deliveries, sequences
from tests.model.servers import FileServers
from tests.unit.node.test_pipeline_pause import serving

MANY = 3 * PORTION
UNLIMITED = BrokerOptions(limits=ChannelLimits(max_subs=0), max_channels=0)
CLOSE_WIDE = messages.encode(messages.CloseRequest(client_id=b"wide"))


class Turns:
    """What each turn of the loop has ended: subscriptions, and the channels that they were of."""

    def __init__(self, driver: Driver) -> None:
        self.ended: list[int] = []
        self.channels: list[int] = []
        detach = driver.broker.subscriptions.detach
        commit = driver.store.commit
        self._now: list[bytes] = []

        def counted(sub: object, *, unsubscribe: bool) -> None:
            self._now.append(sub.channel.name)  # type: ignore[attr-defined]
            detach(sub, unsubscribe=unsubscribe)  # type: ignore[arg-type]

        def ending() -> dict[bytes, StoreError]:
            self.ended.append(len(self._now))
            self.channels.append(len(set(self._now)))
            self._now.clear()
            return commit()

        driver.broker.subscriptions.detach = counted  # type: ignore[method-assign]
        driver.store.commit = ending  # type: ignore[method-assign]


def wide(
    kind: str = "plain", count: int = MANY, channels: int = 1, driver: Driver | None = None
) -> Driver:
    made = driver or Driver(options=UNLIMITED)
    made.connect()
    made.connect(b"wide")
    for i in range(count):
        made.subscribe(
            b"c.%d" % (i % channels),
            client_id=b"wide",
            inbox=b"in.%d" % i,
            durable=b"dur.%d" % i if kind == "durable" else b"",
            queue=b"group" if kind == "member" else b"",
        )
    return made


def turn(driver: Driver) -> None:
    """One batch down the road, whatever waits behind it."""
    driver._feed()
    driver.broker.run_timers(driver.clock.wall_ns(), driver.now)
    driver._commit()
    driver._emit()


def begin_close(driver: Driver) -> bytes:
    """Ask for the close of ``wide``, one turn; gives where the answer will go."""
    reply = driver.reply()
    driver.frame(SUBJECTS.close, CLOSE_WIDE, reply)
    turn(driver)
    return reply


def answers(driver: Driver, reply: bytes) -> list[bytes]:
    return [o.payload for o in driver.out if o.subject == reply]


@pytest.mark.parametrize("kind", ["plain", "durable", "member"])
def test_a_client_that_closes_ends_so_many_subscriptions_a_turn_and_is_answered_behind_the_last(
    kind: str,
) -> None:
    driver = wide(kind)
    turns = Turns(driver)
    reply = begin_close(driver)
    while not answers(driver, reply):
        turn(driver)
    assert sum(turns.ended) == MANY
    assert max(turns.ended) <= PORTION
    assert answers(driver, reply) == [b""]
    assert driver.broker.channels.get(b"c.0").stored_subs == (MANY if kind == "durable" else 0)  # type: ignore[union-attr]
    assert driver.broker.by_sid == {}


def test_a_turn_touches_so_many_channels() -> None:
    driver = wide(count=5 * CHANNELS, channels=5 * CHANNELS)
    turns = Turns(driver)
    driver.close(b"wide")
    assert sum(turns.ended) == 5 * CHANNELS
    assert max(turns.channels) <= CHANNELS


def test_a_client_with_few_subscriptions_closes_at_once_beside_one_with_many() -> None:
    driver = wide()
    driver.subscribe(client_id=b"me")
    slow = begin_close(driver)
    quick = driver.reply()
    driver.frame(SUBJECTS.close, messages.encode(messages.CloseRequest(client_id=b"me")), quick)
    turn(driver)
    assert (answers(driver, quick), answers(driver, slow)) == ([b""], [])


def test_clients_that_close_together_share_what_a_turn_may_cost() -> None:
    driver = wide(count=0)
    for i in range(8):
        driver.connect(b"c%d" % i)
        for k in range(PORTION // 2):
            driver.subscribe(client_id=b"c%d" % i, inbox=b"in.%d.%d" % (i, k))
    turns = Turns(driver)
    for i in range(8):
        driver.frame(
            SUBJECTS.close, messages.encode(messages.CloseRequest(client_id=b"c%d" % i)), b"closed"
        )
    driver.run()
    assert answers(driver, b"closed") == [b""] * 8
    assert sum(turns.ended) == 4 * PORTION
    # Those that wait get some of every turn.
    assert max(turns.ended) <= PORTION + PORTION // 4


def test_a_closing_client_gets_no_deliveries_and_its_requests_come_from_nobody() -> None:
    driver = wide()
    begin_close(driver)
    before = len(driver.out)
    driver.offer(b"x", channel=b"c.0")
    turn(driver)
    assert [o for o in driver.out[before:] if o.subject.startswith(b"in.")] == []
    assert driver.broker.closing
    assert driver.close(b"wide") == b"stan: unknown clientID"
    assert driver.broker.channels.get(b"c.0").store.last == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("close", [True, False])
def test_a_subscription_of_a_client_that_closes_is_unknown_at_once(*, close: bool) -> None:
    driver = wide()
    last = driver.subscribe(b"c.0", client_id=b"wide", inbox=b"last")
    begin_close(driver)
    assert driver.broker.channels.get(b"c.0").by_inbox[b"last"].client is not None  # type: ignore[union-attr]
    request = messages.UnsubscribeRequest(client_id=b"wide", subject=b"c.0", inbox=last)
    reply = driver.reply()
    driver.frame(
        SUBJECTS.sub_close if close else SUBJECTS.unsubscribe, messages.encode(request), reply
    )
    turn(driver)
    (answer,) = answers(driver, reply)
    assert (
        messages.parse(messages.SubscriptionResponse, answer).error == b"stan: invalid subscription"
    )


def test_the_id_is_free_when_the_close_has_ended_and_a_connect_waits_for_that() -> None:
    driver = wide("durable")
    closed = begin_close(driver)
    connected = driver.reply()
    driver.frame(SUBJECTS.discovery, connect_request(b"wide", b"hb.new", b"conn.new"), connected)
    turn(driver)
    assert (answers(driver, closed), answers(driver, connected)) == ([], [])
    driver.run()
    assert answers(driver, closed) == [b""]
    (answer,) = answers(driver, connected)
    assert messages.parse(messages.ConnectResponse, answer).error == b""
    assert driver.broker.clients.get(b"wide").info.hb_inbox == b"hb.new"  # type: ignore[union-attr]
    # Every durable is offline, and any of them can be resumed.
    driver.subscribe(b"c.0", client_id=b"wide", durable=b"dur.%d" % (MANY - 1))


def test_a_connect_that_comes_again_while_it_waits_for_the_id_is_answered_and_not_probed() -> None:
    driver = wide()
    begin_close(driver)
    for _ in range(3):
        driver.frame(SUBJECTS.discovery, connect_request(b"wide", b"hb.new", b"conn.new"), b"again")
    turn(driver)
    assert answers(driver, b"again") == []
    driver.run()
    driver.subscribe(b"c.0", client_id=b"wide", inbox=b"kept")
    # Nobody answers heartbeats there before the first answer has come.
    driver.wait(1)
    errors = [messages.parse(messages.ConnectResponse, a).error for a in answers(driver, b"again")]
    assert errors == 3 * [b""]
    assert [sub.inbox for sub in driver.broker.channels.get(b"c.0").subs] == [b"kept"]  # type: ignore[union-attr]


def test_so_many_connects_wait_for_one_id_and_all_are_told_that_it_is_taken_but_the_first() -> None:
    driver = wide()
    begin_close(driver)
    for i in range(MOST_WAITING + 5):
        driver.frame(
            SUBJECTS.discovery, connect_request(b"wide", b"hb.%d" % i, b"conn.%d" % i), b"connected"
        )
    driver.alive.add(b"hb.0")
    driver.wait(1)
    errors = [
        messages.parse(messages.ConnectResponse, a).error for a in answers(driver, b"connected")
    ]
    assert len(errors) == MOST_WAITING + 5
    assert errors.count(b"") == 1
    assert set(errors) == {b"", b"stan: clientID already registered"}


def test_more_connects_than_may_wait_are_told_at_once_that_the_id_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ftstan.broker.closing.MOST_WAITING", 2)
    driver = wide()
    begin_close(driver)
    for i in range(5):
        driver.frame(
            SUBJECTS.discovery, connect_request(b"wide", b"hb.%d" % i, b"conn.%d" % i), b"connected"
        )
    turn(driver)
    assert [
        messages.parse(messages.ConnectResponse, a).error for a in answers(driver, b"connected")
    ] == 3 * [b"stan: clientID already registered"]
    driver.alive.add(b"hb.0")
    driver.wait(1)
    assert len(answers(driver, b"connected")) == 5


def test_a_connect_whose_probe_ends_while_its_client_closes_registers_nobody_twice() -> None:
    """Two connects wait for one id; for the first of them the client was asked before it closed."""
    options = BrokerOptions(
        hb_interval=SECOND, hb_timeout=SECOND // 2, hb_fail_count=0, limits=UNLIMITED.limits
    )
    driver = wide(driver=Driver(options=options))
    driver.alive.discard(b"hb.wide")
    for who in (b"1", b"2"):
        driver.alive.add(b"hb." + who)
    driver.frame(SUBJECTS.discovery, connect_request(b"wide", b"hb.1", b"conn.1"), b"first")
    turn(driver)
    probe = next(o for o in driver.out if o.subject == b"hb.wide")
    driver.frame(SUBJECTS.close, CLOSE_WIDE, b"closed")
    driver.frame(SUBJECTS.discovery, connect_request(b"wide", b"hb.2", b"conn.2"), b"second")
    driver.status(probe.reply)
    driver.run()
    driver.wait(1)
    errors = [
        messages.parse(messages.ConnectResponse, a).error
        for a in (*answers(driver, b"first"), *answers(driver, b"second"))
    ]
    assert sorted(errors) == [b"", b"stan: clientID already registered"]
    # Whoever was registered goes when nobody answers for it, and takes nobody with it.
    driver.alive.clear()
    driver.alive.add(b"hb.me")
    driver.wait(5)
    assert [client.client_id for client in driver.broker.clients.values()] == [b"me"]


@pytest.mark.parametrize("kind", ["plain", "durable", "member"])
def test_a_client_that_misses_its_heartbeats_is_closed_in_portions(kind: str) -> None:
    options = BrokerOptions(
        hb_interval=SECOND, hb_timeout=SECOND // 2, hb_fail_count=0, limits=UNLIMITED.limits
    )
    driver = wide(kind, driver=Driver(options=options))
    driver.alive.discard(b"hb.wide")
    turns = Turns(driver)
    driver.wait(4)
    assert driver.broker.clients.get(b"wide") is None
    assert sum(turns.ended) == MANY
    assert max(turns.ended) <= PORTION


def test_a_client_that_is_replaced_is_closed_in_portions_before_its_successor_is_answered() -> None:
    driver = wide()
    driver.alive.discard(b"hb.wide")
    turns = Turns(driver)
    driver.frame(SUBJECTS.discovery, connect_request(b"wide", b"hb.new", b"conn.new"), b"connected")
    driver.wait(1)
    (answer,) = answers(driver, b"connected")
    assert messages.parse(messages.ConnectResponse, answer).error == b""
    assert (sum(turns.ended), max(turns.ended) <= PORTION) == (MANY, True)


def test_an_operator_is_told_of_a_close_when_it_has_ended() -> None:
    driver = wide()
    promise = managing.kick(driver.broker, managing.find_client(driver.broker, b"wide"))
    turn(driver)
    assert not promise.done()
    driver.run()
    assert promise.result(0) is None


class NoClients(MemoryStore):
    """Registrations cannot be stored for once."""

    refuses = False

    def commit(self) -> dict[bytes, StoreError]:
        failed = super().commit()
        if self.refuses:
            self.refuses = False
            failed[CLIENTS] = StoreError("no space")
        return failed


@pytest.mark.parametrize("how", ["by itself", "by an operator"])
def test_a_record_that_cannot_be_stored_is_named_in_the_answer_at_the_end(how: str) -> None:
    store = NoClients()
    driver = wide(driver=Driver(store, UNLIMITED))
    store.refuses = True
    if how == "by itself":
        reply = begin_close(driver)
        driver.run()
        (answer,) = answers(driver, reply)
        assert messages.parse(messages.CloseResponse, answer).error == b"no space"
        return
    promise = managing.kick(driver.broker, managing.find_client(driver.broker, b"wide"))
    driver.run()
    with pytest.raises(StoreError, match="no space"):
        promise.result(0)


def count_of(driver: Driver, kind: str) -> tuple[int, int]:
    """Subscriptions that are stored, and live ones."""
    channel = driver.broker.known_channel(b"c.0")
    assert channel is not None
    live = len(channel.subs) + sum(group.size for group in channel.groups.values())
    assert kind != "plain" or not channel.durables
    return channel.stored_subs, live


@pytest.mark.parametrize("kind", ["plain", "durable", "member"])
@pytest.mark.parametrize("end", ["power cut", "kill", "fail over", "stop"])
def test_what_a_close_has_left_when_the_server_ends_is_closed_by_the_next_one(
    end: str, kind: str
) -> None:
    servers = FileServers()
    wide(kind, driver=servers.driver)
    begin_close(servers.driver)
    stored, _ = count_of(servers.driver, kind)
    assert servers.driver.broker.closing
    if end == "power cut":
        servers.lose_power()
    elif end == "kill":
        servers.kill()
    elif end == "fail over":
        servers.fail_over(SUBJECTS.pings, messages.encode(messages.Ping(conn_id=b"conn.me")))
    else:
        servers.stop()
    driver = servers.driver
    assert driver.broker.clients.get(b"wide") is None
    assert count_of(driver, kind) == ((MANY, 0) if kind == "durable" else (0, 0))
    assert stored > 0
    driver.connect(b"wide")
    driver.subscribe(b"c.0", client_id=b"wide", inbox=b"again", durable=b"dur.0")


def test_messages_of_members_that_close_reach_the_others() -> None:
    driver = wide("member")
    driver.subscribe(b"c.0", queue=b"group", inbox=b"stays", max_in_flight=10_000)
    driver.publish(*(b"%d" % i for i in range(2 * MANY)), channel=b"c.0")
    driver.close(b"wide")
    driver.wait(2)
    assert set(sequences(driver.out, b"stays")) == set(range(1, 2 * MANY + 1))


@pytest.mark.parametrize("subject", [SUBJECTS.unsubscribe, SUBJECTS.sub_close])
def test_a_member_that_leaves_deals_so_many_messages_a_turn(subject: str) -> None:
    driver = Driver(options=UNLIMITED)
    driver.connect()
    many = 4 * PORTION * MESSAGES
    leaver = driver.subscribe(b"c.0", queue=b"group", inbox=b"leaves", max_in_flight=2 * many)
    for start in range(0, many, 1000):
        driver.publish(*(b"%d" % i for i in range(start, min(start + 1000, many))), channel=b"c.0")
    assert len(deliveries(driver.out, b"leaves")) == many
    driver.subscribe(b"c.0", queue=b"group", inbox=b"stays", max_in_flight=2 * many)
    dealt: list[int] = []
    sub = next(s for s in driver.broker.by_sid.values() if s.inbox == b"leaves")
    reply = driver.reply()
    request = messages.UnsubscribeRequest(client_id=b"me", subject=b"c.0", inbox=leaver)
    driver.frame(subject, messages.encode(request), reply)
    while not answers(driver, reply):
        before = len(sub.pending)
        turn(driver)
        dealt.append(before - len(sub.pending))
    assert len(dealt) > 2
    assert max(dealt) <= PORTION * MESSAGES
    driver.wait(2)
    assert set(sequences(driver.out, b"stays")) == set(range(1, many + 1))


def test_a_hand_over_waits_for_what_is_left_and_a_stop_ends_it() -> None:
    node, server = serving()
    node.goes_on = True
    node.taken = []
    left = server.leave()
    node.link_events.append((4, b""))
    server.turn(readable=True)
    assert not left.done()
    assert server.timeout() == 0.0
    node.goes_on = False
    server.turn(readable=False)
    assert left.done()
    node, server = serving()
    server.stop()
    assert node.done[:2] == ["finish", "stage"]
