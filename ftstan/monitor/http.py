"""The monitoring listener: what a running server says about itself, over HTTP or HTTPS.

Views only: nothing here changes a server, waits for storage or looks at the method of a request.
Answers come from ``Views``, ready at any time, recovery and standby included. Who may ask is
decided in one place: ``Gate``.

Source: ``docs/compat/monitoring.md``; the pages that are ours: ``docs/monitoring.md``.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
from typing import TYPE_CHECKING, Final, Protocol

from aiohttp import web
from aiohttp.http import HttpProcessingError

from ftstan.base import log
from ftstan.base.errors import NatsError
from ftstan.base.log import errno_text
from ftstan.monitor import passthrough
from ftstan.monitor.answers import NOSNIFF, callback_refusal, not_found, sent_in_chunks
from ftstan.monitor.gate import ask_for_certificates
from ftstan.monitor.listener import IDLE_S, Listener
from ftstan.monitor.metrics import MetricsPage, MetricsViews
from ftstan.monitor.own import OwnPages, OwnViews
from ftstan.monitor.zpages import StreamingPages, StreamingViews
from ftstan.nats import tasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp.typedefs import Handler

    from ftstan.config.options import MonitorOptions, ServerTlsOptions
    from ftstan.nats.embedded import NatsServerChild

    Gate = Callable[[web.Request], Awaitable[web.StreamResponse | None]]
    """Decides about a request: ``None`` lets it in, an answer is sent instead of the page."""


_ANY: Final = ("", "0.0.0.0", "::", "[::]")  # noqa: S104  # compared, never bound


def pages_context(options: MonitorOptions, tls: ServerTlsOptions) -> ssl.SSLContext | None:
    """TLS of the pages with the certificate of the client listener, ``None`` when they have none.

    It asks for a client certificate only with ``client_ca``. Raises ``NatsError`` in the original's
    words, and ``ConfigError`` naming the file.
    """
    if not options.https_port:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file)
    except (OSError, ssl.SSLError) as error:
        raise NatsError(
            f"Can't start monitoring: error parsing X509 certificate/key pair {tls.cert_file}, "
            f"{tls.key_file}: {error}",
            hint="both are PEM files, the key without a passphrase, and they belong together",
        ) from error
    if options.client_ca:
        ask_for_certificates(context, options.client_ca)
    return context


#: Pages of the NATS server that are read and passed on at a time: a large one takes a tenth of a
#: second of this loop, and whoever asks whether the server is well must not wait for sixty of them.
PAGES: Final = 4


class Views(StreamingViews, OwnViews, MetricsViews, passthrough.NatsViews, Protocol):
    """What the pages show. Called on the control loop: none may wait for storage."""


class Monitor:
    """The listener.

    Lives on the control loop, from before recovery until the end of the process.
    """

    def __init__(self, views: Views, options: MonitorOptions, gate: Gate | None = None) -> None:
        self._views = views
        self._options = options
        self._gate = gate
        self._child: NatsServerChild | None = None
        self.url = ""
        """Where these pages are found by others; empty while there are none."""
        self._pages = asyncio.Semaphore(PAGES)
        self._runner: web.AppRunner | None = None
        self._listener: Listener | None = None
        self._passthrough: passthrough.Passthrough | None = None
        self._history: asyncio.Task[None] | None = None

    async def open(self, tls: ServerTlsOptions, child: NatsServerChild | None) -> int:
        """Listen as the options say, if they do; the port, 0 for none. Raises ``NatsError``.

        HTTPS has the certificate of the listener for clients, ``tls``. ``child``: whose pages are
        passed on.
        """
        options = self._options
        self._child = child
        context = pages_context(options, tls)
        if not (options.https_port or options.http_port):
            return 0
        port = await self.start(options.host, options.https_port or options.http_port, context)
        if child is not None:
            log.nats.info(
                f"Starting {'https' if context else 'http'} monitor on {options.host}:{port}"
            )
        return port

    async def start(self, host: str, port: int, context: ssl.SSLContext | None = None) -> int:
        """Listen on ``host:port`` (port -1: any free one) and return the port.

        With ``context``: HTTPS.

        Raises ``NatsError`` in the original's words when the address is taken or cannot be used.
        """
        app = self._application(host, port, secure=context is not None)
        runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=1.0,
            keepalive_timeout=IDLE_S,
            logger=_logger(),
            # Nobody reads what is made for who has gone.
            handler_cancellation=True,
        )
        await runner.setup()
        assert runner.server is not None
        listener = Listener(runner.server, context)
        try:
            bound = await listener.start(host, max(port, 0))
        except (OSError, OverflowError) as error:
            await runner.cleanup()
            raise NatsError(
                "Can't start monitoring: can't listen to the monitor port: "
                f"{_listen_error(host, port, error)}",
                hint="stop what uses the port (ss -ltnp shows it), or choose another with -m",
            ) from error
        self._runner = runner
        self._listener = listener
        # Aside: no server ends because its dashboard has no past.
        self._history = tasks.aside(self._views.keep_history(), "figures of the last hour")
        self.url = _url(self._options.advertise or host, bound, secure=context is not None)
        return bound

    def check(self, tls: ServerTlsOptions) -> None:
        """Read what ``renew`` would use, and change nothing.

        Raises ``NatsError`` and ``ConfigError``.
        """
        if self._listener is not None:
            pages_context(self._options, tls)

    def renew(self, tls: ServerTlsOptions) -> None:
        """Use the certificate of ``tls``, and the authorities of visitors, for connections from now
        on.

        Raises ``NatsError`` and ``ConfigError``.
        """
        if self._listener is not None:
            self._listener.context = pages_context(self._options, tls)

    async def stop(self) -> None:
        """Close the listener; does nothing when it is not open."""
        if self._history is not None:
            history = self._history
            self._history = None
            history.cancel()
            await asyncio.wait([history])
        if self._listener is not None:
            listener = self._listener
            self._listener = None
            await listener.stop()
        if self._runner is not None:
            runner = self._runner
            self._runner = None
            await runner.cleanup()
        if self._passthrough is not None:
            await self._passthrough.close()

    def _application(self, host: str, port: int, *, secure: bool) -> web.Application:
        options = self._options
        base = "/" + options.base_path.strip("/") if options.base_path.strip("/") else ""
        where = {
            "http_host": host,
            "http_port": 0 if secure else port,
            "https_port": port if secure else 0,
            "http_base_path": base,
        }
        self._passthrough = passthrough.Passthrough(self._views, where, self._child)
        app = web.Application(middlewares=[self._admit])
        for pages in (
            StreamingPages(self._views),
            OwnPages(self._views),
            MetricsPage(self._views, options),
        ):
            for path, handler in pages.routes.items():
                app.router.add_route("*", path, handler)
        for path in passthrough.PATHS:
            name = path[1:]
            full = base + path if name else base or "/"
            app.router.add_route("*", full, _named(self._pass_on, name))
        app.router.add_route("*", "/{path:.*}", not_found)
        app.on_response_prepare.append(_trim_headers)
        return app

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._listener is not None:
            self._listener.begun(request.transport)
        if self._gate is not None:
            refusal = await self._gate(request)
            if refusal is not None:
                return refusal
        refusal = callback_refusal(request, guarded=self._gate is not None)
        if refusal is not None:
            return refusal
        return sent_in_chunks(request, await handler(request))

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        assert self._passthrough is not None
        async with self._pages:
            return await self._passthrough.handle(request)


class _OneLine(logging.Handler):
    """What aiohttp has to say about a request, as one limited line of ours: never a traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        # Malformed requests are their senders' business.
        if error is not None and not isinstance(error, HttpProcessingError):
            log.stream.error(
                f"monitoring: a request failed: {tasks.cause(error)}", backs_off="monitor request"
            )


def _logger() -> logging.Logger:
    """For this listener alone: the logging of a program around a server is that program's."""
    logger = logging.Logger("ftstan.monitor", logging.ERROR)  # noqa: LOG001
    logger.addHandler(_OneLine())
    return logger


def _named(handler: Handler, page: str) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        request.match_info["page"] = page
        return await handler(request)

    return handle


async def _trim_headers(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Take out what aiohttp adds and the original does not send.

    No browser guesses what an answer is.
    """
    response.headers.popall("Server", None)
    response.headers.update(NOSNIFF)
    if isinstance(response, web.Response) and not response.body:
        response.headers.popall("Content-Type", None)
        if request.method == "HEAD":
            response.headers.popall("Content-Length", None)


def _url(host: str, port: int, *, secure: bool) -> str:
    """``host`` as others can use it, with a port of its own or not.

    Empty and wildcard ones are this machine's name.
    """
    found = re.fullmatch(r"(\[.+\]|[^:]+):(\d+)", host)
    if found is not None:
        host = found[1]
        port = int(found[2])
    if host in _ANY:
        host = socket.gethostname()
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"{'https' if secure else 'http'}://{host}:{port}"


def _listen_error(host: str, port: int, error: OSError | OverflowError) -> str:
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if isinstance(error, OverflowError):
        return f"listen tcp: address {port}: invalid port"
    return f"listen tcp {address}: bind: {errno_text(error)}"
