"""The client's connection to NATS: nats-py, with reconnecting done here.

A connection of nats-py is used until it breaks; then another one is made, to each known address in turn, for ever, and
everything that was listened to is listened to again. So a NATS server that refuses a login for a while, or all of them
being away, never ends a client, and what is sent while there is no connection is told to the sender at once. Handlers
are called one message at a time for each subject; one that waits holds up its own subject only.

Nothing here knows STAN. All methods belong to one event loop; there is no thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client

from ftstan.client.errors import (
    ConnectionClosedError,
    InvalidArgumentError,
    LoginError,
    NatsUnreachableError,
    RequestTimeoutError,
)
from ftstan.wire.nuid import Nuid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from ftstan.client.options import NatsLogin

RECONNECT_WAIT_S = 0.25
CONNECT_WITHIN_S = 2
PING_EVERY_S = 5
_CANCEL_AGAIN_S = 1.0
_UNBOUNDED = 1 << 62
"""For buffers of nats-py, which would wait inside a publish and lose a cancellation there: our window bounds them."""

_FAILURES = (nats.errors.Error, OSError, TimeoutError)
_NO_RESPONDERS = "503"

Handler = Callable[["Arrived"], Awaitable[None]]


class Arrived:
    """One NATS message. ``nobody``: it is NATS's own answer that nobody listens where something was sent."""

    __slots__ = ("nobody", "payload", "reply", "subject")

    def __init__(self, message: Msg) -> None:
        self.subject: str = message.subject
        self.reply: str = message.reply
        self.payload: bytes = message.data
        headers = message.headers
        self.nobody = headers is not None and headers.get("Status") == _NO_RESPONDERS


class NobodyError(RequestTimeoutError):
    """A request reached nobody: there is no connection, or nobody listens. It can be repeated without harm."""


class Link:
    """One client's way to NATS. ``on_up()`` is called whenever a connection stands, ``on_down()`` when it is lost."""

    def __init__(
        self,
        servers: Sequence[str],
        login: NatsLogin,
        *,
        name: str,
        on_up: Callable[[], None],
        on_down: Callable[[], None],
    ) -> None:
        self._servers = [_checked(server) for server in servers]
        if not self._servers:
            raise InvalidArgumentError("no address of a NATS server", hint="give at least one, as nats://host:4222")
        self._arguments = login.arguments()
        self._name = name
        self._on_up = on_up
        self._on_down = on_down
        self._nuid = Nuid()
        self._handlers: dict[str, Handler] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._asked: dict[str, asyncio.Future[Arrived]] = {}
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self._refusals = 0
        self._refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._why = ""
        self._closed = False
        self._answers = f"{self.inbox()}."

    @property
    def up(self) -> bool:
        """Whether there is a connection."""
        return self._client is not None and self._client.is_connected

    @property
    def server(self) -> str:
        """``host:port`` of the NATS server that we are connected to; empty without a connection."""
        url = self._client.connected_url if self._client is not None else None
        return url.netloc.rpartition("@")[2] if url is not None else ""

    def inbox(self) -> str:
        """A subject that nobody else uses."""
        return f"_INBOX.{self.unique()}"

    def unique(self) -> str:
        """22 letters and digits that nobody else has."""
        return self._nuid.next()

    async def open(self, within: float) -> None:
        """Wait for the first connection; seconds. Raises ``NatsUnreachableError``, ``LoginError``."""
        await self.listen(f"{self._answers}*", self._on_answer)
        self._task = asyncio.create_task(self._run(), name=self._name)
        up = asyncio.create_task(self._up.wait())
        ends: set[asyncio.Future[Any]] = {up, self._refused}
        try:
            await asyncio.wait(ends, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        finally:
            up.cancel()
        if self._up.is_set():
            return
        where = ", ".join(_shown(server) for server in self._servers)
        if self._refused.done():
            raise LoginError(
                f"NATS refuses the login at {where}: {self._why}", hint="check user, password or credentials"
            )
        raise NatsUnreachableError(
            f"no NATS server reached within {within:g} s at {where}: {self._why or 'no answer'}",
            hint="check the addresses, and that a server runs there",
        )

    async def close(self) -> None:
        """Send what is under way and end the connection. Safe to call twice."""
        self._closed = True
        for future in self._asked.values():
            if not future.done():
                future.set_exception(ConnectionClosedError("the connection was closed"))
        task, self._task = self._task, None
        # A cancellation can get lost inside nats-py, so it is repeated.
        while task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=_CANCEL_AGAIN_S)

    async def publish(self, subject: str, payload: bytes, reply: str = "") -> bool:
        """Hand a message to NATS; tells whether there was a connection. Raises ``InvalidArgumentError`` (too large)."""
        client = self._client
        if client is None or not client.is_connected:
            return False
        try:
            await client.publish(subject, payload, reply)
        except nats.errors.MaxPayloadError:
            raise InvalidArgumentError(
                f"{len(payload)} bytes are more than this NATS server carries ({client.max_payload})",
                hint="send less at once, or raise max_payload of the NATS servers",
            ) from None
        except _FAILURES:
            return False
        return True

    async def settle(self, subject: str, within: float) -> bool:
        """Wait until what was on its way to ``subject`` has been handled; seconds. Tells whether that is so."""
        client, subscription = self._client, self._subscriptions.get(subject)
        if client is None or subscription is None:
            return False
        try:
            # The library asks for whole seconds and takes any.
            await client.flush(timeout=within)  # type: ignore[arg-type]
        except _FAILURES:
            return False
        while subscription.pending_msgs:  # noqa: ASYNC110  # nats-py shows its queue, and no event of it
            await asyncio.sleep(0)
        return True

    async def listen(self, subject: str, handler: Handler) -> None:
        """Have ``handler`` called for what comes to ``subject``, now and over every other connection."""
        self._handlers[subject] = handler
        if self._client is not None:
            # A failure is the end of this connection; the next one begins with what is listed.
            with contextlib.suppress(*_FAILURES):
                await self._subscribe(self._client, subject, handler)

    async def drop(self, subject: str) -> None:
        """Listen no more; what has come and was not handled yet is dropped."""
        self._handlers.pop(subject, None)
        subscription = self._subscriptions.pop(subject, None)
        if subscription is not None:
            with contextlib.suppress(*_FAILURES):
                await subscription.unsubscribe()

    async def request(self, subject: str, payload: bytes, within: float, again: float = math.inf) -> bytes:
        """The first answer, seconds. Raises ``NobodyError``, ``RequestTimeoutError``, ``ConnectionClosedError``.

        After ``again`` seconds without one it is sent once more, and so on; an answer to any of them will do, for a
        server that is slower than that must not be asked for ever.
        """
        token = self.unique()
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        future: asyncio.Future[Arrived] = loop.create_future()
        self._asked[token] = future
        try:
            while not future.done():
                if not await self.publish(subject, payload, self._answers + token):
                    raise NobodyError("there is no connection to NATS")
                left = end - loop.time()
                await asyncio.wait([future], timeout=min(left, again))
                if left <= again and not future.done():
                    raise RequestTimeoutError(f"no answer on {subject} within {within:.3g} s")
            answer = future.result()
        finally:
            del self._asked[token]
        if answer.nobody:
            raise NobodyError(f"nobody listens on {subject}")
        return answer.payload

    async def _on_answer(self, arrived: Arrived) -> None:
        future = self._asked.get(arrived.subject[len(self._answers) :])
        if future is not None and not future.done():
            future.set_result(arrived)

    async def _run(self) -> None:
        while not self._closed:
            connection = _Connection()
            up = False
            try:
                await self._connect(connection)
                up = True
                await connection.over.wait()
            except _FAILURES as error:
                self._note(connection.error or error)
            finally:
                self._client = None
                self._subscriptions.clear()
                self._up.clear()
                if up and not self._closed:
                    self._on_down()
                await connection.close()
            self._servers.append(self._servers.pop(0))
            await asyncio.sleep(RECONNECT_WAIT_S)

    async def _connect(self, connection: _Connection) -> None:
        server = self._servers[0]
        async with asyncio.timeout(4 * CONNECT_WITHIN_S):
            await connection.open(server, self._name, self._arguments)
            client = connection.client
            for subject, handler in list(self._handlers.items()):
                await self._subscribe(client, subject, handler)
            await client.flush(timeout=CONNECT_WITHIN_S)
        if connection.over.is_set():
            raise nats.errors.ConnectionClosedError
        for subject, handler in self._handlers.items():
            # Listed while the others were on their way.
            if subject not in self._subscriptions:
                await self._subscribe(client, subject, handler)
        for uri in client.discovered_servers:
            found = f"{uri.scheme}://{uri.netloc}"
            if all(urlsplit(known).netloc.rpartition("@")[2] != uri.netloc for known in self._servers):
                self._servers.append(_with_login_of(server, found))
        self._client = client
        self._up.set()
        self._on_up()

    def _note(self, error: Exception) -> None:
        """Remember why a connection could not be made; a login that every server refused is told at once."""
        self._why = str(error) or type(error).__name__
        self._refusals = self._refusals + 1 if "authorization" in self._why.lower() else 0
        if self._refusals >= len(self._servers) and not self._refused.done():
            self._refused.set_result(None)

    async def _subscribe(self, client: Client, subject: str, handler: Handler) -> None:
        async def deliver(message: Msg) -> None:
            await handler(Arrived(message))

        self._subscriptions[subject] = await client.subscribe(subject, cb=deliver)


class _Client(Client):
    """nats-py's, which says in every case that it was closed."""

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        if not self.is_connected:
            # Bytes that cannot be sent any more would end its clean-up halfway: no callback, tasks left behind.
            self._pending, self._pending_data_size = [], 0
        await super()._close(status, do_cbs)


class _Connection:
    """One nats-py client, for one connection. ``error`` is the last thing that went wrong with it."""

    def __init__(self) -> None:
        self.client = _Client()
        self.over = asyncio.Event()
        self.error: Exception | None = None

    async def open(self, server: str, name: str, arguments: dict[str, object]) -> None:
        try:
            await self.client.connect(
                servers=[server],
                name=name,
                allow_reconnect=False,
                # One more try at once, then an error: its own waits would hold up the next address.
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=CONNECT_WITHIN_S,
                ping_interval=PING_EVERY_S,
                max_outstanding_pings=2,
                pending_size=_UNBOUNDED,
                flusher_queue_size=0,
                error_cb=self._failed,
                closed_cb=self._closed,
                **arguments,  # type: ignore[arg-type]
            )
        except _FAILURES:
            raise
        except Exception as error:
            # Whatever files of keys make the libraries raise that read them; a package that reads them may be missing.
            raise nats.errors.Error(f"the credentials cannot be used: {error!r}") from error

    async def close(self) -> None:
        with contextlib.suppress(*_FAILURES):
            await self.client.close()

    async def _failed(self, error: Exception) -> None:
        if isinstance(error, _FAILURES):
            self.error = error
        else:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a message handler failed", "exception": error}
            )

    async def _closed(self) -> None:
        self.over.set()


def _checked(server: str) -> str:
    """An address that nats-py takes; raises ``InvalidArgumentError``."""
    text = server if "://" in server else f"nats://{server}"
    try:
        parts = urlsplit(text)
        usable = bool(parts.hostname) and parts.scheme in {"nats", "tls", "ws", "wss"} and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise InvalidArgumentError(
            f"{_shown(server)!r} is no address of a NATS server", hint="for example nats://host:4222"
        )
    return text if parts.port is not None or parts.scheme.startswith("ws") else f"{text.rstrip('/')}:4222"


def _shown(server: str) -> str:
    """An address without its login."""
    head, at, rest = server.rpartition("@")
    return f"{head.partition('://')[0]}://[REDACTED]@{rest}" if at else server


def _with_login_of(server: str, found: str) -> str:
    """An address that NATS told us, with the login that stands in the one that we came by."""
    login, at, _ = urlsplit(server).netloc.rpartition("@")
    return found.replace("://", f"://{login}@", 1) if at else found
