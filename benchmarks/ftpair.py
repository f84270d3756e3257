"""A pair of members on one datastore and one external ``nats-server``.

Who ends is replaced by a fresh standby.
"""

from __future__ import annotations

import datetime as dt
import re
import sys
import time
from typing import TYPE_CHECKING, Self

from benchmarks.load import GROUP_CLUSTER
from ftstan.drill.ports import free_ports
from ftstan.drill.processes import Child, nats_words

if TYPE_CHECKING:
    import signal
    from pathlib import Path
    from types import TracebackType

ACTIVE = "Server is active"
READY = "Streaming Server is ready"
STANDING_BY = "Starting in standby mode"
HANDING_OVER = "ft: switchover: handing over"

_STAMP = re.compile(r"\[\d+\] (\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6}) \[...\] (.*)")


class Member(Child):
    """One process and its log."""

    def lines(self) -> list[tuple[float, str]]:
        """Log lines with their Unix time."""
        found = (_STAMP.fullmatch(line) for line in self.text().splitlines())
        return [
            (dt.datetime.strptime(m[1], "%Y/%m/%d %H:%M:%S.%f").astimezone().timestamp(), m[2])
            for m in found
            if m
        ]

    def time_of(self, words: str) -> float | None:
        """When the first line with ``words`` was written, Unix time."""
        return next((at for at, line in self.lines() if words in line), None)

    def cpu_seconds(self) -> float:
        """Processor time of all its threads so far."""
        # The kernel's clock of that process: threads that have ended count, too
        # (clock_getcpuclockid(3)).
        return time.clock_gettime((~self.pid << 3) | 2)


class Pair:
    """``active`` and ``standby``; everything is ended on leaving the block."""

    def __init__(self, directory: Path, store: list[str], words: list[str]) -> None:
        """``directory``: for logs; ``store``: words of the members that name their datastore."""
        self._directory = directory
        self._store = store
        self._words = words
        (self._port,) = free_ports(1, 16_000)
        self._members: list[Member] = []
        self._nats: Child | None = None
        self._asked: list[Child] = []
        self.active: Member
        self.standby: Member

    @property
    def url(self) -> str:
        """Of the nats-server."""
        return f"nats://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._nats = Child(nats_words(self._port), self._directory / "nats.log")
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
        """Signal the active; the standby is the active from here on.

        Returns the one that was signalled.
        """
        former = self.active
        former.signal(number)
        self.active = self.standby
        return former

    def switch_over(self) -> Member:
        """Ask the active of a pair on a directory to hand over, without waiting for it.

        The standby is the active from here on.
        """
        words = [
            sys.executable,
            "-m",
            "ftstan.cli.ctl",
            "ft",
            "switchover",
            "--server",
            self.url,
            "--cluster",
            GROUP_CLUSTER,
        ]
        words += ["--group", "bench", "--dir", self._store[self._store.index("-dir") + 1]]
        self._asked.append(Child(words, self._directory / "asked.log"))
        former = self.active
        self.active = self.standby
        return former

    def replace(self) -> None:
        """Start a member in the place of the one that has ended."""
        self.standby = self._start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _start(self) -> Member:
        log = self._directory / f"member-{len(self._members)}.log"
        argv = [
            sys.executable,
            "-m",
            "ftstan.cli.server",
            "-cid",
            GROUP_CLUSTER,
            "-ns",
            self.url,
            "-ft_group",
            "bench",
        ]
        argv += [*self._store, "-mm", "0", "-mb", "0", "-mc", "0", *self._words]
        member = Member(argv, log)
        self._members.append(member)
        return member

    def _end(self) -> None:
        for child in [*self._asked, *self._members, *([self._nats] if self._nats else [])]:
            child.kill()
