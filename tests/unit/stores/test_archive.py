"""The archive script: what it is given, when it is started, and what happens when it fails."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk, ShuttableDisk
from ftstan.base.errors import FencedError
from ftstan.stores.file import upkeep
from ftstan.stores.file.archive import Archivist
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.interface import ChannelLimits
from tests.filenode import FileNode, Owner, simulated
from tests.lateness import LateError

if TYPE_CHECKING:
    from collections.abc import Callable

LIMITS = ChannelLimits(max_msgs=2, max_bytes=0)


def script(folder: Path, text: str) -> str:
    path = folder / "archive.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def node(folder: Path, program: str) -> FileNode:
    (folder / "store").mkdir(exist_ok=True)
    options = FileStoreOptions(slice_max_msgs=2, slice_archive_script=program)
    return FileNode(LocalDisk(), str(folder / "store"), options=options, limits=LIMITS)


def until(what: Callable[[], bool]) -> None:
    """Wait for a real process; how long it takes is not judged."""
    deadline = time.monotonic() + 60
    while not what():
        if time.monotonic() >= deadline:
            raise LateError("waited 60 s in vain for an archive script")
        time.sleep(0.01)


def running(n: FileNode) -> int:
    archivist = n.store._upkeep._archivist
    assert archivist is not None
    return archivist.running


def eventfds() -> int:
    """How many descriptors of this process wake threads."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum("eventfd" in os.readlink(link) for link in links)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in (folder / "store/foo").iterdir() if p.name.startswith("msgs."))


def test_the_script_gets_channel_data_and_index_of_a_removed_slice(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = script(
        tmp_path,
        f'printf "%s|" "$#" "$@" > {tmp_path}/seen; cp "$2" {tmp_path}/dat; rm "$2" "$3"; echo '
        "done",
    )
    n = node(tmp_path, program)
    n.put(b"a", b"b", b"c", b"d")
    first = (tmp_path / "store/foo/msgs.1.dat").read_bytes()
    n.tick()
    n.store.close()
    bak = f"{tmp_path}/store/foo/msgs.1"
    assert (tmp_path / "seen").read_text() == f"3|foo|{bak}.dat.bak|{bak}.idx.bak|"
    assert (tmp_path / "dat").read_bytes() == first
    assert names(tmp_path) == ["msgs.2.dat", "msgs.2.idx"]
    assert (
        f"Output of archive script for foo ({bak}.dat.bak and {bak}.idx.bak): done\n"
        in capfd.readouterr().err
    )


def test_the_paths_are_relative_when_the_directory_was_given_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "store").mkdir()
    options = FileStoreOptions(
        slice_max_msgs=2, slice_archive_script=script(tmp_path, 'echo "$2" > seen')
    )
    n = FileNode(LocalDisk(), "store", options=options, limits=LIMITS)
    n.put(b"a", b"b", b"c", b"d")
    n.tick()
    n.store.close()
    assert (tmp_path / "seen").read_text() == "store/foo/msgs.1.dat.bak\n"


def test_a_name_without_slash_is_searched_in_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path, f"echo ran > {tmp_path}/seen")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    n = node(tmp_path, "archive.sh")
    n.put(b"a", b"b", b"c", b"d")
    n.tick()
    n.store.close()
    assert (tmp_path / "seen").read_text() == "ran\n"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("os.eventfd", OSError(errno.EMFILE, "Too many open files")),
        ("threading.Thread.start", RuntimeError("can't start new thread")),
    ],
    ids=["descriptor", "thread"],
)
def test_a_host_without_a_thread_for_scripts_ends_no_server_and_is_asked_again_later(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
    error: Exception,
) -> None:
    def none(*_: object) -> int:
        raise error

    n = node(tmp_path, script(tmp_path, f'echo "$2" >> {tmp_path}/seen'))
    n.put(b"a", b"b", b"c", b"d", b"e", b"f")
    before = eventfds()
    with monkeypatch.context() as patch:
        patch.setattr(f"ftstan.stores.file.archive.{name}", none)
        n.tick()
        n.tick()
    assert running(n) == 0
    assert eventfds() == before
    # Told once for all of them, until they are due again.
    assert capfd.readouterr().err.count("no thread for it: ") == 1
    n.tick(5.0)
    n.store.close()
    assert (tmp_path / "seen").read_text().count(".dat.bak") == 2


@pytest.mark.parametrize(
    ("text", "why", "output"),
    [
        ("echo no; exit 3", "exit status 3", "no"),
        ("kill -9 $$", "signal: killed", ""),
    ],
)
def test_a_failed_script_is_reported_and_the_slice_stays(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, why: str, output: str
) -> None:
    program = script(tmp_path, text)
    n = node(tmp_path, program)
    n.put(b"a", b"b", b"c", b"d")
    n.tick()
    n.store.close()
    assert (
        f'Error invoking archive script "{program}": {why} (output={output})'
        in capfd.readouterr().err
    )
    assert names(tmp_path) == ["msgs.1.dat.bak", "msgs.1.idx.bak", "msgs.2.dat", "msgs.2.idx"]


def test_a_script_that_is_missing_or_may_not_be_run_is_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "plain"
    plain.write_text("not a program")
    for program, why in (
        (f"{tmp_path}/none", f"fork/exec {tmp_path}/none: no such file or directory"),
        (str(plain), f"fork/exec {plain}: permission denied"),
        (
            "no-such-program-anywhere",
            'exec: "no-such-program-anywhere": executable file not found in $PATH',
        ),
    ):
        folder = tmp_path / str(len(program))
        folder.mkdir()
        n = node(folder, program)
        n.put(b"a", b"b", b"c", b"d")
        n.tick()
        n.store.close()
        assert (
            f'Error invoking archive script "{program}": {why} (output=)' in capfd.readouterr().err
        )


def test_a_script_without_a_temporary_file_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def none() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    n = node(tmp_path, script(tmp_path, "rm $2 $3"))
    n.put(b"a", b"b", b"c", b"d")
    with monkeypatch.context() as patch:
        patch.setattr("ftstan.stores.file.archive.tempfile.TemporaryFile", none)
        n.tick()
        until(lambda: running(n) == 0)
    n.store.close()
    assert "no file for its output: Too many open files" in capfd.readouterr().err
    n = n.successor()
    n.tick()
    n.store.close()
    assert names(tmp_path) == ["msgs.2.dat", "msgs.2.idx"]


def test_a_script_whose_end_cannot_be_watched_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    n = node(tmp_path, script(tmp_path, "rm $2 $3"))
    monkeypatch.setattr("ftstan.stores.file.archive.os.pidfd_open", none)
    n.put(b"a", b"b", b"c", b"d")
    n.tick()
    until(lambda: running(n) == 0)
    n.store.close()
    assert names(tmp_path) == ["msgs.2.dat", "msgs.2.idx"]


def test_a_failed_script_is_tried_again_later_and_then_rests(tmp_path: Path) -> None:
    program = script(
        tmp_path, f'echo x >> {tmp_path}/runs; test "$(wc -l < {tmp_path}/runs)" -ge 2'
    )
    n = node(tmp_path, program)
    n.put(b"a", b"b", b"c", b"d")
    n.tick()
    until(lambda: not running(n))
    n.tick(4.9)
    assert not running(n)
    n.tick(0.2)
    until(lambda: not running(n))
    assert (tmp_path / "runs").read_text() == "x\nx\n"
    n.tick(100_000)
    n.store.close()
    assert (tmp_path / "runs").read_text() == "x\nx\n"


def test_a_slice_never_has_two_scripts_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    program = script(tmp_path, f"echo x >> {tmp_path}/runs; read line < {tmp_path}/gate")
    n = node(tmp_path, program)
    n.put(b"a", b"b", b"c", b"d")
    n.tick()
    for _ in range(5):
        n.tick(1000)
        assert running(n) == 1
    (tmp_path / "gate").write_text("go\n")
    n.store.close()
    assert (tmp_path / "runs").read_text() == "x\n"


def archivist(program: str) -> Archivist:
    return Archivist(program, ManualClock(), lambda: True)


def files(tmp_path: Path, count: int) -> list[tuple[str, str]]:
    """Slices that were set aside."""
    made = []
    for number in range(count):
        paths = tmp_path / f"msgs.{number}.dat", tmp_path / f"msgs.{number}.idx"
        for path in paths:
            path.touch()
        made.append((str(paths[0]), str(paths[1])))
    return made


def test_a_deleted_channel_takes_along_what_waits_and_not_what_runs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    program = script(tmp_path, f"read line < {tmp_path}/gate")
    a = archivist(program)
    first, second, third = files(tmp_path, 3)
    a.add("foo", *first)
    a.run_due(lambda: None)
    a.add("foo", *second)
    a.add("bar", *third)
    assert (a.running, a.waiting) == (1, 2)
    a.forget("foo")
    assert (a.running, a.waiting) == (1, 1)
    a.forget("bar")
    assert (a.running, a.waiting) == (1, 0)
    (tmp_path / "gate").write_text("go\n")
    a.close(60)
    assert (a.running, a.waiting) == (0, 0)


def test_only_so_many_scripts_run_at_the_same_time(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    program = script(tmp_path, f"read line < {tmp_path}/gate; echo x >> {tmp_path}/runs")
    a = archivist(program)
    for slice_files in files(tmp_path, 18):
        a.add("foo", *slice_files)
    confirms: list[None] = []
    a.run_due(lambda: confirms.append(None))
    a.run_due(lambda: confirms.append(None))
    assert (a.running, a.waiting, len(confirms)) == (16, 2, 16)
    with (tmp_path / "gate").open("w") as gate:
        gate.write("go\n" * 18)
        gate.flush()
        until(lambda: a.running == 0)
        a.run_due(lambda: confirms.append(None))
        a.close(60)
    assert a.waiting == 0
    assert (tmp_path / "runs").read_text() == "x\n" * 18


@pytest.mark.parametrize("why", ["no locks", "a link"])
def test_where_a_file_cannot_be_locked_the_script_gets_it_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    program = script(tmp_path, f'echo "$2" > {tmp_path}/seen')
    a = archivist(program)
    ((dat, idx),) = files(tmp_path, 1)
    if why == "a link":
        os.rename(dat, f"{dat}.there")
        os.symlink(f"{dat}.there", dat)
    else:

        def refuse(*_words: object) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "fcntl", refuse)
    before = len(os.listdir("/proc/self/fd"))
    a.add("foo", dat, idx)
    a.run_due(lambda: None)
    until(lambda: a.running == 0)
    assert (tmp_path / "seen").read_text() == f"{dat}\n"
    assert a.waiting == 0
    a.close(60)
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_closing_waits_for_a_script_that_runs(tmp_path: Path) -> None:
    program = script(tmp_path, f"sleep 0.3; echo done > {tmp_path}/seen")
    n = node(tmp_path, program)
    n.put(b"a", b"b", b"c", b"d")
    n.tick()
    n.store.close()
    assert (tmp_path / "seen").read_text() == "done\n"


def test_closing_does_not_wait_for_ever_and_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "gate")
    program = script(tmp_path, f"read line < {tmp_path}/gate")
    monkeypatch.setattr(upkeep, "_SCRIPT_PATIENCE_S", 0.01)
    n = node(tmp_path, program)
    n.put(b"a", b"b", b"c", b"d")
    n.tick()
    n.store.close()
    err = capfd.readouterr().err
    assert "Waiting for 1 archive script(s), 0.01s at most" in err
    assert 'Archive script for "foo" still runs' in err
    (tmp_path / "gate").write_text("go\n")
    archivist = n.store._upkeep._archivist
    assert archivist is not None
    assert archivist._runner is not None
    archivist._runner._thread.join(60)


def test_what_no_script_took_is_taken_at_the_next_start(tmp_path: Path) -> None:
    n = node(tmp_path, script(tmp_path, "exit 1"))
    n.put(b"a", b"b", b"c", b"d")
    n.tick()
    n.store.close()
    script(tmp_path, f'echo "$2" >> {tmp_path}/seen; rm "$2" "$3"')
    n = n.successor()
    n.tick()
    n.store.close()
    assert (tmp_path / "seen").read_text() == f"{tmp_path}/store/foo/msgs.1.dat.bak\n"
    assert names(tmp_path) == ["msgs.2.dat", "msgs.2.idx"]


def test_a_slice_that_the_original_server_left_half_renamed_is_completed_and_taken(
    tmp_path: Path,
) -> None:
    n = node(tmp_path, "")
    n.put(b"a", b"b", b"c", b"d")
    n.store.close()
    folder = tmp_path / "store/foo"
    os.rename(folder / "msgs.1.dat", folder / "msgs.1.dat.bak")
    n.options = replace(
        n.options, slice_archive_script=script(tmp_path, f'ls "$2" "$3" > {tmp_path}/seen')
    )
    n = n.successor()
    n.tick()
    n.store.close()
    assert len((tmp_path / "seen").read_text().splitlines()) == 2


def test_limits_at_a_start_give_slices_to_the_script_too(tmp_path: Path) -> None:
    n = node(tmp_path, script(tmp_path, f'echo "$2" >> {tmp_path}/seen'))
    n.limits = ChannelLimits(max_msgs=0, max_bytes=0)
    n = FileNode(n.disk, n.path, Owner(2), n.options, n.limits, n.clock)
    n.put(*(b"%d" % i for i in range(6)))
    n.store.close()
    n.limits = LIMITS
    n = n.successor()
    n.tick()
    n.store.close()
    assert len((tmp_path / "seen").read_text().splitlines()) == 2


@pytest.mark.parametrize("which", [0, 1])
def test_a_slice_that_cannot_be_renamed_is_kept_until_it_can(which: int) -> None:
    disk = simulated()
    n = FileNode(
        disk,
        options=FileStoreOptions(slice_max_msgs=2, slice_archive_script="none-there"),
        limits=LIMITS,
    )
    n.put(b"a", b"b", b"c", b"d")
    renames = 0

    def refuse(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        nonlocal renames
        if name == "rename" and str(arguments[-1]).endswith(".bak"):
            renames += 1
            if renames == which + 1:
                raise OSError(errno.EACCES, "Permission denied")

    disk.on_call = refuse
    n.tick()
    assert "msgs.1.dat" in disk.tree("/store/foo")
    assert n.sequences() == [3, 4]
    n.tick()
    tree = disk.tree("/store/foo")
    assert {"msgs.1.dat.bak", "msgs.1.idx.bak"} <= tree.keys()
    assert not {"msgs.1.dat", "msgs.1.idx"} & tree.keys()
    n.store.abandon()


@pytest.mark.parametrize("index_too", [True, False], ids=["both files", "the data only"])
@pytest.mark.parametrize("taken", [True, False], ids=["taken by its script", "waiting"])
def test_a_slice_that_a_former_owner_has_set_aside_late_does_not_keep_others_from_going(
    *, index_too: bool, taken: bool
) -> None:
    disk = simulated()
    n = FileNode(
        disk,
        options=FileStoreOptions(slice_max_msgs=2, slice_archive_script="none-there"),
        limits=LIMITS,
    )
    n.put(b"a", b"b", b"c", b"d")
    n.put(b"e", b"f")
    given: list[str] = []
    archivist = n.store._upkeep._archivist
    assert archivist is not None
    archivist.add = lambda _channel, dat, _idx: given.append(Path(dat).name)  # type: ignore[method-assign,assignment]
    dirfd = disk.open_dir("/store/foo")
    # The original renames the data first, and may stand still behind that.
    for name in ["msgs.1.dat", "msgs.1.idx"][: 2 if index_too else 1]:
        if taken:
            disk.unlink(dirfd, name)
        else:
            disk.rename(dirfd, name, f"{name}.bak")
    n.tick()
    tree = disk.tree("/store/foo")
    aside = {
        f"msgs.{number}.{kind}.bak"
        for number in ([2] if taken else [1, 2])
        for kind in ("dat", "idx")
    }
    assert {name for name in tree if name.startswith("msgs.")} == {
        "msgs.3.dat",
        "msgs.3.idx",
    } | aside
    assert sorted(given) == sorted(name for name in aside if name.endswith(".dat.bak"))
    n.store.abandon()


def test_a_fenced_owner_renames_nothing_and_starts_nothing() -> None:
    disk = simulated()
    n = FileNode(
        disk,
        options=FileStoreOptions(slice_max_msgs=2, slice_archive_script="none-there"),
        limits=LIMITS,
    )
    n.put(b"a", b"b", b"c", b"d")
    n.owner.fenced = True
    with pytest.raises(FencedError):
        n.tick()
    assert "msgs.1.dat" in disk.tree("/store/foo")


class LateOwner(Owner):
    """An owner to which something happens once the first slice has been set aside and its script is
    about to start.
    """

    folder: Path
    then: Callable[[], None]

    def confirm(self) -> None:
        super().confirm()
        if (self.folder / "store/foo/msgs.1.dat.bak").exists() and not (
            self.folder / "store/foo/msgs.1.dat"
        ).exists():
            self.then()


def late(folder: Path, disk: LocalDisk, then: Callable[[], None]) -> FileNode:
    (folder / "store").mkdir()
    owner = LateOwner()
    owner.folder = folder
    owner.then = then
    program = script(folder, f"echo ran > {folder}/seen")
    options = FileStoreOptions(slice_max_msgs=2, slice_archive_script=program)
    return FileNode(disk, str(folder / "store"), owner, options, LIMITS)


def test_no_script_is_started_after_the_server_was_shut(tmp_path: Path) -> None:
    disk = ShuttableDisk()
    n = late(tmp_path, disk, disk.shut)
    n.put(b"a", b"b", b"c", b"d")
    n.tick()
    until(lambda: not running(n))
    assert (tmp_path / "store/foo/msgs.1.dat.bak").exists()
    assert not (tmp_path / "seen").exists()
    n.store.abandon()


def test_a_server_that_is_fenced_when_the_thread_comes_to_the_job_starts_no_script(
    tmp_path: Path,
) -> None:
    owners: list[LateOwner] = []

    def overtake() -> None:
        # The confirm of the store's own thread was the last that was granted.
        owners[0].fenced = True

    n = late(tmp_path, LocalDisk(), overtake)
    assert isinstance(n.owner, LateOwner)
    owners.append(n.owner)
    n.put(b"a", b"b", b"c", b"d")
    n.tick()
    until(lambda: not running(n))
    assert (tmp_path / "store/foo/msgs.1.dat.bak").exists()
    assert not (tmp_path / "seen").exists()
    n.store.abandon()


def test_an_abandoned_store_starts_nothing_that_still_waits_in_the_thread(tmp_path: Path) -> None:
    entered = threading.Event()
    go = threading.Event()

    def wait() -> None:
        if threading.current_thread().name == "archive":
            entered.set()
            assert go.wait(60)

    n = late(tmp_path, LocalDisk(), wait)
    script(tmp_path, f"echo x >> {tmp_path}/seen")
    n.put(*(b"%d" % i for i in range(8)))
    n.tick()
    archivist = n.store._upkeep._archivist
    assert archivist is not None
    runner = archivist._runner
    assert runner is not None
    assert entered.wait(60)
    n.store.abandon()
    go.set()
    runner._thread.join(60)
    # Three slices were set aside; the turn of one of them had come before.
    assert [name for name in names(tmp_path) if name.endswith(".dat.bak")] == [
        f"msgs.{i}.dat.bak" for i in (1, 2, 3)
    ]
    assert (tmp_path / "seen").read_text() == "x\n"


def test_a_successor_waits_for_the_script_of_a_server_that_is_gone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "gate")
    n = node(
        tmp_path,
        script(tmp_path, f'echo x >> {tmp_path}/runs; read line < {tmp_path}/gate; rm "$2" "$3"'),
    )
    n.put(b"a", b"b", b"c", b"d")
    n.tick()
    until((tmp_path / "runs").exists)
    n.owner.fenced = True
    n.store.abandon()
    after = n.successor()
    after.tick()
    until(lambda: not running(after))
    assert (tmp_path / "runs").read_text() == "x\n"
    assert "The archive script of a former server still works on" in capfd.readouterr().err
    (tmp_path / "gate").write_text("go\n")
    until(lambda: names(tmp_path) == ["msgs.2.dat", "msgs.2.idx"])
    archivist = after.store._upkeep._archivist
    assert archivist is not None
    after.tick(10)
    until(lambda: not archivist.waiting)
    after.store.close()
    assert (tmp_path / "runs").read_text() == "x\n"


def test_what_the_script_of_a_dead_server_left_undone_is_given_to_the_next_one(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "gate")
    n = node(
        tmp_path,
        script(tmp_path, f"echo x >> {tmp_path}/runs; read line < {tmp_path}/gate; exit 1"),
    )
    n.put(b"a", b"b", b"c", b"d")
    n.tick()
    until((tmp_path / "runs").exists)
    n.store.abandon()
    after = n.successor()
    after.tick()
    until(lambda: not running(after))
    (tmp_path / "gate").write_text("go\n")
    archivist = after.store._upkeep._archivist
    former = n.store._upkeep._archivist
    assert archivist is not None
    assert former is not None
    assert former._runner is not None
    former._runner._thread.join(60)
    script(tmp_path, f'echo y >> {tmp_path}/runs; rm "$2" "$3"')
    after.tick(10)
    until(lambda: not archivist.waiting)
    after.store.close()
    assert (tmp_path / "runs").read_text() == "x\ny\n"


def test_what_a_former_owner_wrote_behind_its_seal_is_not_archived() -> None:
    disk = simulated()
    n = FileNode(
        disk,
        options=FileStoreOptions(slice_max_msgs=2, slice_archive_script="none-there"),
        limits=LIMITS,
    )
    n.put(b"a")
    disk.fail_next("fdatasync", errno.EIO)
    n.put(b"lost")
    n.put(b"b", b"c", b"d")
    n.tick()
    data = disk.tree("/store/foo")["msgs.1.dat.bak"]
    assert data is not None
    assert b"lost" not in data
    n.store.abandon()


def test_an_index_that_the_file_does_not_have_is_written_for_the_archive() -> None:
    disk = simulated()
    n = FileNode(
        disk,
        options=FileStoreOptions(slice_max_msgs=2, slice_archive_script="none-there"),
        limits=LIMITS,
    )
    n.put(b"a", b"b", b"c", b"d")
    whole = disk.tree("/store/foo")["msgs.1.idx"]
    n.store.abandon()
    disk = disk.crash(process_only=True)
    root = disk.open_dir("/store/foo")
    disk.unlink(root, "msgs.1.idx")
    n = n.successor(disk)
    n.tick()
    assert disk.tree("/store/foo")["msgs.1.idx.bak"] == whole
    n.store.abandon()
