"""Whole programs run to their end, for tests that judge what they print: the demo, the benchmarks,
the README's tour.

Each runs in a process group of its own, and nothing of that group outlives the call, whatever
happened.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LIMIT_S = 600.0
"""How long a program may take: several times what it needs on a busy machine."""

_LAST_WORDS_S = 30.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program ended, and what it wrote. ``errors`` is its standard error."""

    status: int
    text: str
    errors: str
    pid: int

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    def shown(self) -> str:
        """All of it, for the report of a test that failed."""
        return f"status {self.status}\n--- output ---\n{self.text}\n--- errors ---\n{self.errors}"


def run_to_end(words: Sequence[str], directory: Path = ROOT, *, limit: float = LIMIT_S) -> Outcome:
    """Run a program in ``directory``. Fails when it has not ended after ``limit`` seconds."""
    process = subprocess.Popen(
        words,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        process_group=0,
    )
    try:
        try:
            text, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            # Its own clean-up first: it may have children in groups of their own.
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=_LAST_WORDS_S)
            raise AssertionError(f"{' '.join(words)}: still running after {limit:g} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
    return Outcome(process.returncode, text, errors, process.pid)
