"""A database server that only the demo uses: PostgreSQL or MariaDB, from the system's packages.

It listens on loopback, syncs as it is installed to, and is started and stopped by
``tools/sql_servers.sh``. It outlives every kill of the demo: those are for the STAN servers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile

from demo.processes import DemoError
from ftstan.drill.ports import free_ports
from ftstan.stores.sql.connecting import connect
from ftstan.stores.sql.source import parse
from ftstan.stores.sql.tables import statements

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_SCRIPT = os.path.join(_ROOT, "tools", "sql_servers.sh")
_NAME = "demo"
_START_S = 120.0


class Database:
    """One private server with one database and its tables. ``driver``: ``postgres``, ``mysql``."""

    def __init__(self, driver: str) -> None:
        """Nothing is started yet."""
        self.driver = driver
        self._place = ""
        (self._port,) = free_ports(1)

    @property
    def place(self) -> str:
        """The directory of its files, empty before ``start``."""
        return self._place

    def start(self) -> None:
        """Start it and make the tables. Raises ``DemoError`` in one line, ``FtstanError``."""
        # Not below the demo's own directory: its path may be too long for a socket.
        self._place = tempfile.mkdtemp(prefix=f"ftdemo-{os.getpid()}-", dir="/tmp")
        os.chmod(self._place, 0o755)
        self._run("start", self.driver)
        own = parse(self.driver, self._text("postgres" if self.driver == "postgres" else ""), {})
        session = connect(own)
        session.execute(f"CREATE DATABASE {_NAME}")
        session.close()
        session = connect(parse(self.driver, self.source, {}))
        for statement in statements(self.driver):
            session.execute(statement)
        session.close()

    @property
    def source(self) -> str:
        """What servers have as ``-sql_source``."""
        return self._text(_NAME)

    def stop(self) -> None:
        """Stop it if it was started; its files stay."""
        if self._place:
            self._run("stop")

    def remove(self) -> None:
        """Remove its files."""
        if self._place:
            shutil.rmtree(self._place, ignore_errors=True)
            self._place = ""

    def _text(self, database: str) -> str:
        if self.driver == "postgres":
            socket = os.path.join(self._place, "pg")
            return f"host={socket} port={self._port} user=nss dbname={database} sslmode=disable"
        return f"nss:nss@unix({os.path.join(self._place, 'my', 's')})/{database}"

    def _run(self, *words: str) -> None:
        what, *more = words
        ports = {"PG_PORT": str(self._port), "MY_PORT": str(self._port)}
        # A file, not a pipe: the server keeps it open.
        with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
            try:
                done = subprocess.run(
                    [_SCRIPT, what, self._place, *more],
                    env={**os.environ, **ports},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    timeout=_START_S,
                    # Ctrl-C is for the demo, which stops it last.
                    start_new_session=True,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise DemoError(f"{self.driver}: no {what} within {_START_S:.0f} s") from error
            errors.seek(0)
            said = " ".join(errors.read().split()).removeprefix("sql_servers.sh: ")
        if done.returncode:
            raise DemoError(
                f"no database: {said or f'{what} ended with status {done.returncode}'}",
                hint="tools/system_packages.sh installs the packages",
            )


def require_library(driver: str) -> None:
    """Raise ``DemoError`` unless the driver's client library is installed."""
    try:
        __import__("psycopg" if driver == "postgres" else "pymysql")
    except ImportError as error:
        raise DemoError(
            f"the client library of {driver} is not installed: {error}",
            hint="run: .venv/bin/pip install 'ftstan[sql]'",
        ) from error
