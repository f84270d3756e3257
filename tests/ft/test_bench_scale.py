"""The scale benchmark runs to its end and prints every row.

What the figures are is no matter of a test.
"""

from __future__ import annotations

import re
import sys

import pytest

from tests.ft.programs import run_to_end

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1300)]

COSTS = {
    "channels": ["subscribe, creating a channel", "publish to each channel"],
    "one channel": ["subscribe", "deliver", "unsubscribe", "close a client's subscriptions"],
    "clients": ["connect", "heartbeat", "close"],
    "queue group": ["join", "deliver", "leave", "close a client's members"],
}


def test_a_small_scale_bench_prints_every_row_of_every_case() -> None:
    outcome = run_to_end(
        [
            *(sys.executable, "-m", "benchmarks.scale"),
            *("--many", "20", "--some", "8", "--idle", "0.1", "--stores", "file"),
        ]
    )
    assert outcome.status == 0, outcome.shown()
    rows = [
        found[1]
        for line in outcome.lines
        if (found := re.fullmatch(r"  (\S.*?)((?: +\d+\.\d+){6})", line))
    ]
    assert rows == [name for names in COSTS.values() for name in names], outcome.shown()
    text = outcome.text
    assert text.count("idle CPU %") == 4, outcome.shown()
    assert text.count("start after kill -9, s") == 2, outcome.shown()
