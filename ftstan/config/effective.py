"""The effective configuration: as lines for people, and as a file.

The lines say where each value came from and show secrets as ``***``. The file loads back to the
same options and so holds secrets; it leaves out what is at its default, and names in a comment what
has no key on purpose (``-file_truncate_bad_eof``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ftstan.config.declaration import ValueKind
from ftstan.config.limits import INHERIT, shown_rules
from ftstan.config.options import DeliveryRules, ServerOptions
from ftstan.config.precedence import DEFAULT, field_value, plant
from ftstan.config.table import BY_KEY, CHANNEL_LIMITS, CONFIGURED
from ftstan.config.units import format_duration, quote
from ftstan.config.writer import entry, written

if TYPE_CHECKING:
    from ftstan.config.declaration import Option
    from ftstan.config.options import ChannelLimits
    from ftstan.config.precedence import Settings

HIDDEN = "***"

_SECRET_KEYS = {"password", "pass", "token", "secret", "issuer_seed", "signing_key", "jwt"}
#: Up to the last "@" of an address: a password may hold one.
_USERINFO = re.compile(r"(?<=://)[^/\s]*(?=@)")


def effective_lines(settings: Settings, options: ServerOptions) -> list[str]:
    """One line an option: its name in a file, its value, and in brackets where it came from."""
    rows = []
    for option in CONFIGURED:
        given = settings.given.get(option.key)
        value = given.value if given and not option.field else field_value(options, option)
        if value is not None:
            rows.append((option.path, shown(option, value), given.source if given else DEFAULT))
    for name, limits, rules in _entries(options):
        path = f"streaming.store_limits.channels.{quote(name)}"
        rows.append((path, _limits_line(limits, rules), settings.channels_source))
    width = max(len(f"{name} = {value}") for name, value, _ in rows if len(value) < 40)
    return [f"{f'{name} = {value}':<{width}}  ({source})" for name, value, source in rows]


def shown(option: Option, value: Any) -> str:
    """A value as people read it, without secrets."""
    if option.secret:
        return HIDDEN if value else '""'
    if option.kind is ValueKind.DURATION and isinstance(value, int):
        return format_duration(value)
    return written(masked(value))


def masked(value: Any) -> Any:
    """``value`` with the passwords, tokens and user infos of URLs in it replaced."""
    match value:
        case dict():
            hidden = {key: HIDDEN for key in value if key.lower() in _SECRET_KEYS}
            return {key: hidden.get(key) or masked(item) for key, item in value.items()}
        case list() | tuple():
            return [masked(item) for item in value]
        case str():
            return _USERINFO.sub(HIDDEN, value)
        case _:
            return value


def _entries(options: ServerOptions) -> list[tuple[str, ChannelLimits, DeliveryRules]]:
    """The entries of the per-channel map: limits, and rules of deliveries."""
    limits = dict(options.limits.channels)
    rules = dict(options.limits.deliveries)
    return [
        (name, limits.get(name, INHERIT), rules.get(name, DeliveryRules()))
        for name in limits | rules
    ]


def _own_limits(limits: ChannelLimits) -> dict[str, object]:
    """Limits of one channel as they are written: 0 for unlimited, nothing for what is inherited."""
    said = {option: getattr(limits, option.key) for option in CHANNEL_LIMITS}
    return {option.key: _writable(option, max(value, 0)) for option, value in said.items() if value}


def _limits_line(limits: ChannelLimits, rules: DeliveryRules) -> str:
    said = []
    for name, value in _own_limits(limits).items():
        said.append(f"{name}: {value if getattr(limits, name) > 0 else 'unlimited'}")
    said += [entry(name, value) for name, value in shown_rules(rules).items()]
    return "{ " + ", ".join(said) + " }" if said else "{ }"


def dump(options: ServerOptions) -> str:
    """The file. Raises ``ConfigError`` for a name that no file can hold."""
    usual = ServerOptions()
    tree: dict[str, Any] = {}
    comment = ""
    for option in CONFIGURED:
        value = field_value(options, option)
        if value is None or value == field_value(usual, option):
            continue
        if option.names:
            plant(tree, option.path, _writable(option, value))
        elif option.key == "file_truncate_bad_eof":
            comment = "# has no key on purpose, it is for one start: -file_truncate_bad_eof\n"
    _dump_monitor(options, tree)
    _dump_routes(options, tree)
    if options.nats.tls.enabled:
        tree.setdefault("tls", {})
    channels = {
        name: _own_limits(limits) | shown_rules(rules) for name, limits, rules in _entries(options)
    }
    if channels:
        plant(tree, "streaming.store_limits.channels", channels)
    # Always there: without it the map of routes would make the server clustered.
    tree["streaming"] = tree.pop("streaming", {})
    return comment + "".join(f"{entry(key, item, '')}\n" for key, item in tree.items())


def _writable(option: Option, value: Any) -> object:
    if option.key == "nats_server":
        return ",".join(value)
    is_duration = option.kind is ValueKind.DURATION and isinstance(value, int)
    return format_duration(value) if is_duration else value


def _dump_monitor(options: ServerOptions, tree: dict[str, Any]) -> None:
    monitor = options.monitor
    if monitor.host == options.nats.host:
        return
    host = f"[{monitor.host}]" if ":" in monitor.host else monitor.host
    key, port = ("https", monitor.https_port) if monitor.https_port else ("http", monitor.http_port)
    tree.pop(f"{key}_port", None)
    tree[key] = f"{host}:{port}"


def _dump_routes(options: ServerOptions, tree: dict[str, Any]) -> None:
    if not options.nats.cluster_listen:
        return
    section = tree.setdefault("cluster", {})
    login, _, address = options.nats.cluster_listen.partition("://")[2].rpartition("@")
    section["listen"] = address
    if login:
        user, _, password = login.partition(":")
        section["authorization"] = {"user": unquote(user), "password": unquote(password)}
        timeout = field_value(options, BY_KEY["cluster_auth_timeout"])
        if timeout:
            section["authorization"]["timeout"] = timeout
