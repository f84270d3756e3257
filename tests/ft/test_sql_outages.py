"""Databases that crash, stop and hang under a server, with everything synced: nothing acknowledged
is lost, and a server that cannot go on says so and ends with the status of one that comes back.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import NatsError
from tests.ft.client import StanClient
from tests.ft.load import CHANNEL, Load
from tests.processes import READY, ROOT, free_ports
from tests.sqlservers import DRIVERS, SqlServers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.processes import Server, Stage

pytestmark = pytest.mark.processes

EXIT_FENCED = 75
_SCRIPT = ROOT / "tools" / "sql_servers.sh"


def run_script(
    what: str, servers: SqlServers, driver: str = "", *, wrap: tuple[str, ...] = ()
) -> None:
    """Start, stop or kill private servers, both or the one of ``driver``, with syncs.

    ``wrap``: words before the command.
    """
    # A file: the servers go on with what they are started with, and nobody would see its end.
    with (servers.place / "said").open("w+", encoding="utf-8") as said:
        done = subprocess.run(
            [*wrap, str(_SCRIPT), what, str(servers.place), *([driver] if driver else [])],
            env={
                **os.environ,
                "PG_PORT": str(servers.pg),
                "MY_PORT": str(servers.my),
                "FAST": "0",
            },
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            timeout=120,
            check=False,
        )
        said.seek(0)
        assert done.returncode == 0, said.read()


@pytest.fixture(scope="module")
def servers() -> Iterator[SqlServers]:
    """Both, for this file alone, and synced."""
    place = Path(tempfile.mkdtemp(prefix="ftsql-", dir="/tmp"))
    place.chmod(0o755)
    made = SqlServers(place, *free_ports(2))
    run_script("start", made)
    yield made
    run_script("kill", made)
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(params=DRIVERS)
def words(request: pytest.FixtureRequest, servers: SqlServers) -> tuple[str, ...]:
    text = servers.create(request.param)
    return ("-store", "sql", "-sql_driver", request.param, "-sql_source", text)


def _start(stage: Stage, words: tuple[str, ...], ports: list[int]) -> Server:
    server = stage.server("server", *words, port=ports[0], monitor=ports[1])
    server.wait_for(READY)
    return server


def _read_until(load: Load, client: StanClient, done: float) -> None:
    """Take what comes; the end of the server is no failure of this test."""
    try:
        while time.monotonic() < done and load.unanswered:
            client.nats.read(0.05)
    except NatsError:
        pass


@pytest.mark.parametrize("what", ["kill", "stop"])
def test_a_database_that_comes_back_at_once_is_gone_on_with(
    stage: Stage, words: tuple[str, ...], servers: SqlServers, what: str
) -> None:
    ports = free_ports(2)
    server = _start(stage, words, ports)
    client = StanClient(server.port, "publisher")
    client.connect()
    load = Load()
    load.join(client)
    load.run(500)
    run_script(what, servers)
    run_script("start", servers)
    _read_until(load, client, time.monotonic() + 5)
    load.give_up()
    if not server.running:
        # It took too long, or the outcome of a commit could not be found out.
        assert server.status() == EXIT_FENCED
        server = _start(stage, words, ports)
    reader = StanClient(server.port, "reader")
    reader.connect()
    load.judge(reader.read_all(CHANNEL))
    server.stop(10)


def test_a_server_whose_database_stays_away_ends_with_one_line(
    stage: Stage, words: tuple[str, ...], servers: SqlServers
) -> None:
    ports = free_ports(2)
    server = _start(stage, words, ports)
    client = StanClient(server.port, "publisher")
    client.connect()
    load = Load()
    load.join(client)
    load.run(300)
    run_script("stop", servers)
    assert server.status(within=30) == EXIT_FENCED
    assert "Traceback" not in server.text()
    run_script("start", servers)
    _read_until(load, client, time.monotonic() + 1)
    load.give_up()
    server = _start(stage, words, ports)
    reader = StanClient(server.port, "reader")
    reader.connect()
    load.judge(reader.read_all(CHANNEL))
    server.stop(10)
