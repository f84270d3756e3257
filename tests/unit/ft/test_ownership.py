"""The owner of a datastore directory beside its epochs: what it looks at, what it publishes, what
it says when storage refuses, and what it leaves open.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.admin.keys import KEY_NAME
from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import (
    ConfigError,
    FencedError,
    LockBusyError,
    LockFaultError,
    ReleasedError,
    StoreError,
)
from ftstan.ft.epoch import EPOCH_NAME
from ftstan.ft.epoch_records import Cause, Ending
from ftstan.ft.lock import LOCK_NAME
from ftstan.ft.ownership import StoreLook, StoreOwner
from ftstan.ft.watch import WATCH_NAME, Probe, decode_watch, is_farewell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ftstan.base.disk import FileStat
    from ftstan.ft.mounts import Mount

LOCAL = "36 35 8:1 / / rw - ext4 /dev/sda1 rw\n"
STORAGE = "check the storage and the kernel log of this host"


class Storage(LocalDisk):
    """A disk that notes which handles are open and refuses what the test names.

    ``refused``: what a call with that argument raises; ``called``: every call with its name or
    handle.
    """

    def __init__(self) -> None:
        self.handles: set[int] = set()
        self.refused: dict[tuple[str, str | int], OSError] = {}
        self.called: list[tuple[str, str | int]] = []

    def _pass(self, call: str, argument: str | int) -> None:
        self.called.append((call, argument))
        if error := self.refused.get((call, argument)):
            raise error

    def open_dir(self, path: str) -> int:
        self._pass("open_dir", path)
        return self._opened(super().open_dir(path))

    def open(self, dirfd: int, name: str, flags: int, mode: int = 0o640) -> int:
        self._pass("open", name)
        return self._opened(super().open(dirfd, name, flags, mode))

    def _opened(self, fd: int) -> int:
        self.handles.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.handles.discard(fd)
        super().close(fd)
        self._pass("close", "any")

    def fstat(self, fd: int) -> FileStat:
        self._pass("fstat", fd)
        return super().fstat(fd)

    def stat(self, dirfd: int, name: str) -> FileStat:
        self._pass("stat", name)
        return super().stat(dirfd, name)

    def listdir(self, dirfd: int) -> list[tuple[str, bool]]:
        self._pass("listdir", "any")
        return super().listdir(dirfd)

    def fdatasync(self, fd: int) -> None:
        self._pass("fdatasync", "any")
        super().fdatasync(fd)


def refusal(code: int = errno.EIO) -> OSError:
    return OSError(code, os.strerror(code))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


class Members:
    """Makes members of one directory; each has its own disk, all have one clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.made: list[StoreOwner] = []

    def __call__(self, server_id: str = "A", **more: Any) -> tuple[StoreOwner, Storage]:
        disk = Storage()
        words: dict[str, Any] = {"in_group": True, "mountinfo": LOCAL, "name": f"node-{server_id}"}
        owner = StoreOwner(
            disk, str(self.path), server_id=server_id, clock=self.clock, **words | more
        )
        self.made.append(owner)
        return owner, disk

    def active(self, server_id: str = "A", **more: Any) -> tuple[StoreOwner, Storage]:
        owner, disk = self(server_id, **more)
        owner.try_lock()
        owner.activate()
        return owner, disk


@pytest.fixture
def member(store: Path) -> Iterator[Members]:
    members = Members(store)
    yield members
    for owner in members.made:
        owner.close()


# ---- opening
# --------------------------------------------------------------------------------------------------


def test_who_has_just_opened_a_directory_owns_nothing_and_says_so(member: Members) -> None:
    owner, _ = member()
    assert owner.has_directory
    assert owner.name == "node-A"
    assert owner.ending is Ending.UNSAID
    assert (owner.present, owner.holder, owner.answered_at) == (None, None, None)
    # Even: nobody raises an epoch.
    assert owner.raises == 0
    assert owner.is_fit(1) is False
    assert not owner.lock.held
    for ask in (owner.confirm, owner.raise_epoch, lambda: owner.mixed, lambda: owner.identity):
        with pytest.raises(ReleasedError, match="the datastore is not ours"):
            ask()


@pytest.mark.parametrize("in_between", ["", "further/down/"])
def test_a_file_in_place_of_the_directory_is_named_with_what_to_do(
    tmp_path: Path, in_between: str
) -> None:
    (tmp_path / "file").touch()
    path = f"{tmp_path}/file/{in_between}".rstrip("/")
    with pytest.raises(StoreError) as caught:
        StoreOwner(Storage(), path, server_id="A", clock=ManualClock(), in_group=False)
    assert caught.value.text == (
        f"unable to create the root directory [{path}]: mkdir {tmp_path}/file: not a directory"
    )
    assert caught.value.hint == "give -dir a directory that this user may write"


@pytest.mark.parametrize(
    ("error", "why"),
    [(refusal(), "input/output error"), (OSError("A word of its own"), "a word of its own")],
)
def test_a_directory_that_cannot_be_opened_is_told_in_the_words_of_the_system(
    store: Path, error: OSError, why: str
) -> None:
    disk = Storage()
    disk.refused["open_dir", str(store)] = error
    with pytest.raises(StoreError) as caught:
        StoreOwner(disk, str(store), server_id="A", clock=ManualClock(), in_group=False)
    assert caught.value.text == (
        f"unable to create the root directory [{store}]: mkdir {store}: {why}"
    )


@pytest.mark.parametrize("error", [ConfigError("ft: no"), StoreError("ft: no")])
def test_a_directory_that_is_refused_is_not_left_open(store: Path, error: Exception) -> None:
    disk = Storage()
    asked: list[int] = []

    def judge(_mount: Mount, root: int) -> None:
        asked.append(root)
        raise error

    with pytest.raises(type(error)):
        StoreOwner(
            *(disk, str(store)),
            server_id="A",
            clock=ManualClock(),
            in_group=False,
            mountinfo=LOCAL,
            judge=judge,
        )
    assert len(asked) == 1
    assert disk.handles == set()


# ---- looking
# --------------------------------------------------------------------------------------------------


def test_a_look_tells_an_empty_directory_from_an_originals_store_and_from_one_of_ours(
    member: Members, store: Path
) -> None:
    b, _ = member("B")
    assert b.look() == StoreLook()
    (store / "server.dat").touch()
    assert b.look() == StoreLook(served=True)
    a, _ = member.active("A")
    record = a.activation.record()
    member.clock.advance(5)
    assert b.look() == StoreLook(record.store_id, record, served=True)
    assert (b.holder, b.answered_at) == (record, member.clock.mono())


def test_whoever_has_the_store_follows_no_path_and_says_that_it_leads_elsewhere(
    member: Members, store: Path
) -> None:
    a, _ = member("A")
    a.try_lock()
    store.rename(store.with_name("aside"))
    store.mkdir()
    root = a.root
    assert a.look() == StoreLook(elsewhere=True)
    assert (a.root, a.lock.held) == (root, True)
    # Without its lock the same.
    store.rmdir()
    store.with_name("aside").rename(store)
    b, _ = member("B")
    b.activate(without_lock=True)
    store.rename(store.with_name("aside"))
    store.mkdir()
    root = b.root
    assert b.look() == StoreLook(elsewhere=True)
    assert b.root == root


@pytest.mark.parametrize("there", ["nothing", "a file"])
def test_a_path_that_names_no_directory_leads_elsewhere_and_nobody_follows(
    member: Members, store: Path, there: str
) -> None:
    b, disk = member("B")
    root = b.root
    store.rename(store.with_name("aside"))
    if there == "a file":
        store.touch()
    assert b.look() == StoreLook(elsewhere=True)
    assert b.root == root
    assert disk.handles == {root}


def test_who_follows_the_path_lets_go_of_the_old_directory_and_of_its_lock_file(
    member: Members, store: Path
) -> None:
    a, _ = member("A")
    a.try_lock()
    b, disk = member("B")
    with pytest.raises(LockBusyError):
        b.try_lock()
    old = b.root
    assert len(disk.handles) == 2
    store.rename(store.with_name("aside"))
    store.mkdir()
    assert b.look() == StoreLook()
    assert os.path.samestat(os.fstat(b.root), os.stat(store))
    assert disk.handles == {b.root}
    assert old not in disk.handles
    # The lock of the new directory is free.
    b.try_lock()
    assert b.lock.held


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("open_dir", "datastore {}: input/output error"),
        ("fstat", "datastore {}: input/output error"),
        ("stat", "datastore {}: input/output error"),
    ],
)
def test_a_look_that_storage_refuses_names_the_datastore_and_leaves_nothing_open(
    member: Members, store: Path, call: str, text: str
) -> None:
    b, disk = member("B")
    arguments: dict[str, str | int] = {
        "open_dir": str(store),
        "fstat": b.root,
        "stat": "server.dat",
    }
    argument = arguments[call]
    disk.refused[call, argument] = refusal()
    with pytest.raises(StoreError) as caught:
        b.look()
    assert caught.value.text == text.format(store)
    assert caught.value.hint == STORAGE
    assert disk.handles == {b.root}
    disk.refused[call, argument] = OSError("Without A Number")
    with pytest.raises(StoreError, match="without a number"):
        b.look()


def test_a_new_directory_that_cannot_be_opened_is_told_and_not_followed(
    member: Members, store: Path
) -> None:
    b, disk = member("B")
    root = b.root
    real = disk.open_dir

    def vanish(path: str) -> int:
        disk.open_dir = refuse  # type: ignore[method-assign]
        raise FileNotFoundError(errno.ENOENT, "gone", path)

    def refuse(path: str) -> int:
        raise OSError(errno.EACCES, "Permission Denied", path)

    disk.open_dir = vanish  # type: ignore[method-assign]
    with pytest.raises(StoreError) as caught:
        b.look()
    assert caught.value.text == f"datastore {store}: permission denied"
    assert b.root == root
    disk.open_dir = real  # type: ignore[method-assign]
    assert b.look() == StoreLook()


def test_a_directory_that_a_start_would_refuse_is_not_followed_and_the_reason_is_told(
    member: Members, store: Path
) -> None:
    refused: list[Exception] = []

    def judge(_mount: Mount, _root: int) -> None:
        if refused:
            raise refused[0]

    b, disk = member("B", judge=judge)
    root = b.root
    store.rename(store.with_name("aside"))
    store.mkdir()
    for error in (
        ConfigError("ft: its mount loses writes", hint="mount it otherwise"),
        StoreError("its mount loses writes", hint="mount it otherwise"),
    ):
        refused[:] = [error]
        with pytest.raises(StoreError) as caught:
            b.look()
        assert caught.value.text == (
            f"{store} names another directory by now, in which this server does not go on: its "
            "mount loses writes"
        )
        assert caught.value.hint == "mount it otherwise"
        assert b.root == root
        assert disk.handles == {root}
    refused.clear()
    assert b.look() == StoreLook()
    assert b.root != root or not os.path.samestat(
        os.fstat(b.root), os.stat(store.with_name("aside"))
    )


def test_what_an_owner_rewrites_is_absent_or_unreadable_or_there(
    member: Members, store: Path
) -> None:
    a, disk = member.active("A")
    assert a.read_watch() == b""
    probe = Probe(disk, a.root, a, server_id="A", look=lambda: None)
    probe()
    data = a.read_watch()
    assert data == (store / WATCH_NAME).read_bytes()
    assert decode_watch(data) is not None
    probe.close()
    before = set(disk.handles)
    for error in (refusal(), PermissionError(errno.EACCES, "no")):
        disk.refused["open", WATCH_NAME] = error
        assert a.read_watch() is None
    disk.refused.clear()
    (store / WATCH_NAME).unlink()
    (store / WATCH_NAME).mkdir()
    assert a.read_watch() is None
    assert disk.handles == before


# ---- taking
# --------------------------------------------------------------------------------------------------


def test_a_lock_that_is_held_is_an_answer_of_storage_and_one_that_fails_is_none(
    member: Members,
) -> None:
    a, _ = member("A")
    b, disk = member("B")
    member.clock.advance(3)
    a.try_lock()
    assert a.answered_at == member.clock.mono()
    member.clock.advance(3)
    with pytest.raises(LockBusyError):
        b.try_lock()
    answered = b.answered_at
    assert answered == member.clock.mono()
    member.clock.advance(3)
    b.lock.release()
    disk.refused["open", LOCK_NAME] = refusal()
    with pytest.raises(LockFaultError):
        b.try_lock()
    assert b.answered_at == answered


def test_no_lock_file_is_made_unless_it_is_asked_for(member: Members, store: Path) -> None:
    b, _ = member("B")
    with pytest.raises(LockFaultError):
        b.try_lock(create=False)
    assert list(store.iterdir()) == []
    b.try_lock()
    assert [entry.name for entry in store.iterdir()] == [LOCK_NAME]


def test_an_activation_records_what_it_was_given(member: Members) -> None:
    a, _ = member("A", name="first")
    a.try_lock()
    first = a.activate(cause=Cause.FIRST_START)
    assert (first.cause, first.after, first.ft_mixed) == (Cause.FIRST_START, 0, False)
    a.ending = Ending.DRAIN
    member.clock.advance(7)
    ended = member.clock.wall_ns()
    a.close()
    b, _ = member("B", name="second")
    b.try_lock()
    second = b.activate(cause=Cause.LOCK_FREE, after=1, ft_mixed=True)
    assert b.present is second
    record = b.read_owner()
    assert record == second.record() == b.holder
    assert record is not None
    assert (record.cause, record.after, record.ft_mixed) == (Cause.LOCK_FREE, 1, True)
    assert (record.server_id, record.name) == ("B", "second")
    assert (record.left, record.left_ns) == (Ending.DRAIN, ended)
    assert b.identity == (2, second.nonce)
    assert b.predecessor == (1, first.nonce)
    assert (b.slice_base, b.ours_from) == (4096, 1)


def test_storage_that_answers_name_by_name_is_seen_to_answer(member: Members, store: Path) -> None:
    """The names of many channels may take minutes; whoever waits must not take that for silence."""
    a, disk = member("A")
    a.try_lock()
    # One after the other: the root, then each channel.
    for name in ("bar", "foo"):
        (store / name).mkdir()
        (store / name / "subs.dat").touch()
    (store / "server.dat").touch()
    seen: list[float | None] = []
    real = disk.listdir

    def slow(dirfd: int) -> list[tuple[str, bool]]:
        seen.append(a.answered_at)
        member.clock.advance(10)
        return real(dirfd)

    disk.listdir = slow  # type: ignore[method-assign]
    a.activate()
    # Claims, root, two channels, claims.
    assert seen == [1000.0, 1000.0, 1000.0, 1030.0, 1040.0]


def test_an_owner_that_goes_on_leaves_no_file_of_its_former_epoch_open(member: Members) -> None:
    a, disk = member.active("A")
    before = len(disk.handles)
    for _ in range(3):
        a.raise_epoch()
    assert len(disk.handles) == before
    assert a.raises == 6
    assert a.holder == a.activation.record()
    assert a.holder is not None
    assert (a.holder.epoch, a.holder.cause) == (4, Cause.RAISED)


def test_an_owner_that_takes_another_epoch_is_the_same_one(member: Members, store: Path) -> None:
    a, disk = member.active("A")
    handles = len(disk.handles)
    assert a.activate().epoch == 2
    assert len(disk.handles) == handles
    a.confirm()
    (store / LOCK_NAME).unlink()
    with pytest.raises(FencedError) as first:
        a.verify_lock()
    # What it has lost stays lost.
    a.activate(without_lock=True)
    with pytest.raises(FencedError) as later:
        a.confirm()
    assert later.value is first.value


def test_while_an_epoch_is_raised_it_is_told_and_afterwards_no_more(member: Members) -> None:
    a, disk = member.active("A")
    seen: list[int] = []
    real = disk.pwrite

    def write(fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        seen.append(a.raises)
        real(fd, data, offset)

    disk.pwrite = write  # type: ignore[method-assign]
    a.raise_epoch()
    assert set(seen) == {1}
    assert a.raises == 2
    a.set_mixed(on=True)
    assert a.holder is not None
    assert a.holder.cause is Cause.MIXED_SWITCHED
    seen.clear()
    disk.refused["open", "ft.claim.4"] = refusal()
    with pytest.raises(StoreError):
        a.raise_epoch()
    # The old one goes on.
    assert a.raises == 6
    a.confirm()


def test_a_confirm_is_an_answer_of_storage(member: Members) -> None:
    a, _ = member.active("A")
    member.clock.advance(9)
    a.confirm()
    assert a.answered_at == member.clock.mono()


def test_tidying_removes_the_claims_of_former_epochs_and_makes_the_key(
    member: Members, store: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    a, disk = member.active("A")
    a.raise_epoch()
    assert (store / "ft.claim.1").exists()
    disk.refused["stat", "ft.claim.1"] = refusal()
    a.tidy()
    # What is refused is told, and the rest is seen to.
    assert "nput/output error" in capfd.readouterr().err
    assert (store / "ft.claim.1").exists()
    assert a.read_keys().current is not None
    disk.refused.clear()
    a.tidy()
    assert not (store / "ft.claim.1").exists()
    (store / KEY_NAME).unlink()
    disk.refused["stat", KEY_NAME] = refusal()
    a.tidy()
    said = capfd.readouterr().err
    assert f"{KEY_NAME} cannot be made: Input/output error; check the storage" in said
    disk.refused.clear()
    member("B")[0].activate(without_lock=True)
    with pytest.raises(FencedError):
        a.tidy()


def test_a_rotated_key_counts_beside_the_former_one_until_its_time(member: Members) -> None:
    a, _ = member.active("A")
    a.tidy()
    former = a.read_keys().current
    keys = a.rotate_key(60)
    assert keys.current != former
    assert keys.old == former
    assert keys == a.read_keys()
    now = member.clock.wall_ns()
    assert former in keys.accepted(now + 59 * 10**9)
    assert former not in keys.accepted(now + 61 * 10**9)
    member("B")[0].activate(without_lock=True)
    with pytest.raises(FencedError):
        a.rotate_key(60)


def test_a_pause_is_kept_under_the_name_of_the_member(member: Members, store: Path) -> None:
    a, _ = member("A")
    b, _ = member("B")
    assert not a.is_paused()
    a.keep_pause("until later")
    assert (a.is_paused(), b.is_paused()) == (True, False)
    assert any(b"until later" in entry.read_bytes() for entry in store.iterdir())
    a.end_pause()
    assert not a.is_paused()


def test_the_newest_activations_are_read_newest_first(member: Members) -> None:
    a, _ = member.active("A")
    first = a.activation.record()
    a.raise_epoch()
    a.raise_epoch()
    assert [slot for slot, _ in a.read_records(9)] == [3, 2, 1]
    assert a.read_records(9)[2] == (1, first)
    assert [slot for slot, _ in a.read_records(2)] == [3, 2]


# ---- being fenced
# --------------------------------------------------------------------------------------------------


def taken(member: Members) -> tuple[StoreOwner, Storage]:
    """An owner from which another server has taken the store."""
    a, disk = member.active("A")
    member("B")[0].activate(without_lock=True)
    return a, disk


@pytest.mark.parametrize("ask", ["confirm", "confirm_anew", "raise_epoch"])
def test_the_first_reason_for_the_end_is_the_one_that_everybody_hears(
    member: Members, store: Path, ask: str
) -> None:
    a, _ = taken(member)
    with pytest.raises(FencedError, match="superseded by epoch 2") as first:
        getattr(a, ask)()
    (store / LOCK_NAME).unlink()
    for other in (a.confirm, a.confirm_anew, a.verify_lock, a.raise_epoch, lambda: a.activation):
        with pytest.raises(FencedError) as later:
            other()
        assert later.value is first.value
    # That it was, may still be asked.
    assert a.present is not None


def test_the_cause_of_a_refused_confirm_is_told_along(member: Members) -> None:
    a, disk = member.active("A")
    error = refusal()

    def pread(fd: int, size: int, offset: int) -> bytes:
        raise error

    disk.pread = pread  # type: ignore[method-assign]
    for ask in (a.confirm, a.confirm_anew):
        with pytest.raises(FencedError) as caught:
            ask()
        assert caught.value.__cause__ is error


def test_a_confirm_anew_ends_whoever_finds_another_epoch_file_by_the_name(
    member: Members, store: Path
) -> None:
    a, _ = member.active("A")
    a.confirm_anew()
    data = (store / EPOCH_NAME).read_bytes()
    os.link(store / EPOCH_NAME, store / "kept")
    (store / "copy").write_bytes(data)
    (store / "copy").rename(store / EPOCH_NAME)
    # The open file says nothing of it.
    a.confirm()
    # On another thread it ends nothing.
    with pytest.raises(FencedError, match="removed or replaced"):
        a.confirm_beside()
    a.confirm()
    with pytest.raises(FencedError, match="removed or replaced") as first:
        a.confirm_anew()
    with pytest.raises(FencedError) as later:
        a.confirm()
    assert later.value is first.value


def test_a_look_beside_the_owner_leaves_nothing_open(member: Members, store: Path) -> None:
    a, disk = member.active("A")
    before = set(disk.handles)
    a.confirm_beside()
    assert disk.handles == before
    (store / EPOCH_NAME).rename(store / "aside")
    (store / EPOCH_NAME).write_bytes((store / "aside").read_bytes())
    with pytest.raises(FencedError):
        a.confirm_beside()
    assert disk.handles == before


def test_in_a_mixed_group_who_has_lost_the_lock_is_over(member: Members, store: Path) -> None:
    a, _ = member.active("A")
    a.set_mixed(on=True)
    (store / LOCK_NAME).unlink()
    with pytest.raises(FencedError, match="removed") as first:
        a.confirm()
    (store / LOCK_NAME).touch()
    with pytest.raises(FencedError) as later:
        a.confirm()
    assert later.value is first.value


def test_nobody_becomes_mixed_behind_a_lock_that_is_gone(member: Members, store: Path) -> None:
    a, _ = member.active("A")
    # What is recorded already is not looked at.
    (store / LOCK_NAME).unlink()
    a.set_mixed(on=False)
    assert a.activation.epoch == 1
    with pytest.raises(FencedError):
        a.set_mixed(on=True)
    with pytest.raises(FencedError):
        a.confirm()


# ---- the place
# --------------------------------------------------------------------------------------------------


def copied(store: Path, *names: str) -> None:
    """A copy of the datastore with these files stands in its place."""
    aside = store.with_name("aside")
    store.rename(aside)
    store.mkdir()
    for name in names:
        data = (aside / name).read_bytes() if (aside / name).exists() else b""
        (store / name).write_bytes(data)


@pytest.mark.parametrize("name", [EPOCH_NAME, "server.dat"])
def test_another_datastore_in_its_place_ends_the_owner(
    member: Members, store: Path, name: str
) -> None:
    a, disk = member.active("A")
    before = set(disk.handles)
    copied(store, name)
    with pytest.raises(FencedError) as caught:
        a.verify_lock()
    assert caught.value.text == (
        f"{store}: another datastore stands in the place of the one that this server serves, so "
        "another server can own that one"
    )
    assert caught.value.hint == "stop every server before a datastore is moved, copied or restored"
    with pytest.raises(FencedError) as later:
        a.confirm()
    assert later.value is caught.value
    assert disk.handles == before


@pytest.mark.parametrize("what", ["missing", "empty", "a channel's file", "unreadable"])
def test_a_path_that_names_no_datastore_misleads_nobody(
    member: Members, store: Path, what: str
) -> None:
    a, disk = member.active("A")
    before = set(disk.handles)
    store.rename(store.with_name("aside"))
    if what != "missing":
        store.mkdir()
    if what == "a channel's file":
        (store / "subs.dat").touch()
    if what == "unreadable":
        (store / EPOCH_NAME).touch()
        disk.refused["open_dir", str(store)] = refusal()
    a.verify_lock()
    a.confirm()
    assert disk.handles == before


class OtherMount(Storage):
    """What is opened by the path lies on a mount with a device number of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.other: set[int] = set()
        self.moved = False

    def open_dir(self, path: str) -> int:
        fd = super().open_dir(path)
        if self.moved:
            self.other.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.other.discard(fd)
        super().close(fd)

    def fstat(self, fd: int) -> FileStat:
        found = super().fstat(fd)
        if fd not in self.other:
            return found
        return found._replace(dev=found.dev + 1)


def remounted(store: Path) -> tuple[StoreOwner, OtherMount, Probe]:
    """An owner whose share was unmounted lazily and mounted again, with the probe of its watch."""
    disk = OtherMount()
    owner = StoreOwner(
        *(disk, str(store)),
        server_id="A",
        clock=ManualClock(),
        in_group=True,
        mountinfo=LOCAL,
    )
    owner.try_lock()
    owner.activate()
    probe = Probe(disk, owner.root, owner, server_id="A", look=lambda: None)
    disk.moved = True
    return owner, disk, probe


@pytest.fixture
def remount(store: Path) -> Iterator[tuple[StoreOwner, OtherMount, Probe]]:
    owner, disk, probe = remounted(store)
    yield owner, disk, probe
    probe.close()
    owner.close()


def test_over_another_mount_the_directory_is_known_by_what_its_owner_writes(
    remount: tuple[StoreOwner, OtherMount, Probe], store: Path
) -> None:
    owner, _, probe = remount
    # Before the first probe nothing can be told.
    owner.verify_lock()
    for _ in range(3):
        probe()
    copied(store, EPOCH_NAME, WATCH_NAME)
    # A copy as of now: until the next probe has written.
    owner.verify_lock()
    with pytest.raises(FencedError, match="another datastore stands in the place"):
        probe()


@pytest.mark.parametrize("name", ["missing", "a directory", "torn", "of another server"])
def test_over_another_mount_a_datastore_without_its_owners_watch_is_another_one(
    remount: tuple[StoreOwner, OtherMount, Probe], store: Path, name: str
) -> None:
    owner, _, probe = remount
    probe()
    data = (store / WATCH_NAME).read_bytes()
    copied(store, EPOCH_NAME)
    if name == "a directory":
        (store / WATCH_NAME).mkdir()
    elif name == "torn":
        (store / WATCH_NAME).write_bytes(data[:-1])
    elif name == "of another server":
        found = decode_watch(data)
        assert found is not None
        other = type(found)(found.epoch + 1, "B", found.counter + 1)
        (store / WATCH_NAME).write_bytes(other.encode())
    with pytest.raises(FencedError, match="another datastore stands in the place"):
        owner.verify_lock()


def test_over_another_mount_a_watch_of_a_former_epoch_is_anothers(
    remount: tuple[StoreOwner, OtherMount, Probe], store: Path
) -> None:
    owner, _, probe = remount
    for _ in range(5):
        probe()
    former = (store / WATCH_NAME).read_bytes()
    owner.raise_epoch()
    probe.close()
    new = Probe(LocalDisk(), owner.root, owner, server_id="A", look=lambda: None)
    new()
    copied(store, EPOCH_NAME)
    (store / WATCH_NAME).write_bytes(former)
    with pytest.raises(FencedError, match="another datastore stands in the place"):
        owner.verify_lock()
    new.close()


def test_over_another_mount_nothing_is_proved_where_a_channel_has_the_name_of_the_watch(
    remount: tuple[StoreOwner, OtherMount, Probe], store: Path
) -> None:
    owner, _, _ = remount
    (store / WATCH_NAME).mkdir()
    with pytest.raises(FencedError, match="another datastore stands in the place"):
        owner.verify_lock()


# ---- leaving
# --------------------------------------------------------------------------------------------------


def test_an_owner_that_leaves_has_nothing_left_open(member: Members) -> None:
    a, disk = member.active("A")
    a.ending = Ending.SIGTERM
    a.release()
    assert disk.handles == {a.root}
    assert (a.present, a.lock.held) == (None, False)
    with pytest.raises(ReleasedError):
        a.confirm()
    a.close()
    assert disk.handles == set()


def test_the_watch_of_an_owner_without_lock_says_at_once_and_for_good_that_it_is_gone(
    member: Members, store: Path
) -> None:
    a, _ = member.active("A")
    b, disk = member("B")
    b.activate(without_lock=True)
    b.ending = Ending.DRAIN
    disk.called.clear()
    member.clock.advance(2)
    b.release()
    data = (store / WATCH_NAME).read_bytes()
    assert is_farewell(data, 2)
    found = decode_watch(data)
    assert found is not None
    assert (found.epoch, found.server_id, found.how) == (2, "B", Ending.DRAIN)
    assert found.at_ns == member.clock.wall_ns()
    # Others go by it.
    assert ("fdatasync", "any") in disk.called
    a.close()


def test_the_last_word_of_an_owner_with_its_lock_costs_no_sync(
    member: Members, store: Path
) -> None:
    a, disk = member.active("A")
    a.ending = Ending.SIGTERM
    disk.called.clear()
    a.release()
    assert not is_farewell((store / WATCH_NAME).read_bytes(), 1)
    assert ("fdatasync", "any") not in disk.called


def test_an_owner_that_does_not_say_why_it_leaves_writes_nothing(
    member: Members, store: Path
) -> None:
    a, _ = member.active("A")
    a.release()
    assert not (store / WATCH_NAME).exists()


def test_a_fenced_owner_makes_no_file_for_its_last_word(member: Members, store: Path) -> None:
    a, disk = taken(member)
    a.ending = Ending.SIGTERM
    a.release()
    assert not (store / WATCH_NAME).exists()
    assert disk.handles == {a.root}


def test_a_lock_that_is_regained_is_the_lock_from_then_on(member: Members, store: Path) -> None:
    a, _ = member.active("A")
    b, disk = member("B")
    assert not b.regain_lock()
    b.activate(without_lock=True)
    assert not b.regain_lock()
    disk.refused["open", LOCK_NAME] = refusal()
    b.lock.release()
    assert not b.regain_lock()
    disk.refused.clear()
    # The file that the former owner holds was removed: what the path names then is free.
    (store / LOCK_NAME).unlink()
    assert b.regain_lock()
    assert b.regain_lock()
    b.set_mixed(on=True)
    a.close()


def test_leaving_a_store_to_an_original_needs_storage_that_lists_it(member: Members) -> None:
    a, disk = member.active("A")
    disk.refused["listdir", "any"] = refusal()
    with pytest.raises(StoreError, match="input/output error") as caught:
        a.leave_to_original()
    assert caught.value.hint == STORAGE
    disk.refused.clear()
    a.confirm()
    assert a.activation.epoch == 1
    a.leave_to_original()
    assert a.activation.cause is Cause.TOOL
    assert a.ours_from == a.slice_base + 1
