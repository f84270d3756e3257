"""``python -m tests.suite``: pytest, and once more alone what waited in vain beside others for real
processes.

Servers, virtual hosts and a JVM share two processors with the tests beside them, and a machine is
not ours alone: a wait with a deadline can end in vain though nothing is wrong. So a few such
failures are run again with nothing beside them. Nothing but a deadline that passed
(``tests/lateness.py``) is forgiven: a wrong answer, a lost message, an exit status or a leak fails
at once, and so does whatever needs no process.

What was run again is appended to ``build/retried.jsonl``, a line of JSON each, and printed.
``python -m tests.suite --compile`` comes first on a clean tree: pytest rewrites the assertions of
each module before it compiles it, and workers that start together would each do it for all of them.
It imports nothing of what the tests do.

``.ci/run`` ends with ``make retried``, which fails on more than two of them, and on a test that is
named twice in this run and the last ten lines of ``.ci/retried.jsonl``. Whoever forgives one adds
its line there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from _pytest.assertion import rewrite
from _pytest.config import _prepareconfig

from tests.lateness import LATE
from tests.processes import ROOT

#: More than so many are no accident.
MOST = 3
MOST_IN_CI = 2
_REMEMBERED = 10
#: Places whose tests start a JVM or boot hosts without the mark for servers.
_PLACES = ("tests/spark/", "tests/ansible/", "tests/packaging/")
FILE = "FTSTAN_RETRIED"
"""Variable of the environment: another file than ``build/retried.jsonl``."""


def retried_file() -> Path:
    """Where this run notes what it ran again."""
    return Path(os.environ.get(FILE) or ROOT / "build" / "retried.jsonl")


class Failures:
    """Plugin: the tests that failed, each with why it was late.

    Empty: it was not, or needs no process.
    """

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.is_broken = False
        """Whether a module could not even be collected."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure, of the test or of what is around it."""
        if not report.failed:
            return
        waits = "processes" in report.keywords or report.nodeid.startswith(_PLACES)
        reason = str(dict(report.user_properties).get(LATE, "")) if waits else ""
        # A test that fails twice, itself and at its end, has the reason that is none.
        self.found[report.nodeid] = reason and self.found.get(report.nodeid, reason)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note what could not be collected."""
        self.is_broken |= report.failed

    @property
    def may_be_chance(self) -> bool:
        """Whether they are few, and all of them deadlines."""
        return 0 < len(self.found) <= MOST and all(self.found.values()) and not self.is_broken


def run(words: list[str]) -> int:
    """Run pytest with these words; returns the exit status."""
    failures = Failures()
    status = int(pytest.main(words, plugins=[failures]))
    if status != pytest.ExitCode.TESTS_FAILED or not failures.may_be_chance:
        return status
    names = sorted(failures.found)
    print("\nfailed beside others, and run again alone:", *names, sep="\n  ", flush=True)
    file = retried_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as out:
        out.writelines(
            json.dumps({"test": name, "reason": failures.found[name]}) + "\n" for name in names
        )
    status = subprocess.run([sys.executable, "-m", "pytest", *names], check=False).returncode
    if status == 0:
        print(
            "passed only alone:",
            *(f"{name}: {failures.found[name]}" for name in names),
            sep="\n  ",
            flush=True,
        )
    return status


def compile_tests(places: list[str]) -> None:
    """Write the compiled test modules of these directories, half of them on each core.

    Nothing to do where it has done so before: what has changed since is compiled by the workers.
    What is wrong with a module is said by the run that follows.
    """
    is_done = any(ROOT.glob("tests/__pycache__/conftest.*-pytest-*.pyc"))
    if is_done or sys.dont_write_bytecode:
        return
    found = (file for place in places for file in ROOT.glob(f"{place}/**/test_*.py"))
    names = sorted(str(file.relative_to(ROOT)) for file in found)
    files = [name for name in names if not name.startswith(_PLACES)]
    halves = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.suite", "--rewrite", *half],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for half in (files[::2], files[1::2])
    ]
    for half in halves:
        half.wait()


def rewrite_tests(names: list[str]) -> None:
    """Write these test modules as pytest would when it imports them, without what they import.

    With pytest's own functions, which may have other names one day: then the workers do it.
    """
    config = _prepareconfig(["--noconftest", "--rootdir", str(ROOT)])
    state = config.stash[rewrite.assertstate_key]
    for name in names:
        file = ROOT / name
        place = rewrite.get_cache_dir(file)
        place.mkdir(exist_ok=True)
        source_hash, code = rewrite._rewrite_test(file, config)
        rewrite._write_pyc(state, code, source_hash, place / (file.stem + rewrite.PYC_TAIL))


def judge_retried(now: Path, kept: Path) -> int:
    """The exit status for what was run again in this run, and in those that the repository
    remembers.
    """
    fresh = _read(now)
    before = _read(kept)[-_REMEMBERED:]
    for line in fresh:
        print(f"run again: {line['test']}: {line['reason']}")
    counts = Counter(line["test"] for line in [*before, *fresh])
    again = sorted(name for name in {line["test"] for line in fresh} if counts[name] > 1)
    if again:
        print(
            "run again more than once in the last runs, which is a defect of the test: "
            f"{', '.join(again)}"
        )
    if len(fresh) > MOST_IN_CI:
        print(f"{len(fresh)} tests were run again, and more than {MOST_IN_CI} are no accident")
    return int(bool(again) or len(fresh) > MOST_IN_CI)


def _read(file: Path) -> list[dict[str, str]]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    if sys.argv[1:] == ["--retried"]:
        sys.exit(judge_retried(retried_file(), ROOT / ".ci" / "retried.jsonl"))
    if sys.argv[1:2] == ["--rewrite"]:
        rewrite_tests(sys.argv[2:])
        sys.exit()
    if sys.argv[1:2] == ["--compile"]:
        compile_tests(sys.argv[2:])
        sys.exit()
    sys.exit(run(sys.argv[1:]))
