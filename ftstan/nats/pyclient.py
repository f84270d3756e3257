"""nats-py with the login and the TLS of our links: the same rules as on the raw link, in one place for both."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import TYPE_CHECKING, Any

import nats.errors
from nats.aio.client import Client

from ftstan.errors import NatsError
from ftstan.nats import tls
from ftstan.nats.connect import connect_json

if TYPE_CHECKING:
    from ftstan.config.options import LinkOptions
    from ftstan.nats.url import NatsUrl


_DISCARD_S = 0.5
_ENDS = (nats.errors.UnexpectedEOF, nats.errors.ConnectionClosedError, nats.errors.StaleConnectionError)


class RefusedError(nats.errors.Error):
    """An error of ours inside nats-py, which passes on its own kind only."""

    def __init__(self, error: NatsError) -> None:
        super().__init__(error.text)
        self.error = error

    def __str__(self) -> str:
        return self.error.text


class LinkClient(Client):
    """A nats-py client for one connection to ``url``, which presents what ``options`` say under ``name``."""

    def __init__(self, url: NatsUrl, options: LinkOptions, name: str) -> None:
        super().__init__()
        self._url = url
        self._link_options = options
        self._link_name = name
        self._context: ssl.SSLContext | None = None
        self._tried = False

    async def open(self, **more: Any) -> None:
        """Connect; ``more`` are arguments of ``Client.connect``. Raises its errors, and ``NatsError`` for a file."""
        if self._url.is_tls or tls.is_demanded(self._link_options):
            # On another thread: the system's authorities can take longer than a timer of this loop may wait.
            self._context = await asyncio.to_thread(tls.client_context, self._link_options)
        self._tried = True
        await self.connect(
            servers=[self._url.plain],
            tls_hostname=tls.server_name(self._url.host, self._link_options),
            allow_reconnect=False,
            # One more try at once, then an error: its own waits would hold up the next server in the list.
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            **more,
        )

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """Made ahead where TLS is asked for, and here when a server asks for it that nobody expected to."""
        try:
            return self._context or tls.client_context(self._link_options)
        except NatsError as error:
            raise RefusedError(error) from error

    async def discard(self) -> None:
        """End the connection, whatever state it is in, and do not wait for it for ever."""
        if not self._tried:
            return
        with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
            # After a handshake that failed nats-py waits for the end of a stream that TLS has taken away from it.
            async with asyncio.timeout(_DISCARD_S):
                await self.close()

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

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        if not self.is_connected:
            # Bytes that cannot be sent any more would end its clean-up halfway: nobody would hear that it was closed.
            self._pending, self._pending_data_size = [], 0
        await super()._close(status, do_cbs)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        await super()._process_info(info, initial_connection)
        if initial_connection:
            # Before anything of ours is sent: a server without TLS gets no password if TLS was asked for.
            try:
                info["tls_required"] = tls.must_upgrade(info, self._url, self._link_options)
            except NatsError as error:
                raise RefusedError(error) from error

    def _connect_command(self) -> bytes:
        try:
            words = connect_json(self._link_name, self._url, self._link_options, self._server_info)
        except NatsError as error:
            raise RefusedError(error) from error
        return b"CONNECT " + words + b"\r\n"
