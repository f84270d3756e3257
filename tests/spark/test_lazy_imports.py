"""Commands look at audits and queries before anybody knows whether Spark is installed."""

from __future__ import annotations

import subprocess
import sys

_LOOK = """
import sys
sys.modules["pyspark"] = sys.modules["pyarrow"] = sys.modules["fastavro"] = None
from ftstan.spark import audit, queries
import ftstan.spark.audit.terminal
report = audit.AuditReport((), (), (), dict.fromkeys(audit.AuditKind, 0), ())
print(audit.AuditOptions().quiet_seconds, len(queries.NAMES), queries.QueryOptions().top, report.exit_code)
ftstan.spark.audit.terminal.print_report(report)
"""  # noqa: E501


def test_audits_and_queries_are_importable_without_spark() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOOK], capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.stdout, done.stderr) == ("1.0 5 10 0\nclean\n", "")
