"""Whether the addresses of a start are free, asked before anything is touched.

Who listens there asks again.

Source: ``docs/compat/config.md`` (where the answers differ).
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from ftstan.base.errors import NatsError
from ftstan.base.log import errno_text

if TYPE_CHECKING:
    from ftstan.config.options import ServerOptions


def check_addresses(options: ServerOptions) -> None:
    """Bind the client port and that of the pages for a moment.

    Raises ``NatsError`` in the original's words.
    """
    host = options.nats.host
    port = options.nats.port
    if why := _problem(host, port):
        raise NatsError(
            f'Error listening on port: {_shown(host, port)}, "{why}"',
            hint="stop what uses the port (ss -ltnp shows it), or choose another address with -a "
            "and -p",
            option="port",
        )
    monitor = options.monitor
    page, key = (
        (monitor.https_port, "https_port")
        if monitor.https_port
        else (monitor.http_port, "http_port")
    )
    if why := _problem(monitor.host, page):
        raise NatsError(
            f"Can't start monitoring: can't listen to the monitor port: {why}",
            hint="stop what uses the port (ss -ltnp shows it), or choose another with -m or -ms",
            option=key,
        )


def _problem(host: str, port: int) -> str:
    """Why nobody can listen there now; empty if somebody can, or if any port will do."""
    if port <= 0:
        return ""
    try:
        found = socket.getaddrinfo(
            host.strip("[]") or None,
            port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV,
        )
    except (socket.gaierror, UnicodeError):
        return f"listen tcp: lookup {host}: no such host"
    family, kind, proto, _, address = found[0]
    try:
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Not listening: a client that waits for the port would take this for the server.
            probe.bind(address)
    except OSError as error:
        return f"listen tcp {_shown(host, port)}: bind: {errno_text(error)}"
    return ""


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
