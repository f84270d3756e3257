"""The session that others build on: our interpreter in its workers, our package, our data
source.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.processes import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_workers_run_this_interpreter_and_this_package(spark: SparkSession) -> None:
    def look(_: int) -> tuple[str, str]:
        import ftstan  # noqa: PLC0415  in the worker

        return sys.executable, ftstan.__file__

    found = set(spark.sparkContext.parallelize(range(2), 2).map(look).collect())
    assert found == {(sys.executable, str(ROOT / "ftstan" / "__init__.py"))}


def test_the_session_reads_times_as_utc_and_pushes_filters(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"


def test_importing_the_package_needs_no_spark() -> None:
    words = "import sys, ftstan.spark; assert not {'pyspark', 'pyarrow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", words], cwd=ROOT, check=True)
