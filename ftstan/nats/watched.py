"""A process that was started without an event loop, as one sees it: its end, and what it prints.

``asyncio.subprocess`` watches only what it has started itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

    from ftstan.nats.heldoutput import HeldOutput


class Watched:
    """One process. Belongs to the running event loop."""

    def __init__(self, process: subprocess.Popen[bytes], output: HeldOutput) -> None:
        self._process = process
        self._output = output
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        # What asyncio does, too: a descriptor to wait for (pidfd) is not had on every kernel.
        threading.Thread(target=self._reap, name=f"end of {process.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; ``None`` while it runs."""
        return self._process.poll()

    async def wait(self) -> int:
        """Wait for its end; returns the exit status."""
        await self._over.wait()
        assert self._process.returncode is not None
        return self._process.returncode

    async def output(self) -> asyncio.StreamReader:
        """What it prints, and has printed. To be asked for once."""
        reader = asyncio.StreamReader()
        reader.feed_data(self._output.read)
        await self._loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._output.take()
        )
        return reader

    def send_signal(self, how: signal.Signals) -> None:
        """Send a signal; nothing happens if it has ended."""
        self._process.send_signal(how)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def _reap(self) -> None:
        self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is over, and nobody waits
            self._loop.call_soon_threadsafe(self._over.set)
