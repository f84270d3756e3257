"""The scripts that make the tables, on real servers."""

from __future__ import annotations

import pytest

from ftstan.cli.ctl import main
from ftstan.stores.sql.source import parse
from ftstan.stores.sql.tables import script, statements
from tests.oracle import sqlfixtures
from tests.sqlservers import SqlServers, execute

_COLUMNS = (
    "SELECT LOWER(table_name), LOWER(column_name), ordinal_position, LOWER(data_type)"
    " FROM information_schema.columns WHERE table_schema = {schema}"
    " AND LOWER(table_name) NOT LIKE 'ftstan%' ORDER BY 1, 3"
)
_SCHEMA = {"postgres": "'public'", "mysql": "DATABASE()"}


def _columns(text: str, driver: str) -> list[tuple[object, ...]]:
    wanted = _COLUMNS.format(schema=_SCHEMA[driver])
    return [tuple(row) for row in execute(parse(driver, text, {}), wanted)]


@pytest.mark.parametrize("driver", sqlfixtures.DRIVERS)
def test_a_script_makes_the_original_s_tables_and_runs_again(
    driver: str, sql_servers: SqlServers
) -> None:
    ours = sql_servers.create(driver)
    theirs = sql_servers.create(driver, tables=False)
    try:
        execute(parse(driver, ours, {}), *statements(driver))
        sqlfixtures.load(parse(driver, theirs, {}), "fresh")
        found = _columns(ours, driver)
        # A message longer than 65,535 bytes needs another column than the original's script makes.
        short = [
            (*row[:3], "blob") if row[:2] == ("messages", "data") and driver == "mysql" else row
            for row in found
        ]
        assert short == _columns(theirs, driver)
        execute(parse(driver, theirs, {}), *statements(driver))
        assert _columns(theirs, driver) == [
            *((*row[:3], "blob") if row[3] == "longblob" else row for row in found)
        ]
    finally:
        sql_servers.drop(ours)
        sql_servers.drop(theirs)


@pytest.mark.parametrize("driver", sqlfixtures.DRIVERS)
def test_a_script_has_our_tables_too(driver: str) -> None:
    assert "CREATE TABLE IF NOT EXISTS ftstan_epoch" in script(driver)
    assert all(one.startswith(("CREATE", "ALTER")) for one in statements(driver))


@pytest.mark.parametrize("driver", sqlfixtures.DRIVERS)
def test_ftstanctl_prints_it(driver: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "sql-schema", driver]) == 0
    assert capsys.readouterr().out == script(driver)
