"""Limits of the embedded NATS server that it takes, and with which nobody can be served.

It says nothing itself, neither at a start nor at a reload: the first sign would be clients that
are ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ftstan.config.units import MILLISECOND, SECOND, format_duration, parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ftstan.config.options import NatsOptions

#: Requests of clients and answers of the streaming server have a few hundred bytes.
_LEAST_PAYLOAD: Final = 1024
#: Of a publish: its subject and its inbox have some 60 bytes beside cluster, channel and client.
_LEAST_LINE: Final = 256
#: What the NATS server takes without ``max_payload`` (bytes).
_PAYLOAD: Final = 1 << 20
#: The connections of the streaming server itself.
_OWN_CONNECTIONS: Final = 8
#: One for each subscription of clients, of which a channel may have so many by default.
_LEAST_SUBSCRIPTIONS: Final = 1000
_LEAST_DEADLINE: Final = 10 * MILLISECOND
_LEAST_PING: Final = 100 * MILLISECOND
#: For a login, or a handshake (s).
_LEAST_WAIT: Final = 0.05


def warnings_of_nats(nats: NatsOptions) -> Iterator[str]:
    """One warning for each value that nobody can want."""
    settings = nats.settings
    payload = _number(settings, "max_payload", _PAYLOAD)
    if 0 < payload < _LEAST_PAYLOAD:
        yield (
            f"max_payload is {payload}: the streaming server's own messages are larger, so "
            "clients cannot connect or publish"
        )
    line = _number(settings, "max_control_line", 0)
    if 0 < line < _LEAST_LINE:
        yield (
            f"max_control_line is {line}: the subjects of the streaming server are longer, so "
            "clients are ended when they use them"
        )
    pending = _number(settings, "max_pending", 0)
    if 0 < pending < payload:
        yield (
            f"max_pending is {pending}: one message of up to max_payload ({payload}) ends who "
            "waits for it as a slow consumer"
        )
    connections = _number(settings, "max_connections", 0)
    # 0 is the NATS server's default; with a negative number it lets in nobody.
    if connections and connections < _OWN_CONNECTIONS:
        yield (
            f"max_connections is {connections}: the streaming server itself takes some of them, so "
            "there are few or none for clients"
        )
    subscriptions = _number(settings, "max_subscriptions", 0)
    if 0 < subscriptions < _LEAST_SUBSCRIPTIONS:
        yield (
            f"max_subscriptions is {subscriptions}: the streaming server's own connection has one "
            "for each subscription of clients, and acks of those beyond that are not heard"
        )
    deadline = _duration(settings, "write_deadline")
    if 0 < deadline < _LEAST_DEADLINE:
        yield (
            f"write_deadline is {format_duration(deadline)}: whoever does not take at once what is "
            "sent is ended as a slow consumer"
        )
    ping = _duration(settings, "ping_interval")
    if 0 < ping < _LEAST_PING:
        yield (
            f"ping_interval is {format_duration(ping)}: clients do nothing but answer, and are "
            "ended when they are late"
        )
    logins = settings.get("authorization")
    waits = {
        "the timeout of authorization": logins.get("timeout", 0) if isinstance(logins, dict) else 0,
        "the timeout of tls": nats.tls.timeout,
    }
    for what, wait in waits.items():
        if isinstance(wait, (int, float)) and 0 < wait < _LEAST_WAIT:
            yield f"{what} is {format_duration(round(wait * SECOND))}: no client is let in in time"


def _number(settings: Mapping[str, object], key: str, default: int) -> int:
    value = settings.get(key, default)
    return value if isinstance(value, int) else default


def _duration(settings: Mapping[str, object], key: str) -> int:
    """Nanoseconds; 0 if nothing is said."""
    value = settings.get(key)
    return parse_duration(value) if isinstance(value, str) else 0
