"""Which branches of the code that keeps messages safe are taken by its tests and simulations
(``make coverage``).

Runs the tests of ``TESTS`` under coverage.py, in parallel, and prints for each room and each file
how many of its branches and statements were taken, and what was not (``--report`` prints what the
last run found). A handler of exceptions is no branch to coverage.py: its statements show whether it
was run. The tool sees Python alone: what is compiled from ``.pyx`` has no figures here, and is
exercised by ``make fuzz`` and ``make test-debug``. Variants that are broken on purpose are left
out, because what they reach says nothing about the product.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "build" / "coverage"
REPORT = PLACE / "report.json"
ROOMS = ("ftstan/broker", "ftstan/ft", "ftstan/stores/file")
#: The share of its branches, and of its statements, that must be taken in each room.
LEAST = 0.95
TESTS = (
    "tests/unit/broker",
    "tests/unit/ft",
    "tests/unit/node",
    "tests/unit/stores",
    "tests/unit/cli",
    "tests/contract/test_stores.py",
    "tests/oracle/test_gostore.py",
    "tests/model",
    "tests/sim",
    "--ignore=tests/unit/stores/sql",
    "--ignore=tests/sim/ft/test_many_histories.py",
)


@dataclass(frozen=True, slots=True)
class Seen:
    """How many branches and statements there are, and how many of them were taken."""

    branches: int = 0
    branches_taken: int = 0
    statements: int = 0
    statements_taken: int = 0

    def __add__(self, other: Seen) -> Seen:
        """Both together."""
        names = (field.name for field in fields(self))
        return Seen(**{name: getattr(self, name) + getattr(other, name) for name in names})

    @property
    def is_enough(self) -> bool:
        """Whether as many of both were taken as must be."""
        return (
            self.branches_taken >= LEAST * self.branches
            and self.statements_taken >= LEAST * self.statements
        )

    def line(self, name: str) -> str:
        """The row of the table."""
        return (
            f"{name:<48} {_share(self.branches_taken, self.branches)} "
            f"{_share(self.statements_taken, self.statements)}"
        )


@dataclass(frozen=True, slots=True)
class File:
    """What was seen of one file, and the branches ("line->line", "line->" for one that leaves) and
    lines that were not taken.
    """

    path: str
    seen: Seen
    missed: tuple[str, ...]


def run(workers: int, words: list[str]) -> int:
    """Run the tests under coverage.py, or those that ``words`` name; returns pytest's status."""
    PLACE.mkdir(parents=True, exist_ok=True)
    for old in PLACE.glob("data*"):
        old.unlink()
    status = _coverage(
        *("run", "-m", "pytest", "-q", "-n", str(workers), "--dist", "loadgroup"),
        *("-k", "not is_caught", "--timeout", "1800", *(words or TESTS)),
    )
    _coverage("combine", "-q")
    _coverage("json", "-q", "-o", str(REPORT))
    return status


def _coverage(*words: str) -> int:
    # The quicker tracers of newer versions of Python do not follow greenlets.
    environment = os.environ | {"COVERAGE_CORE": "ctrace"}
    return subprocess.run(
        [sys.executable, "-m", "coverage", *words], cwd=ROOT, env=environment, check=False
    ).returncode


def files(report: dict[str, Any]) -> list[File]:
    """What the report of coverage.py says of each file, sorted by path."""
    return [_file(path, found) for path, found in sorted(report["files"].items())]


def _file(path: str, found: dict[str, Any]) -> File:
    summary = found["summary"]
    branches = (f"{line}->{to if to > 0 else ''}" for line, to in found["missing_branches"])
    return File(
        path=path,
        seen=Seen(
            branches=summary["num_branches"],
            branches_taken=summary["covered_branches"],
            statements=summary["num_statements"],
            statements_taken=summary["covered_lines"],
        ),
        missed=(*branches, *map(str, found["missing_lines"])),
    )


def table(found: list[File]) -> str:
    """Rooms and their files, and what was missed of each."""
    lines = [f"{'':<48} {'branches':>22} {'statements':>22}"]
    for room in ROOMS:
        here = [file for file in found if file.path.startswith(f"{room}/")]
        lines += ["", room_total(found, room).line(room)]
        for file in here:
            lines.append(file.seen.line("  " + file.path.removeprefix(f"{room}/")))
            if file.missed:
                lines.append(f"      missed: {', '.join(file.missed)}")
    return "\n".join(lines)


def room_total(found: list[File], room: str) -> Seen:
    """What was seen of all files of a room."""
    return sum((file.seen for file in found if file.path.startswith(f"{room}/")), Seen())


def _share(taken: int, number: int) -> str:
    share = 100 * taken / number if number else 100.0
    return f"{taken:>6} of {number:>5} {share:5.1f} %"


def main() -> int:
    """Run the tests and print the table.

    Returns 1 if a test failed or a room is below ``LEAST``.
    """
    parser = argparse.ArgumentParser(description="branches that tests and simulations take")
    parser.add_argument("--workers", type=int, default=2, help="processes that run tests (2)")
    parser.add_argument("--report", action="store_true", help="print the last run's figures again")
    parser.add_argument("tests", nargs="*", help="run these instead of those of the table")
    words = parser.parse_args()
    status = 0 if words.report else run(words.workers, words.tests)
    found = files(json.loads(REPORT.read_text(encoding="utf-8")))
    print(table(found))
    short = [room for room in ROOMS if not room_total(found, room).is_enough]
    for room in short:
        print(f"{room}: less than {LEAST:.0%} of its branches or statements were taken")
    return int(bool(status or short))


if __name__ == "__main__":
    sys.exit(main())
