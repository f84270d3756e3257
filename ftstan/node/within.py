"""Asking the data plane for something with a deadline: a node whose storage hangs can say so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from ftstan.base.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.node.context import Context

T = TypeVar("T")


async def within(node: Context, seconds: float, function: Callable[[], T]) -> T:
    """What ``function`` says on the data plane's thread.

    Raises ``StoreError`` if that does not come round in time.
    """
    try:
        async with asyncio.timeout(seconds):
            return await node.call(function)
    except TimeoutError:
        raise StoreError(
            f"storage has not answered for {seconds:g}s",
            hint="check the storage below the server's datastore",
        ) from None
