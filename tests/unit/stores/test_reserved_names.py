"""Names of files beside the channels: no client makes a channel of one, and what stands there ends
no start.
"""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.admin import keys
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import ConfigError, RecoveryError, RefusedError, StoreError
from ftstan.base.reserved import ROOT_FILES, is_reserved, is_root_file
from ftstan.broker import managing
from ftstan.cli.ctl import main
from ftstan.config.options import StoreLimits
from ftstan.config.validation import check_limits
from ftstan.ft import epoch, lock, moves, watch
from ftstan.stores.file import deletion
from ftstan.stores.file.state import checkpoint, clients, remembered, serverfile, state_recovery
from ftstan.stores.file.tools import restoring
from ftstan.stores.interface import ChannelLimits
from ftstan.stores.memory import MemoryStore
from ftstan.wire import messages
from tests.compat.driver import SUBJECTS, Driver, PubAck
from tests.datastores import messages_of, serve

if TYPE_CHECKING:
    from pathlib import Path

INVALID = b"stan: invalid publish request"
TAKEN = [
    b"ft.claim.999999999999999999",
    b"ft.claim.100000",
    b"ft.epoch",
    b"ft.moves",
    b"ft.watch",
    b"FT.Epoch",
    b"ft.anything",
    b"tmp.4096.clients.dat",
    b"tmp.x",
    b"cut.7.clients.dat.12",
    b"admin.key",
    b"admin.key.new",
    b"ckpt.bin",
    b"Ckpt.BIN",
    b"dedup.bin",
    b"server.dat",
    b"clients.dat",
    b"clients.dat123",
    b"orders.dat",
    b"orders.bin",
    b"restore.json",
    b"cluster.mark",
    b"cluster.mark.new",
    b"cluster.id",
    b"Cluster.ID.new",
    b"lost+found",
    "admin.\u212aey".encode(),
]
_ALMOST = [
    b"cluster.events",
    b"cluster.ids",
    b"cut.flowers",
    b"orders.data",
    b"orders.bin.x",
    b"ftx.claim.1",
    b"a.ft.b",
    b"x.tmp.y",
]
FREE = [*_ALMOST, b"ft", b"tmpx", b"bin", b"dat", b"admin", b"\xff"]


def test_every_file_that_the_code_keeps_in_the_root_is_reserved() -> None:
    names = {
        keys.KEY_NAME,
        checkpoint.NAME,
        clients.NAME,
        epoch.EPOCH_NAME,
        lock.LOCK_NAME,
        moves.NAME,
        remembered.NAME,
        restoring.ACCOUNT,
        serverfile.NAME,
        state_recovery.MARKER,
        watch.WATCH_NAME,
    }
    assert names == ROOT_FILES
    intent = deletion.Intent(b"foo", 1, 1, 1).file_name
    for name in [
        *names,
        "ft.claim.1",
        "tmp.4096.server.dat",
        "cut.7.clients.dat.12",
        "admin.key.new.1f",
        intent,
    ]:
        assert is_root_file(name)
        assert is_reserved(name.encode())
        assert is_reserved(name.upper().encode())


@pytest.mark.parametrize("name", FREE)
def test_a_name_that_only_looks_like_one_of_them_is_free(name: bytes) -> None:
    assert not is_reserved(name)
    driver = Driver()
    driver.connect()
    assert driver.publish(b"1", channel=name) == [PubAck(b"1")]


@pytest.mark.parametrize("name", TAKEN)
def test_nobody_makes_a_channel_of_a_reserved_name(name: bytes) -> None:
    driver = Driver(MemoryStore())
    driver.connect()
    assert driver.publish(b"1", channel=name) == [PubAck(b"1", INVALID)]
    request = messages.SubscriptionRequest(
        client_id=b"me", subject=name, inbox=b"in", max_in_flight=1, ack_wait_in_secs=30
    )
    answer = driver.call(SUBJECTS.subscribe, messages.encode(request))
    assert (
        messages.parse(messages.SubscriptionResponse, answer or b"").error
        == b"stan: invalid subject"
    )
    with pytest.raises(RefusedError, match="cannot name a channel"):
        managing.create_channel(driver.broker, name)
    assert len(driver.broker.channels) == 0
    assert driver.broker.malformed.totals == {"publish": 1}


@pytest.mark.parametrize("name", ["ft.epoch", "Orders.DAT", "tmp.a"])
def test_no_channel_is_configured_with_a_reserved_name(name: str) -> None:
    with pytest.raises(ConfigError, match="invalid channel name"):
        check_limits(StoreLimits(channels=((name, ChannelLimits()),)))
    check_limits(StoreLimits(channels=(("ft.>", ChannelLimits()),)))


# ---- what stands in the root already
# -------------------------------------------------------------------------------


def make(kind: str, path: Path) -> None:
    """Something that is no regular file."""
    match kind:
        case "directory":
            path.mkdir()
        case "channel":
            path.mkdir()
            (path / "subs.dat").write_bytes(b"\x01\0\0\0")
        case "symlink":
            path.symlink_to("nowhere")
        case _:
            os.mkfifo(path)


def store_at(path: Path) -> None:
    path.mkdir()
    node = serve(path)
    node.publish(b"foo", b"1", b"2")
    node.stop()


def verify(capsys: pytest.CaptureFixture[str], path: Path) -> tuple[int, list[dict[str, Any]]]:
    capsys.readouterr()
    status = main(["store", "verify", str(path), "--output", "json"])
    return status, json.loads(capsys.readouterr().out)["findings"]


KINDS = ["directory", "channel", "symlink", "fifo"]
DISPENSABLE = [
    "ft.claim.999999999999999999",
    "ft.claim.100000",
    "ft.claim.3",
    "tmp.4096.clients.dat",
    "tmp.8192.server.dat",
    "ckpt.bin",
    "dedup.bin",
    "admin.key.new",
    "ft.deleting.0123456789abcdef0123456789abcdef.7",
    os.fsdecode(b"tmp.\xff"),
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DISPENSABLE)
def test_no_entry_of_the_root_ends_a_start_and_tools_name_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, kind: str
) -> None:
    path = tmp_path / "store"
    store_at(path)
    (path / name).unlink(missing_ok=True)
    make(kind, path / name)
    before = stat.S_IFMT(os.lstat(path / name).st_mode)
    status, findings = verify(capsys, path)
    assert status == 1
    shown = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    assert [f["kind"] for f in findings if f["file"] == shown and "move it out" in f["text"]] == [
        "damage"
    ]
    assert main(["store", "repair", str(path), "--dry-run"]) in (0, 1)
    assert "left alone" in capsys.readouterr().out
    assert main(["store", "repair", str(path), "--aside", str(tmp_path / "aside")]) in (0, 1)
    assert "left alone" in capsys.readouterr().out
    # A second start, too: what the first one has kept without the name is read again.
    for number in (3, 4):
        node = serve(path)
        assert len(messages_of(node, b"foo")) == number - 1
        node.publish(b"foo", b"%d" % number)
        node.connect(b"client%d" % number)
        node.store.remember([b"d" * 16], {})
        node.tick()
        node.stop()
    assert (path / "ft.epoch").stat().st_size < 64 * 4096
    # An empty directory goes with a clean stop, whatever its name is, and a temporary with the next
    # start.
    if kind != "directory" and not (name.startswith("tmp.") and kind != "channel"):
        assert stat.S_IFMT(os.lstat(path / name).st_mode) == before


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "error"),
    [("ft.epoch", StoreError), ("server.dat", RecoveryError), ("clients.dat", RecoveryError)],
)
def test_what_a_start_cannot_do_without_is_named_with_its_cure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, error: type[Exception], kind: str
) -> None:
    path = tmp_path / "store"
    store_at(path)
    (path / name).unlink()
    make(kind, path / name)
    with pytest.raises(error, match=name):
        serve(path)
    capsys.readouterr()
    assert main(["store", "verify", str(path)]) != 0
    assert name in "".join(capsys.readouterr())


def test_a_channel_of_an_original_that_is_called_so_is_served_or_quarantined(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "store"
    path.mkdir()
    node = serve(path)
    for name in (b"ft.orders", b"orders.dat", b"ft.claim.9"):
        # The store itself takes any name: only servers refuse to make such a channel.
        node.publish(name, b"1")
    node.die()
    (path / "dedup.bin").unlink(missing_ok=True)
    (path / "orders.dat").rename(path / "dedup.bin")
    node = serve(path)
    names = {channel.name for channel in node.found.channels}
    assert names == {b"ft.orders", b"dedup.bin", b"ft.claim.9"}
    assert node.store.quarantined == ["dedup.bin"]
    assert 'channel "dedup.bin" is quarantined' in capfd.readouterr().err
    assert node.publish(b"ft.orders", b"2") == [2]
    node.stop()


def test_a_channel_that_is_there_takes_publishes_whatever_it_is_called(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.mkdir()
    node = serve(path)
    node.publish(b"ft.orders", b"1")
    node.die()
    node = serve(path)
    driver = Driver(node.store)
    driver.connect()
    assert driver.publish(b"2", channel=b"ft.orders") == [PubAck(b"2")]
    assert driver.publish(b"3", channel=b"ft.other") == [PubAck(b"3", INVALID)]
    node.die()


def test_claims_that_count_are_files_and_near_the_highest_slot(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store_at(path)
    for number in (50, 4097, 9999, 10**17):
        (path / f"ft.claim.{number}").touch()
    (path / "ft.claim.60").mkdir()
    disk = LocalDisk()
    root = disk.open_dir(str(path))
    try:
        state = epoch.read_state(disk, root)
        assert state.top == 1
        assert state.claims[-2:] == (50, 4097)
    finally:
        disk.close(root)
