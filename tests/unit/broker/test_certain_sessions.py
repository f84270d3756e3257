"""A partition that knows an older session of a client id than others do: what that session's
successor asks for meanwhile is its own.
"""

from __future__ import annotations

import pytest

from ftstan.broker import constants as c
from ftstan.broker.broker import BrokerOptions
from ftstan.broker.partition import Partition
from ftstan.stores.interface import ClientInfo
from ftstan.wire import messages
from tests.compat.driver import SUBJECTS, Driver, connect_request, sequences

REPLY = b"_INBOX.asked"
NEW = ClientInfo(b"c", b"hb.2", b"conn.2", 1, 5, 3)


@pytest.fixture
def driver() -> Driver:
    """A partition with session 1 of ``c``, which is not there any more; session 2 is."""
    driver = Driver(options=BrokerOptions(partition=Partition([b"foo"])))
    driver.connect(b"c", alive=False)
    driver.connect(b"pub")
    driver.alive.add(b"hb.2")
    return driver


def ask(driver: Driver, queue: bytes = b"") -> None:
    request = messages.SubscriptionRequest(
        client_id=b"c",
        subject=b"foo",
        inbox=b"in.2",
        q_group=queue,
        max_in_flight=10,
        ack_wait_in_secs=30,
    )
    driver.frame(SUBJECTS.subscribe, messages.encode(request), REPLY)
    driver.run()


def pairs(driver: Driver) -> list[tuple[bytes, bytes]]:
    return [(message.subject, message.payload) for message in driver.out]


def answers(driver: Driver) -> list[bytes]:
    return [
        messages.parse(messages.SubscriptionResponse, payload).error
        for subject, payload in pairs(driver)
        if subject == REPLY
    ]


def away_and_back(driver: Driver) -> None:
    """The link was lost: whoever connected meanwhile did so with other partitions."""
    driver.broker.connections.link_is_back()


def is_session_2s(driver: Driver) -> bool:
    assert answers(driver) == [b""]
    driver.publish(b"m", client_id=b"pub")
    client = driver.broker.clients.get(b"c")
    assert client is not None
    return client.info.conn_id == b"conn.2" and sequences(driver.out, b"in.2") == [1]


@pytest.mark.parametrize("queue", [b"", b"q"])
def test_a_subscription_waits_for_the_probe_of_the_older_session(
    driver: Driver, queue: bytes
) -> None:
    driver.frame(SUBJECTS.discovery, connect_request(b"c", b"hb.2", b"conn.2"), b"_INBOX.x")
    driver.run()
    ask(driver, queue)
    assert answers(driver) == []
    driver.wait(1)
    assert is_session_2s(driver)


@pytest.mark.parametrize("told_first", [True, False])
@pytest.mark.parametrize("nobody", [True, False])
def test_a_subscription_waits_for_what_other_partitions_know(
    driver: Driver, *, told_first: bool, nobody: bool
) -> None:
    """``nobody``: the NATS server says that nobody listens at session 1's inbox."""
    if nobody:
        driver.absent.add(b"hb.c")
    away_and_back(driver)
    if told_first:
        driver.broker.connections.learn([NEW])
    ask(driver)
    assert answers(driver) == ([b""] if told_first and nobody else [])
    if not told_first:
        driver.broker.connections.learn([NEW])
    driver.wait(1)
    assert is_session_2s(driver)


def test_a_session_that_lives_is_asked_once_and_has_what_it_asked_for_at_once(
    driver: Driver,
) -> None:
    driver.alive.add(b"hb.c")
    away_and_back(driver)
    driver.out.clear()
    ask(driver)
    assert answers(driver) == [b""]
    ask(driver)
    assert answers(driver) == [b"", b""]
    assert [subject for subject, _ in pairs(driver)].count(b"hb.c") == 1


def test_of_nobody_that_answers_the_one_that_is_registered_has_it_in_the_end(
    driver: Driver,
) -> None:
    away_and_back(driver)
    ask(driver)
    assert answers(driver) == []
    driver.wait(c.CONNECT_WITHIN / 1e9 + 0.1)
    assert answers(driver) == [b""]
    client = driver.broker.clients.get(b"c")
    assert client is not None
    assert client.info.conn_id != b"conn.2"


def test_alone_a_server_asks_nobody() -> None:
    driver = Driver()
    driver.connect(b"c", alive=False)
    away_and_back(driver)
    ask(driver)
    assert answers(driver) == [b""]
