"""What a server is called: the name that stays when its id changes at every start."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ftstan.config.options import ServerOptions

MAX_MEMBER_NAME = 64
"""Bytes of a name: what an epoch record holds."""


def member_name(options: ServerOptions) -> str:
    """The name from the configuration, else host name and port.

    The port is that of clients; with external NATS servers it is that of the monitoring pages.
    Without either, the host name alone.
    """
    if options.ft.member:
        return options.ft.member
    monitor = options.monitor
    port = monitor.http_port or monitor.https_port if options.nats_servers else options.nats.port
    host = socket.gethostname()[: MAX_MEMBER_NAME - 6]
    return f"{host}:{port}" if port > 0 else host
