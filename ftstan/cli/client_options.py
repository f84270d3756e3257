"""The connection of ``ftstanctl pub`` and ``ftstanctl sub``, made from flags, environment and
context.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import ftstan.client
from ftstan.base.errors import ConfigError
from ftstan.client import NatsLogin
from ftstan.client.options import tls_context

if TYPE_CHECKING:
    import argparse


async def connect(arguments: argparse.Namespace, **more: Any) -> ftstan.client.Connection:
    """Connect; ``more`` goes to ``ftstan.client.connect``.

    Raises ``ConfigError``, ``ClientError``.
    """
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
            ca=arguments.client_ca,
            cert=arguments.client_cert,
            key=arguments.client_key,
            insecure=arguments.insecure,
        )
    except OSError as error:
        raise ConfigError(
            f"certificates cannot be used: {error}",
            hint="check --tlsca, --tlscert and --tlskey: PEM files",
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
