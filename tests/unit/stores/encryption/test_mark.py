"""The mark of an encrypted store: who sets it and keeps it, and a server without a key."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import RecoveryError
from ftstan.base.log import stream as log
from ftstan.broker.records import info_of
from ftstan.stores.contract.place import FREE, put
from ftstan.stores.encryption.cipher import UndecryptableError
from ftstan.stores.encryption.unkeyed import check_without_key, looks_encrypted
from ftstan.stores.file.log import records
from ftstan.stores.protos import decode_server
from tests.compat.driver import SUBJECTS
from tests.oracle.gostore import read_tree
from tests.unit.stores.encryption.test_store import SECRET, Servers

if TYPE_CHECKING:
    from tests.oracle.goview import Tree

INFO = info_of("test-cluster", SUBJECTS)


def server_file(servers: Servers) -> bytes:
    root = servers.disk.open_dir("/store")
    fd = servers.disk.open(root, "server.dat", 0)
    return servers.disk.pread(fd, 4096, 0)


def marked(servers: Servers) -> bool:
    return decode_server(server_file(servers)[12:]).encrypted


def served(servers: Servers, *keys: bytes, data: bytes = SECRET) -> None:
    store = servers.store(*keys)
    recovered = store.recover()
    if recovered.info is None:
        store.set_server_info(INFO)
    channels = {c.name: c for c in recovered.channels}
    put(store, channels.get(b"foo") or store.create_channel(b"foo", FREE), *[data] * 3)
    store.close()


def test_a_new_store_with_a_key_is_marked_and_an_original_reads_the_file_as_before() -> None:
    servers = Servers()
    served(servers, b"key")
    assert marked(servers)
    data = server_file(servers)
    tree: Tree = {"server.dat": data, "clients.dat": records.VERSION}
    seen = read_tree(tree).info
    plain = Servers()
    served(plain)
    assert not marked(plain)
    tree["server.dat"] = server_file(plain)
    assert seen is not None
    assert seen == read_tree(tree).info
    # Only our field is more: its tag of two bytes, and true.
    assert data[12:] == server_file(plain)[12:] + bytes([0xC0, 0x07, 0x01])


def test_a_plain_store_is_marked_before_the_first_encrypted_payload() -> None:
    servers = Servers()
    served(servers)
    assert not marked(servers)
    store = servers.store(b"key")
    recovered = store.recover()
    assert recovered.info is not None
    assert recovered.info.encrypted
    assert marked(servers)


def test_a_wrong_key_does_not_mark() -> None:
    servers = Servers()
    store = servers.store(b"key")
    store.recover()
    put(store, store.create_channel(b"foo", FREE), SECRET)
    store.close()
    plain = servers.store()
    plain.recover()
    plain.set_server_info(INFO)
    plain.close()
    assert not marked(servers)
    with pytest.raises(RecoveryError, match="does not decrypt"):
        servers.store(b"another").recover()
    assert not marked(servers)


def test_without_a_key_a_marked_store_is_refused_or_knowingly_served() -> None:
    servers = Servers()
    served(servers, b"key")
    store = servers.store()
    recovered = store.recover()
    with pytest.raises(RecoveryError, match="the store is encrypted, and this server has no") as e:
        check_without_key(store, recovered, accept_mixed=False)
    assert "-encryption_accept_mixed" in e.value.hint
    assert check_without_key(store, recovered, accept_mixed=True)[1]


@pytest.mark.parametrize("most_at_once", [None, 0])
def test_a_lost_server_file_does_not_lose_the_mark_in_silence(most_at_once: int | None) -> None:
    servers = Servers(most_at_once)
    served(servers, b"key")
    root = servers.disk.open_dir("/store")
    servers.disk.unlink(root, "server.dat")
    store = servers.store()
    recovered = store.recover()
    assert recovered.info is None
    assert bool(recovered.later) == (most_at_once is not None)
    with pytest.raises(RecoveryError, match=r"server\.dat is lost, the newest messages look encr"):
        check_without_key(store, recovered, accept_mixed=False)
    # Taken knowingly, the next server.dat has it again.
    store = servers.store()
    recovered = store.recover()
    assert check_without_key(store, recovered, accept_mixed=True)[1]


def test_what_an_original_encrypted_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = Servers()
    store = servers.store()
    store.recover()
    store.set_server_info(INFO)
    original = [b"\x01" + b"rnd!" + n.to_bytes(8, "big") + bytes(30) for n in (1, 2, 3)]
    put(store, store.create_channel(b"foo", FREE), *original)
    store.close()
    said: list[str] = []
    monkeypatch.setattr(log, "warning", lambda text, **_: said.append(text))
    store = servers.store()
    assert not check_without_key(store, store.recover(), accept_mixed=False)[1]
    assert ["look encrypted" in text for text in said] == [True]


def test_a_plain_store_is_served_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = Servers()
    served(servers, data=b"\x01 a text that begins with the byte one, and is long enough")
    said: list[str] = []
    monkeypatch.setattr(log, "warning", lambda text, **_: said.append(text))
    store = servers.store()
    assert not check_without_key(store, store.recover(), accept_mixed=False)[1]
    assert said == []


def test_random_payloads_seldom_look_encrypted() -> None:
    looking = sum(looks_encrypted(os.urandom(64), 5) for _ in range(20_000))
    assert 50 < looking < 400


def test_what_is_plain_may_be_refused() -> None:
    servers = Servers()
    served(servers)
    served(servers, b"key", data=b"encrypted")
    store = servers.store(b"key", refuse_plain=True)
    (channel,) = store.recover().channels
    with pytest.raises(UndecryptableError, match=r"foo:1 \(stored plain in an encrypted store\)"):
        channel.read(1, 10, 1 << 20)
    block = channel.read(4, 10, 1 << 20)
    assert block is not None
    assert len(block) == 3
