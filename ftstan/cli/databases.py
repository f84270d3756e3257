"""How a command names a database: a word ``DRIVER:FILE``, flags, or a server's configuration.

The source itself, which may hold a password, is in a file or in the environment, never a word:
every user of the host can read those.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ftstan.base.environment import SOURCE_VARIABLE
from ftstan.base.errors import ConfigError
from ftstan.cli.words.store import Place
from ftstan.config.flags import parse, to_settings
from ftstan.config.options import STORE_FILE, STORE_SQL
from ftstan.config.sql_source import read_source_file
from ftstan.stores.sql import source as sources

if TYPE_CHECKING:
    import argparse

    from ftstan.stores.sql.source import Source

_DRIVERS = ("mysql", "postgres")


def find_database(arguments: argparse.Namespace) -> Source | None:
    """The database that the words name; ``None`` if they name a directory, which is in
    ``arguments.dir`` then.

    Takes the keys and the checksum of a configuration file, too, where words do not say others.
    Raises ``ConfigError``.
    """
    if not hasattr(arguments, "config"):
        # One of the commands for directories.
        return named(arguments.dir)
    ways = [
        flag
        for flag, value in (
            ("-c", arguments.config),
            ("--sql-driver", arguments.sql_driver),
            ("DIR", isinstance(arguments.dir, Place)),
        )
        if value
    ]
    if len(ways) > 1:
        raise ConfigError(
            f"{' and '.join(ways)} both say where the store is", hint="leave all but one out"
        )
    require_driver(arguments)
    if arguments.config:
        return _configured(arguments)
    if arguments.sql_driver:
        return flagged(arguments)[0]
    return named(arguments.dir)


def require_driver(arguments: argparse.Namespace) -> None:
    """Raise ``ConfigError`` for a source's file without the driver."""
    if arguments.sql_source_file and not arguments.sql_driver:
        raise ConfigError(
            "--sql-source-file needs --sql-driver", hint="add --sql-driver mysql or postgres"
        )


def named(word: str) -> Source | None:
    """The database of ``DRIVER:FILE``, ``None`` for any other word. Raises ``ConfigError``."""
    driver, colon, path = word.partition(":")
    if not colon or driver not in _DRIVERS:
        return None
    return sources.parse(driver, read_source_file(path))


def flagged(arguments: argparse.Namespace) -> tuple[Source, str]:
    """The database of ``--sql-driver``, and its source as written, which may hold a password.

    Raises ``ConfigError``.
    """
    if arguments.sql_source_file:
        text = read_source_file(arguments.sql_source_file)
    else:
        text = os.environ.get(SOURCE_VARIABLE, "")
    if not text:
        raise ConfigError(
            "which database?", hint=f"name its --sql-source-file, or set {SOURCE_VARIABLE}"
        )
    return sources.parse(arguments.sql_driver, text), text


def _configured(arguments: argparse.Namespace) -> Source | None:
    """What the server of a configuration file stores in."""
    options = to_settings(parse(["-c", arguments.config])).options()
    if options.encryption.enabled:
        arguments.encryption = options.encryption
    if options.store == STORE_SQL:
        return sources.source_of(options.sql)
    if options.store != STORE_FILE or not options.dir:
        raise ConfigError(
            f"{arguments.config} names neither a datastore nor a database",
            hint="give the configuration of a server with store: file or store: sql",
        )
    arguments.dir = options.dir
    arguments.crc_poly = options.file.crc_poly
    return None
