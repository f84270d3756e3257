"""``ftstanctl pub`` and ``ftstanctl sub`` against a real server, as a script uses them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ftstan.cli.ctl import main
from tests.processes import PATIENCE_S, READY, ROOT, free_ports, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Server, Stage

pytestmark = pytest.mark.processes


class Operator:
    """Runs ``ftstanctl`` here, with an environment that leads to the server."""

    def __init__(
        self,
        server: Server,
        home: Path,
        monkeypatch: pytest.MonkeyPatch,
        output: pytest.CaptureFixture[bytes],
    ) -> None:
        self._stdin = home / "stdin"
        self._monkeypatch = monkeypatch
        self._output = output
        for name in [name for name in os.environ if name.startswith("FTSTAN_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("FTSTAN_SERVERS", f"nats://127.0.0.1:{server.port}")
        monkeypatch.setenv("XDG_CONFIG_HOME", str(home))

    def __call__(self, *words: str, stdin: bytes = b"") -> tuple[int, str, str]:
        self._stdin.write_bytes(stdin)
        with self._stdin.open("r", encoding="utf-8") as file, self._monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", file)
            status = main(words)
        out, err = self._output.readouterr()
        return status, out.decode("utf-8", "surrogateescape"), err.decode()


@pytest.fixture
def ctl(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> Operator:
    server = stage.file_server("server", "-mc", "3")
    server.wait_for(READY)
    return Operator(server, stage.directory, monkeypatch, capsysbinary)


def test_what_is_published_is_printed_in_every_form(ctl: Operator) -> None:
    assert ctl("pub", "orders", "one") == (0, "1 stored in orders\n", "")
    assert ctl("pub", "orders", "--lines", stdin=b"two\nthr\x1bee\r\n\xff\n") == (
        0,
        "3 stored in orders\n",
        "",
    )
    status, out, _ = ctl("pub", "orders", "--output", "json", "--count", "2", stdin=b"from\nstdin")
    assert (status, json.loads(out)) == (
        0,
        {"channel": "orders", "stored": 2, "refused": 0, "unknown": 0},
    )

    status, out, err = ctl("sub", "orders", "--first", "--count", "6", "--output", "raw")
    assert (status, err) == (0, "")
    assert out == "one\ntwo\nthr\x1bee\n\udcff\nfrom\nstdin\nfrom\nstdin\n"
    status, out, _ = ctl("sub", "orders", "--first", "--count", "4", "--output", "json")
    found = [json.loads(line) for line in out.splitlines()]
    assert [message["sequence"] for message in found] == [1, 2, 3, 4]
    assert [message.get("data", message.get("data_base64")) for message in found] == [
        "one",
        "two",
        "thr\x1bee",
        "/w==",
    ]
    status, out, _ = ctl("sub", "orders", "--sequence", "3", "--count", "2")
    assert [line.split(" ", 3)[3] for line in out.splitlines()] == ["thr\\x1bee", "\\xff"]
    for start, first in (("--last", 6), ("--ago=3600", 1), ("--since=2001-01-01", 1)):
        status, out, _ = ctl("sub", "orders", start, "--count", "1", "--output", "json")
        assert (status, json.loads(out)["sequence"]) == (0, first)


def test_a_durable_goes_on_where_it_was_until_it_is_forgotten(ctl: Operator) -> None:
    assert ctl("pub", "orders", "--lines", stdin=b"1\n2\n3\n")[0] == 0
    durable = (
        "sub",
        "orders",
        "--first",
        "--durable",
        "audit",
        "--client-id",
        "me",
        "--output",
        "raw",
        "--max-in-flight",
        "1",
    )
    assert ctl(*durable, "--count", "2") == (0, "1\n2\n", "")
    assert ctl(*durable, "--count", "1", "--forget") == (0, "3\n", "")
    assert ctl(*durable, "--count", "1") == (0, "1\n", "")
    status, _, err = ctl("sub", "orders", "--durable", "audit")
    assert status == 64
    assert "--client-id" in err


def test_a_look_without_acks_changes_nothing(ctl: Operator) -> None:
    assert ctl("pub", "orders", "one")[0] == 0
    durable = (
        "sub",
        "orders",
        "--first",
        "--durable",
        "audit",
        "--client-id",
        "me",
        "--output",
        "raw",
        "--count",
        "1",
    )
    assert ctl(*durable, "--no-ack") == (0, "one\n", "")
    assert ctl(*durable) == (0, "one\n", "")


def test_the_exit_status_says_what_a_script_must_know(ctl: Operator) -> None:
    assert ctl("pub", "a", "x")[0] == 0
    assert ctl("sub", "a", "--first", "--timeout", "0.5")[0] == 0
    assert ctl("sub", "a", "--first", "--timeout", "0.5", "--count", "2")[0] == 1
    for channel in ("b", "c"):
        assert ctl("pub", channel, "x")[0] == 0
    status, out, err = ctl("pub", "d", "x", "--count", "3")
    assert (status, out) == (1, "0 stored in d\n")
    assert err.startswith("too many channels")
    for words in (
        ("pub", "a.*", "x"),
        ("pub",),
        ("sub", "a", "--first", "--last"),
        ("sub", "a", "--since", "soon"),
    ):
        status, _, err = ctl(*words)
        assert status == 64, words
        assert "hint: " in err
    (nobody,) = free_ports(1)
    status, _, err = ctl(
        "pub", "a", "x", "--server", f"nats://127.0.0.1:{nobody}", "--connect-timeout", "0.5"
    )
    assert status == 3
    assert "no NATS server reached" in err
    assert "Traceback" not in err


def test_following_prints_each_message_when_it_comes_and_an_interrupt_ends_it(
    ctl: Operator, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with out.open("wb") as file:
        following = subprocess.Popen(
            [
                sys.executable, "-P", "-m", "ftstan.cli.ctl",
                "sub", "orders", "--first", "--durable", "d", "--client-id", "me", "--output",
                "raw",
            ],
            stdout=file, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    try:
        for number in (b"1", b"2"):
            assert ctl("pub", "orders", stdin=number)[0] == 0
            until(lambda number=number: number + b"\n" in out.read_bytes(), "the message")  # type: ignore[misc]
        following.send_signal(signal.SIGINT)
        assert following.wait(PATIENCE_S) == 130
        assert following.communicate()[1] == b""
    finally:
        following.kill()
        following.wait()
    # It has closed: the durable is free, and goes on.
    assert ctl("pub", "orders", "3")[0] == 0
    assert (
        ctl(
            "sub",
            "orders",
            "--durable",
            "d",
            "--client-id",
            "me",
            "--output",
            "raw",
            "--count",
            "1",
        )[1]
        == "3\n"
    )


def test_lines_of_a_pipe_are_published_as_they_come(ctl: Operator) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "ftstan.cli.ctl", "pub", "orders", "--lines"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as publishing:  # fmt: skip
        assert publishing.stdin is not None
        assert publishing.stdout is not None
        for number, line in enumerate((b"one\n", b"two\n"), 1):
            publishing.stdin.write(line)
            publishing.stdin.flush()
            read = ctl("sub", "orders", "--first", "--count", str(number), "--output", "raw")[1]
            assert read.encode().endswith(line)
        publishing.stdin.close()
        assert publishing.stdout.read() == b"2 stored in orders\n"
        assert publishing.wait(PATIENCE_S) == 0


def test_a_context_leads_to_the_server(ctl: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    server = os.environ["FTSTAN_SERVERS"]
    monkeypatch.delenv("FTSTAN_SERVERS")
    assert ctl("context", "add", "here", "--server", server, "--select")[0] == 0
    assert ctl("pub", "orders", "x") == (0, "1 stored in orders\n", "")
    assert ctl("context", "add", "wrong", "--server", server, "--cluster", "nobody")[0] == 0
    assert ctl("pub", "orders", "x", "--context", "wrong", "--connect-timeout", "0.5")[0] == 3
