"""The benchmarks run to their end and print every row.

What the figures are is no matter of a test.
"""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from benchmarks.load import Marks, percentiles
from benchmarks.patterns import PATTERNS
from benchmarks.rows import BARE, FILE, MEMORY
from tests.ft.programs import run_to_end

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1300)]

ROWS = {
    "seal: header and CRC": 1,
    "index entries": 1,
    "scan of an index": 1,
    "scan of data": 1,
    **{f"{c}, {size} bytes": 2 for c in ("AES", "CHACHA") for size in (128, 1024)},
    "a group of 10 members": 3,
    "a group of 1000 members": 3,
    "20,000 messages after a clean stop": 3,
    "20,000 messages after kill -9": 3,
    "20 channels after a clean stop": 3,
    "20 channels after kill -9": 3,
}
"""Each row of what is measured in steps, and how many figures stand in it."""


def test_a_small_bench_prints_a_figure_in_every_column_of_every_row(tmp_path: Path) -> None:
    table = tmp_path / "rows.json"
    outcome = run_to_end(
        [
            *(
                sys.executable,
                "-m",
                "benchmarks",
                "--count",
                "2000",
                "--old",
                "4000",
                "--rounds",
                "1",
            ),
            *("--recover", "20000", "--channels", "20", "--idle", "0.2", "--clients", "50"),
            *("--json", str(table), "--plots", str(tmp_path)),
        ]
    )
    assert outcome.status == 0, outcome.shown()
    figures = {
        found[1]: len(found[2].split())
        for line in outcome.lines
        if (found := re.fullmatch(r" *(\S.*?)((?: +\d+(?:\.\d+)?)+)", line)) is not None
    }
    assert {name: count for name, count in figures.items() if name in ROWS} == ROWS, outcome.shown()
    rows = json.loads(table.read_text())
    assert [(row["pattern"], row["what"]) for row in rows] == [
        (pattern.name, what) for pattern in PATTERNS for what in (BARE, MEMORY, FILE)
    ]
    for row in rows:
        assert row["per_second"] > 0, row
        assert len(row["delays"]) == (0 if row["pattern"] == "old messages" else 3), row
        assert all(row[figure] > 0 for figure in ("server_cpu", "peak_mb")) == (
            row["what"] != BARE
        ), row
    assert outcome.text.count("idle CPU") == 2
    assert outcome.text.count("50 idle clients, ") == 2
    for name in ("throughput.svg", "cpu.svg"):
        root = ET.fromstring((tmp_path / name).read_text())  # we wrote it
        assert len([e for e in root.iter() if e.tag.endswith("rect")]) > len(PATTERNS)


def test_idle_clients_are_as_many_as_asked_for_and_have_figures_of_both_processes() -> None:
    outcome = run_to_end(
        [
            *(sys.executable, "-m", "benchmarks", "--only", "idle clients"),
            *("--clients", "50", "--idle", "0.2"),
        ]
    )
    assert outcome.status == 0, outcome.shown()
    cost = r"-?\d+(?:\.\d)? (?:Ki)?B a client \(RSS \d+\.\d MiB\), \d+\.\d\d % CPU"
    shown = [
        re.fullmatch(rf"50 idle clients, (.*): server {cost}; nats-server {cost}", line)
        for line in outcome.lines
    ]
    assert [found and found[1] for found in shown] == ["through the listener", "-direct=false"]


def test_only_what_was_asked_for_is_measured() -> None:
    outcome = run_to_end(
        [
            *(sys.executable, "-m", "benchmarks", "--only", "one at a time", "--count", "1000"),
            *("--rounds", "1", "--idle", "0.1"),
        ]
    )
    assert outcome.status == 0, outcome.shown()
    assert [p.name for p in PATTERNS if f"{p.name}\n" in outcome.text] == ["publish, one at a time"]
    assert "seal" not in outcome.text


def test_a_delay_runs_from_the_chunk_of_a_message_to_the_read_that_answered_it() -> None:
    marks = Marks(sent=[(2, 1.0), (4, 2.0)], answered=[(1, 1.5), (3, 4.0), (4, 7.0)])
    assert marks.delays() == [(0.5, 1), (3.0, 1), (2.0, 1), (5.0, 1)]


def test_percentiles_count_messages_and_not_reads() -> None:
    assert percentiles([(9.0, 1), (1.0, 98), (5.0, 1)], (0.5, 0.98, 0.99, 1.0)) == [
        1.0,
        1.0,
        5.0,
        9.0,
    ]
