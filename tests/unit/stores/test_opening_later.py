"""A store with many channels is served before all of them are open: each opens when it is first
needed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import StoreError
from ftstan.broker.broker import BrokerOptions
from ftstan.config.limits import Limits
from ftstan.stores.file.channel import FileChannel
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.recovery import opening
from ftstan.stores.file.state.checkpoint import Checkpoint
from ftstan.stores.file.store import FileStore
from ftstan.wire.block import MsgBlock
from tests.compat.driver import Driver, sequences
from tests.filenode import NO_LIMITS, Owner
from tests.sim.disk import SimDisk
from tests.sim.model import read_all

if TYPE_CHECKING:
    from ftstan.stores.interface import ChannelStore, Recovered

NAMES = [b"a", b"b", b"c", b"d"]


@dataclass
class Server:
    """One server after the other on one simulated disk, of which each opens no channel before it
    must.
    """

    disk: SimDisk = field(default_factory=SimDisk)
    clock: ManualClock = field(default_factory=ManualClock)
    epoch: int = 0

    def __post_init__(self) -> None:
        self.disk.make_dirs("/store")

    def store(self, most_at_once: int | None = 0) -> FileStore:
        self.epoch += 1
        return FileStore(
            self.disk,
            self.disk.open_dir("/store"),
            Owner(self.epoch),
            self.clock,
            FileStoreOptions(),
            limits=Limits.same(NO_LIMITS),
            parallel_sync=False,
            most_at_once=most_at_once,
        )

    def start(self, options: BrokerOptions | None = None) -> Driver:
        return Driver(self.store(), options or BrokerOptions(), self.clock, {b"hb.me"})

    def kill(self, driver: Driver) -> None:
        driver.store.tick(self.clock.wall_ns())
        self.disk = self.disk.crash(process_only=True)

    def filled(self) -> Driver:
        """A server with a message in each channel and a subscription on each, and a successor after
        its kill.
        """
        driver = self.start()
        driver.connect()
        for name in NAMES:
            driver.publish(b"1", channel=name)
            driver.subscribe(channel=name, inbox=b"in." + name)
        self.kill(driver)
        return self.start()


def opened(driver: Driver) -> set[bytes]:
    return {channel.name for channel in driver.broker.channels.values()}


def open_rest(driver: Driver) -> None:
    while driver.broker.later:
        driver.broker.open_next()
    driver.run()


def test_subscriptions_are_looked_at_where_no_clean_stop_has_left_word_of_them() -> None:
    server = Server()
    server.filled()
    store = server.store()
    store.recover()
    known = Checkpoint({b'"b"': b"", b'"d"': b""})
    found = dict(opening.look_at_subs(store._env, NAMES, known, parallel=False))
    assert list(found) == [b"a", b"c"]
    assert all(seen is not None and seen.size > 4 for seen in found.values())


def test_where_no_mark_is_listed_none_is_opened() -> None:
    server = Server()
    driver = server.filled()
    server.disk.log.clear()
    open_rest(driver)
    opens = [line for line in server.disk.log if line.startswith("open ")]
    assert any("subs.dat" in line for line in opens)
    assert not any(name in line for line in opens for name in ("purged.bin", "moved.bin"))


def test_a_publish_opens_its_channel_alone_and_goes_on_with_its_sequence() -> None:
    driver = Server().filled()
    assert (opened(driver), driver.broker.counts()["channels"]) == (set(), len(NAMES))
    assert driver.publish(b"2", channel=b"b")[0].error == b""
    assert opened(driver) == {b"b"}
    assert sequences(driver.out, b"in.b") == [2]


def test_a_recovered_subscription_gets_what_is_published_while_other_channels_wait() -> None:
    driver = Server().filled()
    driver.publish(b"2", channel=b"c")
    assert sequences(driver.out, b"in.c") == [2]
    assert opened(driver) == {b"c"}


def test_the_acks_of_a_channel_that_was_opened_late_are_understood() -> None:
    server = Server()
    driver = server.start()
    driver.connect()
    ack_inbox = driver.subscribe(channel=b"a", max_in_flight=1)
    driver.publish(b"1", b"2", channel=b"a")
    server.kill(driver)
    driver = server.start()
    open_rest(driver)
    assert sequences(driver.ack(ack_inbox, 1, channel=b"a")) == [2]


def test_the_channels_that_nobody_asks_for_are_opened_one_after_the_other() -> None:
    driver = Server().filled()
    for n in range(len(NAMES)):
        assert driver.broker.later
        driver.broker.open_next()
        assert len(opened(driver)) == n + 1
    assert not driver.broker.later


def test_a_client_that_closes_leaves_no_subscription_in_a_channel_that_waits() -> None:
    server = Server()
    driver = server.filled()
    assert driver.close() == b""
    assert driver.broker.counts()["subscriptions"] == 0
    server.kill(driver)
    assert [c.recovered_subs() for c in server.store(most_at_once=None).recover().channels] == [
        []
    ] * len(NAMES)


def test_a_name_that_differs_in_case_is_refused_and_the_limit_counts_channels_that_wait() -> None:
    server = Server()
    driver = server.filled()
    (ack,) = driver.publish(b"x", channel=b"A")
    assert b"different cases not allowed" in ack.error
    server.kill(driver)
    driver = server.start(BrokerOptions(max_channels=len(NAMES)))
    assert [a.error for a in driver.publish(b"x", channel=b"new")] == [b"too many channels"]
    assert [a.error for a in driver.publish(b"2", channel=NAMES[0])] == [b""]


def test_a_channel_that_cannot_be_read_refuses_its_publish_and_opens_when_it_can() -> None:
    server = Server()
    driver = server.filled()
    failing = [True]

    def refuse(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        if failing[0] and name == "open_dir_at" and "b" in arguments:
            raise OSError(5, "Input/output error")

    server.disk.on_call = refuse
    (ack,) = driver.publish(b"2", channel=b"b")
    assert b'channel "b" cannot be recovered' in ack.error
    failing[0] = False
    (ack,) = driver.publish(b"2", channel=b"b")
    assert ack.error == b""
    assert sequences(driver.out, b"in.b")[-1] == 2


def test_a_damaged_channel_is_quarantined_when_it_is_opened() -> None:
    server = Server()
    server.filled().store.abandon()
    folder = server.disk.open_dir("/store/b")
    name = next(
        n for n, _ in server.disk.listdir(folder) if n.endswith(".dat") and n.startswith("msgs")
    )
    fd = server.disk.open(folder, name, os.O_RDWR)
    server.disk.pwrite(fd, b"\xff", 20)
    driver = server.start()
    (ack,) = driver.publish(b"2", channel=b"b")
    assert b"quarantined" in ack.error
    assert [a.error for a in driver.publish(b"2", channel=b"a")] == [b""]


def test_a_directory_that_holds_no_channel_becomes_one_with_the_first_publish() -> None:
    server = Server()
    server.filled().store.abandon()
    server.disk.make_dirs("/store/empty")
    driver = server.start()
    assert [a.error for a in driver.publish(b"1", channel=b"empty")] == [b""]
    open_rest(driver)
    assert opened(driver) == {*NAMES, b"empty"}


def test_a_clean_stop_opens_what_still_waits_and_the_next_start_finds_all_of_it() -> None:
    server = Server()
    driver = server.filled()
    driver.publish(b"2", channel=b"a")
    driver.store.close()
    found = server.store(most_at_once=None).recover()
    assert contents(found) == {b"a": [1, 2], b"b": [1], b"c": [1], b"d": [1]}
    assert all(len(c.recovered_subs()) == 1 for c in found.channels)
    assert described(found)


def test_temporaries_of_a_former_owner_are_gone_before_a_late_channel_is_listed() -> None:
    server = Server()
    server.filled().store.abandon()
    folder = server.disk.open_dir("/store/c")
    server.disk.open(folder, "tmp.99.dat", os.O_RDWR | os.O_CREAT)
    store = server.store()
    store.recover()
    assert "c/tmp.99.dat" in server.disk.tree("/store")
    store.open_channel(b"c")
    assert "c/tmp.99.dat" not in server.disk.tree("/store")


def test_a_channel_that_waits_while_a_stop_is_prepared_keeps_its_state() -> None:
    driver = Server().filled()
    while driver.store.prepare_close(1.0):
        pass
    assert driver.publish(b"2", channel=b"b")[0].error == b""
    assert sequences(driver.out, b"in.b") == [2]
    open_rest(driver)
    assert {c.name: c.store.last for c in driver.broker.channels.values()} == {
        b"a": 1,
        b"b": 2,
        b"c": 1,
        b"d": 1,
    }


class TestPreparedStop:
    def filled(self) -> tuple[Server, FileStore, Recovered]:
        server = Server()
        server.filled().store.close()
        store = server.store(most_at_once=None)
        return server, store, store.recover()

    def test_what_was_prepared_is_not_done_again(self) -> None:
        server, store, _ = self.filled()
        while store.prepare_close(1.0):
            pass
        before = len(server.disk.log)
        store.close()
        assert not [
            line for line in server.disk.log[before:] if "msgs." in line or "subs.dat" in line
        ]

    def test_what_is_written_after_the_preparation_is_there_and_described(self) -> None:
        server, store, found = self.filled()
        while store.prepare_close(1.0):
            pass
        channel = next(c for c in found.channels if c.name == b"b")
        stage(channel, server)
        assert store.commit() == {}
        store.close()
        after = server.store(most_at_once=None)
        found = after.recover()
        assert contents(found)[b"b"] == [1, 2]
        assert described(found)

    def test_a_channel_is_written_on_as_if_nothing_had_been_prepared(self) -> None:
        server, store, found = self.filled()
        channel = next(c for c in found.channels if c.name == b"b")
        for _ in range(3):
            stage(channel, server)
            assert store.commit() == {}
            while store.prepare_close(1.0):
                pass
        store.abandon()
        server.disk = server.disk.crash(process_only=True)
        assert contents(server.store(most_at_once=None).recover())[b"b"] == [1, 2, 3, 4]

    def test_late_bytes_of_a_former_owner_in_a_channel_that_nobody_touched_are_cut(self) -> None:
        server, store, _ = self.filled()
        before = server.disk.tree("/store")
        name = next(n for n in before if n.startswith("c/msgs.") and n.endswith(".dat"))
        fd = server.disk.open(server.disk.open_dir("/store/c"), name.removeprefix("c/"), os.O_RDWR)
        server.disk.pwrite(fd, b"late", len(before[name] or b""))
        while store.prepare_close(1.0):
            pass
        store.close()
        assert server.disk.tree("/store")[name] == before[name]

    def test_a_channel_whose_subscriptions_wait_for_their_commit_is_not_ready(self) -> None:
        server, store, found = self.filled()
        channel = next(c for c in found.channels if c.name == b"b")
        (sub,) = channel.recovered_subs()
        channel.update_sub(replace(sub.state, last_sent=1))
        while store.prepare_close(1.0):
            pass
        assert store.commit() == {}
        store.close()
        assert described(server.store(most_at_once=None).recover())

    def test_an_error_while_preparing_is_left_to_the_stop(self) -> None:
        server, store, found = self.filled()
        stage(found.channels[0], server)
        assert store.commit() == {}

        def refuse(_call: int, name: str, _arguments: tuple[object, ...]) -> None:
            if name == "fdatasync":
                raise OSError(5, "Input/output error")

        server.disk.on_call = refuse
        while store.prepare_close(1.0):
            pass
        with pytest.raises(StoreError):
            store.close()


def stage(channel: ChannelStore, server: Server) -> None:
    block = MsgBlock()
    block.append(channel.last + 1, channel.name, b"", b"x", server.clock.wall_ns())
    channel.append(block)


def described(found: Recovered) -> bool:
    """Whether the checkpoint spoke of every channel, so that none had to be read."""
    return all(isinstance(c, FileChannel) and c.untouched for c in found.channels)


def contents(found: Recovered) -> dict[bytes, list[int]]:
    return {c.name: sorted(read_all(c)) for c in found.channels}
