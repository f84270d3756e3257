"""Questions over NATS from a command that runs once: one short connection, a subject, the answers.

For tools; servers have ``ftstan.nats.control``. Nothing is retried: whoever asks at a terminal wants to know.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import nats.errors
from nats.aio.client import Client

from ftstan.errors import NatsError
from ftstan.nats.control import error_text
from ftstan.nats.url import Login, effective_login, parse_urls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from nats.aio.msg import Msg

_FAILURES = (nats.errors.Error, OSError, TimeoutError)


class Asker:
    """A connection to the first of some servers that answers. Belongs to one event loop; use ``asking``."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def ask(self, subject: str, payload: bytes, seconds: float) -> bytes | None:
        """The first answer, ``None`` if nobody listens there or none came in time. Raises ``NatsError``."""
        answers = await self.ask_all(subject, payload, seconds, enough=bool)
        return answers[0] if answers else None

    async def ask_all(
        self, subject: str, payload: bytes, seconds: float, *, enough: Callable[[list[bytes]], bool] = lambda _: False
    ) -> list[bytes]:
        """Every answer that comes within ``seconds``; sooner if ``enough`` says so, or if nobody listens there.

        Raises ``NatsError``.
        """
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
        except _FAILURES as error:
            raise NatsError(
                f"the NATS server did not take the question: {error_text(error)}", hint="check the server and ask again"
            ) from error
        return answers


@contextlib.asynccontextmanager
async def asking(urls: str, login: Login, *, seconds: float) -> AsyncIterator[Asker]:
    """Connect to one of ``urls`` (comma separated), trying each for ``seconds``; closed at the end.

    Raises ``NatsError``: none can be reached, or none lets us in; and ``ConfigError`` for what is no URL.
    """
    parsed = parse_urls(urls)
    problems: list[str] = []
    for url in parsed:
        client = Client()
        errors: list[Exception] = []
        try:
            chosen = effective_login(url, login)
            await _open(client, url.plain, chosen, seconds, errors)
        except _FAILURES as error:
            problems.append(f"{url.shown}: {error_text(errors[-1] if errors else error)}")
            await _close(client)
            continue
        try:
            yield Asker(client)
        finally:
            await _close(client)
        return
    raise NatsError(
        f"no NATS server can be asked: {'; '.join(problems)}",
        hint="check --server (or FTSTAN_SERVER) and --user, --pass or --auth",
    )


async def _open(client: Client, url: str, login: Login, seconds: float, errors: list[Exception]) -> None:
    async def failed(error: Exception) -> None:
        errors.append(error)

    async with asyncio.timeout(2 * seconds):
        await client.connect(
            servers=[url],
            name="ftstanctl",
            user=login.user or None,
            password=login.password or None,
            token=login.token or None,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=max(1, round(seconds)),
            error_cb=failed,
        )


async def _close(client: Client) -> None:
    with contextlib.suppress(*_FAILURES):
        await client.close()
