"""Sessions of the driver that was asked for; client libraries are loaded when they are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError

if TYPE_CHECKING:
    from ftstan.stores.sql.session import Session
    from ftstan.stores.sql.source import Source


def connect(source: Source) -> Session:
    """A new session. Raises ``LostError``, and ``ConfigError`` without the client library."""
    try:
        if source.driver == "postgres":
            from ftstan.stores.sql.postgres import PostgresSession  # noqa: PLC0415

            return PostgresSession(source)
        from ftstan.stores.sql.mysql import MysqlSession  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"sql: the client library of driver {source.driver} is not installed: {error}",
            hint="run: pip install 'ftstan[sql]'",
        ) from error
    return MysqlSession(source)
