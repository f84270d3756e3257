"""The thread that writes the log, so that a full disk, a hanging file system or a lost syslog
stalls nobody.

Whoever logs puts a line into a bounded queue, and for a line that matters waits a moment until the
sink has it: so a line is out before its writer goes on, as long as the log works. A log that does
not work costs each such line nothing from the second on. Lines that find the queue full, or that
the sink refuses, are lost; how many is told in the log as soon as it takes lines again.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Protocol

from ftstan.base.log.levels import WARNING, Level

if TYPE_CHECKING:
    from collections.abc import Callable

#: Lines that may wait; with -SV a busy server writes as many in a tenth of a second.
CAPACITY = 10_000
#: Seconds that a line of some weight waits for the sink, or a trace line for room.
PATIENCE_S = 0.2


class Sink(Protocol):
    """Where finished lines go. ``write`` may block and raises ``OSError`` when a line is lost."""

    def write(self, level: Level, text: str) -> None:
        """Write one line, given without its end."""
        ...

    def close(self) -> None:
        """No line follows."""
        ...


class Direct:
    """Writes in the caller's thread, as ``Writer`` does in its own: for a program that has
    configured nothing.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._lock = threading.Lock()

    def put(self, level: Level, text: str, *, wait: bool) -> None:
        """Write the line; one that the sink refuses is lost."""
        del wait
        with self._lock:
            try:
                self.sink.write(level, text)
            except OSError:
                return

    def run(self, job: Callable[[], None]) -> None:
        """Do something with the sink between two lines."""
        with self._lock:
            job()

    def flush(self, patience: float) -> bool:
        """Nothing waits here."""
        del patience
        return True

    def close(self, patience: float) -> None:
        """No line follows."""
        del patience
        self.sink.close()


class Writer:
    """The queue in front of a sink, and its thread.

    ``render`` makes a line of a text of its own.
    """

    def __init__(
        self, sink: Sink, render: Callable[[Level, str], str], *, capacity: int = CAPACITY
    ) -> None:
        self.sink = sink
        self._render = render
        self._capacity = capacity
        self._changed = threading.Condition()
        self._queue: deque[tuple[Level, str] | Callable[[], None]] = deque()
        self._put = self._done = 0
        """How many were put into the queue, and how many of them are done."""
        self._stuck = False
        self._closing = False
        self._lost = 0
        self._reason = ""
        self._thread = threading.Thread(target=self._work, name="log", daemon=True)
        self._thread.start()

    def put(self, level: Level, text: str, *, wait: bool) -> None:
        """Queue a line; ``wait``: until it is written, at most a moment.

        Lost if the queue stays full.
        """
        with self._changed:
            if len(self._queue) >= self._capacity and not self._wait(
                lambda: len(self._queue) < self._capacity
            ):
                self._lost += 1
                self._reason = "the log did not take them in time"
                return
            self._append((level, text))
            if wait:
                ticket = self._put
                self._wait(lambda: self._done >= ticket)

    def run(self, job: Callable[[], None]) -> None:
        """Do something with the sink between two lines; ``job`` raises nothing.

        Waits like a line that matters.
        """
        with self._changed:
            self._append(job)
            ticket = self._put
            self._wait(lambda: self._done >= ticket)

    def flush(self, patience: float) -> bool:
        """Wait until everything put so far is done, at most ``patience`` seconds.

        Returns whether it is.
        """
        with self._changed:
            ticket = self._put
            return self._changed.wait_for(lambda: self._done >= ticket, patience)

    def close(self, patience: float) -> None:
        """Write what waits and end the thread, which closes the sink.

        One that hangs is left alone.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(patience)

    def _append(self, item: tuple[Level, str] | Callable[[], None]) -> None:
        self._queue.append(item)
        self._put += 1
        self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool]) -> bool:
        """Wait for a moment, once: whoever comes while the sink is known to hang does not wait."""
        if condition():
            return True
        if self._stuck:
            return False
        self._stuck = not self._changed.wait_for(condition, PATIENCE_S)
        return not self._stuck

    # ---- its thread
    # ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    break
                item = self._queue.popleft()
                lost = self._lost
                reason = self._reason
                self._lost = 0
            failed = self._handle(item, lost, reason)
            with self._changed:
                if failed:
                    self._lost += lost + 1
                    self._reason = failed
                self._done += 1
                if not self._queue:
                    self._stuck = False
                self._changed.notify_all()
        self.sink.close()

    def _handle(self, item: tuple[Level, str] | Callable[[], None], lost: int, reason: str) -> str:
        """Write a line, behind a word about those lost before it, or do a job.

        Returns why the sink refused.
        """
        if not isinstance(item, tuple):
            item()
            return ""
        try:
            if lost:
                lines = "1 log line is lost" if lost == 1 else f"{lost} log lines are lost"
                self.sink.write(WARNING, self._render(WARNING, f"{lines}: {reason}"))
            self.sink.write(*item)
        except OSError as error:
            return error.strerror or str(error)
        return ""
