"""Connecting once, as the data plane does it and as the control link does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ftstan.base.clock import SystemClock
from ftstan.base.errors import NatsError
from ftstan.nats.control import error_text
from ftstan.nats.link import Link
from ftstan.nats.pyclient import LinkClient
from ftstan.nats.reconnecting import FAILURES
from ftstan.nats.url import parse_url

if TYPE_CHECKING:
    from ftstan.config.options import LinkOptions

WITHIN_S = 40.0


def by_link(url: str, options: LinkOptions) -> None:
    """Connect with the raw link, which ``ftstanctl`` uses too. Raises ``NatsError``."""
    link = Link([url], name="test", clock=SystemClock(), options=options)
    try:
        link.connect(WITHIN_S)
    finally:
        link.close()


def by_client(url: str, options: LinkOptions) -> None:
    """Connect with nats-py under our rules. Raises ``NatsError``, with the hint of its cause."""

    async def connect() -> None:
        client = LinkClient(parse_url(url), options, "test")
        try:
            async with asyncio.timeout(WITHIN_S):
                await client.open(connect_timeout=round(WITHIN_S / 2))
        except FAILURES as error:
            problem = client.error or client.explain(error)
            hint = problem.hint if isinstance(problem, NatsError) else ""
            raise NatsError(error_text(problem), hint=hint) from error
        finally:
            await client.discard()

    asyncio.run(connect())
