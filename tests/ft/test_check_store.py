"""``ftstanctl check-store`` on real file systems: ext4, tmpfs, one whose lock two can hold, and two
sides at once.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.cli.ctl import main
from tests.processes import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Child, Stage

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

EXT4 = 'truncate -s 3G "$0.image" && mkfs.ext4 -q -F "$0.image" && mount -o loop "$0.image" "$0"'
TMPFS = 'mount -t tmpfs -o size=2G tmpfs "$0"'


def check(stage: Stage, name: str, place: Path, *words: str, mount: str = "") -> Child:
    """The command, below a mount of its own if there is one to make."""
    command = [
        sys.executable,
        "-m",
        "ftstan.cli.ctl",
        "check-store",
        str(place),
        "--output",
        "json",
        *words,
    ]
    if not mount:
        return stage.run(name, command)
    if os.geteuid() != 0:
        pytest.fail("mounting a file system needs root: run the suite as root", pytrace=False)
    script = f'{mount} && cd {ROOT} && "$@"; status=$?; ls -A "$0" >&2; exit $status'
    return stage.run(name, ["unshare", "-m", "sh", "-c", script, str(place), *command])


def said(child: Child) -> dict[str, Any]:
    found = re.search(r"^\{.*\}$", child.text(), re.MULTILINE)
    assert found is not None, child.tail()
    page: dict[str, Any] = json.loads(found[0])
    return page


def left(child: Child) -> list[str]:
    """What the directory held when the check was over."""
    return [
        line
        for line in child.text().splitlines()
        if not line.startswith("{") and line != "lost+found"
    ]


def outcomes(page: dict[str, Any], check_name: str) -> list[str]:
    return [row["outcome"] for row in page["findings"] if row["check"] == check_name]


def test_ext4_is_suitable_and_nothing_is_left_there(stage: Stage) -> None:
    stage.store.mkdir()
    child = check(stage, "ext4", stage.store, mount=EXT4)
    child.status()
    page = said(child)
    # A busy disk may sync slowly, which is a limit; nothing may be bad.
    bad = [row for row in page["findings"] if row["outcome"] == "bad" and row["check"] != "sync"]
    assert bad == []
    names = {row["check"] for row in page["findings"]}
    assert {
        "mount",
        "lock",
        "release",
        "names",
        "direct",
        "offsets",
        "visibility",
        "sync",
        "clock",
    } <= names
    for name in ("lock", "release", "names", "direct", "offsets", "visibility"):
        assert outcomes(page, name) == ["good"]
    assert page["findings"][0]["figures"]["fstype"] == "ext4"
    assert left(child) == []


def test_tmpfs_works_and_is_told_to_forget(stage: Stage) -> None:
    stage.store.mkdir()
    child = check(stage, "tmpfs", stage.store, mount=TMPFS)
    assert child.status() == 1, child.tail()
    page = said(child)
    assert page["verdict"] == "suitable with limits"
    assert any("memory" in reason for reason in page["reasons"])
    assert outcomes(page, "lock") == ["good"]
    assert left(child) == []


def test_a_store_s_files_are_left_as_they_are(stage: Stage) -> None:
    stage.store.mkdir()
    for name in ("server.dat", ".rootdir.lck", "ft.epoch"):
        (stage.store / name).write_bytes(name.encode())
    before = {path.name: path.stat() for path in stage.store.iterdir()}
    check(stage, "store", stage.store).status()
    after = {path.name: path.stat() for path in stage.store.iterdir()}
    assert {name: (s.st_ino, s.st_mtime_ns, s.st_size) for name, s in after.items()} == {
        name: (s.st_ino, s.st_mtime_ns, s.st_size) for name, s in before.items()
    }


def test_two_sides_find_each_other_and_agree(stage: Stage) -> None:
    stage.store.mkdir()
    words = ("--peer", "--contend", "1")
    sides = [check(stage, name, stage.store, *words) for name in ("one", "two")]
    for side in sides:
        side.status()
        page = said(side)
        assert [row for row in page["findings"] if row["outcome"] == "bad"] == []
        # On a busy disk one side may get no turn in a second, which is told as a limit.
        assert len(outcomes(page, "contention")) == 2
        assert [row["measured"] for row in page["takeover"]] == [True]
    assert list(stage.store.iterdir()) == []


def test_the_phases_of_an_attack_follow_each_other(stage: Stage) -> None:
    stage.store.mkdir()
    journal = stage.directory / "journal"
    assert check(stage, "format", stage.store, "--phase", "format").status() == 0
    refused = check(stage, "same", stage.store, "--phase", "attack", "--journal", str(journal))
    assert refused.status() == 3
    assert "on the storage that is attacked" in refused.text()
    journal.write_text("1 0\n")
    lost = check(
        stage, "lost", stage.store, "--phase", "verify", "--journal", str(journal), "--remove"
    )
    assert lost.status() == 2
    assert said(lost)["findings"][0]["figures"]["lost"] == 1
    assert list(stage.store.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--freeze"], "--freeze needs a second host"),
        (["--peer", "--phase", "format"], "exclude each other"),
        (["--phase", "attack"], "needs one journal"),
        (["--phase", "verify"], "needs the journals"),
        (["--phase", "verify", "--journal", "x"], "x"),
    ],
)
def test_wrong_words_are_one_line(
    tmp_path: Path, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-store", str(tmp_path), *words]) == 3
    assert text in capsys.readouterr().err.splitlines()[0]
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_missing_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-store", str(tmp_path / "none")]) == 3
    assert "is no directory" in capsys.readouterr().err
