"""Syslog: its frames, the ways to reach a daemon, and a daemon that goes away."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from ftstan.base import log
from ftstan.base.errors import ConfigError
from ftstan.base.log import syslog
from ftstan.base.log.levels import ERROR, INFO
from ftstan.base.log.syslog import Address, Syslog, parse_address

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_S = 60.0
PID = os.getpid()
HOST = "127.0.0.1"


@pytest.fixture(autouse=True)
def _default_log() -> Iterator[None]:
    yield
    log.configure()


def daemon(kind: socket.SocketKind, path: Path | None = None) -> socket.socket:
    """Something that listens as a daemon does: on a path, or on any port of loopback."""
    found = socket.socket(socket.AF_INET if path is None else socket.AF_UNIX, kind)
    found.bind((HOST, 0) if path is None else str(path))
    if kind == socket.SOCK_STREAM:
        found.listen()
    found.settimeout(PATIENCE_S)
    return found


def url(scheme: str, listening: socket.socket) -> str:
    return f"{scheme}://{HOST}:{listening.getsockname()[1]}"


TIME = r"\d\d\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:Z|[+-]\d\d:\d\d)"
REMOTE = rf"<{{}}>{TIME} {re.escape(socket.gethostname())} {{}}\[{PID}\]: {{}}\n"


@pytest.mark.parametrize(
    ("level", "severity"),
    [("info", 5), ("warning", 5), ("error", 3), ("fatal", 2), ("debug", 7), ("trace", 5)],
)
def test_a_remote_message_has_severity_time_host_tag_pid_and_text(
    level: str, severity: int
) -> None:
    with daemon(socket.SOCK_DGRAM) as listening:
        log.configure(
            remote_syslog=url("udp", listening), syslog_name="stan", debug=True, trace=True
        )
        getattr(log.stream, level)("hello")
        message = listening.recv(1000).decode()
    assert re.fullmatch(REMOTE.format(severity, "stan", "STREAM: hello"), message)


def test_lines_of_the_nats_server_have_no_prefix_there_either() -> None:
    with daemon(socket.SOCK_DGRAM) as listening:
        log.configure(remote_syslog=url("udp", listening), syslog_name="stan")
        log.nats.info("Server is ready")
        assert listening.recv(1000).endswith(b"]: Server is ready\n")


def test_messages_over_tcp_end_with_a_line_feed() -> None:
    with daemon(socket.SOCK_STREAM) as listening:
        log.configure(remote_syslog=url("tcp", listening), syslog_name="stan")
        connection, _ = listening.accept()
        log.stream.info("one")
        log.stream.error("two")
        with connection, connection.makefile("r") as file:
            connection.settimeout(PATIENCE_S)
            texts = [file.readline(), file.readline()]
    assert re.fullmatch(REMOTE.format(5, "stan", "STREAM: one"), texts[0])
    assert re.fullmatch(REMOTE.format(3, "stan", "STREAM: two"), texts[1])


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_the_local_daemon_gets_its_own_facility_and_no_host(
    kind: socket.SocketKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    monkeypatch.setattr(syslog, "LOCAL_PATHS", (str(tmp_path / "none"), str(path)))
    with daemon(kind, path) as listening:
        log.configure(syslog=True, syslog_name="stan")
        log.stream.fatal("hello")
        there = listening
        if kind == socket.SOCK_STREAM:
            there, _ = listening.accept()
            there.settimeout(PATIENCE_S)
        message = there.recv(1000).decode()
        if there is not listening:
            there.close()
    assert re.fullmatch(
        rf"<26>[A-Z][a-z][a-z] [ \d]\d \d\d:\d\d:\d\d stan\[{PID}\]: STREAM: hello\n", message
    )


def test_the_name_is_that_of_the_program_if_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/nats-streaming-server"])
    with daemon(socket.SOCK_DGRAM) as listening:
        log.configure(remote_syslog=url("udp", listening))
        log.stream.info("x")
        assert f" nats-streaming-server[{PID}]: ".encode() in listening.recv(1000)


def test_a_json_line_is_the_text_of_the_message() -> None:
    with daemon(socket.SOCK_DGRAM) as listening:
        log.configure(remote_syslog=url("udp", listening), syslog_name="stan", json_lines=True)
        log.stream.info("x")
        assert b']: {"time":"' in listening.recv(1000)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("udp://127.0.0.1:514", Address("udp", "127.0.0.1:514")),
        ("TCP://host:1", Address("tcp", "host:1")),
        ("tcp://[::1]:514/ignored", Address("tcp", "[::1]:514")),
        ("unix:///dev/log", Address("unix", "/dev/log")),
    ],
)
def test_urls_of_every_scheme_are_read(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("http://h:1", 'error invalid network type: "http"'),
        ("localhost:514", 'error invalid network type: "localhost"'),
        ("localhost", 'error invalid network type: ""'),
        ("127.0.0.1:514", 'parse "127.0.0.1:514": first path segment in URL cannot contain colon'),
        (":514", 'parse ":514": missing protocol scheme'),
        (
            "tcp://host",
            'error connecting to syslog: "dial tcp: address host: missing port in address"',
        ),
        (
            "unix:///nowhere/s",
            (
                'error connecting to syslog: "dial unix /nowhere/s: connect: no such file or '
                'directory"'
            ),
        ),
    ],
)
def test_a_url_that_leads_nowhere_is_refused_and_nothing_has_changed(
    text: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    log.configure(logtime=False)
    with pytest.raises(ConfigError) as refused:
        log.configure(remote_syslog=text)
    assert refused.value.text == said
    assert refused.value.hint
    log.stream.info("still here")
    assert log.flush(PATIENCE_S)
    assert capfd.readouterr().err == f"[{PID}] [INF] STREAM: still here\n"


def test_a_file_is_preferred_to_syslog(tmp_path: Path) -> None:
    log.configure(file=str(tmp_path / "x.log"), remote_syslog="tcp://127.0.0.1:1", syslog=True)
    log.stream.info("x")
    assert log.flush(PATIENCE_S)
    assert "STREAM: x" in (tmp_path / "x.log").read_text()


def test_a_daemon_that_comes_back_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with daemon(socket.SOCK_STREAM) as listening:
        place = listening.getsockname()
        sink = Syslog(Address("tcp", f"{place[0]}:{place[1]}"), "stan")
        connection, _ = listening.accept()
        sink.write(INFO, "one")
        assert connection.recv(1000).endswith(b": one\n")
        connection.close()
        # Into the connection that has ended the line would be lost without an error.
        sink.write(INFO, "two")
        again, _ = listening.accept()
        assert again.recv(1000).endswith(b": two\n")
        again.close()
    # Nobody listens now: lines are lost, and the daemon is not asked again with each of them.
    asked: list[Address] = []
    connect = syslog._connect

    def counted(address: Address) -> socket.socket:
        asked.append(address)
        return connect(address)

    monkeypatch.setattr(syslog, "_connect", counted)
    now = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    now[0] += 60
    for _ in range(10):
        with pytest.raises(OSError):
            sink.write(ERROR, "lost")
    assert len(asked) == 1
    now[0] += 60
    with socket.create_server((HOST, 0)) as listening:
        sink._address = Address("tcp", f"{HOST}:{listening.getsockname()[1]}")
        sink.write(INFO, "three")
        last, _ = listening.accept()
        assert last.recv(1000).endswith(b": three\n")
        last.close()
        sink.close()


def test_a_daemon_that_reads_nothing_holds_nobody_up(tmp_path: Path) -> None:
    with daemon(socket.SOCK_DGRAM, tmp_path / "log") as listening:
        log.configure(remote_syslog=f"unix://{tmp_path}/log", syslog_name="stan")
        done = threading.Event()

        def say() -> None:
            for n in range(2000):
                log.stream.info(f"{n}")
            done.set()

        threading.Thread(target=say, daemon=True).start()
        # A datagram socket takes a handful of messages and then blocks its sender.
        assert done.wait(PATIENCE_S)
        assert listening.recv(1000).endswith(b": STREAM: 0\n")
        threading.Thread(target=read_all, args=(listening,), daemon=True).start()
        assert log.flush(PATIENCE_S)


def read_all(listening: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            listening.recv(1000)
