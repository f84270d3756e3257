"""``ftstanctl store repair``: damage ends, what can be read stays, no sequence is used twice, a
copy is kept.
"""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.cli import ctl
from tests.datastores import grow, messages_of, serve, serving
from tests.unit.cli.store_tool import flip

if TYPE_CHECKING:
    from pathlib import Path

ALL = set(range(1, 13))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Four activations, all killed; twelve messages in each of two channels."""
    path = tmp_path / "store"
    grow(path, 4)
    return path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    capsys.readouterr()
    status = ctl.main(["store", *words, "--output", "json"])
    return status, json.loads(capsys.readouterr().out)


def repair(capsys: pytest.CaptureFixture[str], store: Path) -> Any:
    """A repair after which everything is clean."""
    assert run(capsys, "verify", str(store))[0] == 1
    status, report = run(capsys, "repair", str(store))
    assert (status, report["quarantined"]) == (0, [])
    status, found = run(capsys, "verify", str(store))
    assert (status, found["clean"]) == (0, True), found
    return report


def served(store: Path, channel: bytes = b"channel.0") -> tuple[set[int], int]:
    """The sequences that a node serves, and the one that it gives to the next message."""
    with serving(store) as node:
        found = set(messages_of(node, channel))
        (following,) = node.publish(channel, b"next")
        node.stop()
    return found, following


def test_a_dry_run_says_what_would_be_done_and_changes_nothing(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(store / "channel.0" / "msgs.4097.dat", 30)
    before = sorted((f, f.read_bytes()) for f in store.rglob("*") if f.is_file())
    status, report = run(capsys, "repair", str(store), "--dry-run")
    assert (status, report["dry_run"]) == (1, True)
    assert [step["file"] for step in report["steps"]] == ["channel.0/msgs.4097.dat"]
    assert sorted((f, f.read_bytes()) for f in store.rglob("*") if f.is_file()) == before
    assert list(store.parent.iterdir()) == [store]


def test_a_clean_store_is_left_alone(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    epoch = (store / "ft.epoch").stat()
    status, report = run(capsys, "repair", str(store))
    assert (status, report["steps"], report["aside"]) == (0, [], "")
    assert (store / "ft.epoch").stat().st_mtime_ns == epoch.st_mtime_ns
    assert list(store.parent.iterdir()) == [store]


@pytest.mark.parametrize(("number", "lost"), [(1, {1}), (4097, {4}), (12289, {10})])
def test_a_bad_record_is_left_out_and_the_others_are_served(
    store: Path, capsys: pytest.CaptureFixture[str], number: int, lost: set[int]
) -> None:
    flip(store / "channel.0" / f"msgs.{number}.dat", 30)
    report = repair(capsys, store)
    assert any(
        f"1 messages are lost: sequences {min(lost)}" in step["text"] for step in report["steps"]
    )
    assert served(store) == (ALL - lost, 13)
    assert served(store, b"channel.1") == (ALL, 13)


def test_the_last_message_is_lost_and_its_sequence_is_not_given_out_again(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = store / "channel.0" / "msgs.12289.dat"
    flip(data, data.stat().st_size - 3)
    repair(capsys, store)
    assert served(store) == (ALL - {12}, 13)


def test_a_slice_of_which_nothing_is_left_goes_and_the_sequence_goes_on(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = store / "channel.0" / "msgs.12289.dat"
    data.write_bytes(bytes(data.stat().st_size))
    repair(capsys, store)
    assert served(store) == (ALL - {10, 11, 12}, 13)


def test_messages_of_a_slice_whose_version_alone_is_damaged_are_kept(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(store / "channel.0" / "msgs.12289.dat", 0)
    repair(capsys, store)
    assert served(store) == (ALL, 13)


def test_the_newest_slice_goes_without_its_data_and_the_sequence_goes_on(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.remove(store / "channel.0" / "msgs.12289.dat")
    # It is up to a second late.
    os.remove(store / "channel.0" / "confirmed.bin")
    repair(capsys, store)
    assert served(store) == (ALL - {10, 11, 12}, 13)


def test_records_behind_a_hole_in_a_slice_without_index_are_found(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.remove(store / "channel.0" / "msgs.1.idx")
    flip(store / "channel.0" / "msgs.1.dat", 50)
    repair(capsys, store)
    assert served(store) == (ALL - {2}, 13)


def test_a_missing_slice_is_accepted_once_it_was_reported(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.remove(store / "channel.0" / "msgs.4097.dat")
    report = repair(capsys, store)
    assert any("sequences 4 to 6" in step["text"] for step in report["steps"])
    assert served(store) == (ALL - {4, 5, 6}, 13)
    assert run(capsys, "verify", str(store))[0] == 0
    os.remove(store / "channel.0" / "msgs.8193.dat")
    assert run(capsys, "verify", str(store))[0] == 1


def test_bad_subscription_records_are_left_out(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = serve(store)
    node.subscribe(b"channel.0", 2)
    node.subscribe(b"channel.0", 3)
    node.die()
    subs = store / "channel.0" / "subs.dat"
    at = subs.read_bytes().index(b"in.2")
    flip(subs, at)
    repair(capsys, store)
    with serving(store) as node:
        assert sorted(s.state.sub_id for s in node.channel(b"channel.0").recovered_subs()) == [1, 3]
        assert node.channel(b"channel.0").next_sub_id == 4


def test_a_damaged_server_record_is_moved_aside_and_written_again(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(store / "server.dat", 30)
    report = repair(capsys, store)
    assert os.path.exists(os.path.join(report["aside"], "server.dat"))
    assert served(store) == (ALL, 13)


def test_bad_client_records_are_left_out(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = (store / "clients.dat").read_bytes()
    flip(store / "clients.dat", data.index(b"hb.client-1"))
    repair(capsys, store)
    with serving(store) as node:
        assert sorted(c.client_id for c in node.found.clients) == [
            b"client-0",
            b"client-2",
            b"client-3",
        ]


def test_what_is_changed_is_copied_aside_first(
    store: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = store / "channel.0"
    flip(folder / "msgs.4097.dat", 30)
    (folder / "msgs.3.idx").write_bytes(b"\1\0\0\0")
    (folder / "msgs.2.dat.bak").write_bytes(b"archived")
    (store / "clients.dat123").write_bytes(b"half a compaction")
    kept = {f.name: f.read_bytes() for f in folder.iterdir()}
    status, report = run(capsys, "repair", str(store), "--aside", str(tmp_path / "aside"))
    assert (status, report["aside"]) == (0, str(tmp_path / "aside"))
    for name in ("msgs.4097.dat", "msgs.4097.idx", "msgs.3.idx", "msgs.2.dat.bak", "confirmed.bin"):
        assert (tmp_path / "aside" / "channel.0" / name).read_bytes() == kept[name]
    assert (tmp_path / "aside" / "clients.dat123").read_bytes() == b"half a compaction"
    assert not (folder / "msgs.3.idx").exists()
    assert not (folder / "msgs.2.dat.bak").exists()
    assert not (store / "clients.dat123").exists()
    assert not (tmp_path / "aside" / "channel.1").exists()


def test_a_side_directory_that_exists_is_refused(
    store: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flip(store / "channel.0" / "msgs.4097.dat", 30)
    (tmp_path / "aside").mkdir()
    assert ctl.main(["store", "repair", str(store), "--aside", str(tmp_path / "aside")]) == 2
    assert "File exists" in capsys.readouterr().err
    assert run(capsys, "verify", str(store))[0] == 1


def test_one_channel_can_be_repaired_alone(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(store / "channel.0" / "msgs.4097.dat", 30)
    flip(store / "channel.1" / "msgs.4097.dat", 30)
    assert run(capsys, "repair", str(store), "--channel", "channel.1")[0] == 0
    assert run(capsys, "verify", str(store), "--channel", "channel.1")[0] == 0
    assert run(capsys, "verify", str(store), "--channel", "channel.0")[0] == 1


# ---- epochs
# --------------------------------------------------------------------------------------------------


def test_lost_epochs_are_claimed_above_everything_seen(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.remove(store / "ft.epoch")
    for claim in store.glob("ft.claim.*"):
        claim.rename(store / "ft.claim.9")
    report = repair(capsys, store)
    assert report["steps"][0]["file"] == "ft.epoch"
    with serving(store) as node:
        assert node.owner.activation.epoch == 11
        assert set(messages_of(node, b"channel.0")) == ALL


def test_epochs_that_only_confirmed_channels_remember_are_claimed_above(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.remove(store / "ft.epoch")
    for claim in store.glob("ft.claim.*"):
        claim.unlink()
    repair(capsys, store)
    with serving(store) as node:
        assert node.owner.activation.epoch == 6
        assert set(messages_of(node, b"channel.0")) == ALL


def test_an_epoch_file_from_an_older_copy_is_raised_above_what_was_written_since(
    store: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shutil.copy(store / "ft.epoch", tmp_path / "yesterday")
    for _ in range(3):
        node = serve(store)
        node.publish(b"channel.0", b"today")
        node.tick()
        node.die()
    shutil.copy(tmp_path / "yesterday", store / "ft.epoch")
    for claim in store.glob("ft.claim.*"):
        claim.unlink()
    repair(capsys, store)
    with serving(store) as node:
        assert node.owner.activation.epoch == 9
        assert set(messages_of(node, b"channel.0")) == set(range(1, 16))


# ---- who else is there
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["repair", "handover", "compact"])
def test_commands_that_write_refuse_a_store_that_is_open(
    store: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with serving(store) as node:
        flip(store / "channel.0" / "msgs.1.dat", 30)
        node.publish(b"channel.0", b"x")
        assert ctl.main(["store", command, str(store)]) == 2
        error = capsys.readouterr().err
        assert "is in use by epoch 5 of server test" in error
        node.store.confirm()


@pytest.mark.parametrize("command", ["handover", "compact"])
def test_a_damaged_store_is_neither_merged_nor_handed_over(
    store: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    os.remove(store / "channel.0" / "msgs.1.idx")
    flip(store / "channel.0" / "msgs.1.dat", 30)
    before = {f: f.read_bytes() for f in (store / "channel.0").iterdir()}
    assert ctl.main(["store", command, str(store)]) == 2
    assert "ftstanctl store repair" in capsys.readouterr().err
    assert {f: f.read_bytes() for f in (store / "channel.0").iterdir()} == before
