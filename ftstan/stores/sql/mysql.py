"""A session with MySQL or MariaDB, through mysqlclient, or PyMySQL where that is missing."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from typing import TYPE_CHECKING, Any

from ftstan.base.errors import RecoveryError, StoreError, StoreFullError
from ftstan.stores.sql import rows
from ftstan.stores.sql.session import (
    IDLE_MS,
    LEAST_PACKET,
    LOCK_WAIT_MS,
    MOST_PACKET,
    SILENT_HINT,
    AbsentTableError,
    LostError,
    ReadOnlyError,
    RightsError,
    Session,
    TooLargeError,
    TransientError,
    chunks_of,
    scrubbed,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftstan.stores.sql.session import Row
    from ftstan.stores.sql.source import Source
    from ftstan.wire.block import MsgBlock

try:
    import MySQLdb as library  # noqa: N813  # one name for both

    LIBRARY = "MySQLdb"
except ImportError:
    import pymysql as library

    LIBRARY = "pymysql"

_CONNECT_S = 5
#: Seconds of silence until the peer is asked, seconds between two questions, how many; and
#: milliseconds that what we sent may go unacknowledged.
_KEEPALIVE = (
    (socket.TCP_KEEPIDLE, 5),
    (socket.TCP_KEEPINTVL, 2),
    (socket.TCP_KEEPCNT, 3),
    (socket.TCP_USER_TIMEOUT, 10_000),
)
#: Whatever the source says. Strict: a value is stored whole or not at all. Without
#: NO_BACKSLASH_ESCAPES and ANSI_QUOTES: quoting is ours.
_SETTINGS = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET SESSION TRANSACTION READ WRITE",
    "SET SESSION autocommit = 1",
    "SET NAMES utf8mb4",
    f"SET SESSION innodb_lock_wait_timeout = {LOCK_WAIT_MS // 1000}",
)
_BLOBS = {
    "tinyblob": (1 << 8) - 1,
    "blob": (1 << 16) - 1,
    "mediumblob": (1 << 24) - 1,
    "longblob": (1 << 32) - 1,
}
# Numbers of errors, as both servers have them.
_TRANSIENT = (1205, 1213, 3024, 1969, 1317, 3572)
_LOST = (1040, 1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1226, 1927, 3169, 4031)
_READ_ONLY = (1290, 1792, 1836)
_FULL = (1021, 1041, 1114)
_RIGHTS = (1044, 1095, 1142, 1143, 1227, 1370)
_ABSENT = (1054, 1146)
_TOO_LARGE = (1153, 1264, 1406, 1301, 1118)
#: Numbers of the client libraries: 2000 and more.
_CLIENT = range(2000, 3000)

_ENGINES = (
    "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = DATABASE()"
    " AND table_name IN ('ServerInfo', 'Clients', 'Channels', 'Messages', 'Subscriptions',"
    " 'SubsPending', 'StoreLock', 'ftstan_epoch', 'ftstan_history', 'ftstan_remembered')"
)
_DATA_TYPE = (
    "SELECT data_type FROM information_schema.columns WHERE table_schema = DATABASE()"
    " AND table_name = 'Messages' AND column_name = 'data'"
)


class MysqlSession(Session):
    """See ``Session``."""

    driver = "mysql"
    row = "`row`"
    exactly = "CAST(%s AS CHAR CHARACTER SET utf8mb4) COLLATE utf8mb4_bin"

    def __init__(self, source: Source) -> None:
        """Connect. Raises ``LostError``."""
        self._secret = source.password
        arguments = {"connect_timeout": _CONNECT_S} | source.connect_arguments(LIBRARY)
        read_timeout = arguments.get("read_timeout")
        if LIBRARY == "pymysql":
            # Its time-out of connecting is over before the server greets.
            arguments["read_timeout"] = read_timeout or arguments["connect_timeout"]
        settings = dict(source.settings)
        try:
            self._connection: Any = library.connect(**arguments)
        except (library.Error, OSError) as error:
            raise LostError(
                f"sql: {scrubbed(_text(error), self._secret)}",
                hint="check the database and -sql_source",
            ) from None
        self._open = True
        if LIBRARY == "pymysql":
            self._connection._read_timeout = read_timeout  # noqa: SLF001  # nothing else sets it
        if not source.socket:
            self._bound_silence()
        self._database = ""
        self._packet = LEAST_PACKET
        try:
            if source.tls.demanded and not self.query("SHOW STATUS LIKE 'Ssl_cipher'")[0][1]:
                # MariaDB's client library lets a server, or whoever is in between, do without.
                raise LostError(
                    "sql: TLS was asked for and the database server has none",
                    hint="switch TLS on there, or leave tls out of -sql_source",
                )
            self._connection.autocommit(True)
            for name, value in settings.items():
                self.execute(f"SET SESSION {_identifier(name)} = {value}")
            for statement in _SETTINGS:
                self.execute(statement)
            with contextlib.suppress(StoreError):
                # MariaDB's; MySQL has none, and waits as long as the connection lives.
                self.execute(f"SET SESSION idle_transaction_timeout = {IDLE_MS // 1000}")
            database, packet = self.query("SELECT DATABASE(), @@max_allowed_packet")[0]
            self._database = str(database)
            # What is said of a statement counts its command, too.
            self._packet = max(int(packet) - 1024, 512)
            found = self.query(_DATA_TYPE)
            self.most_data = _BLOBS.get(str(found[0][0]).lower(), _BLOBS["blob"]) if found else 0
        except StoreError:
            self.close()
            raise

    def _bound_silence(self) -> None:
        """Let a network on which nothing comes back end the connection, as libpq is told to."""
        with socket.socket(fileno=os.dup(self._descriptor())) as copy:
            copy.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                copy.setsockopt(socket.IPPROTO_TCP, option, value)

    # ---- statements

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> int:
        """Run a statement; the number of rows that it found."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(sql, parameters or None)
                return int(cursor.rowcount)
        except (library.Error, OSError) as error:
            raise self._translated(error, sql) from None

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        """Run a query and read all of its rows."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(sql, parameters or None)
                return list(cursor.fetchall())
        except (library.Error, OSError) as error:
            raise self._translated(error, sql) from None

    def execute_many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        """Run a statement for each of the rows; an INSERT becomes one statement of many rows."""
        try:
            if rows:
                with self._connection.cursor() as cursor:
                    cursor.executemany(sql, rows)
        except (library.Error, OSError) as error:
            raise self._translated(error, sql) from None

    def insert_messages(self, blocks: Sequence[tuple[int, MsgBlock]]) -> None:
        """Insert messages with statements of many rows, each within a packet."""
        most = min(self._packet, MOST_PACKET)
        for group in chunks_of(blocks, MOST_PACKET):
            for statement in rows.insert_statements(group, most):
                if len(statement) > self._packet:
                    raise TooLargeError(
                        f"sql: a message of {len(statement)} bytes is larger than the server's "
                        f"max_allowed_packet ({self._packet + 1024})",
                        hint="raise max_allowed_packet on the server",
                    )
                try:
                    with self._connection.cursor() as cursor:
                        cursor.execute(statement)
                except (library.Error, OSError) as error:
                    raise self._translated(error, "INSERT INTO Messages ...") from None

    # ---- transactions

    def commit(self) -> None:
        """Commit."""
        self.execute("COMMIT")

    def rollback(self) -> None:
        """Give up the transaction."""
        try:
            self.execute("ROLLBACK")
        except StoreError:
            self.close()

    def wait_at_most(self, milliseconds: int) -> None:
        """Let statements wait so long for locked rows from now on; whole seconds."""
        self.execute(f"SET SESSION innodb_lock_wait_timeout = {max(milliseconds // 1000, 1):d}")

    def limit_statements(self, milliseconds: int) -> None:
        """The servers have no common setting for statements that write."""

    # ---- locks of a session

    def _name(self, name: str) -> str:
        # Such locks belong to the server, not to a database of it.
        digest = hashlib.sha256(f"{self._database}\0{name}".encode()).hexdigest()
        return f"ftstan.{digest[:40]}"

    def try_name(self, name: str) -> bool:
        """A lock of the session."""
        return bool(self.query("SELECT GET_LOCK(%s, 0)", (self._name(name),))[0][0])

    def release_name(self, name: str) -> None:
        """Give it back."""
        self.query("SELECT RELEASE_LOCK(%s)", (self._name(name),))

    def end_holder(self, name: str) -> bool:
        """End the session that has it."""
        holder, ours = self.query("SELECT IS_USED_LOCK(%s), CONNECTION_ID()", (self._name(name),))[
            0
        ]
        if holder is None or holder == ours:
            return False
        try:
            self.execute(f"KILL CONNECTION {int(holder):d}")
        except RightsError:
            raise
        except LostError:
            raise
        except StoreError:
            # It has just ended.
            pass
        return True

    # ---- the server

    def number(self) -> int:
        """That of the connection."""
        return int(self.query("SELECT CONNECTION_ID()")[0][0])

    def check(self) -> None:
        """Refuse tables without transactions."""
        bad = sorted(str(name) for name, engine in self.query(_ENGINES) if engine != "InnoDB")
        if bad:
            raise RecoveryError(
                f"sql: the engine of {', '.join(bad)} is not InnoDB: there are no transactions",
                hint=f"run: ALTER TABLE {bad[0]} ENGINE=InnoDB",
            )

    @property
    def is_lost(self) -> bool:
        """Whether the connection is known to be gone."""
        return not self._open

    def close(self) -> None:
        """Close it."""
        self._open = False
        with contextlib.suppress(library.Error, OSError):
            self._connection.close()
        self._let_go()

    def _descriptor(self) -> int:
        known = getattr(self._connection, "_sock", None)
        return int(self._connection.fileno() if known is None else known.fileno())

    def _translated(self, error: Exception, sql: str) -> StoreError:
        if self.aborted:
            self.close()
            return LostError(self.aborted, hint=SILENT_HINT)
        number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        text = scrubbed(_text(error), self._secret)
        told = f'sql: error executing "{shortened(sql)}": {text}'
        if number in _READ_ONLY:
            return ReadOnlyError(told, hint="the server is a replica, or was made read-only")
        if number in _LOST or number in _CLIENT or number == 0 or isinstance(error, OSError):
            self.close()
            return LostError(told, hint="check the database and the network")
        if number in _TRANSIENT:
            return TransientError(told)
        if number in _FULL:
            return StoreFullError(told, hint="make room for the database")
        if number in _RIGHTS:
            return RightsError(told)
        if number in _ABSENT:
            return AbsentTableError(told)
        if number in _TOO_LARGE:
            return TooLargeError(
                told,
                hint="if it is the column: ALTER TABLE Messages MODIFY data LONGBLOB",
            )
        return StoreError(told)


def _text(error: Exception) -> str:
    return ": ".join(str(part) for part in error.args) or "the connection is closed"


def _identifier(name: str) -> str:
    """The name of a setting. Raises ``StoreError`` for one that cannot be one."""
    if not name.replace("_", "").replace(".", "").replace("@", "").isalnum():
        raise StoreError(f"sql: {name!r} is no name of a setting")
    return name
