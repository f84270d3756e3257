"""The configuration file of the ``nats-server`` child: our options in, its text out.

Pure text, no files. Only NATS keys may appear (the child refuses unknown ones), and every string passes ``quoted``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ftstan.errors import ConfigError
from ftstan.nats.url import parse_cluster_listen

#: Bytes that may wait for one connection: ours carries the deliveries of every subscriber.
MAX_PENDING = 512 * 1024 * 1024

#: The data plane may stand in an fsync for a while; the child must not call it a slow consumer for that.
WRITE_DEADLINE = "30s"


@dataclass(frozen=True, slots=True)
class NatsServerOptions:
    """What the operator asked of the embedded NATS server.

    ``host``/``port``: where clients connect, port -1 for a random one. ``cluster_listen``: URL for routes
    (``nats://[user:password@]host:port``, port -1 random) or empty; ``routes``: URLs of other members, with their
    credentials. ``user``/``password`` or ``token``: what clients must present. ``cluster_id``: the STAN cluster id,
    from which every member derives the same NATS cluster name.
    """

    cluster_id: str
    host: str = "0.0.0.0"  # noqa: S104  # the original's default
    port: int = 4222
    cluster_listen: str = ""
    routes: tuple[str, ...] = field(default=(), repr=False)
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    debug: bool = False
    trace: bool = False


def cluster_name(cluster_id: str) -> str:
    """Name of the NATS cluster: equal in every member, free of the blanks that ``nats-server`` refuses."""
    return "ftstan-" + re.sub(r"[^A-Za-z0-9_-]", "_", cluster_id)


def render(options: NatsServerOptions, *, server_name: str, ports_dir: str, port: int, cluster_port: int) -> str:
    """Text of the configuration file. ``port`` and ``cluster_port`` override those of ``options`` (0: as written).

    Raises ``ConfigError`` for combinations that the original refuses.
    """
    if options.token and (options.user or options.password):
        raise ConfigError("Cannot have a user/pass and token", hint="give -user and -pass, or -auth")
    if options.routes and not options.cluster_listen:
        raise ConfigError(
            "solicited routes require cluster capabilities, e.g. --cluster",
            hint="add -cluster nats://host:port",
        )
    lines = [
        f"server_name: {quoted(server_name)}",
        f"host: {quoted(options.host)}",
        f"port: {port or options.port}",
        'http: "127.0.0.1:-1"',
        f"ports_file_dir: {quoted(ports_dir)}",
        f"max_pending: {MAX_PENDING}",
        f"write_deadline: {quoted(WRITE_DEADLINE)}",
        f"debug: {_word(options.debug)}",
        f"trace: {_word(options.trace)}",
    ]
    if options.token:
        lines.append(f"authorization {{ token: {quoted(options.token)} }}")
    elif options.user or options.password:
        lines.append(f"authorization {{ user: {quoted(options.user)}, password: {quoted(options.password)} }}")
    if options.cluster_listen:
        lines += _cluster(options, cluster_port)
    return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """``text`` as a double quoted string of the NATS configuration grammar, control characters escaped by number."""
    return '"' + re.sub(r'["\\\x00-\x1f\x7f]', lambda found: f"\\x{ord(found[0]):02x}", text) + '"'


def _cluster(options: NatsServerOptions, port: int) -> list[str]:
    listen = parse_cluster_listen(options.cluster_listen)
    host = f"[{listen.host}]" if ":" in listen.host else listen.host
    lines = [
        "cluster {",
        f"  name: {quoted(cluster_name(options.cluster_id))}",
        f"  listen: {quoted(f'{host}:{port or listen.port}')}",
    ]
    if listen.login:
        user, password = quoted(listen.login.user), quoted(listen.login.password)
        lines.append(f"  authorization {{ user: {user}, password: {password} }}")
    if options.routes:
        lines.append(f"  routes: [{', '.join(quoted(route) for route in options.routes)}]")
    lines.append("}")
    return lines


def _word(value: bool) -> str:
    return "true" if value else "false"
