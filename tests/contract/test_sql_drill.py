"""``ftstanctl drill`` and the database that it is to use: whose store it refuses, and what it
removes. No drill is played.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.clock import SystemClock
from ftstan.base.errors import FtstanError
from ftstan.cli import ctl, drill_database, store_end
from ftstan.drill.local import CLUSTER
from ftstan.ft.sqlaccess import SqlOwner
from ftstan.stores.sql.source import parse
from tests.oracle import sqlfixtures
from tests.sqlservers import DRIVERS, execute

if TYPE_CHECKING:
    from pathlib import Path

    from ftstan.stores.sql.source import Source
    from tests.sqlservers import SqlServers

INFO = "INSERT INTO ServerInfo (uniquerow, id, version) VALUES (1, '{}', 1)"
CLIENT = "INSERT INTO Clients (id, hbinbox) VALUES ('me', 'inbox')"
MESSAGE = "INSERT INTO Messages (id, seq, timestamp, size, data) VALUES (1, 1, 1, 1, 'x')"
TABLES = ("ServerInfo", "Clients", "Channels", "Messages", "Subscriptions", "SubsPending")


def rows(source: Source) -> dict[str, list[Any]]:
    return {name: execute(source, f"SELECT * FROM {name}") for name in TABLES}


def refused(source: Source) -> str:
    with pytest.raises(FtstanError) as raised:
        drill_database.prepare(source)
    assert raised.value.hint
    return raised.value.text.removeprefix(f"database {source.shown()} ")


@pytest.fixture(params=DRIVERS)
def bare(request: pytest.FixtureRequest, sql_servers: SqlServers) -> Any:
    """A database without a table."""
    text = sql_servers.create(request.param, tables=False)
    yield parse(request.param, text, {})
    sql_servers.drop(text)


def test_a_database_without_a_table_gets_those_of_a_store(bare: Source) -> None:
    drill_database.prepare(bare)
    assert rows(bare) == {name: [] for name in TABLES}
    drill_database.prepare(bare)


def test_a_database_that_an_original_has_served_is_refused_and_left_alone(bare: Source) -> None:
    sqlfixtures.load(bare, "killed-nocache")
    before = rows(bare)
    assert refused(bare) == ('is not a drill\'s: it holds the store of cluster "test-cluster"')
    assert rows(bare) == before


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        (INFO.format("orders"), 'it holds the store of cluster "orders"'),
        (CLIENT, "there are rows in Clients"),
        (MESSAGE, "there are rows in Messages"),
        ("CREATE TABLE invoices (number INTEGER)", "it has a table invoices"),
    ],
)
def test_what_is_somebody_elses_is_named_and_left_alone(
    sql_source: Source, statement: str, told: str
) -> None:
    execute(sql_source, statement)
    before = rows(sql_source)
    assert refused(sql_source) == f"is not a drill's: {told}"
    assert rows(sql_source) == before
    assert execute(sql_source, "SELECT * FROM StoreLock") == []


def test_what_a_former_drill_has_left_is_removed(sql_source: Source) -> None:
    execute(sql_source, INFO.format(CLUSTER), CLIENT, MESSAGE)
    drill_database.prepare(sql_source)
    assert rows(sql_source) == {name: [] for name in TABLES}


def test_what_a_drill_that_still_runs_has_stored_is_not_removed(
    sql_source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_end, "_LOCK_S", 0.5)
    owner = SqlOwner(sql_source, server_id="me", clock=SystemClock())
    owner.lock.seize()
    owner.activate()
    execute(sql_source, INFO.format(CLUSTER), CLIENT)
    before = rows(sql_source)
    assert refused(sql_source).startswith("is in use by")
    assert rows(sql_source) == before
    owner.close()


def test_a_refusal_is_one_line_without_the_password_and_leaves_no_directory(
    sql_source: Source,
    sql_text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    execute(sql_source, INFO.format("orders"))
    monkeypatch.setenv("FTSTAN_SQL_SOURCE", sql_text)
    words = ("drill", "kill", "--sql-driver", sql_source.driver, "--out", str(tmp_path / "run"))
    assert ctl.main(list(words)) == 3
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if "orders" in line] == said[:1]
    assert "nss:nss" not in "".join(said)
    assert not os.path.exists(tmp_path / "run")


def test_a_database_that_is_not_there_is_one_line_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "postgres://nss:pw-s3cret@127.0.0.1:1/drills?sslmode=disable"
    monkeypatch.setenv("FTSTAN_SQL_SOURCE", source)
    out = tmp_path / "run"
    words = ["drill", "kill", "--sql-driver", "postgres", "--out", str(out)]
    assert ctl.main(words) == 3
    said = capsys.readouterr().err
    assert "refused" in said
    assert "pw-s3cret" not in said
    assert not out.exists()
