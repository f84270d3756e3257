"""Deadlines that pass while a test waits: what ``tests/suite.py`` may forgive once, and nothing
else.

Its hook marks the reports of failures that are of this kind; ``tests/conftest.py`` brings it into
every worker.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

#: Property of a report, with the reason as its value.
LATE = "late"


class LateError(AssertionError):
    """What a test waited for did not come in time.

    It says nothing of whether what came was right.
    """


_KINDS = (LateError, TimeoutError, subprocess.TimeoutExpired)

#: Spark gives a Python worker ten seconds to start, and no setting for it.
SPARK_LATE = "Python worker failed to connect back"


def reason_of(error: BaseException) -> str:
    """Why the failure is a deadline that passed, empty if it is not."""
    # pytest-timeout ends a test with a failure of pytest's own kind.
    if (
        isinstance(error, _KINDS)
        or (isinstance(error, pytest.fail.Exception) and str(error).startswith("Timeout (>"))
        or (type(error).__module__.startswith("pyspark.") and SPARK_LATE in str(error))
    ):
        return str(error).partition("\n")[0] or type(error).__name__
    return ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note the reason in the report, which travels from a worker to the run that judges."""
    report = yield
    if report.failed and call.excinfo is not None and (reason := reason_of(call.excinfo.value)):
        report.user_properties.append((LATE, reason))
    return report
