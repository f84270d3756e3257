"""``ftstanctl store`` beside what cannot be read: a damaged channel is named, the others shown, the
status tells.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.disk import LocalDisk
from ftstan.cli import store_change, store_look
from ftstan.stores.file.log import records
from ftstan.wire.block import MsgBlock
from tests.datastores import grow
from tests.unit.cli.store_tool import run

if TYPE_CHECKING:
    from pathlib import Path

VERSION = b"\1\0\0\0"
LOOKS = ("ls", "du", "dump", "verify")


class ClosedDisk(LocalDisk):
    """The directory of ``channel.0`` is another user's."""

    def open_dir_at(self, dirfd: int, name: str) -> int:
        if name == "channel.0":
            raise PermissionError(13, "Permission denied", name)
        return super().open_dir_at(dirfd, name)


@pytest.fixture
def datastore(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    grow(path, 2)
    return path


def findings(capsys: pytest.CaptureFixture[str], path: Path) -> tuple[int, list[dict[str, Any]]]:
    status, out, _ = run(capsys, "verify", str(path), "--output", "json")
    return status, json.loads(out)["findings"]


def typed(kind: int, payload: bytes) -> bytes:
    return struct.pack("<II", len(payload) | kind << 24, zlib.crc32(payload)) + payload


def put_first(path: Path, record: bytes) -> None:
    """A record in front of all others."""
    data = path.read_bytes()
    path.write_bytes(data[:4] + record + data[4:])


def channel_with(
    path: Path, sequence: int = 1, timestamp: int = 1_000_000_000, subs: bytes = b""
) -> None:
    """A channel of an original server with one message."""
    path.mkdir(parents=True)
    block = MsgBlock()
    block.append(sequence, os.fsencode(path.name), b"", b"data", timestamp)
    records.seal(block, records.Crc())
    (path / "msgs.1.dat").write_bytes(VERSION + bytes(memoryview(block)))
    (path / "subs.dat").write_bytes(VERSION + subs)


@pytest.mark.parametrize("verb", LOOKS)
def test_a_channel_of_another_user_is_named_and_the_others_are_shown(
    datastore: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(store_look, "LocalDisk", ClosedDisk)
    status, out, err = run(capsys, verb, str(datastore))
    assert status == 1
    assert (
        "channel.0: cannot be read: channel.0: Permission denied: give it to this user" in out + err
    )
    if verb != "verify":
        assert "channel.1" in out


def test_a_plan_of_repair_leaves_a_channel_alone_that_cannot_be_read(
    datastore: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_change, "LocalDisk", ClosedDisk)
    status, out, _ = run(capsys, "repair", "--dry-run", str(datastore))
    assert status == 1
    assert "channel.0: left alone: cannot be read" in out


@pytest.mark.parametrize("record", [typed(9, b"what"), typed(1, b"\xff\xff")])
def test_a_record_that_means_nothing_is_named_with_its_place(
    datastore: Path, capsys: pytest.CaptureFixture[str], record: bytes
) -> None:
    put_first(datastore / "channel.0" / "subs.dat", record)
    status, out, _ = run(capsys, "ls", str(datastore), "--output", "json")
    assert status == 1
    assert [(row["name"], row["subs"], row["state"]) for row in json.loads(out)["channels"]] == [
        ("channel.0", 1, "damaged"),
        ("channel.1", 1, ""),
    ]
    status, out, _ = run(capsys, "dump", str(datastore))
    rows = [json.loads(line) for line in out.splitlines()]
    assert status == 1
    assert [(row["file"], row["offset"]) for row in rows if row["kind"] == "bad"] == [
        ("channel.0/subs.dat", 4)
    ]
    assert {row["channel"] for row in rows if row["kind"] == "message"} == {
        "channel.0",
        "channel.1",
    }
    status, found = findings(capsys, datastore)
    assert status == 1
    assert [(f["file"], f["offset"]) for f in found if f["kind"] == "damage"] == [
        ("channel.0/subs.dat", 4)
    ]


def test_a_repair_ends_such_damage(datastore: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_first(datastore / "channel.0" / "subs.dat", typed(9, b"what"))
    assert run(capsys, "repair", str(datastore))[0] == 0
    status, out, _ = run(capsys, "ls", str(datastore), "--output", "json")
    assert status == 0
    assert [row["subs"] for row in json.loads(out)["channels"]] == [1, 1]


def test_such_a_record_at_the_end_is_what_a_start_cuts(
    datastore: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (datastore / "channel.0" / "subs.dat").open("ab") as file:
        file.write(typed(9, b"what"))
    status, found = findings(capsys, datastore)
    assert status == 0
    assert [f["kind"] for f in found if f["file"] == "channel.0/subs.dat"] == ["note"]


def test_a_client_record_that_means_nothing_hides_no_other_client(
    datastore: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(capsys, "dump", str(datastore))
    clients = out.count('"kind": "client"')
    assert clients
    put_first(datastore / "clients.dat", typed(7, b"what"))
    status, out, _ = run(capsys, "dump", str(datastore))
    assert (status, out.count('"kind": "client"')) == (1, clients)
    assert '"file": "clients.dat", "offset": 4, "why": "invalid client record type: 7"' in out


def test_a_pipe_in_the_place_of_a_root_file_is_damage_and_nobody_waits_for_it(
    datastore: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("server.dat", "clients.dat"):
        (datastore / name).unlink()
        os.mkfifo(datastore / name)
    status, out, _ = run(capsys, "dump", str(datastore))
    assert (status, out.count('"why": "no regular file"')) == (1, 2)
    assert findings(capsys, datastore)[0] == 1


@pytest.mark.parametrize("sequence", [1 << 63, (1 << 64) - 1])
def test_verify_names_a_sequence_that_nothing_can_follow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sequence: int
) -> None:
    channel_with(tmp_path / "s" / "foo", sequence)
    status, found = findings(capsys, tmp_path / "s")
    assert status == 1
    texts = [f["text"] for f in found if f["file"] == "foo/msgs.1.dat"]
    assert any(
        text.startswith(f"names sequence {sequence}: behind 2^63 - 1 there is no other")
        for text in texts
    )


def test_verify_names_a_subscription_id_that_nothing_can_follow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    removed = b"\x08" + b"\xff" * 9 + b"\x01"
    channel_with(tmp_path / "s" / "foo", subs=typed(3, removed))
    status, found = findings(capsys, tmp_path / "s")
    assert status == 1
    (text,) = [f["text"] for f in found if f["file"] == "foo/subs.dat"]
    assert text.startswith(f"names subscription id {(1 << 64) - 1}")


def test_the_last_number_that_is_followed_is_no_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    channel_with(tmp_path / "s" / "foo", 1, subs=typed(3, b"\x08" + b"\xff" * 8 + b"\x7f"))
    assert findings(capsys, tmp_path / "s")[0] == 0


def test_verify_notes_messages_whose_times_are_still_to_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    channel_with(tmp_path / "s" / "foo", 7, (1 << 63) - 1)
    channel_with(tmp_path / "s" / "bar", 7)
    status, found = findings(capsys, tmp_path / "s")
    assert status == 0
    (note,) = [f for f in found if "still to come" in f["text"]]
    assert (note["kind"], note["file"]) == ("note", "foo/msgs.1.dat")
    assert "the first one is sequence 7 with 2262-04-11 23:47:16Z" in note["text"]
