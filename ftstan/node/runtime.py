"""What a node lives in: a process of its own, or a program that goes on when the node has ended.

A node must be able to end at once, whatever hangs: nothing more may be sent or written by it. The
command ends its process; inside somebody's program ``ftstan.embed`` shuts the node's link and
storage instead.
"""

from __future__ import annotations

import contextlib
import resource
from typing import TYPE_CHECKING, NoReturn, Protocol

from ftstan.base.disk import TimedDisk
from ftstan.node.process_exit import end_process, end_quietly, pause_and_end
from ftstan.node.starts import SETTLED_S, Starts

if TYPE_CHECKING:
    from ftstan.base.disk import Disk


class Host(Protocol):
    """What a node lives in: a process of its own, or a program that goes on when the node has
    ended.
    """

    owns_process: bool
    """Whether signals, the limit of open files and the service manager are the node's business."""

    def disk(self) -> Disk:
        """The storage calls of this node."""
        ...

    def started(self) -> None:
        """The node serves or stands by: the start succeeded."""
        ...

    def over(self, status: int) -> None:
        """The node has ended in order, and nothing of it is left to do."""
        ...

    def end(self, why: str, status: int) -> NoReturn:
        """End the node at once: nothing more is sent or written. Any thread may call it."""
        ...

    def pause_and_end(self, why: str, status: int, seconds: int) -> NoReturn:
        """Log one line and give everything up; the process exits after ``seconds``."""
        ...


class ProcessHost:
    """The command: the end of its node is the end of the process. Implements ``Host``.

    ``is_command``: nothing of this process is wanted behind that, not even Python's way out.
    """

    owns_process = True

    def __init__(self, starts: Starts | None = None, *, is_command: bool = False) -> None:
        self._starts = starts or Starts()
        self._is_command = is_command

    def disk(self) -> Disk:
        """Nothing has to be shut: the end of the process ends every thread."""
        return TimedDisk()

    def started(self) -> None:
        """Nobody waits for it: the log and the service manager have been told.

        The start is a success if it lasts.
        """
        import asyncio  # noqa: PLC0415  # late: the NATS server is started before it is loaded

        asyncio.get_running_loop().call_later(SETTLED_S, self._starts.forget)

    def over(self, status: int) -> None:
        """Out, at once: taking the interpreter apart would only keep the next start waiting."""
        if self._is_command:
            self._starts.ended(status)
            end_quietly(status)

    def end(self, why: str, status: int) -> NoReturn:
        """Log one line and exit at once."""
        self._starts.ended(status)
        end_process(why, status)

    def pause_and_end(self, why: str, status: int, seconds: int) -> NoReturn:
        """One line; the process only sleeps from then on, and is gone after ``seconds``."""
        self._starts.ended(status)
        pause_and_end(why, status, seconds)


def raise_file_limit() -> None:
    """As many files as this user may open: every channel holds its directory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
