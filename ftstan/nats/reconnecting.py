"""nats-py with reconnecting done here: of the server's control connection, and of our client.

nats-py buffers and reconnects in its own way (some server errors end it for good). Here one client
of nats-py is used until its connection breaks; then another one is made, to each address in turn,
every 250 ms, for ever, and everything that was listened to is listened to again. Without a
connection nothing can be sent, and the sender knows at once.

``ftstan.client`` is made of this, too: nothing is imported here but nats-py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import nats.errors
from nats.aio.client import Client

from ftstan.base.errors import NatsError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

RECONNECT_WAIT_S: Final = 0.25
CONNECT_WITHIN_S: Final = 2
PING_EVERY_S: Final = 5
_NOTHING_TO_SEND_S: Final = 0.5
FAILURES: Final = (nats.errors.Error, NatsError, OSError, TimeoutError)


def _is_news(record: logging.LogRecord) -> bool:
    # nats-py puts TLS under streams that asyncio made without it: at the end of each connection
    # asyncio says so, although nothing follows from it.
    return "eof_received()" not in record.getMessage()


logging.getLogger("asyncio").addFilter(_is_news)


class OneClient(Client):
    """nats-py for one connection to ``server``; it never reconnects.

    ``over`` is set whenever it was closed, ``error`` is the last thing that went wrong with it.
    """

    #: For ending the connection; ``None``: as long as it takes to send what is under way.
    discard_within_s: float | None = _NOTHING_TO_SEND_S

    def __init__(self, server: str) -> None:
        super().__init__()
        self.server = server
        self.over = asyncio.Event()
        self.error: BaseException | None = None
        self._tried = False

    async def open(self, **more: Any) -> None:
        """Connect; ``more`` are arguments of ``Client.connect``. Raises what that raises."""
        self._tried = True
        await self.connect(
            servers=[self.server],
            allow_reconnect=False,
            # One more try at once, then an error: its own waits would hold up the next address.
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            error_cb=self._failed,
            closed_cb=self._ended,
            **more,
        )

    async def discard(self) -> None:
        """Send what is under way and end the connection, whatever state it is in."""
        # nats-py makes its queue behind its look at files of keys; without one there is nothing to
        # end, and its ``close`` would not have it.
        if not self._tried or self._flush_queue is None:
            return
        with contextlib.suppress(*FAILURES):
            # After a handshake that failed nats-py waits, for ever, for the end of a stream that
            # TLS has taken away from it. Without a connection nothing is under way.
            within = self.discard_within_s if self.is_connected else _NOTHING_TO_SEND_S
            async with asyncio.timeout(within):
                await self.close()

    def explain(self, error: BaseException) -> BaseException:
        """The error as people should read it."""
        return error

    def handler_failed(self, error: Exception) -> None:
        """A handler of messages has raised this."""
        asyncio.get_running_loop().call_exception_handler(
            {"message": "a message handler failed", "exception": error}
        )

    async def _failed(self, error: Exception) -> None:
        if isinstance(error, FAILURES):
            self.error = self.explain(error)
        else:
            self.handler_failed(error)

    async def _ended(self) -> None:
        self.over.set()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        if not self.is_connected:
            # Bytes that cannot be sent any more would end its clean-up halfway: nobody would hear
            # that it was closed.
            self._pending = []
            self._pending_data_size = 0
        await super()._close(status, do_cbs)


C = TypeVar("C", bound=OneClient)
A = TypeVar("A")


class Listening:
    """A subject that is listened to, over every connection.

    ``subscription``: on the present one.
    """

    def __init__(self, subject: str, handler: Callable[[Msg], Awaitable[None]]) -> None:
        self.subject = subject
        self.handler = handler
        self.subscription: Subscription | None = None


class Reconnecting(Generic[C, A]):
    """A connection to one of ``addresses`` that comes back by itself, as long as ``run`` runs.

    Whoever inherits says how a client is made for an address, and is told what becomes of it. All
    methods belong to one event loop.
    """

    #: For connecting and subscribing, together.
    _set_up_within_s = 2.0 * CONNECT_WITHIN_S

    def __init__(self, name: str, addresses: Sequence[A]) -> None:
        self.name = name
        self._addresses = list(addresses)
        self._listened: list[Listening] = []
        self._client: C | None = None
        self._closing = asyncio.Event()

    # ---- for whoever inherits
    # ------------------------------------------------------------------------------------

    def _make(self, address: A) -> C:
        raise NotImplementedError

    def _arguments(self) -> dict[str, Any]:
        """More of ``Client.connect``."""
        return {}

    def _was_made(self, address: A) -> None:
        """A connection stands, and everything is listened to."""

    def _was_lost(self, error: BaseException | None) -> None:
        """A connection that stood is gone, and not because of ``end``."""

    def _was_refused(self, address: A, error: BaseException) -> None:
        """No connection could be made."""

    # ---- for whoever uses it
    # -------------------------------------------------------------------------------------

    @property
    def standing(self) -> C | None:
        """The client to send with, if there is a connection."""
        client = self._client
        return client if client is not None and client.is_connected else None

    async def begin(self, listening: Listening) -> None:
        """Have its handler called for what comes to its subject, now and over every other
        connection.
        """
        self._listened.append(listening)
        if self._client is not None:
            # A failure is the end of this connection; the next one begins with what is listed.
            with contextlib.suppress(*FAILURES):
                await self._subscribe(self._client, listening)

    async def cease(self, listening: Listening) -> None:
        """Listen no more; what has come and was not handled yet is dropped."""
        self._listened.remove(listening)
        subscription = listening.subscription
        listening.subscription = None
        if subscription is not None:
            with contextlib.suppress(*FAILURES):
                await subscription.unsubscribe()

    async def end(self, task: asyncio.Task[None], grace_s: float, again_s: float) -> None:
        """Have ``task``, which runs ``run``, end: by itself, or cancelled after ``grace_s``
        seconds.

        nats-py interrupted in the middle of a handshake leaves its socket open, prints tracebacks,
        or swallows the cancellation, which is therefore repeated every ``again_s`` seconds.
        """
        self._closing.set()
        if self._client is not None:
            self._client.over.set()
        await asyncio.wait([task], timeout=grace_s)
        while not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=again_s)

    async def run(self) -> None:
        """Connect, and connect again, until ``end``."""
        while not self._closing.is_set():
            address = self._addresses[0]
            client = self._make(address)
            try:
                await self._set_up(client)
                if not self._closing.is_set():
                    self._client = client
                    self._was_made(address)
                    await client.over.wait()
            except FAILURES as error:
                self._was_refused(address, client.error or error)
            finally:
                up = self._client is not None
                self._client = None
                for listening in self._listened:
                    listening.subscription = None
                if up and not self._closing.is_set():
                    self._was_lost(client.error)
                await client.discard()
            self._addresses.append(self._addresses.pop(0))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RECONNECT_WAIT_S):
                    await self._closing.wait()

    async def _set_up(self, client: C) -> None:
        """Connect and listen; only then may anybody publish."""
        async with asyncio.timeout(self._set_up_within_s):
            await client.open(
                connect_timeout=CONNECT_WITHIN_S,
                ping_interval=PING_EVERY_S,
                max_outstanding_pings=2,
                **self._arguments(),
            )
            # Again for what was listed while the others were on their way.
            while missing := [
                listening for listening in self._listened if listening.subscription is None
            ]:
                for listening in missing:
                    await self._subscribe(client, listening)
                await client.flush(timeout=CONNECT_WITHIN_S)
        if client.over.is_set():
            raise nats.errors.ConnectionClosedError

    async def _subscribe(self, client: C, listening: Listening) -> None:
        listening.subscription = await client.subscribe(listening.subject, cb=listening.handler)
