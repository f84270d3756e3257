"""Programs of Spark as processes of their own: masters, workers, a Connect server,
``ftstan-pipeline``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from tests.lateness import SPARK_LATE, LateError
from tests.processes import HOST, ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Seconds for one program, several times what a busy machine needs.
PROGRAM_S = 600.0

#: The same for starting a JVM.
START_S = 200.0

SPARK_HOME = Path(pyspark.__file__).parent


def environment(**more: str) -> dict[str, str]:
    """Of a program whose workers run this interpreter and find this package."""
    ours = {
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(SPARK_HOME),
    }
    return {**os.environ, **ours, "SPARK_LOCAL_IP": HOST, **more}


def finished(
    words: Sequence[object], directory: Path, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, in ``directory``; ``more`` variables go into its environment.

    Raises ``LateError`` where Spark did not wait for its own worker.
    """
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        check=False,
        timeout=PROGRAM_S,
        cwd=directory,
        env=environment(TMPDIR=str(directory), **more),
        stdin=subprocess.DEVNULL,
    )
    if done.returncode and SPARK_LATE in done.stderr:
        raise LateError(SPARK_LATE)
    return done


def pipeline(*words: object) -> list[object]:
    """``ftstan-pipeline`` with these words."""
    return [sys.executable, "-m", "ftstan.cli.pipeline.command", *words]
