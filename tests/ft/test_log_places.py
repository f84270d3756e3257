"""The log of real servers, wherever it goes: never a secret in it, and never a server that waits
for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import NatsError
from tests.ft.client import NatsConnection, StanClient
from tests.ft.mounts import SmallDisk
from tests.processes import HOST, PATIENCE_S, READY, free_ports, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Server, Stage

pytestmark = pytest.mark.processes

CHANNEL = b"orders"
#: Long enough that no other text holds them by chance.
SECRETS = {
    name: f"hidden-{name}-0123456789"
    for name in ("password", "token", "route", "jwt", "sig", "nkey", "wrong")
}
SEED = "SUAIBDPBAUTWCWBKIO6XHQNINK5FWJW4OHLXC3HQ2KFE4PEJUA44CNHTC4"


def ready(server: Server) -> Server:
    server.wait_for(READY)
    return server


def connected(port: int, client_id: str = "me", **login: str) -> StanClient:
    client = StanClient(port, client_id, **login)
    client.connect()
    return client


def present_everything(port: int) -> None:
    """Say everything that a client can present, as it could stand in a trace."""
    connect = {
        "verbose": False,
        "jwt": SECRETS["jwt"],
        "sig": SECRETS["sig"],
        "nkey": SECRETS["nkey"],
        "name": SEED,
    }
    with socket.create_connection((HOST, port), PATIENCE_S) as sock, sock.makefile("rb") as file:
        sock.sendall(b"CONNECT " + json.dumps(connect).encode() + b"\r\nPING\r\n")
        # Until the server ends it: then everything has been traced.
        while file.readline():
            pass


class TestSecrets:
    @pytest.mark.parametrize("form", ["text", "json"])
    @pytest.mark.parametrize("login", ["password", "token"])
    def test_no_login_is_in_any_log_at_any_level(self, stage: Stage, form: str, login: str) -> None:
        (route,) = free_ports(1)
        words = (
            ["-user", "ivan", "-pass", SECRETS["password"]]
            if login == "password"
            else ["-auth", SECRETS["token"]]
        )
        words += ["-cluster", f"nats://boss:{SECRETS['route']}@{HOST}:{route}"]
        words += ["-routes", f"nats://boss:{SECRETS['route']}@{HOST}:{route}"]
        path = stage.directory / "all.log"
        server = stage.server(
            "server", "-SDV", "-DVV", "-log_format", form, "-l", str(path), *words
        )
        until(
            lambda: path.exists() and READY.removeprefix("STREAM: ") in path.read_text(),
            "the server to be ready",
        )
        own = (
            {"user": "ivan", "password": SECRETS["password"]}
            if login == "password"
            else {"token": SECRETS["token"]}
        )
        client = connected(server.port, **own)
        client.publish(CHANNEL, b"one")
        with contextlib.suppress(NatsError):
            NatsConnection(server.port, user="ivan", password=SECRETS["wrong"])
        with contextlib.suppress(NatsError):
            NatsConnection(server.port, token=SECRETS["wrong"])
        present_everything(server.port)
        client.close()
        server.signal(signal.SIGINT)
        assert server.status() == 0
        text = path.read_text() + server.text()
        # The lines that would show them are there.
        assert text.count("<<- [CONNECT") >= 3
        assert "[REDACTED]" in text
        assert [name for name, secret in (*SECRETS.items(), ("seed", SEED)) if secret in text] == []

    def test_no_login_of_an_external_nats_server_is_in_the_log(self, stage: Stage) -> None:
        nats = stage.nats(
            settings=f'authorization {{ user: ivan, password: "{SECRETS["password"]}" }}\n'
        )
        url = f"nats://ivan:{SECRETS['password']}@{HOST}:{nats.port}"
        server = ready(stage.server("server", "-SDV", "-ns", url))
        nats.kill()
        server.wait_for("has been disconnected")
        wrong = stage.server(
            "wrong", "-SDV", "-ns", f"nats://ivan:{SECRETS['wrong']}@{HOST}:{nats.port}"
        )
        assert wrong.status() == 1
        text = server.text() + wrong.text()
        assert "nats://[REDACTED]@" in text
        assert SECRETS["password"] not in text
        assert SECRETS["wrong"] not in text


class TestFormats:
    def test_json_has_an_object_on_each_line_and_says_what_is_known(self, stage: Stage) -> None:
        path = stage.directory / "json.log"
        server = stage.file_server("server", "-log_format", "json", "-l", str(path), "-SD")
        until(
            lambda: path.exists() and "Streaming Server is ready" in path.read_text(),
            "the server to be ready",
        )
        client = connected(server.port)
        client.publish(CHANNEL, b"one")
        client.close()
        server.signal(signal.SIGTERM)
        assert server.status() == 143
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert all({"time", "level", "component", "message", "pid"} <= set(line) for line in lines)
        assert {line["pid"] for line in lines} == {server.pid}
        assert {line["component"] for line in lines} == {"stream", "nats"}
        (created,) = (line for line in lines if "has been created" in line["message"])
        assert (created["channel"], created["epoch"], created["level"]) == ("orders", 1, "info")
        (closed,) = (line for line in lines if "Closed (Inbox" in line["message"])
        assert (closed["client"], closed["level"]) == ("me", "debug")
        assert "epoch" not in lines[0]
        assert server.text() == ""

    def test_a_failed_start_with_syslog_is_told_on_standard_output_too(self, stage: Stage) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as daemon:
            daemon.bind((HOST, 0))
            daemon.settimeout(PATIENCE_S)
            port = daemon.getsockname()[1]
            server = stage.server(
                "server", "-r", f"udp://{HOST}:{port}", "-st", "bogus", "-syslog_name", "stan"
            )
            assert server.status() == 1
            texts: list[str] = []
            while not texts or "Failed to start" not in texts[-1]:
                texts.append(daemon.recv(65_536).decode())
        assert server.text() == "unsupported store type: BOGUS\n"
        frame = rf"<(\d)>\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\S+ \S+ stan\[{server.pid}\]: (.*)\n"
        found = [re.fullmatch(frame, text) for text in texts]
        assert all(found)
        assert [(m[1], m[2]) for m in found if m][-1] == (
            "2",
            "STREAM: Failed to start: unsupported store type: BOGUS",
        )

    def test_everything_goes_to_the_syslog_and_nothing_to_the_terminal(self, stage: Stage) -> None:
        with socket.create_server((HOST, 0)) as daemon:
            server = stage.server(
                "server", "-remote_syslog", f"tcp://{HOST}:{daemon.getsockname()[1]}"
            )
            daemon.settimeout(PATIENCE_S)
            connection, _ = daemon.accept()
            connection.settimeout(PATIENCE_S)
            with connection, connection.makefile() as file:
                texts = [file.readline()]
                while not texts[-1].endswith("Streaming Server is ready\n"):
                    texts.append(file.readline())
                    assert texts[-1], "the connection ended"
            # The daemon is gone, and nobody listens at its place: the server serves.
        connected(server.port).publish(CHANNEL, b"one")
        assert server.text() == ""
        assert any(text.endswith("]: Server is ready\n") for text in texts)
        assert all(text.startswith("<5>") for text in texts)


class TestTrouble:
    def test_a_full_disk_under_the_log_stops_nothing_and_is_told_when_there_is_room(
        self, stage: Stage
    ) -> None:
        disk = SmallDisk(stage)
        path = stage.store / "x.log"
        server = stage.server("server", "-l", str(path), wrap=disk.wrap)
        seen: Path = disk.seen / "x.log"
        until(lambda: seen.exists() and READY in seen.read_text(), "the server to be ready")
        disk.fill()
        client = connected(server.port)
        # Each channel is a line; the block that the file has already takes a few dozens of them.
        channels = [b"channel-%d" % n for n in range(90)]
        for channel in channels:
            client.publish(channel, b"one")
        disk.make_room()
        client.close()
        server.signal(signal.SIGINT)
        assert server.status() == 0
        text = seen.read_text()
        missing = [
            channel
            for channel in channels
            if f'Channel "{channel.decode()}" has been created\n' not in text
        ]
        assert missing
        (count,) = re.findall(r"\[WRN\] (\d+) log lines are lost: No space left on device", text)
        assert int(count) == len(missing)

    def test_a_log_that_hangs_stops_nobody(self, stage: Stage) -> None:
        pipe = stage.directory / "pipe"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        try:
            server = stage.server("server", "-SDV", "-DV", "-l", str(pipe))
            until(lambda: server.get("/streaming/serverz")[0] == 200, "the server to answer")
            # Far more than a pipe holds.
            until(lambda: StanClientThatMayFail(server.port).works(), "the server to serve")
            client = connected(server.port)
            client.publish(CHANNEL, *(b"%d" % n for n in range(3000)))
            assert client.read_to(CHANNEL, 3000)[3000] == b"2999"
            server.signal(signal.SIGTERM)
            assert server.status() == 143
        finally:
            os.close(reader)


class StanClientThatMayFail:
    """Asks once whether somebody serves."""

    def __init__(self, port: int) -> None:
        self._port = port

    def works(self) -> bool:
        try:
            client = connected(self._port, "probe")
        except NatsError:
            return False
        client.close()
        return True
