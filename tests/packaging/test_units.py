"""The systemd units: what systemd itself says of them, what they promise, and that the two say the
same.
"""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from ftstan.cli.dropin import OWN, DropIn
from ftstan.ft.deadlines import PROBE_DIE_S, STOP_S
from ftstan.nats.embedded import STOP_WITHIN_S
from tests.packaging.conftest import require
from tests.processes import ROOT

if TYPE_CHECKING:
    from pathlib import Path

UNITS = ROOT / "systemd"
FILES = ROOT / "packaging" / "files"
PLAIN, INSTANCE, DRILL = (
    UNITS / f"{name}.service" for name in ("ftstan", "ftstan@", "ftstan-drill")
)
HIGHEST_EXPOSURE = 1.5


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    command = require("systemd-analyze", "systemd")
    return subprocess.run(
        [command, *words], capture_output=True, text=True, check=False, timeout=60
    )


def settings(unit: Path) -> dict[str, list[str]]:
    """Values of each key, in order."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text(encoding="utf-8").splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def seconds(value: str) -> float:
    return (
        float(value.removesuffix("ms")) / 1e3
        if value.endswith("ms")
        else float(value.removesuffix("s"))
    )


def verified(unit: Path, directory: Path, dropin: DropIn | None = None) -> str:
    """What ``systemd-analyze verify`` has to say.

    The command is not installed here, so another stands in for it.
    """
    copy = directory / unit.name.replace("@.", "@orders.")
    copy.write_text(
        re.sub(r"/usr/bin/ftstan\w*", "/bin/true", unit.read_text(encoding="utf-8")),
        encoding="utf-8",
    )
    if dropin is not None:
        beside = directory / f"{copy.name}.d"
        beside.mkdir()
        (beside / "paths.conf").write_text(dropin.text, encoding="utf-8")
    done = analyze("verify", "--man=no", str(copy))
    return done.stdout + done.stderr + (f"status {done.returncode}" if done.returncode else "")


@pytest.mark.parametrize("unit", [PLAIN, INSTANCE, DRILL], ids=lambda unit: unit.name)
def test_systemd_has_nothing_to_say_about_a_unit(unit: Path, tmp_path: Path) -> None:
    assert verified(unit, tmp_path) == ""


@pytest.mark.parametrize("place", ["/nss/orders", '/nss/with blank, 50% and "marks"'])
def test_systemd_has_nothing_to_say_about_a_drop_in(place: str, tmp_path: Path) -> None:
    assert verified(PLAIN, tmp_path, DropIn(PLAIN.name, (place, "/srv/log"), (place,))) == ""


def test_a_wrong_drop_in_is_noticed(tmp_path: Path) -> None:
    assert "path is not absolute" in verified(
        PLAIN, tmp_path, DropIn(PLAIN.name, ("nss",), ("nss",))
    )


@pytest.mark.parametrize("unit", [PLAIN, INSTANCE], ids=lambda unit: unit.name)
def test_a_unit_is_hardly_exposed(unit: Path) -> None:
    done = analyze("security", "--offline=true", str(unit))
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert level is not None, done.stdout + done.stderr
    assert float(level[1]) <= HIGHEST_EXPOSURE


def test_the_instance_differs_in_its_places_only() -> None:
    plain = settings(PLAIN)
    instance = settings(INSTANCE)
    differing = {key for key in plain | instance if plain.get(key) != instance.get(key)}
    directories = {"StateDirectory", "LogsDirectory", "RuntimeDirectory"}
    assert differing == {"Description", "EnvironmentFile", "ExecStart", *directories}
    assert {key: instance[key] for key in directories} == {
        key: ["ftstan/%i"] for key in directories
    }
    assert instance["ExecStart"] == [plain["ExecStart"][0].replace("/ftstan.conf", "/%i.conf")]
    assert instance["EnvironmentFile"] == ["-/etc/default/ftstan-%i"]


def test_the_directories_are_those_that_a_drop_in_leaves_out() -> None:
    (state,), (logs,), (runtime,) = (
        settings(PLAIN)[f"{key}Directory"] for key in ("State", "Logs", "Runtime")
    )
    assert (f"/var/lib/{state}", f"/var/log/{logs}", f"/run/{runtime}") == OWN


def test_a_fenced_server_is_back_at_once_for_ever_and_one_that_left_in_peace_is_not() -> None:
    unit = settings(PLAIN)
    assert (unit["Restart"], unit["RestartSec"], unit["StartLimitIntervalSec"]) == (
        ["always"],
        ["100ms"],
        ["0"],
    )
    assert unit["RestartPreventExitStatus"] == ["0"]
    # The count of failed starts, which makes up for that, outlives a restart and not a stop.
    assert unit["RuntimeDirectoryPreserve"] == ["restart"]


def test_a_stop_has_time_for_a_flush_and_the_watchdog_lets_the_server_say_why_it_ends() -> None:
    unit = settings(PLAIN)
    assert seconds(unit["TimeoutStopSec"][0]) > STOP_S + STOP_WITHIN_S + 10
    assert seconds(unit["WatchdogSec"][0]) > 2 * PROBE_DIE_S
    assert unit["KillMode"] == ["mixed"]
    assert unit["Type"] == ["notify"]


def test_a_start_on_a_slow_host_is_not_ended_before_it_can_say_anything() -> None:
    assert seconds(settings(PLAIN)["TimeoutStartSec"][0]) >= 300


def test_storage_and_network_come_first() -> None:
    assert {"network-online.target", "remote-fs.target"} <= set(settings(PLAIN)["After"][0].split())


def test_what_hosts_make_at_boot_is_what_the_package_makes(tmp_path: Path) -> None:
    """Users and directories in an empty root.

    Owner and mode of a directory that is there stay as they are.
    """
    (tmp_path / "etc").mkdir()
    (tmp_path / "var" / "log" / "ftstan").mkdir(parents=True, mode=0o700)
    for command, name in {
        "systemd-sysusers": "sysusers.d",
        "systemd-tmpfiles": "tmpfiles.d",
    }.items():
        words = [command, f"--root={tmp_path}", *(["--create"] if name == "tmpfiles.d" else [])]
        subprocess.run(
            [*words, str(FILES / "usr" / "lib" / name / "ftstan.conf")], check=True, timeout=60
        )
    user = next(
        line
        for line in (tmp_path / "etc" / "passwd").read_text().splitlines()
        if line.startswith("ftstan:")
    )
    assert user.split(":")[2:4] == ["842", "842"]
    made = (tmp_path / "var" / "lib" / "ftstan").stat()
    there = (tmp_path / "var" / "log" / "ftstan").stat()
    assert (made.st_uid, made.st_gid, made.st_mode & 0o777) == (842, 842, 0o750)
    assert (there.st_uid, there.st_mode & 0o777) == (0, 0o700)


def test_logrotate_understands_its_rules_and_has_the_log_opened_again(tmp_path: Path) -> None:
    rules = (FILES / "etc" / "logrotate.d" / "ftstan").read_text(encoding="utf-8")
    # That user is made by the package.
    (tmp_path / "rules").write_text(rules.replace("ftstan ftstan", "root root"), encoding="utf-8")
    words = [
        require("logrotate", "logrotate"),
        "--debug",
        "--state",
        str(tmp_path / "state"),
        str(tmp_path / "rules"),
    ]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60)
    assert "error" not in done.stderr
    assert "rotating pattern: /var/log/ftstan/*.log /var/log/ftstan/*/*.log" in done.stderr
    assert "--signal=USR1" in rules
