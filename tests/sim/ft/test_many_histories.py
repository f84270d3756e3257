"""More than a thousand bad days of a group: no promise is broken, and every fault that the argument
speaks of was met.

``make soak-ft`` goes on until it is stopped.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.sim.ft import census

#: The rarest of the required faults comes once in a thousand histories.
HISTORIES = 1200


@pytest.mark.timeout(1800)
def test_no_history_breaks_a_promise_and_every_fault_was_met() -> None:
    # Two processors share them. Greenlets and threads are none of the new processes' inheritance.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, spawn) as pool:
        halves = pool.map(census.run, (range(0, HISTORIES, 2), range(1, HISTORIES, 2)))
        met = sum(halves, Counter[str]())
    print(census.table(met))
    assert [name for name in census.REQUIRED if not met[name]] == []
    assert met["histories"] == HISTORIES
    # Nothing of ours loses its name while we have it open (tests/sim/test_silly_renames.py).
    assert met["silly renames"] == 0
