"""The keys with which readers decrypt payloads: where they are, never what they are.

A plan and its options are sent to tasks, and Spark may spill them to a disk: so they hold a path,
or that the environment has the key, and each task reads the keys itself.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ftstan.base.environment import KEY_VARIABLE
from ftstan.base.errors import ConfigError
from ftstan.config.options import EncryptionOptions
from ftstan.stores.encryption.ring import ring_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ftstan.base.errors import StoreError
    from ftstan.stores.encryption.cipher import KeyRing

#: The option of the data source.
KEY_FILE_OPTION: Final = "encryptionKeyFile"

_HINT: Final = (
    "add the key that wrote it to the file of encryptionKeyFile; sequences before it can be read "
    "with endingOffsets"
)


@dataclass(frozen=True, slots=True)
class KeySource:
    """A file of keys, else the environment's key, else (false) no keys: nothing is decrypted."""

    file: str = ""
    environment: bool = False

    @classmethod
    def of(cls, path: str, environment: Mapping[str, str] | None = None) -> KeySource:
        """The file that was named, else the environment's key if there is one.

        Raises ``ConfigError`` for a file that cannot be used.
        """
        if path:
            source = cls(file=os.path.abspath(path))
            source.ring()
            return source
        return cls(environment=bool((environment or os.environ).get(KEY_VARIABLE)))

    def __bool__(self) -> bool:
        return bool(self.file or self.environment)

    def ring(self) -> KeyRing | None:
        """The keys, ``None`` without any. Raises ``ConfigError``."""
        if not self:
            return None
        if self.environment and not os.environ.get(KEY_VARIABLE):
            raise ConfigError(
                f"{KEY_VARIABLE} is set where the query was planned, and not on this executor",
                hint=f"name a file that every executor has: {KEY_FILE_OPTION}",
            )
        options = EncryptionOptions(enabled=True, key_file=self.file)
        return ring_of(options, os.environ if self.environment else {})


NO_KEYS: Final = KeySource()


def undecryptable(error: StoreError, place: str, channel: str, sequence: int) -> StoreError:
    """The error of the reader of such a message, with its channel and sequence."""
    return type(error)(
        f'{place}: channel "{channel}" sequence {sequence} cannot be decrypted: {error.text}',
        hint=_HINT,
    )
