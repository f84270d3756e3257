"""Everything that a server reads for its logins and its TLS, read once before anything is touched.

The same check stands before a reload: what cannot be read changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.nats.credentials import presented, read_key
from ftstan.nats.servertls import check_tls
from ftstan.nats.tls import NOT_VERIFIED, client_context, is_demanded

if TYPE_CHECKING:
    from ftstan.config.options import ServerOptions


def check_material(options: ServerOptions) -> list[str]:
    """Read keys and certificates; returns what to warn of.

    Raises ``NatsError`` and ``ConfigError`` naming the file.
    """
    if not options.nats_servers:
        check_tls(options.nats.tls)
    link = presented(options.link, options.nats)
    read_key(link)
    if is_demanded(link):
        client_context(link)
    return [NOT_VERIFIED] if link.insecure else []
