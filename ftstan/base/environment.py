"""What of the environment is a secret, and stays with this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The key of the environment; it goes before every other, and switches nothing on.
KEY_VARIABLE: Final = "NATS_STREAMING_ENCRYPTION_KEY"


#: The source of a database, which may hold a password; it goes before every other.
SOURCE_VARIABLE: Final = "FTSTAN_SQL_SOURCE"

#: ``PGPASSWORD`` is a default of sources of PostgreSQL.
_SECRETS: Final = (KEY_VARIABLE, SOURCE_VARIABLE, "PGPASSWORD")


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child, which stores nothing of ours."""
    return {name: value for name, value in environment.items() if name not in _SECRETS}
