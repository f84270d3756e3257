"""What is configured and why, for people: every value with where it came from, secrets as ``***``.

Pure functions over settings; the checks themselves are those of a start.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ftstan.config.keys import BINDINGS, CHANNEL_LIMITS
from ftstan.config.settings import DEFAULT, field_value
from ftstan.config.table import SECRETS, Kind
from ftstan.config.units import format_duration, quote
from ftstan.config.writer import written

if TYPE_CHECKING:
    from ftstan.config.keys import Binding
    from ftstan.config.options import ChannelLimits, ServerOptions
    from ftstan.config.settings import Settings

HIDDEN = "***"

_SECRET_KEYS = frozenset({"password", "pass", "token", "secret", "issuer_seed", "signing_key", "jwt"})
#: Up to the last "@" of an address: a password may hold one.
_USERINFO = re.compile(r"(?<=://)[^/\s]*(?=@)")


def effective_lines(settings: Settings, options: ServerOptions) -> list[str]:
    """One line an option: its name in a file, its value, and in brackets where it came from."""
    rows = [row for binding in BINDINGS if (row := _row(binding, settings, options))]
    rows += [
        (f"streaming.store_limits.channels.{quote(name)}", _channel(limits), settings.channels_source)
        for name, limits in options.limits.channels
    ]
    width = max(len(f"{name} = {value}") for name, value, _ in rows if len(value) < 40)
    return [f"{f'{name} = {value}':<{width}}  ({source})" for name, value, source in rows]


def _row(binding: Binding, settings: Settings, options: ServerOptions) -> tuple[str, str, str] | None:
    key = binding.option.key
    given = settings.given.get(key)
    value = given.value if not binding.field and given else field_value(options, key)
    if value is None:
        return None
    name = binding.path if binding.names else f"-{key}"
    return name, shown(binding, value), given.source if given else DEFAULT


def shown(binding: Binding, value: Any) -> str:
    """A value as people read it, without secrets."""
    if binding.option.key in SECRETS:
        return HIDDEN if value else '""'
    if binding.option.kind is Kind.DURATION and isinstance(value, int):
        return format_duration(value)
    return written(masked(value))


def masked(value: Any) -> Any:
    """``value`` with the passwords, tokens and user infos of URLs in it replaced."""
    match value:
        case dict():
            return {key: HIDDEN if key.lower() in _SECRET_KEYS else masked(item) for key, item in value.items()}
        case list() | tuple():
            return [masked(item) for item in value]
        case str():
            return _USERINFO.sub(HIDDEN, value)
        case _:
            return value


def _channel(limits: ChannelLimits) -> str:
    said = []
    for name in CHANNEL_LIMITS:
        value = getattr(limits, name)
        if value:
            limit = format_duration(value) if name in ("max_age", "max_inactivity") else str(value)
            said.append(f"{name}: {limit if value > 0 else 'unlimited'}")
    return "{ " + ", ".join(said) + " }" if said else "{ }"
