"""The data plane's inbox: what is posted is done in order, and nobody who gives up waiting harms it."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import pytest

from ftstan.dataplane import DataPlane


def test_whoever_gives_up_waiting_leaves_the_thread_as_it_is() -> None:
    ended: list[BaseException] = []
    plane = DataPlane(ended.append)
    plane.start()
    busy, go = threading.Event(), threading.Event()
    done: list[str] = []

    def work() -> None:
        busy.set()
        go.wait(60)

    first = plane.call(work)
    assert busy.wait(60)
    given_up = plane.call(lambda: done.append("given up"))
    wanted = plane.call(lambda: done.append("wanted"))
    # What runs already cannot be called off, and what waits is not done any more.
    assert (first.cancel(), given_up.cancel()) == (False, True)
    go.set()
    wanted.result(60)
    with pytest.raises(CancelledError):
        given_up.result(60)
    assert (done, ended) == (["wanted"], [])
    assert plane.stop(60)
