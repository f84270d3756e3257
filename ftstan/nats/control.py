"""The control thread's connection to NATS, which comes back by itself
(``ftstan.nats.reconnecting``).

It must never block: it shares its loop with the timers that decide who serves.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import TYPE_CHECKING, Any

from ftstan.base import log
from ftstan.base.errors import NatsError
from ftstan.base.log import errno_text
from ftstan.base.ratelimit import RateLimit
from ftstan.config.options import LinkOptions
from ftstan.nats import tasks, tls
from ftstan.nats.pyclient import LinkClient
from ftstan.nats.reconnecting import (
    CONNECT_WITHIN_S,
    FAILURES,
    RECONNECT_WAIT_S,
    Listening,
    Reconnecting,
)
from ftstan.nats.url import parse_url
from ftstan.wire.subjects import is_servers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from nats.aio.msg import Msg

    from ftstan.nats.url import NatsUrl

_CLOSE_GRACE_S = 0.25


class Control(Reconnecting[LinkClient, "NatsUrl"]):
    """A connection named ``_NSS-<cluster_id>-<role>`` that comes back by itself.

    ``on_disconnect(error)`` is called when an established connection is lost, ``on_reconnect(url)``
    when another one stands with all subscriptions made again (``url`` redacted); not at the first
    connect, which ``established`` tells, and not at ``close``. ``on_discovered()`` is called when
    the NATS server names one that this connection did not know of. ``options``: login and TLS. All
    methods belong to one event loop.
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
        super().__init__(f"_NSS-{cluster_id}-{role}", [parse_url(url) for url in urls])
        self._options = options
        self._on_disconnect = on_disconnect
        self._on_reconnect = on_reconnect
        self._on_discovered = on_discovered
        self._task: asyncio.Task[None] | None = None
        self.established = asyncio.Event()
        self._told = ""

    @property
    def connected(self) -> bool:
        """Whether publishing would be tried now."""
        return self.standing is not None

    @property
    def running(self) -> bool:
        """Whether there is a connection, or one is being tried for."""
        return self._task is not None and not self._task.done()

    def renew(self, options: LinkOptions) -> None:
        """Present ``options`` from the next connection on."""
        self._options = options

    async def start(self) -> None:
        """Begin to connect, in the background and for ever.

        A reason that repeats is logged once.
        """
        self._task = tasks.spawn(self.run(), self.name)

    async def subscribe(self, subject: str, callback: Callable[[str, bytes], None]) -> None:
        """Have ``callback(subject, data)`` called for each message, now and after every reconnect.

        May be called before the first connect. ``callback`` runs on the loop and must not block.
        """
        await self.begin(
            Listening(subject, _handler(lambda message: callback(message.subject, message.data)))
        )

    async def serve(self, subject: str, callback: Callable[[bytes, str], None]) -> None:
        """Have ``callback(data, reply)`` called for each request.

        The answer is published on ``reply``.

        As ``subscribe`` in everything else. Messages that name no reply subject are not requests;
        those that name one on which servers listen are refused: the answer would reach servers in a
        server's name.
        """
        refused = RateLimit()

        def deliver(message: Msg) -> None:
            if not message.reply:
                return
            if is_servers(os.fsencode(message.reply)):
                if refused.allow(asyncio.get_running_loop().time()):
                    log.stream.warning(
                        f'a request on "{subject}" was refused: its reply subject is one of servers'
                    )
                return
            callback(message.data, message.reply)

        await self.begin(Listening(subject, _handler(deliver)))

    @property
    def max_payload(self) -> int:
        """Bytes of the largest message that NATS takes.

        Raises ``NatsError`` while there is no connection.
        """
        if self._client is None:
            raise NatsError("nats: not connected")
        return self._client.max_payload

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        """Publish; ``reply`` is the subject for answers.

        Raises ``NatsError`` at once while there is no connection, in the original's words.
        """
        client = self.standing
        if client is None:
            raise NatsError(
                "nats: outbound buffer limit exceeded", hint="the connection to NATS is down"
            )
        try:
            await client.publish(subject, data, reply)
        except FAILURES as error:
            raise NatsError(error_text(error)) from error

    async def ask(self, subject: str, data: bytes, seconds: float) -> list[bytes]:
        """Publish a question to many and return what was answered within ``seconds``.

        Raises ``NatsError``.
        """
        client = self.standing
        if client is None:
            raise NatsError("nats: not connected")
        inbox = client.new_inbox()
        answers: list[bytes] = []
        try:
            deliver = _handler(lambda message: answers.append(message.data))
            subscription = await client.subscribe(inbox, cb=deliver)
            await client.publish(subject, data, reply=inbox)
            await asyncio.sleep(seconds)
            await subscription.unsubscribe()
        except FAILURES as error:
            raise NatsError(error_text(error)) from error
        return answers

    async def flush(self) -> None:
        """Wait until the server has processed what was sent.

        Raises ``NatsError`` (no connection, no answer in 2 s).
        """
        client = self._client
        if client is None:
            raise NatsError("nats: not connected")
        try:
            # A ping of nats-py overtakes what it has not written yet; the second one is behind
            # that.
            await client.flush(timeout=CONNECT_WITHIN_S)
            await client.flush(timeout=CONNECT_WITHIN_S)
        except FAILURES as error:
            raise NatsError(error_text(error)) from error

    async def close(self) -> None:
        """End the connection and the attempts to have one."""
        task = self._task
        self._task = None
        if task is not None:
            await self.end(task, _CLOSE_GRACE_S, 2 * CONNECT_WITHIN_S)

    # ---- what ``run`` tells
    # --------------------------------------------------------------------------------------

    def _make(self, address: NatsUrl) -> LinkClient:
        return LinkClient(address, self._options, self.name)

    def _arguments(self) -> dict[str, Any]:
        return {"discovered_server_cb": self._discovered}

    def _was_made(self, address: NatsUrl) -> None:
        if self.established.is_set() and self._on_reconnect is not None:
            self._on_reconnect(address.shown)
        self.established.set()
        self._told = ""

    def _was_lost(self, error: BaseException | None) -> None:
        if self._on_disconnect is not None:
            self._on_disconnect(NatsError(error_text(error)))

    def _was_refused(self, address: NatsUrl, error: BaseException) -> None:
        why = f"{address.shown}: {error_text(error)}"
        if why != self._told:
            self._told = why
            every = f"trying every {RECONNECT_WAIT_S * 1000:g} ms"
            log.stream.warning(f'connection "{self.name}" cannot be made: {why}; {every}')

    async def _discovered(self) -> None:
        if self._on_discovered is not None:
            self._on_discovered()


def _handler(callback: Callable[[Msg], None]) -> Callable[[Msg], Awaitable[None]]:
    async def deliver(message: Msg) -> None:
        callback(message)

    return deliver


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
