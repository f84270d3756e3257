"""What this server does not do, refused by name before anything was touched, in the original's words where it has some.

Source: ``docs/compat/config.md`` (refused combinations).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.config.options import STORE_MEMORY
from ftstan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ftstan.config.settings import Settings

#: The environment's key of the encryption; it beats every other.
KEY_VARIABLE = "NATS_STREAMING_ENCRYPTION_KEY"
CIPHERS = ("AES", "CHACHA")

CLUSTERED_PARTITIONING = "stan: channels partitioning in clustering mode is not supported"
CLUSTERED_MEMORY = "stan: clustering mode not supported with MEMORY store type"


class ModeError(ConfigError):
    """Two modes that exclude each other; the original says so on standard output."""


def check_modes(settings: Settings) -> None:
    """Refuse what the original refuses of clustered servers. Raises ``ModeError``."""
    if not settings.value("clustered"):
        return
    hint = ""
    source = settings.get("clustered").source
    if not source.startswith("-"):
        hint = f"{source}: this map makes a server clustered; if it is meant for NATS routes, add: streaming {{ }}"
    if settings.value("partitioning"):
        raise ModeError(CLUSTERED_PARTITIONING, hint=hint)
    if settings.value("store").upper() == STORE_MEMORY:
        raise ModeError(CLUSTERED_MEMORY, hint=hint)


def check_encryption(settings: Settings, environment: Mapping[str, str]) -> None:
    """Refuse encryption: with the original's words if it could not be carried out there either. ``ConfigError``."""
    if not settings.value("encrypt"):
        return
    if settings.value("encryption_cipher").upper() not in ("", *CIPHERS):
        raise ConfigError("encryption cipher not supported", hint=f"ciphers of the original: {', '.join(CIPHERS)}")
    if not (environment.get(KEY_VARIABLE) or settings.value("encryption_key")):
        raise ConfigError("encryption key required", hint=f"the original takes it from {KEY_VARIABLE}")
    raise not_supported(settings, "encrypt")


def not_supported(settings: Settings, key: str) -> ConfigError:
    """The refusal of an option that was given, by the name that was used and with its place."""
    setting = settings.get(key)
    named = setting.source if setting.source.startswith("-") else f'{setting.source}: "{setting.spelled}"'
    return ConfigError(
        f"{named} is not supported by this version of ftstan (planned)",
        hint="start without it; -help and docs/configuration.md show what is supported",
    )


def refuse_unsupported(settings: Settings) -> None:
    """Raise ``ConfigError`` for the first option that this version does not carry out and that is not at its default.

    Encryption that is switched on is left to ``check_encryption``.
    """
    for key, setting in settings.given.items():
        option = settings.option(key)
        if option.supported or setting.value in (option.default, ()):
            continue
        if key.startswith("encrypt") and settings.value("encrypt"):
            continue
        raise not_supported(settings, key)
