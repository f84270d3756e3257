"""``ftstanctl store rekey`` of databases: everything is of the first key afterwards, or nothing was
changed; an original reads it; whoever was interrupted goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.clock import SystemClock
from ftstan.base.errors import StoreError
from ftstan.broker.dedup import Window
from ftstan.cli import store_end
from ftstan.ft.sqlaccess import SqlOwner
from ftstan.stores.encryption.cipher import KeyRing
from ftstan.stores.encryption.store import EncryptedStore
from ftstan.stores.interface import ServerInfo
from ftstan.stores.sql.store import SqlStore
from ftstan.stores.sql.tools import rekeying
from ftstan.stores.sql.tools.reading import UNLIMITED
from tests.contract.test_sql_tools import named, put, run
from tests.oracle import gosql
from tests.oracle.godecrypt import decrypted
from tests.sqlservers import execute

if TYPE_CHECKING:
    from pathlib import Path

    from ftstan.stores.interface import Store
    from ftstan.stores.sql.source import Source

INFO = ServerInfo("c", "d", "p", "s", "u", "c", "sc", "a")
DATAS = [b"a secret that no row may hold %d" % n for n in range(30)]


class Place:
    """A database, and the words that name it and its keys."""

    def __init__(self, source: Source, text: str, directory: Path) -> None:
        self.source = source
        self._directory = directory
        self.words = named(directory, source.driver, text)

    def keys(self, *keys: str) -> tuple[str, str]:
        path = self._directory / ("keys-" + "-".join(keys))
        path.touch(0o600)
        path.write_text("\n".join(keys), encoding="ascii")
        return "--encryption-key-file", str(path)

    def fill(self, key: bytes, *datas: bytes, channel: bytes = b"foo") -> None:
        """As a server with this key stores them; empty: without one."""
        owner = SqlOwner(self.source, server_id="me", clock=SystemClock())
        owner.lock.seize()
        owner.activate()
        store: Store = SqlStore(owner.fence, SystemClock())
        if key:
            store = EncryptedStore(store, KeyRing([key], "AES"), accept_unreadable=True)
        store.set_limits(UNLIMITED)
        found = store.recover()
        if found.info is None:
            store.set_server_info(INFO)
        channels = {one.name: one for one in found.channels}
        made = channels.get(channel) or store.create_channel(channel, UNLIMITED.of(channel))
        put(made, store, *datas)
        store.close()
        owner.close()

    def read(self, key: bytes, channel: bytes = b"foo") -> list[bytes]:
        """As an original with this key reads them; empty: without one."""
        view = gosql.read(lambda text: execute(self.source, text), 1)
        stored = [one.data for one in view.channels[channel].messages.values()]
        return [decrypted(key, channel, data) for data in stored] if key else stored

    def rows(self) -> list[Any]:
        return execute(self.source, "SELECT * FROM Messages ORDER BY id, seq")

    def is_marked(self) -> bool:
        owner = SqlOwner(self.source, server_id="me", clock=SystemClock())
        store = SqlStore(owner.fence, SystemClock())
        store.set_limits(UNLIMITED)
        info = store.recover().info
        owner.close()
        assert info is not None
        return info.encrypted


@pytest.fixture
def place(sql_source: Source, sql_text: str, tmp_path: Path) -> Place:
    return Place(sql_source, sql_text, tmp_path)


def test_everything_is_of_the_first_key_and_an_original_reads_it(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.fill(b"", *DATAS[:10], b"")
    place.fill(b"old", *DATAS[10:20])
    place.fill(b"old", *DATAS[20:], channel=b"bar")
    status, out, err = run(capsys, "rekey", place.words, *place.keys("new", "old"))
    assert (status, err) == (0, "")
    assert out == "bar: 10 messages encrypted\nfoo: 20 messages encrypted\n"
    assert place.read(b"new") == [*DATAS[:10], b"", *DATAS[10:20]]
    assert place.read(b"new", b"bar") == DATAS[20:]
    assert place.is_marked()
    assert not any(b"secret" in bytes(row[4]) for row in place.rows())
    assert {row[3] - len(row[4]) for row in place.rows()} == {0}
    before = place.rows()
    # Nothing is left to do.
    assert run(capsys, "rekey", place.words, *place.keys("new"))[0] == 0
    assert place.rows() == before
    status, out, _ = run(
        capsys, "rekey", place.words, "--channel", "foo", "--to-plain", *place.keys("new")
    )
    assert (status, out) == (0, "foo: 20 messages decrypted\n")
    assert place.is_marked()
    assert run(capsys, "rekey", place.words, "--to-plain", *place.keys("new"))[0] == 0
    assert place.read(b"") == [*DATAS[:10], b"", *DATAS[10:20]]
    assert place.read(b"", b"bar") == DATAS[20:]
    assert not place.is_marked()
    assert run(capsys, "verify", place.words)[0] == 0


def test_whoever_is_interrupted_goes_on(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place.fill(b"old", *DATAS)
    monkeypatch.setattr(rekeying, "_MOST_ROWS", 7)
    real = rekeying._Rekeying._write
    left = [3]

    def dies(self: Any, *said: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise StoreError("the power is gone")
        real(self, *said)

    with monkeypatch.context() as patch:
        patch.setattr(rekeying._Rekeying, "_write", dies)
        assert run(capsys, "rekey", place.words, *place.keys("new", "old"))[0] == 2
    keys = {one: sum(_opens(one, row) for row in place.rows()) for one in (b"new", b"old")}
    assert keys == {b"new": 14, b"old": 16}
    status, out, _ = run(capsys, "rekey", place.words, *place.keys("new", "old"))
    assert (status, out) == (0, "foo: 16 messages encrypted\n")
    assert place.read(b"new") == DATAS


def _opens(key: bytes, row: Any) -> bool:
    from ftstan.wire.codec import decode_msg_proto  # noqa: PLC0415

    try:
        KeyRing([key]).channel(b"foo").decrypt(decode_msg_proto(bytes(row[4]))[3])
    except StoreError:
        return False
    return True


def test_what_cannot_be_changed_is_named_before_anything_is(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_end, "_LOCK_S", 0.5)
    place.fill(b"", *DATAS[:5])
    place.fill(b"lost", *DATAS[5:])
    before = place.rows()
    status, _, err = run(capsys, "rekey", place.words, *place.keys("new", "old"))
    assert status != 0
    assert 'channel "foo" message 6: cipher: message authentication failed' in err
    assert place.rows() == before
    # A row that is none, and one that would look encrypted.
    execute(place.source, "DELETE FROM Messages WHERE seq > 5")
    execute(place.source, "UPDATE Messages SET data = 'no message', size = 10 WHERE seq = 3")
    status, _, err = run(capsys, "rekey", place.words, *place.keys("new"))
    assert status != 0
    assert 'channel "foo" message 3: message does not decode' in err
    execute(place.source, "DELETE FROM Messages WHERE seq > 2")
    place.fill(b"new", b"\x01 looks encrypted")
    before = place.rows()
    status, _, err = run(capsys, "rekey", place.words, "--to-plain", *place.keys("new"))
    assert status != 0
    assert "begins with the byte 1, and would look encrypted" in err
    assert place.rows() == before
    for said, told in (
        (("--channel", "nobody", *place.keys("new")), 'has no channel "nobody"'),
        ((), "encryption key required"),
    ):
        status, _, err = run(capsys, "rekey", place.words, *said)
        assert status == 64
        assert told in err
    owner = SqlOwner(place.source, server_id="me", clock=SystemClock())
    owner.lock.seize()
    owner.activate()
    status, _, err = run(capsys, "rekey", place.words, *place.keys("new"))
    assert (status, "is in use" in err) == (2, True)
    owner.confirm()
    owner.close()
    assert place.rows() == before


@pytest.mark.parametrize("sql_text", ["mysql"], indirect=True)
def test_a_column_that_is_too_small_for_what_is_encrypted_is_told_before(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(place.source, "ALTER TABLE Messages MODIFY data BLOB")
    place.fill(b"", b"x", b"y" * 65_500)
    before = place.rows()
    status, _, err = run(capsys, "rekey", place.words, *place.keys("new"))
    assert status != 0
    assert "message 2: is too large for its column, of 65535 bytes" in err
    assert "LONGBLOB" in err
    assert place.rows() == before


def test_a_repeat_is_known_with_the_new_key_alone(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.fill(b"old", b"one")
    owner = SqlOwner(place.source, server_id="me", clock=SystemClock())
    owner.lock.seize()
    owner.activate()
    store = EncryptedStore(SqlStore(owner.fence, SystemClock()), KeyRing([b"old"], "AES"))
    store.set_limits(UNLIMITED)
    found = store.recover()
    window = Window(9, found.remembered, KeyRing([b"old"]).mark_keys())
    window.add(b"foo", b"guid", 1, 1_700_000_000_000_000_001, b"one")
    store.remember(list(window.known), window.known)
    store.close()
    owner.close()
    assert run(capsys, "rekey", place.words, *place.keys("new", "old"))[0] == 0
    owner = SqlOwner(place.source, server_id="me", clock=SystemClock())
    owner.lock.seize()
    owner.activate()
    store = EncryptedStore(SqlStore(owner.fence, SystemClock()), KeyRing([b"new"], "AES"))
    store.set_limits(UNLIMITED)
    found = store.recover()
    window = Window(9, found.remembered, KeyRing([b"new"]).mark_keys())
    assert window.look(b"foo", b"guid", found.channels[0]) == 1
    store.close()
    owner.close()
