"""The database of a drill: with a store's tables, and nothing in them but what a former drill left.

That is known by the cluster id of drills, and removed, for which the database is owned meanwhile.
Whatever else a database holds is left alone, and the drill is refused.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ftstan.cli.store_end import CONTENTS, owned_database
from ftstan.drill.errors import DrillError
from ftstan.drill.local import CLUSTER
from ftstan.stores.sql import tables
from ftstan.stores.sql.session import AbsentTableError, RightsError
from ftstan.stores.sql.tools.reading import TABLES
from ftstan.stores.sql.tools.watch import Watch

if TYPE_CHECKING:
    from ftstan.stores.sql.session import Session
    from ftstan.stores.sql.source import Source

_OURS: Final = frozenset(name.lower() for name in (*TABLES, *tables.OWN_TABLES))
_IN_SCHEMA: Final = {"postgres": "current_schema()", "mysql": "DATABASE()"}
_ANOTHER: Final = "make a database for drills alone, and name that"


def prepare(source: Source) -> None:
    """Leave the tables, and nothing in them.

    Raises ``DrillError`` if the database is not for drills, and what else keeps it from that as
    ``FtstanError``.
    """
    watch = Watch(source)
    try:
        session = watch.connect()
        try:
            is_left_by_drill = _look(session, source.shown())
        finally:
            session.close()
    finally:
        watch.close()
    if not is_left_by_drill:
        return
    with owned_database(source) as database:
        # Again: nobody else can write to it now.
        cluster = database.fence.read(_cluster)
        if cluster != CLUSTER:
            raise _occupied(source.shown(), cluster)
        database.empty()


def _look(session: Session, shown: str) -> bool:
    """Whether a former drill has left something; makes missing tables where no others are."""
    found = _tables(session)
    others = sorted(found - _OURS)
    if others:
        raise DrillError(
            f"database {shown} is not a drill's: it has a table {others[0]}", hint=_ANOTHER
        )
    if not found.issuperset(name.lower() for name in TABLES):
        _make_tables(session, shown)
    cluster = _cluster(session)
    if cluster == CLUSTER:
        return True
    if cluster:
        raise _occupied(shown, cluster)
    for table in CONTENTS:
        # One of ours may be missing: the first server makes it.
        with suppress(AbsentTableError):
            if session.query(f"SELECT 1 FROM {table} LIMIT 1"):
                raise DrillError(
                    f"database {shown} is not a drill's: there are rows in {table}", hint=_ANOTHER
                )
    return False


def _tables(session: Session) -> set[str]:
    found = session.query(
        "SELECT table_name FROM information_schema.tables WHERE table_type = 'BASE TABLE'"
        f" AND table_schema = {_IN_SCHEMA[session.driver]}"
    )
    return {str(name).lower() for (name,) in found}


def _make_tables(session: Session, shown: str) -> None:
    try:
        for statement in tables.statements(session.driver):
            session.execute(statement)
    except RightsError as error:
        raise DrillError(
            f"database {shown} has no tables of a store, and they cannot be made: {error.text}",
            hint="let its administrator run what this prints: ftstanctl store sql-schema "
            f"{session.driver}",
        ) from error


def _cluster(session: Session) -> str:
    """The cluster whose servers have stored in it; empty without one."""
    rows = session.query("SELECT id FROM ServerInfo")
    return str(rows[0][0]) if rows else ""


def _occupied(shown: str, cluster: str) -> DrillError:
    return DrillError(
        f'database {shown} is not a drill\'s: it holds the store of cluster "{cluster}"',
        hint=_ANOTHER,
    )
