"""The stop of a server commits what was applied, connected or cut off, and what it meets in
channels that wait.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import NatsError, StoreError
from ftstan.broker.closing import OPENED
from ftstan.broker.records import info_of
from ftstan.node.pipeline import Serving
from tests.compat.driver import CLUSTER, SUBJECTS, sequences
from tests.filenode import FileNode, Owner
from tests.sim.ft.test_attack_handover_2 import Server
from tests.unit.broker.test_closing import MANY, begin_close, wide

if TYPE_CHECKING:
    from tests.compat.driver import Driver

BOTH = pytest.mark.parametrize("connected", [True, False], ids=["connected", "cut off"])


class Link:
    """A link on which nothing comes, and everything can be sent while it is up."""

    max_payload = 1 << 20
    leftover = b""
    url_shown = "nats://here"
    pending = False

    def __init__(self, *, connected: bool) -> None:
        self.connected = connected

    def fileno(self) -> int:
        return -1

    def recv_into(self, _buffer: memoryview) -> int:
        return 0

    def send(self, _data: bytes, _deadline: float) -> None:
        assert self.connected

    def connect(self, _timeout: float) -> None:
        raise NatsError("nats: no servers available for connection")

    def close(self) -> None:
        self.connected = False


def road_of(server: Server, driver: Driver, *, connected: bool = True) -> Serving:
    link = Link(connected=connected)
    return Serving(driver.store, driver.broker, link, server.clock, "test", suspicion_s=10)  # type: ignore[arg-type]


def kept(server: Server) -> list[bool]:
    """Of each subscription on the disk, whether it is closed."""
    found = FileNode(server.disk, owner=Owner(9)).recovered
    return [sub.state.is_closed for channel in found.channels for sub in channel.recovered_subs()]


@BOTH
@pytest.mark.parametrize("tidy", [True, False], ids=["for good", "for a successor"])
def test_a_client_that_is_half_closed_is_closed_by_the_stop(*, connected: bool, tidy: bool) -> None:
    server = Server()
    driver = wide("durable", driver=server.start())
    begin_close(driver)
    assert driver.broker.closing
    road_of(server, driver, connected=connected).stop(tidy=tidy)
    assert kept(server) == [True] * MANY


@BOTH
def test_a_stop_for_a_successor_opens_no_channel_for_a_client_that_is_closing(
    *, connected: bool
) -> None:
    server = Server(opens_late=True)
    driver = server.start()
    driver.store.set_server_info(info_of(CLUSTER, SUBJECTS))
    driver.connect()
    driver.connect(b"wide")
    names = [b"c.%d" % i for i in range(2 * OPENED)]
    for name in names:
        driver.publish(b"1" + name, channel=name)
        driver.subscribe(name, client_id=b"wide", inbox=b"durable." + name, durable=b"d")
        driver.subscribe(name, client_id=b"wide", inbox=b"plain." + name)
        driver.subscribe(name, client_id=b"wide", inbox=b"member." + name, queue=b"q", durable=b"d")
    server.kill(driver)
    driver = server.start(b"hb.me")
    begin_close(driver)
    waiting = set(driver.broker.later)
    assert waiting
    road_of(server, driver, connected=connected).stop(tidy=False)
    assert set(driver.broker.later) == waiting
    # As after a crash: nothing of it is served, its durables are offline, and its id is free.
    driver = server.start(b"hb.me", b"hb.wide")
    assert driver.broker.clients.get(b"wide") is None
    driver.connect(b"wide")
    while driver.broker.later:
        driver.broker.open_next()
    for name in names:
        driver.publish(b"2" + name, channel=name)
    assert [o.subject for o in driver.wait(100) if b"c." in o.subject] == []
    assert driver.broker.counts()["subscriptions"] == 2 * len(names)
    for name in names:
        driver.subscribe(name, client_id=b"wide", inbox=b"in." + name, durable=b"d")
        assert sequences(driver.out, b"in." + name)[-1:] == [2]


def bereft(server: Server) -> Driver:
    """A server whose predecessor was killed when it had unregistered a client, and had not closed
    its durable.

    The channel of the durable has not been opened, and the client is back under its id.
    """
    driver = server.start()
    driver.store.set_server_info(info_of(CLUSTER, SUBJECTS))
    driver.connect()
    driver.publish(b"1", channel=b"a")
    driver.subscribe(channel=b"a", inbox=b"in.old", durable=b"d")
    driver.store.delete_client(b"me")
    assert driver.store.commit() == {}
    server.kill(driver)
    driver = server.start(b"hb.me")
    driver.connect()
    assert list(driver.broker.later) == [b"a"]
    return driver


@BOTH
def test_a_durable_that_lost_its_client_is_nobodys_behind_a_stop_that_had_not_opened_its_channel(
    *, connected: bool
) -> None:
    server = Server(opens_late=True)
    road_of(server, bereft(server), connected=connected).stop()
    driver = server.start(b"hb.me")
    while driver.broker.later:
        driver.broker.open_next()
    assert sequences(driver.wait(100), b"in.old") == []
    driver.subscribe(channel=b"a", inbox=b"in.new", durable=b"d")
    assert sequences(driver.out, b"in.new") == [1]


def test_what_the_preparation_of_a_stop_finds_in_a_channel_is_committed_without_waiting() -> None:
    server = Server(opens_late=True)
    driver = bereft(server)
    road = road_of(server, driver)
    assert road.prepare_stop()
    assert not driver.broker.later
    road.turn(readable=False)
    server.kill(driver)
    assert kept(server) == [True]


@BOTH
def test_what_was_applied_is_stored_by_a_stop_that_cannot_open_a_channel(
    *, connected: bool
) -> None:
    server = Server(opens_late=True)
    driver = bereft(server)
    road = road_of(server, driver, connected=connected)

    def refuse(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        if name == "open_dir_at" and "a" in arguments:
            raise OSError(errno.EIO, "Input/output error")

    server.disk.on_call = refuse
    driver.offer(b"new", channel=b"b")
    driver._feed()
    with pytest.raises(StoreError, match='channel "a" cannot be recovered'):
        road.stop()
    server.disk.on_call = None
    assert FileNode(server.disk, owner=Owner(9)).sequences(b"b") == [1]
