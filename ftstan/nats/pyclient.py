"""nats-py with the login and the TLS of our links: the same rules as on the raw link, in one place
for both.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any, cast

import nats.errors

from ftstan.base import log
from ftstan.base.errors import NatsError
from ftstan.nats import tls
from ftstan.nats.connect import connect_json
from ftstan.nats.peer import check_peer
from ftstan.nats.reconnecting import OneClient

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket

    from nats.aio.transport import TcpTransport

    from ftstan.config.options import LinkOptions
    from ftstan.nats.url import NatsUrl


_ENDS = (
    nats.errors.UnexpectedEOF,
    nats.errors.ConnectionClosedError,
    nats.errors.StaleConnectionError,
)


class RefusedError(nats.errors.Error):
    """An error of ours inside nats-py, which passes on its own kind only."""

    def __init__(self, error: NatsError) -> None:
        super().__init__(error.text)
        self.error = error

    def __str__(self) -> str:
        return self.error.text


class LinkClient(OneClient):
    """A nats-py client for one connection to ``url``, which presents what ``options`` say under
    ``name``.
    """

    def __init__(self, url: NatsUrl, options: LinkOptions, name: str) -> None:
        super().__init__(url.plain)
        self._url = url
        self._link_options = options
        self._link_name = name
        self._context: ssl.SSLContext | None = None

    async def open(self, **more: Any) -> None:
        """Connect; ``more`` are arguments of ``Client.connect``.

        Raises its errors, and ``NatsError`` for a file.
        """
        if self._url.is_tls or tls.is_demanded(self._link_options):
            # On another thread: the system's authorities can take longer than a timer of this loop
            # may wait.
            self._context = await asyncio.to_thread(tls.client_context, self._link_options)
        await super().open(tls_hostname=tls.server_name(self._url.host, self._link_options), **more)

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """Made ahead where TLS is asked for, and here when a server asks for it that nobody
        expected to.
        """
        try:
            return self._context or tls.client_context(self._link_options)
        except NatsError as error:
            raise RefusedError(error) from error

    def explain(self, error: BaseException) -> BaseException:
        """The error as an operator should read it."""
        if isinstance(error, RefusedError):
            return error.error
        if isinstance(error, ssl.SSLError):
            return tls.explain(error, self._url, self._link_options)
        ended = isinstance(error, _ENDS) or (isinstance(error, OSError) and tls.is_end(error))
        if ended and self._server_info.get("tls_verify"):
            return tls.refused(self._url, self._link_options)
        return error

    def handler_failed(self, error: Exception) -> None:
        """Log it: the connection goes on."""
        log.stream.error(f'connection "{self._link_name}": a message handler failed: {error!r}')

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        await super()._process_info(info, initial_connection)
        if initial_connection:
            # Before anything of ours is sent: a server without TLS gets no password if TLS was
            # asked for.
            try:
                if self._link_options.of_child:
                    check_peer(self._raw_socket(), self._url)
                info["tls_required"] = tls.must_upgrade(info, self._url, self._link_options)
            except NatsError as error:
                raise RefusedError(error) from error

    def _raw_socket(self) -> TransportSocket:
        # nats-py gives no other way to it.
        transport = cast("TcpTransport", self._transport)
        assert transport._bare_io_writer is not None  # noqa: SLF001
        sock: TransportSocket = transport._bare_io_writer.get_extra_info("socket")  # noqa: SLF001
        return sock

    def _connect_command(self) -> bytes:
        try:
            words = connect_json(self._link_name, self._url, self._link_options, self._server_info)
        except NatsError as error:
            raise RefusedError(error) from error
        return b"CONNECT " + words + b"\r\n"
