"""The page of the NATS server counts whom the listener in front of it has ended."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import aiohttp
import pytest
from aiohttp import web

from ftstan.monitor.passthrough import NatsViews, Passthrough

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ftstan.nats.embedded import NatsServerChild

HOST = "127.0.0.1"
VARZ = {"slow_consumers": 2, "x": 1, "slow_consumer_stats": {"clients": 1, "routes": 1}}


async def serve(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.AppRunner:
    app = web.Application()
    app.router.add_get("/{page}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, HOST, 0).start()
    return runner


async def child_page(_: web.Request) -> web.Response:
    return web.Response(text=json.dumps(VARZ, indent=2), content_type="application/json")


@pytest.mark.parametrize("slow", [0, 3])
def test_slow_clients_of_the_listener_are_counted_once(slow: int) -> None:
    async def work() -> dict[str, object]:
        child = await serve(child_page)
        port = child.addresses[0][1]
        passthrough = Passthrough(
            cast("NatsViews", SimpleNamespace(slow_clients=lambda: slow)),
            {},
            cast("NatsServerChild", SimpleNamespace(monitor_port=port)),
        )
        pages = await serve(passthrough.handle)
        url = f"http://{HOST}:{pages.addresses[0][1]}/varz"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            said: dict[str, object] = await answer.json()
        await passthrough.close()
        await pages.cleanup()
        await child.cleanup()
        return said

    assert asyncio.run(work()) == {
        "slow_consumers": 2 + slow,
        "x": 1,
        "slow_consumer_stats": {"clients": 1 + slow, "routes": 1},
    }
