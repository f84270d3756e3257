"""An event loop in a thread of its own, for tasks of Spark that use the asyncio client.

A task is handed its rows, and hands on what it reads, from ordinary code that may block for
minutes. Meanwhile the client must answer heartbeats, or the server gives it up; so its loop never
runs in the task's own thread.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

_T = TypeVar("_T")


class Background:
    """As a context manager: the loop runs until the block is left, and nothing of it is left
    behind.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        # A worker that is told to end must not wait for it.
        self._thread = threading.Thread(target=self._run, name="ftstan client", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop and wait for its result, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            loop = runner.get_loop()
            loop.run_forever()
