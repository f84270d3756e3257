"""The keys that encrypt stored payloads: which of them counts, and the file that holds several.

Source: ``docs/compat/encryption.md`` (options); the file is ours.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from ftstan.base.environment import KEY_VARIABLE, withhold
from ftstan.base.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ftstan.config.options import EncryptionOptions

CIPHERS: Final = ("AES", "CHACHA")

_MOST_BYTES: Final = 1 << 20
_KEY_HINT: Final = (
    f"set {KEY_VARIABLE} in the server's environment, or name a file of keys with "
    "-encryption_key_file"
)


def check_encryption(options: EncryptionOptions, environment: Mapping[str, str]) -> None:
    """Refuse what cannot encrypt, with the original's words where it refuses as well.

    Raises ``ConfigError``.
    """
    keys_of(options, environment)
    if options.refuse_plain and not options.enabled:
        raise ConfigError(
            "encryption_refuse_plain is for a server that encrypts",
            hint="add -encrypt with a key, or -encryption_key_file; or leave it out",
            option="encryption_refuse_plain",
        )
    if options.accept_mixed and options.enabled:
        raise ConfigError(
            "encryption_accept_mixed is for a server without a key",
            hint="leave it out: with keys, encrypted and plain messages are read",
            option="encryption_accept_mixed",
        )


def check_switch(options: EncryptionOptions) -> None:
    """Refuse a key without the switch, where a program gave both: it must not get plain messages.

    On command lines and in files a key is the switch, which ``-encrypt=false`` can take back.
    Raises ``ConfigError``.
    """
    if not options.enabled and (options.key or options.key_file):
        raise ConfigError(
            "an encryption key is given, and encryption is not enabled",
            hint="EncryptionOptions(enabled=True, ...), or no key",
            option="encrypt",
        )


def keys_of(options: EncryptionOptions, environment: Mapping[str, str]) -> list[bytes]:
    """The keys, the one that encrypts first; none if encryption is not switched on.

    No child process gets them by a variable of its environment. Raises ``ConfigError``.
    """
    if not options.enabled:
        return []
    if options.cipher.upper() not in ("", *CIPHERS):
        raise ConfigError(
            "encryption cipher not supported",
            hint=f"use one of: {', '.join(CIPHERS)}; or leave it out",
            option="encryption_cipher",
        )
    if options.key and options.key_file:
        raise ConfigError(
            "encryption_key and encryption_key_file exclude each other",
            hint="put the key into the file, and leave encryption_key out",
            option="encryption_key",
        )
    keys = []
    if said := environment.get(KEY_VARIABLE):
        keys.append(os.fsencode(said))
    if options.key_file:
        keys += read_key_file(options.key_file)
    elif options.key and not keys:
        keys.append(options.key.encode("utf-8", "surrogateescape"))
    if not keys:
        raise ConfigError("encryption key required", hint=_KEY_HINT, option="encryption_key")
    withhold(keys)
    return keys


def read_key_file(path: str) -> list[bytes]:
    """The keys in a file, one a line as it stands; empty lines and those that begin with # are
    none.

    Raises ``ConfigError``: unreadable, without a key, or open to everybody.
    """

    def refusal(what: str, hint: str) -> ConfigError:
        return ConfigError(
            f"encryption_key_file {path} {what}", hint=hint, option="encryption_key_file"
        )

    # Late: most servers have no such file.
    from ftstan.config.secret_file import read_secret_file  # noqa: PLC0415

    data = read_secret_file(path, _MOST_BYTES, "a key in each line", refusal)
    if len(data) > _MOST_BYTES:
        raise refusal("is too large for a file of keys", "a key is one line of it")
    lines = [line.removesuffix(b"\r") for line in data.split(b"\n")]
    keys = [line for line in lines if line and not line.startswith(b"#")]
    if not keys:
        raise refusal("holds no key", "write a key into it, in a line of its own")
    return keys
