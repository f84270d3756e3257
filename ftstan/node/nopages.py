"""The monitoring pages of a server that has none: an HTTP server is not even loaded then."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ftstan.config.options import ServerTlsOptions
    from ftstan.nats.embedded import NatsServerChild


class NoPages:
    """Implements ``context.MonitorPart``."""

    url = ""

    async def open(self, tls: ServerTlsOptions, child: NatsServerChild | None) -> int:
        """No port."""
        del tls, child
        return 0

    def check(self, tls: ServerTlsOptions) -> None:
        """Nothing to read."""

    def renew(self, tls: ServerTlsOptions) -> None:
        """Nothing to use."""

    async def stop(self) -> None:
        """Nothing to end."""
