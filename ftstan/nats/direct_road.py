"""The direct road between clients and the core: where it may be, and what the NATS server behind
the listener is told.

The listener judges nobody. So there is none where the NATS server would have to say whether a
client may publish or subscribe, or would do something with a message that the listener cannot do
(``docs/direct-road.md``).
"""

from __future__ import annotations

import contextlib
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ftstan.base.log import nats as log
from ftstan.front.listener import LOOPBACK, Front
from ftstan.nats.generated import MAX_PENDING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ftstan.config.options import ServerOptions
    from ftstan.nats.generated import NatsServerOptions

#: Keys of the NATS server's file with which messages go as without them.
_HARMLESS: Final = frozenset(
    {
        *("client_advertise", "server_name", "max_payload", "max_pending", "max_control_line"),
        *("max_connections", "ping_interval", "ping_max", "write_deadline"),
        *("lame_duck_duration", "lame_duck_grace_period", "max_closed_clients"),
        *("connect_error_reports", "reconnect_error_reports", "disable_sublist_cache"),
        *("no_header_support", "no_fast_producer_stall", "server_tags", "prof_port"),
        *("prof_block_rate", "authorization", "cluster", "no_advertise", "connect_retries"),
    }
)
_HARMLESS_LOGINS: Final = frozenset({"timeout", "user", "password", "token"})
_ANY: Final = ("", "0.0.0.0", "::")  # noqa: S104  # to be recognised


def why_not(options: ServerOptions) -> str:
    """Why there is no direct road; empty if there is one."""
    nats = options.nats
    if not options.direct:
        return "-direct=false"
    if options.nats_servers:
        return "the NATS server is another program's (-ns)"
    if options.clustered:
        return "other nodes of this cluster serve the same clients (-clustered)"
    if options.partitioning:
        return "other servers of this cluster serve the same clients (partitioning)"
    if nats.tls.enabled:
        return "clients connect with TLS"
    if nats.trace:
        return "what clients send is to be traced (-V)"
    for key, value in nats.settings.items():
        if key not in _HARMLESS and value is not False:
            return f'the NATS server has "{key}"'
    logins = nats.settings.get("authorization", {})
    for key in logins if isinstance(logins, dict) else ():
        if key not in _HARMLESS_LOGINS:
            return f'the NATS server has "{key}"'
    return ""


def open_front(options: ServerOptions) -> Front:
    """Open the port for clients. Raises ``OSError``."""
    nats = options.nats
    settings = nats.settings
    return Front(
        nats.host,
        nats.port,
        max_line=_number(settings, "max_control_line"),
        max_pending=_number(settings, "max_pending") or MAX_PENDING,
    )


def behind(options: NatsServerOptions, front: Front) -> NatsServerOptions:
    """What a NATS server is told that has ``front`` before it."""
    settings = dict(options.settings)
    if not settings.get("client_advertise"):
        settings["client_advertise"] = f"{_advertised(options)}:{front.port}"
    # Whose connection it is the listener says on each.
    settings["proxy_protocol"] = True
    return replace(options, host=LOOPBACK, port=front.server_port, settings=settings)


def tell_events(front: Front) -> None:
    """Log what has happened to clients of the listener."""
    for what, address in front.read_events():
        if what == "slow":
            log.warning(
                f"{address} - Slow Consumer Detected: more waits for it than max_pending allows",
                backs_off=True,
            )
        elif what == "crowd":
            log.warning(
                "Clients are served by the NATS server alone from now on: one message suits too "
                "many subscriptions"
            )
        else:
            log.error("clients cannot be taken: too many open files, or no memory", backs_off=True)


def _advertised(options: NatsServerOptions) -> str:
    """The host that clients, and through other NATS servers their clients, are told."""
    host = options.host.strip("[]")
    if options.cluster_listen and host in _ANY:
        # Others must be able to use it.
        host = _own_address() or host
    return f"[{host}]" if ":" in host else host or _ANY[1]


def _own_address() -> str:
    """The address under which this host is seen by others; empty if it has no way to them."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Nothing is sent: the kernel only looks for the way.
        probe.connect(("192.0.2.1", 9))
        address: str = probe.getsockname()[0]
        return address
    return ""


def _number(settings: Mapping[str, object], key: str) -> int:
    value = settings.get(key, 0)
    return value if isinstance(value, int) else 0
