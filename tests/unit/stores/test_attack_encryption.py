"""Attacks on encryption at rest: each test states what an operator was promised."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import RecoveryError, StoreError
from ftstan.broker.broker import BrokerOptions
from ftstan.config.limits import Limits
from ftstan.nats import config_check
from ftstan.nats.binary import binary_version
from ftstan.nats.embedded import NatsServerOptions
from ftstan.stores.contract.place import FREE, put
from ftstan.stores.encryption.cipher import KeyRing, UndecryptableError
from ftstan.stores.encryption.store import EncryptedChannel, EncryptedStore
from ftstan.stores.file.env import FileEnv, FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.store import FileStore
from ftstan.stores.file.tools.rekeying import rekey_store
from ftstan.stores.interface import ChannelLimits, ChannelStore
from ftstan.stores.memory import MemoryStore
from ftstan.wire.codec import decode_msg_proto
from tests.compat.driver import Driver
from tests.filenode import Owner
from tests.unit.cli.test_store_tool_rekey import key_file, payloads_of, run
from tests.unit.stores.encryption.test_originals import unpacked
from tests.unit.stores.encryption.test_store import SECRET, Servers

if TYPE_CHECKING:
    from pathlib import Path

    from ftstan.stores.interface import Recovered, Store

SECOND = 1_000_000_000


def rekey(servers: Servers, *keys: bytes) -> None:
    servers._epoch += 1
    options = FileStoreOptions()
    env = FileEnv(
        servers.disk,
        servers.disk.open_dir("/store"),
        Driver().clock,
        options,
        Owner(servers._epoch),
        records.Crc(options.crc_polynomial),
    )
    rekey_store(env, KeyRing(keys))


def plain_store(servers: Servers, limits: ChannelLimits = FREE) -> Store:
    """A server without encryption on the same disk."""
    servers._epoch += 1
    return FileStore(
        servers.disk,
        servers.disk.open_dir("/store"),
        Owner(servers._epoch),
        Driver().clock,
        FileStoreOptions(),
        limits=Limits.same(limits),
        parallel_sync=False,
    )


def channel_of(store: Store, name: bytes = b"foo") -> ChannelStore:
    (channel,) = (c for c in store.recover().channels if c.name == name)
    return channel


# ---- a wrong key
# --------------------------------------------------------------------------------------------------


def test_a_wrong_key_is_noticed_where_the_newest_message_was_stored_plain() -> None:
    servers = Servers()
    servers.filled(b"foo")
    store = plain_store(servers)
    put(store, channel_of(store), b"of a server without -encrypt")
    store.close()
    with pytest.raises(RecoveryError, match="does not decrypt"):
        servers.store(b"wrong").recover()


def test_an_empty_message_at_the_end_does_not_hide_that_a_key_is_wrong() -> None:
    """A heartbeat of an application, say, or what a handover fills up with."""
    servers = Servers()
    servers.filled(b"foo")
    store = servers.store(b"key")
    put(store, channel_of(store), b"")
    store.close()
    with pytest.raises(RecoveryError, match="does not decrypt"):
        servers.store(b"wrong").recover()


def test_a_channel_that_is_refused_for_its_key_is_not_deleted_for_inactivity() -> None:
    """Nobody can use it, so it looks inactive: a wrong key must not cost the data."""
    servers = Servers(most_at_once=0)
    servers.filled(*(b"c.%02d" % n for n in range(8)))
    servers.filled(b"other", key=b"another")
    limits = ChannelLimits(max_msgs=0, max_bytes=0, max_inactivity=5 * SECOND)
    store = servers.store(b"key")
    store.set_limits(Limits.same(limits))
    driver = Driver(store, options=BrokerOptions(limits=limits))
    driver.connect()
    # Its subscribers come, and are refused: so nobody can keep it in use.
    with pytest.raises(AssertionError):
        driver.subscribe(channel=b"other", inbox=b"in")
    (ack,) = driver.publish(b"x", channel=b"other")
    assert b"does not decrypt" in ack.error
    driver.wait(20)
    driver.store.close()
    store = servers.store(b"key", b"another")
    recovered = store.recover()
    names = {c.name for c in recovered.channels} | set(recovered.later)
    assert b"other" in names


def test_a_channel_that_is_refused_for_its_key_cannot_be_deleted_like_a_quarantined_one() -> None:
    servers = Servers(most_at_once=0)
    servers.filled(*(b"c.%02d" % n for n in range(8)))
    servers.filled(b"other", key=b"another")
    store = servers.store(b"key")
    store.recover()
    assert store.open_channel(b"other").refused
    with pytest.raises(StoreError):
        store.delete_channel(b"other")


def test_a_member_with_a_wrong_key_changes_no_file_of_messages() -> None:
    servers = Servers()
    servers.filled(b"foo", b"bar")

    def slices() -> dict[str, bytes | None]:
        tree = servers.disk.tree("/store")
        return {name: data for name, data in tree.items() if "/msgs." in name}

    before = slices()
    for _ in range(3):
        store = servers.store(b"wrong")
        with pytest.raises(RecoveryError):
            store.recover()
        store.abandon()
    assert slices() == before


def test_one_channel_that_storage_refuses_does_not_keep_an_encrypted_store_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without encryption the others are served: a sample of channels must not be worse."""
    servers = Servers(most_at_once=0)
    servers.filled(*(b"c.%02d" % n for n in range(12)))
    opened = FileStore.open_channel

    def failing(self: FileStore, name: bytes) -> Recovered:
        if name == b"c.03":
            raise StoreError("Input/output error")
        return opened(self, name)

    monkeypatch.setattr(FileStore, "open_channel", failing)
    recovered = servers.store(b"key").recover()
    assert b"c.03" in recovered.later


# ---- rekey
# --------------------------------------------------------------------------------------------------


def test_rekey_encrypts_with_the_first_key_of_the_file_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that the shell happens to have must not silently win over the file that was named."""
    store = unpacked("two-keys", tmp_path)
    ring = key_file(tmp_path, "new", "fixture-key-1", "fixture-key-2")
    monkeypatch.setenv("NATS_STREAMING_ENCRYPTION_KEY", "fixture-key-1")
    if run("rekey", str(store), "--encryption-key-file", ring) != 0:
        # Refused: fine, too.
        return
    payloads_of(store, "new")


# ---- keys that show
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``nats-server`` that writes down its environment; the key is in ours."""
    seen = tmp_path / "seen"
    binary = tmp_path / "nats-server"
    binary.write_text(f"#!/bin/sh\nenv > {seen}\necho nats-server: v2.10.22\n")
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("FTSTAN_NATS_SERVER", str(binary))
    monkeypatch.setenv("NATS_STREAMING_ENCRYPTION_KEY", "THE-KEY")
    return seen


def test_the_nats_server_that_says_its_version_does_not_get_the_key(spy: Path) -> None:
    binary_version()
    assert "THE-KEY" not in spy.read_text()


def test_the_nats_server_that_checks_a_configuration_does_not_get_the_key(spy: Path) -> None:
    config_check.check(NatsServerOptions("c", host="127.0.0.1", port=-1))
    assert "THE-KEY" not in spy.read_text()


# ---- tampering
# --------------------------------------------------------------------------------------------------


class Altered:
    """A channel's stored messages with other payloads, as who writes to the datastore puts them."""

    def __init__(self, stored: list[bytes], *keys: bytes, name: bytes = b"foo") -> None:
        store = MemoryStore()
        inner = store.create_channel(name, FREE)
        put(store, inner, *stored)
        self.channel = EncryptedChannel(inner, KeyRing(keys))

    def read(self, sequence: int = 1) -> bytes:
        block = self.channel.read(sequence, 1, 1 << 20)
        assert block is not None
        return decode_msg_proto(block.payload(0))[3]


def sealed(data: bytes, key: bytes = b"key", name: bytes = b"foo", cipher: str = "AES") -> bytes:
    keys = KeyRing([key], cipher).channel(name)
    nonce = os.urandom(12)
    return bytes((keys.code,)) + nonce + keys.encrypt(nonce, data, None)


@pytest.mark.parametrize("cipher", ["AES", "CHACHA"])
def test_every_altered_byte_behind_the_first_is_found(cipher: str) -> None:
    record = sealed(SECRET, cipher=cipher)
    for at in range(1, len(record)):
        changed = bytearray(record)
        changed[at] ^= 1
        with pytest.raises(UndecryptableError):
            Altered([bytes(changed)], b"key").read()
    for length in range(1, len(record)):
        with pytest.raises(UndecryptableError):
            Altered([record[:length]], b"key").read()


def test_a_record_of_another_channel_is_found() -> None:
    with pytest.raises(UndecryptableError):
        Altered([sealed(SECRET, name=b"bar")], b"key").read()


# ---- more than one key, and numbers that run out
# --------------------------------------------------------------------------------------------------


def test_a_plain_message_too_short_for_a_record_is_not_taken_for_a_wrong_key() -> None:
    """A record has 29 bytes at least: 14 to 28 of them prove nothing."""
    servers = Servers()
    store = plain_store(servers)
    store.recover()
    put(store, store.create_channel(b"foo", FREE), b"\1" + b"p" * 20)
    store.close()
    servers.store(b"key").recover()


def test_a_wrong_key_is_told_with_the_inner_store_to_be_given_up() -> None:
    servers = Servers()
    servers.filled(b"foo")
    store = servers.store(b"wrong")
    assert isinstance(store, EncryptedStore)
    with pytest.raises(RecoveryError):
        store.recover()
    store.abandon()
    before = servers.disk.open_handles if isinstance(servers.disk.open_handles, int) else None
    for _ in range(20):
        store = servers.store(b"wrong")
        with pytest.raises(RecoveryError):
            store.recover()
        store.abandon()
    if before is not None:
        # One for each root, which the store does not close.
        assert servers.disk.open_handles - before <= 20
