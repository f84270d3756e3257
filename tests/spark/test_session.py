"""The session that others build on: our interpreter in its workers, our package, our data
source.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from ftstan.spark import workers
from tests.processes import ROOT
from tests.spark.programs import finished

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

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


#: Of a worker that has our packages but this one, as one of another environment would.
_HIDDEN = """\
import sys
sys.path[:] = [place for place in sys.path if place != {root!r}]
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
"""
_PROGRAM = """\
import sys
sys.path.insert(0, {root!r})
from pyspark.sql import SparkSession
import ftstan.spark
from ftstan.base.errors import ConfigError

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.memory", "512m").getOrCreate()
try:
    ftstan.spark.register(spark)
except ConfigError as error:
    print(error.text)
    print(error.hint)
# What the hint says, by another name: so it is looked at anew.
spark.sparkContext.environment["PYTHONPATH"] = {other!r}
ftstan.spark.register(spark)
print(len(spark.read.format("stan").load().schema))
"""


def test_a_session_whose_workers_lack_the_package_says_which_setting_gives_it_to_them(
    tmp_path: Path,
) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(_HIDDEN.format(root=str(ROOT)))
    program = tmp_path / "program.py"
    other = tmp_path / "other"
    other.symlink_to(ROOT)
    program.write_text(_PROGRAM.format(root=str(ROOT), other=str(other)))
    done = finished([sys.executable, program], tmp_path, PYTHONPATH=str(hidden))
    assert done.returncode == 0, done.stderr
    text, hint, columns = done.stdout.splitlines()[-3:]
    assert text == "the Python workers of this Spark session do not find the module ftstan"
    assert f"set spark.executorEnv.PYTHONPATH to {ROOT} before the session is made" in hint
    assert int(columns) > 5


class _Context:
    pythonExec = "python-of-another"  # noqa: N815  Spark's name
    environment: Mapping[str, str] = {}


def test_workers_of_another_interpreter_are_told_which_one_to_run() -> None:
    error = workers._lacking(_Context(), "pyarrow")  # type: ignore[arg-type]
    assert "do not find the module pyarrow" in error.text
    assert f"its workers run python-of-another, and this program {sys.executable}" in error.hint
    assert "set PYSPARK_PYTHON" in error.hint
