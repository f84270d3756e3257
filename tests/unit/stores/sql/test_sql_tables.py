"""Our own tables in a database whose user may make none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from ftstan.base.errors import StoreError
from ftstan.stores.sql import tables
from ftstan.stores.sql.session import AbsentTableError, RightsError

if TYPE_CHECKING:
    from ftstan.stores.sql.session import Session

#: Those of a former release.
FORMER = {"ftstan_epoch", "ftstan_history", "ftstan_remembered"}
HISTORY = (7, "me", "host", 1, "aa", "bb", 0, 0, 0, 0, 0)


class NoMaker:
    """A session that reads some tables, and may make none."""

    driver = "postgres"

    def __init__(self, there: set[str], absence: type[StoreError] = AbsentTableError) -> None:
        self._there = there
        self._absence = absence

    def query(self, sql: str, _parameters: object = ()) -> list[Any]:
        for table in tables.OWN_TABLES:
            if f"FROM {table} " in sql and table not in self._there:
                raise self._absence(f"{table} is not there")
        return [HISTORY] if "ORDER BY epoch DESC" in sql else []

    def execute(self, sql: str, _parameters: object = ()) -> int:
        raise RightsError(f"permission denied: {sql}")


def session(there: set[str], absence: type[StoreError] = AbsentTableError) -> Session:
    return cast("Session", NoMaker(there, absence))


# MySQL tells a user with rights on single tables that he may not, whether or not there is one.
@pytest.mark.parametrize("absence", [AbsentTableError, RightsError])
def test_a_database_of_a_former_release_is_served_without_the_table_for_people(
    absence: type[StoreError],
) -> None:
    former = session(FORMER, absence)
    tables.create(former)
    assert tables.read_endings(former, 1) == {}
    (row,) = tables.read_history(former, 1)
    assert (row.epoch, row.left) == (7, 0)


@pytest.mark.parametrize("missing", sorted(FORMER))
def test_a_database_without_what_keeps_former_owners_out_is_not_served(missing: str) -> None:
    with pytest.raises(StoreError, match="cannot be created") as caught:
        tables.create(session(set(tables.OWN_TABLES) - {missing}))
    assert f"CREATE TABLE IF NOT EXISTS {missing}" in caught.value.hint
