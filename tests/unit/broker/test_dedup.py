"""The window of publishes that were stored: what is a repeat, what is not, and when it may be
acknowledged.
"""

from __future__ import annotations

import errno

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import StoreError
from ftstan.broker import managing
from ftstan.broker.broker import BrokerOptions
from ftstan.broker.dedup import Window
from ftstan.stores.file.channel import FileChannel
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.interface import ChannelLimits, StoredAt
from ftstan.stores.memory import MemoryStore
from ftstan.wire.block import MsgBlock
from tests.compat.driver import SUBJECTS, Driver, PubAck, pub_acks, pub_msg
from tests.sim.disk import SimDisk
from tests.sim.filestore import open_file_store
from tests.unit.broker.test_failures import RefusingStore
from tests.unit.broker.test_publish import stored


@pytest.fixture
def store() -> RefusingStore:
    return RefusingStore()


@pytest.fixture
def driver(store: RefusingStore) -> Driver:
    made = Driver(store)
    made.connect()
    made.broker.window = Window(3, {})
    return made


def offer(driver: Driver, guid: bytes, data: bytes = b"x", channel: bytes = b"foo") -> None:
    payload = pub_msg(guid, channel, data, conn_id=b"conn.me")
    driver.frame(f"{SUBJECTS.publish}.{channel.decode()}", payload, b"_STAN.acks.x")


def publish(
    driver: Driver, guid: bytes, data: bytes = b"x", channel: bytes = b"foo"
) -> list[PubAck]:
    offer(driver, guid, data, channel)
    return pub_acks(driver.run())


def test_a_repeat_is_acknowledged_and_not_stored(driver: Driver) -> None:
    for _ in range(3):
        assert publish(driver, b"ft1.a") == [PubAck(b"ft1.a", b"")]
    assert stored(driver) == [b"x"]


def test_a_repeat_of_what_was_stored_before_the_channel_moved_is_acknowledged(
    driver: Driver,
) -> None:
    publish(driver, b"ft1.a")
    channel = managing.find_channel(driver.broker, b"foo")
    managing.set_moved(driver.broker, channel, b"bridge")
    assert publish(driver, b"ft1.a") == [PubAck(b"ft1.a", b"")]
    assert publish(driver, b"ft1.b") == [PubAck(b"ft1.b", b"stan: channel has moved")]
    managing.set_moved(driver.broker, channel, None)
    assert publish(driver, b"ft1.b") == [PubAck(b"ft1.b", b"")]
    assert stored(driver) == [b"x", b"x"]


def test_a_repeat_in_the_same_batch_gets_its_ack_with_the_first(driver: Driver) -> None:
    offer(driver, b"ft1.a")
    offer(driver, b"ft1.a")
    assert pub_acks(driver.run()) == [PubAck(b"ft1.a", b"")] * 2
    assert stored(driver) == [b"x"]


@pytest.mark.parametrize("guid", [b"a", b"ft1", b"ft1.", b"FT1.a", b"xft1.a"])
def test_other_guids_are_never_looked_at(driver: Driver, guid: bytes) -> None:
    publish(driver, guid)
    publish(driver, guid)
    assert stored(driver) == [b"x", b"x"]


def test_one_guid_on_two_channels_names_two_publishes(driver: Driver) -> None:
    publish(driver, b"ft1.a", channel=b"foo")
    publish(driver, b"ft1.a", channel=b"bar")
    assert (stored(driver, b"foo"), stored(driver, b"bar")) == ([b"x"], [b"x"])


def test_only_the_newest_are_remembered(driver: Driver) -> None:
    for guid in (b"ft1.a", b"ft1.b", b"ft1.c", b"ft1.d", b"ft1.b", b"ft1.a"):
        publish(driver, guid)
    assert len(stored(driver)) == 5


def test_without_a_window_every_publish_is_new() -> None:
    driver = Driver()
    driver.connect()
    publish(driver, b"ft1.a")
    publish(driver, b"ft1.a")
    assert stored(driver) == [b"x", b"x"]


def test_a_failed_publish_and_its_repeat_get_errors_and_the_next_repeat_is_stored(
    driver: Driver, store: RefusingStore
) -> None:
    store.broken.add(b"foo")
    offer(driver, b"ft1.a")
    offer(driver, b"ft1.a")
    assert pub_acks(driver.run()) == [PubAck(b"ft1.a", b"foo: no disk")] * 2
    store.broken.clear()
    assert publish(driver, b"ft1.a") == [PubAck(b"ft1.a", b"")]
    assert stored(driver) == [b"x"]


def test_a_repeat_of_what_is_durable_does_not_share_the_fate_of_the_batch(
    driver: Driver, store: RefusingStore
) -> None:
    publish(driver, b"ft1.a")
    store.broken.add(b"foo")
    offer(driver, b"ft1.a")
    offer(driver, b"ft1.b")
    assert sorted(pub_acks(driver.run()), key=lambda ack: ack.guid) == [
        PubAck(b"ft1.a", b""),
        PubAck(b"ft1.b", b"foo: no disk"),
    ]


def test_what_is_remembered_of_messages_that_are_not_in_the_log_counts_for_nothing() -> None:
    driver = Driver()
    driver.connect()
    window = Window(3, {})
    window.add(b"foo", b"ft1.a", 7, 0, b"x")
    driver.broker.window = window
    assert publish(driver, b"ft1.a") == [PubAck(b"ft1.a", b"")]
    assert stored(driver) == [b"x"]


def test_a_repeat_of_what_a_refused_batch_left_in_the_log_is_not_stored_again() -> None:
    disk = SimDisk()
    disk.make_dirs("/store")
    clock = ManualClock()
    driver = Driver(
        open_file_store(disk, clock, FileStoreOptions(slice_max_msgs=2)), BrokerOptions(), clock
    )
    driver.connect()
    driver.broker.window = Window(10, {})
    publish(driver, b"ft1.a", b"a")

    def failing(_number: int, call: str, arguments: tuple[object, ...]) -> None:
        if call == "link":
            raise OSError(errno.EIO, "I/O error")

    disk.on_call = failing
    offer(driver, b"ft1.b", b"b")
    offer(driver, b"ft1.c", b"c")
    offer(driver, b"ft1.d", b"d")
    refused = pub_acks(driver.run())
    assert [(ack.guid, bool(ack.error)) for ack in refused] == [
        (b"ft1.b", True),
        (b"ft1.c", True),
        (b"ft1.d", True),
    ]
    disk.on_call = None
    # The first one of the batch filled the slice that was there.
    for guid, data in ((b"ft1.c", b"c"), (b"ft1.b", b"b"), (b"ft1.d", b"d")):
        assert publish(driver, guid, data) == [PubAck(guid, b"")]
    assert stored(driver) == [b"a", b"b", b"c", b"d"]


def test_a_repeat_is_known_though_storage_does_not_answer_and_refused_where_only_storage_could_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimDisk()
    disk.make_dirs("/store")
    clock = ManualClock()
    driver = Driver(open_file_store(disk, clock), BrokerOptions(), clock)
    driver.connect()
    driver.broker.window = Window(10, {})
    publish(driver, b"ft1.a", b"a")

    def failing(*_: object) -> None:
        raise StoreError("I/O error")

    monkeypatch.setattr(FileChannel, "read", failing)
    assert publish(driver, b"ft1.a", b"a") == [PubAck(b"ft1.a", b"")]
    # As a successor, who knows it from a file.
    driver.broker.window = Window(10, dict(driver.broker.window.known))
    (refused,) = publish(driver, b"ft1.a", b"a")
    assert (refused.guid, refused.error) == (b"ft1.a", b"I/O error")
    monkeypatch.undo()
    assert publish(driver, b"ft1.a", b"a") == [PubAck(b"ft1.a", b"")]
    assert stored(driver) == [b"a"]


def test_a_window_names_what_is_durable_and_asks_the_log_about_what_failed() -> None:
    window = Window(10, {})
    store = MemoryStore()
    log = store.create_channel(b"foo", ChannelLimits())
    block = MsgBlock()
    block.append(1, b"foo", b"", b"x", 0)
    log.append(block)
    store.commit()
    window.add(b"foo", b"ft1.a", 1, 0, b"x")
    window.add(b"bar", b"ft1.b", 2, 0, b"x")
    assert [window.known[digest].sequence for digest in window.staged()] == [1, 2]
    window.committed({b"bar"})
    assert (window.look(b"foo", b"ft1.a", log), window.look(b"bar", b"ft1.b", log)) == (1, 0)
    assert window.staged() == []


def delete(driver: Driver) -> None:
    managing.delete_channel(driver.broker, managing.find_channel(driver.broker, b"foo"))


@pytest.mark.parametrize("others", [0, 1, 5])
def test_a_repeat_behind_a_deletion_is_stored_whatever_the_new_channel_holds(others: int) -> None:
    driver = Driver(options=BrokerOptions(limits=ChannelLimits(max_msgs=2)))
    driver.connect()
    driver.broker.window = Window(10, {})
    publish(driver, b"ft1.a", b"a")
    publish(driver, b"ft1.a", b"a")
    delete(driver)
    for i in range(others):
        publish(driver, b"ft1.%d" % i)
    # With five others the sequence that it had is below what the limits have left.
    assert publish(driver, b"ft1.a", b"a") == [PubAck(b"ft1.a", b"")]
    assert stored(driver)[-1] == b"a"
    before = stored(driver)
    assert publish(driver, b"ft1.a", b"a") == [PubAck(b"ft1.a", b"")]
    assert stored(driver) == before


def test_a_repeat_of_what_limits_have_removed_is_not_stored_again_while_its_channel_lives() -> None:
    driver = Driver(options=BrokerOptions(limits=ChannelLimits(max_msgs=2)))
    driver.connect()
    driver.broker.window = Window(10, {})
    for guid in (b"ft1.a", b"ft1.b", b"ft1.c"):
        publish(driver, guid, guid)
    publish(driver, b"ft1.x", channel=b"bar")
    managing.delete_channel(driver.broker, managing.find_channel(driver.broker, b"bar"))
    assert publish(driver, b"ft1.a", b"ft1.a") == [PubAck(b"ft1.a", b"")]
    assert stored(driver) == [b"ft1.b", b"ft1.c"]


def test_what_a_former_activation_stored_and_was_found_ends_with_its_channel_too() -> None:
    before = Window(10, {})
    store = MemoryStore()
    driver = Driver(store, BrokerOptions(limits=ChannelLimits(max_msgs=1)))
    driver.connect()
    driver.broker.window = before
    publish(driver, b"ft1.a", b"a")
    driver.broker.window = Window(10, dict(before.known))
    publish(driver, b"ft1.a", b"a")
    delete(driver)
    publish(driver, b"ft1.b", b"b")
    publish(driver, b"ft1.c", b"c")
    publish(driver, b"ft1.a", b"a")
    assert stored(driver) == [b"a"]


def test_a_smaller_window_keeps_the_newest_of_what_was_known() -> None:
    known = {bytes([i]) * 16: StoredAt(i, 0) for i in range(1, 6)}
    assert [at.sequence for at in Window(2, known).known.values()] == [4, 5]


def test_what_is_learnt_is_remembered_once_and_takes_the_place_of_nothing_of_our_own() -> None:
    window = Window(3, {b"old": StoredAt(1, 1)})
    window.add(b"foo", b"ft1.own", 2, 1, b"x")
    (own,) = window.staged()
    window.committed({})
    window.learn({own: StoredAt(9, 9), b"old": StoredAt(1, 1), b"late": StoredAt(3, 3)})
    assert window.staged() == [b"late"]
    assert [at.sequence for at in window.known.values()] == [1, 2, 3]
    window.committed({})
    assert window.staged() == []
    window.learn({b"more": StoredAt(4, 4)})
    assert [at.sequence for at in window.known.values()] == [2, 3, 4]
