"""Thousands of bad days of a group: no promise is broken, and every fault that the argument speaks
of was met.
"""

from __future__ import annotations

import os
import re
from itertools import chain

import pytest

from tests.sim.ft import broken, census
from tests.sim.ft.group import run_history
from tests.sim.ft.shapes import SHAPES, shape_of
from tests.sim.model import Violation

#: The sanitizer build is slow, and has what it looks for in the first hundreds.
SANITIZED = "FTSTAN_SANITIZED" in os.environ
HISTORIES = 200 if SANITIZED else 2500
#: Histories after which a group that is broken on purpose must have been caught.
PATIENCE = 2000


_MISFIT = re.compile(r"\b(Type|Attribute|Name)Error\b")

#: Half of the histories each, so that two processors share them.
HALVES = (range(HISTORIES), range(HISTORIES, 2 * HISTORIES))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seeds", HALVES, ids=["first", "second"])
def test_no_history_breaks_a_promise_and_every_fault_was_met(seeds: range) -> None:
    met = census.run(seeds)
    print(census.table(met))
    assert [name for name in census.REQUIRED if not met[name]] == [] or SANITIZED
    assert met["histories"] == HISTORIES
    # Nothing of ours loses its name while we have it open (tests/sim/test_silly_renames.py).
    assert met["silly renames"] == 0


def test_a_history_is_told_again_by_its_seed() -> None:
    for seed in range(len(SHAPES)):
        assert run_history(seed, shape_of(seed)) == run_history(seed, shape_of(seed))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rule", broken.CAUGHT_BY_CHANCE)
def test_a_group_that_is_broken_on_purpose_is_caught_by_chance(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken.VARIANTS[rule](monkeypatch)
    first = broken.CAUGHT_BY_CHANCE[rule]
    with pytest.raises(Violation) as caught:
        # All of them count, and the one that is known to find it comes first.
        census.run(chain(range(first, PATIENCE), range(first)))
    # A variant that does not fit the product any more ends a process by itself, and has shown
    # nothing.
    assert not _MISFIT.search(str(caught.value)), caught.value
