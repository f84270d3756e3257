"""The benchmarks run to their end and print every row. What the figures are is no matter of a test."""

from __future__ import annotations

import re
import sys

import pytest

from tests.ft.programs import run_to_end

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]

COUNT, RECOVER, CHANNELS, REPLAY = 2000, 20_000, 20, 20_000

ROWS = {
    "bare NATS request/reply": 4,
    "async publish, memory store": 4,
    "async publish, file store, fsync": 4,
    "seal: header and CRC": 1,
    "index entries": 1,
    "scan of an index": 1,
    "scan of data": 1,
    "a group of 10 members": 3,
    "a group of 1000 members": 3,
    "20,000 messages after a clean stop": 3,
    "20,000 messages after kill -9": 3,
    "20 channels after a clean stop": 3,
    "20 channels after kill -9": 3,
    "from the memory store": 2,
    "from the file store": 2,
}
"""Each row, and how many figures stand in it."""


def test_a_small_bench_prints_a_figure_in_every_column_of_every_row() -> None:
    outcome = run_to_end(
        [
            *(sys.executable, "-m", "benchmarks", "--count", str(COUNT), "--rounds", "1"),
            *("--recover", str(RECOVER), "--channels", str(CHANNELS), "--replay", str(REPLAY)),
        ]
    )
    assert outcome.status == 0, outcome.shown()
    figures = {
        found[1]: len(found[2].split())
        for line in outcome.lines
        if (found := re.fullmatch(r" *(\S.*?)((?: +\d+(?:\.\d+)?)+)", line)) is not None
    }
    assert figures == ROWS, outcome.shown()
