"""The simulated disk keeps POSIX's promises and no others: what these tests say is what crash tests
may rely on.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest

from ftstan.base.disk import Disk, LocalDisk
from tests.sim.disk import CrashMode, Killed, SimDisk

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    Hook = Callable[[int, str, tuple[object, ...]], None]

NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
POWER = [CrashMode.LOST, CrashMode.ORDERED, CrashMode.UNORDERED, CrashMode.KEPT]


@pytest.fixture
def disk() -> SimDisk:
    made = SimDisk()
    made.make_dirs("/store")
    return made


@pytest.fixture
def root(disk: SimDisk) -> int:
    return disk.open_dir("/store")


def durable_file(disk: SimDisk, root: int, name: str, data: bytes) -> int:
    fd = disk.open(root, name, NEW)
    disk.pwrite(fd, data, 0)
    disk.fsync(fd)
    disk.fsync(root)
    return fd


def outcomes(disk: SimDisk, mode: CrashMode, *, runs: int = 300) -> list[dict[str, bytes | None]]:
    return [disk.crash(Random(seed), mode).tree("/store") for seed in range(runs)]


def names_found(disk: SimDisk, mode: CrashMode) -> set[str]:
    return {"+".join(sorted(tree)) for tree in outcomes(disk, mode)}


def raised(code: int) -> AbstractContextManager[object]:
    return pytest.raises(OSError, match=f"Errno {code}")


# Data


def test_written_bytes_are_seen_at_once_and_by_other_processes(disk: SimDisk, root: int) -> None:
    fd = disk.open(root, "f", NEW)
    disk.pwrite(fd, b"hello", 3)
    other = disk.sibling()
    peer = other.open(other.open_dir("/store"), "f", os.O_RDONLY)
    assert other.pread(peer, 100, 0) == b"\0\0\0hello"
    assert other.pread(peer, 2, 3) == b"he"
    assert other.pread(peer, 2, 50) == b""


@pytest.mark.parametrize("mode", POWER)
def test_synced_data_under_a_synced_name_survives_every_power_cut(
    disk: SimDisk, root: int, mode: CrashMode
) -> None:
    durable_file(disk, root, "f", b"a" * 2000)
    assert all(tree == {"f": b"a" * 2000} for tree in outcomes(disk, mode, runs=50))


@pytest.mark.parametrize("sync", ["fsync", "fdatasync"])
def test_either_sync_makes_data_and_size_durable(disk: SimDisk, root: int, sync: str) -> None:
    fd = durable_file(disk, root, "f", b"a")
    disk.pwrite(fd, b"b" * 600, 1)
    getattr(disk, sync)(fd)
    assert outcomes(disk, CrashMode.UNORDERED, runs=50) == [{"f": b"a" + b"b" * 600}] * 50


def test_unsynced_data_may_be_lost_kept_or_torn_at_sectors_but_nowhere_else(
    disk: SimDisk, root: int
) -> None:
    fd = durable_file(disk, root, "f", b"a" * 512)
    disk.pwrite(fd, b"b" * 1536, 512)
    found = {tree["f"] for tree in outcomes(disk, CrashMode.UNORDERED)}
    lost = b"a" * 512
    kept = b"a" * 512 + b"b" * 1536
    assert {lost, kept} < found
    sectors = {
        bytes(data[i : i + 512])
        for data in found
        if data is not None
        for i in range(0, len(data), 512)
    }
    assert sectors == {b"a" * 512, b"b" * 512, bytes(512)}
    assert b"a" * 512 + b"b" * 512 + bytes(1024) in found, "torn in the middle of one write"
    assert b"a" * 512 + bytes(512) + b"b" * 1024 in found, "a later sector without an earlier one"


def test_a_later_write_may_survive_without_an_earlier_one(disk: SimDisk, root: int) -> None:
    fd = durable_file(disk, root, "f", b"a" * 1024)
    disk.pwrite(fd, b"b" * 512, 0)
    disk.pwrite(fd, b"c" * 512, 512)
    found = {tree["f"] for tree in outcomes(disk, CrashMode.ORDERED)}
    pairs = {b"a" * 1024, b"b" * 512 + b"a" * 512, b"a" * 512 + b"c" * 512, b"b" * 512 + b"c" * 512}
    assert found == pairs


def test_bytes_within_one_sector_are_never_torn(disk: SimDisk, root: int) -> None:
    fd = durable_file(disk, root, "f", b"a" * 512)
    disk.pwrite(fd, b"b" * 500, 6)
    found = {tree["f"] for tree in outcomes(disk, CrashMode.UNORDERED)}
    assert found == {b"a" * 512, b"a" * 6 + b"b" * 500 + b"a" * 6}


def test_a_cut_may_be_lost_but_old_bytes_never_come_back_behind_a_new_end(
    disk: SimDisk, root: int
) -> None:
    fd = durable_file(disk, root, "f", b"a" * 2048)
    disk.ftruncate(fd, 100)
    disk.pwrite(fd, b"b" * 512, 1024)
    found = {tree["f"] for tree in outcomes(disk, CrashMode.UNORDERED)}
    assert b"a" * 2048 in found
    cut = [data for data in found if data is not None and len(data) < 2048]
    assert cut
    assert all(data[100:1024].strip(b"\0") == b"" for data in cut)
    disk.fdatasync(fd)
    end = b"a" * 100 + bytes(924) + b"b" * 512
    assert outcomes(disk, CrashMode.UNORDERED, runs=20) == [{"f": end}] * 20


def test_a_crash_leaves_the_crashed_disk_as_it_was(disk: SimDisk, root: int) -> None:
    fd = durable_file(disk, root, "f", b"a")
    disk.pwrite(fd, b"b", 0)
    after = disk.crash(Random(1), CrashMode.LOST)
    handle = after.open(after.open_dir("/store"), "f", os.O_RDWR)
    after.pwrite(handle, b"z", 0)
    assert disk.tree("/store") == {"f": b"b"}


def test_what_a_power_cut_left_is_durable_from_then_on(disk: SimDisk, root: int) -> None:
    fd = durable_file(disk, root, "f", b"a" * 2000)
    disk.pwrite(fd, b"b" * 2000, 1000)
    disk.open(root, "g", NEW)
    once = disk.crash(Random(5), CrashMode.UNORDERED)
    assert all(once.crash(Random(s), CrashMode.UNORDERED).tree() == once.tree() for s in range(20))


def test_after_kill_9_everything_written_is_there_and_still_not_durable(
    disk: SimDisk, root: int
) -> None:
    fd = disk.open(root, "f", NEW)
    disk.pwrite(fd, b"x" * 700, 0)
    after = disk.crash(process_only=True)
    assert after.tree("/store") == {"f": b"x" * 700}
    assert after.open_handles == 0
    assert after.crash(Random(0), CrashMode.LOST).tree("/store") == {}


def test_permission_bits_and_owner_are_durable_after_fsync_only(disk: SimDisk, root: int) -> None:
    fd = durable_file(disk, root, "f", b"")
    disk.fchmod(fd, 0o600)
    disk.fchown(fd, 7, 8)
    disk.fdatasync(fd)

    def seen(after: SimDisk) -> tuple[int, int, int]:
        state = after.stat(after.open_dir("/store"), "f")
        return state.mode, state.uid, state.gid

    assert seen(disk.crash(Random(0), CrashMode.UNORDERED)) == (0o640, 0, 0)
    disk.fsync(fd)
    assert seen(disk.crash(Random(0), CrashMode.UNORDERED)) == (0o600, 7, 8)


# Names


def test_syncing_a_file_does_not_make_its_name_durable(disk: SimDisk, root: int) -> None:
    fd = disk.open(root, "f", NEW)
    disk.pwrite(fd, b"x", 0)
    disk.fsync(fd)
    assert names_found(disk, CrashMode.UNORDERED) == {"", "f"}
    assert names_found(disk, CrashMode.LOST) == {""}


def test_syncing_a_directory_does_not_make_the_data_of_its_files_durable(
    disk: SimDisk, root: int
) -> None:
    fd = disk.open(root, "f", NEW)
    disk.pwrite(fd, b"x", 0)
    disk.fsync(root)
    assert disk.crash(Random(0), CrashMode.LOST).tree("/store") == {"f": b""}


def test_an_unsynced_rename_happens_whole_or_not_at_all(disk: SimDisk, root: int) -> None:
    durable_file(disk, root, "new", b"new")
    durable_file(disk, root, "old", b"old")
    disk.rename(root, "new", "old")
    found = outcomes(disk, CrashMode.UNORDERED)
    assert {t["old"] for t in found} == {b"new", b"old"}
    assert all(t in ({"old": b"new"}, {"old": b"old", "new": b"new"}) for t in found)


@pytest.mark.parametrize("change", ["link", "unlink", "mkdir", "rmdir"])
def test_every_change_of_a_name_waits_for_the_directory(
    disk: SimDisk, root: int, change: str
) -> None:
    durable_file(disk, root, "f", b"1")
    disk.mkdir(root, "d")
    disk.fsync(root)
    expected = {
        "link": {"d+f", "d+f+g"},
        "unlink": {"d+f", "d"},
        "mkdir": {"d+f", "d+e+f"},
        "rmdir": {"d+f", "f"},
    }
    args = {"link": ("f", "g"), "unlink": ("f",), "mkdir": ("e",), "rmdir": ("d",)}
    getattr(disk, change)(root, *args[change])
    assert names_found(disk, CrashMode.ORDERED) == expected[change]
    disk.fsync(root)
    assert len(names_found(disk, CrashMode.UNORDERED)) == 1


def test_names_are_lost_in_order_or_in_any_order_as_the_mode_says(disk: SimDisk, root: int) -> None:
    for name in "abc":
        disk.mkdir(root, name)
    assert names_found(disk, CrashMode.ORDERED) == {"", "a", "a+b", "a+b+c"}
    assert names_found(disk, CrashMode.UNORDERED) == {
        "",
        "a",
        "b",
        "c",
        "a+b",
        "a+c",
        "b+c",
        "a+b+c",
    }
    assert disk.met["names-reordered"] > 0
    assert names_found(disk, CrashMode.KEPT) == {"a+b+c"}


def test_a_file_in_a_new_directory_needs_both_directories_synced(disk: SimDisk, root: int) -> None:
    disk.mkdir(root, "d")
    sub = disk.open_dir_at(root, "d")
    disk.fsync(disk.open(sub, "f", NEW))
    disk.fsync(sub)
    assert names_found(disk, CrashMode.UNORDERED) == {"", "d+d/f"}
    disk.fsync(root)
    assert names_found(disk, CrashMode.UNORDERED) == {"d+d/f"}


def test_an_unlinked_open_file_stays_readable_until_it_is_closed(disk: SimDisk, root: int) -> None:
    fd = durable_file(disk, root, "f", b"data")
    ino = disk.fstat(fd).ino
    disk.unlink(root, "f")
    assert disk.pread(fd, 10, 0) == b"data"
    assert disk.fstat(fd).nlink == 0
    other = disk.open(root, "f", NEW)
    assert disk.fstat(other).ino != ino
    disk.close(fd)
    assert disk.fstat(disk.open(root, "g", NEW)).ino == ino, (
        "numbers are used again, as on real file systems"
    )


def test_a_handle_follows_the_file_and_not_the_name(disk: SimDisk, root: int) -> None:
    old = durable_file(disk, root, "f", b"old")
    durable_file(disk, root, "tmp", b"new")
    disk.rename(root, "tmp", "f")
    disk.pwrite(old, b"OLD", 0)
    assert disk.tree("/store") == {"f": b"new"}


def test_two_names_share_one_file_and_renaming_one_onto_the_other_keeps_both(
    disk: SimDisk, root: int
) -> None:
    fd = durable_file(disk, root, "f", b"x")
    disk.link(root, "f", "g")
    disk.pwrite(fd, b"y", 0)
    assert disk.tree("/store") == {"f": b"y", "g": b"y"}
    assert disk.stat(root, "g").nlink == 2
    disk.rename(root, "f", "g")
    assert disk.tree("/store") == {"f": b"y", "g": b"y"}


def test_a_removed_directory_takes_no_new_names(disk: SimDisk, root: int) -> None:
    disk.mkdir(root, "d")
    sub = disk.open_dir_at(root, "d")
    disk.rmdir(root, "d")
    with raised(errno.ENOENT):
        disk.open(sub, "f", NEW)


# Errors are those of the real disk


def script(disk: Disk, path: str) -> list[object]:
    """Calls, right and wrong ones, with what each returned or raised."""
    seen: list[object] = []
    root = disk.open_dir(path)
    handles: dict[str, int] = {"root": root}

    def run(name: str, *args: object, keep: str = "") -> None:
        try:
            words = [handles[a[1:]] if isinstance(a, str) and a[:1] == "@" else a for a in args]
            result = getattr(disk, name)(*words)
        except OSError as error:
            seen.append((name, errno.errorcode[error.errno or 0]))
            return
        if keep:
            handles[keep] = result
            result = "handle"
        if name == "listdir":
            result = sorted(result)
        if name in {"stat", "fstat"}:
            result = (
                result.is_dir or result.size,
                result.mode,
                result.nlink if not result.is_dir else 0,
            )
        seen.append((name, result))

    run("open", "@root", "f", os.O_RDONLY)
    run("open", "@root", "f", NEW, 0o640, keep="f")
    run("open", "@root", "f", NEW)
    run("pwrite", "@f", b"hello", 2)
    run("pread", "@f", 10, 0)
    run("ftruncate", "@f", 4)
    run("stat", "@root", "f")
    run("stat", "@root", "nothing")
    run("fchmod", "@f", 0o600)
    run("fstat", "@f")
    run("mkdir", "@root", "d")
    run("mkdir", "@root", "d")
    run("open_dir_at", "@root", "d", keep="d")
    run("open_dir_at", "@root", "f")
    run("open_dir_at", "@root", "nothing")
    run("open", "@d", "inner", os.O_WRONLY | os.O_CREAT, keep="inner")
    run("pread", "@inner", 1, 0)
    run("open", "@root", "d", os.O_RDWR)
    run("open", "@root", "f", os.O_RDONLY | os.O_DIRECTORY)
    run("rmdir", "@root", "d")
    run("rmdir", "@root", "f")
    run("unlink", "@root", "d")
    run("unlink", "@root", "nothing")
    run("link", "@root", "f", "g")
    run("link", "@root", "f", "g")
    run("link", "@root", "nothing", "h")
    run("rename", "@root", "nothing", "h")
    run("rename", "@root", "f", "d")
    run("rename", "@root", "d", "f")
    run("open", "@root", "g", os.O_RDONLY, keep="ro")
    run("pwrite", "@ro", b"x", 0)
    run("ftruncate", "@ro", 0)
    run("open", "@root", "g", os.O_RDWR | os.O_TRUNC, keep="cut")
    run("fstat", "@ro")
    run("pread", "@root", 1, 0)
    run("mkdir", "@f", "x")
    run("pread", "@f", 1, -1)
    run("open", "@root", "n" * 256, NEW)
    run("open", "@root", "a", os.O_WRONLY | os.O_CREAT | os.O_APPEND, keep="append")
    run("pwrite", "@append", b"one", 0)
    run("pwrite", "@append", b"two", 0)
    run("stat", "@root", "a")
    run("listdir", "@root")
    run("fsync", "@root")
    run("fdatasync", "@f")
    for handle in list(handles.values()):
        disk.close(handle)
    run("close", "@f")
    run("fstat", "@f")
    run("fsync", "@root")
    return seen


def test_results_and_errors_are_those_of_the_real_disk(tmp_path: Path, disk: SimDisk) -> None:
    mask = os.umask(0o022)
    try:
        assert script(disk, "/store") == script(LocalDisk(), str(tmp_path))
    finally:
        os.umask(mask)


def test_a_path_where_one_name_belongs_is_refused_loudly(disk: SimDisk, root: int) -> None:
    for name in ("", ".", "..", "a/b", "/abs"):
        with pytest.raises(ValueError, match="single path component"):
            disk.stat(root, name)


def test_direct_access_is_refused_as_by_a_file_system_without_it(disk: SimDisk, root: int) -> None:
    with raised(errno.EINVAL):
        disk.open(root, "f", NEW | os.O_DIRECT)


# Faults


def test_the_call_with_the_given_number_fails_and_has_no_effect(disk: SimDisk, root: int) -> None:
    disk.fail_at(disk.calls + 2, errno.EIO)
    disk.mkdir(root, "a")
    with raised(errno.EIO):
        disk.mkdir(root, "b")
    disk.mkdir(root, "c")
    assert sorted(disk.tree("/store")) == ["a", "c"]
    assert disk.met["EIO mkdir"] == 1


def test_the_next_call_of_a_name_can_be_made_to_fail(disk: SimDisk, root: int) -> None:
    fd = disk.open(root, "f", NEW)
    disk.fail_next("fdatasync", errno.ESTALE)
    disk.pwrite(fd, b"x", 0)
    with raised(errno.ESTALE):
        disk.fdatasync(fd)
    disk.fdatasync(fd)
    assert disk.met["ESTALE fdatasync"] == 1


def test_a_failed_sync_is_reported_once_and_its_data_are_never_written(
    disk: SimDisk, root: int
) -> None:
    fd = durable_file(disk, root, "f", b"a" * 512)
    disk.pwrite(fd, b"b" * 512, 512)
    disk.fail_next("fdatasync", errno.EIO)
    with raised(errno.EIO):
        disk.fdatasync(fd)
    disk.fdatasync(fd)
    assert disk.pread(fd, 2000, 0) == b"a" * 512 + b"b" * 512, "the page cache still shows them"
    assert outcomes(disk, CrashMode.UNORDERED, runs=20) == [{"f": b"a" * 512}] * 20
    disk.pwrite(fd, b"c" * 512, 1024)
    disk.fdatasync(fd)
    hole = b"a" * 512 + bytes(512) + b"c" * 512
    assert outcomes(disk, CrashMode.UNORDERED, runs=20) == [{"f": hole}] * 20
    assert disk.met["sync-dropped"] == 1


def test_a_page_that_is_dirtied_again_takes_the_dropped_bytes_along(
    disk: SimDisk, root: int
) -> None:
    fd = durable_file(disk, root, "f", b"a" * 10)
    disk.pwrite(fd, b"b" * 10, 10)
    disk.fail_next("fsync", errno.EIO)
    with raised(errno.EIO):
        disk.fsync(fd)
    disk.pwrite(fd, b"c" * 10, 20)
    disk.fsync(fd)
    assert disk.crash(Random(0), CrashMode.LOST).tree("/store") == {
        "f": b"a" * 10 + b"b" * 10 + b"c" * 10
    }


def test_a_full_disk_takes_what_fits_and_then_refuses(disk: SimDisk, root: int) -> None:
    fd = disk.open(root, "f", NEW)
    disk.volume.space = 10
    disk.pwrite(fd, b"12345678", 0)
    with raised(errno.ENOSPC):
        disk.pwrite(fd, b"abcd", 8)
    assert disk.pread(fd, 100, 0) == b"12345678ab"
    disk.pwrite(fd, b"zz", 0)
    disk.ftruncate(fd, 4)
    disk.pwrite(fd, b"xy", 4)
    assert disk.met["no-space"] == 1
    disk.unlink(root, "f")
    disk.close(fd)
    assert disk.volume.space == 10


# Killing


def kill_at(number: int, written: int = 0) -> tuple[list[tuple[int, str]], Hook]:
    seen: list[tuple[int, str]] = []

    def hook(call: int, name: str, _: tuple[object, ...]) -> None:
        seen.append((call, name))
        if call == number:
            raise Killed(written)

    return seen, hook


def test_calls_are_numbered_named_and_logged(disk: SimDisk, root: int) -> None:
    seen, hook = kill_at(0)
    disk.on_call = hook
    fd = disk.open(root, "f", NEW)
    disk.pwrite(fd, b"abc", 5)
    disk.close(fd)
    assert seen == [(2, "open"), (3, "pwrite"), (4, "close")]
    assert disk.log[0] == "open_dir /store"
    assert disk.log[2:] == [f"pwrite {fd} 3 5", f"close {fd}"]
    assert disk.calls == 4


def test_a_killed_process_does_nothing_more_not_even_in_its_clean_up(
    disk: SimDisk, root: int
) -> None:
    fd = disk.open(root, "f", NEW)
    disk.on_call = kill_at(disk.calls + 1)[1]
    with pytest.raises(Killed):
        disk.pwrite(fd, b"x", 0)
    with pytest.raises(Killed):
        disk.unlink(root, "f")
    with pytest.raises(Killed):
        disk.close(fd)
    with pytest.raises(Killed):
        disk.pwrite(fd, b"y", 0)
    assert disk.crash(process_only=True).tree("/store") == {"f": b""}


def test_a_write_can_be_interrupted_in_the_middle(disk: SimDisk, root: int) -> None:
    fd = disk.open(root, "f", NEW)
    disk.on_call = kill_at(disk.calls + 1, written=3)[1]
    with pytest.raises(Killed):
        disk.pwrite(fd, b"abcdef", 0)
    assert disk.crash(process_only=True).tree("/store") == {"f": b"abc"}
    assert disk.met["writes-interrupted"] == 1


def test_killing_one_process_leaves_the_others_at_work(disk: SimDisk, root: int) -> None:
    fd = disk.open(root, "f", NEW)
    disk.pwrite(fd, b"abc", 0)
    other = disk.sibling()
    peer = other.open(other.open_dir("/store"), "f", os.O_RDWR)
    disk.kill()
    with pytest.raises(Killed):
        disk.fstat(fd)
    other.pwrite(peer, b"X", 0)
    assert other.tree("/store") == {"f": b"Xbc"}


def test_faults_and_losses_that_were_met_are_counted_over_crashes(disk: SimDisk, root: int) -> None:
    fd = durable_file(disk, root, "f", b"a" * 512)
    disk.pwrite(fd, b"b" * 4096, 512)
    outcomes(disk, CrashMode.UNORDERED, runs=100)
    disk.crash(process_only=True)
    kinds = {"data-lost", "data-kept", "data-torn", "data-reordered", "data-zeros-inside"}
    assert kinds <= set(disk.met)
    assert disk.met["power-cuts"] == 100
    assert disk.met["processes-killed"] == 1
    assert isinstance(disk.met, Counter)


def test_files_can_be_put_in_place_and_read_without_storage_calls(disk: SimDisk) -> None:
    tree: dict[str, bytes | None] = {"a": b"1", "c": None, "c/b": b"2"}
    disk.add_tree("/store/x", tree)
    assert disk.tree("/store/x") == tree
    assert disk.crash(Random(0), CrashMode.LOST).tree("/store/x") == tree
    assert disk.calls == 0


def test_names_are_listed_in_no_useful_order_but_always_the_same(disk: SimDisk, root: int) -> None:
    for name in ("a", "b", "c", "d", "e"):
        disk.mkdir(root, name)
    listed = disk.listdir(root)
    assert listed != sorted(listed)
    assert listed == disk.listdir(root)
    assert sorted(listed) == [(name, True) for name in "abcde"]
