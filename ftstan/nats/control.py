"""The control thread's connection to NATS: nats-py, with reconnecting done here.

nats-py buffers and reconnects in its own way (some server errors end it for good); ours is simpler to state: one
client per connection, a new one every 250 ms until it works, every subscription made again, and a publish without a
connection fails at once. It must never block: it shares its loop with the timers that decide who serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from typing import TYPE_CHECKING

import nats.errors

from ftstan import log
from ftstan.config.options import LinkOptions
from ftstan.errors import NatsError
from ftstan.log import errno_text
from ftstan.nats import tasks, tls
from ftstan.nats.link import RECONNECT_WAIT_S
from ftstan.nats.pyclient import LinkClient
from ftstan.nats.url import parse_url
from ftstan.ratelimit import RateLimit
from ftstan.wire.subjects import is_servers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from ftstan.nats.url import NatsUrl

CONNECT_WITHIN_S = 2
PING_EVERY_S = 5
_CLOSE_GRACE_S = 0.25
_FAILURES = (nats.errors.Error, NatsError, OSError, TimeoutError)


class Control:
    """A connection named ``_NSS-<cluster_id>-<role>`` that comes back by itself.

    ``on_disconnect(error)`` is called when an established connection is lost, ``on_reconnect(url)`` when another one
    stands with all subscriptions made again (``url`` redacted); not at the first connect, which ``established`` tells,
    and not at ``close``. ``on_discovered()`` is called when the NATS server names one that this connection did not know
    of. ``options``: login and TLS. All methods belong to one event loop.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        cluster_id: str,
        options: LinkOptions = LinkOptions(),  # noqa: B008  # frozen
        on_disconnect: Callable[[NatsError], None] | None = None,
        on_reconnect: Callable[[str], None] | None = None,
        on_discovered: Callable[[], None] | None = None,
        role: str = "ft",
    ) -> None:
        self._urls = [parse_url(url) for url in urls]
        self._options = options
        self._on_disconnect = on_disconnect
        self._on_reconnect = on_reconnect
        self._on_discovered = on_discovered
        self._subscriptions: list[tuple[str, Callable[[Msg], None]]] = []
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._setup = asyncio.Lock()
        self.established = asyncio.Event()
        self._closing = asyncio.Event()
        self.name = f"_NSS-{cluster_id}-{role}"

    @property
    def connected(self) -> bool:
        """Whether publishing would be tried now."""
        return self._client is not None and self._client.is_connected

    @property
    def running(self) -> bool:
        """Whether there is a connection, or one is being tried for."""
        return self._task is not None and not self._task.done()

    def renew(self, options: LinkOptions) -> None:
        """Present ``options`` from the next connection on."""
        self._options = options

    async def start(self) -> None:
        """Begin to connect, in the background and for ever; a reason that repeats is logged once."""
        self._task = tasks.spawn(self._run(), self.name)

    async def subscribe(self, subject: str, callback: Callable[[str, bytes], None]) -> None:
        """Have ``callback(subject, data)`` called for each message, now and after every reconnect.

        May be called before the first connect. ``callback`` runs on the loop and must not block.
        """
        await self._add(subject, lambda message: callback(message.subject, message.data))

    async def serve(self, subject: str, callback: Callable[[bytes, str], None]) -> None:
        """Have ``callback(data, reply)`` called for each request; the answer is published on ``reply``.

        As ``subscribe`` in everything else. Messages that name no reply subject are not requests; those that name one
        on which servers listen are refused: the answer would reach servers in a server's name.
        """
        refused = RateLimit()

        def deliver(message: Msg) -> None:
            if not message.reply:
                return
            if is_servers(os.fsencode(message.reply)):
                if refused.allow(asyncio.get_running_loop().time()):
                    log.stream.warning(f'a request on "{subject}" was refused: its reply subject is one of servers')
                return
            callback(message.data, message.reply)

        await self._add(subject, deliver)

    @property
    def max_payload(self) -> int:
        """Bytes of the largest message that NATS takes. Raises ``NatsError`` while there is no connection."""
        if self._client is None:
            raise NatsError("nats: not connected")
        return self._client.max_payload

    async def _add(self, subject: str, callback: Callable[[Msg], None]) -> None:
        async with self._setup:
            self._subscriptions.append((subject, callback))
            if self._client is not None:
                # A failure here is the end of this connection; the next one subscribes from the list.
                with contextlib.suppress(*_FAILURES):
                    await _subscribe(self._client, subject, callback)

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        """Publish; ``reply`` is the subject for answers.

        Raises ``NatsError`` at once while there is no connection, in the original's words.
        """
        client = self._client
        if client is None or not client.is_connected:
            raise NatsError("nats: outbound buffer limit exceeded", hint="the connection to NATS is down")
        try:
            await client.publish(subject, data, reply)
        except _FAILURES as error:
            raise NatsError(error_text(error)) from error

    async def ask(self, subject: str, data: bytes, seconds: float) -> list[bytes]:
        """Publish a question to many and return what was answered within ``seconds``. Raises ``NatsError``."""
        client = self._client
        if client is None or not client.is_connected:
            raise NatsError("nats: not connected")
        inbox = client.new_inbox()
        answers: list[bytes] = []
        try:
            subscription = await _subscribe(client, inbox, lambda message: answers.append(message.data))
            await client.publish(subject, data, reply=inbox)
            await asyncio.sleep(seconds)
            await subscription.unsubscribe()
        except _FAILURES as error:
            raise NatsError(error_text(error)) from error
        return answers

    async def flush(self) -> None:
        """Wait until the server has processed what was sent. Raises ``NatsError`` (no connection, no answer in 2 s)."""
        client = self._client
        if client is None:
            raise NatsError("nats: not connected")
        try:
            # A ping of nats-py overtakes what it has not written yet; the second one is behind that.
            await client.flush(timeout=CONNECT_WITHIN_S)
            await client.flush(timeout=CONNECT_WITHIN_S)
        except _FAILURES as error:
            raise NatsError(error_text(error)) from error

    async def close(self) -> None:
        """End the connection and the attempts to have one."""
        task, self._task = self._task, None
        if task is not None:
            self._closing.set()
            # It ends by itself unless a server leaves it waiting: nats-py interrupted in the middle of a handshake
            # leaves its socket open, prints tracebacks, or swallows the cancellation.
            await asyncio.wait([task], timeout=_CLOSE_GRACE_S)
            await tasks.end(task, 2 * CONNECT_WITHIN_S)

    async def _run(self) -> None:
        established = False
        told = ""
        while not self._closing.is_set():
            url = self._urls[0]
            connection = _Connection(self.name, url, self._options, self._on_discovered)
            try:
                await self._connect(connection)
                if established and self._on_reconnect is not None:
                    self._on_reconnect(url.shown)
                established, told = True, ""
                await self._until_over(connection)
                if self._closing.is_set():
                    return
                if self._on_disconnect is not None:
                    self._on_disconnect(NatsError(error_text(connection.error)))
            except _FAILURES as error:
                why = f"{url.shown}: {error_text(connection.error or error)}"
                if why != told:
                    told = why
                    log.stream.warning(
                        f'connection "{self.name}" cannot be made: {why}; trying every {RECONNECT_WAIT_S * 1000:g} ms'
                    )
            finally:
                self._client = None
                await connection.close()
            self._urls.append(self._urls.pop(0))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RECONNECT_WAIT_S):
                    await self._closing.wait()

    async def _connect(self, connection: _Connection) -> None:
        """Connect and make the subscriptions; only then may anybody publish."""
        async with asyncio.timeout(2 * CONNECT_WITHIN_S):
            await connection.open()
            async with self._setup:
                for subject, callback in self._subscriptions:
                    await _subscribe(connection.client, subject, callback)
                await connection.client.flush(timeout=CONNECT_WITHIN_S)
                if connection.closed.is_set():
                    raise nats.errors.ConnectionClosedError
                self._client = connection.client
                self.established.set()

    async def _until_over(self, connection: _Connection) -> None:
        """Wait until the connection is lost or ``close`` is called."""
        ends = [tasks.waited(event.wait(), "end") for event in (connection.closed, self._closing)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()


class _Connection:
    """One nats-py client: it lives for one connection. ``error`` is the last thing that went wrong with it."""

    def __init__(self, name: str, url: NatsUrl, options: LinkOptions, on_discovered: Callable[[], None] | None) -> None:
        self.client = LinkClient(url, options, name)
        self._on_discovered = on_discovered
        self.closed = asyncio.Event()
        self.error: BaseException | None = None
        self._name = name

    async def open(self) -> None:
        await self.client.open(
            connect_timeout=CONNECT_WITHIN_S,
            ping_interval=PING_EVERY_S,
            max_outstanding_pings=2,
            error_cb=self._failed,
            closed_cb=self._closed,
            discovered_server_cb=self._discovered,
        )

    async def close(self) -> None:
        await self.client.discard()

    async def _failed(self, error: Exception) -> None:
        if isinstance(error, _FAILURES):
            self.error = self.client.explain(error)
        else:
            log.stream.error(f'connection "{self._name}": a message handler failed: {error!r}')

    async def _discovered(self) -> None:
        if self._on_discovered is not None:
            self._on_discovered()

    async def _closed(self) -> None:
        self.closed.set()


async def _subscribe(client: Client, subject: str, callback: Callable[[Msg], None]) -> Subscription:
    async def deliver(message: Msg) -> None:
        callback(message)

    return await client.subscribe(subject, cb=deliver)


def error_text(error: BaseException | None) -> str:
    """The words for a failure of NATS, as the original prints them."""
    if error is None:
        return "nats: connection closed"
    if isinstance(error, TimeoutError):
        return "nats: timeout"
    if isinstance(error, ssl.SSLError):
        return tls.reason(error)
    if isinstance(error, OSError):
        return errno_text(error)
    return str(error) or type(error).__name__
