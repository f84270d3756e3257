"""Queue groups on a store that another server left: members get back what they had, and nothing is
forgotten.
"""

from __future__ import annotations

import pytest

from ftstan.base.clock import ManualClock
from ftstan.broker.broker import BrokerOptions
from ftstan.stores.interface import Store, StoredSub, SubState
from ftstan.wire import messages
from tests.compat.driver import SUBJECTS, Driver, deliveries
from tests.sim.disk import SimDisk
from tests.sim.filestore import open_file_store
from tests.sim.history import STORE

NEW_ONLY = messages.StartPosition.NEW_ONLY


class Server:
    """One server after the other on one simulated disk; each is killed, and its machine goes on."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.disk.make_dirs(STORE)
        self.clock = ManualClock()
        self.driver = self.start()

    def start(self, *alive: bytes) -> Driver:
        self.store: Store = open_file_store(self.disk, self.clock)
        self.driver = Driver(self.store, BrokerOptions(), self.clock, set(alive))
        return self.driver

    def again(self, *, down: float = 0, alive: tuple[bytes, ...] = (b"hb.me", b"hb.bob")) -> Driver:
        self.store.tick(self.clock.wall_ns())
        self.disk = self.disk.crash(process_only=True)
        self.clock.advance(down)
        return self.start(*alive)

    def rows(self) -> list[StoredSub]:
        """The subscriptions that a server which starts now would find."""
        self.store.tick(self.clock.wall_ns())
        disk = self.disk.crash(process_only=True)
        (channel,) = open_file_store(disk, self.clock).recover().channels
        return list(channel.recovered_subs())


@pytest.fixture
def server() -> Server:
    made = Server()
    made.driver.connect()
    made.driver.connect(b"bob")
    return made


def again(driver: Driver) -> list[tuple[float, bytes, int, int]]:
    """(seconds, inbox, sequence, count) of every delivery to a member."""
    return [
        (d.at, o.subject, d.sequence, d.count)
        for o in driver.out
        if o.subject.startswith(b"q")
        for d in deliveries([o], o.subject)
    ]


def test_overdue_messages_come_back_to_the_members_that_had_them(server: Server) -> None:
    driver = server.driver
    one = driver.subscribe(inbox=b"q1", queue=b"g", ack_wait=2)
    driver.subscribe(inbox=b"q2", queue=b"g", ack_wait=2, client_id=b"bob")
    driver.publish(*(b"%d" % n for n in range(1, 6)))
    driver.ack(one, 1)
    driver = server.again(down=10)
    driver.run()
    assert sorted(again(driver)) == [
        (0, b"q1", 3, 1),
        (0, b"q1", 5, 1),
        (0, b"q2", 2, 1),
        (0, b"q2", 4, 1),
    ]


def test_the_redelivery_count_of_a_group_starts_again_after_the_recovery(server: Server) -> None:
    server.driver.subscribe(inbox=b"q1", queue=b"g", ack_wait=2)
    server.driver.publish(b"a")
    server.driver.wait(5)
    driver = server.again()
    driver.wait(5)
    assert [count for _, _, _, count in again(driver)] == [1, 1, 2]


def test_what_is_not_due_at_the_start_goes_to_whoever_is_chosen_at_its_time(server: Server) -> None:
    driver = server.driver
    driver.subscribe(inbox=b"q1", queue=b"g", ack_wait=3)
    driver.subscribe(inbox=b"q2", queue=b"g", ack_wait=3, client_id=b"bob")
    driver.publish(b"a")
    driver = server.again(down=1)
    driver.wait(1.9)
    assert again(driver) == []
    driver.wait(0.2)
    assert again(driver) == [(2, b"q2", 1, 1)]


def test_new_messages_flow_when_every_member_was_looked_at(server: Server) -> None:
    driver = server.driver
    for n in range(1, 101):
        driver.subscribe(inbox=b"q%d" % n, queue=b"g", ack_wait=30)
    driver.publish(*(b"%d" % n for n in range(100)))
    driver = server.again()
    driver.offer(b"new")
    driver.run()
    assert [(s, count) for _, _, s, count in again(driver)] == [(101, 0)]


def test_what_is_overdue_goes_out_before_new_messages_however_large_the_group_is(
    server: Server,
) -> None:
    driver = server.driver
    for n in range(1, 151):
        driver.subscribe(inbox=b"q%d" % n, queue=b"g", ack_wait=1)
    driver.publish(*(b"%d" % n for n in range(150)))
    driver = server.again(down=10)
    driver.offer(b"new")
    driver.run()
    assert [count for _, _, _, count in again(driver)] == [1] * 150 + [0]


def test_a_group_that_was_stalled_is_stalled_after_the_start(server: Server) -> None:
    driver = server.driver
    driver.subscribe(inbox=b"q1", queue=b"g", max_in_flight=1, ack_wait=100)
    two = driver.subscribe(inbox=b"q2", queue=b"g", max_in_flight=1, ack_wait=100)
    driver.publish(b"a", b"b", b"c")
    driver = server.again()
    driver.publish(b"d")
    assert again(driver) == []
    driver.ack(two, 2)
    assert again(driver) == [(0, b"q2", 3, 0)]


def test_a_client_that_went_on_acknowledges_with_its_old_ack_inbox_for_the_whole_group(
    server: Server,
) -> None:
    driver = server.driver
    one = driver.subscribe(inbox=b"q1", queue=b"g", ack_wait=3)
    driver.subscribe(inbox=b"q2", queue=b"g", ack_wait=3, client_id=b"bob")
    driver.publish(b"a", b"b")
    driver = server.again()
    driver.ack(one, 1, 2)
    driver.wait(10)
    assert again(driver) == []


def test_a_durable_group_without_members_comes_back_with_position_and_pending_messages(
    server: Server,
) -> None:
    # The recording restart-queue: 3 and 4 are resent, then 5 follows at once, and 6 when it is
    # published.
    driver = server.driver
    one = driver.subscribe(inbox=b"q1", queue=b"g", durable=b"dur")
    driver.publish(*(b"%d" % n for n in range(1, 5)))
    driver.ack(one, 1, 2)
    driver.leave(SUBJECTS.sub_close, one)
    driver.publish(b"5")
    driver = server.again(down=5)
    driver.wait(60)
    assert again(driver) == []
    driver.subscribe(inbox=b"q2", queue=b"g", durable=b"dur", client_id=b"bob", start=NEW_ONLY)
    driver.publish(b"6")
    found = deliveries(driver.out, b"q2")
    assert [(d.sequence, d.redelivered) for d in found] == [
        (3, True),
        (4, True),
        (5, False),
        (6, False),
    ]


def test_a_group_goes_on_behind_the_highest_position_of_its_members(server: Server) -> None:
    driver = server.driver
    acks = [driver.subscribe(inbox=b"q%d" % n, queue=b"g") for n in (1, 2, 3)]
    driver.publish(*(b"%d" % n for n in range(1, 9)))
    for n, ack_inbox in enumerate(acks):
        driver.ack(ack_inbox, *range(n + 1, 9, 3))
    driver = server.again()
    driver.publish(b"9")
    assert [s for _, _, s, _ in again(driver)] == [9]


# ---- records that a crash or another server left
# -------------------------------------------------------------------


def leave_records(server: Server, *subs: SubState, pending: dict[int, list[int]]) -> Driver:
    """Five messages and these records, as a server left them; the next server runs."""
    driver = server.driver
    driver.publish(*(b"%d" % n for n in range(1, 6)))
    (channel,) = driver.broker.channels.values()
    stored = [StoredSub(state, set(pending.get(state.sub_id, []))) for state in subs]
    channel.store.snapshot = lambda: stored
    channel.store.update_sub(subs[0])
    server.store.commit()
    return server.again()


def member(
    sub_id: int, client: bytes, *, name: bytes = b"dur:g", last: int = 0, durable: bool = True
) -> SubState:
    inbox = b"q%d" % sub_id
    return SubState(
        sub_id, client, name, inbox, b"_INBOX.%d" % sub_id, 9, 30, b"", last, is_durable=durable
    )


def test_of_a_member_whose_client_is_gone_the_others_get_what_it_had(server: Server) -> None:
    driver = leave_records(
        server, member(1, b"gone", last=2), member(2, b"me", last=1), pending={1: [2], 2: [1]}
    )
    driver.wait(31)
    assert {(inbox, s) for _, inbox, s, _ in again(driver)} == {(b"q2", n) for n in range(1, 6)}
    assert [row.state.sub_id for row in server.rows()] == [2]


def test_the_last_member_of_a_durable_group_whose_client_is_gone_becomes_its_shadow(
    server: Server,
) -> None:
    driver = leave_records(server, member(1, b"gone", last=2), pending={1: [2]})
    driver.subscribe(inbox=b"q9", queue=b"g", durable=b"dur", start=NEW_ONLY)
    found = deliveries(driver.out, b"q9")
    assert [(d.sequence, d.redelivered) for d in found] == [
        (2, True),
        (3, False),
        (4, False),
        (5, False),
    ]
    assert [(row.state.sub_id, row.state.client_id) for row in server.rows()] == [(1, b"me")]


def test_a_group_that_is_not_durable_goes_with_its_clients(server: Server) -> None:
    driver = leave_records(
        server, member(1, b"gone", name=b"g", last=2, durable=False), pending={1: [2]}
    )
    assert driver.broker.counts()["subscriptions"] == 0
    driver.subscribe(inbox=b"q9", queue=b"g", start=NEW_ONLY)
    assert again(driver) == []


def test_of_two_shadows_the_one_with_the_higher_position_stays_and_gets_what_the_other_had(
    server: Server,
) -> None:
    driver = leave_records(
        server, member(1, b"", last=2), member(2, b"", last=4), pending={1: [2], 2: [3]}
    )
    driver.subscribe(inbox=b"q9", queue=b"g", durable=b"dur", start=NEW_ONLY)
    found = deliveries(driver.out, b"q9")
    assert [(d.sequence, d.redelivered) for d in found] == [(2, True), (3, True), (5, False)]
    assert [row.state.sub_id for row in server.rows()] == [2]


def test_a_shadow_beside_a_member_gives_it_all_it_has(server: Server) -> None:
    driver = leave_records(
        server, member(1, b"", last=4), member(2, b"me", last=1), pending={1: [3], 2: [1]}
    )
    driver.wait(31)
    assert {s for _, _, s, _ in again(driver)} == {1, 3, 5}
    assert [(row.state.sub_id, row.state.last_sent) for row in server.rows()] == [(2, 5)]


@pytest.mark.parametrize("leave", [SUBJECTS.sub_close, SUBJECTS.unsubscribe])
def test_members_that_left_before_the_kill_are_gone_after_it(server: Server, leave: str) -> None:
    driver = server.driver
    one = driver.subscribe(inbox=b"q1", queue=b"g")
    driver.leave(leave, one)
    driver = server.again()
    driver.subscribe(inbox=b"q2", queue=b"g", start=NEW_ONLY)
    driver.publish(b"a")
    assert again(driver) == [(0, b"q2", 1, 0)]
    assert driver.broker.counts()["subscriptions"] == 1
