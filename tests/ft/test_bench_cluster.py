"""The benchmark of a cluster's takeovers runs to its end and prints every row.

What the figures are is no matter of a test.
"""

from __future__ import annotations

import re
import sys

import pytest

from benchmarks.cluster import KILL, STEP_DOWN
from tests.ft.programs import run_to_end

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1300)]

COLUMNS = [
    "signal to next acked publish, ms",
    "longest time without an ack, ms",
    "publishes without an ack",
]


def test_a_small_bench_of_a_cluster_prints_every_figure_of_every_way() -> None:
    outcome = run_to_end(
        [
            *(sys.executable, "-m", "benchmarks.cluster", "--endings", "1", "--settle", "0.2"),
            *("--only", "elsewhere", "--only", "stepdown"),
        ]
    )
    assert outcome.status == 0, outcome.shown()
    titles = [line[:52].strip() for line in outcome.lines if line.endswith("max")]
    assert titles == [KILL, STEP_DOWN], outcome.shown()
    rows = [
        found[1]
        for line in outcome.lines
        if (found := re.fullmatch(r"  (\S.*?)(?: +\d+\.\d){4}", line))
    ]
    assert rows == COLUMNS * 2, outcome.shown()
