"""How the tasks of a job reach a streaming server: the options of ``stan`` that say so, and the
connection they make.

The options travel from the driver to the tasks, files of keys do not: a path must be readable
wherever a task runs.
"""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import ftstan.client
from ftstan.base.errors import ConfigError
from ftstan.client import ClientError, NatsLogin
from ftstan.client.options import tls_context
from ftstan.spark.options import seconds, truth
from ftstan.wire.subjects import DISCOVER_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONNECT_WITHIN_S: Final = 30.0

#: Options that say where the servers are, as people write them.
SERVER_OPTIONS: Final = (
    "servers",
    "clusterId",
    "discoverPrefix",
    "connectTimeout",
    "user",
    "password",
    "token",
    "credentials",
    "nkey",
    "tlsCa",
    "tlsCert",
    "tlsKey",
    "tlsName",
    "tlsInsecure",
)

#: Option -> argument of ``NatsLogin``.
_LOGIN: Final = {
    "user": "user",
    "password": "password",
    "token": "token",
    "credentials": "user_credentials",
    "nkey": "nkeys_seed",
    "tlsName": "tls_hostname",
}


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where the servers are and who we say we are. ``timeout``: seconds for the first connect."""

    servers: tuple[str, ...]
    cluster_id: str
    discover_prefix: str = DISCOVER_PREFIX
    timeout: float = _CONNECT_WITHIN_S
    login: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_insecure: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ServerOptions:
        """What the options of a source or sink say, by their proper names.

        Raises ``ConfigError``.
        """
        servers = tuple(
            server.strip() for server in options.get("servers", "").split(",") if server.strip()
        )
        if not servers:
            raise ConfigError(
                "stan: where are the servers?",
                hint='.option("servers", "nats://a:4222,nats://b:4222")',
            )
        if not options.get("clusterId"):
            raise ConfigError(
                "stan: the option clusterId is missing", hint="it is what the server has as -cid"
            )
        return cls(
            servers=servers,
            cluster_id=options["clusterId"],
            discover_prefix=options.get("discoverPrefix") or DISCOVER_PREFIX,
            timeout=seconds(options, "connectTimeout", _CONNECT_WITHIN_S),
            login={name: options[key] for key, name in _LOGIN.items() if options.get(key)},
            tls_ca=options.get("tlsCa", ""),
            tls_cert=options.get("tlsCert", ""),
            tls_key=options.get("tlsKey", ""),
            tls_insecure=truth(options, "tlsInsecure", default=False),
        )

    async def connect(self, role: str, **more: Any) -> ftstan.client.Connection:
        """Connect under a client id of its own that begins with ``role``.

        ``more`` goes to ``ftstan.client.connect``.

        Raises ``ConfigError`` for files of keys that cannot be used, ``ClientError``.
        """
        try:
            tls = tls_context(
                ca=self.tls_ca, cert=self.tls_cert, key=self.tls_key, insecure=self.tls_insecure
            )
        except OSError as error:
            raise ConfigError(
                f"certificates cannot be used: {error}",
                hint="check tlsCa, tlsCert and tlsKey: PEM files that every executor can read",
            ) from error
        login: dict[str, Any] = dict(self.login)
        return await ftstan.client.connect(
            self.cluster_id,
            # An attempt whose worker was killed keeps its session until the server gives it up.
            f"{role}-{secrets.token_hex(6)}",
            servers=self.servers,
            login=NatsLogin(**login, tls=tls),
            discover_prefix=self.discover_prefix,
            timeout=self.timeout,
            **more,
        )


async def leave(connection: ftstan.client.Connection) -> None:
    """Close a connection; a server that does not answer that is no matter."""
    with contextlib.suppress(ClientError):
        await connection.close()
