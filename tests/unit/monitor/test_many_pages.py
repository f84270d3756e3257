"""Whoever asks for very many large pages, and reads none of them, keeps nobody else waiting."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from ftstan.config.options import MonitorOptions
from ftstan.monitor import passthrough
from ftstan.monitor.http import PAGES, Monitor
from tests.unit.monitor.test_pages import FakeViews

if TYPE_CHECKING:
    import pytest

HOST = "127.0.0.1"


async def ask(port: int, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % path.encode())
    return reader, writer


def test_few_are_made_at_a_time_and_none_for_who_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    under_way: list[int] = [0, 0]
    go_on = asyncio.Event()

    async def handle(_: passthrough.Passthrough, __: web.Request) -> web.Response:
        begun.append(1)
        under_way[0] += 1
        under_way[1] = max(under_way)
        try:
            await go_on.wait()
        finally:
            under_way[0] -= 1
        return web.Response(text="page")

    monkeypatch.setattr(passthrough.Passthrough, "handle", handle)

    async def work() -> None:
        monitor = Monitor(FakeViews(), MonitorOptions())
        port = await monitor.start(HOST, -1)
        try:
            asked = [await ask(port, "/subsz") for _ in range(5 * PAGES)]
            reader, writer = await ask(port, "/livez")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()
            assert len(begun) == PAGES
            for _, writer in asked:
                writer.close()
            await asyncio.sleep(0.5)
            assert under_way[0] == 0
            assert len(begun) == PAGES
            reader, writer = await ask(port, "/varz")
            go_on.set()
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()
        finally:
            await monitor.stop()

    asyncio.run(asyncio.wait_for(work(), 30))
    assert under_way[1] == PAGES
