"""The benchmark of the SQL store runs to its end and prints every row.

What the figures are is no matter of a test.
"""

from __future__ import annotations

import re
import sys

import pytest

from benchmarks.sql import DRIVERS
from tests.ft.programs import run_to_end

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1300)]

PATTERNS = [
    "publish",
    "publish, one at a time",
    "1 publisher, 1 subscriber",
    "4 publishers, 4 subscribers",
]


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_small_bench_prints_every_row(driver: str) -> None:
    outcome = run_to_end(
        [
            *(sys.executable, "-m", "benchmarks.sql", "--driver", driver, "--rounds", "1"),
            *("--count", "1000", "--messages", "500", "--channels", "50"),
            *("--failovers", "1", "--settle", "0.2"),
        ]
    )
    assert outcome.status == 0, outcome.shown()
    rows = [
        found[1]
        for line in outcome.lines
        if (found := re.fullmatch(r"  (\S.*?)(?: +[\d.,]+){7}", line))
    ]
    assert rows == PATTERNS, outcome.shown()
    text = "\n".join(outcome.lines)
    assert re.search(
        r"recovery of 500 messages in 50 channels: \d+\.\d\d s, RSS [\d.]+ MiB", text
    ), outcome.shown()
    for name in ("1 channel", "500 messages in 50 channels"):
        assert re.search(
            rf"  {name}, kill -9 .*\n +signal to next acked publish, ms +[\d.]+", text
        ), outcome.shown()
