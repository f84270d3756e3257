"""The room that publishes wait for: who came first goes first, and none is given when it is
closed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from ftstan.client.errors import ConnectionClosedError
from ftstan.client.publishing import _Room

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


async def full(size: int) -> _Room:
    """Room for so many messages, all of it taken."""
    room = _Room(size, 1 << 20)
    for _ in range(size):
        await room.take(1)
    return room


async def in_one_turn(*steps: Callable[[], None] | Coroutine[None, None, None]) -> None:
    """Run steps one after the other, before anybody whom one of them wakes up goes on."""

    async def step(work: Callable[[], None]) -> None:
        work()

    await asyncio.wait(
        [asyncio.create_task(step(work) if callable(work) else work) for work in steps]
    )


def test_nobody_overtakes_who_has_got_room_and_does_not_know_it_yet() -> None:
    async def story() -> None:
        room = await full(2)
        went: list[str] = []

        async def go(name: str) -> None:
            await room.take(1)
            went.append(name)

        first = asyncio.create_task(go("first"))
        await asyncio.sleep(0)

        def answered() -> None:
            room.give(1)
            room.give(1)

        await in_one_turn(answered, go("second"))
        await first
        assert went == ["first", "second"]

    asyncio.run(story())


@pytest.mark.parametrize("end", ["close", "cancel"])
def test_room_that_comes_together_with_an_end_is_nobodys(end: str) -> None:
    async def story() -> None:
        room = await full(1)
        waiting = asyncio.create_task(room.take(1))
        await asyncio.sleep(0)

        def ended() -> None:
            if end == "close":
                room.close(ConnectionClosedError("closed"))
            else:
                waiting.cancel()

        await in_one_turn(lambda: room.give(1), ended)
        with pytest.raises(ConnectionClosedError if end == "close" else asyncio.CancelledError):
            await waiting
        if end == "cancel":
            await asyncio.wait_for(room.take(1), 10)

    asyncio.run(story())
