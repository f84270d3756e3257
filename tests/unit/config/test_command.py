"""What the command shows of a configuration without starting anything: checks, dumps,
completion.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ftstan.cli.server import main
from ftstan.config.flags import parse
from ftstan.config.table import FLAGS
from tests.command_lines import to_options
from tests.recorded import FakeServer, fake_server
from tests.uncoded import uncoded

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["fake_server"]

GOOD = """
listen: 127.0.0.1:5000
authorization { users: [ {user: a, password: hunter2, permissions { publish: [">"] }} ], timeout: 2 }
max_payload: 64KB
ping_interval: "1m"
accounts { A { users: [ {user: q, password: w} ] } }
cluster { name: n, listen: 127.0.0.1:5001, no_advertise: true, authorization { user: r, password: s } }
streaming { id: mine, store: file, dir: d, store_limits { max_msgs: 5 } }
"""  # noqa: E501


@pytest.fixture(autouse=True)
def nothing_is_touched(server: FakeServer) -> Iterator[None]:
    yield
    assert server.runs == []
    assert set(os.listdir()) <= {"s.conf", "d.conf"}


def test_check_config_shows_values_with_their_sources_and_asks_nats_server_about_its_part(
    capfd: pytest.CaptureFixture[str],
) -> None:
    Path("s.conf").write_text(GOOD)
    assert main(["-c", "s.conf", "-mm", "9", "--check-config"]) == 0
    out, err = capfd.readouterr()
    lines = out.splitlines()
    shown = next(
        line.split() for line in lines if line.startswith("streaming.store_limits.max_msgs")
    )
    assert shown[1:] == ["=", "9", "(-mm)"]
    assert any(
        line.startswith('streaming.cluster_id = "mine" ') and line.endswith("(s.conf:8:13)")
        for line in lines
    )
    assert any(
        line.startswith("streaming.hb_interval = 30s ") and line.endswith("(default)")
        for line in lines
    )
    assert lines[-1] == "The configuration is valid."
    assert "hunter2" not in out + err


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "accounts { A { nonsense: 1 } }",
            'nats-server refuses its part: unknown field "nonsense"',
        ),
        ("max_payload: abc", "s.conf:1:1: interface conversion: interface {} is string, not int64"),
        ("store: file", "for FILE stores, root directory must be specified"),
        ("encrypt: true", "encryption key required"),
        ('nats_server_url: "x"', "malformed url: x"),
        ("cluster { listen: 5000 }", "stan: clustering mode not supported with MEMORY store type"),
        (
            "streaming { cluster { }, partitioning: true, store: file }",
            "stan: channels partitioning in clustering mode is not supported",
        ),
    ],
)
def test_check_config_refuses_what_a_start_would_refuse(
    text: str, complaint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("s.conf").write_text(text)
    assert main(["-c", "s.conf", "-check_config"]) == 1
    out, err = capfd.readouterr()
    assert uncoded(out + err).splitlines()[0] == complaint
    assert "valid" not in out


@pytest.mark.parametrize(
    ("text", "complaint", "hint"),
    [
        (
            "port: 70000",
            'Error listening on port: 0.0.0.0:70000, "listen tcp: address 70000: invalid port"',
            "port: a ",
        ),
        (
            "streaming { id: 'a b' }",
            "could not subscribe to discover subject: nats: invalid subject",
            "id: the cluster",
        ),
        (
            "streaming { ft_group: g }",
            "ft: only FILE or SQL stores supported in FT mode",
            "ft_group: add -store file",
        ),
        (
            "streaming { credentials: x }",
            "nats: open x: no such file or directory",
            "credentials: credentials names",
        ),
        (
            "authorization { users: [ {usr: a} ] }",
            'nats-server refuses its part: unknown field "usr"',
            'users: look at "authorization"',
        ),
    ],
)
def test_the_hint_has_the_place_and_the_key_of_what_is_wrong_in_a_file(
    text: str, complaint: str, hint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("s.conf").write_text(text)
    assert main(["-c", "s.conf", "-check_config"]) == 1
    first, second = uncoded(capfd.readouterr().err).splitlines()
    assert first == complaint
    assert second.startswith("hint: s.conf:1:")
    assert f": {hint}" in second


@pytest.mark.parametrize("flag", ["-p", "-m"])
def test_a_taken_address_is_told_before_anything_is_touched_and_is_no_fault_of_the_configuration(
    flag: str, server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["-a", "127.0.0.1", "-p", "-1", flag, str(port)]
        assert main([*words, "-P", "pid"]) == 1
        err = capfd.readouterr().err
        assert f"listen tcp 127.0.0.1:{port}: bind: address already in use" in err
        assert "[FTL] " in err
        assert "STREAM: Failed" not in err
        assert main([*words, "-check_config"]) == 0
    assert main(["-a", "no.such.host.invalid"]) == 1
    assert "listen tcp: lookup no.such.host.invalid: no such host" in capfd.readouterr().err
    assert server.runs == []


def test_only_strict_fails_on_a_key_that_nobody_knows(capfd: pytest.CaptureFixture[str]) -> None:
    Path("s.conf").write_text("store_limits { max_mgs: 1 }\n")
    complaint = (
        's.conf:1:16: unknown key "max_mgs" in store_limits is ignored; did you mean "max_msgs"?'
    )
    assert main(["-c", "s.conf", "--check-config"]) == 0
    assert capfd.readouterr().err.splitlines() == [f"warning: {complaint}"]
    assert main(["-c", "s.conf", "--check-config", "--strict"]) == 1
    assert capfd.readouterr().err.splitlines()[0] == f"{complaint} [FTS-1101]"


def test_a_dumped_file_starts_the_same_server(capfd: pytest.CaptureFixture[str]) -> None:
    Path("s.conf").write_text(GOOD)
    assert main(["-c", "s.conf", "-p", "6000", "--dump-config"]) == 0
    Path("d.conf").write_text(capfd.readouterr().out)
    assert to_options(parse(["-c", "d.conf"])) == to_options(parse(["-c", "s.conf", "-p", "6000"]))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_knows_every_flag(
    shell: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["-completion", shell]) == 0
    script = capfd.readouterr().out
    assert [name for flag in FLAGS for name in flag.flags if name not in script] == []
    program = shutil.which(shell)
    if program is not None:
        subprocess.run([program, "-n"], input=script, text=True, check=True, timeout=60)


def test_bash_completes_flags_and_their_values(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-completion", "bash"]) == 0
    script = capfd.readouterr().out
    ask = 'COMP_WORDS=(ftstan "$@"); COMP_CWORD=$#; _ftstan; echo "${COMPREPLY[@]}"'
    answers = [
        subprocess.run(
            ["bash", "-c", f"{script}\n{ask}", "bash", *words],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()
        for words in (["--hb_f"], ["-st", ""], ["--store", "f"], ["-cid", ""])
    ]
    assert answers == ["--hb_fail_count", "memory file sql", "file", ""]


def test_there_is_no_completion_for_another_shell(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-completion", "csh"]) == 1
    assert capfd.readouterr().err.splitlines() == [
        "no completion for the shell csh",
        "hint: there is one for bash, zsh and fish",
    ]


def test_help_about_tls_has_the_ciphers_and_curves(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-help_tls"]) == 0
    out = capfd.readouterr().out
    assert "cert_file:" in out
    assert {
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "CurveP256",
        "CurveP384",
        "CurveP521",
        "X25519",
    } <= set(out.split())


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["-encrypt"], "encryption key required"),
        (["-c", "s.conf"], "encryption key required"),
        (["-encryption_key", "k", "-encryption_cipher", "DES"], "encryption cipher not supported"),
        (["-encrypt", "-encryption_cipher", "ROT13"], "encryption cipher not supported"),
        (
            ["-encryption_key", "k", "-encryption_key_file", "keys"],
            "encryption_key and encryption_key_file exclude each other",
        ),
        (
            ["-encryption_key_file", "missing"],
            "encryption_key_file missing cannot be read: no such file or directory",
        ),
        (["-encryption_key_file", "."], "encryption_key_file . is not a file"),
    ],
)
def test_a_start_that_cannot_encrypt_is_refused_in_one_line(
    words: list[str], complaint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("s.conf").write_text('encryption_key: ""\n')
    assert main(words) == 1
    err = capfd.readouterr().err
    assert f"Failed to start: {complaint}\n" in err


def test_no_key_is_shown_in_the_effective_configuration(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NATS_STREAMING_ENCRYPTION_KEY", "sesame-of-the-environment")
    assert main(["-encrypt", "-encryption_key", "sesame-of-the-flag", "-check_config"]) == 0
    out, err = capfd.readouterr()
    assert "streaming.encryption_key = ***" in out
    assert "sesame" not in out + err


def test_a_start_says_its_warnings_in_the_log(
    server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("s.conf").write_text("write_deadline: 3\n")
    assert main(["-c", "s.conf"]) == 0
    assert "[WRN] STREAM: s.conf:1:1: invalid use of field" in capfd.readouterr().err
    server.runs.clear()


def test_what_is_taken_and_cannot_be_wanted_is_a_warning(
    server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("s.conf").write_text("not a program")
    words = ["-hbi", "0s", "-hbt", "-1s", "-hbf", "-1", "-store", "file", "-dir", "d"]
    for script, why in (("/none", "is not there"), ("./s.conf", "may not be run by this user")):
        server.runs.clear()
        assert main([*words, "-file_slice_archive_script", script]) == 0
        assert len(server.runs) == 1
        said = capfd.readouterr().err
        assert "[WRN] STREAM: hb_interval is 0s: " in said
        assert "[WRN] STREAM: hb_timeout is -1s: " in said
        assert "[WRN] STREAM: hb_fail_count is -1: " in said
        assert f"[WRN] STREAM: file_slice_archive_script '{script}' {why}: " in said
    script = shutil.which("true") or ""
    assert (
        main(["-hbi", "1s", "-store", "file", "-dir", "d", "-file_slice_archive_script", script])
        == 0
    )
    assert "WRN" not in capfd.readouterr().err
    server.runs.clear()


@pytest.mark.parametrize(
    "words", ["-check_config", "-dump_config", "-help", "-version", "-completion bash"]
)
def test_a_reader_of_the_answer_that_goes_away_is_no_error(words: str) -> None:
    # Nobody reads a single byte of it: the pipe's other end is closed before the command starts.
    command = (
        f"set -o pipefail; {{ sleep 0.2; exec {sys.executable} -m ftstan.cli.server {words}; }} "
        "| true"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
