"""What of the environment is a secret, and stays with this process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: The key of the environment; it goes before every other, and switches nothing on.
KEY_VARIABLE: Final = "NATS_STREAMING_ENCRYPTION_KEY"

#: The source of a database, which may hold a password; it goes before every other.
SOURCE_VARIABLE: Final = "FTSTAN_SQL_SOURCE"

#: ``PGPASSWORD`` is a default of sources of PostgreSQL.
_SECRETS: Final = (KEY_VARIABLE, SOURCE_VARIABLE, "PGPASSWORD")

_keys: set[bytes] = set()


def withhold(keys: Iterable[bytes]) -> None:
    """From now on no child gets a variable whose value is one of these keys."""
    _keys.update(keys)


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child, which stores nothing of ours.

    Left out are the variables of secrets and every other one whose value is a key: the whole of it,
    for a short key is part of many a value.
    """
    keys = _keys | {os.fsencode(environment.get(KEY_VARIABLE, ""))} - {b""}
    return {
        name: value
        for name, value in environment.items()
        if name not in _SECRETS and os.fsencode(value) not in keys
    }
