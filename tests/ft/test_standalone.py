"""A standalone server as a real process: how it starts, what it refuses, how it survives its
surroundings.
"""

from __future__ import annotations

import os
import re
import signal
import socket
from functools import partial
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import NatsError
from tests.ft.client import NatsConnection, StanClient
from tests.ft.mounts import SmallDisk
from tests.processes import (
    CLUSTER,
    HOST,
    READY,
    alive,
    children,
    free_ports,
    until,
    wait_until_gone,
)

if TYPE_CHECKING:
    from tests.processes import Child, Server, Stage

pytestmark = pytest.mark.processes

CHANNEL = b"orders"

STARTING = [
    r"\[INF\] STREAM: Starting nats-streaming-server\[test-cluster\] version 0\.25\.6",
    r"\[INF\] STREAM: ServerID: [0-9A-Za-z]{22}",
    r"\[INF\] STREAM: Go version: \S+",
    r"\[INF\] STREAM: Git commit: \[[^]]+\]",
]
NATS_SERVER = [
    r"\[INF\] Starting nats-server",
    r"\[INF\]   Version:  \S+",
    r"\[INF\]   Git:      \[[^]]+\]",
    r"\[INF\]   Name:     \S+",
    r"\[INF\]   ID:       \S+",
    r"\[INF\] Listening for client connections on 127\.0\.0\.1:\d+",
    r"\[INF\] Server is ready",
]
MONITOR = [r"\[INF\] Starting http monitor on 127\.0\.0\.1:\d+"]
RECOVERING = [r"\[INF\] STREAM: Recovering the state\.\.\."]
LIMITS = [
    r"\[INF\] STREAM: ---------- Store Limits ----------",
    r"\[INF\] STREAM: Channels:                  100 \*",
    r"\[INF\] STREAM: --------- Channels Limits --------",
    r"\[INF\] STREAM:   Subscriptions:          1000 \*",
    r"\[INF\] STREAM:   Messages     :       1000000 \*",
    r"\[INF\] STREAM:   Bytes        :     976\.56 MB \*",
    r"\[INF\] STREAM:   Age          :     unlimited \*",
    r"\[INF\] STREAM:   Inactivity   :     unlimited \*",
    r"\[INF\] STREAM: ----------------------------------",
    r"\[INF\] STREAM: Streaming Server is ready",
]


def fatal(child: Child) -> list[str]:
    return [line for line in child.lines() if line.startswith("[FTL]")]


def ready(server: Server) -> Server:
    server.wait_for(READY)
    return server


def connected(port: int, client_id: str = "me", **login: str) -> StanClient:
    client = StanClient(port, client_id, **login)
    client.connect()
    return client


class TestStart:
    def lines(self, server: Server, *expected: list[str]) -> None:
        patterns = [pattern for group in expected for pattern in group]
        # The monitor's line stands among those of the nats-server in the original; which comes
        # first is not promised.
        shown = [line for line in server.lines() if not re.fullmatch(MONITOR[0], line)]
        assert len(server.lines()) == len(shown) + 1
        for line, pattern in zip(shown, patterns, strict=True):
            assert re.fullmatch(pattern, line), (line, pattern)

    def test_a_memory_server_says_what_operators_know(self, stage: Stage) -> None:
        server = ready(stage.server("server"))
        self.lines(
            server,
            STARTING,
            NATS_SERVER,
            RECOVERING,
            [r"\[INF\] STREAM: No recovered state", r"\[INF\] STREAM: Message store is MEMORY"],
            LIMITS,
        )

    def test_a_file_server_says_what_it_recovered_and_where_it_is(self, stage: Stage) -> None:
        place = [
            r"\[INF\] STREAM: Message store is FILE",
            rf"\[INF\] STREAM: Store location: {re.escape(str(stage.store))}",
        ]
        server = ready(stage.file_server("first"))
        self.lines(
            server,
            STARTING,
            NATS_SERVER,
            RECOVERING,
            [r"\[INF\] STREAM: No recovered state"],
            place,
            LIMITS,
        )
        connected(server.port).publish(CHANNEL, b"one")
        server.signal(signal.SIGINT)
        assert server.status() == 0

        server = ready(stage.file_server("later"))
        recovered = [r"\[INF\] STREAM: Recovered 1 channel\(s\)"]
        self.lines(server, STARTING, NATS_SERVER, RECOVERING, recovered, place, LIMITS)


class TestRefusals:
    def test_a_second_server_on_one_directory_gives_up_and_names_the_holder(
        self, stage: Stage
    ) -> None:
        first = ready(stage.file_server("first"))
        second = stage.file_server("second", cluster="another")
        assert second.status() == 1
        (line,) = fatal(second)
        assert line.startswith(
            f"[FTL] STREAM: Failed to start: datastore {stage.store} is in use by "
        )
        assert str(first.pid) in line
        assert f"server {socket.gethostname()}:{first.port} on host" in line
        connected(first.port).publish(CHANNEL, b"the first one serves")

    def test_a_second_server_starts_once_the_first_has_let_go(self, stage: Stage) -> None:
        first = ready(stage.file_server("first"))
        second = stage.file_server("second")
        second.wait_for("Server is ready")
        first.signal(signal.SIGTERM)
        assert first.status() == 143
        ready(second)

    def test_a_second_server_of_one_cluster_id_on_one_nats_is_refused(self, stage: Stage) -> None:
        nats = stage.nats()
        first = ready(stage.server("first", "-ns", nats.url))
        second = stage.server("second", "-ns", nats.url)
        assert second.status() == 1
        assert fatal(second) == [
            (
                "[FTL] STREAM: Failed to start: discovered another streaming server with cluster "
                "ID "
                f'"{CLUSTER}"'
            )
        ]
        connected(nats.port).publish(CHANNEL, b"the first one serves")
        assert first.serverz()["clients"] == 1

    def test_another_cluster_id_than_that_of_the_datastore_is_refused(self, stage: Stage) -> None:
        first = ready(stage.file_server("first"))
        first.signal(signal.SIGINT)
        assert first.status() == 0
        second = stage.file_server("second", cluster="another")
        assert second.status() == 1
        assert fatal(second) == [
            (
                '[FTL] STREAM: Failed to start: cluster ID "another" does not match recovered '
                "value "
                f'of "{CLUSTER}"'
            )
        ]

    def test_a_taken_client_port_is_one_line(self, stage: Stage) -> None:
        with socket.create_server((HOST, 0)) as taken:
            port = taken.getsockname()[1]
            server = stage.server("server", port=port)
            assert server.status() == 1
        assert fatal(server) == [
            (
                f'[FTL] Error listening on port: {HOST}:{port}, "listen tcp {HOST}:{port}: bind: '
                'address already in use"'
            )
        ]

    def test_a_nats_server_that_is_not_there_is_one_line(self, stage: Stage) -> None:
        (port,) = free_ports(1)
        server = stage.server("server", "-ns", f"nats://{HOST}:{port}")
        assert server.status() == 1
        (line,) = fatal(server)
        assert line.startswith(
            "[FTL] STREAM: Failed to start: nats: no servers available for connection"
        )


class TestNats:
    def test_a_nats_server_that_is_killed_is_started_again_and_publishes_go_on(
        self, stage: Stage
    ) -> None:
        server = ready(stage.file_server("server"))
        client = connected(server.port)
        client.publish(CHANNEL, b"one")
        (child,) = children(server.pid)

        os.kill(child, signal.SIGKILL)
        server.wait_for("nats-server is running again")

        client.move(server.port)
        assert client.ping() == ""
        client.publish(CHANNEL, b"two")
        assert client.read_to(CHANNEL, 2) == {1: b"one", 2: b"two"}
        assert children(server.pid) != [child]

    def test_the_nats_server_dies_with_a_server_that_is_killed(self, stage: Stage) -> None:
        server = ready(stage.server("server"))
        below = children(server.pid)
        assert len(below) == 1
        server.kill()
        wait_until_gone(below[0])

    @pytest.mark.parametrize(
        ("words", "login"),
        [
            (("-user", "ivan", "-pass", "secret"), {"user": "ivan", "password": "secret"}),
            (("-auth", "token"), {"token": "token"}),
        ],
    )
    def test_credentials_protect_the_embedded_server_and_let_ours_in(
        self, stage: Stage, words: tuple[str, ...], login: dict[str, str]
    ) -> None:
        server = ready(stage.server("server", *words))
        with pytest.raises(NatsError, match="Authorization Violation"):
            NatsConnection(server.port)
        connected(server.port, **login).publish(CHANNEL, b"one")
        secret = [*login.values()][-1]
        assert secret not in server.text()

    def test_the_second_nats_server_is_used_when_the_first_dies(self, stage: Stage) -> None:
        first = stage.nats("nats-1")
        second = stage.nats("nats-2")
        server = ready(stage.file_server("server", "-ns", f"{first.url},{second.url}"))
        client = connected(first.port)
        client.publish(CHANNEL, b"one")

        first.kill()

        client.move(second.port)
        assert client.ping() == ""
        client.publish(CHANNEL, b"two")
        assert client.read_to(CHANNEL, 2) == {1: b"one", 2: b"two"}
        assert server.text().count("has been disconnected") == 1
        assert server.text().count(f'reconnected to NATS Server at "{second.url}"') == 1


class TestSignals:
    def test_sigusr1_reopens_the_log(self, stage: Stage) -> None:
        log = stage.directory / "rotated.log"
        server = stage.server("server", "-l", str(log))
        until(lambda: log.exists() and READY in log.read_text(), "the server to be ready")
        old = log.rename(stage.directory / "rotated.log.1")

        server.signal(signal.SIGUSR1)

        until(
            lambda: log.exists() and "STREAM: File log re-opened" in log.read_text(),
            "the new log file",
        )
        assert READY in old.read_text()
        assert READY not in log.read_text()
        connected(server.port).publish(CHANNEL, b"one")

    @pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
    def test_a_clean_stop_has_the_status_that_operators_know(
        self, stage: Stage, number: signal.Signals, status: int
    ) -> None:
        server = ready(stage.file_server("server"))
        connected(server.port).publish(CHANNEL, b"one")
        below = children(server.pid)
        server.signal(number)
        assert server.status() == status
        assert "[INF] STREAM: Shutting down." in server.lines()
        assert not [pid for pid in below if alive(pid)]


class TestFullDisk:
    @staticmethod
    def accepted(client: StanClient) -> bool:
        guids = client.offer(CHANNEL, b"room again")
        client.settle(guids)
        return guids[0] in client.acks

    def test_publishes_fail_reads_go_on_and_nothing_acked_is_lost(self, stage: Stage) -> None:
        disk = SmallDisk(stage)
        server = ready(stage.file_server("server", wrap=disk.wrap))
        client = connected(server.port)
        slow = client.subscribe(CHANNEL, acks=False, max_in_flight=1)
        payloads: dict[bytes, bytes] = {}

        def offer(size: int) -> None:
            batch = [b"%d " % n + bytes(size) for n in range(len(payloads), len(payloads) + 16)]
            guids = client.offer(CHANNEL, *batch)
            payloads.update(zip(guids, batch, strict=True))
            client.settle(guids)

        while not client.errors:
            offer(10_000)
        for _ in range(3):
            offer(100_000)
        assert client.acks
        assert all(
            "No space left on device" in text for texts in client.errors.values() for text in texts
        )
        assert server.running
        assert server.metrics()["ftstan_failed_commits"].samples[0].value >= 1

        # Reading needs no room: the subscription that was there goes on to the last message that
        # was acked.
        expected = {payloads[guid] for guid in client.acks}
        for count in range(1, len(expected) + 1):
            client.nats.pump(partial(slow.has, count), f"message {count} of {len(expected)}")
            client.ack(slow, slow.sequences[-1])
        assert slow.sequences == list(range(1, len(expected) + 1))
        assert {message.data for message in slow.received} == expected

        disk.make_room()
        # A full disk is not asked again with every batch: it takes up to a second to be noticed.
        client.nats.pump(lambda: self.accepted(client), "room to be noticed")
        server.kill()
        later = ready(stage.file_server("server", wrap=disk.wrap))
        client.move(later.port)
        assert client.ping() == ""
        contents = client.read_to(CHANNEL, len(expected) + 1)
        assert contents == {
            **{m.sequence: m.data for m in slow.received},
            len(expected) + 1: b"room again",
        }
