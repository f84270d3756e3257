"""Many connections to the monitoring port of a real server take nothing away from its clients."""

from __future__ import annotations

import os
import resource
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from tests.processes import HOST, READY, children, until

if TYPE_CHECKING:
    from tests.processes import Server, Stage

pytestmark = pytest.mark.processes

FILES = 256


def crowd(server: Server, count: int) -> list[socket.socket]:
    """Connections from many addresses that ask nothing."""
    return [
        socket.create_connection(
            (HOST, server.monitor), timeout=10, source_address=(f"127.0.1.{n % 20 + 1}", 0)
        )
        for n in range(count)
    ]


def test_idle_connections_leave_descriptors_for_the_child_and_the_log_readable(
    stage: Stage,
) -> None:
    server = stage.file_server("server")
    server.wait_for(READY)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
    (nats,) = children(server.pid)
    visitors = crowd(server, 400)
    try:
        until(lambda: "nearly all of the 256 files" in server.text(), "a refusal")
        assert len(os.listdir(f"/proc/{server.pid}/fd")) < FILES
        os.kill(nats, signal.SIGKILL)
        server.wait_for("nats-server is running again")
        lines = [line for line in server.lines() if "monitoring: " in line]
        assert len(lines) < 10
    finally:
        for visitor in visitors:
            visitor.close()
    until(lambda: server.get("/streaming/serverz")[0] == 200, "the pages")
    assert "Traceback" not in server.text()
