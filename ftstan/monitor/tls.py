"""The HTTPS listener: TLS on the monitoring port, and a plain answer for who forgets it.

Accepts sockets itself, because the first byte has to be looked at before anybody speaks TLS: a plain HTTP request gets
the 400 that the original sends. It never asks for a client certificate by itself; whoever wants one gives a context
that does. The context may be replaced while it listens: renewed certificates count for the next connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import TYPE_CHECKING, Final

from ftstan.errors import NatsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.config.options import ServerTlsOptions

_TLS_HANDSHAKE: Final = 0x16
_FIRST_BYTE_S: Final = 10.0
_BACKLOG: Final = 128
_PLAIN = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"


def server_context(tls: ServerTlsOptions) -> ssl.SSLContext:
    """Server side TLS with the certificate of the client listener. Raises ``NatsError`` in the original's words."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file)
    except (OSError, ssl.SSLError) as error:
        raise NatsError(
            f"Can't start monitoring: error parsing X509 certificate/key pair {tls.cert_file}, {tls.key_file}: {error}",
            hint="both are PEM files, the key without a passphrase, and they belong together",
        ) from error
    return context


class TlsListener:
    """Listens on one address; ``factory`` makes the protocol of a connection."""

    def __init__(self, factory: Callable[[], asyncio.BaseProtocol], context: ssl.SSLContext) -> None:
        self.context = context
        self._factory = factory
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port. Raises ``OSError``."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, proto, _, address = found[0]
        listener = socket.socket(family, kind, proto)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
        self._sockets.append(listener)
        self._spawn(self._accept(listener))
        bound: int = listener.getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Close the listener and the connections that have said nothing yet."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in self._sockets:
            listener.close()
        self._sockets.clear()

    def _spawn(self, work: asyncio._CoroutineLike[None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError:
                # Out of descriptors: what is there is served, and some of it will end.
                await asyncio.sleep(0.1)
                continue
            connection.setblocking(False)
            self._spawn(self._greet(connection))

    async def _greet(self, connection: socket.socket) -> None:
        try:
            async with asyncio.timeout(_FIRST_BYTE_S):
                first = await _peek(connection)
                if first and first[0] == _TLS_HANDSHAKE:
                    kept = connection.dup()
                    kept.setblocking(False)
                    with contextlib.suppress(ssl.SSLError, OSError):
                        await asyncio.get_running_loop().connect_accepted_socket(
                            self._factory, kept, ssl=self.context, ssl_handshake_timeout=_FIRST_BYTE_S
                        )
                elif first:
                    await asyncio.get_running_loop().sock_sendall(connection, _PLAIN)
                    # Read what was sent, or closing would take the answer back.
                    connection.shutdown(socket.SHUT_WR)
                    while await asyncio.get_running_loop().sock_recv(connection, 65536):
                        pass
        except (TimeoutError, OSError):
            pass
        finally:
            connection.close()


async def _peek(connection: socket.socket) -> bytes:
    """The first byte that has come, still to be read; empty if the other end has closed."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(connection, wake)
    try:
        await ready
    finally:
        loop.remove_reader(connection)
    return connection.recv(1, socket.MSG_PEEK)
