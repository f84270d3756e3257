"""Can this database carry a store, and a group? What settings, tables and behaviour say of it.

Reads settings, tries what an owner needs in sessions of its own (names of a session, settings that
last, a write that is undone), and changes nothing. It may run beside a server.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import FtstanError, StoreError
from ftstan.storecheck.findings import Outcome, StorageFinding
from ftstan.stores.sql import tables
from ftstan.stores.sql.session import AbsentTableError, ReadOnlyError, RightsError
from ftstan.stores.sql.tools.reading import TABLES
from ftstan.stores.sql.tools.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ftstan.stores.sql.session import Session
    from ftstan.stores.sql.source import Source

    Check = Callable[["DatabaseBench"], Iterator[StorageFinding]]

#: The oldest servers whose features are used (``docs/sql.md``).
_OLDEST: Final = {"postgres": 120000, "mysql": (5, 7), "mariadb": (10, 3)}
#: Slower commits than this are told as a limit (seconds).
_SLOW_S: Final = 0.1
_COMMITS: Final = 20
#: Statements that are tried on what may be a pool of sessions.
_TRIES: Final = 8
_MARK: Final = "lock_timeout"


def _found(check: str, outcome: Outcome, text: str, hint: str = "", **figures: object) -> (
    StorageFinding
):  # fmt: skip
    return StorageFinding(check, outcome, text, hint, figures)


class DatabaseBench:
    """Sessions for the checks of one database."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._watch = Watch(source)
        self._sessions: list[Session] = []
        self.session = self.another()

    def another(self) -> Session:
        """A session of its own, closed at the end. Raises ``StoreError``."""
        session = self._watch.connect()
        self._sessions.append(session)
        return session

    def setting(self, name: str) -> str:
        """A setting of the server for new sessions; empty where it has none of this name."""
        if self.source.driver == "postgres":
            rows = self.session.query("SELECT reset_val FROM pg_settings WHERE name = %s", (name,))
            return str(rows[0][0]) if rows else ""
        rows = self.session.query("SHOW GLOBAL VARIABLES LIKE %s", (name,))
        return str(rows[0][1]) if rows else ""

    def close(self) -> None:
        """End the sessions."""
        self._watch.close()
        for session in self._sessions:
            session.close()


def check_database(
    source: Source, told: Callable[[str], None] = lambda _what: None
) -> list[StorageFinding]:
    """Carry out all checks, one after the other. Raises ``FtstanError`` without a connection."""
    bench = DatabaseBench(source)
    findings: list[StorageFinding] = []
    try:
        for name, check in CHECKS[source.driver]:
            told(name)
            try:
                findings += check(bench)
            except FtstanError as error:
                findings.append(_found(name, Outcome.BAD, error.text, error.hint))
                if bench.session.is_lost:
                    bench.session = bench.another()
    finally:
        bench.close()
    return findings


# ---- both


def _tables(bench: DatabaseBench) -> Iterator[StorageFinding]:
    missing = []
    for name in TABLES:
        try:
            bench.session.query(f"SELECT 1 FROM {name} WHERE 1 = 0")
        except AbsentTableError:
            missing.append(name)
        except RightsError as error:
            yield _found("tables", Outcome.BAD, error.text, f"GRANT SELECT ON {name}")
    if missing:
        yield _found(
            "tables",
            Outcome.BAD,
            f"missing: {', '.join(missing)}",
            f"ftstanctl store sql-schema {bench.source.driver} prints the statements that make "
            "them",
        )
        return
    yield _found("tables", Outcome.GOOD, "the original's tables are there")
    try:
        for name in tables.OWN_TABLES:
            bench.session.query(f"SELECT 1 FROM {name} WHERE 1 = 0")
    except AbsentTableError:
        yield _found(
            "tables",
            Outcome.NOTE,
            "tables of ours are missing",
            "the first start makes them if the user may; else an administrator does, with "
            f"ftstanctl store sql-schema {bench.source.driver}",
        )


def _rights(bench: DatabaseBench) -> Iterator[StorageFinding]:
    """Try to write every table, changing no row."""
    refused = []
    for name in TABLES:
        session = bench.session
        column = "uniquerow" if name == "ServerInfo" else "subid" if name == "SubsPending" else "id"
        for verb, statement in (
            ("UPDATE", f"UPDATE {name} SET {column} = {column} WHERE 1 = 0"),
            ("DELETE", f"DELETE FROM {name} WHERE 1 = 0"),
            ("INSERT", f"INSERT INTO {name} SELECT * FROM {name} WHERE 1 = 0"),
        ):
            try:
                session.execute(statement)
            except RightsError:
                refused.append(f"{verb} on {name}")
            except AbsentTableError:
                break
            except ReadOnlyError as error:
                yield _found(
                    "rights",
                    Outcome.BAD,
                    f"the server takes no writes: {error.text}",
                    "name the primary in the source, not a replica",
                )
                return
    if refused:
        yield _found(
            "rights",
            Outcome.BAD,
            f"the user {bench.source.user} may not: {', '.join(refused)}",
            "grant SELECT, INSERT, UPDATE and DELETE on all tables of the store",
        )
    else:
        yield _found("rights", Outcome.GOOD, "the user may write every table")


def _names(bench: DatabaseBench) -> Iterator[StorageFinding]:
    """The name that keeps owners of ours apart: held by one session, free when that has ended."""
    name = f"check-{secrets.token_hex(8)}"
    first = bench.another()
    second = bench.another()
    if not first.try_name(name):
        yield _found("session", Outcome.BAD, "a name of a session cannot be taken", "see pooling")
        return
    if second.try_name(name):
        yield _found(
            "session",
            Outcome.BAD,
            "two sessions hold the same name: they are not sessions of one server",
            "connect to the database itself, not to a pool or a balancer",
        )
        return
    try:
        ended = second.end_holder(name)
    except RightsError as error:
        yield _found(
            "session",
            Outcome.LIMIT,
            f"the user may not end its own sessions: {error.text}",
            "a frozen owner is waited for; grant pg_signal_backend, or CONNECTION ADMIN",
        )
        return
    deadline = time.monotonic() + 5
    while not second.try_name(name):
        if time.monotonic() > deadline:
            yield _found(
                "session",
                Outcome.BAD if ended else Outcome.LIMIT,
                "the session of a former owner does not end",
                "connect to the database itself, not to a pool",
            )
            return
        time.sleep(0.05)
    second.release_name(name)
    yield _found("session", Outcome.GOOD, "a name is one session's, and free when that is ended")


def _commits(bench: DatabaseBench) -> Iterator[StorageFinding]:
    """How long a transaction takes that locks a row and changes nothing."""
    times = []
    for _ in range(_COMMITS):
        began = time.monotonic()
        bench.session.begin()
        bench.session.query("SELECT id FROM StoreLock FOR UPDATE")
        bench.session.commit()
        times.append(time.monotonic() - began)
    times.sort()
    middle = times[len(times) // 2]
    slow = middle > _SLOW_S
    yield _found(
        "latency",
        Outcome.LIMIT if slow else Outcome.GOOD,
        f"a transaction takes {middle * 1e3:.1f} ms, {times[-1] * 1e3:.1f} ms at most",
        "every batch of publishes waits for one: put the server nearer to the database"
        if slow
        else "",
        middle_ms=round(middle * 1e3, 3),
        most_ms=round(times[-1] * 1e3, 3),
    )


def _setting_is(
    bench: DatabaseBench, name: str, good: str, *, outcome: Outcome, why: str
) -> Iterator[StorageFinding]:
    """Whether a setting is what it should be: one of the words of ``good``, the first advised."""
    value = bench.setting(name)
    if not value:
        return
    if value.lower() in good.split():
        yield _found(name, Outcome.GOOD, f"{name} = {value}")
    else:
        yield _found(
            name, outcome, f"{name} = {value}: {why}", f"set {name} = {good.split(maxsplit=1)[0]}"
        )


# ---- PostgreSQL


def _pg_version(bench: DatabaseBench) -> Iterator[StorageFinding]:
    number = int(bench.setting("server_version_num") or 0)
    text = f"PostgreSQL {bench.setting('server_version')}"
    if number < int(str(_OLDEST["postgres"])):
        yield _found("version", Outcome.LIMIT, f"{text} is not tried", "use 12 or a later one")
    else:
        yield _found("version", Outcome.GOOD, text)
    encoding = bench.setting("server_encoding")
    if encoding != "UTF8":
        yield _found(
            "encoding",
            Outcome.BAD if encoding == "SQL_ASCII" else Outcome.LIMIT,
            f"the database has the encoding {encoding}: names of channels may not come back as "
            "they were",
            "create it with ENCODING 'UTF8' and move the tables there",
        )
    else:
        yield _found("encoding", Outcome.GOOD, "UTF8")


def _pg_durability(bench: DatabaseBench) -> Iterator[StorageFinding]:
    lose = "a crash of the database's host loses what was acknowledged, or damages the database"
    for name in ("fsync", "full_page_writes"):
        yield from _setting_is(bench, name, "on", outcome=Outcome.BAD, why=lose)
    value = bench.setting("synchronous_commit")
    used = str(bench.session.query("SHOW synchronous_commit")[0][0])
    if used in ("off", "local"):
        # Whoever forces it below what a session asks for.
        yield _found(
            "synchronous_commit",
            Outcome.BAD,
            f"synchronous_commit = {used}, whatever a session asks for: {lose}",
            "set synchronous_commit = on",
        )
    elif value in ("off", "local"):
        yield _found(
            "synchronous_commit",
            Outcome.NOTE,
            f"synchronous_commit = {value} by default; our sessions have {used}",
            "an original commits without waiting for the disk",
        )
    else:
        yield _found("synchronous_commit", Outcome.GOOD, f"synchronous_commit = {value}")


def _pg_replicas(bench: DatabaseBench) -> Iterator[StorageFinding]:
    if bench.session.query("SELECT pg_is_in_recovery()")[0][0]:
        yield _found("replica", Outcome.BAD, "this is a replica", "name the primary in the source")
        return
    try:
        count = int(bench.session.query("SELECT COUNT(*) FROM pg_stat_replication")[0][0])
    except StoreError:
        count = 0
    if count and not bench.setting("synchronous_standby_names"):
        yield _found(
            "replica",
            Outcome.LIMIT,
            f"{count} replicas follow, and none synchronously: a failover to one loses what it "
            "had not got",
            "set synchronous_standby_names before a replica may take over",
        )
    else:
        yield _found("replica", Outcome.GOOD, f"the primary, with {count} replicas")


def _pg_pool(bench: DatabaseBench) -> Iterator[StorageFinding]:
    """A pool in transaction mode gives each statement any session: what one sets does not last."""
    one = bench.another()
    other = bench.another()
    pids = set()
    for i in range(_TRIES):
        one.wait_at_most(10_000 + i)
        other.wait_at_most(20_000 + i)
        # Between two statements, somebody else may get the session of a pool.
        shown = str(one.query("SELECT setting FROM pg_settings WHERE name = %s", (_MARK,))[0][0])
        pids.add(one.query("SELECT pg_backend_pid()")[0][0])
        if shown != str(10_000 + i):
            break
    else:
        same = other.query("SELECT pg_backend_pid()")[0][0] in pids
        if len(pids) == 1 and not same:
            yield _found("pooling", Outcome.GOOD, "a connection keeps its session")
            return
    yield _found(
        "pooling",
        Outcome.BAD,
        "a connection does not keep its session: a pool in transaction mode is in between",
        "connect to the database itself, or through a pool in session mode",
    )


# ---- MySQL, MariaDB


def _my_version(bench: DatabaseBench) -> Iterator[StorageFinding]:
    text = str(bench.session.query("SELECT VERSION()")[0][0])
    kind = "mariadb" if "mariadb" in text.lower() else "mysql"
    digits = text.removeprefix("5.5.5-").split("-")[0].split(".")
    found = tuple(int(part) for part in digits[:2] if part.isdigit())
    name = "MariaDB" if kind == "mariadb" else "MySQL"
    oldest = _OLDEST[kind]
    assert isinstance(oldest, tuple)
    if found < oldest:
        shown = ".".join(map(str, oldest))
        yield _found("version", Outcome.LIMIT, f"{name} {text} is not tried", f"use {shown}")
    else:
        yield _found("version", Outcome.GOOD, f"{name} {text}")


def _my_durability(bench: DatabaseBench) -> Iterator[StorageFinding]:
    yield from _setting_is(
        bench,
        "innodb_flush_log_at_trx_commit",
        "1",
        outcome=Outcome.BAD,
        why="a crash of the database's host loses what was acknowledged",
    )
    yield from _setting_is(
        bench,
        "innodb_doublewrite",
        "on 1 true",
        outcome=Outcome.LIMIT,
        why="unless the file system writes whole pages, a crash in the middle of a write damages "
        "the database",
    )
    if bench.setting("log_bin").lower() in ("on", "1"):
        yield from _setting_is(
            bench,
            "sync_binlog",
            "1",
            outcome=Outcome.LIMIT,
            why="a crash loses what replicas have not got, and a failover to one loses it for good",
        )


def _my_modes(bench: DatabaseBench) -> Iterator[StorageFinding]:
    mode = bench.setting("sql_mode")
    if "STRICT" not in mode:
        yield _found(
            "sql_mode",
            Outcome.NOTE,
            f"sql_mode = {mode or 'empty'} is not strict; our sessions are",
            "an original stores the beginning of a message that is too large, and says nothing",
        )
    else:
        yield _found("sql_mode", Outcome.GOOD, "strict")
    packet = int(bench.setting("max_allowed_packet") or 0)
    if packet < 4 << 20:
        yield _found(
            "max_allowed_packet",
            Outcome.LIMIT,
            f"max_allowed_packet = {packet}: larger messages are refused",
            "raise it above the largest message",
            packet_bytes=packet,
        )
    else:
        yield _found("max_allowed_packet", Outcome.GOOD, f"max_allowed_packet = {packet}")


def _my_tables(bench: DatabaseBench) -> Iterator[StorageFinding]:
    # Raises for MyISAM and the like.
    bench.session.check()
    yield _found("engine", Outcome.GOOD, "InnoDB")
    if bench.session.most_data < 1 << 20:
        yield _found(
            "message size",
            Outcome.LIMIT,
            f"Messages.data ends at {bench.session.most_data} bytes a message: larger ones are "
            "refused to their publisher",
            "ALTER TABLE Messages MODIFY data LONGBLOB",
            most_bytes=bench.session.most_data,
        )
    else:
        yield _found("message size", Outcome.GOOD, f"{bench.session.most_data} bytes a message")


def _my_replicas(bench: DatabaseBench) -> Iterator[StorageFinding]:
    if bench.setting("read_only").lower() in ("on", "1"):
        yield _found(
            "replica",
            Outcome.BAD,
            "read_only = ON: this is a replica, or was made read-only",
            "name the primary in the source",
        )
    else:
        yield _found("replica", Outcome.GOOD, "the server takes writes")


CHECKS: Final[dict[str, tuple[tuple[str, Check], ...]]] = {
    "postgres": (
        ("version", _pg_version),
        ("pooling", _pg_pool),
        ("replica", _pg_replicas),
        ("durability", _pg_durability),
        ("tables", _tables),
        ("rights", _rights),
        ("session", _names),
        ("latency", _commits),
    ),
    "mysql": (
        ("version", _my_version),
        ("replica", _my_replicas),
        ("durability", _my_durability),
        ("settings", _my_modes),
        ("engine", _my_tables),
        ("tables", _tables),
        ("rights", _rights),
        ("session", _names),
        ("latency", _commits),
    ),
}
