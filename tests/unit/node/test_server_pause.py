"""A node whose storage fails gives everything up at once, and does not come back at once."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import FencedError, StoreError
from ftstan.config.options import ServerOptions
from ftstan.node import node as server
from ftstan.node import runtime

if TYPE_CHECKING:
    from pathlib import Path


class EndedError(Exception):
    """Instead of the end of the process."""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    calls: list[tuple[object, ...]] = []

    def record(*arguments: object) -> None:
        calls.append(arguments)
        raise EndedError

    monkeypatch.setattr(runtime, "pause_and_end", record)
    monkeypatch.setattr(runtime, "end_process", record)
    return calls


def test_storage_that_fails_soon_after_the_start_costs_a_pause(
    ends: list[tuple[object, ...]],
) -> None:
    clock = ManualClock()
    node = server.Node(ServerOptions(), clock)
    node._serving_since = clock.mono()
    clock.advance(59)
    with pytest.raises(EndedError):
        node.storage_failed(StoreError("storage fails"))
    assert ends == [("storage fails", 75, 5)]


@pytest.mark.parametrize(("error", "after"), [(StoreError("late"), 61), (FencedError("fenced"), 1)])
def test_a_node_that_served_for_a_while_or_is_fenced_ends_at_once(
    ends: list[tuple[object, ...]], error: Exception, after: float
) -> None:
    clock = ManualClock()
    node = server.Node(ServerOptions(), clock)
    node._serving_since = clock.mono()
    clock.advance(after)
    with pytest.raises(EndedError):
        node.storage_failed(error)
    assert ends == [(str(error), 75)]


@pytest.mark.slow
def test_during_the_pause_nothing_is_held_and_the_exit_status_is_kept(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    script = f"""
        import fcntl, os, sys, threading
        from ftstan.node.process_exit import pause_and_end
        fd = os.open({str(lock)!r}, os.O_RDWR | os.O_CREAT)
        fcntl.lockf(fd, fcntl.LOCK_EX)
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        threading.Thread(target=pause_and_end, args=("storage fails", 75, 1)).start()
        threading.Event().wait()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert "storage fails (exit in 1s)" in process.stderr.readline()
        fd = os.open(lock, os.O_RDWR)
        try:
            # Blocks until it is free: far earlier than the status, which comes after the pause.
            fcntl.lockf(fd, fcntl.LOCK_EX)
        finally:
            os.close(fd)
        assert process.wait(30) == 75


def test_a_node_that_is_fenced_while_it_starts_or_stops_exits_75(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fenced(_: server.Node) -> int:
        raise FencedError("ft: epoch 3 was superseded")

    monkeypatch.setattr(server.Node, "main", fenced)
    assert server.run(ServerOptions()) == 75
