"""Triggers that make a real database refuse, wait or undo what is stored, so often as a test says.

What they raise are the database's own errors, with its own numbers, and so they come to the store
as they would from a database in need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sqlservers import execute

if TYPE_CHECKING:
    from ftstan.stores.sql.source import Source

_PG_FUNCTION = """
CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Numbers that a sequence has given stay given when the transaction is undone.
    IF nextval('troubles') <= {times} THEN {what}; END IF;
    RETURN NULL;
END $$"""
_PG_TRIGGER = """
CREATE CONSTRAINT TRIGGER trouble AFTER INSERT ON Messages DEFERRABLE INITIALLY {when}
FOR EACH ROW EXECUTE FUNCTION trouble()"""
_MY_TRIGGER = """
CREATE TRIGGER trouble BEFORE INSERT ON Messages FOR EACH ROW
BEGIN
    UPDATE troubles SET n = n + 1;
    IF (SELECT n FROM troubles) <= {times} THEN {what}; END IF;
END"""

_PG = {
    "serialisation failure": "RAISE EXCEPTION 'could not' USING ERRCODE = '40001'",
    "deadlock": "RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01'",
    "disk full": "RAISE EXCEPTION 'no space left on device' USING ERRCODE = '53100'",
    "slow": "PERFORM pg_sleep(3)",
}
_MY = {
    "serialisation failure": "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213",
    "deadlock": "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213",
    "disk full": "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1114",
    "slow": "DO SLEEP(3)",
}


def make(source: Source, what: str, times: int, *, at_commit: bool = False) -> None:
    """The next ``times`` rows of ``Messages`` meet it; ``at_commit``: their commit (PostgreSQL)."""
    if source.driver == "postgres":
        execute(
            source,
            "CREATE SEQUENCE troubles",
            _PG_FUNCTION.format(times=times, what=_PG[what]),
            _PG_TRIGGER.format(when="DEFERRED" if at_commit else "IMMEDIATE"),
        )
        return
    execute(
        source,
        # Its rows stay when the transaction is undone.
        "CREATE TABLE troubles (n INTEGER) ENGINE=MyISAM",
        "INSERT INTO troubles VALUES (0)",
        _MY_TRIGGER.format(times=times, what=_MY[what]),
    )


def end(source: Source) -> None:
    """No more of it."""
    on = " ON Messages" if source.driver == "postgres" else ""
    execute(source, f"DROP TRIGGER trouble{on}")
