"""Server processes for measurements, and what they cost."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

_TICKS = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """A TCP port that is free now, from below the range that outgoing connections take theirs from."""
    while True:
        port = random.randrange(16_000, 20_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def cpu_seconds(pid: int) -> float:
    """User and system time of one process so far."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def precise_cpu_seconds(pid: int) -> float:
    """The same of the threads that it has now, in steps of nanoseconds where the kernel counts them."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as f:
            total += int(f.read().split()[0])
    return total / 1e9


class Server:
    """A process with a port; ended on leaving the block."""

    def __init__(self, argv: list[str], port: int, environment: dict[str, str] | None = None) -> None:
        self.port = port
        self._argv = argv
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # closed when the block is left

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://127.0.0.1:{self.port}"

    def children(self) -> list[int]:
        """Processes that it started."""
        with open(f"/proc/{self.pid}/task/{self.pid}/children", encoding="ascii") as f:
            return [int(p) for p in f.read().split()]

    def __enter__(self) -> Self:
        # To a file: nobody reads while a generator works, and a pipe that is full would stop the server.
        self._process = subprocess.Popen(self._argv, stderr=self._output, env=self._environment)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and b"[INF] Server is ready" not in self._log():
            if self._process.poll() is not None:
                raise RuntimeError(self._log().decode())
            time.sleep(0.01)
        return self

    def _log(self) -> bytes:
        """All that it has written so far."""
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0)

    def kill(self) -> None:
        """End it with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def wait_for(self, line: bytes) -> bytes:
        """Wait until the log shows ``line``; returns the log so far."""
        deadline = time.monotonic() + 60
        while line not in (log := self._log()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return log

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        if error is not None:
            print(self._log()[-2000:].decode("utf-8", "replace"), file=sys.stderr)
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()


def resident_mb(pid: int) -> float:
    """Memory of one process that is in use now."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS:")) / 1024


def peak_mb(pid: int) -> float:
    """The most memory of one process that was ever in use at one time."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM:")) / 1024


def ftstan(store: str, directory: str, *more: str, tree: str = "") -> Server:
    """A standalone server with an embedded nats-server; limits lifted. ``more``: further words of its command line.

    ``tree``: a built source tree that it is to run instead of this one.
    """
    port = free_port()
    argv = [sys.executable, "-m", "ftstan.cli.server", "-p", str(port), "-a", "127.0.0.1", "-store", store]
    argv += ["-mm", "0", "-mb", "0", "-mc", "0", "-msu", "0", *more]
    if store == "file":
        argv += ["-dir", directory]
    environment = {**os.environ, "PYTHONPATH": tree, "PYTHONSAFEPATH": "1"} if tree else None
    return Server(argv, port, environment)
