"""The ``tls`` map of the NATS half, and the names of ciphers and curves that it may use.

Certificates are looked at where they are loaded; here it is about what the file says. The names are
those that ``-help_tls`` prints.

Source: ``docs/compat/config.md`` (TLS).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError
from ftstan.config.declaration import Section, ValueKind
from ftstan.config.table import names_of
from ftstan.config.unknown_keys import did_you_mean
from ftstan.config.values import EXPECTED, conversion_error, seconds

if TYPE_CHECKING:
    from collections.abc import Collection

    from ftstan.config.declaration import Option
    from ftstan.config.precedence import Settings
    from ftstan.config.tree import Node, Place

#: Cipher suites that the NATS server takes, by name.
CIPHER_SUITES = (
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
)

CURVES = ("CurveP256", "CurveP384", "CurveP521", "X25519")

_LISTS = {
    "cipher_suites": ("cipher", CIPHER_SUITES),
    "curve_preferences": ("curve preference", CURVES),
}


def read_tls(key: str, node: Node, settings: Settings, used: Collection[Place]) -> None:
    """Put what the ``tls`` map says into ``settings``.

    Raises ``ConfigError`` in the words of the original.
    """
    for option, (name, value, place) in check_tls(key, node, used).items():
        settings.put(option, value, place, name)
    settings.put("tls", True, node.source, key)


def check_tls(key: str, node: Node, used: Collection[Place]) -> dict[str, tuple[str, object, str]]:
    """What a ``tls`` map says, by option: its name there, its value, its place.

    Raises ``ConfigError``.
    """
    if not isinstance(node.value, dict):
        raise conversion_error(key, node, "map[string]interface {}", ValueKind.MAP)
    known = names_of(Section.NATS_TLS)
    found: dict[str, tuple[str, object, str]] = {}
    for inner, item in node.value.items():
        option = known.get(inner.lower())
        if option is None:
            if item.place in used:
                continue
            raise ConfigError(
                f'{item.place}: error parsing tls config, unknown field ["{inner}"]',
                hint=f"{key} knows {', '.join(sorted(known))}{did_you_mean(inner, known)}",
            )
        found[option.key] = (inner, _value(option, inner, item), item.source)
    certificate, private = (found.get(option, ("", ""))[1] for option in ("tlscert", "tlskey"))
    for has, lacks, name in (
        (certificate, private, "key_file"),
        (private, certificate, "cert_file"),
    ):
        if has and not lacks:
            raise ConfigError(
                f"{node.place}: missing '{name}' in TLS configuration",
                hint="cert_file and key_file belong together",
            )
    return found


def _value(option: Option, key: str, node: Node) -> object:
    value = node.value
    wrong = f"{node.place}: error parsing tls config, "
    hint = f"{key} takes {EXPECTED[option.kind]}"
    match option.kind:
        case ValueKind.STRING:
            if not isinstance(value, str):
                raise ConfigError(
                    f"{wrong}expected '{key}' to be filename",
                    hint=f"{key} takes the path of a PEM file",
                )
            return value
        case ValueKind.BOOL:
            if not isinstance(value, bool):
                raise ConfigError(f"{wrong}expected '{key}' to be a boolean", hint=hint)
            return value
        case ValueKind.FLOAT:
            return seconds(wrong, key, node, hint)
        case _:
            return _names(option, wrong, key, node)


def _names(option: Option, wrong: str, key: str, node: Node) -> tuple[str, ...]:
    what, known = _LISTS[option.key]
    if not isinstance(node.value, list):
        raise conversion_error(key, node, "[]interface {}", ValueKind.LIST)
    if not node.value:
        raise ConfigError(
            f"{wrong}'{key}' cannot be empty",
            hint="leave it out, or list some; -help_tls has the names",
        )
    for item in node.value:
        if item.value not in known:
            raise ConfigError(
                f"{item.place}: unrecognized {what} {item.value}",
                hint="-help_tls lists the names that there are",
            )
    return tuple(str(item.value) for item in node.value)


_TLS_HELP = """
TLS of clients stands in a map of the configuration file:

    tls {
        cert_file: "./certs/server-cert.pem"
        key_file:  "./certs/server-key.pem"
        ca_file:   "./certs/ca.pem"
        verify:    true
        timeout:   2

        cipher_suites: [
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
        ]
        curve_preferences: [
            "CurveP256",
            "X25519"
        ]
    }
"""


def tls_help() -> str:
    """Return what ``-help_tls`` prints: an example, then the names of cipher suites and curves."""
    text = _TLS_HELP
    for title, names in (("cipher suites", CIPHER_SUITES), ("curve preferences", CURVES)):
        text += f"\nAvailable {title}:\n\n" + "".join(f"    {name}\n" for name in names)
    return text + "\n"
