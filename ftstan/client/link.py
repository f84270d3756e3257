"""The client's connection to NATS, which comes back by itself (``ftstan.nats.reconnecting``).

So a NATS server that refuses a login for a while, or all of them being away, never ends a client,
and what is sent while there is no connection is told to the sender at once. Handlers are called one
message at a time for each subject; one that waits holds up its own subject only.

Nothing here knows STAN. All methods belong to one event loop; there is no thread.
"""

from __future__ import annotations

import asyncio
import math
import re
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import nats.errors

from ftstan.client.errors import (
    ConnectionClosedError,
    InvalidArgumentError,
    LoginError,
    NatsUnreachableError,
    NotAllowedError,
    RequestTimeoutError,
)
from ftstan.nats.reconnecting import CONNECT_WITHIN_S, FAILURES, Listening, OneClient, Reconnecting
from ftstan.wire.nuid import Nuid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nats.aio.msg import Msg

    from ftstan.client.options import NatsLogin

_CANCEL_AGAIN_S = 1.0
_UNBOUNDED = 1 << 62
"""For buffers of nats-py, which would wait inside a publish and lose a cancellation there: our
window bounds them.
"""

_NO_RESPONDERS = "503"
DENIED_HINT = (
    "do the permissions of this login cover the streaming subjects and _INBOX.>? "
    "see docs/security.md"
)
_DENIED = re.compile(r'permissions violation for \w+ to "([^"]*)"', re.IGNORECASE)

#: Of OpenSSL: not valid yet, not valid any more; not for this name, not for this address.
_EXPIRED = frozenset({9, 10})
_BAD_NAMES = frozenset({62, 64})

#: An answer that comes so long after its request was given up is dropped; seconds.
_LATE_S = 60.0

Handler = Callable[["Arrived"], Awaitable[None]]
#: What is done with an answer that came too late.
Late = Callable[[bytes], Awaitable[None]]


class Arrived:
    """One NATS message.

    ``nobody``: it is NATS's own answer that nobody listens where something was sent.
    """

    __slots__ = ("nobody", "payload", "reply", "subject")

    def __init__(self, message: Msg) -> None:
        self.subject: str = message.subject
        self.reply: str = message.reply
        self.payload: bytes = message.data
        headers = message.headers
        self.nobody = headers is not None and headers.get("Status") == _NO_RESPONDERS


class NobodyError(RequestTimeoutError):
    """A request reached nobody: there is no connection, or nobody listens.

    It can be repeated without harm.
    """


class _Client(OneClient):
    """nats-py with the login of a client.

    Its messages are sent before it ends, however long that takes.
    """

    discard_within_s = None

    def __init__(self, server: str, on_denied: Callable[[str, str], None]) -> None:
        super().__init__(server)
        self._on_denied = on_denied

    def explain(self, error: BaseException) -> BaseException:
        if (found := _DENIED.search(str(error))) is not None:
            self._on_denied(found[0], found[1])
        return error

    async def open(self, **more: Any) -> None:
        try:
            await super().open(**more)
        except FAILURES:
            raise
        except Exception as error:
            # Whatever files of keys make the libraries raise that read them; a package that reads
            # them may be missing.
            raise nats.errors.Error(f"the credentials cannot be used: {error!r}") from error


class Link(Reconnecting[_Client, str]):
    """One client's way to NATS. ``on_up()`` is called whenever a connection stands, ``on_down()``
    when it is lost, ``on_denied(text, subject)`` when NATS does not let us publish or subscribe
    there: both in lower case, as nats-py hands errors on.
    """

    def __init__(
        self,
        servers: Sequence[str],
        login: NatsLogin,
        *,
        name: str,
        on_up: Callable[[], None],
        on_down: Callable[[], None],
        on_denied: Callable[[str, str], None] = lambda _text, _subject: None,
    ) -> None:
        super().__init__(name, [_checked(server) for server in servers])
        if not self._addresses:
            raise InvalidArgumentError(
                "no address of a NATS server", hint="give at least one, as nats://host:4222"
            )
        self._login = login.arguments()
        self._on_up = on_up
        self._on_down = on_down
        self._on_denied = on_denied
        self._nuid = Nuid()
        self._handled: dict[str, Listening] = {}
        self._asked: dict[str, asyncio.Future[Arrived]] = {}
        self._asked_on: dict[str, str] = {}
        self._late: dict[str, Late] = {}
        self._deaf = ""
        """Why no answer can reach us, as long as that is so."""
        self._task: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self._refusals = 0
        self._untrusted: ssl.SSLCertVerificationError | None = None
        self._refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._why = ""
        self._carries = 0
        self._answers = f"{self.inbox()}."

    @property
    def up(self) -> bool:
        """Whether there is a connection."""
        return self.standing is not None

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
        """Wait for the first connection; seconds.

        Raises ``NatsUnreachableError``, ``LoginError``.
        """
        await self.listen(f"{self._answers}*", self._on_answer)
        self._task = asyncio.create_task(self.run(), name=self.name)
        up = asyncio.create_task(self._up.wait())
        ends: set[asyncio.Future[Any]] = {up, self._refused}
        try:
            await asyncio.wait(ends, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        finally:
            up.cancel()
        if self._up.is_set():
            return
        where = ", ".join(_shown(server) for server in self._addresses)
        if self._refused.done() and self._untrusted is not None:
            raise NatsUnreachableError(
                f"the certificate of the NATS server at {where} is not accepted: {self._why}",
                hint=_trust_hint(self._untrusted),
            )
        if self._refused.done():
            raise LoginError(
                f"NATS refuses the login at {where}: {self._why}",
                hint="check user, password or credentials",
            )
        raise NatsUnreachableError(
            f"no NATS server reached within {within:g} s at {where}: {self._why or 'no answer'}",
            hint="check the addresses, and that a server runs there",
        )

    async def close(self) -> None:
        """Send what is under way and end the connection. Safe to call twice."""
        for future in self._asked.values():
            if not future.done():
                future.set_exception(ConnectionClosedError("the connection was closed"))
        task = self._task
        self._task = None
        if task is not None:
            await self.end(task, _CANCEL_AGAIN_S, _CANCEL_AGAIN_S)

    async def publish(self, subject: str, payload: bytes, reply: str = "") -> bool:
        """Hand a message to NATS; tells whether there was a connection.

        Raises ``InvalidArgumentError`` (too large).
        """
        client = self.standing
        if client is None:
            return False
        self.check_size(payload)
        try:
            await client.publish(subject, payload, reply)
        except FAILURES:
            return False
        return True

    def check_size(self, payload: bytes) -> None:
        """Raise ``InvalidArgumentError`` for what the NATS server does not carry: the present one,
        or the last one there was.
        """
        if len(payload) > self._carries:
            raise InvalidArgumentError(
                f"{len(payload)} bytes are more than this NATS server carries ({self._carries})",
                hint="send less at once, or raise max_payload of the NATS servers",
            )

    async def settle(self, subject: str, within: float) -> bool:
        """Wait until what was on its way to ``subject`` has been handled; seconds.

        Tells whether that is so.
        """
        client = self._client
        listening = self._handled.get(subject)
        subscription = listening.subscription if listening is not None else None
        if client is None or subscription is None:
            return False
        try:
            # The library asks for whole seconds and takes any.
            await client.flush(timeout=within)  # type: ignore[arg-type]
        except FAILURES:
            return False
        while subscription.pending_msgs:  # noqa: ASYNC110  # nats-py shows its queue, and no event of it
            await asyncio.sleep(0)
        return True

    async def listen(self, subject: str, handler: Handler) -> None:
        """Have ``handler`` called for what comes to ``subject``, now and over every other
        connection.
        """

        async def deliver(message: Msg) -> None:
            await handler(Arrived(message))

        self._handled[subject] = Listening(subject, deliver)
        await self.begin(self._handled[subject])

    async def drop(self, subject: str) -> None:
        """Listen no more; what has come and was not handled yet is dropped."""
        listening = self._handled.pop(subject, None)
        if listening is not None:
            await self.cease(listening)

    async def request(
        self,
        subject: str,
        payload: bytes,
        within: float,
        again: float = math.inf,
        late: Late | None = None,
    ) -> bytes:
        """The first answer, seconds.

        Raises ``NobodyError``, ``RequestTimeoutError``, ``ConnectionClosedError``, and at once
        ``NotAllowedError``.

        After ``again`` seconds without one it is sent once more, and so on; an answer to any of
        them will do, for a server that is slower than that must not be asked for ever. ``late``
        gets an answer that comes after the timeout was raised.
        """
        token = self.unique()
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        future: asyncio.Future[Arrived] = loop.create_future()
        self._asked[token] = future
        self._asked_on[token] = subject
        try:
            while not future.done():
                if self._deaf:
                    raise _not_allowed(self._deaf)
                if not await self.publish(subject, payload, self._answers + token):
                    raise NobodyError("there is no connection to NATS")
                left = end - loop.time()
                await asyncio.wait([future], timeout=min(left, again))
                if left <= again and not future.done():
                    if late is not None:
                        self._late[token] = late
                        loop.call_later(_LATE_S, self._late.pop, token, None)
                    raise RequestTimeoutError(f"no answer on {subject} within {within:.3g} s")
            answer = future.result()
        finally:
            del self._asked[token], self._asked_on[token]
        if answer.nobody:
            raise NobodyError(f"nobody listens on {subject}")
        return answer.payload

    async def _on_answer(self, arrived: Arrived) -> None:
        token = arrived.subject[len(self._answers) :]
        future = self._asked.get(token)
        if future is not None and not future.done():
            future.set_result(arrived)
        late = self._late.pop(token, None)
        if late is not None and not arrived.nobody:
            await late(arrived.payload)

    def _denied(self, text: str, subject: str) -> None:
        """NATS does not let us publish or subscribe there: who waits for an answer is told now."""
        # nats-py hands errors on in lower case: told is the subject as permissions have to name it.
        answers = f"{self._answers}*"
        if subject == answers.lower():
            self._deaf = text.replace(subject, answers)
        for token, future in self._asked.items():
            asked = self._asked_on[token]
            if (self._deaf or asked.lower() == subject) and not future.done():
                future.set_exception(_not_allowed(self._deaf or text.replace(subject, asked)))
        self._on_denied(text, subject)

    # ---- what ``run`` tells
    # --------------------------------------------------------------------------------------

    _set_up_within_s = 4.0 * CONNECT_WITHIN_S

    def _make(self, address: str) -> _Client:
        self._deaf = ""
        return _Client(address, self._denied)

    def _arguments(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "pending_size": _UNBOUNDED,
            "flusher_queue_size": 0,
            **self._login,
        }

    def _was_made(self, address: str) -> None:
        assert self._client is not None
        self._carries = self._client.max_payload
        for uri in self._client.discovered_servers:
            found = f"{uri.scheme}://{uri.netloc}"
            if all(
                urlsplit(known).netloc.rpartition("@")[2] != uri.netloc for known in self._addresses
            ):
                self._addresses.append(_with_login_of(address, found))
        self._up.set()
        self._on_up()

    def _was_lost(self, _error: BaseException | None) -> None:
        self._up.clear()
        self._on_down()

    def _was_refused(self, _address: str, error: BaseException) -> None:
        self._why = str(error) or type(error).__name__
        self._untrusted = error if isinstance(error, ssl.SSLCertVerificationError) else None
        refused = self._untrusted is not None or "authorization" in self._why.lower()
        self._refusals = self._refusals + 1 if refused else 0
        # A login that every server refused is told at once, and so are certificates.
        if self._refusals >= len(self._addresses) and not self._refused.done():
            self._refused.set_result(None)


def _not_allowed(text: str) -> NotAllowedError:
    return NotAllowedError(f"NATS refuses: {text}", hint=DENIED_HINT)


def _trust_hint(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in _EXPIRED:
        return "renew the certificate, or that of its authority; is the clock right?"
    if error.verify_code in _BAD_NAMES:
        return (
            "use a name or an address that the certificate is valid for, or say one: tls_hostname"
        )
    return "name the authority that signed it: cafile of the SSLContext in tls"


def _checked(server: str) -> str:
    """An address that nats-py takes; raises ``InvalidArgumentError``."""
    text = server if "://" in server else f"nats://{server}"
    try:
        parts = urlsplit(text)
        usable = (
            bool(parts.hostname)
            and parts.scheme in {"nats", "tls", "ws", "wss"}
            and parts.port != 0
        )
    except ValueError:
        usable = False
    if not usable:
        raise InvalidArgumentError(
            f"{_shown(server)!r} is no address of a NATS server",
            hint="for example nats://host:4222",
        )
    return (
        text
        if parts.port is not None or parts.scheme.startswith("ws")
        else f"{text.rstrip('/')}:4222"
    )


def _shown(server: str) -> str:
    """An address without its login."""
    head, at, rest = server.rpartition("@")
    return f"{head.partition('://')[0]}://[REDACTED]@{rest}" if at else server


def _with_login_of(server: str, found: str) -> str:
    """An address that NATS told us, with the login that stands in the one that we came by."""
    login, at, _ = urlsplit(server).netloc.rpartition("@")
    return found.replace("://", f"://{login}@", 1) if at else found
