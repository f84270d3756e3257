"""Who may join the embedded NATS server as a route, and so get past every login and permission of
its clients.

A server that joined speaks for clients of its own, which nobody asked for a login: they publish,
read and close others as they like. So where clients need a login, the listener of ``cluster { }``
needs one, too, or certificates.
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
    "give every member the same cluster { authorization { user, password } }, or tls { } with "
    "ca_file, cert_file and "
    "key_file there"
)


def check_routes(options: ServerOptions) -> list[str]:
    """Refuse a listener for routes that lets everybody in where clients need a login.

    Returns lines to warn with.

    Raises ``ConfigError``, also for an address that cannot be listened on. An external NATS server
    is not looked at.
    """
    nats = options.nats
    if not nats.cluster_listen:
        return []
    listen = parse_cluster_listen(nats.cluster_listen)
    # A nats-server that is given half a login lets everybody in, or who knows half of it.
    asks = bool(listen.login.user and listen.login.password) or _shows_certificates(nats.settings)
    if options.nats_servers or asks:
        return []
    everybody = f"whoever reaches {listen.plain} may join as a route"
    if not _clients_need_login(nats):
        if _is_loopback(listen.host):
            return []
        return [f"cluster: {everybody} and say anything for clients of its own: {_HINT}"]
    text = (
        f"cluster: clients need a login, but {everybody} without one, with clients that may do "
        "everything"
    )
    if OPEN_ROUTES in options.ft.allow:
        return [f"{text} (accepted by -ft_allow {OPEN_ROUTES}); {_HINT}"]
    raise ConfigError(
        f"{text} [{OPEN_ROUTES}]",
        hint=f"{_HINT}; who knows better starts with -ft_allow {OPEN_ROUTES}",
        option="cluster",
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


def _shows_certificates(settings: Mapping[str, object]) -> bool:
    """Whether routes show certificates of authorities that were chosen for it: the system's would
    be everybody's.
    """
    tls = _map(_map(settings, "cluster"), "tls")
    said = {name.lower(): value for name, value in tls.items()}
    return bool(said.get("ca_file")) and not said.get("insecure")


def _map(settings: Mapping[str, object], key: str) -> dict[str, object]:
    value = settings.get(key)
    return value if isinstance(value, dict) else {}


def _is_loopback(host: str) -> bool:
    try:
        import ipaddress  # noqa: PLC0415  # late: few starts have routes

        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
