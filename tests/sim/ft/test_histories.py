"""Bad days of a group: no promise is broken, and a group that is broken on purpose is caught.

``test_many_histories.py`` has thousands of them.
"""

from __future__ import annotations

import re

import pytest

from tests.sim.ft import broken, census
from tests.sim.ft.group import run_history
from tests.sim.ft.shapes import SHAPES, shape_of
from tests.sim.model import Violation

#: Behind those of ``test_many_histories.py``.
SEEDS = range(5000, 5300)

_MISFIT = re.compile(r"\b(Type|Attribute|Name)Error\b")


@pytest.mark.timeout(600)
def test_no_history_breaks_a_promise() -> None:
    met = census.run(SEEDS)
    assert met["histories"] == len(SEEDS)
    assert sum(met[name] for name in census.REQUIRED) > len(SEEDS)


def test_a_history_is_told_again_by_its_seed() -> None:
    for seed in range(len(SHAPES)):
        assert run_history(seed, shape_of(seed)) == run_history(seed, shape_of(seed))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rule", broken.CAUGHT_BY_CHANCE)
def test_a_group_that_is_broken_on_purpose_is_caught_by_chance(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken.VARIANTS[rule](monkeypatch)
    with pytest.raises(Violation) as caught:
        census.run(broken.CAUGHT_BY_CHANCE[rule].seeds)
    # A variant that does not fit the product any more ends a process by itself, and has shown
    # nothing.
    assert not _MISFIT.search(str(caught.value)), caught.value
