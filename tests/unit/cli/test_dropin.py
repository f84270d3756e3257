"""``ftstanctl systemd-dropin``: what the unit has to be allowed, from the configuration or from the
words.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from ftstan.cli.ctl import main
from ftstan.cli.program import EXIT_USAGE

if TYPE_CHECKING:
    from pathlib import Path

Capture = pytest.CaptureFixture[str]


def made(capsys: Capture, *words: str) -> dict[str, object]:
    assert main(["systemd-dropin", "--output", "json", *words]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def configuration(tmp_path: Path, text: str) -> str:
    path = tmp_path / "server.conf"
    path.write_text(text)
    return str(path)


def test_datastore_log_and_pid_file_of_the_configuration_may_be_written(
    tmp_path: Path, capsys: Capture
) -> None:
    path = configuration(
        tmp_path,
        "logfile: /srv/log/f.log\npid_file: /srv/pid/f.pid\nstreaming { store: file, dir: "
        "/nss/orders, cluster_id: o }",
    )
    answer = made(capsys, "-c", path)
    assert answer["read_write_paths"] == ["/nss/orders", "/srv/log", "/srv/pid"]
    assert answer["requires_mounts_for"] == ["/nss/orders"]
    assert "RequiresMountsFor=/nss/orders\n" in str(answer["text"])
    assert "ReadWritePaths=/nss/orders /srv/log /srv/pid\n" in str(answer["text"])


def test_the_log_path_of_a_node_may_be_written(tmp_path: Path, capsys: Capture) -> None:
    text = (
        "streaming { store: file, dir: /data/stan, cluster_id: orders\n"
        " cluster { preview: true, node_id: a, peers: [a, b, c]LOG } }"
    )
    path = configuration(tmp_path, text.replace("LOG", ", log_path: /data/log"))
    answer = made(capsys, "-c", path)
    assert answer["read_write_paths"] == ["/data/stan", "/data/log"]
    assert answer["requires_mounts_for"] == ["/data/stan", "/data/log"]
    # The default is relative to the working directory: to the root, in a service.
    path = configuration(tmp_path, text.replace("LOG", ""))
    assert made(capsys, "-c", path)["read_write_paths"] == ["/data/stan", "/orders"]
    path = configuration(tmp_path, text.replace("LOG", ", log_path: /var/lib/ftstan/log"))
    assert made(capsys, "-c", path)["read_write_paths"] == ["/data/stan"]


def test_what_the_unit_has_already_needs_no_drop_in(tmp_path: Path, capsys: Capture) -> None:
    path = configuration(
        tmp_path,
        "logfile: /var/log/ftstan/f.log\nstreaming { store: file, dir: /var/lib/ftstan/orders }",
    )
    assert made(capsys, "-c", path)["text"] == ""
    assert main(["systemd-dropin", "-c", path]) == 0
    assert "needs no drop-in" in capsys.readouterr().out


def test_words_take_the_place_of_the_configuration(tmp_path: Path, capsys: Capture) -> None:
    path = configuration(tmp_path, "streaming { store: file, dir: /nss/orders }")
    words = [
        "-c",
        path,
        "--datastore",
        "/nss/other",
        "--spool",
        "/a",
        "--spool",
        "/b",
        "--log",
        "/c/x.log",
    ]
    assert made(capsys, *words)["read_write_paths"] == ["/nss/other", "/a", "/b", "/c"]
    assert made(capsys, "--datastore", "/nss/alone")["read_write_paths"] == ["/nss/alone"]


def test_it_is_written_where_systemd_reads_it_and_taken_away_when_nothing_needs_it(
    tmp_path: Path, capsys: Capture
) -> None:
    units = str(tmp_path / "units")
    words = ["systemd-dropin", "--units", units, "--unit", "ftstan@orders.service", "--write"]
    before = os.umask(0o077)
    try:
        assert main([*words, "--datastore", "/nss/orders"]) == 0
    finally:
        os.umask(before)
    path = tmp_path / "units" / "ftstan@orders.service.d" / "paths.conf"
    assert path.read_text().endswith("[Service]\nReadWritePaths=/nss/orders\n")
    assert path.stat().st_mode & 0o777 == 0o644
    assert "systemctl daemon-reload" in capsys.readouterr().out
    assert main([*words, "--datastore", "/var/lib/ftstan/orders"]) == 0
    assert not path.exists()
    assert "removed" in capsys.readouterr().out


def test_a_place_that_is_not_there_is_said(tmp_path: Path, capsys: Capture) -> None:
    main(["systemd-dropin", "--datastore", str(tmp_path / "none")])
    assert "is not there" in capsys.readouterr().err
    main(["systemd-dropin", "--datastore", str(tmp_path)])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--datastore", "relative"], "is no absolute path"),
        (["--datastore", "/a\nExecStart=/bin/evil"], "is no absolute path"),
        (["-c", "/nowhere/ftstan.conf"], "no such file"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_a_hint(
    words: list[str], said: str, capsys: Capture
) -> None:
    assert main(["systemd-dropin", *words]) == 1
    line, hint = capsys.readouterr().err.splitlines()
    assert said in line
    assert hint.startswith("hint: ")


@pytest.mark.parametrize("unit", ["nginx.service", "../x.service"])
def test_a_unit_that_is_none_of_ours_is_a_wrong_word(unit: str, capsys: Capture) -> None:
    assert main(["systemd-dropin", "--unit", unit]) == EXIT_USAGE
    line, hint = capsys.readouterr().err.splitlines()
    assert "is no unit of ftstan" in line
    assert hint.startswith("hint: ")


def test_a_directory_that_may_not_be_written_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").write_text("")
    assert (
        main(
            ["systemd-dropin", "--datastore", "/nss", "--write", "--units", str(tmp_path / "file")]
        )
        == 1
    )
    assert "cannot be written" in capsys.readouterr().err
