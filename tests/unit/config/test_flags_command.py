"""The server command: what it answers to a command line, measured against the original where that
is ours to decide.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from ftstan.base import log
from ftstan.base.errors import NatsError, StoreError
from ftstan.cli import ctl, versions
from ftstan.cli.server import main
from ftstan.config.banner import limits_table
from ftstan.config.options import StoreLimits
from tests.ft import test_recorded_starts
from tests.recorded import FakeServer, fake_server, normalised, prepared

RECORDS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data/cli/invocations.json").read_text("utf-8")
)["invocations"]

#: What only a running server can find out: its store, its ports, its NATS server:
#: ``tests/ft/test_recorded_starts.py``.
DECIDED_LATER = {
    "store/file-dir-is-a-file",
    "store/file-dir-cannot-create",
    "store/other-cluster-id",
    "store/other-crc-poly",
    "store/garbage-server-file",
    "store/empty-server-file",
    "store/wrong-file-version",
    "net/port-taken",
    "net/http-port-taken",
    "net/port-out-of-range",
    "net/port-minus-two",
    "net/bad-host",
    "net/ns-unreachable",
    "net/ns-list-unreachable",
    "net/ns-user-unreachable",
    "net/ns-unreachable-with-monitoring",
    "net/ns-unreachable-pidfile",
}
#: Where we differ on purpose or in wording; each is explained in docs/compat/config.md.
DIFFERENT = {
    "syntax/documented-but-absent-ft-group-name",
    "net/cluster-no-port",
    "net/ns-bad-port",
    "net/ns-http-scheme",
    "net/ns-space",
    "net/ns-tls-scheme-unreachable",
    "cluster-id/newline",
}
#: Need the pid of a process to send a signal to; see the tests of -sl below.
NEEDS_A_PROCESS = {
    f"signal/sl-{name}" for name in ("quit", "stop", "term", "reopen", "reload", "ldm", "pidfile")
}

__all__ = ["fake_server"]

JUDGED = [r for r in RECORDS if r["id"] not in DECIDED_LATER | DIFFERENT | NEEDS_A_PROCESS]
REFUSED = [r for r in JUDGED if not r["started"]]
STARTED = [r for r in JUDGED if r["started"]]


def without_nats_lines(lines: list[str]) -> list[str]:
    """Leave out what the original's NATS half says about an illegal subject before the start
    fails.
    """
    return [
        line for line in lines if "[ERR]" not in line and not re.search(r"\[INF\] (?!STREAM)", line)
    ]


@pytest.mark.parametrize("record", REFUSED, ids=lambda r: r["id"])
def test_a_command_line_that_starts_nothing_is_answered_as_by_the_original(
    record: dict[str, Any], server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    status = main(prepared(record))
    out, err = capfd.readouterr()
    assert status == record["exit"]
    assert server.runs == []
    expected_out = [line.replace("<nats-server>", "9.8.7") for line in record.get("stdout", [])]
    if expected_out == ["<help text>"]:
        assert out.startswith("\nUsage: nats-streaming-server [options]\n")
    else:
        assert out.splitlines() == expected_out
    expected = without_nats_lines(record.get("stderr", []))
    actual = normalised(err)
    if record["id"].startswith(
        "cluster-id/"
    ):  # found before the NATS server and the store have said anything
        assert (actual[0], actual[-1]) == (expected[0], expected[-1])
    else:
        assert actual == expected


@pytest.mark.parametrize("record", STARTED, ids=lambda r: r["id"])
def test_a_command_line_that_starts_a_server_gives_it_the_same_limits(
    record: dict[str, Any], server: FakeServer
) -> None:
    server.status = record["exit"]
    assert main(prepared(record)) == record["exit"]
    (options,) = server.runs
    assert limits_table(options.limits) == record.get("limits_table", limits_table(StoreLimits()))


def test_what_is_not_judged_here_is_judged_with_a_running_server() -> None:
    assert {*test_recorded_starts.PLAYED, *test_recorded_starts.DIFFERENT} >= DECIDED_LATER


def test_every_exception_names_a_record_and_is_explained() -> None:
    known = {record["id"] for record in RECORDS}
    assert known >= DECIDED_LATER | DIFFERENT | NEEDS_A_PROCESS
    page = (Path(__file__).parents[3] / "docs/compat/config.md").read_text("utf-8")
    assert [name for name in sorted(DIFFERENT | DECIDED_LATER) if name not in page] == []


def test_ft_group_name_is_the_same_as_ft_group(server: FakeServer) -> None:
    assert main(["-ft_group_name", "g", "-st", "file", "-dir", "d"]) == 0
    assert server.runs[0].ft_group == "g"


def test_the_sql_store_needs_a_driver_that_there_is(
    server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["-st", "sql"]) == 1
    assert (
        '[FTL] STREAM: Failed to start: sql: unknown driver "" (forgotten import?)'
        in capfd.readouterr().err
    )
    assert server.runs == []


def test_the_sql_store_is_for_groups_too(server: FakeServer) -> None:
    assert (
        main(["-st", "sql", "-sql_driver", "mysql", "-sql_source", "u@/d", "-ft_group", "g"]) == 0
    )
    assert server.runs[0].sql.source == "u@/d"


def test_a_cluster_url_without_port_is_refused(
    server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["-cluster", "nats://127.0.0.1"]) == 1
    assert "missing port in address" in capfd.readouterr().err.splitlines()[0]
    assert server.runs == []


def test_the_pid_file_has_the_pid_without_line_feed(server: FakeServer) -> None:
    mask = os.umask(0o022)
    try:
        assert main(["-P", "x.pid"]) == 0
    finally:
        os.umask(mask)
    assert Path("x.pid").read_bytes() == str(os.getpid()).encode()
    assert Path("x.pid").stat().st_mode & 0o777 == 0o640
    assert server.runs


def test_the_pid_file_is_not_written_for_an_external_nats_server(server: FakeServer) -> None:
    assert main(["-P", "x.pid", "-ns", "nats://127.0.0.1:4222"]) == 0
    assert not Path("x.pid").exists()
    assert server.runs


def test_a_failed_start_is_a_line_in_the_log_and_a_hint(
    server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    server.failure = StoreError("the disk is on fire", hint="call somebody")
    assert main([]) == 1
    fatal, hint = capfd.readouterr().err.splitlines()
    assert fatal.endswith("[FTL] STREAM: Failed to start: the disk is on fire")
    assert hint.endswith("[WRN] STREAM: Hint: call somebody")


def test_a_taken_port_is_a_line_of_the_nats_half(
    server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    server.failure = NatsError(
        'Error listening on port: h:1, "listen tcp h:1: bind: address already in use"'
    )
    assert main([]) == 1
    assert "[FTL] Error listening on port: h:1, " in capfd.readouterr().err


def test_a_failed_start_with_a_log_file_says_nothing_on_standard_error(
    server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["-l", "x.log", "-st", "bogus"]) == 1
    assert capfd.readouterr().err == ""
    assert (
        "[FTL] STREAM: Failed to start: unsupported store type: BOGUS" in Path("x.log").read_text()
    )
    assert server.runs == []


def test_a_bug_of_ours_ends_in_a_line_not_a_traceback(
    server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    server.failure = ZeroDivisionError("oops")
    assert main([]) == 2
    err = capfd.readouterr().err
    assert "[FTL] STREAM: Internal error: ZeroDivisionError: oops (recorded.py:" in err
    assert "Traceback" not in err


def test_a_bug_of_ours_shows_its_traceback_to_whoever_asks_for_debug_lines(
    server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    server.failure = ZeroDivisionError("oops")
    main(["-SD"])
    assert log.flush(60)
    assert "[DBG] STREAM: Traceback" in capfd.readouterr().err


def test_an_interrupted_start_ends_without_a_traceback(
    server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    server.failure = KeyboardInterrupt()
    assert main([]) == 130
    assert capfd.readouterr().err == ""


def test_a_version_that_nats_server_cannot_tell_is_an_error_with_a_hint(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> str:
        raise NatsError("no nats-server found", hint="install one")

    monkeypatch.setattr(versions, "binary_version", fail)
    assert main(["-v"]) == 1
    assert capfd.readouterr().err == "no nats-server found\nhint: install one\n"
    assert server.runs == []


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    return sent


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("stop", signal.SIGKILL),
        ("quit", signal.SIGINT),
        ("term", signal.SIGTERM),
        ("reopen", signal.SIGUSR1),
        ("reload", signal.SIGHUP),
        ("ldm", signal.SIGUSR2),
    ],
)
def test_sl_sends_a_signal_and_starts_nothing(
    command: str, number: int, server: FakeServer, kills: list[tuple[int, int]]
) -> None:
    assert main(["-sl", f"{command}=4242"]) == 0
    assert kills == [(4242, number)]
    assert server.runs == []


def test_sl_takes_the_pid_from_a_file(server: FakeServer, kills: list[tuple[int, int]]) -> None:
    Path("x.pid").write_text("4242")
    assert main(["-sl", "quit=x.pid"]) == 0
    assert kills == [(4242, signal.SIGINT)]
    assert server.runs == []


@pytest.mark.parametrize("content", ["4242\n", "", "-1", "0", "12x", "\xff"])
def test_sl_refuses_a_file_that_is_not_exactly_a_pid(
    content: str,
    server: FakeServer,
    kills: list[tuple[int, int]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    Path("x.pid").write_text(content, "latin-1")
    assert main(["-sl", "quit=x.pid"]) == 1
    assert capfd.readouterr().err.splitlines()[0] == "invalid pid: x.pid"
    assert kills == []
    assert server.runs == []


@pytest.mark.parametrize("pid", ["0", "-1"])
def test_sl_never_signals_a_process_group(
    pid: str, server: FakeServer, kills: list[tuple[int, int]], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["-sl", f"stop={pid}"]) == 1
    assert f"invalid pid: {pid}" in capfd.readouterr().err
    assert kills == []
    assert server.runs == []


def test_sl_with_a_number_larger_than_any_pid_finds_no_process(
    server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["-sl", f"quit={10**30}"]) == 1
    assert capfd.readouterr().err.splitlines()[0] == "no such process"
    assert server.runs == []


def test_ftstanctl_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl.main(["version"]) == 0
    assert capsys.readouterr().out.startswith("ftstan ")


def test_ftstanctl_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        ctl.main(["--help"])
    assert "version" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["bogus"], []])
def test_ftstanctl_refuses_what_it_does_not_know_and_lists_what_exists(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ctl.main(words) == 64
    _, hint = capsys.readouterr().err.splitlines()
    assert hint == f"hint: commands: {', '.join(ctl.COMMANDS)}; see ftstanctl --help"
    assert {"version", "store", "ft", "channel", "client", "server", "completion"} <= set(
        ctl.COMMANDS
    )
