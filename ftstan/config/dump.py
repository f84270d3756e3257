"""Options as a file that loads back to the same options; what is at its default is left out.

The file holds what the options hold, secrets included: it is a configuration file like the one it was made from. What
has no key on purpose (``-file_truncate_bad_eof``) is named in a comment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ftstan.config.keys import BINDINGS, CHANNEL_LIMITS, Section
from ftstan.config.options import ServerOptions
from ftstan.config.settings import field_value
from ftstan.config.table import Kind
from ftstan.config.units import format_duration
from ftstan.config.writer import entry

if TYPE_CHECKING:
    from ftstan.config.keys import Binding
    from ftstan.config.options import ChannelLimits

#: Sections inside the streaming map, by the name that a dump gives them.
_INNER = {Section.TLS: "tls", Section.LIMITS: "store_limits", Section.FILE: "file_options"}
_OUTER = {Section.NATS_TLS: "tls", Section.AUTHORIZATION: "authorization", Section.ROUTES: "cluster"}


def dump(options: ServerOptions) -> str:
    """Text of the file. Raises ``ConfigError`` for a name that no file can hold."""
    usual = ServerOptions()
    outer: dict[str, Any] = {}
    streaming: dict[str, Any] = {}
    comments: list[str] = []
    for binding in BINDINGS:
        value = field_value(options, binding.option.key)
        if value is None or value == field_value(usual, binding.option.key):
            continue
        if not binding.names:
            if binding.option.key == "file_truncate_bad_eof":
                comments.append("# has no key on purpose, it is for one start: -file_truncate_bad_eof")
            continue
        section = binding.section
        if section in _INNER:
            target = streaming.setdefault(_INNER[section], {})
        elif section in _OUTER:
            target = outer.setdefault(_OUTER[section], {})
        else:
            target = streaming if section is Section.STREAMING else outer
        target[binding.names[0]] = _value(binding, value)
    _monitor(options, outer)
    _routes(options, outer)
    if options.nats.tls.enabled:
        outer.setdefault("tls", {})
    if options.limits.channels:
        streaming.setdefault("store_limits", {})["channels"] = {
            name: _channel(limits) for name, limits in options.limits.channels
        }
    # Always there: without it the map of routes would make the server clustered.
    tree = {**outer, "streaming": streaming}
    return "".join(f"{line}\n" for line in comments) + "".join(
        f"{entry(key, item, '')}\n" for key, item in tree.items()
    )


def _value(binding: Binding, value: Any) -> object:
    if binding.option.key == "nats_server":
        return ",".join(value)
    if binding.option.kind is Kind.DURATION and isinstance(value, int):
        return format_duration(value)
    return value


def _channel(limits: ChannelLimits) -> dict[str, object]:
    """Limits of one channel as they are written: 0 for unlimited, nothing for what is inherited."""
    raw = {name: getattr(limits, name) for name in CHANNEL_LIMITS}
    said = {name: max(value, 0) for name, value in raw.items() if value}
    return {
        name: format_duration(value) if name in ("max_age", "max_inactivity") else value for name, value in said.items()
    }


def _monitor(options: ServerOptions, outer: dict[str, Any]) -> None:
    monitor = options.monitor
    if monitor.host == options.nats.host:
        return
    host = f"[{monitor.host}]" if ":" in monitor.host else monitor.host
    key, port = ("https", monitor.https_port) if monitor.https_port else ("http", monitor.http_port)
    outer.pop(f"{key}_port", None)
    outer[key] = f"{host}:{port}"


def _routes(options: ServerOptions, outer: dict[str, Any]) -> None:
    if not options.nats.cluster_listen:
        return
    section = outer.setdefault("cluster", {})
    login, _, address = options.nats.cluster_listen.partition("://")[2].rpartition("@")
    section["listen"] = address
    if login:
        user, _, password = login.partition(":")
        section["authorization"] = {"user": unquote(user), "password": unquote(password)}
        timeout = field_value(options, "cluster_auth_timeout")
        if timeout:
            section["authorization"]["timeout"] = timeout
