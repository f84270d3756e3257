"""The store lock: OFD, on real files, against the record lock of original servers."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import subprocess
import sys
from typing import TYPE_CHECKING, NoReturn

import pytest
from portalocker.constants import LockFlags
from portalocker.exceptions import LockException

from ftstan.base.disk import LocalDisk
from ftstan.base.errors import FencedError, LockBusyError, LockFaultError, LockMissingError
from ftstan.ft.lock import LOCK_NAME, OfdLocker, StoreLock, is_held
from ftstan.ft.lockfaults import LockOutcome

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from portalocker.types import FileArgument

    from ftstan.base.disk import FileStat

# What an original server does at each attempt: open with truncation, then a classic record lock
# over the whole file.
ORIGINAL = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
try:
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("refused", flush=True)
else:
    print("granted", flush=True)
    sys.stdin.read()
"""


class Root:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk = LocalDisk()
        self.fd = self.disk.open_dir(str(path))
        self.locks: list[StoreLock] = []

    def lock(self) -> StoreLock:
        lock = StoreLock(self.disk, self.fd, str(self.path))
        self.locks.append(lock)
        return lock

    @property
    def file(self) -> Path:
        return self.path / LOCK_NAME

    @contextlib.contextmanager
    def original(self) -> Iterator[str]:
        """Another process that does what an original server does.

        Gives its answer and lets go at the end.
        """
        child = subprocess.Popen(
            [sys.executable, "-c", ORIGINAL, str(self.file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with child:
            assert child.stdout is not None
            yield child.stdout.readline().strip()
            child.communicate()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    root = Root(tmp_path)
    yield root
    for lock in root.locks:
        lock.release()
    root.disk.close(root.fd)


def test_one_of_two_gets_the_lock_and_the_other_after_its_release(root: Root) -> None:
    first = root.lock()
    second = root.lock()
    first.acquire()
    with pytest.raises(LockBusyError, match="held by another server"):
        second.acquire()
    assert (first.held, second.held) == (True, False)
    first.release()
    second.acquire()
    assert (first.held, second.held) == (False, True)


def test_acquiring_what_is_held_changes_nothing(root: Root) -> None:
    lock = root.lock()
    lock.acquire()
    lock.acquire()
    lock.verify()


def test_an_original_server_is_kept_out(root: Root) -> None:
    lock = root.lock()
    lock.acquire()
    with root.original() as answer:
        assert answer == "refused"
    lock.verify()


def test_an_original_server_keeps_us_out(root: Root) -> None:
    lock = root.lock()
    with root.original() as answer:
        assert answer == "granted"
        with pytest.raises(LockBusyError):
            lock.acquire()
    lock.acquire()


def test_the_lock_survives_another_open_and_close_of_the_file_in_this_process(root: Root) -> None:
    lock = root.lock()
    lock.acquire()
    os.close(os.open(root.file, os.O_RDWR))
    with root.original() as answer:
        assert answer == "refused"


def test_the_file_is_neither_truncated_nor_written_nor_removed(root: Root) -> None:
    root.file.write_bytes(b"kept")
    lock = root.lock()
    lock.acquire()
    lock.release()
    assert root.file.read_bytes() == b"kept"


def test_the_file_stays_open_between_attempts(root: Root) -> None:
    first = root.lock()
    second = root.lock()
    first.acquire()
    for _ in range(3):
        with pytest.raises(LockBusyError):
            second.acquire()
    opened = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    ]
    assert opened.count(str(root.file)) == 2


@pytest.mark.parametrize("byte", [0, 1, 1 << 40])
def test_every_byte_of_the_file_is_locked(root: Root, byte: int) -> None:
    """An original server locks the whole file, another tool perhaps one byte."""
    lock = root.lock()
    lock.acquire()
    with root.file.open("r+") as other:
        with pytest.raises(BlockingIOError):
            fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        lock.release()
        fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        with pytest.raises(LockBusyError):
            lock.acquire()


def test_an_error_without_a_number_is_told_as_one(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_words: object) -> NoReturn:
        raise OSError("Something Else")

    monkeypatch.setattr(root.disk, "open", refuse)
    with pytest.raises(LockFaultError, match=r"something else \(no errno\)"):
        root.lock().acquire()


def test_the_descriptor_is_not_inherited_by_a_child_program(root: Root) -> None:
    lock = root.lock()
    lock.acquire()
    out = subprocess.run(
        ["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, check=True, close_fds=False
    )
    assert "/proc/" in out.stdout
    assert LOCK_NAME not in out.stdout


@pytest.mark.parametrize("replaced", [False, True])
def test_a_holder_whose_lock_file_vanished_or_was_replaced_is_fenced(
    root: Root, replaced: bool
) -> None:
    lock = root.lock()
    lock.acquire()
    root.file.unlink()
    if replaced:
        root.file.touch()
    with pytest.raises(FencedError, match="replaced" if replaced else "removed"):
        lock.verify()


def test_a_lock_that_is_not_held_does_not_verify(root: Root) -> None:
    lock = root.lock()
    with pytest.raises(FencedError, match="not held"):
        lock.verify()


def test_a_standby_whose_open_file_was_removed_locks_the_new_one(root: Root) -> None:
    first = root.lock()
    second = root.lock()
    first.acquire()
    with pytest.raises(LockBusyError):
        second.acquire()
    root.file.unlink()
    first.release()
    second.acquire()
    second.verify()
    with root.original() as answer:
        assert answer == "refused"


def test_a_standby_on_a_removed_file_does_not_pass_the_holder_of_the_new_one(root: Root) -> None:
    old = root.lock()
    standby = root.lock()
    new = root.lock()
    old.acquire()
    with pytest.raises(LockBusyError):
        standby.acquire()
    root.file.unlink()
    new.acquire()
    old.release()
    with pytest.raises(LockBusyError):
        standby.acquire()


class RemovesOnGrant(OfdLocker):
    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def lock(self, file_obj: FileArgument, flags: LockFlags) -> None:
        super().lock(file_obj, flags)
        self.file.unlink()


class Fails(OfdLocker):
    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code

    def lock(self, file_obj: FileArgument, flags: LockFlags) -> None:
        error = OSError(self.code, os.strerror(self.code))
        raise LockException(error, str(error)) from error


def test_a_file_that_is_removed_again_and_again_is_a_fault_and_not_a_lock(root: Root) -> None:
    lock = StoreLock(root.disk, root.fd, str(root.path), RemovesOnGrant(root.file))
    with pytest.raises(LockFaultError, match="removed while it was being locked, twice") as caught:
        lock.acquire()
    assert not lock.held
    assert "the file must stay" in caught.value.hint


@pytest.mark.parametrize(
    ("code", "kind", "text", "advice"),
    [
        (errno.ENOLCK, LockOutcome.NO_LOCK_SERVICE, "no lock service", "NFSv4"),
        (errno.EOPNOTSUPP, LockOutcome.NO_LOCK_SERVICE, "no lock service", "NFSv4"),
        (errno.ENOSYS, LockOutcome.NO_LOCK_SERVICE, "no lock service", "NFSv4"),
        (
            errno.EINVAL,
            LockOutcome.NO_LOCK_SERVICE,
            "no lock service",
            "no open-file-description locks",
        ),
        (errno.EPERM, LockOutcome.PERMISSION, "may not lock", "read and write permission"),
        (errno.EROFS, LockOutcome.READ_ONLY, "read-only", "read-write"),
        (errno.ESTALE, LockOutcome.STALE, "no longer knows", "remount"),
        (errno.EIO, LockOutcome.IO, "the storage fails", "kernel log"),
        (errno.ETIMEDOUT, LockOutcome.IO, "the storage fails", "kernel log"),
        (errno.EMFILE, LockOutcome.TOO_MANY_FILES, "no more files", "of the server process"),
        (errno.ENFILE, LockOutcome.TOO_MANY_FILES, "no more files", "fs.file-max"),
        (errno.ENOSPC, LockOutcome.NO_SPACE, "lack of space", "free space"),
        (errno.EDQUOT, LockOutcome.NO_SPACE, "lack of space", "quota"),
        (errno.ENOENT, LockOutcome.MISSING, "not there", "mounted"),
        (errno.ENOTTY, LockOutcome.OTHER, "should not give", "check the storage"),
    ],
)
def test_a_lock_that_cannot_be_asked_for_is_counted_by_its_kind_and_names_the_errno_and_what_to_do(
    root: Root, code: int, kind: LockOutcome, text: str, advice: str
) -> None:
    lock = StoreLock(root.disk, root.fd, str(root.path), Fails(code))
    with pytest.raises(LockFaultError) as caught:
        lock.acquire()
    assert str(caught.value).startswith(
        f"lock {root.file}: {os.strerror(code).lower()} ({errno.errorcode[code]}): "
    )
    assert text in str(caught.value)
    assert advice in caught.value.hint
    assert {name: n for name, n in lock.counts.as_dict().items() if n} == {kind.value: 1}
    assert not lock.held


def test_a_lock_that_is_refused_by_permission_of_the_file_is_told_apart_from_a_busy_one(
    root: Root,
) -> None:
    """One errno, two meanings: EACCES from the open is a matter of rights, from the lock call it is
    a holder.
    """

    class NoRight(LocalDisk):
        def open(self, dirfd: int, name: str, flags: int, mode: int = 0o666) -> int:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    forbidden = StoreLock(NoRight(), root.fd, str(root.path))
    with pytest.raises(LockFaultError, match=r"^open .* permission denied \(EACCES\)"):
        forbidden.acquire()
    held = root.lock()
    busy = root.lock()
    held.acquire()
    with pytest.raises(LockBusyError):
        busy.acquire()
    assert (forbidden.counts[LockOutcome.PERMISSION], forbidden.counts[LockOutcome.BUSY]) == (1, 0)
    assert (busy.counts[LockOutcome.PERMISSION], busy.counts[LockOutcome.BUSY]) == (0, 1)
    assert held.counts[LockOutcome.GRANTED] == 1
    assert set(held.counts.as_dict()) == {outcome.value for outcome in LockOutcome}


def test_a_careful_attempt_makes_no_lock_file(root: Root) -> None:
    lock = root.lock()
    with pytest.raises(LockMissingError, match="ENOENT"):
        lock.acquire(create=False)
    assert not root.file.exists()
    lock.acquire()
    lock.release()
    lock.acquire(create=False)
    assert lock.held


def test_a_careful_attempt_on_a_removed_file_does_not_make_it_again(root: Root) -> None:
    holder = root.lock()
    standby = root.lock()
    holder.acquire()
    with pytest.raises(LockBusyError):
        standby.acquire()
    root.file.unlink()
    holder.release()
    with pytest.raises(LockMissingError):
        standby.acquire(create=False)
    assert not root.file.exists()
    assert not standby.held


@pytest.mark.parametrize("replaced", [False, True])
def test_a_standby_that_looks_again_is_not_kept_waiting_by_a_removed_file(
    root: Root, replaced: bool
) -> None:
    holder = root.lock()
    standby = root.lock()
    holder.acquire()
    with pytest.raises(LockBusyError):
        standby.acquire()
    assert not standby.renew()
    root.file.unlink()
    if replaced:
        root.file.touch()
    with pytest.raises(LockBusyError):
        standby.acquire()
    assert standby.renew()
    standby.acquire()
    standby.verify()


def test_a_holder_does_not_let_go_by_looking_again(root: Root) -> None:
    lock = root.lock()
    lock.acquire()
    root.file.unlink()
    assert not lock.renew()
    assert lock.held


def test_a_grant_that_cannot_be_compared_with_the_path_is_given_back(root: Root) -> None:
    class Stale(LocalDisk):
        def stat(self, dirfd: int, name: str) -> NoReturn:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    lock = StoreLock(Stale(), root.fd, str(root.path))
    with pytest.raises(LockFaultError, match="ESTALE"):
        lock.acquire()
    assert not lock.held
    # Not even by a descriptor that nobody remembers.
    root.lock().acquire()


def test_a_missing_directory_is_a_fault_with_advice(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    root = Root(folder)
    folder.rmdir()
    with pytest.raises(LockFaultError, match="ENOENT") as caught:
        root.lock().acquire()
    assert "mounted" in caught.value.hint
    root.disk.close(root.fd)


def test_only_an_exclusive_lock_without_waiting_is_offered(root: Root) -> None:
    with pytest.raises(ValueError, match="without waiting"):
        OfdLocker().lock(root.fd, LockFlags.EXCLUSIVE)


def test_a_platform_without_ofd_locks_is_refused_in_plain_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(fcntl, "F_OFD_SETLK")
    with pytest.raises(LockFaultError, match="no open-file-description locks"):
        OfdLocker()


@pytest.mark.parametrize("kind", ["pipe", "directory"])
def test_what_is_no_file_is_refused_at_once_and_named(root: Root, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(root.file)
    else:
        root.file.mkdir()
    lock = root.lock()
    with pytest.raises(LockFaultError, match=r"rootdir\.lck is no regular file") as caught:
        lock.acquire()
    assert "move it away" in caught.value.hint
    assert not lock.held
    with pytest.raises(LockFaultError, match=r"rootdir\.lck is no regular file"):
        is_held(root.disk, root.fd)


def test_a_reader_sees_whether_anybody_holds_the_lock_and_makes_no_file(root: Root) -> None:
    assert not is_held(root.disk, root.fd)
    assert not root.file.exists()
    lock = root.lock()
    lock.acquire()
    assert is_held(root.disk, root.fd)
    lock.release()
    assert not is_held(root.disk, root.fd)
    with root.original() as answer:
        assert answer == "granted"
        assert is_held(root.disk, root.fd)


class Refusing(LocalDisk):
    """Storage that refuses to say what is open."""

    refused = False

    def fstat(self, fd: int) -> FileStat:
        if self.refused:
            raise OSError(errno.ESTALE, "Stale File Handle")
        return super().fstat(fd)


def test_a_lock_file_that_storage_says_nothing_of_is_a_fault_and_leaves_nothing_open(
    root: Root,
) -> None:
    disk = Refusing()
    lock = StoreLock(disk, root.fd, str(root.path))
    lock.acquire()
    disk.refused = True
    with pytest.raises(FencedError) as caught:
        lock.verify()
    assert caught.value.text.startswith(
        f"the store lock cannot be verified: check {root.file}: stale file handle (ESTALE): "
    )
    assert caught.value.hint
    lock.release()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(LockFaultError, match="stale file handle") as fault:
        lock.acquire()
    assert fault.value.hint
    assert len(os.listdir("/proc/self/fd")) == before
    assert not lock.held


def test_who_only_looks_is_told_what_storage_refuses(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.file.touch()

    def refuse(*_words: object) -> NoReturn:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(LockFaultError) as caught:
        is_held(root.disk, root.fd)
    assert caught.value.text == f"{LOCK_NAME}: cannot ask for its holder: No locks available"
    assert caught.value.hint == "check the storage and the kernel log of this host"
    monkeypatch.delattr(fcntl, "F_OFD_GETLK")
    # Where nobody can be asked, nobody is seen.
    assert not is_held(root.disk, root.fd)
    assert len(os.listdir("/proc/self/fd")) == before
