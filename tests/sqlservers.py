"""Databases for tests: real PostgreSQL and MariaDB servers, private to this run of pytest.

They are started when the first test asks, once for all workers, and stopped by the last worker that
asked. Nothing is synced: what needs a power cut or a crash of the database starts its own
(``tools/sql_servers.sh``). Every test gets a database of its own, with the original's tables.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.stores.sql.source import parse
from ftstan.stores.sql.tables import statements
from tests.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.stores.sql.source import Source

DRIVERS = ("postgres", "mysql")
_SCRIPT = ROOT / "tools" / "sql_servers.sh"


@dataclass(frozen=True)
class SqlServers:
    """Both servers. ``pg`` and ``my``: their ports; sockets are below ``place``."""

    place: Path
    pg: int
    my: int

    def text(self, driver: str, database: str) -> str:
        """A source."""
        if driver == "postgres":
            return (
                f"host={self.place / 'pg'} port={self.pg} user=nss dbname={database} "
                "sslmode=disable"
            )
        return f"nss:nss@unix({self.place / 'my' / 's'})/{database}"

    def create(self, driver: str, *, tables: bool = True) -> str:
        """A new database, with the tables unless they are not wanted; returns its source."""
        name = f"t{uuid.uuid4().hex[:16]}"
        if driver == "mysql":
            execute(parse(driver, self.text(driver, "")), f"CREATE DATABASE {name}")
        else:
            execute(parse(driver, self.text(driver, "postgres"), {}), f"CREATE DATABASE {name}")
        text = self.text(driver, name)
        if tables:
            execute(parse(driver, text, {}), *statements(driver))
        return text

    def drop(self, text: str) -> None:
        """Remove a database, whoever still uses it."""
        driver = "mysql" if text.startswith("nss:") else "postgres"
        name = parse(driver, text, {}).database
        if driver == "mysql":
            _end_sessions(parse(driver, self.text(driver, "")), name)
            execute(parse(driver, self.text(driver, "")), f"DROP DATABASE {name}")
        else:
            _drop_forced(parse(driver, self.text(driver, "postgres"), {}), name)


def _drop_forced(source: Source, database: str) -> None:
    """Drop a database of PostgreSQL, whoever is in it."""
    for left in reversed(range(50)):
        try:
            execute(source, f"DROP DATABASE {database} WITH (FORCE)")
        except Exception as error:  # the server's own cleaner is there, whom we may not end
            if not left or "pg_signal_backend" not in str(error):
                raise
            time.sleep(0.1)
        else:
            return


def _end_sessions(source: Source, database: str) -> None:
    """End whoever is in a database: a transaction left open would hold up its removal."""
    held = f"SELECT id FROM information_schema.processlist WHERE db = '{database}'"
    for (number,) in execute(source, held):
        try:
            execute(source, f"KILL CONNECTION {number}")
        except Exception as error:  # the session may have ended meanwhile
            if "Unknown thread" not in str(error):
                raise


def execute(source: Source, *wanted: str) -> list[Any]:
    """Run statements on a connection of their own; returns the rows of the last one."""
    if not wanted:
        return []
    if source.driver == "postgres":
        import psycopg  # noqa: PLC0415  # tests of other things need no client library

        with psycopg.connect(**source.connect_arguments(), autocommit=True) as connection:
            for one in wanted:
                cursor = connection.execute(one.encode())
            return cursor.fetchall() if cursor.description else []
    import pymysql  # noqa: PLC0415

    connection = pymysql.connect(**source.connect_arguments("pymysql"), autocommit=True)
    try:
        with connection.cursor() as cursor:
            for one in wanted:
                cursor.execute(one)
            return list(cursor.fetchall())
    finally:
        connection.close()


def _free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


@contextmanager
def _state(path: Path) -> Iterator[dict[str, Any]]:
    """What the workers of a run know of the servers, for one of them at a time."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        said = json.loads(file.read() or "{}")
        yield said
        file.seek(0)
        file.truncate()
        file.write(json.dumps(said))


def _run(what: str, servers: SqlServers, *drivers: str) -> None:
    environment = {
        **os.environ,
        "PG_PORT": str(servers.pg),
        "MY_PORT": str(servers.my),
        "FAST": "1",
    }
    # A file, not a pipe: the servers keep it open.
    with (servers.place / "stderr").open("w+", encoding="utf-8") as errors:
        done = subprocess.run(
            [str(_SCRIPT), what, str(servers.place), *drivers],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            timeout=120,
            check=False,
        )
        errors.seek(0)
        said = errors.read().strip()
    if done.returncode:
        pytest.fail(f"{said}; run: tools/system_packages.sh", pytrace=False)


@contextmanager
def own_servers(driver: str) -> Iterator[SqlServers]:
    """One server for one test."""
    place = Path(tempfile.mkdtemp(prefix="ftsql-", dir="/tmp"))
    place.chmod(0o755)
    servers = SqlServers(place, _free_port(), _free_port())
    try:
        _run("start", servers, driver)
        yield servers
    finally:
        _run("kill", servers)
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="session")
def sql_servers(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[SqlServers]:
    """Both servers, the same ones for every worker."""
    base = tmp_path_factory.getbasetemp()
    path = (base if worker_id == "master" else base.parent) / "sql-servers.json"
    with _state(path) as said:
        if not said.get("users"):
            # Not below pytest's own directory: its path may be too long for a socket.
            place = Path(tempfile.mkdtemp(prefix="ftsql-", dir="/tmp"))
            place.chmod(0o755)
            said |= {"users": 0, "place": str(place), "pg": _free_port(), "my": _free_port()}
            try:
                _run("start", SqlServers(place, said["pg"], said["my"]))
            except BaseException:
                _run("kill", SqlServers(place, said["pg"], said["my"]))
                raise
        said["users"] += 1
        servers = SqlServers(Path(said["place"]), said["pg"], said["my"])
    yield servers
    with _state(path) as said:
        said["users"] -= 1
        if not said["users"]:
            _run("stop", servers)
            shutil.rmtree(servers.place, ignore_errors=True)


@pytest.fixture(params=DRIVERS)
def sql_text(request: pytest.FixtureRequest, sql_servers: SqlServers) -> Iterator[str]:
    """The source, as operators write it, of a database with tables: one of each kind."""
    text = sql_servers.create(request.param)
    yield text
    sql_servers.drop(text)


@pytest.fixture
def sql_source(sql_text: str) -> Source:
    """The same as a value."""
    return parse("mysql" if sql_text.startswith("nss:") else "postgres", sql_text, {})
