"""Mutation testing of what decides who may write, and of what a start makes of damaged files
(``make mutate``).

A mutant is a module with one small change: another comparison, a condition turned round, an
argument left out, ``None`` assigned. It is killed when a test fails. Of all mutants of ``JUDGES``
some are drawn at random (``--seed``, ``--count``); each is judged by the quick tests that the table
names for its module. Prints how many were killed, and the change of each survivor.

The changes are those of mutmut. Its runner is not used: it leaves out every decorated function, and
runs all tests twice before the first mutant. Here one process for each module imports the tests,
and a fork of it for each mutant exchanges the code of one function, runs the tests until one fails,
and ends. Not mutated: what is said to people (calls of ``log``, sentences), constants of modules
and classes, defaults of arguments, annotations.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from tools.mutation.judging import PLACE, ROOT, Fate, Mutant, Verdict, judge
from tools.mutation.making import candidates, drawn
from tools.mutation.table import JUDGES


def _judge_all(chosen: list[Mutant], workers: int) -> list[Verdict]:
    """Judge them, so many modules at a time; a module whose tests fail without any change has no
    verdicts.
    """
    by_module: dict[str, list[Mutant]] = {}
    for mutant in chosen:
        by_module.setdefault(mutant.module, []).append(mutant)

    def work(module: str) -> list[Verdict]:
        file = PLACE / f"{module}.jsonl"
        file.write_text(
            "".join(json.dumps(asdict(mutant)) + "\n" for mutant in by_module[module]),
            encoding="utf-8",
        )
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "tools.mutation", "--judge", module, str(file)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            print(f"{module:<44} could not be judged\n{done.stdout}", flush=True)
            return []
        found = [
            Verdict(row["module"], row["change"], Fate(row["fate"]))
            for row in map(json.loads, file.with_suffix(".done").read_text().splitlines())
        ]
        print(f"{_row(module, found)}  {time.monotonic() - began:5.0f} s", flush=True)
        return found

    with ThreadPoolExecutor(workers) as pool:
        return [verdict for found in pool.map(work, by_module) for verdict in found]


def _row(name: str, verdicts: list[Verdict]) -> str:
    number = len(verdicts)
    counts = [sum(v.fate is fate for v in verdicts) for fate in Fate]
    caught = number - counts[-1]
    share = 100 * caught / number if number else 100.0
    return f"{name:<44} {number:>5} {counts[0]:>7} {counts[1]:>9} {counts[2]:>8} {share:6.1f} %"


def main() -> int:
    """Draw, judge and print.

    Returns 1 if fewer than nine in ten of a package were killed, or some could not be judged.
    """
    parser = argparse.ArgumentParser(description="mutants that the quick tests must kill")
    parser.add_argument("--count", type=int, default=300, help="mutants that are drawn (300)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (1)")
    parser.add_argument("--workers", type=int, default=2, help="modules judged at a time (2)")
    parser.add_argument("--only", nargs="*", default=[], help="modules whose names hold one of")
    parser.add_argument("--judge", nargs=2, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.judge:
        module, file = words.judge
        tests = [f"tests/unit/{name}" for name in JUDGES[module]]
        verdicts = judge(module, tests, Path(file))
        Path(file).with_suffix(".done").write_text(
            "".join(json.dumps(asdict(verdict)) + "\n" for verdict in verdicts), encoding="utf-8"
        )
        return 0
    PLACE.mkdir(parents=True, exist_ok=True)
    modules = [
        module for module in JUDGES if not words.only or any(part in module for part in words.only)
    ]
    every = [candidate for module in modules for candidate in candidates(module)]
    chosen = drawn(every, words.count, words.seed)
    print(f"{len(chosen)} of {len(every)} mutants, drawn with seed {words.seed}\n")
    print(f"{'':<44} {'all':>5} {'killed':>7} {'timed out':>9} {'survived':>8}", flush=True)
    verdicts = _judge_all(chosen, words.workers)
    return _report(verdicts) or int(len(verdicts) < len(chosen))


def _report(verdicts: list[Verdict]) -> int:
    print()
    for verdict in verdicts:
        if verdict.fate is Fate.SURVIVED:
            print(f"survived: {verdict.module}\n{verdict.change}\n")
    is_short = False
    for package in ("ftstan.ft.", "ftstan.stores.file.recovery."):
        here = [verdict for verdict in verdicts if verdict.module.startswith(package)]
        print(_row(package.rstrip("."), here))
        caught = sum(verdict.fate is not Fate.SURVIVED for verdict in here)
        is_short |= caught < 0.9 * len(here)
    return int(is_short)


if __name__ == "__main__":
    sys.exit(main())
