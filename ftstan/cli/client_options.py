"""What ``ftstanctl pub`` and ``ftstanctl sub`` share: the connection, made from flags, environment and context."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import ftstan.client
from ftstan.base.errors import ConfigError
from ftstan.cli import contexts
from ftstan.client import NatsLogin
from ftstan.client.tls import tls_context

if TYPE_CHECKING:
    import argparse

EXIT_DONE = 0
EXIT_NOT_ALL = 1
EXIT_CANNOT_ASK = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags for the connection."""
    contexts.add_options(parser, group=False, enforce_tls=False)
    parser.add_argument("--client-id", default="", metavar="ID", help="default: one of its own, new each time")
    parser.add_argument(
        "--connect-timeout", type=seconds, default=10.0, metavar="SECONDS", help="for the connection (default 10)"
    )


async def connect(arguments: argparse.Namespace, **more: Any) -> ftstan.client.Connection:
    """Connect; ``more`` goes to ``ftstan.client.connect``. Raises ``ConfigError``, ``ClientError``."""
    return await ftstan.client.connect(
        arguments.cluster,
        arguments.client_id or f"ftstanctl-{secrets.token_hex(6)}",
        servers=[server.strip() for server in arguments.server.split(",")],
        login=login(arguments),
        timeout=arguments.connect_timeout,
        **more,
    )


def login(arguments: argparse.Namespace) -> NatsLogin:
    """The login that the flags, the environment and the context say. Raises ``ConfigError``."""
    try:
        tls = tls_context(
            ca=arguments.client_ca, cert=arguments.client_cert, key=arguments.client_key, insecure=arguments.insecure
        )
    except OSError as error:
        raise ConfigError(
            f"certificates cannot be used: {error}", hint="check --tlsca, --tlscert and --tlskey: PEM files"
        ) from error
    return NatsLogin(
        user=arguments.user or None,
        password=arguments.password or None,
        token=arguments.token or None,
        user_credentials=arguments.credentials or None,
        nkeys_seed=arguments.nkey_seed_file or None,
        tls=tls,
        tls_hostname=arguments.server_name or None,
    )


def seconds(text: str) -> float:
    """A duration above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def number(text: str) -> int:
    """A whole number, 1 or more."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


seconds.__name__, number.__name__ = "duration in seconds", "number"  # what argparse calls a wrong value
