"""Before a login is shown to our own NATS server: is it that one?

While it is being started again, another account of this host can take its port.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import NatsError
from ftstan.base.log import nats as log

if TYPE_CHECKING:
    import socket
    from asyncio.trsock import TransportSocket

    from ftstan.nats.url import NatsUrl


#: How often the kernel did not tell; links of several threads count.
_unseen: Final = count()


class StrangerError(NatsError):
    """Another account listens where our NATS server should."""


def check_peer(sock: socket.socket | TransportSocket, url: NatsUrl) -> None:
    """See whether what has greeted us on ``sock`` is of another account.

    Where the kernel does not tell, that is logged, and all goes on. Raises ``StrangerError``.
    """
    # Late: who connects to the NATS server of others has no need of it.
    from ftstan.front.peer import is_ours  # noqa: PLC0415

    verdict = is_ours(sock.fileno())
    if verdict is None:
        warn_unseen()
    elif not verdict:
        raise StrangerError(
            f"nats: {url.shown} is not the server's own nats-server, but another account's",
            hint="nothing was said to it; `ss -ltnp` shows whose it is",
        )


def warn_unseen() -> None:
    """Log, once in this process, that the kernel does not tell whose our NATS server is."""
    if next(_unseen) == 0:
        log.warning(
            "the kernel does not tell which account the NATS server's port belongs to: logins are "
            "sent there unchecked"
        )
