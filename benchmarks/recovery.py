"""What a start costs: recovery time and memory for messages and channels, after a clean stop and a
kill.
"""

from __future__ import annotations

import datetime as dt
import re
import statistics
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

from benchmarks.processes import Server, ftstan

if TYPE_CHECKING:
    import argparse

_STAMP = re.compile(r"(\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6})")


def run(options: argparse.Namespace) -> None:
    """Print one line per store and way of stopping."""
    print(
        f"\n{'recovery, 128 byte messages':44}{'median s':>10}"
        f"{'process start s':>17}{'anonymous MiB':>14}"
    )
    for count in options.recover:
        for clean in (True, False):
            _measure(
                f"{count:,} messages after {_way(clean)}",
                options.rounds,
                "--messages",
                str(count),
                clean=clean,
            )
    for clean in (True, False):
        _measure(
            f"{options.channels:,} channels after {_way(clean)}",
            options.rounds,
            "--channels",
            str(options.channels),
            clean=clean,
        )


def _way(clean: bool) -> str:
    return "a clean stop" if clean else "kill -9"


def _measure(name: str, rounds: int, *fill: str, clean: bool) -> None:
    """Fill a store, end it, and start a server on it ``rounds`` times, each start after the same
    kind of end.
    """
    seconds = []
    starts = []
    memory = 0.0
    with tempfile.TemporaryDirectory(prefix="ftstan-bench-") as directory:
        subprocess.run([sys.executable, "-m", "benchmarks.fill", directory, *fill], check=True)
        for i in range(rounds + 1):
            spawned = dt.datetime.now().astimezone()
            with ftstan("file", directory) as server:
                text = server.wait_for("Streaming Server is ready")
                if i:  # the first start follows the writer's end, not a server's
                    recovering, ready = (
                        stamp(text, w)
                        for w in ("Recovering the state", "Streaming Server is ready")
                    )
                    seconds.append((ready - recovering).total_seconds())
                    starts.append((recovering - spawned).total_seconds())
                    memory = max(memory, _anonymous_mb(server))
                if not clean:
                    server.kill()
    print(
        f"{name:44}{statistics.median(seconds):10.3f}{statistics.median(starts):17.2f}{memory:14.0f}",
        flush=True,
    )


def stamp(text: str, word: str) -> dt.datetime:
    """The time of the first log line with ``word``."""
    match = _STAMP.search(next(line for line in text.splitlines() if word in line))
    assert match is not None
    return dt.datetime.strptime(match[1], "%Y/%m/%d %H:%M:%S.%f").astimezone()


def _anonymous_mb(server: Server) -> float:
    with open(f"/proc/{server.pid}/smaps_rollup", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("Anonymous:")) / 1024
