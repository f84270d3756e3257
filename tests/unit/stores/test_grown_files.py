"""Files that have grown by zeros: no start reads all of them, and no other channel suffers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ftstan.base.disk import LocalDisk
from ftstan.base.errors import RecoveryError, StoreError
from ftstan.cli.ctl import main
from ftstan.ft import epoch
from ftstan.stores.file import stretch
from ftstan.stores.file.stretch import read_stretch
from tests.datastores import serve
from tests.unit.stores.test_irregular import start, store_at

if TYPE_CHECKING:
    from pathlib import Path

# Whoever reads a terabyte, or looks at each slot of one, does not end.
pytestmark = pytest.mark.timeout(120)

HUGE = 1 << 40


class CountingDisk(LocalDisk):
    """Counts the bytes that are read."""

    def __init__(self) -> None:
        self.read = 0

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        data = super().pread(fd, size, offset)
        self.read += len(data)
        return data


def grow(path: Path, size: int = HUGE) -> None:
    path.touch()
    os.truncate(path, size)


def put(path: Path, data: bytes, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.parametrize("stop", [True, False], ids=["clean stop", "kill"])
@pytest.mark.parametrize("name", ["msgs.1.dat", "msgs.1.idx", "subs.dat"])
def test_zeros_at_the_end_of_a_channels_file_are_no_damage_whatever_their_number(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, *, stop: bool
) -> None:
    store_at(tmp_path, stop=stop)
    grow(tmp_path / "foo" / name)
    node = start(tmp_path, 2)
    assert node.store.quarantined == []
    said = capfd.readouterr().err
    if name != "msgs.1.idx":
        assert f"foo/{name}" in said
        assert "ends with zeros" in said
    for channel in (b"foo", b"bar"):
        assert node.sequences(channel) == ([1, 2, 3] if stop else [2, 3])
        assert node.put(b"d", channel=channel) == {}
    node.store.close()
    node = start(tmp_path, 3)
    assert node.sequences(b"foo") == ([1, 2, 3, 4] if stop else [2, 3, 4])
    assert (tmp_path / "foo" / name).stat().st_size < 1 << 20


@pytest.mark.parametrize("name", ["msgs.1.dat", "msgs.1.idx", "subs.dat"])
def test_data_behind_a_long_run_of_zeros_quarantine_their_channel_and_stay(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    store_at(tmp_path, stop=False)
    path = tmp_path / "foo" / name
    grow(path)
    put(path, b"\x10\0\0\0somebody's", HUGE // 2)
    size = path.stat().st_size
    node = start(tmp_path, 2)
    assert node.store.quarantined == ["foo"]
    said = capfd.readouterr().err
    assert f"foo/{name}: data stand at offset {HUGE // 2} behind more zeros" in said
    assert node.put(b"d") != {}
    assert node.sequences(b"foo") == [2, 3]
    assert node.sequences(b"bar") == [2, 3]
    node.store.close()
    assert path.stat().st_size == size


def test_a_stray_slice_of_zeros_quarantines_its_channel(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store_at(tmp_path, stop=True)
    grow(tmp_path / "foo" / "msgs.99999.dat")
    node = start(tmp_path, 2)
    assert node.store.quarantined == ["foo"]
    said = capfd.readouterr().err
    assert "foo/msgs.99999.dat: unsupported file version: 0" in said
    assert f"{HUGE - 4} bytes at offset 4 cannot be read" in said
    assert node.sequences(b"foo") == [1, 2, 3]
    assert node.sequences(b"bar") == [1, 2, 3]


@pytest.mark.parametrize("name", ["ckpt.bin", "dedup.bin", "clients.dat"])
@pytest.mark.parametrize("before", [b"", b"\1\0\0\0"])
def test_a_grown_file_of_the_root_is_done_without_or_named(
    tmp_path: Path, name: str, before: bytes
) -> None:
    store_at(tmp_path, stop=True)
    (tmp_path / name).write_bytes(before)
    grow(tmp_path / name)
    if name == "clients.dat" and not before:
        with pytest.raises(RecoveryError, match=r'client file "clients\.dat": unsupported'):
            start(tmp_path, 2)
        return
    node = start(tmp_path, 2)
    assert node.store.quarantined == []
    assert node.sequences(b"foo") == [1, 2, 3]


def test_data_behind_zeros_in_clients_dat_refuse_the_start_by_name(tmp_path: Path) -> None:
    store_at(tmp_path, stop=True)
    path = tmp_path / "clients.dat"
    path.write_bytes(b"\1\0\0\0")
    grow(path)
    put(path, b"x", HUGE // 2)
    with pytest.raises(RecoveryError, match=r"clients\.dat: data stand at offset"):
        start(tmp_path, 2)


def test_a_grown_epoch_file_is_named_with_its_cure(tmp_path: Path) -> None:
    serve(tmp_path).stop()
    grow(tmp_path / epoch.EPOCH_NAME)
    root = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(StoreError, match=rf"ft\.epoch: it has {HUGE} bytes.*cut the zeros"):
            epoch.read_state(LocalDisk(), root)
    finally:
        os.close(root)


def test_verify_and_repair_end_and_say_the_same(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "s"
    store_at(root, stop=False)
    path = root / "foo" / "msgs.1.dat"
    grow(path)
    put(path, b"\x10\0\0\0somebody's", HUGE // 2)
    assert main(["store", "verify", str(root)]) == 1
    assert f"data stand at offset {HUGE // 2} behind more zeros" in capfd.readouterr().out
    assert main(["store", "repair", str(root), "--aside", str(tmp_path / "aside")]) == 0
    aside = tmp_path / "aside" / "foo" / "msgs.1.dat"
    assert aside.stat().st_size == HUGE
    assert aside.stat().st_blocks < 1 << 20
    node = start(root, 9)
    assert node.store.quarantined == []
    assert node.sequences(b"foo") == [2, 3]


def test_what_may_be_a_record_is_read_and_long_runs_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stretch, "LONG_RUN", 1 << 20)
    monkeypatch.setattr(stretch, "_WINDOW", 1 << 16)
    path = tmp_path / "file"
    disk = CountingDisk()
    for zeros, holes in ((1 << 19, True), (1 << 19, False), (1 << 22, True), (1 << 22, False)):
        path.write_bytes(b"a" * 100_000)
        grow(path, 100_000 + zeros)
        if not holes:
            put(path, bytes(zeros), 100_000)
        whole = path.read_bytes()
        with path.open("rb") as file:
            found = read_stretch(disk, file.fileno(), 10)
            assert whole[10:].startswith(found.data)
            assert found.end == len(whole)
            assert found.resumes == 0
            assert len(found.data) < 100_000 + (1 << 20) + (1 << 17)
        put(path, b"b", len(whole))
        disk.read = 0
        with path.open("rb") as file:
            found = read_stretch(disk, file.fileno(), 10)
            if zeros < 1 << 20:
                assert found.data == whole[10:] + b"b"
                assert found.resumes == 0
            else:
                assert whole[10:].startswith(found.data)
                assert len(whole) - (1 << 16) < found.resumes <= len(whole)
                assert not holes or disk.read < 1 << 21


@pytest.mark.parametrize(
    ("before", "why"),
    [
        (b"", "unsupported file version: 0"),
        (b"\1\0\0\0\5\0\0\0crc!ident", "incorrect file size, expected 17 bytes"),
    ],
)
def test_a_grown_server_file_is_named(tmp_path: Path, before: bytes, why: str) -> None:
    store_at(tmp_path, stop=True)
    (tmp_path / "server.dat").write_bytes(before)
    grow(tmp_path / "server.dat")
    with pytest.raises(RecoveryError, match=rf'server file "\S*server\.dat": {why}'):
        start(tmp_path, 2)
