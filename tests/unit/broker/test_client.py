"""What a session leaves behind is no later session's of its id, over any number of owners."""

from __future__ import annotations

import pytest

from ftstan.base.clock import ManualClock
from ftstan.broker.client import Client
from ftstan.stores.interface import ClientInfo
from ftstan.wire import messages
from ftstan.wire.nuid import Nuid
from tests.compat.driver import SUBJECTS, Driver, deliveries, sequences
from tests.sim.disk import SimDisk
from tests.sim.filestore import open_file_store
from tests.sim.history import STORE

ONE = ClientInfo(b"me", b"hb.me", b"conn.1")
NEXT = ClientInfo(b"me", b"hb.me", b"conn.2")
NUID = "0123456789abcdefghABCD"


class Owners:
    """One owner after the other of one store, in which every channel waits to be opened if
    ``later``; each is killed.
    """

    def __init__(self, *, later: bool = True) -> None:
        self._disk = SimDisk()
        self._disk.make_dirs(STORE)
        self._clock = ManualClock()
        self._most_at_once = 0 if later else None

    def start(self) -> Driver:
        store = open_file_store(self._disk, self._clock, most_at_once=self._most_at_once)
        return Driver(store, clock=self._clock, alive={b"hb.me"})

    def kill(self) -> None:
        self._disk = self._disk.crash(process_only=True)


def store_end(driver: Driver, *registered: ClientInfo) -> None:
    """The session's end is durable; the ends of its subscriptions are not."""
    driver.store.delete_client(b"me")
    for info in registered:
        driver.store.add_client(info)
    assert driver.store.commit() == {}
    driver.store.confirm()


def open_all(driver: Driver) -> None:
    while driver.broker.later:
        driver.broker.open_next()
    driver.run()


def leave_something(driver: Driver) -> None:
    driver.connect(conn_id=b"conn.1")
    driver.subscribe(inbox=b"old.plain")
    driver.subscribe(inbox=b"old.durable", durable=b"d")
    driver.subscribe(inbox=b"old.member", queue=b"q")
    driver.subscribe(inbox=b"old.fellow", queue=b"q", durable=b"d")


def see_nothing_old(driver: Driver) -> None:
    """The session of ``conn.2`` has what it asks for, and nothing of the one before it."""
    client = driver.broker.clients.get(b"me")
    assert client is not None
    assert client.info.conn_id == b"conn.2"
    assert [sub.inbox for sub in driver.broker.by_sid.values()] == []
    driver.subscribe(inbox=b"new.durable", durable=b"d")
    driver.subscribe(inbox=b"new.member", queue=b"q")
    driver.connect(b"other")
    driver.publish(b"a", b"b", client_id=b"other")
    assert sequences(driver.out, b"new.durable") == [1, 2]
    assert sequences(driver.out, b"new.member") == [1, 2]
    assert not any(o.subject.startswith(b"old.") for o in driver.out)


@pytest.mark.parametrize("idle", [0, 2])
def test_what_waits_in_channels_that_no_owner_has_opened_is_not_the_next_sessions(
    idle: int,
) -> None:
    owners = Owners()
    driver = owners.start()
    leave_something(driver)
    store_end(driver)
    owners.kill()
    driver = owners.start()
    driver.connect(conn_id=b"conn.2")
    for _ in range(idle):
        owners.kill()
        driver = owners.start()
        assert driver.broker.later
    owners.kill()
    driver = owners.start()
    open_all(driver)
    see_nothing_old(driver)


def test_a_registration_that_is_durable_before_the_ends_of_subscriptions_inherits_none() -> None:
    owners = Owners(later=False)
    driver = owners.start()
    leave_something(driver)
    # In one batch, of which a kill leaves the file of the clients.
    store_end(driver, NEXT)
    owners.kill()
    driver = owners.start()
    driver.run()
    see_nothing_old(driver)


def test_the_end_of_what_was_left_behind_is_stored_with_the_opening() -> None:
    owners = Owners()
    driver = owners.start()
    leave_something(driver)
    store_end(driver, NEXT)
    owners.kill()
    driver = owners.start()
    open_all(driver)
    # Even the same connection again has nothing of it.
    store_end(driver, ONE)
    owners.kill()
    driver = owners.start()
    open_all(driver)
    assert [sub.inbox for sub in driver.broker.by_sid.values()] == []


def test_a_session_keeps_its_subscriptions_over_many_owners() -> None:
    owners = Owners()
    driver = owners.start()
    leave_something(driver)
    for _ in range(3):
        owners.kill()
        driver = owners.start()
    open_all(driver)
    assert len(driver.broker.by_sid) == 4
    driver.connect(b"other")
    driver.publish(b"a", client_id=b"other")
    assert sequences(driver.out, b"old.plain") == [1]
    assert sequences(driver.out, b"old.durable") == [1]


def test_a_durable_of_the_session_before_is_resumed_where_that_has_left_it() -> None:
    owners = Owners()
    driver = owners.start()
    driver.connect(conn_id=b"conn.1")
    driver.connect(b"other")
    ack_inbox = driver.subscribe(inbox=b"old", durable=b"d")
    driver.publish(b"a", b"b", client_id=b"other")
    driver.ack(ack_inbox, 1)
    driver.store.tick(0)
    store_end(driver, NEXT)
    owners.kill()
    driver = owners.start()
    driver.subscribe(inbox=b"new", durable=b"d")
    assert [(d.sequence, d.redelivered) for d in deliveries(driver.out, b"new")] == [(2, True)]


def test_subscriptions_that_do_not_say_whose_they_are_go_with_the_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As those do that an original server has made."""
    owners = Owners()
    driver = owners.start()
    with monkeypatch.context() as patched:
        patched.setattr(Client, "marked", lambda _, inbox: inbox)
        leave_something(driver)
    store_end(driver, NEXT)
    owners.kill()
    driver = owners.start()
    open_all(driver)
    assert len(driver.broker.by_sid) == 4


def test_an_ack_inbox_looks_as_ever() -> None:
    driver = Driver()
    driver.connect()
    inboxes = [driver.subscribe(inbox=b"in.%d" % i) for i in range(100)]
    assert len(set(inboxes)) == 100
    for inbox in inboxes:
        assert len(inbox) == 29
        assert inbox.startswith(b"_INBOX.")
        assert inbox.removeprefix(b"_INBOX.").isalnum()


@pytest.mark.parametrize(
    "other",
    [
        ClientInfo(b"me", b"hb.me", b"conn.2"),
        ClientInfo(b"me", b"hb.other", b"conn.1"),
        ClientInfo(b"me", b"hb.me"),
    ],
)
def test_connection_and_heartbeat_inbox_make_a_session(other: ClientInfo) -> None:
    inbox = Client(ONE).marked(b"_INBOX." + NUID.encode())
    assert Client(ONE).may_have_made(inbox)
    assert not Client(other).may_have_made(inbox)


@pytest.mark.parametrize("inbox", [b"_INBOX." + NUID.encode(), b"", b"ack.1", b"0" * 29])
def test_of_other_ack_inboxes_nothing_is_known(inbox: bytes) -> None:
    assert Client(ONE).may_have_made(inbox)


def test_of_the_nuids_of_other_servers_none_is_taken_for_a_mark() -> None:
    assert all(Client(ONE).may_have_made(b"_INBOX." + Nuid().next().encode()) for _ in range(1000))


def test_a_durable_that_a_former_owner_has_not_opened_is_no_duplicate() -> None:
    owners = Owners()
    driver = owners.start()
    leave_something(driver)
    store_end(driver)
    owners.kill()
    owners.start().connect(conn_id=b"conn.2")
    owners.kill()
    driver = owners.start()
    request = messages.SubscriptionRequest(
        client_id=b"me",
        subject=b"foo",
        inbox=b"new",
        durable_name=b"d",
        max_in_flight=1,
        ack_wait_in_secs=30,
    )
    answer = driver.call(SUBJECTS.subscribe, messages.encode(request)) or b""
    assert messages.parse(messages.SubscriptionResponse, answer).error == b""
