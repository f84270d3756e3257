"""A broker on an encrypted store: what is stored, what readers get, what a wrong key does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import RecoveryError
from ftstan.base.log import stream as log
from ftstan.broker.dedup import Window
from ftstan.config.limits import Limits
from ftstan.config.options import EncryptionOptions
from ftstan.stores.contract.place import FREE, put
from ftstan.stores.encryption import cipher
from ftstan.stores.encryption.cipher import KeyRing, UndecryptableError
from ftstan.stores.encryption.ring import encrypted, ring_of
from ftstan.stores.encryption.store import EncryptedChannel, EncryptedStore
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.store import FileStore
from ftstan.stores.memory import MemoryChannel, MemoryStore
from ftstan.wire.messages import StartPosition
from tests.compat.driver import SUBJECTS, Driver, deliveries, pub_acks, pub_msg
from tests.filenode import Owner
from tests.sim.disk import SimDisk

if TYPE_CHECKING:
    from ftstan.base.disk import Disk
    from ftstan.stores.interface import Recovered, Store

SECRET = b"the plaintext"


def payloads(driver: Driver, inbox: bytes) -> list[bytes]:
    return [delivery.data for delivery in deliveries(driver.out, inbox)]


def files_of(disk: SimDisk) -> bytes:
    """Everything that lies on the disk."""
    found = b""
    root = disk.open_dir("/store")
    pending = [root]
    while pending:
        folder = pending.pop()
        for name, is_dir in disk.listdir(folder):
            if is_dir:
                pending.append(disk.open_dir_at(folder, name))
            else:
                fd = disk.open(folder, name, 0)
                found += disk.pread(fd, 1 << 20, 0)
                disk.close(fd)
    return found


class Recording(EncryptedStore):
    """Keeps what it has recovered."""

    found: Recovered

    def recover(self) -> Recovered:
        self.found = super().recover()
        return self.found


class Servers:
    """One server after the other on a simulated disk."""

    def __init__(self, most_at_once: int | None = None) -> None:
        self.disk = SimDisk()
        self.disk.make_dirs("/store")
        self._most_at_once = most_at_once
        self._epoch = 0

    def store(
        self, *keys: bytes, accept_unreadable: bool = False, refuse_plain: bool = False
    ) -> Store:
        self._epoch += 1
        disk: Disk = self.disk
        inner = FileStore(
            disk,
            disk.open_dir("/store"),
            Owner(self._epoch),
            Driver().clock,
            FileStoreOptions(),
            limits=Limits.same(FREE),
            parallel_sync=False,
            most_at_once=self._most_at_once,
        )
        if not keys:
            return inner
        return Recording(
            inner, KeyRing(keys), accept_unreadable=accept_unreadable, refuse_plain=refuse_plain
        )

    def filled(self, *names: bytes, key: bytes = b"key") -> None:
        store = self.store(key, accept_unreadable=True)
        store.recover()
        for name in names:
            put(store, store.create_channel(name, FREE), SECRET, b"", b"more")
        store.close()


def test_without_encryption_there_is_no_store_around_the_store() -> None:
    store = MemoryStore()
    options = EncryptionOptions(cipher="none")
    environment = {"NATS_STREAMING_ENCRYPTION_KEY": "k"}
    assert encrypted(store, ring_of(options, environment), options) is store


def test_subscribers_get_what_publishers_sent_and_memory_holds_none_of_it() -> None:
    inner = MemoryStore()
    driver = Driver(EncryptedStore(inner, KeyRing([b"key"])))
    driver.connect()
    driver.subscribe(channel=b"foo", inbox=b"in.first")
    driver.publish(SECRET, b"more", channel=b"foo")
    driver.broker.drop_caches()
    driver.subscribe(channel=b"foo", inbox=b"in.late")
    assert payloads(driver, b"in.first") == payloads(driver, b"in.late") == [SECRET, b"more"]
    (channel,) = inner._channels.values()
    assert isinstance(channel, MemoryChannel)
    block = channel.read(1, 10, 1 << 20)
    assert block is not None
    assert len(block) == 2
    assert SECRET not in bytes(memoryview(block))


def test_a_reader_waits_at_what_no_key_decrypts_and_everything_else_goes_on() -> None:
    servers = Servers()
    servers.filled(b"foo", b"bar", key=b"old")
    store = servers.store(b"new", b"old")
    found = {c.name: c for c in store.recover().channels}
    put(store, found[b"foo"], b"new one")
    put(store, found[b"bar"], b"new two")
    store.close()

    driver = Driver(servers.store(b"new"))
    driver.connect()
    driver.subscribe(channel=b"foo", inbox=b"in.foo")
    driver.subscribe(
        channel=b"bar", inbox=b"in.bar", start=StartPosition.SEQUENCE_START, sequence=2
    )
    assert payloads(driver, b"in.foo") == []
    # An empty payload is stored empty, and needs no key.
    assert payloads(driver, b"in.bar") == [b""]
    driver.publish(b"another", channel=b"baz")
    driver.subscribe(channel=b"baz", inbox=b"in.baz")
    assert payloads(driver, b"in.baz") == [b"another"]
    driver.store.close()

    # Nothing was told to have been delivered, and nothing is lost.
    driver = Driver(servers.store(b"new", b"old"))
    driver.connect(client_id=b"other")
    driver.subscribe(client_id=b"other", channel=b"foo", inbox=b"in.again")
    assert payloads(driver, b"in.again") == [SECRET, b"", b"more", b"new one"]
    assert SECRET not in files_of(servers.disk)


def test_a_wrong_key_is_found_where_channels_open_later() -> None:
    servers = Servers(most_at_once=0)
    names = [b"c.%02d" % n for n in range(12)]
    servers.filled(*names)
    with pytest.raises(RecoveryError, match=r"newest message of 8 of 8 channels: c\.00, c\.01, c"):
        servers.store(b"wrong").recover()
    store = servers.store(b"key")
    recovered = store.recover()
    assert [c.name for c in recovered.channels] == names[:8]
    assert recovered.later == names[8:]
    opened = store.open_channel(names[9])
    assert (len(opened.channels), opened.refused) == (1, {})
    store.abandon()


def test_a_channel_that_opens_later_is_refused_with_a_wrong_key() -> None:
    servers = Servers(most_at_once=0)
    names = [b"c.%02d" % n for n in range(8)]
    servers.filled(*names)
    servers.filled(b"other", key=b"another")
    store = servers.store(b"key")
    assert store.recover().refused == {}
    refused = store.open_channel(b"other").refused
    assert refused == {
        b"other": 'the encryption key does not decrypt the newest message of channel "other"'
    }
    store.abandon()
    store = servers.store(b"key", accept_unreadable=True)
    store.recover()
    assert store.open_channel(b"other").refused == {}
    store.abandon()


def test_a_channel_with_more_messages_than_random_nonces_are_for_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(log, "warning", lambda text, **_: lines.append(text))
    inner = MemoryChannel(b"foo", FREE, [], None)  # type: ignore[arg-type]
    channel = EncryptedChannel(inner, KeyRing([b"k"]))
    inner.last = cipher.MOST_UNDER_ONE_KEY - 1
    channel.warn_of_many()
    assert lines == []
    inner.last += 1
    channel.warn_of_many()
    assert "more than one key should encrypt" in lines[0]


# ---- what is remembered of publishes
# --------------------------------------------------------------------------------------------------


def offered(driver: Driver, guid: bytes, data: bytes) -> list[bytes]:
    (client,) = driver.broker.clients.values()
    payload = pub_msg(guid, b"foo", data, conn_id=client.info.conn_id)
    driver.frame(f"{SUBJECTS.publish}.foo", payload, b"_STAN.acks.x")
    return [ack.error for ack in pub_acks(driver.run())]


def driver_of(servers: Servers, *keys: bytes) -> Driver:
    """A broker with a window, and one client."""
    store = servers.store(*keys)
    assert isinstance(store, Recording)
    driver = Driver(store, alive={b"hb.me"})
    driver.broker.window = Window(9, store.found.remembered, KeyRing(keys).mark_keys())
    if not len(driver.broker.clients):
        driver.connect()
    return driver


def test_a_repeat_is_known_behind_a_restart_and_a_new_key() -> None:
    servers = Servers()
    driver = driver_of(servers, b"old")
    assert offered(driver, b"ft1.a", SECRET) == [b""]
    driver.broker.store.close()
    driver = driver_of(servers, b"new", b"old")
    assert offered(driver, b"ft1.a", SECRET) == offered(driver, b"ft1.b", b"x") == [b""]
    (channel,) = driver.broker.channels.values()
    assert channel.store.count == 2
    driver.broker.store.close()


def test_a_publish_that_may_be_a_repeat_of_an_undecryptable_message_is_refused() -> None:
    servers = Servers()
    driver = driver_of(servers, b"old")
    offered(driver, b"ft1.a", SECRET)
    driver.broker.store.close()
    driver = driver_of(servers, b"old", b"new")
    driver.broker.store.close()
    store = servers.store(b"new", accept_unreadable=True)
    recovered = store.recover()
    window = Window(9, recovered.remembered, KeyRing([b"new"]).mark_keys())
    with pytest.raises(UndecryptableError):
        window.look(b"foo", b"ft1.a", recovered.channels[0])
    store.abandon()


def test_a_mark_says_nothing_of_a_payload_without_the_key() -> None:
    marks = set()
    for keys in ([], KeyRing([b"a"]).mark_keys(), KeyRing([b"b"]).mark_keys()):
        window = Window(9, {}, keys)
        window.add(b"foo", b"ft1.a", 1, 5, SECRET)
        (at,) = window.known.values()
        marks.add(at.mark)
    assert len(marks) == 3
