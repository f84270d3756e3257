"""Questions over NATS from a command that runs once: one short connection, a subject, the answers.

For tools; servers have ``ftstan.nats.control``. No question is repeated: whoever asks at a terminal
wants to know. The next one finds another server, if that of the one before has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from ftstan.base.errors import NatsError
from ftstan.nats.control import error_text
from ftstan.nats.pyclient import LinkClient
from ftstan.nats.reconnecting import FAILURES
from ftstan.nats.url import parse_urls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from nats.aio.msg import Msg

    from ftstan.config.options import LinkOptions
    from ftstan.nats.url import NatsUrl


class Asker:
    """A connection to the first of some servers that answers.

    Belongs to one event loop; use ``asking``.

    ``connect`` opens one.
    """

    def __init__(self, client: LinkClient, connect: Callable[[], Awaitable[LinkClient]]) -> None:
        self._client = client
        self._connect = connect

    async def close(self) -> None:
        """Give the connection up."""
        await self._client.discard()

    async def ask(self, subject: str, payload: bytes, seconds: float) -> bytes | None:
        """The first answer, ``None`` if nobody listens there or none came in time.

        Raises ``NatsError``.
        """
        answers = await self.ask_all(subject, payload, seconds, enough=bool)
        return answers[0] if answers else None

    async def ask_all(
        self,
        subject: str,
        payload: bytes,
        seconds: float,
        *,
        enough: Callable[[list[bytes]], bool] = lambda _: False,
    ) -> list[bytes]:
        """Every answer that comes within ``seconds``.

        Sooner if ``enough`` says so, or if nobody listens there.

        Raises ``NatsError``.
        """
        if self._client.is_closed:
            self._client = await self._connect()
        answers: list[bytes] = []
        done = asyncio.Event()
        inbox = self._client.new_inbox()

        async def take(message: Msg) -> None:
            if message.headers is not None and not message.data:
                # The server says that nobody listens.
                done.set()
                return
            answers.append(message.data)
            if enough(answers):
                done.set()

        try:
            subscription = await self._client.subscribe(inbox, cb=take)
            await self._client.publish(subject, payload, reply=inbox)
            await self._client.flush()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await done.wait()
            await subscription.unsubscribe()
        except FAILURES as error:
            raise NatsError(
                f"the NATS server did not take the question: {error_text(error)}",
                hint="check the server and ask again",
            ) from error
        return answers


@contextlib.asynccontextmanager
async def asking(urls: str, options: LinkOptions, *, seconds: float) -> AsyncIterator[Asker]:
    """Connect to one of ``urls`` (comma separated), trying each for ``seconds``; closed at the end.

    ``options``: login and TLS.

    Raises ``NatsError``: none can be reached, or none lets us in; and ``ConfigError`` for what is
    no URL.
    """
    parsed = parse_urls(urls)

    async def connect() -> LinkClient:
        return await _connect(parsed, options, seconds)

    asker = Asker(await connect(), connect)
    try:
        yield asker
    finally:
        await asker.close()


async def _connect(urls: Sequence[NatsUrl], options: LinkOptions, seconds: float) -> LinkClient:
    problems: list[str] = []
    hint = (
        "check --server (or FTSTAN_SERVER), the login (--user and --pass, --auth, --nkey, "
        "--creds) and TLS"
    )
    for url in urls:
        client = LinkClient(url, options, "ftstanctl")
        try:
            async with asyncio.timeout(2 * seconds):
                await client.open(connect_timeout=max(1, round(seconds)))
        except FAILURES as error:
            problem = client.error or client.explain(error)
            problems.append(f"{url.shown}: {error_text(problem)}")
            if isinstance(problem, NatsError) and problem.hint:
                hint = problem.hint
            await client.discard()
            continue
        return client
    raise NatsError(f"no NATS server can be asked: {'; '.join(problems)}", hint=hint)
