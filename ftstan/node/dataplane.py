"""The data plane: one plain thread that serves, tries the lock, and recovers.

Everything that may block on storage.

Other threads talk to it by posting closures; each is answered through a future, and whoever waits
has a deadline. An error that ends serving (fenced, storage gone) is given to ``on_end``, which does
not return into the loop.

A ``FencedError`` ends this thread wherever it comes from: a batch, the work of once a second, or a
closure. Nothing is read from the socket, stored or sent after it. The one exception is an attempt
to *become* the owner (``may_lose``): its failure is an answer, because there is nothing yet that
could be served. Nor is there anything left to end when this server has given the store back itself
(``ReleasedError``).
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from ftstan.base.errors import FencedError, FtstanError, ReleasedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.cluster.follower import Follower
    from ftstan.node.awake import Awake
    from ftstan.node.handover_buffer import HandoverBuffer
    from ftstan.node.pipeline import Serving
    from ftstan.node.reserved_link import ReservedLink

T = TypeVar("T")

_IDLE_S = 3600.0


class Waiter:
    """What the thread sleeps in: until something was posted, bytes have arrived, or it is time."""

    def __init__(self) -> None:
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._polled = -1
        """The link's descriptor that is waited for, too; -1: none."""

    def wake(self) -> None:
        """Wake the thread: a call was posted. Any thread may call it."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self._wake, 1)

    def wait(self, fd: int, timeout: float) -> tuple[bool, bool]:
        """Sleep ``timeout`` seconds at most.

        Returns whether something was posted, and whether ``fd`` can be read.

        ``fd`` is -1 where there is nothing to read.
        """
        if fd != self._polled:
            self._listen(fd)
        posted = readable = False
        for ready, _ in self._poll.poll(-(-timeout * 1000 // 1)):
            if ready == fd:
                readable = True
            else:
                posted = True
        if posted:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
        return posted, readable

    def close(self) -> None:
        """Close the descriptor that wakes the thread. Nobody may call ``wake`` afterwards."""
        os.close(self._wake)

    def _listen(self, fd: int) -> None:
        if self._polled >= 0:
            self._poll.unregister(self._polled)
        if fd >= 0:
            self._poll.register(fd, select.POLLIN)
        self._polled = fd


class DataPlane:
    """The thread and its inbox.

    ``on_end(error)`` is called on the thread when serving can not go on.
    """

    def __init__(
        self,
        on_end: Callable[[BaseException], None],
        awake: Awake | None = None,
        waiter: Waiter | None = None,
    ) -> None:
        self.serving: Serving | None = None
        self.handover_buffer: HandoverBuffer | None = None
        """What a member keeps that is about to serve; it is read while nothing is served."""
        self.follower: Follower | None = None
        """How a node of a cluster follows its leader, while it does."""
        self.reserved: ReservedLink | None = None
        """What keeps the link of a standby; it is read while nothing else is there."""
        self.awake = awake
        """What keeps this thread's processor awake, and that of the NATS server."""
        self._on_end = on_end
        self._inbox: deque[Callable[[], None]] = deque()
        self._waiter = waiter or Waiter()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="data-plane", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def call(self, function: Callable[[], T], *, may_lose: bool = False) -> Future[T]:
        """Run ``function`` on the data plane's thread.

        Its result or ``Exception`` is in the future.

        A ``FencedError`` also ends the thread, unless it ``may_lose``: only for what does not own
        the store yet.
        """
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                # Nobody waits any more: whoever asked had a deadline.
                return
            try:
                result = function()
            except FencedError as error:
                future.set_exception(error)
                if not may_lose and not isinstance(error, ReleasedError):
                    raise
            except MemoryError as error:
                future.set_exception(error)
                raise
            except Exception as error:  # noqa: BLE001  # it belongs to whoever asked
                future.set_exception(error)
            else:
                future.set_result(result)

        self._inbox.append(run)
        self._waiter.wake()
        return future

    def stop(self, timeout: float | None) -> bool:
        """End the thread after what was posted; returns whether it ended in time.

        ``None``: wait for ever.
        """
        self.call(self._end)
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Release everything. Call it after ``stop`` returned true; nobody may call afterwards."""
        self._waiter.close()
        if self.awake is not None:
            self.awake.close()

    def _end(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except BaseException as error:  # noqa: BLE001  # whatever it is, this node can not serve any more
            self._on_end(error)

    def _turn(self) -> None:
        station = self._station
        link_fd = -1
        readable = False
        timeout = _IDLE_S
        if station is not None:
            link_fd = station.fileno()
            readable = station.pending
            timeout = 0.0 if readable else station.timeout()
        posted, arrived = self._waiter.wait(link_fd, timeout)
        if posted:
            self._run_calls()
        if station is not None and station is self._station:
            station.turn(readable=readable or arrived)

    @property
    def _station(self) -> Serving | HandoverBuffer | Follower | ReservedLink | None:
        return self.serving or self.handover_buffer or self.follower or self.reserved

    def _run_calls(self) -> None:
        while self._inbox:
            self._inbox.popleft()()


def shown(error: BaseException) -> str:
    """One line for the log about why serving ended."""
    if isinstance(error, MemoryError):
        return "out of memory"
    return error.text if isinstance(error, FtstanError) else f"{type(error).__name__}: {error}"
