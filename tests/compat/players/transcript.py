"""What happened in a session that is being played, line by line, and waiting for it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tests.compat.players.lines import HEARTBEAT, Directory, Line, Names

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.compat.players.natswire import Operation

_SILENT = {"INFO", "PING", "PONG", "+OK"}


class Transcript:
    """``lines`` in the order in which they passed.

    ``arrived``: (connection, subject) -> what came but heartbeats.
    """

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.arrived: dict[tuple[str, str], list[Line]] = defaultdict(list)
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time()
        self._directory = Directory()
        self._names = Names()
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def now(self) -> float:
        """Seconds since the session began."""
        return self._loop.time() - self._start

    def event(self, ident: str, text: str) -> None:
        """Something that was done, or noticed."""
        self._add(Line(0, 0, "runner", "EVENT", id=ident, text=text))

    def log(self, conn: str, text: str) -> None:
        """A line that a program wrote."""
        self._add(Line(0, 0, conn, "LOG", text=text))

    def passed(
        self, conn: str, direction: str, operation: Operation, ident: str = ""
    ) -> Line | None:
        """An operation; ``ident``: the id of what a client sends.

        What keeps NATS itself going is left out.
        """
        if operation.name in _SILENT:
            return None
        line = Line(
            0,
            0,
            conn,
            operation.name,
            direction,
            ident,
            operation.subject,
            operation.reply,
            operation.sid,
            operation.text,
            operation.hdr.decode("latin-1"),
            operation.payload,
            options=operation.options,
        )
        self._directory.read(line)
        if line.delivered:
            line.id = self._names.of(line.subject)
            if line.kind != HEARTBEAT:
                self.arrived[conn, line.subject].append(line)
        self._add(line)
        return line

    def _add(self, line: Line) -> None:
        line.n = len(self.lines)
        line.t = self.now
        self.lines.append(line)
        self.wake()

    def wake(self) -> None:
        """Let everybody who waits look again."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, done: Callable[[], Any], seconds: float) -> bool:
        """Wait for something that shows in the session; tells whether it came in time."""
        end = self._loop.time() + seconds
        while not done():
            left = end - self._loop.time()
            if left <= 0:
                return False
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiting.add(future)
            try:
                await asyncio.wait_for(future, left)
            except TimeoutError:
                pass
            finally:
                self._waiting.discard(future)
        return True
