"""``make bench``: each pattern of clients on both stores beside bare NATS, and what starts and
single steps cost.

Nothing is asserted: figures belong to a machine, ratios of one run travel. ``docs/benchmarks.md``
says what is measured.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from typing import TYPE_CHECKING

from benchmarks import (
    codec,
    compare,
    encryption,
    groups,
    idle,
    monitor,
    plot,
    recovery,
    rows,
    starting,
)
from benchmarks.patterns import PATTERNS

if TYPE_CHECKING:
    from collections.abc import Sequence

STEPS = "record code"
ENCRYPTION = "encryption"
CHOICE = "choice of queue members"
STARTS = "starts"
PAGES = "pages"
IDLE = "idle clients"


def main() -> None:
    """Run and print."""
    options = _parser().parse_args()
    # Where servers keep their datastores.
    tempfile.tempdir = options.dir
    patterns = [p for p in PATTERNS if _wanted(p.name, options.only)]
    if options.compare:
        compare.run(options.compare, patterns, options)
        return
    found: list[rows.Row] = []
    if patterns:
        found = rows.run(patterns, options)
    if _wanted(STEPS, options.only):
        codec.run(128, options.rounds)
    if _wanted(ENCRYPTION, options.only):
        encryption.run(options)
    if _wanted(CHOICE, options.only):
        groups.run(128, options.rounds)
    if _wanted(PAGES, options.only):
        monitor.run(options.rounds)
    if _wanted(IDLE, options.only):
        idle.run(options.clients, options.idle)
    if _wanted(STARTS, options.only):
        starting.run(options)
        recovery.run(options)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump([asdict(row) for row in found], file, indent=1)
    if options.plots:
        plot.write(found, options.plots)


def _wanted(name: str, only: Sequence[str]) -> bool:
    return not only or any(word in name for word in only)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--count",
        type=int,
        default=100_000,
        help="messages a round (default 100000); some patterns less",
    )
    parser.add_argument(
        "--old",
        type=int,
        default=1_000_000,
        help="old messages that are read back (default 1000000)",
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds, of which the median is shown (default 3)"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORD",
        help="only what has this word in its name; repeatable",
    )
    parser.add_argument(
        "--dir", help="directory on the disk to measure (default: that of temporary files)"
    )
    parser.add_argument(
        "--idle",
        type=float,
        default=5.0,
        help="seconds over which idle CPU is measured (default 5)",
    )
    parser.add_argument("--clients", type=int, default=10_000, help="idle clients (default 10000)")
    parser.add_argument(
        "--calls", action="store_true", help="count system calls, with strace, in runs of their own"
    )
    parser.add_argument("--json", metavar="FILE", help="write the rows of patterns to this file")
    parser.add_argument(
        "--plots", metavar="DIR", help="write the plots of patterns to this directory"
    )
    parser.add_argument(
        "--compare", metavar="REV", help="this tree beside another commit, in turns; ratios only"
    )
    parser.add_argument(
        "--recover",
        type=int,
        nargs="*",
        default=[1_000_000, 10_000_000],
        help="messages in the recovered stores",
    )
    parser.add_argument(
        "--channels", type=int, default=10_000, help="channels in the recovered store"
    )
    return parser


if __name__ == "__main__":
    main()
