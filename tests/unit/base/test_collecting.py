"""The cyclic collector: young garbage goes soon, old garbage within the hour, what recovery made is
not looked at.
"""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from ftstan.base.collecting import EVERYTHING_S, YOUNG, Collecting

if TYPE_CHECKING:
    from collections.abc import Iterator


class Loop:
    """Garbage by a cycle, once nobody holds it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def collecting() -> Iterator[Collecting]:
    before = gc.get_threshold()
    gc.unfreeze()
    yield Collecting()
    # What the collected tests are is set aside again (tests/conftest.py).
    gc.freeze()
    gc.set_threshold(*before)


def test_what_recovery_has_made_is_set_aside_without_its_garbage(collecting: Collecting) -> None:
    garbage = weakref.ref(Loop())
    collecting.begin(0)
    assert garbage() is None
    assert gc.get_freeze_count() > 1000
    assert len(gc.get_objects()) < 1000


def test_young_cycles_are_collected_by_themselves(collecting: Collecting) -> None:
    collecting.begin(0)
    garbage = [weakref.ref(Loop()) for _ in range(10)]
    kept = [[] for _ in range(2 * YOUNG)]  # type: ignore[var-annotated]
    assert [ref() for ref in garbage] == [None] * 10
    assert len(kept) == 2 * YOUNG


def test_old_objects_are_not_looked_at_while_publishers_wait(collecting: Collecting) -> None:
    collecting.begin(0)
    everything: list[dict[str, int]] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            everything.append(info)

    gc.callbacks.append(note)
    try:
        kept = [[] for _ in range(100 * YOUNG)]  # type: ignore[var-annotated]
    finally:
        gc.callbacks.remove(note)
    assert {info["generation"] for info in everything} == {0, 1}
    assert len(kept) == 100 * YOUNG


def test_old_cycles_are_collected_within_the_hour_also_those_that_were_set_aside(
    collecting: Collecting,
) -> None:
    loop = Loop()
    garbage = weakref.ref(loop)
    collecting.begin(0)
    del loop
    collecting.look(EVERYTHING_S - 1)
    assert garbage() is not None
    collecting.look(EVERYTHING_S)
    assert garbage() is None
    again = weakref.ref(Loop())
    assert gc.get_freeze_count() > 0
    collecting.look(2 * EVERYTHING_S)
    assert again() is None


def test_who_has_not_begun_leaves_the_collector_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for name in ("collect", "freeze", "unfreeze", "set_threshold"):
        monkeypatch.setattr(gc, name, lambda *_, name=name: called.append(name))
    Collecting().look(1e9)
    assert not called
    begun = Collecting()
    begun.begin(0)
    begun.look(EVERYTHING_S)
    assert called == ["collect", "freeze", "set_threshold", "unfreeze", "collect", "freeze"]
