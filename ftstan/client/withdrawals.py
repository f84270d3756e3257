"""What a server may hold of one session though nobody wants it, until the server says that it does
not.

A subscribe request that was not answered may have been carried out, or be so later. Left alone,
such a subscription would hold its durable for as long as the session lasts, and as a member of a
group take messages that nobody sees. So its close is asked for until it is answered, whatever the
answer says, over lost connections and takeovers; nothing else of its channel is subscribed to
before that.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ftstan.client.errors import ClientError, RequestTimeoutError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_AGAIN_S = 0.2


class Withdrawals:
    """Of one session. ``ask(request)`` sends one and raises as ``Session.ask``."""

    def __init__(self, ask: Callable[[bytes], Awaitable[object]]) -> None:
        self._ask = ask
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._is_over = False

    def add(self, channel: str, request: bytes) -> None:
        """Have the server close what an encoded ``UnsubscribeRequest`` names."""
        if self._is_over:
            # The server has closed, or will close, everything of this session.
            return
        task = asyncio.create_task(self._withdraw(request), name=f"withdrawal from {channel}")
        self._tasks[task] = channel
        task.add_done_callback(self._tasks.pop)

    async def settled(self, channel: str, within: float) -> None:
        """Wait until nothing of the channel waits here; seconds.

        Raises ``RequestTimeoutError``.
        """
        tasks = [task for task, of in self._tasks.items() if of == channel]
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=max(within, 0))
        if late:
            raise RequestTimeoutError(
                f"no answer to a subscribe to {channel}, and within {within:.3g} s none to taking "
                "it back",
                hint="is a streaming server active? `ftstanctl ft status` shows it",
            )

    def stop(self) -> None:
        """The session is over, and everything of it."""
        self._is_over = True
        for task in self._tasks:
            task.cancel()

    async def _withdraw(self, request: bytes) -> None:
        while True:
            try:
                await self._ask(request)
            except RequestTimeoutError:
                await asyncio.sleep(_AGAIN_S)
            except ClientError:
                # NATS does not allow it, or the connection was closed.
                return
            else:
                return
