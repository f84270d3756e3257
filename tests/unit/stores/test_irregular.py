"""Entries of a channel's directory that are no regular files: one channel is quarantined, nothing
is followed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import stat
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from ftstan.base.disk import LocalDisk
from ftstan.base.errors import QuarantineError
from ftstan.cli.ctl import main
from ftstan.ft.direct import DirectDisk
from ftstan.spark.pieces import SliceReader
from ftstan.spark.report import ReadingReport
from ftstan.spark.scan import SliceFile
from ftstan.stores.file import regular
from ftstan.stores.file.log import records
from ftstan.stores.file.regular import IrregularError, open_file
from ftstan.stores.interface import SubState
from tests.datastores import serve
from tests.filenode import FileNode, Owner

# A pipe that is waited for makes a test hang.
pytestmark = pytest.mark.timeout(60)

KINDS = ["directory", "symlink", "fifo", "socket"]
NAMES = [
    "msgs.1.dat",
    "msgs.1.idx",
    "msgs.9.dat",
    "msgs.9.idx",
    "subs.dat",
    "confirmed.bin",
    "purged.bin",
    "moved.bin",
]
#: A directory with the name of data that never were is ignored.
ENTRIES = [
    (name, kind) for name in NAMES for kind in KINDS if (name, kind) != ("msgs.9.dat", "directory")
]


def make(kind: str, path: Path, target: str = "nowhere") -> None:
    path.unlink(missing_ok=True)
    match kind:
        case "directory":
            path.mkdir()
        case "symlink":
            path.symlink_to(target)
        case "socket":
            with socket.socket(socket.AF_UNIX) as listening, chdir(path.parent):
                listening.bind(path.name)
        case _:
            os.mkfifo(path)


def store_at(path: Path, *, stop: bool) -> None:
    """Two channels with three messages and a durable.

    Where nobody stops cleanly, the first message is purged.
    """
    path.mkdir(exist_ok=True)
    node = FileNode(LocalDisk(), str(path))
    for channel in (b"foo", b"bar"):
        node.channel(channel).add_sub(SubState(1, b"me", durable_name=b"d", is_durable=True))
        node.put(b"a", b"b", b"c", channel=channel)
        if not stop:
            node.channel(channel).purge(1)
    node.tick()
    if stop:
        node.store.close()
    else:
        node.store.abandon()


def start(path: Path, epoch: int) -> FileNode:
    return FileNode(LocalDisk(), str(path), Owner(epoch))


@pytest.mark.parametrize("stop", [True, False], ids=["clean stop", "kill"])
@pytest.mark.parametrize(("name", "kind"), ENTRIES)
def test_an_entry_that_is_no_file_quarantines_its_channel_and_no_other(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, kind: str, *, stop: bool
) -> None:
    store_at(tmp_path, stop=stop)
    entry = tmp_path / "foo" / name
    make(kind, entry)
    before = os.lstat(entry)
    sequences = [1, 2, 3] if stop else [2, 3]
    for epoch in (2, 3):
        node = start(tmp_path, epoch)
        assert node.store.quarantined == ["foo"]
        what = "a directory" if kind == "directory" else "no regular file"
        assert f"foo/{name}: {what}" in capfd.readouterr().err
        assert node.sequences(b"bar") == sequences
        assert node.put(b"d") != {}
        assert node.channel().last == 3
        with pytest.raises(QuarantineError):
            node.store.delete_channel(b"foo")
        node.tick()
        node.store.close()
        after = os.lstat(entry)
        assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)
    # What stood in the way is gone: where nothing of the log was lost with it, all of it is served
    # again.
    if kind == "directory":
        entry.rmdir()
    else:
        entry.unlink()
    if name in ("msgs.9.dat", "msgs.9.idx"):
        node = start(tmp_path, 4)
        assert (node.store.quarantined, node.sequences()) == ([], sequences)
        assert node.put(b"d") == {}


@pytest.mark.parametrize(("name", "kind"), ENTRIES)
def test_tools_wait_for_nothing_name_the_entry_and_leave_it_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, kind: str
) -> None:
    path = tmp_path / "store"
    path.mkdir()
    served = serve(path)
    served.publish(b"foo", b"1", b"2")
    served.publish(b"bar", b"1")
    served.stop()
    make(kind, path / "foo" / name)
    before = stat.S_IFMT(os.lstat(path / "foo" / name).st_mode)
    for verb in ("ls", "du", "dump"):
        assert main(["store", verb, str(path)]) in (0, 1)
        assert "bar" in capsys.readouterr().out
    assert main(["store", "verify", str(path), "--output", "json"]) == 1
    findings: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["findings"]
    told = [f for f in findings if f["file"] == f"foo/{name}"]
    assert [f["kind"] for f in told if "move it out" in f["text"]] == ["damage"]
    assert {f["channel"] for f in findings} == {"foo"}
    status = main(["store", "repair", str(path), "--aside", str(tmp_path / "aside")])
    said = capsys.readouterr()
    if name == "confirmed.bin":
        # It may name the highest epoch: no tool takes one before it is gone.
        assert status == 2
        assert f"foo/{name} is " in said.err
    else:
        assert status in (0, 1)
        assert "left alone" in said.out
    for verb in ("compact", "handover"):
        assert main(["store", verb, str(path)]) != 0
        assert "foo" in "".join(capsys.readouterr())
    assert stat.S_IFMT(os.lstat(path / "foo" / name).st_mode) == before


@pytest.mark.parametrize(
    ("name", "stop"),
    [
        *(
            (name, stop)
            for name in ("msgs.1.dat", "msgs.1.idx", "subs.dat", "confirmed.bin")
            for stop in (True, False)
        ),
        ("purged.bin", False),
    ],
)
def test_a_file_that_was_moved_elsewhere_and_linked_to_is_not_touched(
    tmp_path: Path, name: str, *, stop: bool
) -> None:
    store = tmp_path / "store"
    elsewhere = tmp_path / name
    store_at(store, stop=stop)
    (store / "foo" / name).rename(elsewhere)
    (store / "foo" / name).symlink_to(elsewhere)
    before = elsewhere.read_bytes(), elsewhere.stat().st_mtime_ns
    for epoch in (2, 3):
        node = start(store, epoch)
        assert node.store.quarantined == ["foo"]
        node.tick()
        node.store.close()
    assert (elsewhere.read_bytes(), elsewhere.stat().st_mtime_ns) == before
    # Moved back, nothing is lost.
    (store / "foo" / name).unlink()
    elsewhere.rename(store / "foo" / name)
    node = start(store, 4)
    assert (node.store.quarantined, node.sequences()) == ([], [1, 2, 3] if stop else [2, 3])


def test_what_a_slice_ends_stays_hidden_when_its_data_were_moved_elsewhere(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    old = FileNode(LocalDisk(), str(store))
    old.put(b"a", b"b")
    new = start(store, 2)
    assert new.put(b"acked") == {}
    new.tick()
    # Paused between parse and write: it does not know yet.
    old.put(b"never acked")
    new.store.abandon()
    assert start(store, 3).sequences() == [1, 2, 3]
    (store / "foo" / "msgs.4097.dat").rename(tmp_path / "moved")
    (store / "foo" / "msgs.4097.dat").symlink_to(tmp_path / "moved")
    last = start(store, 4)
    assert last.store.quarantined == ["foo"]
    block = last.channel().read(1, 10, 1000)
    assert block is not None
    assert ([block.sequence(i) for i in range(len(block))], last.channel().last) == ([1, 2], 3)
    assert last.channel().read(3, 10, 1000) is None


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_put_there_while_the_channel_is_served_is_in_no_checkpoint(
    tmp_path: Path, kind: str
) -> None:
    store_at(tmp_path, stop=True)
    node = start(tmp_path, 2)
    make(kind, tmp_path / "foo" / "confirmed.bin")
    node.store.close()
    assert start(tmp_path, 3).store.quarantined == ["foo"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_deletion_that_was_cut_short_stops_at_an_index_that_is_no_file(
    tmp_path: Path, kind: str
) -> None:
    store_at(tmp_path, stop=True)

    class Dying(LocalDisk):
        def unlink(self, dirfd: int, name: str) -> None:
            if name.startswith("msgs."):
                raise OSError(errno.EIO, "storage")
            super().unlink(dirfd, name)

    node = FileNode(Dying(), str(tmp_path), Owner(2))
    node.store.delete_channel(b"foo")
    node.store.abandon()
    make(kind, tmp_path / "foo" / "msgs.1.idx")
    last = start(tmp_path, 3)
    assert last.sequences(b"bar") == [1, 2, 3]
    assert last.store.quarantined == ["foo"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_of_what_is_cut_goes_through_no_link_and_into_no_pipe(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    store = tmp_path / "store"
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    store_at(store, stop=True)
    data = (store / "foo" / "subs.dat").read_bytes()
    (store / "foo" / "subs.dat").write_bytes(data + b"torn")
    make(kind, store / "foo" / f"cut.2.subs.dat.{len(data)}", str(outside))
    node = start(store, 2)
    assert outside.read_bytes() == b"precious"
    # Without a copy nothing is cut, as on a full disk.
    assert f"is not cut at offset {len(data)}" in capfd.readouterr().err
    assert (store / "foo" / "subs.dat").read_bytes() == data + b"torn"
    assert (node.store.quarantined, node.sequences()) == ([], [1, 2, 3])


@pytest.mark.parametrize("kind", KINDS)
def test_spark_reads_the_data_where_an_index_is_no_file(tmp_path: Path, kind: str) -> None:
    store_at(tmp_path, stop=True)
    make(kind, tmp_path / "foo" / "msgs.1.idx")
    dirfd = os.open(tmp_path / "foo", os.O_RDONLY)
    file = SliceFile(1, (tmp_path / "foo" / "msgs.1.dat").stat().st_size)
    with SliceReader(dirfd, b"foo", file, records.Crc(), ReadingReport()) as reader:
        assert (reader.first()[0], reader.last()) == (1, 3)
    os.close(dirfd)


def test_a_directory_of_a_name_that_no_file_has_is_in_nobodys_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "store"
    store_at(path, stop=True)
    for name in ("msgs.9.dat", "msgs.old.dat", "msgs.01.dat", "msgs.old.idx", "notes"):
        (path / "foo" / name).mkdir()
    for epoch in (2, 3):
        node = start(path, epoch)
        assert (node.store.quarantined, node.sequences()) == ([], [1, 2, 3])
        node.store.close()
    capsys.readouterr()
    main(["store", "verify", str(path), "--output", "json"])
    assert [f for f in json.loads(capsys.readouterr().out)["findings"] if f["channel"]] == []
    files = json.loads((path / "ckpt.bin").read_bytes().splitlines()[-1].partition(b"\t")[2])[
        "files"
    ]
    assert sorted(files) == ["confirmed.bin", "msgs.1.dat", "msgs.1.idx", "subs.dat"]


# ---- opening
# --------------------------------------------------------------------------------------------------


def test_files_of_a_channel_that_are_there_are_opened_in_one_place() -> None:
    # What is made anew is made exclusively, or in a directory of its own; ``rootfiles`` looks at
    # the root's.
    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted(Path(regular.__file__).parent.rglob("*.py"))
        for line in path.read_text().splitlines()
        if re.search(r"\bO_(RDONLY|RDWR|WRONLY)\b", line) and ".open(" in line
        if "O_CREAT" not in line and "env.root" not in line and path.name != "archive.py"
    ]
    assert found == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("disk", [LocalDisk(), DirectDisk()], ids=["local", "direct"])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR, os.O_WRONLY])
def test_whatever_is_no_file_is_told_at_once(
    tmp_path: Path, disk: LocalDisk, kind: str, flags: int
) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    make(kind, tmp_path / "odd", "file")
    root = disk.open_dir(str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(IrregularError, match="where a server keeps a file"):
        open_file(disk, root, "odd", flags)
    assert len(os.listdir("/proc/self/fd")) == before
    disk.close(root)


def test_a_file_is_opened_and_an_absent_one_is_absent(tmp_path: Path) -> None:
    disk = LocalDisk()
    root = disk.open_dir(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        open_file(disk, root, "file")
    (tmp_path / "file").write_bytes(b"data")
    fd = open_file(disk, root, "file")
    assert disk.pread(fd, 10, 0) == b"data"
    disk.close(fd)
    disk.close(root)


class LeasedDisk(LocalDisk):
    """Another host holds a delegation of every file: whoever does not wait until it is given back
    is refused.
    """

    def open(self, dirfd: int, name: str, flags: int, mode: int = 0o640) -> int:
        if flags & os.O_NONBLOCK:
            raise BlockingIOError(errno.EWOULDBLOCK, "a lease is being broken", name)
        return super().open(dirfd, name, flags, mode)


def test_a_file_that_a_file_server_has_lent_out_is_waited_for(tmp_path: Path) -> None:
    store_at(tmp_path, stop=False)
    node = FileNode(LeasedDisk(), str(tmp_path), Owner(2))
    assert (node.store.quarantined, node.sequences()) == ([], [2, 3])
    os.mkfifo(tmp_path / "odd")
    with pytest.raises(IrregularError):
        open_file(node.disk, node.root, "odd")
