"""A database as somebody sees it who owns nothing: read only, beside a running server.

The session can write nothing, takes no lock and no name. What is small (identity, clients,
channels, subscriptions) is read in one snapshot. Messages are read in ranges, each a statement of
its own, so that no long transaction holds up the database's cleaning. What a running server has not
committed is not seen; what it removes meanwhile is not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ftstan.base.clock import SystemClock
from ftstan.base.errors import StoreError
from ftstan.config.limits import Limits
from ftstan.stores.interface import ChannelLimits
from ftstan.stores.sql.connecting import connect
from ftstan.stores.sql.fence import Fence
from ftstan.stores.sql.store import SqlStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.stores.interface import ChannelStore, Recovered
    from ftstan.stores.sql.channel import SqlChannel
    from ftstan.stores.sql.session import Row, Session
    from ftstan.stores.sql.source import Source
    from ftstan.wire.block import MsgBlock

#: The original's tables, in the order of ``docs/compat/sqlstore.md``.
TABLES: Final = (
    "ServerInfo",
    "Clients",
    "Channels",
    "Messages",
    "Subscriptions",
    "SubsPending",
    "StoreLock",
)

#: What expires is for the server to say, who knows its limits.
UNLIMITED: Final = Limits.same(ChannelLimits(max_msgs=0, max_bytes=0, max_subs=0))

_ONLY_READ: Final = {
    "postgres": ("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",),
    "mysql": (
        "SET SESSION TRANSACTION READ ONLY",
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    ),
}
_SNAPSHOT: Final = {
    "postgres": "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    "mysql": "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
}
_EXIST: Final = {
    "postgres": (
        "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
    ),
    "mysql": "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()",
}
_ON_DISK: Final = {
    "postgres": (
        "SELECT c.relname, pg_total_relation_size(c.oid) FROM pg_class c"
        " WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace"
    ),
    "mysql": (
        "SELECT table_name, data_length + index_length FROM information_schema.tables"
        " WHERE table_schema = DATABASE()"
    ),
}
_SUB_BYTES: Final = (
    "SELECT c.name, SUM(OCTET_LENGTH(s.proto)) FROM Channels c JOIN Subscriptions s"
    " ON s.id = c.id GROUP BY c.name"
)
_PENDING_BYTES: Final = (
    "SELECT c.name, SUM(COALESCE(OCTET_LENGTH(p.pending), 0)"
    " + COALESCE(OCTET_LENGTH(p.acks), 0)) FROM Channels c JOIN Subscriptions s"
    " ON s.id = c.id JOIN SubsPending p ON p.subid = s.subid GROUP BY c.name"
)
_PART: Final = (
    "SELECT COUNT(*), COALESCE(SUM(size), 0), COALESCE(MIN(timestamp), 0),"
    " COALESCE(MAX(timestamp), 0) FROM Messages WHERE id = %s AND seq >= %s AND seq <= %s"
)
#: Of one reading of messages.
_MOST_MSGS: Final = 1000
_MOST_BYTES: Final = 4 << 20


class Reading:
    """One look at a database."""

    def __init__(self, source: Source) -> None:
        """Connect. Raises ``StoreError`` if there is no database of a store, and ``ConfigError``
        without the client library.
        """
        self.source = source
        self.place = f"database {source.shown()}"
        self._fence = Fence(self._connect)
        missing = self.missing_tables()
        if missing:
            self.close()
            raise StoreError(
                f"{self.place} holds no store: there is no table {missing[0]}",
                hint=f"ftstanctl store sql-schema {source.driver} prints the statements that make "
                "the tables",
            )

    def _connect(self) -> Session:
        session = connect(self.source)
        try:
            for statement in _ONLY_READ[session.driver]:
                session.execute(statement)
            # The first look at a large table takes as long as it takes.
            session.limit_statements(0)
        except StoreError:
            session.close()
            raise
        return session

    def close(self) -> None:
        """End the session."""
        self._fence.drop()

    def query(self, sql: str, parameters: tuple[object, ...] = ()) -> list[Row]:
        """Rows of one statement. Raises ``StoreError``."""
        return self._fence.read(lambda s: s.query(sql, parameters))

    def missing_tables(self) -> list[str]:
        """Which of the original's tables are not there."""
        found = {str(name).lower() for (name,) in self.query(_EXIST[self.source.driver])}
        return [name for name in TABLES if name.lower() not in found]

    def owner(self) -> str:
        """What stands in the lock's row: empty if nobody has the database, or nobody of ours."""
        rows = self.query("SELECT id FROM StoreLock")
        return str(rows[0][0] or "") if rows else ""

    def recovered(self) -> Recovered:
        """What a start would read, in one snapshot. Raises ``FtstanError`` where it would end."""
        session = self._fence.session()
        session.execute(_SNAPSHOT[session.driver])
        try:
            store = SqlStore(self._fence, SystemClock())
            store.set_limits(UNLIMITED)
            return store.recover()
        finally:
            session.rollback()

    def part(self, channel: SqlChannel, sequence: int) -> tuple[int, int, int, int]:
        """How many of the channel's messages lie at or below ``sequence``, their bytes as limits
        count them, and the times of the oldest and of the newest of them (Unix ns, 0 without one).
        """
        ((count, size, first_ts, last_ts),) = self.query(
            _PART, (channel.number, channel.first, sequence)
        )
        return int(count), int(size), int(first_ts), int(last_ts)

    def table_sizes(self) -> dict[str, int]:
        """Bytes on disk of each of the original's tables with its indexes, as the server says."""
        wanted = {name.lower(): name for name in TABLES}
        return {
            wanted[str(name).lower()]: int(size or 0)
            for name, size in self.query(_ON_DISK[self.source.driver])
            if str(name).lower() in wanted
        }

    def sub_sizes(self) -> dict[bytes, int]:
        """Bytes in the rows of subscriptions, by channel."""
        sizes: dict[bytes, int] = {}
        for sql in (_SUB_BYTES, _PENDING_BYTES):
            for name, size in self.query(sql):
                key = str(name).encode()
                sizes[key] = sizes.get(key, 0) + int(size or 0)
        return sizes


def blocks_of(channel: ChannelStore, first: int = 0, last: int = 0) -> Iterator[MsgBlock]:
    """The messages of a channel, in ranges; ``last`` 0: to the end as it is known.

    A block may begin before ``first`` and go on behind ``last``. Raises ``StoreError``.
    """
    sequence = max(first, channel.first, 1)
    end = min(last or channel.last, channel.last)
    while sequence <= end:
        block = channel.read(sequence, _MOST_MSGS, _MOST_BYTES)
        if block is None or not len(block):
            return
        yield block
        sequence = block.last + 1
