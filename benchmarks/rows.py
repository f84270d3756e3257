"""The table of patterns: each on both stores and over bare NATS, in turns within each round."""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks import calls, turns
from benchmarks.patterns import Figures, Pattern, bare, streaming
from benchmarks.processes import Server, ftstan, precise_cpu_seconds
from ftstan.drill.processes import children

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

BARE = "bare NATS"
MEMORY = "memory store"
FILE = "file store, fsync"
_READY = "Streaming Server is ready"
_PROBES = 200


@dataclass(frozen=True, slots=True)
class Row:
    """Medians of the rounds.

    ``ratio`` is to bare NATS of the same round, with the lowest and the highest.

    CPU in microseconds a message, delays (median, 90 %, 99 %) in microseconds. ``calls``: system
    calls, syncs and messages a batch; empty unless they were counted.
    """

    pattern: str
    what: str
    per_second: float
    ratio: float
    ratios: tuple[float, float]
    server_cpu: float
    nats_cpu: float
    delays: tuple[float, ...]
    peak_mb: float
    calls: tuple[float, ...] = ()


def run(patterns: Sequence[Pattern], options: argparse.Namespace) -> list[Row]:
    """Measure and print."""
    print(
        f"median of {options.rounds} rounds of {options.count} messages (some patterns: a part "
        "of them)\n"
    )
    print(
        f"{'':20}{'msgs/s':>10}{'ratio':>7}{'lowest':>8}"
        f"{'highest':>8}{'server us':>11}{'nats us':>9}"
        f"{'p50 us':>9}{'p90 us':>9}{'p99 us':>9}{'peak MiB':>9}"
        + (f"{'calls':>8}{'syncs':>7}{'msgs':>8}  a batch" if options.calls else "")
    )
    out = []
    for pattern in patterns:
        print(f"{pattern.name}")
        some = _pattern(pattern, options)
        for row in some:
            print("  " + _line(row), flush=True)
        out += some
    _idle(options.idle)
    return out


def _pattern(pattern: Pattern, options: argparse.Namespace) -> list[Row]:
    """Fresh servers for each pattern: the memory that it needs is its own."""
    count = options.old if pattern.old else max(int(options.count * pattern.share), 1)
    # Bare NATS is a NATS server that clients connect to itself.
    with servers() as (memory, file, directory), ftstan("memory", "", "-direct=false") as alone:
        alone.wait_for(_READY)
        ways: dict[str, tuple[Callable[[Server, Pattern, int], Figures], Server]] = {
            BARE: (bare, alone),
            MEMORY: (streaming, memory),
            FILE: (streaming, file),
        }
        rounds: dict[str, list[Figures]] = {name: [] for name in ways}
        syncs = []
        for _ in range(options.rounds):
            for name, (measure, server) in ways.items():
                rounds[name].append(measure(server, pattern, count))
            if pattern.window == 1:
                syncs.append(sync_us(directory))
        in_turns = turns.measure(file, directory, count) if pattern.window == 1 else (0.0, 0.0, 0.0)
        counted = (
            {
                name: calls.count(server, pattern, count)
                for name, (_, server) in list(ways.items())[1:]
            }
            if options.calls and not pattern.old
            else {}
        )
    if syncs:
        over = statistics.median(
            f.typical_delay - b.typical_delay - s
            for f, b, s in zip(rounds[FILE], rounds[BARE], syncs, strict=True)
        )
        bare_us, synced_us, stored_us = in_turns
        print(
            f"  one write and fdatasync {statistics.median(syncs):.0f} us; file store above bare "
            f"and that {over:.0f} us"
        )
        print(
            f"  in turns, message by message: answered by a process {bare_us:.0f} us, by one "
            "that writes and syncs"
            f" {synced_us:.0f} us, by the file store {stored_us:.0f} us, which is "
            f"{stored_us - synced_us:.0f} us more"
        )
    return [_row(pattern, name, rounds[name], rounds[BARE], counted.get(name, ())) for name in ways]


@contextlib.contextmanager
def servers(tree: str = "") -> Iterator[tuple[Server, Server, str]]:
    """One with the memory store, one with the file store, and the latter's disk."""
    with (
        tempfile.TemporaryDirectory(prefix="ftstan-bench-") as directory,
        ftstan("memory", "", tree=tree) as memory,
        ftstan("file", directory + "/store", tree=tree) as file,
    ):
        memory.wait_for(_READY)
        file.wait_for(_READY)
        yield memory, file, directory


def _row(
    pattern: Pattern,
    what: str,
    rows: Sequence[Figures],
    base: Sequence[Figures],
    counted: tuple[float, ...],
) -> Row:
    ratios = [row.per_second / other.per_second for row, other in zip(rows, base, strict=True)]
    return Row(
        pattern.name,
        what,
        statistics.median(row.per_second for row in rows),
        statistics.median(ratios),
        (min(ratios), max(ratios)),
        statistics.median(row.server_cpu for row in rows),
        statistics.median(row.nats_cpu for row in rows),
        tuple(
            statistics.median(column) for column in zip(*(row.delays for row in rows), strict=True)
        ),
        max(row.peak_mb for row in rows),
        counted,
    )


def _line(row: Row) -> str:
    delays = "".join(f"{value:9.0f}" for value in row.delays) or f"{'-':>9}" * 3
    server = f"{row.server_cpu:11.2f}" if row.what != BARE else f"{'-':>11}"
    peak = f"{row.peak_mb:9.0f}" if row.what != BARE else f"{'-':>9}"
    counted = f"{row.calls[0]:8.1f}{row.calls[1]:7.2f}{row.calls[2]:8.1f}" if row.calls else ""
    return (
        f"{row.what:18}{row.per_second:10.0f}{row.ratio:7.2f}{row.ratios[0]:8.2f}{row.ratios[1]:8.2f}{server}"
        f"{row.nats_cpu:9.2f}{delays}{peak}{counted}"
    )


def sync_us(directory: str) -> float:
    """What one write and fdatasync cost on that disk now: the median, in microseconds."""
    fd = os.open(os.path.join(directory, "probe"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        end = os.fstat(fd).st_size
        taken = []
        for i in range(_PROBES):
            began = time.perf_counter()
            os.pwrite(fd, b"x" * 161, end + i * 161)
            os.fdatasync(fd)
            taken.append(time.perf_counter() - began)
    finally:
        os.close(fd)
    return statistics.median(taken) * 1e6


def _idle(seconds: float) -> None:
    """CPU without traffic, in percent of one processor."""
    with servers() as (memory, file, _):
        for what, server in ((MEMORY, memory), (FILE, file)):
            pids = server.pid, children(server.pid)[0]
            before = [precise_cpu_seconds(pid) for pid in pids]
            time.sleep(seconds)
            ours, nats = (
                (precise_cpu_seconds(pid) - b) / seconds * 100
                for pid, b in zip(pids, before, strict=True)
            )
            print(f"idle CPU, {what}: server {ours:.2f} %, nats-server {nats:.2f} %", flush=True)
