"""``ftstan-pipeline`` as a process of its own, alone and under ``spark-submit``: what it writes,
and that it ends.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from tests.datastores import serving
from tests.processes import ROOT
from tests.spark.programs import SPARK_HOME, finished, pipeline

if TYPE_CHECKING:
    from pathlib import Path

SUBMIT = SPARK_HOME / "bin" / "spark-submit"
FILE = ROOT / "docs" / "examples" / "pipeline" / "ftstan_pipeline.py"


@pytest.mark.timeout(700)
def test_the_command_prints_its_answer_and_nothing_of_spark(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as node:
        node.publish(b"orders", b"one", b"two")
    conf = ["--conf", "spark.driver.memory=512m", "--master", "local[1]"]
    words = ["read", tmp_path / "store", "--output", "json", "--where", "sequence = 2", *conf]
    done = finished(pipeline(*words), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert [
        (row["sequence"], row["size"]) for row in map(json.loads, done.stdout.splitlines())
    ] == [(2, 3)]
    words = [
        "--master",
        "local[1]",
        FILE,
        "read",
        tmp_path / "store",
        "--count",
        "--output",
        "json",
    ]
    done = finished([SUBMIT, "--driver-memory", "512m", *words], tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row["messages"] for row in json.loads(done.stdout)["channels"]] == [2]


@pytest.mark.timeout(700)
def test_what_runs_idle_leaves_the_processors_to_everybody_else(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as node:
        node.publish(b"orders", b"one", b"two")
    # Spark starts its workers by this name: it writes down how they are scheduled, and becomes one.
    worker = tmp_path / "worker"
    worker.write_text(
        f"#!/bin/sh\ncut -d' ' -f41 /proc/self/stat >> {tmp_path}/policies\nexec "
        f'{sys.executable} "$@"\n'
    )
    worker.chmod(0o755)
    conf = ["--conf", "spark.driver.memory=512m", "--master", "local[1]"]
    words = pipeline("read", tmp_path / "store", "--idle", "--where", "sequence = 2", *conf)
    done = finished(words, tmp_path, PYSPARK_PYTHON=str(worker))
    assert done.returncode == 0, done.stderr
    # SCHED_IDLE, of each: a server that wakes is not in their way.
    assert set((tmp_path / "policies").read_text().split()) == {"5"}
