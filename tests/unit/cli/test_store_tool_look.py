"""``ftstanctl store ls, du, dump, verify``: what they show, that they change nothing, and how they
end.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.cli import ctl
from ftstan.wire import codec
from ftstan.wire.origin import Origin, encode_origin
from tests.datastores import grow, serve
from tests.unit.cli.store_tool import flip, run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Four activations, all killed; twelve messages in each of two channels."""
    path = tmp_path / "store"
    grow(path, 4)
    return path


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    status, out, _ = run(capsys, *words, "--output", "json")
    assert status == 0
    return json.loads(out)


def files(path: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file with its inode, its time of change and its bytes."""
    found = {}
    for folder, _, names in os.walk(path):
        for name in names:
            full = os.path.join(folder, name)
            with open(full, "rb") as f:
                found[full] = (os.stat(full).st_ino, os.stat(full).st_mtime_ns, f.read())
    return found


def test_ls_lists_the_channels(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = rows(capsys, "ls", str(store))
    assert listed["live"] is False
    assert [
        (c["name"], c["msgs"], c["first"], c["last"], c["slices"], c["subs"])
        for c in listed["channels"]
    ] == [
        ("channel.0", 12, 1, 12, 4, 1),
        ("channel.1", 12, 1, 12, 4, 1),
    ]
    status, out, _ = run(capsys, "ls", str(store))
    assert status == 0
    assert out.splitlines()[0].split() == [
        *("CHANNEL", "MSGS", "BYTES", "FIRST", "LAST", "SLICES", "SUBS"),
        *("LAST", "WRITTEN", "STATE"),
    ]


def test_ls_of_one_channel_lists_its_slices_and_subscriptions(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = rows(capsys, "ls", str(store), "--channel", "channel.1")
    assert [(s["slice"], s["first"], s["last"]) for s in listed["slices"]] == [
        (1, 1, 3),
        (4097, 4, 6),
        (8193, 7, 9),
        (12289, 10, 12),
    ]
    (sub,) = listed["subscriptions"]
    assert (sub["durable"], sub["last_sent"], sub["pending"]) == ("dur.1", 12, 8)


def test_du_says_where_the_bytes_are(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = rows(capsys, "du", str(store))
    for row in listed["channels"]:
        folder = store / row["channel"]
        assert row["total"] == sum(f.stat().st_size for f in folder.iterdir())
        assert row["messages"] == sum(f.stat().st_size for f in folder.glob("msgs.*.dat"))
        assert row["hidden"] == 0
    assert listed["total"] == sum(row["total"] for row in listed["channels"])


def test_bytes_behind_a_seal_are_hidden_and_no_damage(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open(store / "channel.0" / "msgs.1.dat", "ab") as f:
        f.write(b"what a former owner wrote late")
    assert rows(capsys, "du", str(store))["channels"][0]["hidden"] == 30
    assert run(capsys, "verify", str(store))[0] == 0


def test_dump_prints_what_a_start_would_serve(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(capsys, "dump", str(store))
    lines = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert [line["kind"] for line in lines[:2]] == ["server", "client"]
    assert sum(line["kind"] == "client" for line in lines) == 4
    assert sum(line["kind"] == "subscription" for line in lines) == 2
    messages = [line for line in lines if line["kind"] == "message"]
    assert [(m["channel"], m["sequence"]) for m in messages] == [
        (f"channel.{c}", n) for c in range(2) for n in range(1, 13)
    ]
    assert (messages[0]["reply"], base64.b64decode(messages[0]["data"])) == ("reply.to", b"0:0")


def test_dump_can_be_limited_to_a_channel_and_to_sequences(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(
        capsys, "dump", str(store), "--channel", "channel.1", "--from", "3", "--to", "8"
    )
    lines = [json.loads(line) for line in out.splitlines()]
    assert [m["sequence"] for m in lines if m["kind"] == "message"] == [3, 4, 5, 6, 7, 8]
    assert {m["channel"] for m in lines} == {"channel.1"}


def test_a_raw_dump_shows_hidden_records_too(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = (store / "channel.0" / "msgs.4097.dat").read_bytes()
    with open(store / "channel.0" / "msgs.1.dat", "ab") as f:
        f.write(data[4:])
    _, out, _ = run(capsys, "dump", str(store), "--raw", "--channel", "channel.0")
    lines = [json.loads(line) for line in out.splitlines()]
    first = [line for line in lines if line["file"] == "channel.0/msgs.1.dat"]
    assert [(line["sequence"], line["counts"]) for line in first] == [
        (n, n <= 3) for n in range(1, 7)
    ]
    assert codec.decode_msg_proto(base64.b64decode(first[0]["payload"]))[0] == 1
    assert next(line["type"] for line in lines if line["file"] == "channel.0/subs.dat") == 1


def test_verify_is_content_with_what_a_killed_server_leaves(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(capsys, "verify", str(store))
    assert (status, out.splitlines()[-1].endswith("clean")) == (0, True)


@pytest.mark.parametrize(
    ("file", "offset", "says"),
    [
        ("channel.0/msgs.1.dat", 30, "sequence 1: corrupted data"),
        ("channel.0/msgs.8193.dat", 100, "corrupted data"),
        ("channel.1/subs.dat", 20, "corrupted data"),
        ("clients.dat", 20, "corrupted data"),
        ("server.dat", 20, "corrupted data"),
        ("channel.0/msgs.1.dat", 0, "unsupported file version"),
    ],
)
def test_verify_finds_a_changed_byte_and_names_its_place(
    store: Path, capsys: pytest.CaptureFixture[str], file: str, offset: int, says: str
) -> None:
    flip(store / file, offset)
    status, out, _ = run(capsys, "verify", str(store), "--output", "json")
    assert status == 1
    found = json.loads(out)
    assert found["clean"] is False
    assert next(f["file"] for f in found["findings"] if f["kind"] == "damage") == file
    assert any(says in f["text"] for f in found["findings"])


def test_verify_finds_what_is_missing(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.remove(store / "channel.0" / "msgs.4097.dat")
    status, out, _ = run(capsys, "verify", str(store))
    assert status == 1
    assert "sequences 4 to 6 are missing" in out


def test_verify_finds_that_the_end_was_acknowledged_and_is_gone(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = store / "channel.0" / "msgs.12289.dat"
    os.truncate(data, data.stat().st_size - 40)
    status, out, _ = run(capsys, "verify", str(store))
    assert status == 1
    assert "the index names sequence 12, the data end at sequence 11" in out


def test_verify_does_not_call_an_acknowledged_end_that_has_changed_unacknowledged(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = store / "channel.0" / "msgs.12289.dat"
    flip(data, data.stat().st_size - 1)
    status, out, _ = run(capsys, "verify", str(store))
    assert status == 1
    assert "the index names sequence 12, the data end at sequence 11" in out
    assert "behind sequence 11 are no record: corrupted data" in out
    assert "never acknowledged" not in out


def test_an_unfinished_end_is_noted_and_no_damage(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open(store / "channel.0" / "msgs.12289.dat", "ab") as f:
        f.write(b"\x40\0\0\0\1\2\3\4 torn")
    with open(store / "channel.0" / "subs.dat", "ab") as f:
        f.write(b"\x40\0\0")
    status, out, _ = run(capsys, "verify", str(store))
    assert status == 0
    assert out.count("never acknowledged") == 2


def test_verify_finds_lost_epochs(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.remove(store / "ft.epoch")
    status, out, _ = run(capsys, "verify", str(store))
    assert status == 1
    assert "ft.epoch is missing" in out


def test_commands_that_look_change_nothing_and_create_nothing(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(store)
    for words in (["ls"], ["du"], ["verify"], ["dump"], ["dump", "--raw"], ["repair", "--dry-run"]):
        assert run(capsys, words[0], str(store), *words[1:])[0] == 0
    assert files(store) == before


def test_a_running_servers_store_is_shown_up_to_what_it_confirmed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "store"
    node = serve(path)
    node.publish(b"foo", b"a", b"b")
    node.tick()
    node.publish(b"foo", b"c")
    before = files(path)
    listed = rows(capsys, "ls", str(path))
    assert (listed["live"], listed["channels"][0]["last"]) == (True, 2)
    _, out, _ = run(capsys, "dump", str(path), "--channel", "foo")
    assert [json.loads(line)["sequence"] for line in out.splitlines()] == [1, 2]
    assert run(capsys, "verify", str(path))[0] == 0
    node.tick()
    assert rows(capsys, "ls", str(path))["channels"][0]["last"] == 3
    assert files(path).keys() == before.keys()
    node.publish(b"foo", b"d")
    node.stop()
    assert rows(capsys, "ls", str(path))["channels"][0]["last"] == 4


def test_what_cannot_be_read_is_one_line_a_hint_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "store").mkdir()
    serve(tmp_path / "store").stop()
    for words in (
        ["ls", str(tmp_path / "nothing")],
        ["verify", str(tmp_path / "empty")],
        ["dump", str(tmp_path / "store"), "--channel", "nobody"],
        ["handover", str(tmp_path / "nothing")],
        ["bogus"],
        [],
    ):
        status, out, err = run(capsys, *words)
        wrong_words = "nobody" in words or len(words) < 2
        assert (status, out, err.count("\n")) == (64 if wrong_words else 2, "", 2)
        assert "hint: " in err


def test_dump_has_columns_for_the_origins_of_dead_letters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = serve(tmp_path / "store")
    origin = Origin(b"orders", 42, b"pay", b"", b"me", 5, 1_764_253_563_000_000_000)
    node.publish(b"dead", b"poison", reply=encode_origin(origin))
    node.publish(b"dead", b"other")
    node.stop()
    store = str(tmp_path / "store")
    _, out, _ = run(capsys, "dump", store, "--output", "json")
    found = [row for row in map(json.loads, out.splitlines()) if row["kind"] == "message"]
    assert [row.get("origin") for row in found] == [
        {
            "channel": "orders",
            "sequence": 42,
            "durable": "pay",
            "queue": "",
            "client": "me",
            "deliveries": 5,
            "first_delivery": 1_764_253_563_000_000_000,
            "reply": "",
        },
        None,
    ]
    status, out, _ = run(capsys, "dump", store, "--output", "table")
    head, first, second = out.splitlines()
    assert status == 0
    assert head.lower().split()[-6:] == [
        "from",
        "sequence",
        "not",
        "acknowledged",
        "by",
        "deliveries",
    ]
    assert first.split()[-5:] == ["orders", "42", "durable", "pay", "5"]
    assert second.split()[-4:] == ["-", "-", "-", "-"]


def test_a_reader_that_goes_away_is_no_error(store: Path) -> None:
    command = f"{sys.executable} -m ftstan.cli.ctl store dump {store} | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_names_cannot_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = serve(tmp_path / "store")
    node.publish(b"\x1b[31mred \xff", b"a")
    node.stop()
    _, out, _ = run(capsys, "ls", str(tmp_path / "store"))
    assert "\x1b" not in out
    assert r"\x1b[31mred \udcff" in out


def test_the_datastore_is_found_in_words_then_in_the_environment_then_in_the_context(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    for name in ("FTSTAN_DIR", "FTSTAN_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    for verb in ("ls", "dump", "verify", "du", "repair", "compact", "handover"):
        status, out, err = run(capsys, verb)
        assert (status, out) == (64, ""), verb
        assert "hint: " in err, verb
        assert "FTSTAN_DIR" in err, verb
    there = run(capsys, "ls", str(store))
    assert there[0] == 0
    assert ctl.main(["context", "add", "here", "--dir", str(store)]) == 0
    assert run(capsys, "ls", "--context", "here") == there
    assert ctl.main(["context", "select", "here"]) == 0
    assert run(capsys, "ls") == there
    monkeypatch.setenv("FTSTAN_DIR", str(tmp_path / "none"))
    assert run(capsys, "ls")[0] == 2
    assert run(capsys, "ls", str(store)) == there


def test_verify_names_what_is_too_large_to_be_delivered_and_dump_gives_it_as_it_is(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def notes(*words: str) -> list[str]:
        status, out, _ = run(capsys, "verify", str(store), "--channel", "channel.1", *words)
        assert status == 0
        return [line for line in out.splitlines() if line.startswith("note: ")]

    assert notes() == []
    sizes = {}
    for line in run(capsys, "dump", str(store), "--channel", "channel.1")[1].splitlines():
        row = json.loads(line)
        if row["kind"] == "message":
            fields = (row["reply"].encode(), base64.b64decode(row["data"]), row["timestamp"])
            sizes[row["sequence"]] = len(
                codec.encode_msg_proto(row["sequence"], b"channel.1", *fields)
            )
    assert len(sizes) == 12
    assert notes("--max-payload", str(max(sizes.values()))) == []
    large = [sequence for sequence, size in sizes.items() if size == max(sizes.values())]
    found = notes("--max-payload", str(max(sizes.values()) - 1))
    assert sum(int(line.split(": ")[2].split()[0]) for line in found) == len(large)
    assert (
        f"the first one is sequence {large[0]} with {max(sizes.values())}: no NATS server"
        in found[0]
    )
