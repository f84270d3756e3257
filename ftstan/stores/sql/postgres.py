"""A session with PostgreSQL, through psycopg 3."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors as pg

from ftstan.base.errors import RecoveryError, StoreError, StoreFullError
from ftstan.stores.sql import rows
from ftstan.stores.sql.session import (
    IDLE_MS,
    LOCK_WAIT_MS,
    SILENT_HINT,
    STATEMENT_MS,
    AbsentTableError,
    LostError,
    ReadOnlyError,
    RightsError,
    Session,
    TooLargeError,
    TransientError,
    scrubbed,
    shortened,
)
from ftstan.stores.sql.tables import FENCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftstan.stores.sql.session import Row
    from ftstan.stores.sql.source import Source
    from ftstan.wire.block import MsgBlock

#: Below so many rows a statement with arrays is faster than a COPY.
_COPY_FROM_ROWS = 64
#: Bytes of one COPY: what is built at a time.
_COPY_BYTES = 8 << 20
_CONNECT_S = 5
#: Of a connection on which nothing comes back (milliseconds).
_UNACKED_MS = 10_000

#: Whatever the source says: these carry the promise that nothing acknowledged is lost.
_SETTINGS = (
    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
    "SET standard_conforming_strings = on",
    # ``local`` and above wait for the disk, and an operator may have asked for more.
    (
        "SELECT set_config('synchronous_commit', 'on', false)"
        " WHERE current_setting('synchronous_commit') IN ('off', 'local')"
    ),
    f"SET lock_timeout = {LOCK_WAIT_MS}",
    f"SET statement_timeout = {STATEMENT_MS}",
    f"SET idle_in_transaction_session_timeout = {IDLE_MS}",
)
_INSERT = (
    "INSERT INTO Messages (id, seq, timestamp, size, data) SELECT %s, * FROM "
    "unnest(%s::bigint[], %s::bigint[], %s::integer[], %s::bytea[])"
)
#: The same with the fence in it: a row of which there is none lets no message pass.
_INSERT_AT_ONCE = (
    f"WITH fence AS ({FENCE['postgres']} RETURNING 1)"
    " INSERT INTO Messages (id, seq, timestamp, size, data) SELECT %s::integer, given.* FROM fence,"
    " unnest(%s::bigint[], %s::bigint[], %s::integer[], %s::bytea[]) AS given"
)
_COPY = "COPY Messages (id, seq, timestamp, size, data) FROM STDIN (FORMAT BINARY)"
_HOLDER = (
    "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = %s::bigint::oid"
    " AND objid = %s::bigint::oid AND objsubid = 1 AND granted AND pid <> pg_backend_pid()"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_TRANSIENT = (
    pg.DeadlockDetected,
    pg.SerializationFailure,
    pg.LockNotAvailable,
    pg.QueryCanceled,
)
_LOST = (
    pg.AdminShutdown,
    pg.CrashShutdown,
    pg.CannotConnectNow,
    pg.IdleInTransactionSessionTimeout,
)
_FULL = (pg.DiskFull, pg.OutOfMemory)
_TOO_LARGE = (pg.StringDataRightTruncation, pg.ProgramLimitExceeded, pg.NumericValueOutOfRange)


class PostgresSession(Session):
    """See ``Session``."""

    driver = "postgres"
    most_data = (1 << 30) - (1 << 16)

    def __init__(self, source: Source) -> None:
        """Connect. Raises ``LostError``."""
        self._secret = source.password
        arguments: dict[str, Any] = {
            "connect_timeout": _CONNECT_S,
            "tcp_user_timeout": _UNACKED_MS,
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "application_name": "ftstan",
        } | source.connect_arguments()
        try:
            self._connection = psycopg.connect(**arguments, autocommit=True)
        except (psycopg.Error, OSError) as error:
            raise LostError(
                f"sql: {scrubbed(str(error), self._secret)}",
                hint="check the database and -sql_source",
            ) from None
        self._cursor = self._connection.cursor(binary=True)
        self._schema = ""
        try:
            for statement in _SETTINGS:
                self.execute(statement)
            self._schema = self.query("SELECT coalesce(current_schema(), '')")[0][0]
        except StoreError:
            self.close()
            raise

    # ---- statements

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> int:
        """Run a statement; the number of rows that it found."""
        try:
            return self._cursor.execute(sql, parameters or None).rowcount
        except (psycopg.Error, OSError) as error:
            raise self._translated(error, sql) from None

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        """Run a query and read all of its rows."""
        try:
            return self._cursor.execute(sql, parameters or None).fetchall()
        except (psycopg.Error, OSError) as error:
            raise self._translated(error, sql) from None

    def execute_many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        """Run a statement for each of the rows, in one round trip."""
        try:
            if rows:
                self._cursor.executemany(sql, rows)
        except (psycopg.Error, OSError) as error:
            raise self._translated(error, sql) from None

    def inserts_at_once(self, block: MsgBlock) -> bool:
        """A few, for which arrays are faster than a COPY."""
        return len(block) < _COPY_FROM_ROWS

    def insert_at_once(self, fence: Sequence[object], channel: int, block: MsgBlock) -> int:
        """Pass the fence and insert messages in one statement that commits itself."""
        try:
            lists = map(list, rows.row_lists(block))
            return self._cursor.execute(_INSERT_AT_ONCE, (*fence, channel, *lists)).rowcount
        except (psycopg.Error, OSError) as error:
            raise self._translated(error, _INSERT_AT_ONCE) from None

    def insert_messages(self, blocks: Sequence[tuple[int, MsgBlock]]) -> None:
        """Insert messages: a few by arrays, many by COPY."""
        count = sum(len(block) for _, block in blocks)
        try:
            if count < _COPY_FROM_ROWS and len(blocks) == 1:
                ((channel, block),) = blocks
                self._cursor.execute(_INSERT, (channel, *map(list, rows.row_lists(block))))
                return
            with self._cursor.copy(_COPY) as copy:
                copy.write(rows.copy_stream(list(blocks)))
        except (psycopg.Error, OSError) as error:
            raise self._translated(error, _COPY) from None
        except OverflowError:
            raise StoreError("sql: a sequence is beyond what a BIGINT holds") from None

    # ---- transactions

    def commit(self) -> None:
        """Commit."""
        try:
            status = self._cursor.execute("COMMIT").statusmessage
        except (psycopg.Error, OSError) as error:
            raise self._translated(error, "COMMIT") from None
        if status != "COMMIT":
            raise StoreError(f"sql: the transaction was not committed: {status}")

    def rollback(self) -> None:
        """Give up the transaction."""
        try:
            self._cursor.execute("ROLLBACK")
        except (psycopg.Error, OSError):
            self.close()

    def wait_at_most(self, milliseconds: int) -> None:
        """Let statements wait so long for locked rows from now on."""
        self.execute(f"SET lock_timeout = {milliseconds:d}")

    def limit_statements(self, milliseconds: int) -> None:
        """Let a statement take so long; 0: as long as it takes."""
        self.execute(f"SET statement_timeout = {milliseconds:d}")

    # ---- locks of a session

    def _key(self, name: str) -> tuple[int, int]:
        # The server keeps such locks apart by database; several stores may share one, by schema.
        digest = hashlib.sha256(f"ftstan\0{self._schema}\0{name}".encode()).digest()
        return int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:8], "big")

    def _signed(self, name: str) -> int:
        high, low = self._key(name)
        key = high << 32 | low
        return key - (1 << 64) if key >> 63 else key

    def try_name(self, name: str) -> bool:
        """An advisory lock of the session."""
        return bool(
            self.query("SELECT pg_try_advisory_lock(%s::bigint)", (self._signed(name),))[0][0]
        )

    def release_name(self, name: str) -> None:
        """Give it back."""
        self.execute("SELECT pg_advisory_unlock(%s::bigint)", (self._signed(name),))

    def end_holder(self, name: str) -> bool:
        """End the session that has it."""
        found = self.query(_HOLDER, self._key(name))
        for (pid,) in found:
            self.execute("SELECT pg_terminate_backend(%s)", (pid,))
        return bool(found)

    # ---- the server

    def number(self) -> int:
        """That of the server's process."""
        return int(self.query("SELECT pg_backend_pid()")[0][0])

    def check(self) -> None:
        """Refuse a database without an encoding."""
        encoding = self.query("SHOW server_encoding")[0][0]
        if encoding == "SQL_ASCII":
            raise RecoveryError(
                "sql: the database has the encoding SQL_ASCII, which keeps names as anything",
                hint="create it with ENCODING 'UTF8' and move the tables there",
            )

    @property
    def is_lost(self) -> bool:
        """Whether the connection is known to be gone."""
        return bool(self._connection.closed)

    def close(self) -> None:
        """Close it."""
        with contextlib.suppress(psycopg.Error, OSError):
            self._connection.close()
        self._let_go()

    def _descriptor(self) -> int:
        return self._connection.fileno()

    def _translated(self, error: Exception, sql: str) -> StoreError:
        if self.aborted:
            return LostError(self.aborted, hint=SILENT_HINT)
        text = scrubbed(str(error), self._secret)
        told = f'sql: error executing "{shortened(sql)}": {text}'
        if isinstance(error, pg.ReadOnlySqlTransaction):
            return ReadOnlyError(told, hint="the server is a replica, or was made read-only")
        if self._connection.closed or isinstance(error, (*_LOST, OSError)):
            return LostError(told, hint="check the database and the network")
        if isinstance(error, _TRANSIENT):
            return TransientError(told)
        if isinstance(error, _FULL):
            return StoreFullError(told, hint="make room for the database")
        if isinstance(error, pg.InsufficientPrivilege):
            return RightsError(told)
        if isinstance(error, (pg.UndefinedTable, pg.UndefinedColumn)):
            return AbsentTableError(told)
        if isinstance(error, _TOO_LARGE):
            return TooLargeError(told)
        return StoreError(told)
