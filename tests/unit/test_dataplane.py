"""The data plane's inbox: what was given up is not done, and nothing that was asked ends the thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from ftstan.dataplane import DataPlane

if TYPE_CHECKING:
    from concurrent.futures import Future

PATIENCE_S = 60.0


def test_a_view_that_gave_up_while_storage_hung_costs_the_thread_nothing() -> None:
    ended: list[BaseException] = []
    plane = DataPlane(ended.append)
    plane.start()
    hangs, began = threading.Event(), threading.Event()

    def hang() -> None:
        began.set()
        hangs.wait(PATIENCE_S)

    hung = plane.call(hang)
    assert began.wait(PATIENCE_S)
    done: list[int] = []
    abandoned: Future[None] = plane.call(lambda: done.append(1))
    assert abandoned.cancel()
    hangs.set()
    hung.result(PATIENCE_S)
    assert plane.call(lambda: 7).result(PATIENCE_S) == 7
    assert (done, ended) == ([], [])
    assert plane.stop(PATIENCE_S)


def test_an_error_belongs_to_whoever_asked() -> None:
    plane = DataPlane(lambda _: None)
    plane.start()

    def fail() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        plane.call(fail).result(PATIENCE_S)
    assert plane.stop(PATIENCE_S)
