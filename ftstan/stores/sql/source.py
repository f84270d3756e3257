"""``-sql_source`` as one value, whatever the driver and the form.

Source: ``docs/compat/sqlstore.md`` (data source names).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError
from ftstan.config.sql_source import source_text
from ftstan.stores.sql.dsn import MYSQL, POSTGRES, Source, Tls
from ftstan.stores.sql.dsn_mysql import parse_mysql
from ftstan.stores.sql.dsn_postgres import parse_postgres

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ftstan.config.options import SqlOptions

__all__ = ["MYSQL", "POSTGRES", "Source", "Tls", "parse", "source_of"]


def source_of(options: SqlOptions) -> Source:
    """The database that a server's options, or its environment, name. Raises ``ConfigError``."""
    return parse(options.driver, source_text(options, os.environ))


def parse(driver: str, text: str, environment: Mapping[str, str] | None = None) -> Source:
    """The database that a source names.

    ``environment`` (that of this process if left out) gives the driver ``postgres`` its defaults.
    Raises ``ConfigError`` with the original's words where it refuses as well; the text contains
    nothing that may be a password.
    """
    if driver == POSTGRES:
        return parse_postgres(text, os.environ if environment is None else environment)
    if driver == MYSQL:
        return parse_mysql(text)
    raise ConfigError(
        f'sql: unknown driver "{driver}" (forgotten import?)',
        hint="use -sql_driver mysql or -sql_driver postgres",
        option="sql_driver",
    )
