"""Databases of the contract suite: one of each kind, emptied for every test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.base.clock import ManualClock
from ftstan.ft.sqlaccess import SqlOwner
from ftstan.stores.sql import tables
from ftstan.stores.sql.connecting import connect
from ftstan.stores.sql.store import SqlStore

if TYPE_CHECKING:
    from ftstan.config.limits import Limits
    from ftstan.stores.interface import Store
    from ftstan.stores.sql.source import Source

_TABLES = (
    "ServerInfo",
    "Clients",
    "Channels",
    "Messages",
    "Subscriptions",
    "SubsPending",
    "StoreLock",
    *tables.OWN_TABLES,
)


def empty(source: Source) -> None:
    """Leave the tables, and nothing in them; whoever still has a session of an owner loses it."""
    session = connect(source)
    tables.create(session)
    row = tables.read_epoch(session)
    for name in ("owner", row.token if row is not None else ""):
        session.end_holder(name)
    for table in _TABLES:
        session.execute(f"DELETE FROM {table}")
    if session.driver == "mysql" and session.most_data < 1 << 24:
        # As administrators do who have larger messages.
        session.execute("ALTER TABLE Messages MODIFY data LONGBLOB")
    session.close()


class SqlPlace:
    """A database whose owners follow each other, however the former one ended."""

    overhead = 0
    odd_name = "\u00ff\U0001f600 name".encode()
    """A database keeps valid UTF-8 only."""

    def __init__(self, source: Source, *, no_caching: bool = False) -> None:
        self.clock = ManualClock()
        self._source = source
        self._no_caching = no_caching
        empty(source)

    def open(self, limits: Limits) -> Store:
        owner = SqlOwner(self._source, server_id="me", clock=self.clock)
        owner.lock.seize()
        owner.activate()
        store = SqlStore(owner.fence, self.clock, no_caching=self._no_caching, events_s=0.0)
        store.set_limits(limits)
        return store
