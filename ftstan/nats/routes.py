"""Who may join the embedded NATS server as a route or a gateway, and so get past every login and
permission of its clients.

A server that joined speaks for clients of its own, which nobody asked for a login: they publish,
read and close others as they like. So where clients need a login, the listeners of ``cluster { }``
and ``gateway { }`` need one, too, or certificates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError
from ftstan.config.options import OPEN_ROUTES
from ftstan.nats.url import parse_cluster_listen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ftstan.config.options import NatsOptions, ServerOptions

_HINT = (
    "give every member the same {block} {{ authorization {{ user, password }} }}, or tls {{ }} "
    "with ca_file, cert_file and key_file there"
)


def check_routes(options: ServerOptions) -> list[str]:
    """Refuse a listener for routes or gateways that lets everybody in where clients need a login.

    Returns lines to warn with.

    Raises ``ConfigError``, also for an address that cannot be listened on. An external NATS server
    is not looked at.
    """
    nats = options.nats
    lines: list[str] = []
    if nats.cluster_listen:
        listen = parse_cluster_listen(nats.cluster_listen)
        # A nats-server that is given half a login lets everybody in, or who knows half of it.
        asks = bool(listen.login.user and listen.login.password)
        lines += _check(options, "cluster", "a route", (listen.host, listen.plain), asks=asks)
    gateway = _lower(_map(nats.settings, "gateway"))
    if gateway:
        login = _lower(gateway.get("authorization"))
        asks = bool(
            (login.get("user") or login.get("username"))
            and (login.get("password") or login.get("pass"))
        )
        host = str(gateway.get("host") or gateway.get("net") or "")
        plain = str(gateway.get("listen") or f"{host}:{gateway.get('port', '')}")
        host = host or plain.rpartition(":")[0].strip("[]")
        lines += _check(options, "gateway", "a gateway", (host, plain), asks=asks)
    return lines


def _check(
    options: ServerOptions, block: str, kind: str, listens: tuple[str, str], *, asks: bool
) -> list[str]:
    """The same for the listener of one block, at a host and an address as they are shown."""
    host, plain = listens
    nats = options.nats
    if options.nats_servers or asks or _shows_certificates(nats.settings, block):
        return []
    hint = _HINT.format(block=block)
    everybody = f"whoever reaches {plain} may join as {kind}"
    if not _clients_need_login(nats):
        if _is_loopback(host):
            return []
        return [f"{block}: {everybody} and say anything for clients of its own: {hint}"]
    text = (
        f"{block}: clients need a login, but {everybody} without one, with clients that may do "
        "everything"
    )
    if OPEN_ROUTES in options.ft.allow:
        return [f"{text} (accepted by -ft_allow {OPEN_ROUTES}); {hint}"]
    raise ConfigError(
        f"{text} [{OPEN_ROUTES}]",
        hint=f"{hint}; who knows better starts with -ft_allow {OPEN_ROUTES}",
        option=block,
    )


def _clients_need_login(nats: NatsOptions) -> bool:
    """Whether anybody is told apart: by a password, a token, a key, a certificate, or somebody who
    is asked.
    """
    logins = _map(nats.settings, "authorization")
    accounts = _map(nats.settings, "accounts").values()
    return bool(
        nats.user
        or nats.password
        or nats.token
        or (nats.tls.enabled and (nats.tls.verify or nats.tls.verify_and_map))
        or logins.get("users")
        or logins.get("auth_callout")
        or any(isinstance(account, dict) and account.get("users") for account in accounts)
        or any(nats.settings.get(key) for key in ("operator", "trusted_keys", "resolver"))
    )


def _shows_certificates(settings: Mapping[str, object], block: str) -> bool:
    """Whether servers show certificates of authorities that were chosen for it: the system's would
    be everybody's.
    """
    tls = _lower(_lower(_map(settings, block)).get("tls"))
    return bool(tls.get("ca_file")) and not tls.get("insecure")


def _lower(value: object) -> dict[str, object]:
    """A block, with its keys as they are written in the documentation; empty if it is none."""
    return {name.lower(): one for name, one in value.items()} if isinstance(value, dict) else {}


def _map(settings: Mapping[str, object], key: str) -> dict[str, object]:
    value = settings.get(key)
    return value if isinstance(value, dict) else {}


def _is_loopback(host: str) -> bool:
    try:
        import ipaddress  # noqa: PLC0415  # late: few starts have routes

        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
