"""A pair of members on one datastore and one external ``nats-server``; who ends is replaced by a fresh standby."""

from __future__ import annotations

import datetime as dt
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from benchmarks.ftload import CLUSTER
from benchmarks.processes import free_port
from ftstan.nats.embedded import binary_path

if TYPE_CHECKING:
    import signal
    from pathlib import Path
    from types import TracebackType

ACTIVE = "Server is active"
READY = "Streaming Server is ready"
STANDING_BY = "Starting in standby mode"
HANDING_OVER = "ft: switchover: handing over"

_STAMP = re.compile(r"\[\d+\] (\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6}) \[...\] (.*)")
_PATIENCE_S = 120.0
_POLL_S = 0.005


@dataclass(slots=True)
class Member:
    """One process and its log. ``name`` is also that of the log file."""

    process: subprocess.Popen[bytes]
    log: Path

    def lines(self) -> list[tuple[float, str]]:
        """Log lines with their Unix time."""
        found = (_STAMP.fullmatch(line) for line in self.log.read_text(errors="replace").splitlines())
        return [(dt.datetime.strptime(m[1], "%Y/%m/%d %H:%M:%S.%f").astimezone().timestamp(), m[2]) for m in found if m]

    def time_of(self, words: str) -> float | None:
        """When the first line with ``words`` was written, Unix time."""
        return next((at for at, line in self.lines() if words in line), None)

    def wait_for(self, words: str) -> None:
        """Wait for a log line. Raises ``RuntimeError`` with the log if it does not come."""
        end = time.monotonic() + _PATIENCE_S
        while words not in self.log.read_text(errors="replace"):
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"no {words!r} in\n{self.log.read_text(errors='replace')}")
            time.sleep(_POLL_S)

    def cpu_seconds(self) -> float:
        """Processor time of all its threads so far."""
        # The kernel's clock of that process: threads that have ended count, too (clock_getcpuclockid(3)).
        return time.clock_gettime((~self.process.pid << 3) | 2)


class Pair:
    """``active`` and ``standby``; everything is ended on leaving the block."""

    def __init__(self, directory: Path, store: Path, words: list[str]) -> None:
        self._directory, self._store, self._words = directory, store, words
        self._port = free_port()
        self._members: list[Member] = []
        self._nats: subprocess.Popen[bytes] | None = None
        self._asked: list[subprocess.Popen[bytes]] = []
        self.active: Member
        self.standby: Member

    @property
    def url(self) -> str:
        """Of the nats-server."""
        return f"nats://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        with (self._directory / "nats.log").open("wb") as log:
            self._nats = subprocess.Popen([binary_path(), "-a", "127.0.0.1", "-p", str(self._port)], stderr=log)
        try:
            self.active = self._start()
            self.active.wait_for(READY)
            self.standby = self._start()
            self.standby.wait_for(STANDING_BY)
        except BaseException:
            self._end()
            raise
        return self

    def end_active(self, number: signal.Signals) -> Member:
        """Signal the active; the standby is the active from here on. Returns the one that was signalled."""
        former = self.active
        former.process.send_signal(number)
        self.active = self.standby
        return former

    def switch_over(self) -> Member:
        """Ask the active to hand over, without waiting for it; the standby is the active from here on."""
        words = [sys.executable, "-m", "ftstan.cli.ctl", "ft", "switchover", "--server", self.url, "--cluster", CLUSTER]
        words += ["--group", "bench", "--dir", str(self._store)]
        self._asked.append(subprocess.Popen(words, stdout=subprocess.DEVNULL))
        former, self.active = self.active, self.standby
        return former

    def replace(self) -> None:
        """Start a member in the place of the one that has ended."""
        self.standby = self._start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _start(self) -> Member:
        log = self._directory / f"member-{len(self._members)}.log"
        argv = [sys.executable, "-m", "ftstan.cli.server", "-cid", CLUSTER, "-ns", self.url, "-ft_group", "bench"]
        argv += ["-store", "file", "-dir", str(self._store), "-mm", "0", "-mb", "0", "-mc", "0", *self._words]
        with log.open("wb") as out:
            member = Member(subprocess.Popen(argv, stdout=out, stderr=out), log)
        self._members.append(member)
        return member

    def _end(self) -> None:
        processes = [*self._asked, *(member.process for member in self._members)]
        for process in [*processes, *([self._nats] if self._nats is not None else [])]:
            process.kill()
            process.wait()
