"""Pages that ask for a token: the drill sends the one of its environment, or says that it lacks
it.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.drill.errors import DrillError
from ftstan.drill.node_watch import TOKEN_VARIABLE
from ftstan.drill.remote import RemoteGroup

if TYPE_CHECKING:
    from collections.abc import Callable

TOKEN = "only-for-this-test"


async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request, with 401 unless it has the token."""
    asked = await reader.readuntil(b"\r\n\r\n")
    allowed = f"\r\nAuthorization: Bearer {TOKEN}\r\n".encode() in asked
    writer.write(b"HTTP/1.0 200 OK\r\n\r\n{}" if allowed else b"HTTP/1.0 401 no\r\n\r\n")
    await writer.drain()
    writer.close()


def prepare() -> None:
    async def work() -> None:
        server = await asyncio.start_server(guarded, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            member = SimpleNamespace(name="a", monitor=f"http://127.0.0.1:{port}")
            scenario: Any = SimpleNamespace(members=[member])
            group: Callable[..., RemoteGroup] = RemoteGroup
            await group(scenario, SimpleNamespace()).prepare()

    asyncio.run(work())


def test_the_token_of_the_environment_opens_the_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    prepare()


@pytest.mark.parametrize("token", ["", "another"])
def test_pages_that_stay_shut_are_told_before_anything_is_played(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    with pytest.raises(DrillError, match="pages of a ask for a token, or refuse ours") as caught:
        prepare()
    assert TOKEN_VARIABLE in caught.value.hint
