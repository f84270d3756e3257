"""What ``make test`` does with failures, on suites of a few tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from tests.lateness import SPARK_LATE, LateError, reason_of
from tests.processes import ROOT
from tests.suite import FILE, MOST, judge_retried

if TYPE_CHECKING:
    from pathlib import Path

FLAKY = """\
import pathlib
import pytest
from tests.lateness import LateError

def fails_once(name, error=LateError):
    mark = pathlib.Path(__file__).with_name(name)
    if not mark.exists():
        mark.touch()
        raise error("too late")

{tests}
"""
# As strict as the project's own: a warning of pytest's about a plugin ends the run.
INI = """\
[pytest]
markers = processes: real ones
addopts = -ra -p no:cacheprovider
filterwarnings = error
"""
BY_CHANCE = "@pytest.mark.processes\ndef test_{name}():\n    fails_once('{name}')\n"
ALWAYS = "@pytest.mark.processes\ndef test_never():\n    raise LateError('never')\n"
WRONG = "@pytest.mark.processes\ndef test_verdict():\n    fails_once('verdict', AssertionError)\n"
PURE = "def test_pure():\n    fails_once('pure')\n"
FINE = "def test_fine():\n    pass\n"


def suite(place: Path, *tests: str) -> tuple[int, str]:
    """Exit status and output of a suite of these tests."""
    (place / "pytest.ini").write_text(INI)
    (place / "conftest.py").write_text("from tests.lateness import pytest_runtest_makereport\n")
    (place / "test_some.py").write_text(FLAKY.format(tests="\n".join(tests)))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.suite",
            "-n",
            "2",
            f"--rootdir={place}",
            f"-c{place}/pytest.ini",
            str(place),
        ],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT), FILE: str(place / "retried.jsonl")},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    return done.returncode, done.stdout + done.stderr


def test_what_passes_runs_once(tmp_path: Path) -> None:
    status, said = suite(tmp_path, FINE)
    assert status == 0
    assert "1 passed" in said
    assert "again" not in said


def test_a_few_that_wait_for_processes_are_run_again_alone_and_named(tmp_path: Path) -> None:
    status, said = suite(tmp_path, FINE, BY_CHANCE.format(name="late"))
    assert status == 0, said
    assert "LateError: too late" in said
    assert "failed beside others, and run again alone:\n  test_some.py::test_late\n" in said
    assert "passed only alone:\n  test_some.py::test_late: too late\n" in said
    noted = [json.loads(line) for line in (tmp_path / "retried.jsonl").read_text().splitlines()]
    assert noted == [{"test": "test_some.py::test_late", "reason": "too late"}]


def test_what_fails_twice_has_failed(tmp_path: Path) -> None:
    status, said = suite(tmp_path, FINE, ALWAYS)
    assert status == 1
    assert "passed only alone" not in said


def test_a_verdict_is_never_forgiven(tmp_path: Path) -> None:
    status, said = suite(tmp_path, WRONG, BY_CHANCE.format(name="late"))
    assert status == 1
    assert "again" not in said


@pytest.mark.parametrize(
    ("error", "late"),
    [
        (LateError("waited"), True),
        (TimeoutError("timed out"), True),
        (subprocess.TimeoutExpired("ls", 1.0), True),
        (StreamingQueryException(f"ended: {SPARK_LATE}. SQLSTATE: XXKST"), True),
        (StreamingQueryException("ended: 3 == 2"), False),
        (AssertionError("3 == 2"), False),
        (AssertionError(SPARK_LATE), False),
        (OSError("no route"), False),
    ],
)
def test_a_deadline_is_told_from_a_verdict(error: Exception, *, late: bool) -> None:
    assert bool(reason_of(error)) == late


def judged(place: Path, before: list[str], now: list[str]) -> int:
    for name, tests in (("kept", before), ("now", now)):
        (place / name).write_text(
            "".join(json.dumps({"test": test, "reason": "late"}) + "\n" for test in tests)
        )
    return judge_retried(place / "now", place / "kept")


def test_ci_forgives_two_in_a_run_and_none_that_it_has_met_before(tmp_path: Path) -> None:
    assert judge_retried(tmp_path / "none", tmp_path / "neither") == 0
    assert judged(tmp_path, ["a", "b"], ["c", "d"]) == 0
    assert judged(tmp_path, [], ["c", "d", "e"]) == 1
    assert judged(tmp_path, ["a", "b"], ["a"]) == 1
    # Ten are remembered.
    assert judged(tmp_path, ["a", *"bcdefghijk"], ["a"]) == 0


def test_what_needs_no_process_has_no_second_chance(tmp_path: Path) -> None:
    status, said = suite(tmp_path, BY_CHANCE.format(name="late"), PURE)
    assert status == 1
    assert "again" not in said


def test_many_failures_are_no_chance(tmp_path: Path) -> None:
    status, said = suite(tmp_path, *(BY_CHANCE.format(name=f"late{n}") for n in range(MOST + 1)))
    assert status == 1
    assert "again" not in said


def test_a_module_that_cannot_be_read_has_no_second_chance(tmp_path: Path) -> None:
    status, said = suite(tmp_path, BY_CHANCE.format(name="late"), "import nothing_of_that_name")
    assert status == 1
    assert "again" not in said


def test_what_is_compiled_ahead_is_what_pytest_reads(tmp_path: Path) -> None:
    file = tmp_path / "test_some.py"
    file.write_text("def test_some():\n    words = 'told'\n    assert words == 'other'\n")
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    subprocess.run(
        [sys.executable, "-m", "tests.suite", "--rewrite", str(file)],
        cwd=ROOT,
        env=environment,
        check=True,
        timeout=200,
    )
    (made,) = tmp_path.rglob("*.pyc")
    before = made.stat()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(file)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert "AssertionError: assert 'told' == 'other'" in done.stdout
    (read,) = tmp_path.rglob("*.pyc")
    after = read.stat()
    assert (read, after.st_ino, after.st_mtime_ns) == (made, before.st_ino, before.st_mtime_ns)
