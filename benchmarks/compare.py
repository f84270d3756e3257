"""This tree beside another commit: the same load on both, in turns, so that a machine's moods hit
both.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.patterns import Figures, Pattern, streaming
from benchmarks.rows import FILE, MEMORY, servers

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

_HERE = Path(__file__).resolve().parent.parent

_COMPARED: Sequence[Callable[[Figures], float]] = (
    lambda one: one.per_second,
    lambda one: one.server_cpu,
    lambda one: one.server_cpu + one.nats_cpu,
    lambda one: one.typical_delay,
)


@contextlib.contextmanager
def built(revision: str) -> Iterator[str]:
    """A tree of that commit with its extensions built; gone when the block ends."""
    with tempfile.TemporaryDirectory(prefix="ftstan-compare-") as directory:
        tree = os.path.join(directory, "tree")
        git = ["git", "-C", str(_HERE), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", tree, revision], check=True)
        try:
            subprocess.run(
                # Its own list of stores: else those of the installed package are looked for.
                [sys.executable, "setup.py", "-q", "egg_info", "build_ext", "--inplace"],
                cwd=tree,
                check=True,
            )
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", tree], check=True)


def run(revision: str, patterns: Sequence[Pattern], options: argparse.Namespace) -> None:
    """Print the ratios, this tree to the other, with the lowest and the highest of the rounds."""
    with built(revision) as tree:
        print(
            f"this tree / {revision}, {options.rounds} rounds in turns: median (lowest - highest)\n"
        )
        print(f"{'':56}{'msgs/s':>22}{'server CPU':>22}{'all CPU':>22}{'median delay':>22}")
        for pattern in patterns:
            count = options.old if pattern.old else max(int(options.count * pattern.share), 1)
            with servers(str(_HERE)) as ours, servers(tree) as others:
                for what, mine, other in ((MEMORY, ours[0], others[0]), (FILE, ours[1], others[1])):
                    pairs = [
                        (streaming(mine, pattern, count), streaming(other, pattern, count))
                        for _ in range(options.rounds)
                    ]
                    print(f"{pattern.name + ', ' + what:56}" + "".join(_ratios(pairs)), flush=True)


def _ratios(pairs: Sequence[tuple[Figures, Figures]]) -> Iterator[str]:
    for figure in _COMPARED:
        ratios = [figure(a) / figure(b) for a, b in pairs if figure(b)]
        text = (
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f})"
            if ratios
            else "-"
        )
        yield f"{text:>22}"
