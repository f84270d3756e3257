"""The data plane's inbox: what is posted is done in order, and nobody who gives up waiting harms
it.
"""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import pytest

from ftstan.base.errors import FencedError
from ftstan.node.dataplane import DataPlane


def test_whoever_gives_up_waiting_leaves_the_thread_as_it_is() -> None:
    ended: list[BaseException] = []
    plane = DataPlane(ended.append)
    plane.start()
    busy = threading.Event()
    go = threading.Event()
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


def test_an_error_belongs_to_whoever_asked() -> None:
    plane = DataPlane(lambda _: None)
    plane.start()

    def fail() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        plane.call(fail).result(60)
    assert plane.stop(60)


def test_a_fence_in_a_closure_ends_the_thread_before_anything_else_is_done() -> None:
    ended: list[BaseException] = []
    plane = DataPlane(ended.append)
    done: list[str] = []

    def fenced() -> None:
        raise FencedError("the store is somebody else's")

    first = plane.call(fenced)
    behind = plane.call(lambda: done.append("behind"))
    plane.start()
    with pytest.raises(FencedError):
        first.result(60)
    plane._thread.join(60)
    assert [str(error) for error in ended] == ["the store is somebody else's"]
    assert (done, behind.done()) == ([], False)


def test_who_tries_to_become_the_owner_may_lose() -> None:
    ended: list[BaseException] = []
    plane = DataPlane(ended.append)
    plane.start()

    def lost() -> None:
        raise FencedError("another server was faster")

    with pytest.raises(FencedError):
        plane.call(lost, may_lose=True).result(60)
    assert plane.call(lambda: "still here").result(60) == "still here"
    assert plane.stop(60)
    assert ended == []
