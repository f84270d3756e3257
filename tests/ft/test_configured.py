"""Real servers started from configuration files: both halves carry them out, and secrets stay where
they belong.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import NatsError
from ftstan.wire.subjects import Subjects
from tests.ft.client import NatsConnection, StanClient
from tests.processes import HOST, READY, children, free_ports

if TYPE_CHECKING:
    from tests.processes import Child, Stage

pytestmark = pytest.mark.processes

CHANNEL = b"orders"
LOGIN = ("-user", "srv", "-pass", "hunter2")

NATS = """
listen: {host}:{port}
authorization {{
  users: [ {{user: srv, password: $SECRET}}, {{user: app, password: "op3nsesame"}} ]
  timeout: 5
}}
max_payload: 2KB
ports_file_dir: "{directory}"
server_name: "mine"
"""
STREAMING = """
streaming {{
  cluster_id: configured
  store: file
  dir: "{directory}/store"
  discover_prefix: "_MY.discover"
  store_limits {{ max_msgs: 2 }}
}}
"""
YAML = """
listen: {host}:{port}
max_payload: 2KB
streaming:
  cluster_id: configured
  store_limits: {{max_msgs: 2}}
"""


def started(stage: Stage, text: str, name: str = "s.conf", *words: str) -> tuple[Child, int]:
    """A server with the file; the child and its port."""
    (port,) = free_ports(1)
    path = stage.directory / name
    path.write_text(text.format(host=HOST, port=port, directory=stage.directory))
    command = [sys.executable, "-m", "ftstan.cli.server", "-c", str(path), *words]
    child = stage.run("server", command, {**os.environ, "SECRET": "hunter2"})
    child.wait_for(READY)
    return child, port


def kept(client: StanClient) -> list[int]:
    """Publish three messages; the sequences that are there afterwards."""
    for n in range(3):
        client.publish(CHANNEL, b"%d" % n)
    subscription = client.subscribe(CHANNEL)
    client.nats.pump(lambda: subscription.sequences[-1:] == [3], "the last message")
    return list(subscription.sequences)


def test_a_server_does_what_both_halves_of_its_file_say(stage: Stage) -> None:
    server, port = started(stage, NATS + STREAMING, "s.conf", *LOGIN)
    with pytest.raises(NatsError, match="Authorization Violation"):
        NatsConnection(port)
    client = StanClient(port, cluster="configured", user="app", password="op3nsesame")
    client._subjects = Subjects.for_cluster("configured", "_MY.discover")
    client.connect()
    assert kept(client) == [2, 3]
    assert (stage.directory / "store/orders").is_dir()

    assert server.text().count(f"[INF] Using configuration file: {stage.directory}/s.conf\n") == 1
    (nats,) = children(server.pid)
    assert b"hunter2" not in Path(f"/proc/{nats}/cmdline").read_bytes()
    for secret in ("hunter2", "op3nsesame"):
        assert secret not in server.text()


def test_the_ports_file_is_there_while_the_server_runs(stage: Stage) -> None:
    server, port = started(stage, NATS + STREAMING, "s.conf", *LOGIN)
    (path,) = stage.directory.glob(f"*_{server.pid}.ports")
    assert json.loads(path.read_text()) == {"nats": [f"nats://{HOST}:{port}"]}
    server.signal(signal.SIGINT)
    assert server.status() == 0
    assert not path.exists()


def test_a_yaml_file_does_the_same(stage: Stage) -> None:
    _, port = started(stage, YAML, "s.yaml")
    client = StanClient(port, cluster="configured")
    client.connect()
    assert kept(client) == [2, 3]


def test_a_member_of_a_group_reads_its_file_too(stage: Stage) -> None:
    server, _ = started(
        stage, NATS + STREAMING.replace("store: file", "store: file, ft_group: g"), "s.conf", *LOGIN
    )
    assert "Server is active" in server.text()
