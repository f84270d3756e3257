"""The takeover benchmark runs to its end and prints every row.

What the figures are is no matter of a test.
"""

from __future__ import annotations

import re
import sys

import pytest

from tests.ft.programs import run_to_end

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1300)]

COLUMNS = [
    "signal to next acked publish, ms",
    "signal to the successor's first ack, ms",
    'signal to "Server is active", ms',
    'signal to "Streaming Server is ready", ms',
    "longest time without an ack, ms",
    "publishes without an ack",
    "CPU of the successor, ms",
]


def test_a_small_takeover_bench_prints_every_figure_of_every_store_and_way() -> None:
    outcome = run_to_end(
        [
            *(sys.executable, "-m", "benchmarks.ft", "--failovers", "1", "--settle", "0.2"),
            *("--messages", "700", "--channels", "70"),
        ]
    )
    assert outcome.status == 0, outcome.shown()
    titles = [line[:44].strip() for line in outcome.lines if line.endswith("max")]
    stores = ("1 channel", "700 messages in 70 channels")
    assert titles == [
        f"{store}, {way}" for store in stores for way in ("kill -9", "SIGTERM", "switchover")
    ], outcome.shown()
    rows = [
        found[1]
        for line in outcome.lines
        if (found := re.fullmatch(r"  (\S.*?)(?: +\d+\.\d){4}", line))
    ]
    assert rows == COLUMNS * 6, outcome.shown()
    assert re.match(
        r"fdatasync of 100 bytes here \d+\.\d\d ms, a confirm \d+\.\d\d us", outcome.lines[0]
    )
