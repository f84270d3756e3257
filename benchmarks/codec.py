"""The record and index code alone: nanoseconds a message of CRC, index entries and both scans."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from ftstan.stores.file.log import records
from ftstan.wire.block import MsgBlock

if TYPE_CHECKING:
    from collections.abc import Callable

_COUNT = 20_000


def run(size: int, rounds: int) -> None:
    """Print one line per function."""
    crc = records.Crc()
    block = MsgBlock()
    for i in range(_COUNT):
        block.append(i + 1, b"bench", b"", b"x" * size, 1_700_000_000_000_000_000 + i)
    records.seal(block, crc)
    data = bytes(memoryview(block))
    index = records.index_entries(block, 0, _COUNT, records.VERSION_SIZE, crc)
    print(f"\n{f'record code, {size} byte messages':44}{'ns a message':>14}")
    for name, function in (
        ("seal: header and CRC", lambda: records.seal(block, crc)),
        (
            "index entries",
            lambda: records.index_entries(block, 0, _COUNT, records.VERSION_SIZE, crc),
        ),
        ("scan of an index", lambda: records.scan_index(index, crc)),
        ("scan of data", lambda: records.scan_data(data, b"bench", 0, crc)),
    ):
        print(f"{'  ' + name:44}{_nanoseconds(function, rounds):14.0f}", flush=True)


def _nanoseconds(function: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(max(rounds, 3)):
        started = time.process_time_ns()
        function()
        times.append(time.process_time_ns() - started)
    return statistics.median(times) / _COUNT
