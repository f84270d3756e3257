"""Which text says how to connect to the database: the environment's, a file's, or the option's.

Source: ours; the original knows the option alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ftstan.base.environment import SOURCE_VARIABLE
from ftstan.base.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ftstan.config.options import SqlOptions

_MOST_BYTES: Final = 1 << 16


def source_text(options: SqlOptions, environment: Mapping[str, str]) -> str:
    """The source of the database, as written; it may hold a password.

    Raises ``ConfigError``.
    """
    if options.source and options.source_file:
        raise ConfigError(
            "sql_source and sql_source_file exclude each other",
            hint="put the source into the file, and leave sql_source out",
            option="sql_source",
        )
    if said := environment.get(SOURCE_VARIABLE):
        return said
    return read_source_file(options.source_file) if options.source_file else options.source


def read_source_file(path: str) -> str:
    """The only line of a file that is neither empty nor begins with #.

    Raises ``ConfigError``: unreadable, open to everybody, or not one line.
    """

    def refusal(what: str, hint: str) -> ConfigError:
        return ConfigError(f"sql_source_file {path} {what}", hint=hint, option="sql_source_file")

    # Late: most servers have no such file.
    from ftstan.config.secret_file import read_secret_file  # noqa: PLC0415

    data = read_secret_file(path, _MOST_BYTES, "the source in one line", refusal)
    try:
        lines = [line.strip() for line in data[: _MOST_BYTES + 1].decode().splitlines()]
    except UnicodeDecodeError as error:
        raise refusal("is not UTF-8", "write the source as text") from error
    found = [line for line in lines if line and not line.startswith("#")]
    if len(found) != 1 or len(data) > _MOST_BYTES:
        raise refusal(
            f"has {len(found)} lines that could be the source", "leave one, or put # before others"
        )
    return found[0]
