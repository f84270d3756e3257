"""Tasks that are told to end."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from ftstan.nats import tasks


def test_a_task_that_loses_the_first_cancellation_is_asked_again() -> None:
    async def stubborn() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await asyncio.sleep(60)

    async def work() -> None:
        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        await tasks.end(task, 0.01)
        assert task.cancelled()

    asyncio.run(work())


def test_the_error_of_the_task_is_not_lost() -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    async def work() -> None:
        task = asyncio.create_task(broken())
        await asyncio.sleep(0)
        with pytest.raises(ZeroDivisionError):
            await tasks.end(task, 0.01)

    asyncio.run(work())
