"""``make bench-tuning``: settings of the pipeline, each measured beside the others in turns.

A setting is words of the command line. ``--processors 1`` runs everything, the load too, on one
processor.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile

from benchmarks.patterns import PATTERNS, Figures, Pattern, streaming
from benchmarks.processes import Server, ftstan

SETTINGS: dict[str, tuple[tuple[str, ...], ...]] = {
    "spin": (("-io_spin", "0s"), ("-io_spin", "200us"), ("-io_spin", "500us"), ("-io_spin", "1ms")),
    "buffer": tuple(
        ("-io_buffer_size", size) for size in ("65536", "262144", "1048576", "4194304")
    ),
    "runtime": tuple(
        ("-nats_gomaxprocs", procs, "-nats_gogc", gogc)
        for procs, gogc in (("1", "100"), ("1", "400"), ("2", "100"), ("2", "400"))
    ),
}
_NAMES = (
    "publish",
    "publish, one at a time",
    "1 publisher, 1 subscriber",
    "4 publishers, 4 subscribers",
)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning", description=__doc__)
    parser.add_argument(
        "settings", nargs="*", default=list(SETTINGS), help=f"which: {', '.join(SETTINGS)}"
    )
    parser.add_argument(
        "--count", type=int, default=100_000, help="messages a round (default 100000)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds in turns (default 5)")
    parser.add_argument("--store", default="file", help="file or memory (default file)")
    parser.add_argument(
        "--processors", type=int, default=0, help="use only so many processors (default all)"
    )
    options = parser.parse_args()
    if options.processors:
        # Inherited by every process that is started from here on.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.processors])
    print(
        f"{len(os.sched_getaffinity(0))} processors, {options.store} store, median of "
        f"{options.rounds} rounds\n"
    )
    print(
        f"{'':34}{'msgs/s':>10}{'ratio':>7}{'lowest':>8}"
        f"{'highest':>8}{'server us':>11}{'nats us':>9}{'p50 us':>9}"
    )
    for name in options.settings:
        for pattern in PATTERNS:
            if pattern.name in _NAMES:
                print(f"{pattern.name}")
                _measure(SETTINGS[name], pattern, options)


def _measure(
    settings: tuple[tuple[str, ...], ...], pattern: Pattern, options: argparse.Namespace
) -> None:
    rounds: dict[tuple[str, ...], list[Figures]] = {words: [] for words in settings}
    with contextlib.ExitStack() as stack:
        servers: dict[tuple[str, ...], Server] = {}
        for words in settings:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="ftstan-bench-"))
            servers[words] = stack.enter_context(ftstan(options.store, directory, *words))
            servers[words].wait_for("Streaming Server is ready")
        for _ in range(options.rounds):
            for words, server in servers.items():
                rounds[words].append(
                    streaming(server, pattern, max(int(options.count * pattern.share), 1))
                )
    base = rounds[settings[0]]
    for words, rows in rounds.items():
        ratios = [row.per_second / other.per_second for row, other in zip(rows, base, strict=True)]
        print(
            f"  {' '.join(words[1::2]):32}{statistics.median(r.per_second for r in rows):10.0f}"
            f"{statistics.median(ratios):7.2f}{min(ratios):8.2f}{max(ratios):8.2f}"
            f"{statistics.median(r.server_cpu for r in rows):11.2f}"
            f"{statistics.median(r.nats_cpu for r in rows):9.2f}"
            f"{statistics.median(r.typical_delay for r in rows):9.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
