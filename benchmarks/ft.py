"""``make bench-ft``: how long a pair does not answer when its active ends, under a publisher that
never pauses.

For each store and each way of ending: failover after failover, the ended member replaced by a fresh
standby each time. Prints medians and ranges, and asserts nothing (``docs/benchmarks.md``,
takeovers).
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.ftpair import ACTIVE, HANDING_OVER, READY, STANDING_BY, Member, Pair
from benchmarks.load import GROUP_CLUSTER, PacedPublisher
from ftstan.base.clock import SystemClock
from ftstan.base.disk import LocalDisk
from ftstan.ft.ownership import StoreOwner

if TYPE_CHECKING:
    from collections.abc import Callable

#: An ack that arrives so soon after the signal may have left before it.
_ON_ITS_WAY_S = 0.001
#: A signal to the active, or ``None``: ``ftstanctl ft switchover``.
_WAYS = {"kill -9": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "switchover": None}


@dataclass(frozen=True, slots=True)
class Failover:
    """One of them: milliseconds from the signal on, publishes that were never acked, processor time
    of the successor.

    ``first``: until the first ack, whoever sent it: on a planned stop the owner serves on while it
    gets ready. ``acked``: until the first publish that the successor acknowledged.
    """

    first: float
    acked: float
    active: float
    ready: float
    silence: float
    lost: int
    cpu: float


_COLUMNS: dict[str, Callable[[Failover], float]] = {
    "signal to next acked publish, ms": lambda f: f.first,
    "signal to the successor's first ack, ms": lambda f: f.acked,
    'signal to "Server is active", ms': lambda f: f.active,
    'signal to "Streaming Server is ready", ms': lambda f: f.ready,
    "longest time without an ack, ms": lambda f: f.silence,
    "publishes without an ack": lambda f: f.lost,
    "CPU of the successor, ms": lambda f: f.cpu,
}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ft", description=__doc__)
    parser.add_argument(
        "--failovers", type=int, default=20, help="of each way on each store (default 20)"
    )
    parser.add_argument(
        "--messages", type=int, default=1_000_000, help="in the large store (default 1000000)"
    )
    parser.add_argument(
        "--channels", type=int, default=1000, help="in the large store (default 1000)"
    )
    parser.add_argument(
        "--every", type=float, default=5.0, help="milliseconds between publishes (default 5)"
    )
    parser.add_argument("--size", type=int, default=128, help="payload bytes (default 128)")
    parser.add_argument(
        "--settle", type=float, default=2.0, help="seconds between failovers (default 2)"
    )
    parser.add_argument(
        "--directory", help="where the datastores are made, on the disk to be measured"
    )
    parser.add_argument("--only", choices=["small", "large"], help="one of the two stores")
    parser.add_argument("--logs", help="keep the members' logs in this directory")
    parser.add_argument("words", nargs="*", help="more options of the members, after --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ftstan-bench-", dir=options.directory) as made:
        sync, confirm = storage(made)
    print(f"fdatasync of 100 bytes here {sync:.2f} ms, a confirm {confirm:.2f} us at best")
    print(
        f"a publish of {options.size} bytes every {options.every:g} ms, {options.failovers} "
        "failovers each\n"
    )
    if options.only != "large":
        _store("1 channel", options, ["--channels", "1"], [b"channel.0"])
    if options.only != "small":
        each = max(options.messages // options.channels, 1)
        name = f"{each * options.channels:,} messages in {options.channels:,} channels"
        channels = [b"channel.%d" % i for i in range(options.channels)]
        _store(name, options, ["--channels", str(options.channels), "--each", str(each)], channels)


def storage(directory: str) -> tuple[float, float]:
    """What a sync costs on this disk, in milliseconds, and what a confirm costs, in
    microseconds.
    """
    owner = StoreOwner(
        LocalDisk(), directory, server_id="bench", clock=SystemClock(), in_group=False
    )
    owner.try_lock()
    owner.activate()
    confirms = [timeit.timeit(owner.confirm, number=1000) * 1000 for _ in range(21)]
    owner.close()
    syncs = []
    with (Path(directory) / "sync").open("wb", buffering=0) as file:
        for _ in range(51):
            file.write(b"x" * 100)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            syncs.append(1000 * (time.perf_counter() - began))
    return statistics.median(syncs), min(confirms)


def _store(name: str, options: argparse.Namespace, fill: list[str], channels: list[bytes]) -> None:
    for way, number in _WAYS.items():
        with tempfile.TemporaryDirectory(prefix="ftstan-bench-", dir=options.directory) as made:
            directory = Path(made)
            store = directory / "store"
            argv = [
                sys.executable,
                "-m",
                "benchmarks.fill",
                str(store),
                "--cluster",
                GROUP_CLUSTER,
                *fill,
            ]
            subprocess.run(argv, check=True)
            logs = Path(options.logs) / f"{name} {way}" if options.logs else directory
            logs.mkdir(parents=True, exist_ok=True)
            pair = Pair(logs, ["-store", "file", "-dir", str(store)], options.words)
            ends(f"{name}, {way}", pair, number, channels, options)


def ends(
    name: str,
    pair: Pair,
    number: signal.Signals | None,
    channels: list[bytes],
    options: argparse.Namespace,
) -> None:
    """Measure one way of ending on a pair that is not started yet, and print.

    Of ``options``: ``failovers``, ``every`` (milliseconds), ``size``, ``settle`` (seconds).
    """
    with pair:
        publisher = PacedPublisher(
            pair.url, channels, every=options.every / 1000, size=options.size
        )
        publisher.connect()
        rows = [
            _failover(pair, publisher, number, options.settle) for _ in range(options.failovers)
        ]
        publisher.close()
    _show(name, rows)


def _failover(
    pair: Pair, publisher: PacedPublisher, number: signal.Signals | None, settle: float
) -> Failover:
    publisher.run_for(settle)
    pair.standby.wait_for(STANDING_BY)
    successor = pair.standby
    cpu = successor.cpu_seconds()
    if number is None:
        former = pair.switch_over()
        # The command takes its time to start and to find the members: what counts is when the
        # active has heard it.
        wall = _logged(former, publisher, HANDING_OVER)
        began = time.monotonic() - (time.time() - wall)
    else:
        wall = time.time()
        began = time.monotonic()
        former = pair.end_active(number)
    # The former owner may go on for a moment; what is asked for is the first ack behind the
    # successor's activation.
    active = _logged(pair.active, publisher, ACTIVE) - wall
    acked = publisher.run_until_acked(began + active) - began
    used = successor.cpu_seconds() - cpu
    ready = _logged(pair.active, publisher, READY) - wall
    while former.running:
        publisher.run_for(0.02)
    pair.replace()
    publisher.run_for(0.5)
    end = time.monotonic()
    record = publisher.record
    acked = (record.first_ack_after(began + active) or began + acked) - began
    first = (record.first_ack_after(began + _ON_ITS_WAY_S) or end) - began
    return Failover(
        first=1000 * first,
        acked=1000 * acked,
        active=1000 * active,
        ready=1000 * ready,
        silence=1000 * record.longest_silence(began - 0.1, end),
        lost=record.unanswered(began - 0.1, end - 0.3),
        cpu=1000 * used,
    )


def _logged(member: Member, publisher: PacedPublisher, words: str) -> float:
    """Go on publishing until ``member`` has written a line; when it did, Unix time."""
    end = time.monotonic() + 60.0
    while (at := member.time_of(words)) is None:
        if time.monotonic() > end:
            raise RuntimeError(f"no {words!r} in\n{member.log.read_text(errors='replace')}")
        publisher.run_for(0.02)
    return at


def _show(name: str, rows: list[Failover]) -> None:
    print(f"{name:44}{'min':>10}{'median':>10}{'p90':>10}{'max':>10}")
    for title, of in _COLUMNS.items():
        values = sorted(of(row) for row in rows)
        p90 = values[min(int(0.9 * len(values)), len(values) - 1)]
        figures = (values[0], statistics.median(values), p90, values[-1])
        print(f"{'  ' + title:44}" + "".join(f"{value:10.1f}" for value in figures), flush=True)
    print(flush=True)


if __name__ == "__main__":
    main()
