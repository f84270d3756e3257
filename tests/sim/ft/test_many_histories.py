"""Thousands of bad days of a group: no promise is broken, and every fault that the argument speaks
of was met.
"""

from __future__ import annotations

import pytest

from tests.sim.ft import census

HISTORIES = 2500

#: Half of the histories each, so that two processors share them.
HALVES = (range(HISTORIES), range(HISTORIES, 2 * HISTORIES))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", HALVES, ids=["first", "second"])
def test_no_history_breaks_a_promise_and_every_fault_was_met(seeds: range) -> None:
    met = census.run(seeds)
    print(census.table(met))
    assert [name for name in census.REQUIRED if not met[name]] == []
    assert met["histories"] == HISTORIES
    # Nothing of ours loses its name while we have it open (tests/sim/test_silly_renames.py).
    assert met["silly renames"] == 0
