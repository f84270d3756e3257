"""A broker on a store that another one has left: clients go on, and so do their subscriptions."""

from __future__ import annotations

import pytest

from ftstan.base.clock import ManualClock
from ftstan.broker.broker import BrokerOptions
from tests.compat.driver import SECOND, Driver, deliveries, sequences
from tests.sim.disk import SimDisk
from tests.sim.filestore import open_file_store
from tests.sim.history import STORE


class Server:
    """One server after the other on one simulated disk; each is killed, and its machine goes on."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.disk.make_dirs(STORE)
        self.clock = ManualClock()

    def start(self, options: BrokerOptions | None = None, *alive: bytes) -> Driver:
        store = open_file_store(self.disk, self.clock)
        return Driver(store, options or BrokerOptions(), self.clock, set(alive))

    def kill(self, driver: Driver, *, down: float = 0) -> None:
        driver.store.tick(self.clock.wall_ns())
        self.disk = self.disk.crash(process_only=True)
        self.clock.advance(down)


def test_a_client_goes_on_with_its_connection_id_client_id_and_ack_inbox() -> None:
    server = Server()
    driver = server.start()
    driver.connect()
    ack_inbox = driver.subscribe(max_in_flight=1)
    driver.publish(b"a", b"b")
    server.kill(driver)
    driver = server.start(None, b"hb.me")
    assert driver.ping(b"conn.me") == b""
    assert sequences(driver.ack(ack_inbox, 1)) == [2]
    assert driver.publish(b"c")[0].error == b""
    driver.subscribe(inbox=b"second")
    assert sequences(driver.out, b"second") == [1, 2, 3]
    assert driver.close() == b""


def test_the_first_heartbeats_of_many_clients_do_not_come_in_one_moment() -> None:
    server = Server()
    driver = server.start()
    ids = [b"c%d" % i for i in range(50)]
    for client_id in ids:
        driver.connect(client_id)
    server.kill(driver)
    driver = server.start(None, *(b"hb." + client_id for client_id in ids))
    beats = [o.at for o in driver.wait(40) if o.subject.startswith(b"hb.")]
    assert len(beats) == len(set(beats)) == 50
    assert max(beats) - min(beats) == pytest.approx(0.049)


def test_nothing_but_heartbeats_leaves_when_nothing_is_pending() -> None:
    server = Server()
    driver = server.start()
    driver.connect()
    ack_inbox = driver.subscribe(ack_wait=1)
    driver.publish(b"a")
    driver.ack(ack_inbox, 1)
    server.kill(driver)
    driver = server.start(None, b"hb.me")
    assert driver.wait(29) == []


def test_the_first_heartbeat_of_a_recovered_client_comes_one_interval_after_the_start() -> None:
    server = Server()
    driver = server.start()
    driver.connect()
    driver.wait(25)
    server.kill(driver, down=60)
    driver = server.start(BrokerOptions(hb_interval=2 * SECOND), b"hb.me")
    driver.wait(5)
    assert [o.at for o in driver.out if o.subject == b"hb.me"] == [2, 4]


def test_what_was_pending_is_due_at_its_timestamp_plus_ack_wait() -> None:
    server = Server()
    driver = server.start()
    driver.connect()
    driver.subscribe(ack_wait=3)
    driver.publish(b"a")
    driver.wait(0.5)
    driver.publish(b"b")
    driver.wait(0.5)
    server.kill(driver)
    driver = server.start(None, b"hb.me")
    driver.wait(5)
    assert [(d.at, d.sequence, d.count) for d in deliveries(driver.out)] == [
        (2, 1, 1),
        (2.5, 2, 1),
        (5, 1, 2),
    ]


def test_what_is_overdue_at_the_start_is_resent_at_once_before_new_messages() -> None:
    server = Server()
    driver = server.start()
    driver.connect()
    driver.subscribe(ack_wait=3, max_in_flight=3)
    driver.publish(b"a", b"b")
    server.kill(driver, down=10)
    driver = server.start(None, b"hb.me")
    driver.offer(b"c")
    driver.run()
    assert [(d.at, d.sequence, d.redelivered) for d in deliveries(driver.out)] == [
        (0, 1, True),
        (0, 2, True),
        (0, 3, False),
    ]


def test_new_messages_go_out_before_pending_ones_that_are_not_due() -> None:
    server = Server()
    driver = server.start()
    driver.connect()
    driver.subscribe(ack_wait=10)
    driver.publish(b"a")
    server.kill(driver)
    driver = server.start(None, b"hb.me")
    driver.publish(b"b")
    driver.wait(10)
    assert [(d.at, d.sequence, d.redelivered) for d in deliveries(driver.out)] == [
        (0, 2, False),
        (10, 1, True),
        (10, 2, True),
    ]


def test_a_window_that_was_full_is_full_after_the_start() -> None:
    server = Server()
    driver = server.start()
    driver.connect()
    ack_inbox = driver.subscribe(max_in_flight=2, ack_wait=100)
    driver.publish(b"a", b"b", b"c")
    server.kill(driver)
    driver = server.start(None, b"hb.me")
    driver.publish(b"d")
    assert deliveries(driver.out) == []
    assert sequences(driver.ack(ack_inbox, 2)) == [3]


def test_a_message_stored_but_never_sent_is_sent_as_new() -> None:
    server = Server()
    driver = server.start()
    driver.connect()
    driver.subscribe(max_in_flight=1, ack_wait=100)
    ack_inbox = driver.subscribe(inbox=b"other", ack_wait=100)
    driver.publish(b"a")
    driver.ack(ack_inbox, 1)
    driver.offer(b"b")
    driver.run(lost=True)
    server.disk = server.disk.crash(process_only=True)
    driver = server.start(None, b"hb.me")
    driver.run()
    assert [(d.sequence, d.redelivered) for d in deliveries(driver.out, b"other")] == [(2, False)]


def test_closed_durables_stay_offline_and_open_ones_live() -> None:
    server = Server()
    driver = server.start()
    driver.connect()
    driver.connect(b"gone")
    driver.subscribe(inbox=b"live", durable=b"live", ack_wait=1)
    driver.subscribe(client_id=b"gone", inbox=b"closed", durable=b"closed", ack_wait=1)
    driver.publish(b"a")
    driver.close(b"gone")
    server.kill(driver, down=5)
    driver = server.start(None, b"hb.me", b"hb.gone")
    driver.publish(b"b")
    assert sequences(driver.out, b"live") == [1, 2]
    assert sequences(driver.out, b"closed") == []
    driver.connect(b"gone")
    driver.subscribe(client_id=b"gone", inbox=b"resumed", durable=b"closed")
    assert [(d.sequence, d.redelivered) for d in deliveries(driver.out, b"resumed")] == [
        (1, True),
        (2, False),
    ]


def test_subscription_ids_and_sequences_are_not_used_again() -> None:
    server = Server()
    for i in range(3):
        driver = server.start(None, b"hb.me")
        if i == 0:
            driver.connect()
        ack_inbox = driver.subscribe(inbox=b"in.%d" % i)
        driver.publish(b"%d" % i)
        assert sequences(driver.out, b"in.%d" % i)[-1] == i + 1
        ids = {s.sub_id for s in driver.broker.by_sid.values()}
        assert ids == {i + 1}
        driver.leave("_STAN.unsub.tc", ack_inbox)
        server.kill(driver)


def test_more_recovered_subscriptions_than_one_turn_takes_are_all_served() -> None:
    server = Server()
    driver = server.start()
    driver.connect()
    for i in range(150):
        driver.subscribe(inbox=b"in.%d" % i, ack_wait=1)
    driver.publish(b"a")
    server.kill(driver, down=5)
    driver = server.start(None, b"hb.me")
    driver.wait(0)
    assert all(sequences(driver.out, b"in.%d" % i) == [1] for i in range(150))


def test_a_long_outage_resends_each_message_once_even_if_they_do_not_fit_in_one_emit() -> None:
    server = Server()
    driver = server.start()
    driver.connect()
    driver.subscribe(ack_wait=1, max_in_flight=1000)
    for i in range(60):
        driver.publish(*(b"%d:%d" % (i, k) + b"x" * 10_000 for k in range(10)))
    server.kill(driver, down=3600)
    driver = server.start(None, b"hb.me")
    driver.wait(0.9)
    assert [(d.sequence, d.count) for d in deliveries(driver.out)] == [
        (seq, 1) for seq in range(1, 601)
    ]
    assert {o.at for o in driver.out} == {0}
