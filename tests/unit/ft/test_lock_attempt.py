"""One attempt of a standby on a real directory: what it looks at, what it makes, and what it leaves
alone.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import FencedError, LockFaultError, StoreError
from ftstan.ft.epoch import EPOCH_NAME
from ftstan.ft.events import TryLock, TryResult
from ftstan.ft.lock import LOCK_NAME
from ftstan.ft.lock_attempt import attempt, see_store
from ftstan.ft.ownership import StoreOwner
from ftstan.ft.watch import WATCH_NAME, is_farewell

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Node = Callable[[str], StoreOwner]

POLL = TryLock()


def suspicious(expect: bytes | None = None) -> TryLock:
    return TryLock(suspicious=True, expect=expect)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def active(node: Node, server_id: str = "A") -> StoreOwner:
    owner = node(server_id)
    owner.try_lock()
    owner.activate()
    return owner


def store_id(owner: StoreOwner) -> bytes:
    return owner.activation.store_id


def test_a_poll_is_granted_what_is_free_and_shows_the_store_behind_the_lock(
    node: Node,
) -> None:
    a = active(node)
    b = node("B")
    expected = store_id(a)
    assert attempt(b, POLL).result is TryResult.BUSY
    a.release()
    done = attempt(b, POLL)
    assert (done.result, done.store_id) == (TryResult.GRANTED, expected)
    assert b.lock.held


def test_a_poll_makes_no_lock_file_and_suspicion_does(node: Node, store: Path) -> None:
    b = node("B")
    assert attempt(b, POLL).result is TryResult.BUSY
    assert list(store.iterdir()) == []
    assert attempt(b, suspicious()).result is TryResult.GRANTED
    assert (store / LOCK_NAME).exists()


def test_a_refusal_under_suspicion_names_the_holder_and_shows_its_watch_file(
    node: Node, store: Path
) -> None:
    a = active(node)
    b = node("B")
    done = attempt(b, suspicious(store_id(a)))
    assert (done.result, done.store_id, done.served) == (TryResult.BUSY, store_id(a), True)
    assert done.owner is not None
    assert (done.owner.server_id, done.owner.pid, done.owner.epoch) == ("A", os.getpid(), 1)
    assert b.holder == done.owner
    assert done.watch == b""
    (store / "ft.watch").write_bytes(b"7" * 4096)
    assert attempt(b, suspicious(store_id(a))).watch == b"7" * 4096
    assert attempt(b, POLL).owner is None


def test_under_suspicion_a_holder_on_a_removed_lock_file_is_passed(node: Node, store: Path) -> None:
    a = active(node)
    b = node("B")
    expected = store_id(a)
    assert attempt(b, POLL).result is TryResult.BUSY
    (store / LOCK_NAME).unlink()
    assert attempt(b, POLL).result is TryResult.BUSY
    assert attempt(b, suspicious(expected)).result is TryResult.GRANTED
    b.activate()
    with pytest.raises(FencedError):
        a.confirm()


def test_an_emptied_directory_is_left_empty(node: Node, store: Path) -> None:
    a = active(node)
    b = node("B")
    expected = store_id(a)
    assert attempt(b, POLL).result is TryResult.BUSY
    for entry in store.iterdir():
        entry.unlink()
    a.release()
    assert attempt(b, POLL).result is TryResult.BUSY
    done = attempt(b, suspicious(expected))
    assert (done.result, done.store_id) == (TryResult.NOT_ASKED, b"")
    assert list(store.iterdir()) == []
    assert not b.lock.held


@pytest.mark.parametrize("ask", ["poll", "suspicion"])
def test_a_grant_in_a_directory_that_the_path_does_not_name_any_more_is_given_back(
    node: Node, store: Path, tmp_path: Path, ask: str
) -> None:
    a = active(node)
    b = node("B")
    expected = store_id(a)
    assert attempt(b, POLL).result is TryResult.BUSY
    store.rename(tmp_path / "aside")
    store.mkdir()
    a.release()
    done = attempt(b, POLL if ask == "poll" else suspicious(expected))
    assert (done.result, done.store_id) == (TryResult.NOT_ASKED, b"")
    assert not b.lock.held
    assert list(store.iterdir()) == []
    # The next one is not kept out by it.
    c = StoreOwner(
        LocalDisk(), str(tmp_path / "aside"), server_id="C", clock=ManualClock(), in_group=True
    )
    c.try_lock()
    c.close()


def test_a_standby_follows_the_path_to_the_store_that_is_mounted_there_later(
    node: Node, store: Path, tmp_path: Path
) -> None:
    a = active(node)
    expected = store_id(a)
    a.release()
    store.rename(tmp_path / "share")
    b = node("B")
    assert see_store(b).store_id == b""
    store.rmdir()
    assert see_store(b).store_id == b""
    (tmp_path / "share").rename(store)
    seen = see_store(b)
    assert seen.store_id == expected
    assert seen.owner is not None
    assert attempt(b, suspicious(expected)).result is TryResult.GRANTED
    assert b.activate().epoch == 2


def test_a_missing_directory_is_a_fault_with_advice_where_nothing_is_expected(
    node: Node, store: Path
) -> None:
    b = node("B")
    store.rmdir()
    done = attempt(b, suspicious())
    assert done.result is TryResult.FAULT
    assert str(store) in done.error
    assert "mounted" in done.hint
    assert not store.exists()


def test_a_first_attempt_makes_nothing_in_a_directory_that_was_moved_away(
    node: Node, store: Path, tmp_path: Path
) -> None:
    b = node("B")
    store.rename(tmp_path / "aside")
    assert attempt(b, suspicious()).result is TryResult.FAULT
    assert list((tmp_path / "aside").iterdir()) == []


def test_where_an_original_server_was_heard_nothing_is_made_in_a_directory_that_nobody_served_from(
    node: Node, store: Path
) -> None:
    b = node("B")
    ask = TryLock(suspicious=True, served=True)
    done = attempt(b, ask)
    assert (done.result, done.served) == (TryResult.NOT_ASKED, False)
    assert list(store.iterdir()) == []
    assert not see_store(b).served
    (store / "server.dat").touch()
    assert see_store(b).served
    done = attempt(b, ask)
    assert (done.result, done.served) == (TryResult.GRANTED, True)


def test_an_epoch_file_that_cannot_be_read_is_a_fault_and_the_lock_is_given_back(
    node: Node, store: Path
) -> None:
    a = active(node)
    b = node("B")
    a.release()
    (store / EPOCH_NAME).unlink()
    (store / EPOCH_NAME).mkdir()
    for ask in (POLL, suspicious()):
        done = attempt(b, ask)
        assert done.result is TryResult.FAULT
        assert EPOCH_NAME in done.error
        assert not b.lock.held
    seen = see_store(b)
    assert seen.store_id is None
    assert EPOCH_NAME in seen.error


def test_a_handle_that_went_stale_is_opened_anew(
    node: Node, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = active(node)
    b = node("B")
    expected = store_id(a)
    old = b.root
    a.release()
    real = LocalDisk.fstat

    def stale(self: LocalDisk, fd: int) -> object:
        if fd == old:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(self, fd)

    monkeypatch.setattr(LocalDisk, "fstat", stale)
    assert see_store(b).store_id == expected
    assert b.root != old
    monkeypatch.undo()
    assert attempt(b, suspicious(expected)).result is TryResult.GRANTED


def test_an_owner_that_stole_the_store_is_confirmed_and_not_fenced_for_want_of_the_lock(
    node: Node, store: Path
) -> None:
    a = active(node)
    b = node("B")
    with pytest.raises(LockFaultError):
        b.activate()
    b.activate(without_lock=True)
    b.confirm()
    b.verify_lock()
    with pytest.raises(FencedError, match=r"superseded by epoch 2 of server B"):
        a.confirm()
    # The one that was stolen from still has the lock.
    assert not b.regain_lock()
    b.confirm()
    a.close()
    assert b.regain_lock()
    assert b.lock.held
    b.verify_lock()
    # From then on it is as with every owner.
    (store / LOCK_NAME).unlink()
    with pytest.raises(FencedError, match="removed"):
        b.verify_lock()


def test_a_stolen_store_can_be_left_and_taken_again(node: Node) -> None:
    a = active(node)
    b = node("B")
    b.activate(without_lock=True)
    b.release()
    a.close()
    assert attempt(b, suspicious()).result is TryResult.GRANTED
    assert b.activate().epoch == 3
    b.verify_lock()


def left_by(owner: StoreOwner, epoch: int) -> bool:
    return is_farewell(owner.read_watch() or b"", epoch)


def test_an_owner_that_leaves_without_the_lock_says_so_on_storage(node: Node, store: Path) -> None:
    a = active(node)
    b = node("B")
    (store / WATCH_NAME).write_bytes(b"a probe of its own")
    b.activate(without_lock=True)
    assert not left_by(a, 2)
    b.release()
    assert left_by(a, 2)
    done = attempt(node("C"), suspicious())
    assert done.result is TryResult.BUSY
    assert done.owner is not None
    assert is_farewell(done.watch or b"", done.owner.epoch)


def test_an_owner_that_leaves_with_its_lock_says_nothing_more(node: Node, store: Path) -> None:
    a = active(node)
    b = node("B")
    (store / WATCH_NAME).write_bytes(b"a probe of its own")
    b.activate(without_lock=True)
    a.close()
    assert b.regain_lock()
    b.release()
    assert (store / WATCH_NAME).read_bytes() == b"a probe of its own"


def test_an_owner_that_was_replaced_leaves_its_successors_file_alone(
    node: Node, store: Path
) -> None:
    _ = active(node)
    b = node("B")
    c = node("C")
    (store / WATCH_NAME).write_bytes(b"a probe of its successor")
    b.activate(without_lock=True)
    c.activate(without_lock=True)
    b.release()
    assert (store / WATCH_NAME).read_bytes() == b"a probe of its successor"


def test_an_owner_that_cannot_say_that_it_leaves_leaves_all_the_same(
    node: Node, store: Path
) -> None:
    a = active(node)
    b = node("B")
    b.activate(without_lock=True)
    (store / WATCH_NAME).mkdir()
    b.release()
    a.close()
    assert attempt(b, suspicious()).result is TryResult.GRANTED


def test_a_heartbeat_of_an_original_does_not_end_an_owner_without_lock(node: Node) -> None:
    a = active(node)
    b = node("B")
    b.activate(without_lock=True)
    with pytest.raises(StoreError, match="without its lock"):
        b.set_mixed(on=True)
    b.confirm()
    a.close()
    assert b.regain_lock()
    b.set_mixed(on=True)
    assert b.activation.ft_mixed


def test_closing_twice_leaves_alone_what_has_got_the_number_of_the_handle_since(
    node: Node, store: Path
) -> None:
    a = active(node)
    number = a.root
    a.close()
    other = os.open(store, os.O_RDONLY)
    os.dup2(other, number)
    a.close()
    os.fstat(number)
    os.close(number)
    if other != number:
        os.close(other)
