"""Whether the Python workers of a session find this package: Spark hands them the name of a class,
and a worker that cannot import it says so in the middle of the first query.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import ftstan
from ftstan.base.errors import ConfigError
from ftstan.spark.format import FORMAT

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_MISSING = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")


def python_path() -> str:
    """The directory that this package lies in, for ``PYTHONPATH``."""
    return str(Path(ftstan.__file__).parents[1])


def require_found(spark: SparkSession) -> None:
    """Raise ``ConfigError`` if the workers that plan a query of ``stan``, which is registered, lack
    a module.

    They run beside the driver, and those of executors in the same environment. Nothing is said of
    Spark Connect, whose workers are the server's.
    """
    if not hasattr(spark, "sparkContext"):
        return
    context = spark.sparkContext
    if _runs_ours(context) and python_path() in _looked_at(context):
        return
    from pyspark.errors import AnalysisException  # noqa: PLC0415  the package is importable without pyspark

    try:
        # The columns are always the same: no option is looked at, and no job is run.
        _ = spark.read.format(FORMAT).load().schema
    except AnalysisException as error:
        # Whatever else is wrong is for a query to say.
        lacks = _MISSING.search(str(error))
        if lacks is not None:
            raise _lacking(context, lacks[1]) from None


def _runs_ours(context: SparkContext) -> bool:
    found = shutil.which(context.pythonExec)
    # Not the file behind links: all environments of a host may share that.
    return found is not None and os.path.abspath(found) == os.path.abspath(sys.executable)


def _looked_at(context: SparkContext) -> list[str]:
    return str(context.environment.get("PYTHONPATH", "")).split(os.pathsep)


def _lacking(context: SparkContext, module: str) -> ConfigError:
    if _runs_ours(context):
        cure = f"set spark.executorEnv.PYTHONPATH to {python_path()}"
    else:
        cure = (
            f"its workers run {context.pythonExec}, and this program {sys.executable}: set "
            "PYSPARK_PYTHON to the latter"
        )
    return ConfigError(
        f"the Python workers of this Spark session do not find the module {module}",
        hint=f"{cure} before the session is made, or have it made by ftstan.spark.session.session",
    )
