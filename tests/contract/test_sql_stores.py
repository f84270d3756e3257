"""The SQL store keeps the contract that every store keeps, on both kinds of databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import SystemClock
from ftstan.config.limits import Limits
from ftstan.ft.sqlaccess import CountedLock, SqlOwner
from ftstan.stores.contract import AccessContract, DurableContract, StoreContract
from ftstan.stores.contract.place import FREE
from ftstan.stores.sql.store import SqlStore
from tests.contract.sqlplaces import SqlPlace, empty

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.stores.contract import Place
    from ftstan.stores.interface import StoreAccess
    from ftstan.stores.sql.source import Source


class TestSqlStores(StoreContract):
    @pytest.fixture
    def place(self, sql_source: Source) -> Place:
        return SqlPlace(sql_source)


class TestDurableSqlStores(DurableContract):
    @pytest.fixture(params=["caching", "no caching"])
    def place(self, request: pytest.FixtureRequest, sql_source: Source) -> Place:
        return SqlPlace(sql_source, no_caching=request.param == "no caching")


class _Access:
    """``SqlAccess`` without options."""

    place = "database"

    def __init__(self, source: Source) -> None:
        self.owner = SqlOwner(source, server_id="me", clock=SystemClock())

    def lock(self) -> CountedLock:
        return self.owner.lock

    def holder(self) -> str:
        return ""

    def activate(self) -> None:
        self.owner.activate()

    def open(self) -> SqlStore:
        store = SqlStore(self.owner.fence, SystemClock())
        store.set_limits(Limits.same(FREE))
        return store

    def close(self) -> None:
        self.owner.close()


class TestSqlAccess(AccessContract):
    @pytest.fixture
    def new_access(self, sql_source: Source) -> Callable[[], StoreAccess]:
        empty(sql_source)
        return lambda: _Access(sql_source)
