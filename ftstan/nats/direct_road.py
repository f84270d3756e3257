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
from ftstan.config.options import ServerTlsOptions
from ftstan.front.listener import LOOPBACK, Front
from ftstan.nats.generated import MAX_PENDING
from ftstan.nats.launch import client_url
from ftstan.nats.peer import warn_unseen
from ftstan.nats.url import parse_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ftstan.config.options import LinkOptions, NatsOptions, ServerOptions
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
    if reason := tls_why_not(nats):
        return reason
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


def tls_why_not(nats: NatsOptions | NatsServerOptions) -> str:
    """Why TLS of clients cannot end in the listener; empty if it can, or if there is none."""
    if not nats.tls.enabled:
        return ""
    # Late: a start without TLS loads nothing of it.
    from ftstan.nats import listener_tls  # noqa: PLC0415

    if isinstance(_login_timeout(nats.settings), str):
        return 'clients connect with TLS, and "timeout" of their login is no number of seconds'
    return listener_tls.why_not(nats.tls)


def ends_tls(nats: NatsOptions | NatsServerOptions) -> bool:
    """Whether TLS of clients ends in the listener, where there is one."""
    return nats.tls.enabled and not tls_why_not(nats)


def link_options(link: LinkOptions, nats: NatsOptions) -> LinkOptions:
    """What our links show to the NATS server behind a listener: the login of ``link``, and no TLS
    if that has ended before. Raises ``NatsError`` if it would not trust the certificate.
    """
    if not ends_tls(nats):
        return link
    from ftstan.nats import listener_tls  # noqa: PLC0415  # as above

    # The port is not known yet where any will do, and plays no part.
    url = client_url(nats.host, max(nats.port, 1))
    listener_tls.check_trusted(nats.tls, link, parse_url(url))
    return replace(
        link,
        secure=False,
        client_ca="",
        client_cert="",
        client_key="",
        server_name="",
        insecure=False,
    )


def open_front(options: ServerOptions) -> Front:
    """Open the port for clients. Raises ``OSError``, and ``ConfigError`` for certificates."""
    nats = options.nats
    settings = nats.settings
    made = make_tls(nats)
    front = Front(
        nats.host,
        nats.port,
        max_line=max_line(nats),
        max_pending=_number(settings, "max_pending") or MAX_PENDING,
    )
    front.use_tls(made)
    return front


def max_line(nats: NatsOptions) -> int:
    """Bytes of a protocol line that the NATS server is configured to take, 0 for its default."""
    return _number(nats.settings, "max_control_line")


def make_tls(nats: NatsOptions) -> int:
    """What ``Front.use_tls`` takes: the certificates of now, 0 if TLS does not end there. Raises
    ``ConfigError``.
    """
    if not ends_tls(nats):
        return 0
    from ftstan.nats import listener_tls  # noqa: PLC0415  # as above

    return listener_tls.make(nats.tls)


def drop_tls(made: int) -> None:
    """Forget what ``make_tls`` has made, which no listener has taken."""
    if made:
        from ftstan.front import openssl  # noqa: PLC0415  # as above

        openssl.drop(made)


def behind(options: NatsServerOptions, front: Front) -> NatsServerOptions:
    """What a NATS server is told that has ``front`` before it."""
    settings = dict(options.settings)
    if not settings.get("client_advertise"):
        settings["client_advertise"] = f"{_advertised(options)}:{front.port}"
    # Whose connection it is the listener says on each.
    settings["proxy_protocol"] = True
    tls = options.tls
    if ends_tls(options):
        _allow_for_handshake(options, settings)
        tls = ServerTlsOptions()
    return replace(options, host=LOOPBACK, port=front.server_port, settings=settings, tls=tls)


def _allow_for_handshake(options: NatsServerOptions, settings: dict[str, object]) -> None:
    """The NATS server waits for a login from its greeting on, of whose handshake it knows nothing.
    With TLS it would begin behind that, and wait a second longer than for the handshake by itself.
    """
    from ftstan.nats.listener_tls import handshake_s  # noqa: PLC0415  # as above

    logins = settings.get("authorization")
    if not (logins or options.user or options.password or options.token):
        return
    handshake = handshake_s(options.tls)
    own = _login_timeout(settings)
    wait = handshake + (own if isinstance(own, float) and own > 0 else handshake + 1)
    settings["authorization"] = (logins if isinstance(logins, dict) else {}) | {"timeout": wait}


def tell_events(front: Front) -> None:
    """Log what has happened to clients of the listener."""
    for what, address in front.read_events():
        if what == "slow":
            log.warning(
                f"{address} - Slow Consumer Detected: more waits for it than max_pending allows",
                backs_off=True,
            )
        elif what == "tls":
            client, port, reason = address.split(" ", 2)
            log.error(f"{client}:{port} - TLS handshake error: {reason}", backs_off=True)
        elif what == "stranger":
            log.error(
                f"another account has the port {address.replace(' ', ':')} of the NATS server: it "
                "was told nothing",
                backs_off=True,
            )
        elif what == "unseen":
            warn_unseen()
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


def _login_timeout(settings: Mapping[str, object]) -> float | str:
    """Seconds that a login may take, 0 if nothing is said; a text that only the NATS server
    understands.
    """
    logins = settings.get("authorization")
    value = logins.get("timeout", 0) if isinstance(logins, dict) else 0
    return float(value) if isinstance(value, (int, float)) else str(value)


def _number(settings: Mapping[str, object], key: str) -> int:
    value = settings.get(key, 0)
    return value if isinstance(value, int) else 0
