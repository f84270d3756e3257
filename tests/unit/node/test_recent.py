"""The last hour that a dashboard shows: bounded, and without a look at very many channels."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from ftstan.base.disk import Space
from ftstan.base.states import NodeState
from ftstan.node.recent import Recent
from tests.unit.admin.test_protocol import STATUS

STANDALONE = replace(STATUS, group="", state=NodeState.STANDALONE, serving=True)


class Node:
    """A standalone server whose counters and clock a test moves."""

    def __init__(self, channels: int = 1) -> None:
        self.now = 0.0
        self.looks = 0
        self.how = STANDALONE
        self.group = None
        self.cluster = None
        self.clock = SimpleNamespace(
            mono=lambda: self.now, wall_ns=lambda: round(self.now * 1e9) + 1_000_000_000
        )
        self.broker = SimpleNamespace(in_msgs=0, out_msgs=0, channels=range(channels))
        self.plane = SimpleNamespace(serving=SimpleNamespace(broker=self.broker, commits=None))
        self.status = SimpleNamespace(now=lambda: self.how)
        self.protection = SimpleNamespace(room=None)
        self.recent = Recent(cast("Any", self), cast("Any", self))

    async def census(self) -> tuple[None, list[SimpleNamespace]]:
        self.looks += 1
        return None, [SimpleNamespace(pending=2), SimpleNamespace(pending=3)]

    def step(self, published: int = 0, seconds: float = 10.0) -> None:
        self.now += seconds
        self.broker.in_msgs += published
        asyncio.run(self.recent.take())


def test_a_point_has_the_rate_over_its_step() -> None:
    node = Node()
    node.step()
    assert node.recent.points() == []
    node.step(published=300)
    (point,) = node.recent.points()
    assert (point.t_ms, point.published, point.delivered, point.commit_ms, point.pending) == (
        21_000,
        30.0,
        0.0,
        None,
        5,
    )
    node.step()
    assert [later.published for later in node.recent.points(point.t_ms)] == [0.0]


def test_an_hour_is_kept_and_no_more() -> None:
    node = Node()
    for _ in range(500):
        node.step()
    points = node.recent.points()
    assert points[-1].t_ms - points[0].t_ms == 359 * 10_000


def test_very_many_channels_are_not_counted_for_it() -> None:
    node = Node(channels=1001)
    node.step()
    node.step(published=10)
    assert node.looks == 0
    assert node.recent.points()[0].pending is None


def test_another_store_begins_anew() -> None:
    node = Node()
    node.step(published=100)
    node.plane.serving = SimpleNamespace(broker=node.broker, commits=None)
    node.broker.in_msgs = 0
    node.step()
    assert node.recent.points() == []


def test_since_is_when_the_verdict_changed_and_not_when_somebody_looked() -> None:
    node = Node()
    node.step()
    node.step()
    found = node.recent.judged(STANDALONE)
    assert (found["health"], found["since_ms"]) == ("healthy", 11_000)
    node.recent.quarantined = 2
    node.step()
    found = node.recent.judged(STANDALONE)
    assert (found["health"], found["since_ms"]) == ("degraded", 31_000)
    assert found["problems"] == ["2 channels are quarantined"]


def test_little_room_on_the_file_system_and_late_storage_are_problems() -> None:
    node = Node()
    node.protection.room = Space(4, 100, 0, 0)
    found = node.recent.judged(replace(STANDALONE, storage_late=True))
    assert found["health"] == "degraded"
    assert found["problems"] == [
        "storage is late: no heartbeat is sent until it answers",
        "the datastore's file system has 4 % left",
    ]
    node.protection.room = Space(6, 100, 0, 0)
    assert node.recent.judged(STANDALONE)["health"] == "healthy"


def test_a_server_that_does_not_serve_says_what_it_does() -> None:
    node = Node()
    found = node.recent.judged(replace(STANDALONE, serving=False, phase="recovering"))
    assert (found["health"], found["problems"]) == ("unserved", ["this server is recovering"])
