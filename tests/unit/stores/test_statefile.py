"""State files under storage that refuses one call: what stands under the name then, what is said,
and with which file the owner goes on.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import FencedError, StoreError
from ftstan.stores.file.env import FileEnv, FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.state.statefile import (
    Replacement,
    Seen,
    StateFile,
    StateFileError,
    check_version,
    look_at,
    read_file,
    replace_all,
    replace_file,
)
from ftstan.stores.file.stretch import LONG_RUN, GrownError
from tests.filenode import Owner
from tests.sim.disk import SimDisk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.base.disk import FileStat

NAME = "subs.dat"
VERSION = records.VERSION


class Modes(SimDisk):
    """A disk whose files have owners, and which may refuse to give one away."""

    def __init__(self) -> None:
        super().__init__()
        self.owner = (0, 0)
        self.given: list[tuple[int, int]] = []
        self.refuses: OSError | None = None

    def stat(self, dirfd: int, name: str) -> FileStat:
        return super().stat(dirfd, name)._replace(uid=self.owner[0], gid=self.owner[1])

    def fchown(self, fd: int, uid: int, gid: int) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.given.append((uid, gid))
        super().fchown(fd, uid, gid)


class Folder:
    """A directory with a state file, and the one that keeps it."""

    def __init__(self, disk: SimDisk | None = None, *, asking: bool = False) -> None:
        self.disk = disk or SimDisk()
        self.disk.make_dirs("/store/foo")
        self.clock = ManualClock()
        self.owner = Owner()
        root = self.disk.open_dir("/store")
        self.env = FileEnv(
            *(self.disk, root, self.clock, FileStoreOptions(), self.owner, records.Crc()),
            asking=self.disk if asking else None,
        )
        self.fd = self.disk.open_dir("/store/foo")
        self.state = b"state"
        self.file = StateFile(self.env, lambda: self.fd, NAME, lambda: self.state, b"foo")

    @property
    def tree(self) -> dict[str, bytes | None]:
        return self.disk.tree("/store/foo")

    @property
    def data(self) -> bytes:
        return self.tree[NAME] or b""


@pytest.fixture
def folder() -> Iterator[Folder]:
    folder = Folder()
    yield folder
    folder.file.park()
    # The root and the directory.
    assert folder.disk.open_handles == 2


def refuse(folder: Folder, call: str, code: int = errno.EIO, times: int = 1) -> None:
    """Storage refuses that call, so often."""
    left = [times]

    def hook(_number: int, name: str, _arguments: tuple[object, ...]) -> None:
        if name == call and left[0]:
            left[0] -= 1
            raise OSError(code, os.strerror(code))

    folder.disk.on_call = hook


# ---- replacing
# --------------------------------------------------------------------------------------------------


def test_a_file_that_takes_the_place_of_another_has_its_mode_and_owner() -> None:
    disk = Modes()
    folder = Folder(disk)
    disk.add_tree("/store/foo", {NAME: b"old"})
    old = disk.open(folder.fd, NAME, os.O_RDWR)
    disk.fchmod(old, 0o604)
    disk.close(old)
    disk.owner = (7, 8)
    disk.close(replace_file(folder.env, folder.fd, NAME, b"new"))
    assert folder.tree == {NAME: b"new"}
    assert disk.stat(folder.fd, NAME).mode == 0o604
    assert disk.given == [(7, 8)]
    # Whoever may not give it away keeps it; what storage refuses otherwise is told.
    disk.refuses = PermissionError(errno.EPERM, "no")
    disk.close(replace_file(folder.env, folder.fd, NAME, b"newer"))
    assert folder.data == b"newer"
    disk.refuses = OSError(errno.EIO, "broken")
    with pytest.raises(OSError, match="broken"):
        replace_file(folder.env, folder.fd, NAME, b"newest")
    assert folder.tree == {NAME: b"newer"}


def test_a_file_of_our_mode_and_owner_is_given_nothing(folder: Folder) -> None:
    folder.disk.close(replace_file(folder.env, folder.fd, NAME, b"old"))
    folder.disk.log.clear()
    folder.disk.close(replace_file(folder.env, folder.fd, NAME, b"new"))
    assert not {"fchmod", "fchown"} & {line.split()[0] for line in folder.disk.log}


def test_what_an_earlier_attempt_left_is_in_nobodys_way(folder: Folder) -> None:
    temporary = folder.env.temporary(NAME)
    folder.disk.add_tree("/store/foo", {temporary: b"half of something that is longer"})
    folder.disk.close(replace_file(folder.env, folder.fd, NAME, b"new"))
    assert folder.tree == {NAME: b"new"}


@pytest.mark.parametrize("call", ["open", "stat", "pwrite", "fsync", "rename"])
def test_what_storage_refuses_leaves_the_old_file_and_nothing_else(
    folder: Folder, call: str
) -> None:
    folder.disk.add_tree("/store/foo", {NAME: b"old"})
    refuse(folder, call)
    with pytest.raises(OSError, match="Input/output error"):
        replace_file(folder.env, folder.fd, NAME, b"new")
    assert folder.tree == {NAME: b"old"}
    assert folder.disk.open_handles == 2


def test_a_temporary_that_cannot_be_removed_either_is_left(folder: Folder) -> None:
    refused = {"pwrite", "unlink"}

    def hook(_number: int, name: str, _arguments: tuple[object, ...]) -> None:
        if name in refused:
            raise OSError(errno.EROFS, "read-only")

    folder.disk.on_call = hook
    with pytest.raises(OSError, match="read-only"):
        replace_file(folder.env, folder.fd, NAME, b"new")
    assert folder.tree == {folder.env.temporary(NAME): b""}
    refused.clear()
    folder.disk.close(replace_file(folder.env, folder.fd, NAME, b"new"))
    assert folder.tree == {NAME: b"new"}


def two(folder: Folder) -> list[Replacement]:
    return [Replacement(folder.fd, name, b"new") for name in ("a.dat", "b.dat")]


def test_one_of_many_that_storage_refuses_is_the_only_one(folder: Folder) -> None:
    items = two(folder)
    refuse(folder, "pwrite")
    replace_all(folder.env, items)
    assert items[0].error is not None
    assert items[1].error is None
    assert folder.tree == {"b.dat": b"new"}
    assert folder.owner.confirms == 1
    folder.disk.close(items[1].fd)


def test_where_all_are_refused_nobody_is_asked_whose_the_store_is(folder: Folder) -> None:
    items = two(folder)
    refuse(folder, "fsync", times=2)
    replace_all(folder.env, items)
    assert all(item.error is not None for item in items)
    assert folder.owner.confirms == 0
    assert folder.tree == {}


def test_a_fenced_owner_changes_no_name_and_removes_nothing(folder: Folder) -> None:
    folder.disk.add_tree("/store/foo", {"a.dat": b"old"})
    folder.owner.fenced = True
    with pytest.raises(FencedError):
        replace_all(folder.env, two(folder))
    assert folder.tree == {
        "a.dat": b"old",
        folder.env.temporary("a.dat"): b"new",
        folder.env.temporary("b.dat"): b"new",
    }


def test_storage_that_does_not_say_whose_it_is_refuses_all_of_them(folder: Folder) -> None:
    folder.disk.add_tree("/store/foo", {"a.dat": b"old"})

    def confirm() -> None:
        raise OSError(errno.EIO, "no answer")

    folder.owner.confirm = confirm  # type: ignore[method-assign]
    items = two(folder)
    replace_all(folder.env, items)
    assert [str(item.error) for item in items] == ["[Errno 5] no answer"] * 2
    assert folder.tree == {"a.dat": b"old"}


# ---- one that is kept
# --------------------------------------------------------------------------------------------------


def test_records_are_appended_behind_the_state(folder: Folder) -> None:
    assert folder.file.append(b"one") is None
    assert (folder.data, folder.file.size) == (VERSION + b"stateone", 8)
    fd = folder.file.append(b"two")
    assert fd is not None
    assert folder.data == VERSION + b"stateonetwo"
    assert folder.file.unsynced() == fd
    folder.file.sync()
    assert folder.file.unsynced() is None
    # Closed in between, it is opened by its path, and asked whose it is.
    folder.file.park()
    folder.owner.confirms = 0
    folder.file.append(b"three")
    assert folder.owner.confirms == 1
    assert folder.data == VERSION + b"stateonetwothree"
    folder.file.synced()
    assert not folder.file.dirty


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_without_space_the_file_is_replaced_before_anything_else_is_written(
    folder: Folder, code: int
) -> None:
    folder.file.append(b"one")
    refuse(folder, "pwrite", code)
    with pytest.raises(OSError, match=os.strerror(code)):
        folder.file.append(b"two")
    assert not folder.file.replaced
    folder.state = b"later"
    assert folder.file.append(b"three") is None
    assert folder.data == VERSION + b"laterthree"


def test_any_other_error_ends_whoever_wrote(folder: Folder) -> None:
    folder.file.append(b"one")
    refuse(folder, "pwrite")
    with pytest.raises(StateFileError) as caught:
        folder.file.append(b"two")
    assert (caught.value.text, caught.value.hint) == (
        "subs.dat: Input/output error",
        "check the storage",
    )
    assert not folder.file.replaced


def test_what_could_not_be_synced_is_not_trusted_any_more(folder: Folder) -> None:
    folder.file.append(b"one")
    folder.file.append(b"two")
    refuse(folder, "fdatasync")
    with pytest.raises(OSError, match="Input/output error"):
        folder.file.sync()
    assert (folder.file.replaced, folder.file.dirty) == (False, False)
    assert folder.file.unsynced() is None


@pytest.mark.parametrize("keep", [False, True])
def test_what_was_refused_twice_is_not_tried_again_at_once(folder: Folder, *, keep: bool) -> None:
    folder.file.append(b"one")
    refuse(folder, "pwrite", times=2)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            folder.file.replace(b"two", keep=keep)
        # The old one is in its place: whoever wants to keep it goes on with it.
        assert folder.file.replaced is keep
    with pytest.raises(StoreError):
        folder.file.replace(b"two")
    if keep:
        folder.file.append(b"three")
        assert folder.data == VERSION + b"stateonethree"
    folder.clock.advance(60)
    folder.file.replace(b"four")
    assert folder.data == VERSION + b"statefour"


@pytest.mark.parametrize("call", ["rename", "fsync"])
def test_the_old_file_is_kept_only_where_it_has_its_name(folder: Folder, call: str) -> None:
    folder.file.append(b"one")
    folder.disk.fail_no_more()
    calls = [0]

    def hook(_number: int, name: str, _arguments: tuple[object, ...]) -> None:
        if name == call:
            calls[0] += 1
            # The second sync is that of the directory: the new file has the name by then.
            if calls[0] == (2 if call == "fsync" else 1):
                raise OSError(errno.EIO, "broken")

    folder.disk.on_call = hook
    with pytest.raises(OSError, match="broken"):
        folder.file.replace(b"two", keep=True)
    assert folder.file.replaced is (call == "rename")


def test_of_a_file_that_storage_does_not_find_nothing_is_kept(folder: Folder) -> None:
    folder.file.append(b"one")
    refused = {"pwrite", "stat"}

    def hook(_number: int, name: str, _arguments: tuple[object, ...]) -> None:
        if name in refused:
            raise OSError(errno.EIO, "broken")

    folder.disk.on_call = hook
    with pytest.raises(OSError, match="broken"):
        folder.file.replace(b"two", keep=True)
    assert not folder.file.replaced


def test_a_directory_that_cannot_be_opened_is_a_refusal_too(folder: Folder) -> None:
    def directory() -> int:
        raise OSError(errno.EMFILE, "too many")

    file = StateFile(folder.env, directory, NAME, lambda: b"", b"foo")
    for _ in range(2):
        with pytest.raises(OSError, match="too many"):
            file.replace()
    with pytest.raises(StoreError):
        file.replace()


def test_whether_another_file_has_the_name_is_seen(folder: Folder) -> None:
    assert not folder.file.is_displaced()
    folder.file.append(b"one")
    assert not folder.file.is_displaced()
    other = folder.disk.sibling()
    fd = other.open_dir("/store/foo")
    other.rename(fd, NAME, "aside")
    assert folder.file.is_displaced()
    other.close(other.open(fd, NAME, os.O_RDWR | os.O_CREAT))
    assert folder.file.is_displaced()
    folder.file.distrust()
    assert not folder.file.is_displaced()


@pytest.mark.parametrize("is_refused", [False, True])
def test_where_an_open_file_would_get_a_name_of_its_own_it_is_closed_before(
    *, is_refused: bool
) -> None:
    folder = Folder(asking=True)
    folder.file.append(b"one")
    folder.file.append(b"two")
    folder.disk.log.clear()
    if is_refused:
        refuse(folder, "fdatasync")
    folder.file.replace(b"three")
    calls = [line.split()[0] for line in folder.disk.log]
    # What it has is durable, or in the snapshot.
    assert calls.index("fdatasync") < calls.index("close") < calls.index("rename")
    assert folder.data == VERSION + b"statethree"
    assert folder.file.replaced
    folder.file.replace()
    assert folder.data == VERSION + b"state"


# ---- reading
# --------------------------------------------------------------------------------------------------


def test_a_file_is_read_as_far_as_it_was_when_it_was_seen(folder: Folder) -> None:
    assert read_file(folder.env, folder.fd, NAME) is None
    folder.file.append(b"one")
    seen = look_at(folder.env, folder.fd, NAME)
    assert seen.size == len(folder.data)
    folder.file.append(b"two")
    assert read_file(folder.env, folder.fd, NAME, seen) == VERSION + b"stateone"
    assert read_file(folder.env, folder.fd, NAME) == VERSION + b"stateonetwo"
    # Of another file all of it.
    other = Seen(seen.ino + 1, seen.size)
    assert read_file(folder.env, folder.fd, NAME, other) == VERSION + b"stateonetwo"


class Sparse(SimDisk):
    """A file that has grown by zeros, and may have data behind them."""

    behind = b""

    def fstat(self, fd: int) -> FileStat:
        found = super().fstat(fd)
        return found if found.is_dir else found._replace(size=9 << 20 | LONG_RUN * 2)

    def next_data(self, fd: int, offset: int) -> int:
        return max(offset, LONG_RUN + (8 << 20)) if self.behind else LONG_RUN * 3

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        end = LONG_RUN + (8 << 20)
        if offset < 8 << 20:
            return (b"x" * (8 << 20))[:size]
        if self.behind and offset == end:
            return self.behind
        return b""


def test_a_file_with_data_behind_more_zeros_than_any_record_holds_is_refused() -> None:
    disk = Sparse()
    folder = Folder(disk)
    disk.add_tree("/store/foo", {NAME: b"x"})
    found = read_file(folder.env, folder.fd, NAME)
    assert found is not None
    assert found.startswith(b"x" * (8 << 20))
    disk.behind = b"more"
    before = disk.open_handles
    with pytest.raises(GrownError) as caught:
        read_file(folder.env, folder.fd, NAME)
    assert caught.value.words == (
        f"data stand at offset {LONG_RUN + (8 << 20)} behind more zeros than any record holds"
    )
    assert disk.open_handles == before


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        (b"", "unable to verify file version: EOF"),
        (b"\1\0\0", "unable to verify file version: unexpected EOF"),
        (b"\2\0\0\0", "unsupported file version: 2 (supports [1..1])"),
        (b"\1\0\0\0", ""),
        (b"\1\0\0\0more", ""),
    ],
)
def test_what_is_wrong_with_a_version_is_said_in_the_originals_words(
    data: bytes, wrong: str
) -> None:
    assert check_version(data[:4]) == wrong
