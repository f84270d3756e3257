"""What of the environment is a secret, and stays with this process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: The key of the environment; it goes before every other, and switches nothing on.
KEY_VARIABLE: Final = "NATS_STREAMING_ENCRYPTION_KEY"

_keys: set[bytes] = set()


def withhold(keys: Iterable[bytes]) -> None:
    """From now on no child gets a variable whose value is one of these keys."""
    _keys.update(keys)


def without_key(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child, which stores nothing of ours.

    Left out are the key's variable and every other one whose value is a key: the whole of it, for a
    short key is part of many a value.
    """
    secrets = _keys | {os.fsencode(environment.get(KEY_VARIABLE, ""))} - {b""}
    return {
        name: value
        for name, value in environment.items()
        if name != KEY_VARIABLE and os.fsencode(value) not in secrets
    }
