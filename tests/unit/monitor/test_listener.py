"""The listener of the monitoring pages: how many may come, and how long they may stay without
asking anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from typing import TYPE_CHECKING

from ftstan.monitor import listener
from ftstan.monitor.listener import Listener

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pytest

HOST = "127.0.0.1"


class Echo(asyncio.Protocol):
    """Says what was said to it."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


def with_listener(
    work: Callable[[Listener, int], Awaitable[None]], header_s: float = 10, answer_s: float = 10
) -> None:
    async def run() -> None:
        async with asyncio.timeout(30):
            made = Listener(Echo, header_s=header_s, answer_s=answer_s)
            port = await made.start(HOST, 0)
            try:
                await work(made, port)
            finally:
                await made.stop()

    asyncio.run(run())


async def visit(port: int, source: str = HOST) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(HOST, port, local_addr=(source, 0))


async def served(visitor: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bool:
    """Whether this connection was taken."""
    reader, writer = visitor
    try:
        writer.write(b"x")
        return await reader.read(1) == b"x"
    except ConnectionError:
        return False


def test_one_address_gets_no_more_than_its_share_and_leaves_the_rest_to_others(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(listener, "MOST_EACH", 3)

    async def work(made: Listener, port: int) -> None:
        visitors = [await visit(port) for _ in range(8)]
        assert [await served(each) for each in visitors] == [True] * 3 + [False] * 5
        assert made.refused == 5
        assert await served(await visit(port, "127.0.0.2"))
        visitors[0][1].close()
        await visitors[0][1].wait_closed()
        await asyncio.sleep(0.05)
        assert await served(await visit(port))

    with_listener(work)
    text = capfd.readouterr().err
    assert text.count("a connection was refused: 3 are open from 127.0.0.1") == 1


def test_there_is_a_limit_for_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MOST", 4)

    async def work(_made: Listener, port: int) -> None:
        visitors = [await visit(port, f"127.0.0.{n}") for n in range(2, 8)]
        assert [await served(each) for each in visitors] == [True] * 4 + [False] * 2

    with_listener(work)


def test_the_last_descriptors_are_not_for_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(_made: Listener, port: int) -> None:
        assert await served(await visit(port))
        monkeypatch.setattr(listener, "RESERVE", 1 << 30)
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        monkeypatch.setattr(resource, "getrlimit", lambda _: (12, limit[1]))
        assert not await served(await visit(port))

    with_listener(work)


def test_who_says_nothing_or_not_all_of_a_request_is_sent_away() -> None:
    async def work(_made: Listener, port: int) -> None:
        silent = await visit(port)
        dribbling = await visit(port)
        assert await served(dribbling)
        assert await silent[0].read() == b""
        assert await dribbling[0].read() == b""

    with_listener(work, header_s=0.3)


def test_who_does_not_take_the_answer_is_sent_away() -> None:
    async def work(made: Listener, port: int) -> None:
        reader, writer = await visit(port)
        assert await served((reader, writer))
        (transport,) = made._visits
        made.begun(transport)
        assert isinstance(transport, asyncio.Transport)
        transport.write(bytes(1 << 26))
        while made._visits:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        writer.close()

    with_listener(work, header_s=20, answer_s=0.3)


def test_a_request_without_end_is_cut_off() -> None:
    async def work(made: Listener, port: int) -> None:
        _, writer = await visit(port)
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(bytes(1 << 16))
                await writer.drain()
        assert not made._visits

    with_listener(work)
