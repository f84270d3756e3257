"""Ending a task for certain: a cancellation can get lost on its way.

``asyncio.wait_for`` (Python 3.11) and libraries that use it may return normally although they were cancelled.
"""

from __future__ import annotations

import asyncio


async def end(task: asyncio.Task[None], again_s: float) -> None:
    """Cancel ``task`` until it is done, asking again every ``again_s`` seconds; its own error, if any, is raised.

    ``again_s`` must exceed the time that the task may need to clean up.
    """
    while not task.done():
        task.cancel()
        # Not "await task": that would turn a cancellation of ours into the task's, and the other way round.
        await asyncio.wait([task], timeout=again_s)
    if not task.cancelled():
        task.result()
