"""``python -m tests.suite``: pytest, and once more alone what failed beside others and waits for real processes.

Servers, virtual hosts and a JVM share two processors with the tests beside them, and a machine is not ours alone: a
wait with a deadline can end in vain though nothing is wrong. So a few such failures are run again with nothing beside
them, which is said with their names; what fails then has failed, and so has whatever needs no process. The first
failures stay in the output, for a test that is met there again and again is a defect of its own.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

#: More than so many are no accident.
MOST = 3
#: Places whose tests start a JVM or boot hosts without the mark for servers.
_PLACES = ("tests/spark/", "tests/ansible/", "tests/packaging/")


class Failures:
    """Plugin: the tests that failed, and whether each may have failed for want of a processor."""

    def __init__(self) -> None:
        self.found: dict[str, bool] = {}
        self.is_broken = False
        """Whether a module could not even be collected."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure, of the test or of what is around it."""
        if report.failed:
            self.found[report.nodeid] = "processes" in report.keywords or report.nodeid.startswith(_PLACES)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note what could not be collected."""
        self.is_broken |= report.failed

    @property
    def may_be_chance(self) -> bool:
        """Whether they are few, and all of them of that kind."""
        return 0 < len(self.found) <= MOST and all(self.found.values()) and not self.is_broken


def run(words: list[str]) -> int:
    """Run pytest with these words; returns the exit status."""
    failures = Failures()
    status = int(pytest.main(words, plugins=[failures]))
    if status != pytest.ExitCode.TESTS_FAILED or not failures.may_be_chance:
        return status
    names = sorted(failures.found)
    print("\nfailed beside others, and run again alone:", *names, sep="\n  ", flush=True)
    status = subprocess.run([sys.executable, "-m", "pytest", *names], check=False).returncode
    if status == 0:
        print("passed only alone:", *names, sep="\n  ", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
