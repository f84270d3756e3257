"""Attacks on what a takeover leaves of repeats and durables: refused batches, channels that open
later.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.errors import FencedError, NatsError
from ftstan.broker.dedup import Window
from ftstan.broker.records import info_of
from ftstan.config.limits import Limits
from ftstan.nats.link import ConnectionLostError
from ftstan.node.pipeline import Serving
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.store import FileStore
from ftstan.wire import messages
from tests.compat.driver import CLUSTER, SUBJECTS, Driver, PubAck, sequences
from tests.filenode import NO_LIMITS, FileNode, Owner, simulated
from tests.sim.ft.test_attack_handover_2 import HOUR, Server, set_back
from tests.sim.model import read_all
from tests.unit.stores.test_remembered_crashes import WINDOW, disk_of, publish, serving

if TYPE_CHECKING:
    from ftstan.base.clock import ManualClock
    from ftstan.stores.interface import Recovered
    from tests.sim.disk import SimDisk

# ---- repeats
# --------------------------------------------------------------------------------------------------


def no_space_for_the_log(disk: SimDisk) -> None:
    """The next write to ``dedup.bin`` is taken, the one to the log behind it is refused.

    There is space again then.
    """
    writes = 0

    def refuse(_number: int, name: str, _arguments: tuple[object, ...]) -> None:
        nonlocal writes
        writes += name == "pwrite"
        if name == "pwrite" and writes == 2:
            disk.on_call = None
            raise OSError(errno.ENOSPC, "no space left on device")

    disk.on_call = refuse


def test_a_publish_that_was_refused_is_stored_when_it_is_repeated_behind_a_takeover() -> None:
    node = FileNode(simulated())
    driver = serving(node)
    assert publish(driver, b"ft1.a") == [PubAck(b"ft1.a")]
    # The newest message is an hour ahead: until then all messages of the channel have its time.
    set_back(node.clock, HOUR)
    no_space_for_the_log(disk_of(node))
    assert publish(driver, b"ft1.b")[0].error
    node.clock.advance(5)
    # Another publish, alike to the byte.
    assert publish(driver, b"ft1.c") == [PubAck(b"ft1.c")]
    node.clock.advance(1)
    again = serving(node.successor(disk_of(node).crash(process_only=True)))
    assert publish(again, b"ft1.b") == [PubAck(b"ft1.b")]
    # Three publishes were acknowledged.
    assert list(read_all(again.broker.store.recover().channels[0])) == [1, 2, 3]


class AlreadyRecovered:
    """A store that has recovered, for a driver that wants to recover it itself."""

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self.found = store.recover()

    def recover(self) -> Recovered:
        return self.found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def successor_of(node: FileNode, *, opens_late: bool) -> Driver:
    """The next owner, beside the former one, which lives on."""
    host = disk_of(node).sibling()
    store = AlreadyRecovered(
        FileStore(
            host,
            host.open_dir(node.path),
            Owner(node.owner.epoch + 1),
            node.clock,
            FileStoreOptions(),
            limits=Limits.same(NO_LIMITS),
            parallel_sync=False,
            most_at_once=0 if opens_late else None,
        )
    )
    driver = Driver(store, clock=node.clock)
    driver.broker.window = Window(WINDOW, store.found.remembered)
    return driver


@pytest.mark.parametrize("opens_late", [False, True], ids=["opened at once", "opened later"])
def test_a_repeat_of_what_a_paused_owner_stores_late_is_in_the_log_once(
    *, opens_late: bool
) -> None:
    node = FileNode(simulated())
    driver = serving(node)
    assert publish(driver, b"ft1.a") == [PubAck(b"ft1.a")]
    disk = disk_of(node)
    due = disk.calls + 1
    made: list[Driver] = []

    def take_over(number: int, _name: str, _arguments: tuple[object, ...]) -> None:
        # Its first call for the batch comes behind the recovery of its successor.
        if number == due:
            node.owner.fenced = True
            made.append(successor_of(node, opens_late=opens_late))

    disk.on_call = take_over
    with pytest.raises(FencedError):
        publish(driver, b"ft1.b")
    (again,) = made
    assert publish(again, b"ft1.b") == [PubAck(b"ft1.b")]
    channel = again.broker.channels.get(b"foo")
    assert channel is not None
    assert list(read_all(channel.store)) == [1, 2]


# ---- durables of channels that open later
# ----------------------------------------------------------------------------


def stop(driver: Driver, clock: ManualClock) -> None:
    """A clean stop."""
    while driver.broker.later:
        driver.broker.open_next()
    driver.run()
    driver.store.tick(clock.wall_ns())
    while driver.store.prepare_close(1):
        pass
    driver.store.close()


@pytest.mark.parametrize("opens_late", [False, True], ids=["opened at once", "opened later"])
@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_a_durable_that_was_closed_right_behind_a_start_can_be_resumed_behind_the_next_one(
    end: str, *, opens_late: bool
) -> None:
    server = Server(opens_late=opens_late)
    driver = server.start()
    driver.store.set_server_info(info_of(CLUSTER, SUBJECTS))
    driver.connect()
    driver.publish(b"1", channel=b"a")
    driver.subscribe(channel=b"a", inbox=b"in.old", durable=b"d")
    stop(driver, server.clock)
    # A start behind a clean stop: every file is as the checkpoint says, and none of them is written
    # anew.
    driver = server.start(b"hb.me")
    assert driver.close() == b""
    # The client is back under its id, and has not resumed its durable when the server ends hours
    # later.
    driver.connect(conn_id=b"conn.new")
    driver.wait(10)
    if end == "stopped":
        stop(driver, server.clock)
    else:
        server.kill(driver)
    driver = server.start(b"hb.me")
    while driver.broker.later:
        driver.broker.open_next()
    assert sequences(driver.wait(100), b"in.old") == []
    driver.subscribe(channel=b"a", inbox=b"in.new", durable=b"d")
    assert sequences(driver.out, b"in.new") == [1]


# ---- a link that breaks
# ----------------------------------------------------------------------------------------------


class BreakingLink:
    """A link that gives ``data`` once; nothing can be sent on it, and it cannot be made again."""

    max_payload = 1 << 20
    leftover = b""
    url_shown = "nats://here"
    pending = False

    def __init__(self, data: bytes) -> None:
        self.connected = True
        self._data = data

    def fileno(self) -> int:
        return -1

    def recv_into(self, buffer: memoryview) -> int:
        data = self._data
        self._data = b""
        buffer[: len(data)] = data
        return len(data)

    def send(self, _data: bytes, _deadline: float) -> None:
        self.connected = False
        raise ConnectionLostError("nats: connection lost")

    def connect(self, _timeout: float) -> None:
        raise NatsError("nats: no servers available for connection")

    def close(self) -> None:
        self.connected = False


@pytest.mark.parametrize("asks", [False, True], ids=["nothing asked", "NATS asks"])
def test_acks_that_were_taken_before_a_link_broke_are_kept_by_the_stop_of_who_is_cut_off(
    *, asks: bool
) -> None:
    server = Server()
    driver = server.start()
    driver.connect()
    ack_inbox = driver.subscribe(channel=b"a", durable=b"d")
    driver.publish(b"1", channel=b"a")
    driver.store.tick(server.clock.wall_ns())
    (sid,) = [sid for sid, subject in driver.subs.items() if subject == ack_inbox]
    ack = messages.encode(messages.Ack(subject=b"a", sequence=1))
    data = b"MSG %b %d %d\r\n%b\r\n" % (ack_inbox, sid, len(ack), ack) + (
        b"PING\r\n" if asks else b""
    )
    link = BreakingLink(data)
    road = Serving(driver.store, driver.broker, link, server.clock, "test", suspicion_s=10)  # type: ignore[arg-type]
    road.turn(readable=True)
    link.close()
    # Cut off for as long as a member waits before it stops: every second the store does the work of
    # a second.
    for _ in range(5):
        server.clock.advance(1)
        road.turn(readable=False)
    road.stop()
    (channel,) = FileNode(server.disk, owner=Owner(9)).recovered.channels
    (sub,) = channel.recovered_subs()
    assert sub.pending == set()
