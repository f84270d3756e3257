"""Before a login is shown to our own NATS server: is it that one?

While it is being started again, another account of this host can take its port.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.base.errors import NatsError

if TYPE_CHECKING:
    import socket
    from asyncio.trsock import TransportSocket

    from ftstan.nats.url import NatsUrl


class StrangerError(NatsError):
    """Another account listens where our NATS server should."""


def check_peer(sock: socket.socket | TransportSocket, url: NatsUrl) -> None:
    """See whether what has greeted us on ``sock`` is of our account. Raises ``StrangerError``."""
    # Late: who connects to the NATS server of others has no need of it.
    from ftstan.front.peer import is_ours  # noqa: PLC0415

    if not is_ours(sock.fileno()):
        raise StrangerError(
            f"nats: {url.shown} is not the server's own nats-server, but another account's",
            hint="nothing was said to it; `ss -ltnp` shows whose it is",
        )
