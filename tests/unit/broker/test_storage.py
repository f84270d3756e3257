"""What the broker tells the store about its subscriptions, and what it does when registrations
cannot be stored.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING
from unittest.mock import ANY

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import StoreError
from ftstan.broker.records import stored_subs
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.store import FileStore
from ftstan.stores.interface import SubState, client_key
from ftstan.stores.memory import MemoryStore
from ftstan.wire import messages
from tests.compat.driver import SUBJECTS, Driver, connect_request, sequences
from tests.sim.disk import SimDisk
from tests.sim.filestore import SimOwner
from tests.sim.history import STORE

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.broker.state import Channel

SMALL = FileStoreOptions(compact_min_size=0)


class Server:
    """One server after the other on one simulated disk."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.disk.make_dirs(STORE)
        self.clock = ManualClock()

    def start(self, *alive: bytes) -> Driver:
        root = self.disk.open_dir(STORE)
        self.store = FileStore(
            self.disk,
            root,
            SimOwner(self.disk, root, self.clock),
            self.clock,
            SMALL,
            parallel_sync=False,
        )
        return Driver(self.store, clock=self.clock, alive=set(alive))

    def tick(self, seconds: float = 1.0) -> None:
        self.clock.advance(seconds)
        self.store.tick(self.clock.wall_ns())

    def kill(self) -> None:
        self.disk = self.disk.crash(process_only=True)


def without_space(disk: SimDisk, name: str) -> Callable[[int, str, tuple[object, ...]], None]:
    """A hook under which nothing can be written to the file of that name, or in its place."""

    def hook(_call: int, call: str, arguments: tuple[object, ...]) -> None:
        if (
            call == "open"
            and str(arguments[1]).startswith("tmp.")
            and str(arguments[1]).endswith(name)
        ):
            raise OSError(errno.ENOSPC, "No space left on device")
        if call == "pwrite":
            assert isinstance(arguments[0], int)
            held = disk._handles[arguments[0]].node
            if held is disk.volume.root.entries["store"].entries.get(name):  # type: ignore[union-attr]
                raise OSError(errno.ENOSPC, "No space left on device")

    return hook


@pytest.fixture
def server() -> Server:
    return Server()


def channel_of(driver: Driver) -> Channel:
    channel = driver.broker.channels.get(b"foo")
    assert channel is not None
    return channel


def connect_error(driver: Driver, client_id: bytes) -> bytes:
    answer = driver.call(
        SUBJECTS.discovery, connect_request(client_id, b"hb." + client_id, b"conn." + client_id)
    )
    assert answer is not None
    return messages.parse(messages.ConnectResponse, answer).error


# ---- snapshots
# --------------------------------------------------------------------------------------------------


def test_a_compacted_file_gives_every_subscription_back_as_it_was(server: Server) -> None:
    driver = server.start()
    driver.connect()
    driver.subscribe(inbox=b"plain", max_in_flight=3)
    live = driver.subscribe(inbox=b"live", durable=b"live")
    left = driver.subscribe(inbox=b"left", durable=b"left", max_in_flight=5)
    driver.publish(*(b"%d" % n for n in range(10)))
    driver.ack(live, *range(1, 10))
    driver.ack(left, 1, 3)
    driver.leave(SUBJECTS.sub_close, left)
    server.tick()
    before = {s.state.sub_id: s for s in stored_subs(channel_of(driver))}
    assert {i: s.pending for i, s in before.items()} == {1: {1, 2, 3}, 2: {10}, 3: {2, 4, 5, 6, 7}}
    server.kill()
    driver = server.start(b"hb.me")
    channel = server.store._channels[b"foo"]
    after = {s.state.sub_id: s for s in channel.recovered_subs()}
    assert after == before
    assert after[3].state.is_closed
    assert channel.next_sub_id == 4


def test_a_queue_group_is_stored_as_the_original_would_read_it(server: Server) -> None:
    driver = server.start()
    driver.connect()
    driver.publish(b"a")
    first = driver.subscribe(inbox=b"q1", queue=b"g", durable=b"dur", ack_wait=7, max_in_flight=3)
    second = driver.subscribe(inbox=b"q2", queue=b"g", durable=b"dur", start=0)
    driver.subscribe(inbox=b"p", queue=b"g")
    driver.publish(b"b")
    server.tick()
    server.kill()
    server.start(b"hb.me")
    assert [s.state for s in server.store._channels[b"foo"].recovered_subs()] == [
        SubState(1, b"me", b"dur:g", b"q1", first, 3, 7, b"", 1, is_durable=True),
        SubState(2, b"me", b"dur:g", b"q2", second, 1024, 30, b"", 2, is_durable=True),
        SubState(3, b"me", b"g", b"p", ANY, 1024, 30, b"", 2),
    ]


def test_a_durable_group_without_members_is_one_record_without_a_client(server: Server) -> None:
    driver = server.start()
    driver.connect()
    one = driver.subscribe(inbox=b"q1", queue=b"g", durable=b"dur")
    two = driver.subscribe(inbox=b"q2", queue=b"g", durable=b"dur")
    driver.publish(*(b"%d" % n for n in range(4)))
    driver.ack(one, 1)
    driver.leave(SUBJECTS.sub_close, two)
    driver.leave(SUBJECTS.sub_close, one)
    server.kill()
    server.start(b"hb.me")
    (shadow,) = server.store._channels[b"foo"].recovered_subs()
    assert shadow.state == SubState(1, b"", b"dur:g", b"q1", one, 1024, 30, b"", 4, is_durable=True)
    assert shadow.pending == {2, 3, 4}


def test_a_plain_group_that_becomes_durable_is_durable_in_every_record(server: Server) -> None:
    driver = server.start()
    driver.connect()
    driver.subscribe(inbox=b"q1", queue=b"dur:g")
    driver.subscribe(inbox=b"q2", queue=b"g", durable=b"dur")
    server.kill()
    server.start(b"hb.me")
    assert [s.state.is_durable for s in server.store._channels[b"foo"].recovered_subs()] == [
        True,
        True,
    ]


def test_groups_with_and_without_members_survive_every_rewrite_of_the_file(server: Server) -> None:
    driver = server.start()
    driver.connect()
    driver.leave(SUBJECTS.sub_close, driver.subscribe(inbox=b"q1", queue=b"g", durable=b"dur"))
    driver.subscribe(inbox=b"q2", queue=b"g")
    driver.publish(b"a")
    server.tick()
    for _ in range(2):
        before = {s.state.sub_id: s for s in stored_subs(channel_of(driver))}
        server.kill()
        driver = server.start(b"hb.me")
        assert {
            s.state.sub_id: s for s in server.store._channels[b"foo"].recovered_subs()
        } == before
        driver.subscribe(b"foo", inbox=b"another")
        server.tick()


def test_what_a_leaver_has_pending_is_stored_with_the_others_before_its_record_ends(
    server: Server,
) -> None:
    driver = server.start()
    driver.connect()
    driver.subscribe(inbox=b"q1", queue=b"g", durable=b"dur")
    two = driver.subscribe(inbox=b"q2", queue=b"g", durable=b"dur")
    server.tick()
    driver.publish(b"a", b"b")
    server.tick()
    request = messages.UnsubscribeRequest(client_id=b"me", subject=b"foo", inbox=two)
    driver.frame(SUBJECTS.sub_close, messages.encode(request))
    driver._feed()
    driver._commit()
    # The commit is on disk; what comes after it (the events of this batch) never is.
    server.disk = server.disk.crash()
    server.start(b"hb.me")
    (kept,) = server.store._channels[b"foo"].recovered_subs()
    assert (kept.state.sub_id, kept.state.last_sent, kept.pending) == (1, 2, {1, 2})


def test_the_position_of_a_group_outlives_the_member_that_carried_it(server: Server) -> None:
    driver = server.start()
    driver.connect()
    driver.subscribe(inbox=b"q1", queue=b"g", durable=b"dur")
    two = driver.subscribe(inbox=b"q2", queue=b"g", durable=b"dur")
    driver.publish(b"a", b"b")
    driver.ack(two, 2)
    driver.leave(SUBJECTS.sub_close, two)
    server.kill()
    driver = server.start(b"hb.me")
    (kept,) = server.store._channels[b"foo"].recovered_subs()
    assert (kept.state.sub_id, kept.state.last_sent, kept.pending) == (1, 2, {1})
    driver.publish(b"c")
    assert sequences(driver.out, b"q1") == [3]


# ---- registrations that cannot be stored
# ---------------------------------------------------------------------------


def test_a_client_that_cannot_be_stored_is_refused_and_may_come_again(server: Server) -> None:
    driver = server.start()
    driver.connect(b"first")
    server.disk.on_call = without_space(server.disk, "clients.dat")
    assert b"No space left on device" in connect_error(driver, b"second")
    assert driver.broker.clients.get(b"second") is None
    assert driver.publish(b"x", client_id=b"first")[0].error == b""
    server.disk.on_call = None
    server.tick()
    assert connect_error(driver, b"second") == b""
    server.kill()
    driver = server.start()
    assert sorted(c.client_id for c in driver.broker.clients.values()) == [b"first", b"second"]


def test_a_connect_that_comes_again_is_refused_with_the_first_if_that_cannot_be_stored(
    server: Server,
) -> None:
    driver = server.start()
    server.disk.on_call = without_space(server.disk, "clients.dat")
    for reply in (b"_INBOX.1", b"_INBOX.2"):
        driver.frame(SUBJECTS.discovery, connect_request(b"me", b"hb.me", b"conn.me"), reply)
    answers = [messages.parse(messages.ConnectResponse, o.payload).error for o in driver.run()]
    assert len(answers) == 2
    assert all(b"No space left on device" in error for error in answers)
    assert driver.broker.clients.get(b"me") is None


def test_a_close_that_cannot_be_stored_is_answered_with_the_error_and_stored_later(
    server: Server,
) -> None:
    driver = server.start()
    driver.connect(b"first")
    server.disk.on_call = without_space(server.disk, "clients.dat")
    assert b"No space left on device" in driver.close(b"first")
    server.disk.on_call = None
    server.tick()
    server.kill()
    assert server.start().broker.clients.values() == []


def test_deliveries_go_on_while_nothing_of_them_can_be_stored(server: Server) -> None:
    driver = server.start()
    driver.connect()
    ack_inbox = driver.subscribe(durable=b"d", max_in_flight=1)
    driver.publish(*(b"%d" % n for n in range(5)))
    server.disk.volume.space = 0
    for n in range(1, 4):
        assert sequences(driver.ack(ack_inbox, n)) == [n + 1]
        server.tick()
    server.disk.volume.space = None
    server.tick(2)
    server.kill()
    server.start(b"hb.me")
    (stored,) = server.store._channels[b"foo"].recovered_subs()
    assert (stored.pending, stored.state.last_sent) == ({4}, 4)


class OneRefused(MemoryStore):
    """Says of every batch that it could not store one client's registration."""

    def commit(self) -> dict[bytes, StoreError]:
        return super().commit() | {client_key(b"bad"): StoreError("too long for its column")}


def test_a_registration_that_the_store_refuses_is_refused_alone() -> None:
    driver = Driver(OneRefused())
    assert connect_error(driver, b"bad") == b"too long for its column"
    assert b"bad" not in driver.broker.clients
    assert connect_error(driver, b"good") == b""
    assert b"good" in driver.broker.clients
    close = messages.encode(messages.CloseRequest(client_id=b"good"))
    answer = driver.call(SUBJECTS.close, close)
    assert answer is not None
    assert messages.parse(messages.CloseResponse, answer).error == b""
