"""The tables of a database: the script that makes them all, and our own beside the original's with
the epoch row, who had which epoch, remembered publishes, paused members.

The original (``docs/compat/sqlstore.md``, tables) reads none of ours. ``ftstan_epoch`` has one row:

- ``epoch``: the number of the present owner's activation; ``done``: of the last transaction that
  any owner committed. Every transaction of an owner begins with ``FENCE``.
- ``token``: the name that the owner's session has taken on the server (``Session.try_name``), by
  which a successor finds the session and ends it.
- ``lock_id``: what the owner has in ``StoreLock.id``.

``ftstan_endings`` says how an owner ended, as it said itself; who died said nothing.
``ftstan_paused`` names the members whose pause outlasts a restart. A server does without these two
where the user may not make them: a database that a former release has served lacks them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from ftstan.base.errors import StoreError
from ftstan.stores.sql.session import AbsentTableError, RightsError, Session

if TYPE_CHECKING:
    from ftstan.stores.sql.session import Row

_PAUSED_TABLE = "ftstan_paused"
_DISPENSABLE = ("ftstan_endings", _PAUSED_TABLE)
OWN_TABLES = ("ftstan_epoch", "ftstan_history", "ftstan_remembered", *_DISPENSABLE)

_EPOCH = (
    "CREATE TABLE IF NOT EXISTS ftstan_epoch (uniquerow INTEGER NOT NULL PRIMARY KEY,"
    " epoch BIGINT NOT NULL, done BIGINT NOT NULL, token VARCHAR(64) NOT NULL,"
    " lock_id VARCHAR(30) NOT NULL, store_id VARCHAR(32) NOT NULL)"
)
_HISTORY = (
    "CREATE TABLE IF NOT EXISTS ftstan_history (epoch BIGINT NOT NULL PRIMARY KEY,"
    " server_id VARCHAR(128) NOT NULL, host VARCHAR(256) NOT NULL, pid BIGINT NOT NULL,"
    " nonce VARCHAR(32) NOT NULL, store_id VARCHAR(32) NOT NULL, since BIGINT NOT NULL,"
    " ft_mixed INTEGER NOT NULL, cause INTEGER NOT NULL, after_epoch BIGINT NOT NULL,"
    " originals_through BIGINT NOT NULL)"
)
_REMEMBERED = (
    "CREATE TABLE IF NOT EXISTS ftstan_remembered (digest {binary} NOT NULL PRIMARY KEY,"
    " pos BIGINT NOT NULL, seq BIGINT NOT NULL, mark BIGINT NOT NULL)"
)
_ENDINGS = (
    "CREATE TABLE IF NOT EXISTS ftstan_endings (epoch BIGINT NOT NULL PRIMARY KEY,"
    " ending INTEGER NOT NULL, at BIGINT NOT NULL)"
)
_PAUSED = (
    "CREATE TABLE IF NOT EXISTS ftstan_paused (name VARCHAR(128) NOT NULL PRIMARY KEY,"
    " line VARCHAR(512) NOT NULL)"
)

#: The statements that make ``OWN_TABLES``, by driver. They do nothing where the tables are.
CREATE = {
    "postgres": (_EPOCH, _HISTORY, _REMEMBERED.format(binary="BYTEA"), _ENDINGS, _PAUSED),
    "mysql": tuple(
        f"{statement} ENGINE=InnoDB"
        for statement in (
            _EPOCH,
            _HISTORY,
            _REMEMBERED.format(binary="VARBINARY(16)"),
            _ENDINGS,
            _PAUSED,
        )
    ),
}

_FENCE = (
    "UPDATE ftstan_epoch SET done = %s WHERE uniquerow = 1 AND epoch = %s AND done = %s"
    " AND EXISTS (SELECT 1 FROM StoreLock WHERE id = %s {lock})"
)
#: Exactly one row, or the database is not ours: (done, epoch, done - 1, lock id), by driver.
#: An original takes the row of ``StoreLock`` and knows of no epoch, so that row is locked until the
#: commit: it waits, and reads what was committed. PostgreSQL has a lock that lets our tick pass.
FENCE = {"postgres": _FENCE.format(lock="FOR KEY SHARE"), "mysql": _FENCE.format(lock="")}
#: The same, as the last statement before the commit, where the lock would keep out our tick:
#: (lock id).
HOLD = {"postgres": "", "mysql": "SELECT 1 FROM StoreLock WHERE id = %s LOCK IN SHARE MODE"}
#: The same for an activation: (epoch, token, lock id, epoch before).
RAISE = (
    "UPDATE ftstan_epoch SET epoch = %s, token = %s, lock_id = %s"
    " WHERE uniquerow = 1 AND epoch = %s"
)
READ = "SELECT epoch, done, token, lock_id, store_id FROM ftstan_epoch WHERE uniquerow = 1"
#: Whether the row of ``StoreLock`` has an id.
LOCKED = "SELECT 1 FROM StoreLock WHERE id = %s"
_FIRST = (
    "INSERT INTO ftstan_epoch (uniquerow, epoch, done, token, lock_id, store_id)"
    " VALUES (1, 0, 0, '', '', %s)"
)
#: How an owner ends, said by nobody else: (epoch, ending, time, epoch, token).
END = (
    "INSERT INTO ftstan_endings (epoch, ending, at) SELECT %s, %s, %s FROM ftstan_epoch"
    " WHERE uniquerow = 1 AND epoch = %s AND token = %s"
)
#: An owner's own next epoch, inside a transaction that has passed the fence: (epoch, epoch before).
GO_ON = "UPDATE ftstan_epoch SET epoch = %s WHERE uniquerow = 1 AND epoch = %s"
_COLUMNS = (
    "epoch, server_id, host, pid, nonce, store_id, since, ft_mixed, cause, after_epoch,"
    " originals_through"
)


def script(driver: str) -> str:
    """The whole script for ``postgres`` or ``mysql``; running it again changes nothing."""
    place = resources.files("ftstan.stores.sql") / "scripts" / f"{driver}.sql"
    ours = "".join(f"{statement};\n" for statement in CREATE[driver])
    return f"{place.read_text('utf-8')}\n-- ftstan's own, which the original does not read.\n{ours}"


def statements(driver: str) -> list[str]:
    """The statements of ``script`` one by one, without comments."""
    bare = re.sub(r"^--.*$", "", script(driver), flags=re.MULTILINE)
    return [one.strip() for one in bare.split(";") if one.strip()]


@dataclass(frozen=True, slots=True)
class EpochRow:
    """What stands in ``ftstan_epoch``."""

    epoch: int
    done: int
    token: str
    lock_id: str
    store_id: str


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One activation in ``ftstan_history``; ``since`` in Unix nanoseconds, ids in hexadecimal.

    ``left``, ``left_at``: how and when the owner directly before it said that it ends; 0 if it did
    not.
    """

    epoch: int
    server_id: str
    host: str
    pid: int
    nonce: str
    store_id: str
    since: int
    ft_mixed: bool
    cause: int
    after: int
    originals_through: int
    left: int = 0
    left_at: int = 0


def create(session: Session) -> None:
    """Make our tables where they are missing.

    Raises ``StoreError`` if the user may not, and a server cannot do without the table.
    """
    for table, statement in zip(OWN_TABLES, CREATE[session.driver], strict=True):
        try:
            if not _is_there(session, table):
                session.execute(statement)
        except RightsError as error:
            if table in _DISPENSABLE:
                continue
            raise StoreError(
                f"sql: the table that keeps former owners out cannot be created: {error.text}",
                hint=f"let the administrator run: {'; '.join(CREATE[session.driver])}",
            ) from error


def _is_there(session: Session, table: str) -> bool:
    try:
        session.query(f"SELECT 1 FROM {table} WHERE 1 = 0")
    except AbsentTableError:
        return False
    return True


def read_epoch(session: Session) -> EpochRow | None:
    """The row, ``None`` if no server of ours has owned the database. Raises ``StoreError``."""
    try:
        found = session.query(READ)
    except AbsentTableError:
        return None
    if not found:
        return None
    epoch, done, token, lock_id, store_id = found[0]
    return EpochRow(int(epoch), int(done), token, lock_id, store_id)


def make_epoch(session: Session, store_id: str) -> None:
    """Make the row of a database that has none. Two at once: one of them fails."""
    session.execute(_FIRST, (store_id,))


def add_history(session: Session, row: HistoryRow) -> None:
    """Note an activation."""
    session.execute(
        f"INSERT INTO ftstan_history ({_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s,"
        " %s)",
        (
            row.epoch,
            row.server_id,
            row.host,
            row.pid,
            row.nonce,
            row.store_id,
            row.since,
            int(row.ft_mixed),
            row.cause,
            row.after,
            row.originals_through,
        ),
    )


def read_history(session: Session, count: int) -> list[HistoryRow]:
    """The newest activations, newest first; none where no server of ours was."""
    try:
        found = session.query(
            f"SELECT {_COLUMNS} FROM ftstan_history ORDER BY epoch DESC LIMIT %s", (count,)
        )
    except AbsentTableError:
        return []
    endings = read_endings(session, int(found[-1][0]) - 1) if found else {}
    return [_history_row(row, endings.get(int(row[0]) - 1, (0, 0))) for row in found]


def _history_row(row: Row, ending: tuple[int, int]) -> HistoryRow:
    epoch, server_id, host, pid, nonce, store_id, since, mixed, cause, after, originals = row
    left, left_at = ending
    return HistoryRow(
        int(epoch),
        server_id,
        host,
        int(pid),
        nonce,
        store_id,
        int(since),
        bool(mixed),
        int(cause),
        int(after),
        int(originals),
        left,
        left_at,
    )


def read_endings(session: Session, first: int) -> dict[int, tuple[int, int]]:
    """How and when owners from epoch ``first`` on said that they end, by epoch."""
    try:
        found = session.query(
            "SELECT epoch, ending, at FROM ftstan_endings WHERE epoch >= %s", (first,)
        )
    except (AbsentTableError, RightsError):
        # No owner of this release was here yet, or none that may make the table. MySQL does not say
        # which to a user who has rights on single tables.
        return {}
    return {int(epoch): (int(ending), int(at)) for epoch, ending, at in found}


def is_paused(session: Session, name: str) -> bool:
    """Whether a pause of the member ``name`` is kept. Raises ``StoreError``."""
    try:
        return bool(session.query("SELECT 1 FROM ftstan_paused WHERE name = %s", (name,)))
    except (AbsentTableError, RightsError):
        # See ``read_endings``: whoever may not read the table has kept nothing in it.
        return False


def keep_pause(session: Session, name: str, line: str) -> None:
    """Keep the pause of the member ``name``, durable on return. Raises ``StoreError``."""
    try:
        if not _is_there(session, _PAUSED_TABLE):
            session.execute(_create_paused(session))
    except RightsError as error:
        raise StoreError(
            f"sql: the table that keeps pauses cannot be created: {error.text}",
            hint=f"let the administrator run: {_create_paused(session)}",
        ) from error
    if not is_paused(session, name):
        session.execute("INSERT INTO ftstan_paused (name, line) VALUES (%s, %s)", (name, line))


def end_pause(session: Session, name: str) -> None:
    """Keep the pause of the member ``name`` no more. Raises ``StoreError``."""
    if is_paused(session, name):
        session.execute("DELETE FROM ftstan_paused WHERE name = %s", (name,))


def _create_paused(session: Session) -> str:
    return CREATE[session.driver][OWN_TABLES.index(_PAUSED_TABLE)]
