"""``ftstanctl store compact`` and ``handover`` as an operator sees them."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.cli import ctl, terminal
from tests.datastores import grow, messages_of, serving

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Five activations, all killed; fifteen messages in each of two channels."""
    path = tmp_path / "store"
    grow(path, 5)
    return path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert ctl.main(["store", *words, "--output", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def numbers(store: Path, channel: str) -> list[int]:
    return sorted(int(f.name.split(".")[1]) for f in (store / channel).glob("msgs.*.dat"))


def test_compact_merges_former_activations_and_leaves_the_newest_slice(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = run(capsys, "compact", str(store))
    assert report["channels"] == [{"name": f"channel.{c}", "slices_removed": 4} for c in range(2)]
    # Two activations of its own: the last message of a killed one's slice goes to the first.
    assert numbers(store, "channel.0") == [16385, 20481]
    with serving(store) as node:
        assert list(messages_of(node, b"channel.0")) == list(range(1, 16))
    assert run(capsys, "compact", str(store))["channels"][0]["slices_removed"] == 0


def test_slices_are_merged_up_to_a_size(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = (store / "channel.0" / "msgs.1.dat").stat().st_size
    run(capsys, "compact", str(store), "--slice-bytes", str(2 * size))
    assert numbers(store, "channel.0") == [4097, 12289, 16385, 20481]


def test_one_channel_can_be_compacted_alone(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "compact", str(store), "--channel", "channel.1")
    assert (len(numbers(store, "channel.0")), len(numbers(store, "channel.1"))) == (6, 2)


def test_handover_leaves_dense_slices_and_no_side_files(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = (store / "channel.0" / "msgs.1.dat").stat().st_size
    report = run(capsys, "handover", str(store), "--slice-bytes", str(2 * size))
    assert report["channels"][0] == {"name": "channel.0", "slices": 3}
    assert numbers(store, "channel.0") == [1, 2, 3]
    assert not list(store.rglob("confirmed.bin"))
    assert not list(store.rglob("ckpt.bin"))


def test_handover_numbers_behind_slices_that_wait_for_the_archive_script(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (store / "channel.0/msgs.1.dat").rename(store / "channel.0/msgs.1.dat.bak")
    (store / "channel.0/msgs.1.idx").rename(store / "channel.0/msgs.1.idx.bak")
    waiting = (store / "channel.0/msgs.1.dat.bak").read_bytes()
    size = len(waiting)
    run(capsys, "handover", str(store), "--slice-bytes", str(size))
    # A slice that the original archives next may not get the name of one that waits.
    assert numbers(store, "channel.0") == [2, 3, 4, 5, 6]
    assert (store / "channel.0/msgs.1.dat.bak").read_bytes() == waiting
    with serving(store) as node:
        assert list(messages_of(node, b"channel.0")) == list(range(4, 16))


def test_handover_refuses_to_number_where_it_would_meet_a_slice_that_waits_for_the_archive_script(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (store / "channel.0/msgs.8193.dat.bak").write_bytes(
        b"left by a store that was handed over before"
    )
    before = numbers(store, "channel.0")
    assert ctl.main(["store", "handover", str(store)]) != 0
    said = capsys.readouterr().err
    assert 'channel "channel.0": msgs.8193.dat.bak waits for the archive script' in said
    assert "-file_slice_archive_script" in said
    assert set(before) <= set(numbers(store, "channel.0"))
    (store / "channel.0/msgs.8193.dat.bak").unlink()
    run(capsys, "handover", str(store))
    assert numbers(store, "channel.0") == [1]


def test_owner_and_mode_of_replaced_slices_are_kept(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("msgs.1.dat", "msgs.1.idx"):
        os.chmod(store / "channel.0" / name, 0o640)
    run(capsys, "handover", str(store))
    modes = {f.name: f.stat().st_mode & 0o777 for f in (store / "channel.0").glob("msgs.*")}
    assert modes == {"msgs.1.dat": 0o640, "msgs.1.idx": 0o640}


def test_a_full_disk_ends_with_one_line_and_the_store_is_what_it_was(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("ftstan.stores.file.tools.rewriting.put_file", full)
        assert ctl.main(["store", "compact", str(store)]) == 2
    error = capsys.readouterr().err
    assert "No space left on device" in error
    assert "Traceback" not in error
    with serving(store) as node:
        assert list(messages_of(node, b"channel.0")) == list(range(1, 16))


def test_long_work_shows_a_bar_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with terminal.progress("verifying", 100, shown=True) as advance:
        advance(50)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with terminal.progress("verifying", 100, shown=True) as advance:
        advance(50)
    assert "verifying" in capsys.readouterr().err
    with terminal.progress("verifying", 100, shown=False) as advance:
        advance(50)
    assert capsys.readouterr().err == ""
