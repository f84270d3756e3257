"""Requests in bursts: so many a batch, and publishes, acks and heartbeats that come behind them do
not wait.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from ftstan.broker import request_queue
from ftstan.broker.broker import BrokerOptions
from ftstan.broker.constants import SID_CONNECT, SID_PING, SID_SUBSCRIBE
from ftstan.broker.pacing import TOGETHER, Pacing
from ftstan.broker.partition import Partition
from ftstan.broker.request_queue import ANSWERS, REQUESTS, RequestQueue
from ftstan.wire import messages
from tests.compat.driver import SECOND, SUBJECTS, Driver, connect_request, pub_acks, sequences
from tests.unit.broker.test_closing import answers, turn

if TYPE_CHECKING:
    from ftstan.base.errors import StoreError

MANY = 5 * REQUESTS


def burst(driver: Driver, count: int = MANY) -> None:
    for i in range(count):
        driver.frame(
            SUBJECTS.discovery,
            connect_request(b"c%d" % i, b"hb.c%d" % i, b"conn.c%d" % i),
            b"connected",
        )


@pytest.fixture
def driver() -> Driver:
    made = Driver()
    made.connect()
    return made


def test_a_batch_carries_out_so_many_requests_and_the_others_in_their_order(driver: Driver) -> None:
    registered: list[int] = []
    commit = driver.store.commit

    def counted() -> dict[bytes, StoreError]:
        registered.append(len(driver.broker.clients))
        return commit()

    driver.store.commit = counted  # type: ignore[method-assign]
    burst(driver)
    driver.run()
    assert [b - a for a, b in zip([1, *registered], registered, strict=False)][:5] == [REQUESTS] * 5
    assert len(answers(driver, b"connected")) == MANY
    assert list(driver.broker.clients.objects)[1:] == [b"c%d" % i for i in range(MANY)]


def test_publishes_and_acks_pass_requests_that_wait(driver: Driver) -> None:
    ack_inbox = driver.subscribe()
    driver.publish(b"first")
    burst(driver)
    driver.offer(b"x")
    driver.frame(ack_inbox, messages.encode(messages.Ack(subject=b"foo", sequence=1)))
    before = len(driver.out)
    turn(driver)
    assert [ack.guid for ack in pub_acks(driver.out[before:])] == [b"x"]
    assert sequences(driver.out[before:]) == [2]
    assert [s for s, _, _ in driver.broker.by_sid[64].pending.items()] == [2]
    assert len(answers(driver, b"connected")) == REQUESTS


def test_no_request_comes_before_what_was_sent_before_it(driver: Driver) -> None:
    burst(driver)
    driver.offer(b"x")
    driver.frame(SUBJECTS.close, messages.encode(messages.CloseRequest(client_id=b"me")), b"closed")
    driver.run()
    assert [(ack.guid, ack.error) for ack in pub_acks(driver.out)] == [(b"x", b"")]
    assert answers(driver, b"closed") == [b""]


def test_answers_to_heartbeats_pass_requests_and_are_bounded_themselves() -> None:
    driver = Driver(options=BrokerOptions(hb_interval=2 * SECOND, hb_timeout=SECOND))
    count = ANSWERS + 50
    for i in range(count):
        driver.connect(b"w%d" % i, alive=False)
    beats: list[bytes] = []
    driver.clock.advance(4)
    while len(beats) < count:
        before = len(driver.out)
        turn(driver)
        beats += [o.reply for o in driver.out[before:] if o.subject.startswith(b"hb.")]
    burst(driver)
    for beat in beats:
        driver.frame(beat, b"")
    turn(driver)
    waiting = [
        client.waiting
        for client in driver.broker.clients.objects.values()
        if client.client_id[:1] == b"w"
    ]
    assert Counter(waiting) == {0: ANSWERS, 1: 50}
    turn(driver)
    assert not any(client.waiting for client in driver.broker.clients.objects.values())
    assert driver.broker.request_queue


def test_what_waits_has_a_bound_and_what_comes_beyond_it_is_refused_and_keeps_nobody(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_queue, "MOST_BYTES", 25_000)
    burst(driver)
    driver.offer(b"behind all of them")
    turn(driver)
    assert len(pub_acks(driver.out)) == 1
    held = len(driver.broker.request_queue)
    assert REQUESTS < held < MANY - REQUESTS
    driver.run()
    found = [
        messages.parse(messages.ConnectResponse, payload).error
        for payload in answers(driver, b"connected")
    ]
    taken = REQUESTS + held
    assert Counter(found) == {b"": taken, b"stan: too many requests": MANY - taken}
    assert driver.broker.malformed.totals == {"connect": MANY - taken}
    burst(driver, 1)
    driver.run()
    assert len(answers(driver, b"connected")) == MANY + 1


def test_partitions_say_nothing_for_want_of_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_queue, "MOST_BYTES", 25_000)
    driver = Driver(options=BrokerOptions(partition=Partition([b"foo"])))
    burst(driver)
    driver.run()
    found = [
        messages.parse(messages.ConnectResponse, payload).error
        for payload in answers(driver, b"connected")
    ]
    assert REQUESTS < len(found) < MANY
    assert set(found) == {b""}


def test_what_waits_is_lost_with_the_link(driver: Driver) -> None:
    burst(driver)
    turn(driver)
    driver.broker.link_lost(driver.now)
    driver.raw(b"")
    assert not driver.broker.request_queue


def test_a_request_behind_others_of_its_kind_keeps_its_place() -> None:
    done: list[int] = []
    made = RequestQueue(lambda sid, *_: done.append(sid), lambda *_: None, lambda: 0)
    for sid in range(20, 20 + 2 * REQUESTS):
        made.take(sid, b"", b"", b"", b"")
    assert done == list(range(20, 20 + REQUESTS))
    # What comes later does not get the room that the next batch has.
    made.go_on()
    made.take(9, b"", b"", b"", b"")
    made.go_on()
    made.go_on()
    assert done == [*range(20, 20 + 2 * REQUESTS), 9]
    assert len(made) == 0


def test_pings_wait_for_nobody_and_who_subscribes_takes_turns_with_who_connects() -> None:
    done: list[int] = []
    refused: list[int] = []
    made = RequestQueue(
        lambda sid, *_: done.append(sid), lambda sid, _: refused.append(sid), lambda: 0
    )
    # More connects than may wait.
    payload = bytes(16_000)
    while not refused:
        made.take(SID_CONNECT, b"", b"", payload, b"")
    done.clear()
    made.take(SID_PING, b"", b"", b"", b"")
    assert done == [SID_PING]
    for _ in range(REQUESTS):
        made.take(SID_SUBSCRIBE, b"", b"", b"", b"")
    for _ in range(3):
        made.go_on()
    assert done.count(SID_SUBSCRIBE) == REQUESTS
    assert SID_CONNECT in done
    assert set(refused) == {SID_CONNECT}


# ---- heartbeats
# --------------------------------------------------------------------------------------------------


def test_a_few_clients_are_asked_exactly_one_interval_later() -> None:
    pacing = Pacing(30 * SECOND)
    assert {pacing.after_interval(0, i) for i in range(TOGETHER)} == {30 * SECOND}
    assert pacing.after_interval(10 * SECOND, TOGETHER) == 40 * SECOND


@pytest.mark.parametrize("count", [1000, 20_000, 200_000])
def test_heartbeats_of_many_that_came_together_are_spread_over_half_an_interval_at_most(
    count: int,
) -> None:
    pacing = Pacing(30 * SECOND)
    due = [pacing.after_interval(0, i + 1) for i in range(count)]
    assert min(due) == 30 * SECOND
    assert max(due) <= 45 * SECOND
    ten_ms = Counter(d // (SECOND // 100) for d in due)
    # Twice as many as if they were spread evenly over the half, besides those that may come
    # together.
    assert max(ten_ms.values()) <= 2 * max(10, count // 1500) + TOGETHER


def test_clients_that_connect_in_one_moment_are_not_asked_in_one() -> None:
    driver = Driver(options=BrokerOptions(hb_interval=10 * SECOND))
    burst(driver, 1000)
    driver.run()
    driver.alive.update(b"hb.c%d" % i for i in range(1000))
    for _ in range(3):
        driver.out.clear()
        driver.wait(11)
        beats = Counter(o.at for o in driver.out if o.subject.startswith(b"hb."))
        assert sum(beats.values()) >= 1000
        assert max(beats.values()) <= TOGETHER + 1
