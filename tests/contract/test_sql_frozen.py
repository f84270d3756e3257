"""A tool and a database that stops to answer in the middle of a query: one line, not a wait without
end. One that is merely slow is waited for.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import StoreError
from ftstan.cli import ctl
from ftstan.stores.sql.session import LostError
from ftstan.stores.sql.source import parse
from ftstan.stores.sql.tools import watch
from ftstan.stores.sql.tools.reading import Reading
from tests.contract.test_sql_tools import named
from tests.processes import HOST, PATIENCE_S
from tests.sqlservers import DRIVERS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.sqlservers import SqlServers

SLOW = {"postgres": "SELECT pg_sleep({})", "mysql": "SELECT SLEEP({})"}


class Way:
    """A way to a database that can freeze as a host does: the kernel accepts, nobody answers."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._flows = threading.Event()
        self._flows.set()
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze(self) -> None:
        self._flows.clear()

    def close(self) -> None:
        self._flows.set()
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                self._flows.wait()
                server = socket.create_connection((HOST, self._to))
                self._sockets += [client, server]
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=partial(self._carry, *pair), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self._flows.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def way(driver: str, sql_servers: SqlServers) -> Iterator[Way]:
    made = Way(sql_servers.pg if driver == "postgres" else sql_servers.my)
    yield made
    made.close()


@pytest.fixture
def text(driver: str, way: Way, sql_servers: SqlServers) -> Iterator[str]:
    """The source of an empty store, by that way."""
    direct = sql_servers.create(driver)
    database = parse(driver, direct, {}).database
    if driver == "postgres":
        yield f"host={HOST} port={way.port} user=nss dbname={database} sslmode=disable"
    else:
        yield f"nss:nss@tcp({HOST}:{way.port})/{database}"
    sql_servers.drop(direct)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "EVERY_S", 0.5)
    monkeypatch.setattr(watch, "SILENT_S", 3.0)


def test_a_query_of_a_database_that_freezes_ends_with_one_line(
    driver: str, text: str, way: Way
) -> None:
    reading = Reading(parse(driver, text, {}))
    timer = threading.Timer(0.5, way.freeze)
    timer.start()
    with pytest.raises(LostError, match="answers nobody: no new connection to it for") as caught:
        reading.query(SLOW[driver].format(PATIENCE_S))
    timer.join()
    assert "check the database server" in caught.value.hint
    reading.close()


def test_a_query_that_takes_longer_than_that_is_waited_for(
    driver: str, text: str, way: Way
) -> None:
    del way
    reading = Reading(parse(driver, text, {}))
    began = time.monotonic()
    assert len(reading.query(SLOW[driver].format(6))) == 1
    assert time.monotonic() - began > watch.SILENT_S
    reading.close()


@pytest.mark.parametrize("words", [("ls",), ("purge", "foo", "--yes"), ("check-store",)])
def test_a_command_on_a_database_that_is_frozen_says_so_and_ends(
    driver: str, text: str, way: Way, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    *, words: tuple[str, ...],
) -> None:  # fmt: skip
    place = named(tmp_path, driver, text)
    way.freeze()
    command = ["check-store", place] if words[0] == "check-store" else [
        "store", words[0], place, *words[1:],
    ]  # fmt: skip
    status = ctl.main(command)
    said = capsys.readouterr()
    assert status != 0
    assert "Traceback" not in said.err + said.out
    assert "sql: " in said.err


def test_a_session_that_was_ended_by_the_watch_is_lost_and_a_new_one_is_made(
    driver: str, text: str
) -> None:
    reading = Reading(parse(driver, text, {}))
    reading.query("SELECT 1")
    reading._fence.session().abort("because")
    with pytest.raises(StoreError, match="because"):
        reading.query("SELECT 1")
    assert [tuple(row) for row in reading.query("SELECT 1")] == [(1,)]
    reading.close()
