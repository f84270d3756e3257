"""Server processes for measurements, and what they cost."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from typing import TYPE_CHECKING, Self

from ftstan.drill.ports import LOOPBACK, free_ports
from ftstan.drill.processes import Child

if TYPE_CHECKING:
    from types import TracebackType

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of one process so far."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def precise_cpu_seconds(pid: int) -> float:
    """The same of the threads that it has now, in steps of nanoseconds where the kernel counts
    them.
    """
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as f:
            total += int(f.read().split()[0])
    return total / 1e9


class Server:
    """A process with a port; ended on leaving the block."""

    def __init__(
        self, argv: list[str], port: int, environment: dict[str, str] | None = None
    ) -> None:
        self.port = port
        self._argv = argv
        self._environment = environment
        self._stack = contextlib.ExitStack()
        self._child: Child | None = None

    @property
    def pid(self) -> int:
        """The process."""
        assert self._child is not None
        return self._child.pid

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://{LOOPBACK}:{self.port}"

    def __enter__(self) -> Self:
        # To a file: nobody reads while a generator works, and a pipe that is full would stop it.
        log = self._stack.enter_context(tempfile.NamedTemporaryFile(prefix="ftstan-bench-"))
        self._child = Child(self._argv, log.name, self._environment)
        self._stack.callback(self._child.stop, 10, signal.SIGINT)
        try:
            self._child.wait_for("[INF] Server is ready", within=20)
        except BaseException:
            self._stack.close()
            raise
        return self

    def kill(self) -> None:
        """End it with SIGKILL."""
        assert self._child is not None
        self._child.kill()

    def wait_for(self, line: str) -> str:
        """Wait until the log shows ``line``; returns the log so far."""
        assert self._child is not None
        self._child.wait_for(line)
        return self._child.text()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and self._child is not None:
            print(self._child.text()[-2000:], file=sys.stderr)
        self._stack.close()


def resident_mb(pid: int) -> float:
    """Memory of one process that is in use now."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS:")) / 1024


def peak_mb(pid: int) -> float:
    """The most memory of one process that was ever in use at one time."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM:")) / 1024


def ftstan(store: str, directory: str, *more: str, tree: str = "") -> Server:
    """A standalone server with an embedded nats-server; limits lifted.

    ``more``: further words of its command line.

    ``tree``: a built source tree that it is to run instead of this one.
    """
    (port,) = free_ports(1, 16_000)
    argv = [
        sys.executable,
        "-m",
        "ftstan.cli.server",
        "-p",
        str(port),
        "-a",
        "127.0.0.1",
        "-store",
        store,
    ]
    argv += ["-mm", "0", "-mb", "0", "-mc", "0", "-msu", "0", *more]
    if store == "file":
        argv += ["-dir", directory]
    environment = {**os.environ, "PYTHONPATH": tree, "PYTHONSAFEPATH": "1"} if tree else None
    return Server(argv, port, environment)
