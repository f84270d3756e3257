"""The launcher of processes: what a child says is waited for, none outlives the order to stop."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from ftstan.drill.processes import Child, EndedError, alive

if TYPE_CHECKING:
    from pathlib import Path

DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


def test_a_child_that_does_not_hear_is_killed_when_its_time_is_over(tmp_path: Path) -> None:
    child = Child([sys.executable, "-c", DEAF], tmp_path / "log")
    child.wait_for("ready")
    child.stop(0.1)
    assert child.returncode == -9
    assert not alive(child.pid)


def test_waiting_for_what_a_child_never_says_ends_with_the_child_or_the_deadline(
    tmp_path: Path,
) -> None:
    (tmp_path / "log").write_text("ready, said a former process\n")
    brief = Child([sys.executable, "-c", "print('bye')"], tmp_path / "log")
    with pytest.raises(EndedError, match=r"(?s)log ended \(0\) before it said 'ready'.*bye"):
        brief.wait_for("ready")
    deaf = Child([sys.executable, "-c", DEAF], tmp_path / "deaf")
    try:
        with pytest.raises(TimeoutError, match="in vain for 'more' in deaf"):
            deaf.wait_for("more", within=0.1)
    finally:
        deaf.kill()
