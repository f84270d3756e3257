"""Real server processes on real databases: killed, stopped, paused and cut off."""

from __future__ import annotations

import time
from signal import SIGCONT, SIGSTOP, SIGTERM
from typing import TYPE_CHECKING

import pytest

from ftstan.stores.sql.connecting import connect
from tests.contract.sqlplaces import empty
from tests.ft.client import StanClient
from tests.ft.load import CHANNEL, Load
from tests.ft.operator import Operator
from tests.processes import GROUP, READY, free_ports

if TYPE_CHECKING:
    from pathlib import Path

    from ftstan.stores.sql.source import Source
    from tests.processes import Nats, Server, Stage

pytestmark = pytest.mark.processes

EXIT_FENCED = 75
MANY = 1_000_000
"""Ticks: more than a server makes in a test."""


@pytest.fixture
def words(sql_source: Source, sql_text: str) -> tuple[str, ...]:
    """The words that make a server serve from an empty database."""
    empty(sql_source)
    return ("-store", "sql", "-sql_driver", sql_source.driver, "-sql_source", sql_text)


def pair(stage: Stage, words: tuple[str, ...], nats: Nats) -> tuple[Server, Server]:
    a = stage.server("a", *words, "-ft_group", GROUP, "-ns", nats.url)
    a.wait_until_active()
    b = stage.server("b", *words, "-ft_group", GROUP, "-ns", nats.url)
    b.wait_until_standing_by()
    return a, b


def _all(port: int, name: str) -> dict[int, bytes]:
    reader = StanClient(port, name)
    reader.connect()
    return reader.read_all(CHANNEL)


def test_every_acked_publish_survives_kills_at_one_sequence_with_one_content(
    stage: Stage, words: tuple[str, ...]
) -> None:
    ports = free_ports(2)
    load = Load()
    contents: dict[int, bytes] = {}
    server = stage.server("server", *words, port=ports[0], monitor=ports[1])
    server.wait_for(READY)
    for i in range(3):
        publisher = StanClient(server.port, f"publisher-{i}")
        publisher.connect()
        load.join(publisher)
        load.run(700)
        server.kill()
        load.read_last_acks()
        server = stage.server("server", *words, port=ports[0], monitor=ports[1])
        server.wait_for(READY)
        now = _all(server.port, f"reader-{i}")
        assert contents.items() <= now.items(), "a sequence changed its content, or went away"
        contents = now
        load.judge(contents)
    server.stop(10)


def test_a_durable_goes_on_after_a_kill_with_what_was_pending(
    stage: Stage, words: tuple[str, ...]
) -> None:
    ports = free_ports(2)
    server = stage.server("server", *words, port=ports[0], monitor=ports[1])
    server.wait_for(READY)
    client = StanClient(server.port)
    client.connect()
    durable = client.subscribe(CHANNEL, durable=b"audit", acks=False)
    client.publish(CHANNEL, *(b"%d" % n for n in range(1, 11)))
    client.nats.pump(lambda: len(durable.received) == 10, "ten deliveries")
    client.ack(durable, 2, 3)
    client.settle_acks()
    time.sleep(1.2)
    server.kill()

    server = stage.server("server", *words, port=ports[0], monitor=ports[1])
    server.wait_for(READY)
    client.move(server.port)
    client.close()
    client = StanClient(server.port)
    client.connect()
    again = client.subscribe(CHANNEL, durable=b"audit", acks=False)
    client.nats.pump(lambda: len(again.received) == 8, "those that were not acked")
    assert [(m.sequence, m.data, m.redelivered) for m in again.received] == [
        (n, b"%d" % n, True) for n in range(1, 11) if n not in (2, 3)
    ]


def test_a_standby_takes_over_at_once_when_the_owner_is_killed(
    stage: Stage, words: tuple[str, ...], sql_source: Source
) -> None:
    nats = stage.nats()
    a, b = pair(stage, words, nats)
    session = connect(sql_source)
    session.execute("UPDATE StoreLock SET tick = tick + %s", (MANY,))
    load = Load()
    publisher = StanClient(nats.port, "publisher")
    publisher.connect()
    load.join(publisher)
    load.run(500)
    began = time.monotonic()
    a.kill()
    load.read_rest()
    load.give_up()
    acked = len(publisher.acks)
    while len(publisher.acks) == acked:
        load.press(64)
        publisher.nats.read(0.01)
        load.give_up()
    print(f"FAILOVER {time.monotonic() - began:.3f} s")
    # Whoever takes the row of an owner that is silent begins to count anew.
    ((tick,),) = session.query("SELECT tick FROM StoreLock")
    session.close()
    assert int(tick) > MANY, "an owner that is dead was waited for as if it might live"
    load.run(200)
    load.give_up()
    b.wait_until_active()
    load.judge(_all(nats.port, "reader"))
    b.stop(10)


def test_an_owner_that_stops_hands_over(stage: Stage, words: tuple[str, ...]) -> None:
    nats = stage.nats()
    a, b = pair(stage, words, nats)
    load = Load()
    publisher = StanClient(nats.port, "publisher")
    publisher.connect()
    load.join(publisher)
    load.run(300)
    a.signal(SIGTERM)
    load.run(300)
    load.settle()
    assert a.status() == 143
    b.wait_until_active()
    load.judge(_all(nats.port, "reader"))


def test_a_paused_owner_is_replaced_and_acknowledges_nothing_afterwards(
    stage: Stage, words: tuple[str, ...]
) -> None:
    nats = stage.nats()
    a, b = pair(stage, words, nats)
    load = Load()
    publisher = StanClient(nats.port, "publisher")
    publisher.connect()
    load.join(publisher)
    load.run(500)
    # Under load: it is in the middle of something.
    load.press(256)
    a.signal(SIGSTOP)
    b.wait_until_active()
    load.read_rest()
    load.give_up()
    load.run(200)
    a.signal(SIGCONT)
    assert a.status() == EXIT_FENCED
    load.run(200)
    load.give_up()
    load.judge(_all(nats.port, "reader"))
    b.stop(10)


def test_an_owner_that_hangs_inside_a_transaction_does_not_block_the_takeover(
    stage: Stage, words: tuple[str, ...], sql_source: Source
) -> None:
    nats = stage.nats()
    a, b = pair(stage, words, nats)
    publisher = StanClient(nats.port, "publisher")
    publisher.connect()
    publisher.publish(CHANNEL, b"one")
    # Its next transaction waits for this row behind its fence: there it is paused.
    session = connect(sql_source)
    session.begin()
    session.execute("UPDATE Channels SET maxseq = maxseq WHERE id = 1")
    session.execute("LOCK TABLE Messages IN ACCESS EXCLUSIVE MODE") if (
        session.driver == "postgres"
    ) else session.execute("INSERT INTO Messages VALUES (1, 2, 0, 0, '')")
    publisher.offer(CHANNEL, b"two")
    time.sleep(0.3)
    a.signal(SIGSTOP)
    session.rollback()
    session.close()
    b.wait_until_active()
    a.signal(SIGCONT)
    assert a.status() == EXIT_FENCED
    contents = _all(nats.port, "reader")
    assert contents[1] == b"one"
    b.stop(10)


def test_an_operators_words_outlast_a_restart_and_are_taken_while_a_database_is_served(
    stage: Stage, words: tuple[str, ...], tmp_path: Path
) -> None:
    nats = stage.nats()
    key = tmp_path / "admin.key"
    words = (*words, "-ft_group", GROUP, "-ns", nats.url, "-admin_key", str(key))
    a = stage.server("a", *words, "-ft_member", "node-a")
    a.wait_until_active()
    b = stage.server("b", *words, "-ft_member", "node-b")
    b.wait_until_standing_by()
    operator = Operator(nats.url)

    def change(verb: str, *more: str) -> None:
        said = operator.ft(verb, "--admin-key", str(key), *more)
        assert said.status == 0, said

    client = StanClient(nats.port, "publisher")
    client.connect()
    load = Load()
    load.join(client)
    load.run(100)
    change("mixed", "on")
    load.run(100)
    assert [(e["cause"], e["mixed"]) for e in operator.epochs()[:1]] == [("mixed_switched", True)]
    change("mixed", "off")
    load.run(100)
    load.settle()
    change("pause", "node-b")
    b.signal(SIGTERM)
    assert b.status() == 143
    again = stage.server("b2", *words, "-ft_member", "node-b")
    again.wait_for("ftstanctl ft resume node-b")
    a.kill()
    time.sleep(3)
    assert operator.status().json["nodes"][0]["phase"] == "paused by the operator"
    change("resume", "node-b")
    again.wait_until_active()
    load.judge(_all(nats.port, "reader"))
    assert not operator.epochs()[0]["mixed"]
