"""Every task of a server is started here, so that none can end unseen, and ended here for certain.

A task that nobody waits for and that the server cannot do without (``spawn``) takes the server
along when it fails: a standby, or the next start, does better than a server half of which is gone.
What somebody from outside has asked for (``aside``) is worth one line. Who waits for a task
(``waited``) gets its error. Memory that is used up is never just an error of one task.

A cancellation can get lost on its way: ``asyncio.wait_for`` (Python 3.11) and libraries that use it
may return normally although they were cancelled. Hence ``end``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import traceback
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ftstan.base import log
from ftstan.base.errors import EndedError, FtstanError, StoppedError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

#: Nobody else need hold them: the loop alone would let them go in the middle of their work.
_running: set[asyncio.Task[Any]] = set()


def _only_told(why: str) -> None:
    log.stream.error(why, backs_off=True)


#: How the server ends whose tasks are started from here on; inherited by every task and callback.
_fatal: ContextVar[Callable[[str], None]] = ContextVar("fatal", default=_only_told)


def end_server_with(fatal: Callable[[str], None]) -> None:
    """Let the failure of a task that is started in this context, or below it, be the end of a
    server.

    ``fatal(why)`` ends it at once with status 75.
    """
    _fatal.set(fatal)


def spawn(
    work: Coroutine[Any, Any, None],
    name: str,
    on_error: Callable[[FtstanError], None] | None = None,
) -> asyncio.Task[None]:
    """Start what the server cannot do without.

    ``on_error`` may take errors of ours; all others end the server.
    """
    task = waited(work, name)
    task.add_done_callback(partial(_ended, _fatal.get(), on_error))
    return task


def aside(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Start what somebody has asked for.

    If it fails the log has a line, and the server goes on as it was.
    """
    task = waited(work, name)
    task.add_done_callback(partial(_told, _fatal.get()))
    return task


def waited(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Start what somebody waits for, who gets its error."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return task


def _ended(
    fatal: Callable[[str], None],
    on_error: Callable[[FtstanError], None] | None,
    task: asyncio.Task[None],
) -> None:
    error = None if task.cancelled() else task.exception()
    if error is None or isinstance(error, StoppedError):
        return
    if on_error is not None and isinstance(error, FtstanError):
        on_error(error)
        return
    with contextlib.suppress(EndedError):
        fatal(f"the task {task.get_name()} ended: {cause(error)}")


def _told(fatal: Callable[[str], None], task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if isinstance(error, MemoryError):
        with contextlib.suppress(EndedError):
            fatal(cause(error))
    elif error is not None and not isinstance(error, StoppedError):
        log.stream.error(
            f"Internal error: {task.get_name()}: {cause(error)}; please report this line",
            backs_off=True,
        )


def loop_errors(
    fatal: Callable[[str], None],
) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """An exception handler for a loop: one line for what went wrong in a callback, no traceback."""

    def handle(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, MemoryError):
            with contextlib.suppress(EndedError):
                fatal(cause(error))
        elif not isinstance(error, StoppedError):
            what = cause(error) if error is not None else "no exception"
            log.stream.error(
                f"Internal error: {context.get('message', 'in a callback')}: {what}", backs_off=True
            )

    return handle


def cause(error: BaseException) -> str:
    """One line about an error: what it is, and for one that is not ours where in the program it
    came from.
    """
    if isinstance(error, FtstanError):
        return error.text
    if isinstance(error, MemoryError):
        # Nothing more: every other word needs memory.
        return "out of memory"
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


async def end(task: asyncio.Task[T], again_s: float) -> None:
    """Cancel ``task`` until it is done, asking again every ``again_s`` seconds.

    Its own error, if any, is raised.

    ``again_s`` must exceed the time that the task may need to clean up.
    """
    while not task.done():
        task.cancel()
        # Not "await task": that would turn a cancellation of ours into the task's, and the other
        # way round.
        await asyncio.wait([task], timeout=again_s)
    if not task.cancelled():
        task.result()
