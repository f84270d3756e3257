"""The key ring that options and environment ask for, and the store around another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.config.encryption_keys import keys_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ftstan.config.options import EncryptionOptions
    from ftstan.stores.encryption.cipher import KeyRing
    from ftstan.stores.interface import Store


def ring_of(options: EncryptionOptions, environment: Mapping[str, str]) -> KeyRing | None:
    """The keys, ``None`` if nothing is encrypted. Raises ``ConfigError``."""
    keys = keys_of(options, environment)
    if not keys:
        return None
    # Late: it brings in a library of ciphers, and few servers encrypt.
    from ftstan.stores.encryption.cipher import KeyRing  # noqa: PLC0415

    return KeyRing(keys, options.cipher)


def encrypted(inner: Store, ring: KeyRing | None, options: EncryptionOptions) -> Store:
    """``inner`` itself, or with its payloads encrypted if there is a ring."""
    if ring is None:
        return inner
    from ftstan.stores.encryption.store import EncryptedStore  # noqa: PLC0415  # late, as above

    return EncryptedStore(
        inner,
        ring,
        accept_unreadable=options.accept_unreadable,
        refuse_plain=options.refuse_plain,
    )
