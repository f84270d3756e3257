"""Connections that share sessions, as a pool in transaction mode makes them share: no lock would
hold, so no server starts on one, and says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from ftstan.base.clock import SystemClock
from ftstan.base.errors import StoreError
from ftstan.ft.sqlaccess import SqlOwner
from ftstan.stores.sql.connecting import connect
from tests.contract.sqlplaces import empty

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.stores.sql.session import Session
    from ftstan.stores.sql.source import Source


class Pool:
    """Sessions of a real server. Whoever asks something gets the one that is free ``oldest`` or
    newest, as PgBouncer does with and without ``server_round_robin``.
    """

    def __init__(self, source: Source, size: int, *, oldest: bool) -> None:
        self.sessions = [connect(source) for _ in range(size)]
        self._free = list(self.sessions)
        self._oldest = oldest

    def call(self, name: str, *said: Any) -> Any:
        session = self._free.pop(0 if self._oldest else -1)
        try:
            return getattr(session, name)(*said)
        finally:
            self._free.append(session)

    def connection(self) -> Session:
        return cast("Session", Connection(self))

    def close(self) -> None:
        for session in self.sessions:
            session.close()


class Connection:
    """One of those that share."""

    is_lost = False

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        return lambda *said: self._pool.call(name, *said)

    def close(self) -> None:
        """The sessions are the pool's."""


@pytest.fixture(params=[(1, True), (2, True), (2, False), (3, True), (3, False), (20, True)])
def pool(request: pytest.FixtureRequest, sql_source: Source) -> Iterator[Pool]:
    empty(sql_source)
    size, oldest = request.param
    made = Pool(sql_source, size, oldest=oldest)
    yield made
    made.close()


def test_a_pool_that_shares_sessions_is_refused_at_the_start(
    pool: Pool, sql_source: Source
) -> None:
    owner = SqlOwner(sql_source, server_id="me", clock=SystemClock(), connecting=pool.connection)
    with pytest.raises(StoreError, match="a connection does not keep its session") as caught:
        owner.check()
    assert "session mode" in caught.value.hint
    owner.close()


def test_connections_with_sessions_of_their_own_are_taken(sql_source: Source) -> None:
    empty(sql_source)
    owner = SqlOwner(sql_source, server_id="me", clock=SystemClock())
    owner.check()
    owner.try_lock()
    owner.activate()
    owner.close()
