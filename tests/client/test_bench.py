"""``ftstanctl bench`` against a real server: what it counts, what it says, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.cli.bench import delay_of, histogram
from ftstan.load.traffic import Delays
from tests.client.test_commands import Operator
from tests.processes import PATIENCE_S, READY, ROOT, free_ports, until

if TYPE_CHECKING:
    from tests.processes import Server, Stage

SMALL = ("bench", "orders", "--count", "1000", "--timeout", str(PATIENCE_S))


@pytest.fixture
def server(stage: Stage) -> Server:
    made = stage.file_server("server", "-mc", "2")
    made.wait_for(READY)
    return made


@pytest.fixture
def ctl(
    server: Server,
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> Operator:
    return Operator(server, stage.directory, monkeypatch, capsysbinary)


def figures(ctl: Operator, *words: str) -> dict[str, Any]:
    status, out, err = ctl(*SMALL, *words, "--output", "json")
    assert (status, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    assert (found["complete"], found["refused"]) == (True, 0)
    return found


def stored(ctl: Operator) -> list[int]:
    """Sequences of all that is stored in the channel."""
    status, out, err = ctl(
        "sub",
        "orders",
        "--first",
        "--no-ack",
        "--max-in-flight",
        "9999",
        "--timeout",
        "1",
        "--output",
        "json",
    )
    assert (status, err) == (0, "")
    return [json.loads(line)["sequence"] for line in out.splitlines()]


@pytest.mark.processes
def test_every_message_is_stored_once_and_gets_to_every_subscriber(ctl: Operator) -> None:
    found = figures(ctl, "--pub", "3", "--sub", "2", "--size", "100")
    pub = found["publishers"]
    sub = found["subscribers"]
    assert [client["messages"] for client in pub["clients"]] == [334, 333, 333]
    assert [client["messages"] for client in sub["clients"]] == [1000, 1000]
    assert (pub["messages"], sub["messages"], sub["wanted"]) == (1000, 2000, 2000)
    for side in (pub, sub):
        assert side["per_second"] == pytest.approx(side["messages"] / side["seconds"])
        delays = list(side["delay_ns"].values())
        assert delays == sorted(delays)
        assert delays[0] > 0
    assert stored(ctl) == list(range(1, 1001))


@pytest.mark.processes
def test_the_members_of_a_queue_group_share_the_messages(ctl: Operator) -> None:
    found = figures(ctl, "--sub", "4", "--queue", "workers", "--sub-max-in-flight", "8")[
        "subscribers"
    ]
    assert (found["wanted"], found["messages"]) == (1000, 1000)
    assert all(client["messages"] for client in found["clients"])


@pytest.mark.processes
def test_without_publishers_what_is_stored_is_read(ctl: Operator) -> None:
    found = figures(ctl, "--sync")
    assert found["subscribers"] is None
    # One after the other: no ack takes longer than all of them.
    assert found["publishers"]["delay_ns"]["p50"] * 500 <= found["publishers"]["seconds"] * 1e9
    found = figures(ctl, "--pub", "0", "--sub", "2")
    assert found["publishers"] is None
    assert found["subscribers"]["messages"] == 2000
    assert found["subscribers"]["delay_ns"] is None


@pytest.mark.processes
def test_what_people_see_is_a_table_and_a_plot_for_each_side(ctl: Operator) -> None:
    status, out, err = ctl(*SMALL, "--sub", "1")
    assert (status, err) == (0, "")
    head, pub, sub, *plots = out.splitlines()
    assert head.split() == [
        "CLIENTS",
        "MESSAGES",
        "SECONDS",
        "MSGS/S",
        "BYTES/S",
        "P50",
        "P90",
        "P99",
        "P99.9",
        "MAX",
    ]
    assert pub.split()[:3] == ["pub", "1", "1000"]
    assert sub.split()[:3] == ["sub", "1", "1000"]
    assert "from publish to ack" in plots
    assert "from publish to delivery" in plots
    shares = [float(line.split("%")[0].split()[-1]) for line in plots if "%" in line]
    assert sum(shares) == pytest.approx(200, abs=0.5)


@pytest.mark.processes
def test_the_exit_status_says_what_a_script_must_know(ctl: Operator, server: Server) -> None:
    for channel in ("a", "b"):
        assert ctl("pub", channel, "x")[0] == 0
    status, out, err = ctl("bench", "c", "--count", "10", "--output", "json")
    assert (status, err) == (1, "10 messages were refused: too many channels\n")
    found = json.loads(out)
    assert (found["complete"], found["refused"], found["publishers"]["messages"]) == (False, 10, 0)
    # There is one message, and two are wanted.
    status, _, err = ctl(
        "bench", "a", "--pub", "0", "--sub", "1", "--count", "2", "--timeout", "0.5"
    )
    assert (status, err) == (1, "1 messages did not come in time\n")
    for words in (
        ("--pub", "0"), ("--size", "15"), ("--queue", "q"), ("--sync", "--max-in-flight", "2"),
        ("a.*",),
        ("--size", str(1 << 20)), ("--context", "unknown"),
    ):  # fmt: skip
        status, _, err = ctl("bench", *words)
        assert status == (3 if str(1 << 20) in words else 64), words
        assert "hint: " in err
    assert server.serverz()["clients"] == 0
    (nobody,) = free_ports(1)
    elsewhere = ("--server", f"nats://127.0.0.1:{nobody}")
    for words in (elsewhere, ("--cluster", "other")):
        status, _, err = ctl("bench", "a", *words, "--connect-timeout", "0.5")
        assert status == 3
        assert "Traceback" not in err
        assert "hint: " in err


@pytest.mark.processes
def test_an_interrupt_ends_it_and_closes_the_sessions(ctl: Operator, server: Server) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "ftstan.cli.ctl", "bench", "a", "--sync", "--count",
         "100000000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as running:  # fmt: skip
        try:
            until(
                lambda: ctl("sub", "a", "--first", "--count", "1", "--timeout", "1")[0] == 0,
                "a message",
            )
            running.send_signal(signal.SIGINT)
            assert running.wait(PATIENCE_S) == 130
        finally:
            running.kill()
        assert running.communicate() == (b"", b"")
    assert server.serverz()["clients"] == 0


def test_the_steps_of_the_plot_hold_every_delay() -> None:
    delays = Delays()
    for ns in (1, 1_500, 1_500, 90_000, 3_000_000_000):
        delays.observe(ns)
    steps = histogram(delays)
    assert steps[0] == (1, 1)
    assert {upto: count for upto, count in steps if count} == {
        1: 1,
        2_000: 2,
        100_000: 1,
        5_000_000_000: 1,
    }
    assert len(steps) == 30


def test_delays_are_written_with_the_unit_that_fits() -> None:
    assert [delay_of(ns) for ns in (0, 999, 1_000, 1_234_567, 2_500_000_000)] == [
        "0 ns", "999 ns", "1 us", "1.23 ms", "2.5 s",
    ]  # fmt: skip


@pytest.mark.processes
def test_a_login_is_taken_from_words_environment_and_context(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    server = stage.file_server("server", "-user", "me", "-pass", "secret")
    server.wait_for(READY)
    ctl = Operator(server, stage.directory, monkeypatch, capsysbinary)
    assert ctl(*SMALL)[0] == 3
    assert ctl(*SMALL, "--user", "me", "--pass", "wrong")[0] == 3
    assert ctl(*SMALL, "--user", "me", "--pass", "secret")[0] == 0
    assert ctl("context", "add", "here", "--user", "me", "--pass", "secret")[0] == 0
    assert ctl(*SMALL, "--context", "here")[0] == 0
    monkeypatch.setenv("FTSTAN_USER", "me")
    monkeypatch.setenv("FTSTAN_PASSWORD", "secret")
    assert ctl(*SMALL)[0] == 0
