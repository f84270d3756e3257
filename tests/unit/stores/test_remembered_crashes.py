"""Publishes of our own client over a death of the server at every storage call: each is stored
once.
"""

from __future__ import annotations

from typing import Any

import pytest

from ftstan.base.clock import ManualClock
from ftstan.broker.dedup import Window
from ftstan.stores.interface import StoredAt
from ftstan.wire.block import MsgBlock
from tests.compat.driver import Driver, PubAck, pub_acks
from tests.filenode import FileNode, simulated
from tests.sim.disk import Killed, SimDisk
from tests.sim.filestore import open_file_store
from tests.sim.history import STORE
from tests.sim.model import UNLIMITED, read_all
from tests.unit.broker.test_dedup import offer

WINDOW = 100
BEFORE = (b"ft1.a", b"ft1.b")
DURING = (b"ft1.c", b"ft1.d")


class Recovered:
    """The store of a node, for a driver that wants to recover it itself."""

    def __init__(self, node: FileNode) -> None:
        self._node = node

    def recover(self) -> Any:
        return self._node.recovered

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node.store, name)


def serving(node: FileNode) -> Driver:
    driver = Driver(Recovered(node), clock=node.clock)
    driver.broker.window = Window(WINDOW, node.recovered.remembered)
    if b"me" not in driver.broker.clients:
        driver.connect()
    return driver


def publish(driver: Driver, *guids: bytes) -> list[PubAck]:
    """One batch of messages that all look alike."""
    for guid in guids:
        offer(driver, guid)
    return pub_acks(driver.run())


def disk_of(node: FileNode) -> SimDisk:
    return node.disk  # type: ignore[return-value]


def begun() -> tuple[FileNode, Driver]:
    node = FileNode(simulated())
    driver = serving(node)
    assert len(publish(driver, *BEFORE)) == 2
    return node, driver


def calls_of_a_batch() -> int:
    node, driver = begun()
    before = disk_of(node).calls
    publish(driver, *DURING)
    return disk_of(node).calls - before


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power cut"])
@pytest.mark.parametrize("dies_at", range(1, calls_of_a_batch() + 1))
def test_a_publish_that_is_repeated_after_a_crash_anywhere_is_stored_once(
    dies_at: int, *, power: bool
) -> None:
    node, driver = begun()
    disk = disk_of(node)
    last = disk.calls + dies_at

    def die(number: int, _name: str, _arguments: tuple[object, ...]) -> None:
        if number >= last:
            raise Killed

    disk.on_call = die
    with pytest.raises(Killed):
        publish(driver, *DURING)
    disk.on_call = None
    node.clock.advance(1)
    after = node.successor(disk.crash(process_only=not power))
    again = serving(after)
    guids = [*BEFORE, *DURING]
    assert publish(again, *guids) == [PubAck(guid) for guid in guids]
    assert list(read_all(again.broker.store.recover().channels[0])) == [1, 2, 3, 4]


def test_a_message_that_a_successor_stored_in_that_place_is_not_taken_for_the_publish() -> None:
    node, driver = begun()
    disk = disk_of(node)
    last = disk.calls + 1

    def die(number: int, name: str, _arguments: tuple[object, ...]) -> None:
        # Its name is on the disk, and nothing of the message is.
        if number > last and name == "pwrite":
            raise Killed

    disk.on_call = die
    with pytest.raises(Killed):
        publish(driver, b"ft1.c")
    disk.on_call = None
    node.clock.advance(1)
    after = node.successor(disk.crash(process_only=True))
    assert [at.sequence for at in after.recovered.remembered.values()] == [1, 2, 3]
    again = serving(after)
    # Alike to the byte, and another publish.
    assert publish(again, b"ft1.other") == [PubAck(b"ft1.other")]
    assert publish(again, b"ft1.c") == [PubAck(b"ft1.c")]
    assert publish(again, b"ft1.c", b"ft1.other") == [PubAck(b"ft1.c"), PubAck(b"ft1.other")]
    assert list(read_all(again.broker.store.recover().channels[0])) == [1, 2, 3, 4]


def test_a_publish_whose_message_has_been_removed_meanwhile_is_a_new_one() -> None:
    node, _ = begun()
    after = node.successor()
    again = serving(after)
    log = after.channels[b"foo"]
    log.purge(1)
    assert publish(again, b"ft1.a", b"ft1.b") == [PubAck(b"ft1.a"), PubAck(b"ft1.b")]
    assert list(read_all(log)) == [2, 3]


def test_what_a_former_owner_stores_while_its_successor_reads_is_remembered() -> None:
    disk = SimDisk()
    clock = ManualClock()
    disk.make_dirs(STORE)
    former = open_file_store(disk, clock)
    former.recover()
    channel = former.create_channel(b"foo", UNLIMITED)

    def publish(sequence: int) -> None:
        block = MsgBlock()
        block.append(sequence, b"foo", b"", b"x", clock.wall_ns())
        channel.append(block)
        digest = b"%016d" % sequence
        known[digest] = StoredAt(sequence, 0)
        former.remember([digest], known)
        assert former.commit() == {}

    known: dict[bytes, StoredAt] = {}
    publish(1)
    host = disk.sibling()
    successor = open_file_store(host, clock)

    def before_it_lists_the_channel(_number: int, call: str, args: tuple[object, ...]) -> None:
        if call == "open_dir_at":
            host.on_call = None
            publish(2)

    host.on_call = before_it_lists_the_channel
    found = successor.recover()
    assert found.channels[0].last == 2
    assert {at.sequence for at in found.remembered.values()} == {1, 2}
