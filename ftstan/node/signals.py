"""What signals do to a running node: INT, TERM and QUIT stop it, USR1 reopens the log, HUP reloads,
USR2 drains.

A node that drains takes no new clients. In a group it hands over to a standby that is ready, as by
command, and its NATS server stays until its clients have moved to others; without a standby, or
alone, it gives its clients a moment to end by themselves. Then it stops as by SIGINT, with exit
status 0.

Source: ``docs/signals.md``.
"""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

from ftstan.base import log
from ftstan.base.errors import FtstanError, RefusedError
from ftstan.nats import tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ftstan.node.context import Context

#: Clients that are told by nats-server that it leaves have as long before it closes their
#: connections.
GRACE_S = 10.0
_LOOK_EVERY_S = 0.1

EXIT_TERM = 143


class Handlers:
    """Handles signals on the control thread. ``on_hangup``: what SIGHUP does."""

    def __init__(self, node: Context, on_hangup: Callable[[], Coroutine[None, None, None]]) -> None:
        self._node = node
        self._on_hangup = on_hangup
        self.draining = False
        """SIGUSR2 came: the end is one that was wanted."""
        self.handed_over = False
        """A drain found a successor: clients need nothing of this node any more but its NATS
        server.
        """
        self._hurry = asyncio.Event()

    def install(self) -> None:
        """Handle the signals of this process."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGUSR1, log.reopen)
        loop.add_signal_handler(signal.SIGHUP, self._spawn, self._on_hangup)
        loop.add_signal_handler(signal.SIGUSR2, self._spawn, self.drain)

    def _stop(self, number: int) -> None:
        self._hurry.set()
        self._node.request_stop(number)

    def _spawn(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        # The server goes on as it was: whatever a signal asked for is not worth its end.
        tasks.aside(work(), "signal")

    def status(self, otherwise: int) -> int:
        """The exit status of a clean stop: that of the signal that asked for it."""
        if self._node.stop_signal == signal.SIGTERM:
            return EXIT_TERM
        return 0 if self.draining else otherwise

    def begin_drain(self) -> None:
        """Drain in the background, as SIGUSR2 does.

        Raises ``RefusedError`` if this node leaves already.
        """
        if self.draining or self._node.stopping.is_set():
            raise RefusedError("this server leaves already", hint="see its log")
        self._spawn(self.drain)

    async def drain(self) -> None:
        """Leave for good: nobody new, a hand-over where there is a standby, then a clean stop with
        status 0.
        """
        node = self._node
        if self.draining or node.stopping.is_set():
            return
        self.draining = True
        log.stream.info("Entering lame duck mode, no new clients are taken")
        if node.child is not None:
            node.child.lame_duck()
        if node.group is not None and node.is_ft_active():
            try:
                await node.group.switchover()
            except FtstanError as error:
                log.stream.warning(f"lame duck mode: nobody to hand over to: {error}")
            else:
                self.handed_over = True
                return
        await self._let_clients_go()
        node.request_stop(0)

    async def _let_clients_go(self) -> None:
        """Wait until no client is registered, at most for the grace period.

        Whoever comes is refused.
        """
        node = self._node
        serving = node.plane.serving
        end = node.clock.mono() + GRACE_S
        while serving is not None and not node.stopping.is_set() and node.clock.mono() < end:
            if not await node.call(partial(serving.turn_away)):
                return
            await asyncio.sleep(_LOOK_EVERY_S)

    async def wait_for_child(self) -> None:
        """After a hand-over, let the NATS server tell its clients to go elsewhere.

        A signal to stop ends that.
        """
        child = self._node.child
        if not self.handed_over or child is None:
            return
        waits: list[asyncio.Task[Any]] = [
            tasks.waited(child.drained(), "drained"),
            tasks.waited(self._hurry.wait(), "hurry"),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
