"""The listening sockets of the monitoring port: who may connect, how often, and for how long
without a request.

Descriptors are what a server lives on: each channel has some, and ``nats-server`` needs some to be
started again. So connections are counted, in all and per address, and none is taken that would be
among the last descriptors that this process may open. With TLS the first byte is looked at before
anybody speaks it: a plain HTTP request gets the 400 that the original sends. The context may be
replaced while it listens: renewed certificates count for the next connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
from collections import Counter
from typing import TYPE_CHECKING, Final

from ftstan.base import log
from ftstan.base.log import errno_text
from ftstan.nats import tasks

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

#: Connections at a time: in all, and from one address. A browser opens six.
MOST: Final = 256
MOST_EACH: Final = 64
#: Descriptors that are never used for connections: they are storage's, and those of a start of
#: ``nats-server``.
RESERVE: Final = 64
#: Seconds from the connection to the end of the first request's header.
HEADER_S: Final = 10.0
#: Seconds from a request to the end of its answer and the next request; idle ones are closed by
#: aiohttp before that.
ANSWER_S: Final = 120.0
IDLE_S: Final = 75.0
#: Bytes that may come with one request; no page wants any.
MOST_BYTES: Final = 1 << 20

_TLS_HANDSHAKE: Final = 0x16
_BACKLOG: Final = 128
_AGAIN_S: Final = 0.1
_NOT_HERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_PLAIN: Final = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
_FULL: Final = (
    b"HTTP/1.0 503 Service Unavailable\r\nConnection: close\r\nX-Content-Type-Options: "
    b"nosniff\r\n\r\n"
    b"too many connections\n"
)


class Listener:
    """Listens on the addresses of one host.

    ``factory`` makes the protocol of a connection, ``context`` is its TLS.
    """

    def __init__(
        self,
        factory: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext | None = None,
        *,
        header_s: float = HEADER_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        self.context = context
        self.refused = 0
        """Connections that were closed at once because there were too many."""
        self.header_s = header_s
        self.answer_s = answer_s
        self._factory = factory
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._places: Counter[str] = Counter()
        self._visits: dict[asyncio.BaseTransport, _Visit] = {}

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port; the same one on every address of the host.

        Raises ``OSError``.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for number, (family, _, _, _, address) in enumerate(found, 1):
                try:
                    self._sockets.append(_listening(family, (address[0], port, *address[2:])))
                except OSError as error:
                    # A name may have an address that this machine has not, or of a kind that it
                    # does not speak.
                    if error.errno not in _NOT_HERE or (number == len(found) and not self._sockets):
                        raise
                    continue
                port = self._sockets[-1].getsockname()[1]
        except OSError:
            self._close()
            raise
        for listener in self._sockets:
            self._keep(tasks.spawn(self._accept(listener), "monitoring listener"))
        return port

    async def stop(self) -> None:
        """Close the sockets and the connections that have said nothing yet."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._close()

    def begun(self, transport: asyncio.BaseTransport | None) -> None:
        """The header of a request has come on this connection."""
        visit = self._visits.get(transport) if transport is not None else None
        if visit is not None:
            visit.begun()

    def _close(self) -> None:
        for listener in self._sockets:
            listener.close()
        self._sockets.clear()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as error:
                # Out of descriptors: what is there is served, and some of it will end.
                log.stream.warning(
                    f"monitoring: no connection can be accepted: {errno_text(error)}",
                    backs_off="monitor accept",
                )
                await asyncio.sleep(_AGAIN_S)
                continue
            connection.setblocking(False)
            why = self._why_not(connection, address[0])
            if why:
                self.refused += 1
                log.stream.warning(
                    f"monitoring: a connection was refused: {why}", backs_off="monitor refused"
                )
                with contextlib.suppress(OSError), connection:
                    if self.context is None:
                        connection.send(_FULL)
                continue
            self._places[address[0]] += 1
            self._keep(tasks.aside(self._greet(connection, address[0]), "monitoring connection"))

    def _why_not(self, connection: socket.socket, address: str) -> str:
        """Why the connection cannot be taken; empty if it can."""
        if self._places[address] >= MOST_EACH:
            return f"{MOST_EACH} are open from {address}"
        if self._places.total() >= MOST:
            return f"{MOST} are open"
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        # The kernel gives the lowest number that is free: a high one says that nearly all are in
        # use.
        if limit != resource.RLIM_INFINITY and connection.fileno() >= limit - min(
            RESERVE, limit // 4
        ):
            return f"nearly all of the {limit} files that this process may open are in use"
        return ""

    def left(self, address: str) -> None:
        """A connection from ``address`` is over."""
        self._places[address] -= 1
        if not self._places[address]:
            del self._places[address]

    async def _greet(self, connection: socket.socket, address: str) -> None:
        visit = _Visit(self, address)
        try:
            async with asyncio.timeout(self.header_s):
                if self.context is not None and not await _speaks_tls(connection):
                    return
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: visit,
                    connection,
                    ssl=self.context,
                    ssl_handshake_timeout=self.header_s if self.context is not None else None,
                )
        except (TimeoutError, OSError):
            pass
        finally:
            if not visit.made:
                connection.close()
                self.left(address)

    def enter(self, visit: _Visit, transport: asyncio.BaseTransport) -> asyncio.Protocol:
        """A connection is there; returns the protocol that speaks on it."""
        self._visits[transport] = visit
        return self._factory()

    def leave(self, visit: _Visit, transport: asyncio.BaseTransport) -> None:
        """It is gone."""
        del self._visits[transport]
        self.left(visit.address)


class _Visit(asyncio.Protocol):
    """One connection: hands on what comes to the protocol that speaks on it, and ends it when its
    time is over.
    """

    def __init__(self, listener: Listener, address: str) -> None:
        self.address = address
        self.made = False
        self._listener = listener
        self._came = 0
        self._inner: asyncio.Protocol
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.made = True
        self._transport = transport
        self._inner = self._listener.enter(self, transport)
        self._allow(self._listener.header_s)
        self._inner.connection_made(transport)

    def begun(self) -> None:
        """A request has come: it has its time."""
        self._came = 0
        self._timer.cancel()
        self._allow(self._listener.answer_s)

    def _allow(self, seconds: float) -> None:
        # Whoever takes no answer has no use for the rest of it either.
        self._timer = asyncio.get_running_loop().call_later(seconds, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        self._came += len(data)
        if self._came > MOST_BYTES:
            self._transport.abort()
            return
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._listener.leave(self, self._transport)
        self._inner.connection_lost(exc)


def _listening(family: int, address: tuple[object, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.setblocking(False)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except (OSError, OverflowError):
        listener.close()
        raise
    return listener


async def _speaks_tls(connection: socket.socket) -> bool:
    """Whether a TLS handshake begins; plain HTTP is told that it is wrong here.

    Raises ``OSError``.
    """
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
    first = connection.recv(1, socket.MSG_PEEK)
    if first and first[0] == _TLS_HANDSHAKE:
        return True
    if first:
        await loop.sock_sendall(connection, _PLAIN)
        # Read what was sent, or closing would take the answer back.
        connection.shutdown(socket.SHUT_WR)
        while await loop.sock_recv(connection, 65536):
            pass
    return False
