"""A client's test suite starts the server, gives it a moment, connects, publishes, ends it, again
and again on one port and directory. Nobody repeats a request, and no start is tried twice.

How many starts had their port within 250 ms is printed, and belongs to the machine.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from benchmarks.installed import checkout, install
from benchmarks.starting import PATIENCE_MS, again, in_time, start
from tests.processes import free_ports

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes


def test_every_start_connects_and_stores_at_the_first_try_on_the_same_port_and_directory(
    tmp_path: Path,
) -> None:
    commands = install(str(tmp_path))
    starts = again(50, str(tmp_path), free_ports(1)[0], commands=commands)
    assert len(starts) == 50
    print(f"{in_time(starts)} of {len(starts)} starts had a port within {PATIENCE_MS:g} ms")


def test_a_server_starts_at_once_where_another_was_killed(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    words = ("-store", "file", "-dir", str(tmp_path / "store"))
    for _ in range(5):
        start(words, port, signal.SIGKILL, commands=checkout())
    start(words, port, commands=checkout())


def test_a_client_that_finds_the_port_open_is_answered_by_a_memory_server_too() -> None:
    port = free_ports(1)[0]
    for _ in range(5):
        start((), port, commands=checkout())
