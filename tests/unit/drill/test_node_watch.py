"""What a drill believes of a node's pages."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import struct
from typing import TYPE_CHECKING

import pytest

from ftstan.drill.node_watch import Watchers, get
from ftstan.drill.scenario import Member

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.drill.node_watch import Seen

PATIENCE_S = 20.0


class Pages:
    """A node that says what it is told to say: status and body by path."""

    def __init__(self, **said: tuple[int, str]) -> None:
        self.said = {f"/{name.replace('__', '/')}": answer for name, answer in said.items()}

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readline()).split()[1].decode()
        status, body = self.said.get(path, (404, ""))
        writer.write(f"HTTP/1.0 {status} X\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()


async def watched(pages: Pages, done: Callable[[Seen], bool]) -> Seen:
    """Look at these pages until ``done``, and give what is believed then."""
    server = await asyncio.start_server(pages.answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    watchers = Watchers([Member("a", f"http://127.0.0.1:{port}")], lambda _: None, lambda: 1)
    watchers.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not done(watchers.nodes["a"]):  # noqa: ASYNC110  # what is tested has no event
                await asyncio.sleep(0.01)
    finally:
        await watchers.end()
        server.close()
    return watchers.nodes["a"]


def standby(*, fit: int) -> Pages:
    state = json.dumps({"state": "FT_STANDBY"})
    return Pages(
        streaming__isFTActive=(204, ""),
        streaming__serverz=(200, state),
        standby=(fit, "waiting for storage lock"),
    )


@pytest.mark.parametrize("status", [200, 404])
def test_a_standby_that_could_take_over_is_one_and_so_is_an_original_that_does_not_say(
    status: int,
) -> None:
    assert (
        asyncio.run(watched(standby(fit=status), lambda node: node.standing_by)).told
        == "FT_STANDBY"
    )


def test_a_standby_that_says_it_could_not_take_over_is_none() -> None:
    node = asyncio.run(watched(standby(fit=503), lambda node: node.answers and bool(node.state)))
    assert not node.standing_by
    assert node.told == "FT_STANDBY, could not take over"


def test_a_node_that_serves_and_one_that_does_not_answer_are_told_so() -> None:
    active = Pages(
        streaming__isFTActive=(200, ""), streaming__serverz=(200, '{"state": "FT_ACTIVE"}')
    )
    assert asyncio.run(watched(active, lambda node: node.active)).told == "active"
    assert (
        Watchers([Member("a", "http://127.0.0.1:9")], lambda _: None, lambda: 1).nodes["a"].told
        == "no answer"
    )


@pytest.mark.parametrize("begins", [True, False], ids=["in its answer", "before it"])
def test_a_node_that_dies_does_not_answer_and_its_error_is_not_told_once_more(
    *, begins: bool
) -> None:
    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if begins:
            await reader.readline()
            writer.write(b"HTTP/1.0 200 X\r\n\r\n{")
            await writer.drain()
        # The connection is reset, as by the kernel of a host whose process was killed.
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    async def ask() -> int:
        async with await asyncio.start_server(die, "127.0.0.1", 0) as server:
            assert await get(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics") == (
                0,
                b"",
            )
        # Errors that nobody has asked for are logged when they are collected.
        futures = [found for found in gc.get_objects() if isinstance(found, asyncio.Future)]
        return sum(future.done() and future._log_traceback for future in futures)

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(ask()) == 0
    finally:
        gc.enable()
