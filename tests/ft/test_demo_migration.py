"""The demo of a migration, short: both sides equal after the cut-over and after the way back."""

from __future__ import annotations

import sys

import pytest

from demo.migration import EXIT_CLEAN
from tests.ft.programs import run_to_end

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

#: Eight servers and processes on a machine that is busy with other tests.
LIMIT_S = 800.0


def test_a_short_demo_of_a_migration_is_clean() -> None:
    words = [sys.executable, "-m", "demo.migration", "--pause", "1"]
    outcome = run_to_end(words, limit=LIMIT_S)
    assert outcome.status == EXIT_CLEAN, outcome.shown()
    assert "clean: counts and checksums of both sides are equal" in outcome.text
    for told in ("the active server", "the bridge", "which leads the stream"):
        assert f"SIGKILL: {told}" in outcome.text or told in outcome.text
